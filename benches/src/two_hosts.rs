//! Two hosts on a wire in memory with a queue pair between them, in one thread, with fixed seeds and virtual
//! time, so every run is the same. For counting or timing parts of the data path; the comparisons in
//! `measure` use more queue pairs.

use dp::link::{self, LinkConfig};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel, ListenOptions,
    MemoryRegion, ProtectionDomain, QpInit, QueuePair, RemoteAddr,
};
use tcp_lite::Instant;

use crate::errors::Error;

/// Virtual time between two polls of an engine, microseconds: a round trip is one or two polls.
const POLL_US: u64 = 20;

/// Polls within which two hosts have to be connected.
const MAX_POLLS: u64 = 10_000;

/// Depth of each queue.
pub const DEPTH: usize = 128;

const PORT: u16 = 7471;

/// One of the two.
pub struct Host {
    /// Polled by its owner with [`poll_at`](Self::poll_at).
    pub engine: Engine,
    /// Completion queue of both work queues.
    pub cq: CompletionQueue,
    /// The connected queue pair.
    pub qp: QueuePair,
    /// Memory with all rights.
    pub memory: MemoryRegion,
    events: EventChannel,
    context: Context,
    _pd: ProtectionDomain,
}

impl Host {
    fn new(port: Box<dyn dp::Port>, number: u8, bytes: usize) -> Result<Self, Error> {
        let context = Context::new(ContextConfig { seed: Some([number; 32]), ..ContextConfig::default() })?;
        let mut config = EngineConfig::new(&*port, &[&format!("10.0.0.{number}/24")])?;
        config.stack.seed = [number; 32];
        let engine = Engine::new(&context, port, config)?;
        let (pd, cq) = (context.alloc_pd()?, context.create_cq(2 * DEPTH, None)?);
        let init = QpInit { max_send_wr: DEPTH, max_recv_wr: DEPTH, ..QpInit::new(&cq) };
        Ok(Self {
            engine,
            qp: pd.create_qp(&init)?,
            memory: pd.reg_mr(bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?,
            cq,
            events: context.create_event_channel()?,
            context,
            _pd: pd,
        })
    }

    /// Polls the engine once.
    pub fn poll_at(&mut self, now_us: u64) {
        self.engine.poll_at(Instant::from_micros(now_us as i64));
    }

    /// Address of the beginning of its memory, for the other host.
    pub fn remote(&self) -> RemoteAddr {
        RemoteAddr { addr: self.memory.addr(), rkey: self.memory.rkey() }
    }
}

/// Both hosts, connected.
pub struct TwoHosts {
    /// The host that connected.
    pub a: Host,
    /// The host that accepted.
    pub b: Host,
    now_us: u64,
    _ids: [CmId; 3],
}

impl TwoHosts {
    /// Hosts at both ends of `link`, with `bytes` of memory each. With `markers` both ask for them.
    ///
    /// # Errors
    /// [`Error::Verbs`], [`Error::Connect`].
    pub fn connect(link: &LinkConfig, bytes: usize, markers: bool) -> Result<Self, Error> {
        let (port_a, port_b) = link::pair(link);
        let (mut a, mut b) = (Host::new(port_a, 1, bytes)?, Host::new(port_b, 2, bytes)?);
        let param = ConnParam { markers, ..ConnParam::default() };
        let remote = ([10, 0, 0, 2], PORT).into();
        let failed = |reason: String| Error::Connect { remote, reason };
        let listener = b.context.create_id(&b.events);
        listener.listen_with(&ListenOptions::new(PORT))?;
        let id = a.context.create_id(&a.events);
        id.connect(&a.qp, remote, &param)?;
        let (mut accepted, mut established) = (None, 0);
        for poll in 1..=MAX_POLLS {
            let now_us = poll * POLL_US;
            a.poll_at(now_us);
            b.poll_at(now_us);
            while let Some(event) = a.events.poll().or_else(|| b.events.poll()) {
                match event.kind {
                    CmEventKind::ConnectRequest { .. } => {
                        event.id.accept(&b.qp, &param)?;
                        accepted = Some(event.id);
                    }
                    CmEventKind::Established { .. } => established += 1,
                    other => return Err(failed(format!("{other:?}"))),
                }
            }
            if established == 2 {
                let accepted = accepted.ok_or_else(|| failed("no connection request arrived".into()))?;
                return Ok(Self { a, b, now_us, _ids: [listener, id, accepted] });
            }
        }
        Err(failed(format!("not within {MAX_POLLS} polls")))
    }

    /// Advances the time and returns that of the next poll, microseconds.
    pub fn tick(&mut self) -> u64 {
        self.now_us += POLL_US;
        self.now_us
    }
}

#[cfg(test)]
mod tests {
    use iwarp::verbs::{SendOp, SendRequest, WcStatus};

    use super::*;

    #[test]
    fn a_write_arrives_after_the_same_turns_each_time() {
        let polls = |markers| {
            let mut hosts = TwoHosts::connect(&LinkConfig::default(), 64, markers).unwrap();
            hosts.a.memory.write_at(0, &[7; 64]).unwrap();
            let op = SendOp::Write { remote: hosts.b.remote() };
            hosts.a.qp.post_send(&SendRequest::new(1, op, hosts.a.memory.sge(0, 64))).unwrap();
            while hosts.b.memory.load_u8(63).unwrap() != 7 {
                let now_us = hosts.tick();
                assert!(now_us < MAX_POLLS * POLL_US);
                hosts.a.poll_at(now_us);
                hosts.b.poll_at(now_us);
            }
            assert_eq!(hosts.a.cq.poll_one().unwrap().status, WcStatus::Success);
            hosts.now_us
        };
        assert_eq!(polls(false), polls(false));
        assert_eq!(polls(true), polls(true));
    }
}
