//! `fair_64` and `beside_bulk`: how bulk queue pairs share an engine, and how long a 64 B ping-pong takes
//! beside bulk queue pairs.
//!
//! 64 queue pairs have eight Writes of 64 KiB in flight each, over a wire in memory. One more queue pair does
//! the ping-pong. One thread polls both hosts, so the figures show the queueing in the engines, but no effect
//! of the machine's scheduler.

use std::time::{Duration, Instant};

use benches::endpoint::checked;
use benches::errors::Error;
use benches::latency::{Latencies, LatencySummary};
use benches::two_hosts::{Config, Host, TwoHosts};
use dp::link::LinkConfig;
use iwarp::verbs::{RemoteAddr, SendFlags, SendOp, SendRequest};

use crate::pair::alternate::{Comparison, TIME_LIMIT};

const BULK: usize = 64;
const BULK_BYTES: usize = 64 << 10;
const BULK_DEPTH: usize = 8;
const PING_BYTES: usize = 64;

/// Maximum median of the ping-pong in microseconds.
const LIMIT_US: f64 = 150.0;

/// Index of the ping-pong's queue pair. The bulk queue pairs follow this queue pair.
const PING: usize = 0;

/// Offset at which the ping-pong receives in each host's memory. The offset is after the source and the
/// target of all bulk Writes.
const PING_AT: usize = BULK_BYTES;

/// Offset from which the ping-pong sends.
const PONG_AT: usize = PING_AT + PING_BYTES;

/// The outcome of a run.
pub(crate) struct BesideBulk {
    /// Bytes per second of the slowest and the fastest bulk queue pair.
    slowest: f64,
    fastest: f64,
    /// Round trips of the ping-pong.
    trips: LatencySummary,
}

impl BesideBulk {
    /// Runs for `time`. If `detail` is true, prints the percentiles on standard error.
    ///
    /// # Errors
    /// Returns an error of the engines, or [`Error::Silent`] if an answer does not arrive within the time
    /// limit.
    pub(crate) fn measure(time: Duration, detail: bool) -> Result<Self, Error> {
        let link = LinkConfig { mtu: 9000, mbufs: 32_768, ..LinkConfig::default() };
        let bytes = PONG_AT + PING_BYTES;
        let mut hosts =
            TwoHosts::new(Config { qps: 1 + BULK, depth: BULK_DEPTH, ..Config::new(link, bytes) })?;
        hosts.connect(1 + BULK)?;
        for qp in 1..=BULK {
            (0..BULK_DEPTH).try_for_each(|_| write_bulk(&hosts, qp))?;
        }
        let mut done = [0; 1 + BULK];
        // The first run, of a tenth of the time, is not counted, since the congestion windows open during
        // this run.
        ping_pong(&mut hosts, time / 10, &mut [0; 1 + BULK])?;
        let trips = ping_pong(&mut hosts, time, &mut done)?.summary(0);
        let rates = done[1..].iter().map(|&n| (n * BULK_BYTES) as f64 / time.as_secs_f64());
        let (slowest, fastest) =
            rates.fold((f64::INFINITY, 0.0_f64), |(low, high), rate| (low.min(rate), high.max(rate)));
        if detail {
            eprintln!(
                "{BULK} bulk queue pairs, slowest {slowest:.0} B/s, fastest {fastest:.0} B/s, beside: {trips:?}"
            );
        }
        Ok(Self { slowest, fastest, trips })
    }

    /// Compares the slowest bulk queue pair with the fastest.
    pub(crate) fn fairness(&self) -> Comparison {
        Comparison { ours: self.slowest / 1e6, theirs: self.fastest / 1e6, unit: "MB/s" }
    }

    /// Compares the median round trip with its limit.
    pub(crate) fn round_trip(&self) -> Comparison {
        Comparison { ours: self.trips.typical_us, theirs: LIMIT_US, unit: "us" }
    }
}

fn write_bulk(hosts: &TwoHosts, qp: usize) -> Result<(), Error> {
    let op = SendOp::Write { remote: hosts.b.remote() };
    let request = SendRequest::new(qp as u64, op, hosts.a.memory.sge(0, BULK_BYTES));
    Ok(hosts.a.qps[qp].post_send(&request)?)
}

fn write_ping(from: &Host, to: &Host, mark: u8) -> Result<(), Error> {
    from.memory.write_at(PONG_AT, &[mark; PING_BYTES])?;
    let RemoteAddr { addr, rkey } = to.remote();
    let op = SendOp::Write { remote: RemoteAddr { addr: addr + PING_AT as u64, rkey } };
    let request = SendRequest::new(PING as u64, op, from.memory.sge(PONG_AT, PING_BYTES));
    Ok(from.qps[PING].post_send(&request.flags(SendFlags::INLINE))?)
}

/// Measures round trips for `time`. Between the polls, counts the completed Writes of each queue pair of A in
/// `done`, and posts a new bulk Write for each completed bulk Write.
fn ping_pong(hosts: &mut TwoHosts, time: Duration, done: &mut [usize]) -> Result<Latencies, Error> {
    let last = PING_AT + PING_BYTES - 1;
    let mut trips = Latencies::new(false);
    hosts.start_clock();
    let end = Instant::now() + time;
    // In an earlier call, the last round trip left its mark in memory. The marks of this call continue after
    // that mark.
    let mut mark = hosts.a.memory.load_u8(last)?;
    while Instant::now() < end {
        mark = mark.wrapping_add(1);
        let start = Instant::now();
        write_ping(&hosts.a, &hosts.b, mark)?;
        let mut answered = false;
        while hosts.a.memory.load_u8(last)? != mark {
            hosts.poll_by_clock();
            while let Some(completion) = hosts.a.cq.poll_one() {
                checked(&completion, "Write")?;
                let qp = completion.wr_id as usize;
                done[qp] += 1;
                if qp != PING {
                    write_bulk(hosts, qp)?;
                }
            }
            while let Some(completion) = hosts.b.cq.poll_one() {
                checked(&completion, "Write")?;
            }
            if !answered && hosts.b.memory.load_u8(last)? == mark {
                answered = true;
                write_ping(&hosts.b, &hosts.a, mark)?;
            }
            if start.elapsed() > TIME_LIMIT {
                return Err(Error::Silent { doing: "waiting for the ping-pong", after: TIME_LIMIT });
            }
        }
        trips.record(start.elapsed().as_nanos() as u64);
    }
    Ok(trips)
}
