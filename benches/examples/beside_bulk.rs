//! Shows how bulk queue pairs share an engine, and how long a 64 B ping-pong next to them waits.
//!
//! `cargo run --release -p benches --no-default-features --example beside_bulk`
//!
//! One thread polls both hosts over a wire in memory, so the figures show queueing in the engines and not the
//! machine's scheduler. Prints the share of the slowest bulk queue pair against the fastest, and the full
//! round trip of the ping-pong with and without bulk.

use std::error::Error;
use std::time::{Duration, Instant};

use dp::link::{LinkConfig, pair};
use hdrhistogram::Histogram;
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel, MemoryRegion,
    ProtectionDomain, QpInit, QueuePair, RemoteAddr, SendFlags, SendOp, SendRequest,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BULK: usize = 64;
const BULK_BYTES: usize = 64 << 10;
const BULK_DEPTH: usize = 8;
const PING_BYTES: usize = 64;
const RUN: Duration = Duration::from_secs(2);

fn main() -> Result<()> {
    let mut hosts = Hosts::new()?;
    let ping = hosts.connect()?;
    let alone = hosts.ping_pong(&ping, &mut |_| Ok(()))?;
    let bulk = (0..BULK).map(|_| hosts.connect()).collect::<Result<Vec<_>>>()?;
    for (index, pair) in bulk.iter().enumerate() {
        for _ in 0..BULK_DEPTH {
            hosts.write_bulk(pair, index)?;
        }
    }
    let mut done = vec![0_u64; BULK];
    let beside = hosts.ping_pong(&ping, &mut |hosts| {
        while let Some(wc) = hosts.bulk_cq.poll_one() {
            let index = wc.wr_id as usize;
            done[index] += 1;
            hosts.write_bulk(&bulk[index], index)?;
        }
        Ok(())
    })?;
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

/// Two hosts, polled together.
struct Hosts {
    a: Host,
    b: Host,
    bulk_cq: CompletionQueue,
    /// Source and target of all bulk Writes.
    source: MemoryRegion,
    target: MemoryRegion,
    _listener: CmId,
}

struct Host {
    engine: Engine,
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    channel: EventChannel,
}

/// Both ends of a connection.
struct Pair {
    a: QueuePair,
    b: QueuePair,
    _ids: [CmId; 2],
}

impl Hosts {
    fn new() -> Result<Self> {
        let (port_a, port_b) = pair(&LinkConfig { mtu: 9000, mbufs: 32_768, ..LinkConfig::default() });
        let (a, b) = (Host::new(port_a, "10.0.0.1/24")?, Host::new(port_b, "10.0.0.2/24")?);
        let listener = b.context.create_id(&b.channel);
        listener.listen(7471, 128, Duration::from_secs(10))?;
        Ok(Self {
            bulk_cq: a.context.create_cq(BULK * BULK_DEPTH, None)?,
            source: a.pd.reg_mr(BULK_BYTES, Access::LOCAL_WRITE)?,
            target: b.pd.reg_mr(BULK_BYTES, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            a,
            b,
            _listener: listener,
        })
    }

    fn poll(&mut self) {
        self.a.engine.poll();
        self.b.engine.poll();
    }

    fn connect(&mut self) -> Result<Pair> {
        let init = QpInit { send_cq: &self.bulk_cq, ..QpInit::new(&self.a.cq) };
        let (qp_a, qp_b) = (self.a.pd.create_qp(&init)?, self.b.pd.create_qp(&QpInit::new(&self.b.cq))?);
        let id = self.a.context.create_id(&self.a.channel);
        id.connect(&qp_a, "10.0.0.2:7471".parse()?, &ConnParam::default())?;
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut accepted = None;
        while Instant::now() < deadline {
            self.poll();
            if let Some(event) = self.b.channel.poll()
                && matches!(event.kind, CmEventKind::ConnectRequest { .. })
            {
                event.id.accept(&qp_b, &ConnParam::default())?;
                accepted = Some(event.id);
            }
            if self
                .a
                .channel
                .poll()
                .is_some_and(|event| matches!(event.kind, CmEventKind::Established { .. }))
            {
                let accepted = accepted.ok_or("established without a request")?;
                return Ok(Pair { a: qp_a, b: qp_b, _ids: [id, accepted] });
            }
        }
        Err("not connected within ten seconds".into())
    }

    fn write_bulk(&self, pair: &Pair, index: usize) -> Result<()> {
        let remote = RemoteAddr { addr: self.target.addr(), rkey: self.target.rkey() };
        let request =
            SendRequest::new(index as u64, SendOp::Write { remote }, self.source.sge(0, BULK_BYTES));
        Ok(pair.a.post_send(&request)?)
    }

    /// Full round trips, nanoseconds. Calls `between` between the polls.
    fn ping_pong(
        &mut self,
        ping: &Pair,
        between: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<Histogram<u64>> {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (at_a, at_b) =
            (self.a.pd.reg_mr(2 * PING_BYTES, rights)?, self.b.pd.reg_mr(2 * PING_BYTES, rights)?);
        let write = |qp: &QueuePair, from: &MemoryRegion, to: &MemoryRegion, mark: u8| -> Result<()> {
            from.write_at(PING_BYTES, &[mark; PING_BYTES])?;
            let remote = RemoteAddr { addr: to.addr(), rkey: to.rkey() };
            let request = SendRequest::new(0, SendOp::Write { remote }, from.sge(PING_BYTES, PING_BYTES));
            Ok(qp.post_send(&request.flags(SendFlags::INLINE))?)
        };
        let mut histogram = Histogram::new(3)?;
        let end = Instant::now() + RUN;
        let mut mark = 0_u8;
        while Instant::now() < end {
            mark = mark.wrapping_add(1);
            let start = Instant::now();
            write(&ping.a, &at_a, &at_b, mark)?;
            let mut answered = false;
            while at_a.load_u8(PING_BYTES - 1)? != mark {
                self.poll();
                between(self)?;
                if !answered && at_b.load_u8(PING_BYTES - 1)? == mark {
                    answered = true;
                    write(&ping.b, &at_b, &at_a, mark)?;
                }
                if start.elapsed() > Duration::from_secs(10) {
                    return Err("no answer within ten seconds".into());
                }
            }
            histogram.record(start.elapsed().as_nanos() as u64)?;
        }
        Ok(histogram)
    }
}

impl Host {
    fn new(port: Box<dyn dp::Port>, address: &str) -> Result<Self> {
        let context = Context::new(ContextConfig::default())?;
        let config = EngineConfig::new(&*port, &[address])?;
        Ok(Self {
            engine: Engine::new(&context, port, config)?,
            pd: context.alloc_pd()?,
            cq: context.create_cq(1024, None)?,
            channel: context.create_event_channel()?,
            context,
        })
    }
}
