//! `await_cost`: how much longer a Read takes if a task awaits it than if a loop polls for its completion.
//!
//! There are two hosts, each of which is connected to itself. One host uses `iwarp-tokio` with its defaults,
//! so its engine has a thread, which may run on any CPU. The other host uses the verbs, and a loop polls the
//! engine of this host. One thread, which is pinned to a CPU, reads from the two hosts alternately. At most
//! one 64-byte Read is outstanding.

use std::time::{Duration, Instant};

use benches::errors::Error;
use dp::link::{LinkConfig, pair};
use dp::{Loopback, Port};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEvent, CmEventKind, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel, MemoryRegion,
    QpInit, QueuePair, RemoteAddr, SendOp, SendRequest, WcStatus,
};
use iwarp_tokio::{Connection, Endpoint, EndpointOptions, Listener, Region};

use crate::pair::alternate::{Comparison, TIME_LIMIT};

/// Number of bytes of a Read.
const BYTES: usize = 64;

/// Maximum extra cost in microseconds of an await over a poll.
const GOAL_US: f64 = 2.0;

/// Number of Reads of one host before the other host's turn.
const TURN: usize = 1000;

const OWN: &str = "10.0.0.1";

/// The access rights of the memory that is read.
const READABLE: Access = Access::LOCAL_WRITE.union(Access::REMOTE_READ);

/// Compares both hosts on this CPU.
///
/// # Errors
/// Returns an error of the engines, or [`Error::Usage`] if this process may not use `cpu`.
pub(crate) fn measure(cpu: usize, time: Duration, detail: bool) -> Result<Comparison, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    // The thread of the engine that serves the tasks may run on any CPU.
    let awaited = runtime.block_on(Awaited::new())?;
    benches::net::pin(cpu)?;
    let mut polled = Polled::new()?;
    let mut times = [const { Vec::new() }; 2];
    let until = Instant::now() + time;
    // The first turn of each side is not counted.
    for turn in 0.. {
        let taken = [runtime.block_on(awaited.turn())?, polled.turn()?];
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

/// A host that receives its own frames.
struct LoopedHost {
    port: Box<dyn Port>,
    config: EngineConfig,
    /// The other end of the host's wire, which is kept so that the link stays up.
    other: Box<dyn Port>,
}

impl LoopedHost {
    fn new() -> Result<Self, Error> {
        let (port, other) = pair(&LinkConfig::default());
        let port: Box<dyn Port> = Box::new(Loopback::new(port));
        let mut config = EngineConfig::new(&*port, &["10.0.0.1/24"])?;
        config.stack.loopback = true;
        Ok(Self { port, config, other })
    }
}

/// Returns the median of the turns, in microseconds per Read.
fn median_us(mut turns: Vec<Duration>) -> f64 {
    turns.sort_unstable();
    turns[turns.len() / 2].as_secs_f64() * 1e6 / TURN as f64
}

/// A connection of `iwarp-tokio` and its peer.
struct Awaited {
    connection: Connection,
    _peer: Connection,
    memory: Region,
    sink: Region,
    _other: Box<dyn Port>,
}

impl Awaited {
    async fn new() -> Result<Self, Error> {
        let LoopedHost { port, config, other } = LoopedHost::new()?;
        let endpoint =
            Endpoint::on_queues(vec![port], &config, &EndpointOptions::default()).map_err(failed)?;
        let memory = endpoint.register(BYTES, READABLE).map_err(failed)?;
        let listener = Listener::bind(&endpoint, 1).map_err(failed)?;
        let connect = Connection::connect(&endpoint, (OWN, 1));
        let (connection, peer) = tokio::try_join!(connect, listener.accept()).map_err(failed)?;
        let sink = endpoint.register(BYTES, Access::LOCAL_WRITE).map_err(failed)?;
        Ok(Self { connection, _peer: peer, memory, sink, _other: other })
    }

    async fn turn(&self) -> Result<Duration, Error> {
        let remote = self.memory.remote();
        let start = Instant::now();
        for _ in 0..TURN {
            self.connection.read(&remote, &self.sink).await.map_err(failed)?;
        }
        Ok(start.elapsed())
    }
}

/// A queue pair whose engine and completion queue this thread polls.
struct Polled {
    engine: Engine,
    qp: QueuePair,
    _peer: QueuePair,
    cq: CompletionQueue,
    memory: MemoryRegion,
    sink: MemoryRegion,
    _other: Box<dyn Port>,
}

impl Polled {
    fn new() -> Result<Self, Error> {
        let LoopedHost { port, config, other } = LoopedHost::new()?;
        let context = Context::new(ContextConfig::default())?;
        let mut engine = Engine::new(&context, port, config)?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
        let channel = context.create_event_channel()?;
        let listener = context.create_id(&channel);
        listener.listen(1, 1, TIME_LIMIT)?;
        let peers_cq = context.create_cq(16, None)?;
        let (qp, peer) = (pd.create_qp(&QpInit::new(&cq))?, pd.create_qp(&QpInit::new(&peers_cq))?);
        let id = context.create_id(&channel);
        id.connect(&qp, (OWN.parse::<std::net::IpAddr>().map_err(failed)?, 1).into(), &ConnParam::default())?;
        let request = event(&mut engine, &channel)?;
        request.id.accept(&peer, &ConnParam::default())?;
        for _ in 0..2 {
            let event = event(&mut engine, &channel)?;
            if !matches!(event.kind, CmEventKind::Established { .. }) {
                return Err(failed(format!("not connected: {event:?}")));
            }
        }
        let (memory, sink) = (pd.reg_mr(BYTES, READABLE)?, pd.reg_mr(BYTES, Access::LOCAL_WRITE)?);
        Ok(Self { engine, qp, _peer: peer, cq, memory, sink, _other: other })
    }

    fn turn(&mut self) -> Result<Duration, Error> {
        let remote = RemoteAddr { addr: self.memory.addr(), rkey: self.memory.rkey() };
        let request = SendRequest::new(0, SendOp::Read { remote }, self.sink.sge(0, BYTES));
        let start = Instant::now();
        for _ in 0..TURN {
            self.qp.post_send(&request)?;
            let completion = loop {
                self.engine.poll();
                if let Some(completion) = self.cq.poll_one() {
                    break completion;
                }
            };
            if completion.status != WcStatus::Success {
                return Err(failed(completion.status));
            }
        }
        Ok(start.elapsed())
    }
}

fn event(engine: &mut Engine, channel: &EventChannel) -> Result<CmEvent, Error> {
    let until = Instant::now() + TIME_LIMIT;
    while Instant::now() < until {
        engine.poll();
        if let Some(event) = channel.poll() {
            return Ok(event);
        }
    }
    Err(failed("no event in time"))
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Port(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_read() {
        let Comparison { ours, theirs, unit } = measure(0, Duration::from_millis(50), false).unwrap();
        assert!(ours.is_finite() && theirs == GOAL_US && unit == "us");
    }
}
