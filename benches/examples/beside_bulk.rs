//! Shows how bulk queue pairs share an engine, and how long a 64 B ping-pong next to them waits.
//!
//! `cargo run --release -p benches --no-default-features --example beside_bulk`
//!
//! One thread polls both hosts over a wire in memory, so the figures show queueing in the engines and not the
//! machine's scheduler. Prints the share of the slowest bulk queue pair against the fastest, and the full
//! round trip of the ping-pong with and without bulk.

use std::error::Error;
use std::time::{Duration, Instant};

use benches::endpoint::checked;
use benches::two_hosts::{Config, Host, TwoHosts};
use dp::link::LinkConfig;
use hdrhistogram::Histogram;
use iwarp::verbs::{RemoteAddr, SendFlags, SendOp, SendRequest};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BULK: usize = 64;
const BULK_BYTES: usize = 64 << 10;
const BULK_DEPTH: usize = 8;
const PING_BYTES: usize = 64;
const RUN: Duration = Duration::from_secs(2);

/// Index of the queue pair of the ping-pong. Bulk has those after it.
const PING: usize = 0;

/// Where the ping-pong receives in each host's memory: after the source and target of all bulk Writes.
const PING_AT: usize = BULK_BYTES;

/// From where it sends.
const PONG_AT: usize = PING_AT + PING_BYTES;

fn main() -> Result<()> {
    let link = LinkConfig { mtu: 9000, mbufs: 32_768, ..LinkConfig::default() };
    let bytes = PONG_AT + PING_BYTES;
    let mut hosts = TwoHosts::new(Config { qps: 1 + BULK, depth: BULK_DEPTH, ..Config::new(link, bytes) })?;
    hosts.connect(1)?;
    let alone = ping_pong(&mut hosts, |_| Ok(()))?;
    hosts.connect(1 + BULK)?;
    for qp in 1..=BULK {
        (0..BULK_DEPTH).try_for_each(|_| write_bulk(&hosts, qp))?;
    }
    let mut done = [0_u64; 1 + BULK];
    let beside = ping_pong(&mut hosts, |hosts| {
        while let Some(completion) = hosts.a.cq.poll_one() {
            checked(&completion, "a Write")?;
            let qp = completion.wr_id as usize;
            done[qp] += 1;
            write_bulk(hosts, qp)?;
        }
        Ok(())
    })?;
    let done = &done[1..];
    let (slowest, fastest) = done.iter().fold((u64::MAX, 0), |(low, high), &n| (low.min(n), high.max(n)));
    let bytes = done.iter().sum::<u64>() * BULK_BYTES as u64;
    println!(
        "{BULK} bulk queue pairs, {BULK_BYTES} B Writes: {:.0} MiB/s in all",
        mib(bytes) / RUN.as_secs_f64()
    );
    println!("slowest / fastest: {slowest} / {fastest} messages = {:.2}", slowest as f64 / fastest as f64);
    for (name, histogram) in [("alone", alone), ("beside bulk", beside)] {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1000.0;
        let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
        println!(
            "{PING_BYTES} B ping-pong {name}: p50 {p50:.1} us, p99 {p99:.1} us, 99.9 % {p999:.1} us, {} round trips",
            histogram.len()
        );
    }
    Ok(())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn write_bulk(hosts: &TwoHosts, qp: usize) -> Result<()> {
    let op = SendOp::Write { remote: hosts.b.remote() };
    let request = SendRequest::new(qp as u64, op, hosts.a.memory.sge(0, BULK_BYTES));
    Ok(hosts.a.qps[qp].post_send(&request)?)
}

fn write_ping(from: &Host, to: &Host, mark: u8) -> Result<()> {
    from.memory.write_at(PONG_AT, &[mark; PING_BYTES])?;
    let RemoteAddr { addr, rkey } = to.remote();
    let op = SendOp::Write { remote: RemoteAddr { addr: addr + PING_AT as u64, rkey } };
    let request = SendRequest::new(PING as u64, op, from.memory.sge(PONG_AT, PING_BYTES));
    Ok(from.qps[PING].post_send(&request.flags(SendFlags::INLINE))?)
}

/// Full round trips, nanoseconds. Calls `between` between the polls.
fn ping_pong(
    hosts: &mut TwoHosts,
    mut between: impl FnMut(&TwoHosts) -> Result<()>,
) -> Result<Histogram<u64>> {
    let last = PING_AT + PING_BYTES - 1;
    let mut histogram = Histogram::new(3)?;
    hosts.start_clock();
    let end = Instant::now() + RUN;
    // The byte at which the last ping-pong ended.
    let mut mark = hosts.a.memory.load_u8(last)?;
    while Instant::now() < end {
        mark = mark.wrapping_add(1);
        let start = Instant::now();
        write_ping(&hosts.a, &hosts.b, mark)?;
        let mut answered = false;
        while hosts.a.memory.load_u8(last)? != mark {
            hosts.poll_by_clock();
            between(hosts)?;
            if !answered && hosts.b.memory.load_u8(last)? == mark {
                answered = true;
                write_ping(&hosts.b, &hosts.a, mark)?;
            }
            if start.elapsed() > Duration::from_secs(10) {
                return Err("no answer within ten seconds".into());
            }
        }
        histogram.record(start.elapsed().as_nanos() as u64)?;
    }
    Ok(histogram)
}
