//! `await_cost`: a Read that a task awaits, beside one whose completion a loop polls.
//!
//! A host connects to itself, by an engine in a thread on the second CPU. The first CPU posts 64-byte Reads,
//! one at a time: through `iwarp-tokio`, and in turns through the verbs.

use std::time::{Duration, Instant};

use benches::errors::Error;
use dp::link::{LinkConfig, pair};
use dp::{Loopback, Port};
use iwarp::engine::{EngineConfig, ThreadOptions};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEvent, CmEventKind, CompletionQueue, ConnParam, EventChannel, MemoryRegion, QpInit, QueuePair,
    RemoteAddr, SendOp, SendRequest, WcStatus,
};
use iwarp_tokio::{Connection, Endpoint, EndpointOptions, Listener, Region};

use crate::pair::alternate::{Comparison, TIME_LIMIT};

/// Bytes of a Read.
const BYTES: usize = 64;

/// The most that an await may cost over a poll, microseconds.
const GOAL_US: f64 = 2.0;

/// Reads of one kind before those of the other.
const TURN: usize = 1000;

const OWN: &str = "10.0.0.1";

/// Compares both on these CPUs: the one that waits, and the engine's.
///
/// # Errors
/// Errors of the engine.
pub(crate) fn measure(cpus: [usize; 2], time: Duration, detail: bool) -> Result<Comparison, Error> {
    benches::net::pin(cpus[0])?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(compare(cpus[1], time, detail))
}

async fn compare(engine_cpu: usize, time: Duration, detail: bool) -> Result<Comparison, Error> {
    // The other end of the wire only takes its place.
    let (port, _other) = pair(&LinkConfig::default());
    let port: Box<dyn Port> = Box::new(Loopback::new(port));
    let mut config = EngineConfig::new(&*port, &["10.0.0.1/24"])?;
    config.stack.loopback = true;
    let thread = ThreadOptions { cpu: Some(engine_cpu), spin_polls: u32::MAX, ..ThreadOptions::default() };
    let options = EndpointOptions { thread, ..EndpointOptions::default() };
    let endpoint = Endpoint::on_queues(vec![port], &config, &options).map_err(failed)?;
    let memory = endpoint.register(BYTES, Access::LOCAL_WRITE | Access::REMOTE_READ).map_err(failed)?;

    let awaited = Awaited::new(&endpoint).await?;
    let polled = Polled::new(&endpoint)?;
    let mut times = [const { Vec::new() }; 2];
    let until = Instant::now() + time;
    // The first turn of each is not counted.
    for turn in 0.. {
        let taken = [awaited.turn(&memory).await?, polled.turn(&memory)?];
        if turn > 0 {
            times.iter_mut().zip(taken).for_each(|(times, taken)| times.push(taken));
            if Instant::now() >= until {
                break;
            }
        }
    }
    let [awaited, polled] = times.map(median_us);
    if detail {
        eprintln!("awaited {awaited:.3} us, polled {polled:.3} us");
    }
    Ok(Comparison { ours: awaited - polled, theirs: GOAL_US, unit: "us" })
}

/// The median of turns, microseconds for each Read.
fn median_us(mut turns: Vec<Duration>) -> f64 {
    turns.sort_unstable();
    turns[turns.len() / 2].as_secs_f64() * 1e6 / TURN as f64
}

/// A connection of `iwarp-tokio`. Its peer lives as long.
struct Awaited {
    connection: Connection,
    _peer: Connection,
    sink: Region,
}

impl Awaited {
    async fn new(endpoint: &Endpoint) -> Result<Self, Error> {
        let listener = Listener::bind(endpoint, 1).map_err(failed)?;
        let connect = Connection::connect(endpoint, (OWN, 1));
        let (connection, peer) = tokio::try_join!(connect, listener.accept()).map_err(failed)?;
        let sink = endpoint.register(BYTES, Access::LOCAL_WRITE).map_err(failed)?;
        Ok(Self { connection, _peer: peer, sink })
    }

    async fn turn(&self, memory: &Region) -> Result<Duration, Error> {
        let remote = memory.remote();
        let start = Instant::now();
        for _ in 0..TURN {
            self.connection.read(&remote, &self.sink).await.map_err(failed)?;
        }
        Ok(start.elapsed())
    }
}

/// A queue pair whose completion queue is polled.
struct Polled {
    qp: QueuePair,
    _peer: QueuePair,
    cq: CompletionQueue,
    sink: MemoryRegion,
}

impl Polled {
    fn new(endpoint: &Endpoint) -> Result<Self, Error> {
        let (context, pd) = (endpoint.context(), endpoint.protection_domain());
        let cq = context.create_cq(16, None)?;
        let channel = context.create_event_channel()?;
        let listener = context.create_id(&channel);
        listener.listen(2, 1, TIME_LIMIT)?;
        let peers_cq = context.create_cq(16, None)?;
        let (qp, peer) = (pd.create_qp(&QpInit::new(&cq))?, pd.create_qp(&QpInit::new(&peers_cq))?);
        let id = context.create_id(&channel);
        id.connect(&qp, (OWN.parse::<std::net::IpAddr>().map_err(failed)?, 2).into(), &ConnParam::default())?;
        let request = event(&channel)?;
        request.id.accept(&peer, &ConnParam::default())?;
        for _ in 0..2 {
            let event = event(&channel)?;
            if !matches!(event.kind, CmEventKind::Established { .. }) {
                return Err(failed(format!("not connected: {event:?}")));
            }
        }
        Ok(Self { qp, _peer: peer, sink: pd.reg_mr(BYTES, Access::LOCAL_WRITE)?, cq })
    }

    fn turn(&self, memory: &Region) -> Result<Duration, Error> {
        let remote = RemoteAddr { addr: memory.remote().addr, rkey: memory.remote().rkey };
        let request = SendRequest::new(0, SendOp::Read { remote }, self.sink.sge(0, BYTES));
        let start = Instant::now();
        for _ in 0..TURN {
            self.qp.post_send(&request)?;
            let completion = loop {
                if let Some(completion) = self.cq.poll_one() {
                    break completion;
                }
                std::hint::spin_loop();
            };
            if completion.status != WcStatus::Success {
                return Err(failed(completion.status));
            }
        }
        Ok(start.elapsed())
    }
}

fn event(channel: &EventChannel) -> Result<CmEvent, Error> {
    channel.wait(TIME_LIMIT).map_err(failed)?.ok_or_else(|| failed("no event in time"))
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Port(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_read() {
        let Comparison { ours, theirs, unit } = measure([0, 1], Duration::from_millis(50), false).unwrap();
        assert!(ours.is_finite() && theirs == GOAL_US && unit == "us");
    }
}
