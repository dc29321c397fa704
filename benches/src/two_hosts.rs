//! Two hosts on a wire in memory with queue pairs between them, in one thread, with fixed seeds: for counting
//! or timing parts of the data path.
//!
//! Time is virtual, so every run is the same, until a benchmark that measures time starts the clock.

use std::cell::Cell;
use std::net::SocketAddr;

use dp::Clock;
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

/// Connections set up at a time: fewer than a listener's backlog.
const AT_A_TIME: usize = 64;

/// Port of the first wire's listener.
const PORT: u16 = 7471;

thread_local!(static OWNER: Cell<Owner> = const { Cell::new(Owner::Program) });

/// The owner of the work that a thread does, for an allocator that counts memory by owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The benchmark itself.
    Program,
    /// Host A.
    Client,
    /// Host B.
    Server,
}

impl Owner {
    /// The owner of the present work of this thread.
    pub fn current() -> Self {
        OWNER.get()
    }

    /// Runs `act` as the work of this owner.
    #[inline]
    pub fn run<T>(self, act: impl FnOnce() -> T) -> T {
        let before = OWNER.replace(self);
        let result = act();
        OWNER.set(before);
        result
    }
}

/// The parameters of two hosts.
#[derive(Clone, Debug)]
pub struct Config {
    /// The wire between them.
    pub link: LinkConfig,
    /// Most queue pairs of a host; its completion queue has room for all their requests.
    pub qps: usize,
    /// Requests of each work queue.
    pub depth: usize,
    /// Bytes of each host's memory.
    pub bytes: usize,
    /// Whether both ends ask for markers.
    pub markers: bool,
}

impl Config {
    /// One queue pair without markers, with 128 requests in each work queue.
    pub fn new(link: LinkConfig, bytes: usize) -> Self {
        Self { link, qps: 1, depth: 128, bytes, markers: false }
    }
}

/// One of the two.
pub struct Host {
    /// Polled by its owner with [`poll_at`](Self::poll_at), or by [`TwoHosts`].
    pub engine: Engine,
    /// Completion queue of all work queues.
    pub cq: CompletionQueue,
    /// The queue pairs: A's in the order in which they connect, B's in that of the requests it accepted.
    pub qps: Vec<QueuePair>,
    /// Memory with all rights.
    pub memory: MemoryRegion,
    owner: Owner,
    depth: usize,
    events: EventChannel,
    pd: ProtectionDomain,
    /// Dropping one would close its connection.
    ids: Vec<CmId>,
}

impl Host {
    fn new(
        owner: Owner,
        context: &Context,
        port: Box<dyn dp::Port>,
        wire: u8,
        config: &Config,
    ) -> Result<Self, Error> {
        let number = owner as u8;
        let mut engine = EngineConfig::new(&*port, &[&format!("10.0.{wire}.{number}/24")])?;
        engine.stack.seed = [number; 32];
        let pd = context.alloc_pd()?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Ok(Self {
            engine: Engine::new(context, port, engine)?,
            cq: context.create_cq(2 * config.depth * config.qps, None)?,
            qps: Vec::with_capacity(config.qps),
            memory: pd.reg_mr(config.bytes, rights)?,
            owner,
            depth: config.depth,
            events: context.create_event_channel()?,
            pd,
            ids: Vec::with_capacity(config.qps),
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

    fn create_qp(&self) -> Result<QueuePair, Error> {
        let init = QpInit { max_send_wr: self.depth, max_recv_wr: self.depth, ..QpInit::new(&self.cq) };
        Ok(self.pd.create_qp(&init)?)
    }

    fn connect(&mut self, remote: SocketAddr, param: &ConnParam) -> Result<(), Error> {
        let (qp, id) = (self.create_qp()?, self.engine.context().create_id(&self.events));
        id.connect(&qp, remote, param)?;
        self.qps.push(qp);
        self.ids.push(id);
        Ok(())
    }

    /// Accepts all requests. Returns how many connections were established.
    fn handle_events(&mut self, remote: SocketAddr, param: &ConnParam) -> Result<usize, Error> {
        let mut established = 0;
        while let Some(event) = self.events.poll() {
            match event.kind {
                CmEventKind::ConnectRequest { .. } => {
                    let qp = self.create_qp()?;
                    event.id.accept(&qp, param)?;
                    self.qps.push(qp);
                    self.ids.push(event.id);
                }
                CmEventKind::Established { .. } => established += 1,
                other => return Err(Error::Connect { remote, reason: format!("{other:?}") }),
            }
        }
        Ok(established)
    }
}

/// Both hosts.
pub struct TwoHosts {
    /// The host that connects.
    pub a: Host,
    /// The host that accepts.
    pub b: Host,
    config: Config,
    /// Number of the wire among those of these hosts.
    wire: u8,
    now_us: u64,
    clock: Clock,
    /// Difference between virtual time and the clock, microseconds.
    ahead_us: u64,
    _listener: CmId,
}

impl TwoHosts {
    /// Hosts at both ends of a wire, not connected.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn new(config: Config) -> Result<Self, Error> {
        let context =
            |owner| Context::new(ContextConfig { seed: Some([owner as u8; 32]), ..ContextConfig::default() });
        Self::on_wire(0, [&context(Owner::Client)?, &context(Owner::Server)?], config)
    }

    /// Another wire between the same hosts, with an engine of its own at each end, not connected.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn another_wire(&self) -> Result<Self, Error> {
        let contexts = [self.a.engine.context(), self.b.engine.context()];
        Self::on_wire(self.wire + 1, contexts, self.config.clone())
    }

    fn on_wire(wire: u8, [a, b]: [&Context; 2], config: Config) -> Result<Self, Error> {
        let (port_a, port_b) = link::pair(&config.link);
        let a = Host::new(Owner::Client, a, port_a, wire, &config)?;
        let b = Host::new(Owner::Server, b, port_b, wire, &config)?;
        let listener = b.engine.context().create_id(&b.events);
        listener.listen_with(&ListenOptions::new(PORT + u16::from(wire)))?;
        Ok(Self { a, b, config, wire, now_us: 0, clock: Clock::new(), ahead_us: 0, _listener: listener })
    }

    /// Connects queue pairs until there are `count`.
    ///
    /// # Errors
    /// [`Error::Verbs`], [`Error::Connect`].
    pub fn connect(&mut self, count: usize) -> Result<(), Error> {
        while self.a.qps.len() < count {
            self.connect_some(AT_A_TIME.min(count - self.a.qps.len()))?;
        }
        Ok(())
    }

    fn connect_some(&mut self, count: usize) -> Result<(), Error> {
        let engine = Some(usize::from(self.wire));
        let param = ConnParam { markers: self.config.markers, engine, ..ConnParam::default() };
        let remote = ([10, 0, self.wire, Owner::Server as u8], PORT + u16::from(self.wire)).into();
        Owner::Client.run(|| (0..count).try_for_each(|_| self.a.connect(remote, &param)))?;
        let mut established = 0;
        for _ in 0..MAX_POLLS {
            self.poll();
            for host in [&mut self.a, &mut self.b] {
                established += host.owner.run(|| host.handle_events(remote, &param))?;
            }
            if established == 2 * count {
                return Ok(());
            }
        }
        Err(Error::Connect { remote, reason: format!("not within {MAX_POLLS} polls") })
    }

    /// The time of the last poll, microseconds.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Advances virtual time and returns that of the next poll, microseconds.
    pub fn tick(&mut self) -> u64 {
        self.now_us += POLL_US;
        self.now_us
    }

    /// Advances virtual time and polls both.
    pub fn poll(&mut self) {
        self.tick();
        self.poll_both();
    }

    /// Makes time continue with the clock, from that of the last poll: no timer expires because of a pause.
    pub fn start_clock(&mut self) {
        self.ahead_us = self.now_us.wrapping_sub(self.clock.now_us());
    }

    /// Polls both at the time of the clock, which [`start_clock`](Self::start_clock) has started.
    #[inline]
    pub fn poll_by_clock(&mut self) {
        self.now_us = self.clock.now_us().wrapping_add(self.ahead_us);
        self.poll_both();
    }

    #[inline]
    fn poll_both(&mut self) {
        for host in [&mut self.a, &mut self.b] {
            host.owner.run(|| host.poll_at(self.now_us));
        }
    }
}

#[cfg(test)]
mod tests {
    use iwarp::verbs::{SendOp, SendRequest, WcStatus};

    use super::*;

    #[test]
    fn a_write_arrives_after_the_same_turns_each_time() {
        let polls = |markers| {
            let mut hosts =
                TwoHosts::new(Config { markers, ..Config::new(LinkConfig::default(), 64) }).unwrap();
            hosts.connect(1).unwrap();
            hosts.a.memory.write_at(0, &[7; 64]).unwrap();
            let op = SendOp::Write { remote: hosts.b.remote() };
            hosts.a.qps[0].post_send(&SendRequest::new(1, op, hosts.a.memory.sge(0, 64))).unwrap();
            while hosts.b.memory.load_u8(63).unwrap() != 7 {
                hosts.poll();
                assert!(hosts.now_us() < MAX_POLLS * POLL_US);
            }
            assert_eq!(hosts.a.cq.poll_one().unwrap().status, WcStatus::Success);
            hosts.now_us()
        };
        assert_eq!(polls(false), polls(false));
        assert_eq!(polls(true), polls(true));
    }

    #[test]
    fn each_wire_has_its_own_engines_and_queue_pairs() {
        let config = Config { qps: 100, depth: 1, ..Config::new(LinkConfig::default(), 64) };
        let mut first = TwoHosts::new(config).unwrap();
        let mut second = first.another_wire().unwrap();
        second.connect(100).unwrap();
        assert_eq!([&second.a, &second.b].map(|host| host.qps.len()), [100, 100]);
        assert_eq!(first.b.engine.counters().port.rx_frames, 0);
        first.connect(1).unwrap();
        first.start_clock();
        let before = first.now_us();
        first.poll_by_clock();
        assert!(first.now_us() >= before);
    }
}
