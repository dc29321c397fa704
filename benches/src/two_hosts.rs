//! Two hosts on a wire in memory, with queue pairs between the hosts, in one thread and with fixed seeds. The
//! two hosts serve to count or time parts of the data path.
//!
//! Time is virtual, so all runs are equal, unless a benchmark that measures time starts the clock.

use std::cell::Cell;
use std::net::SocketAddr;

use dp::link::{self, LinkConfig, LinkSteering, QueuePorts};
use dp::{Clock, Flow, Port};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel, ListenOptions,
    MemoryRegion, ProtectionDomain, QpInit, QueuePair, RemoteAddr,
};
use tcp_lite::Instant;

use crate::errors::{Error, NotConnected};

/// Virtual time in microseconds between two polls of an engine. A round trip takes one or two polls.
const POLL_US: u64 = 20;

/// Maximum number of polls until the connections that are set up at a time are established.
const MAX_POLLS: u64 = 10_000;

/// Maximum number of connections that an engine sets up at a time. The backlog of a listener is larger.
const AT_A_TIME: usize = 64;

/// The port of the first engine's listener.
const PORT: u16 = 7471;

/// The first local port to try for connections whose frames have to arrive at one queue.
const FIRST_LOCAL_PORT: u16 = 10_000;

thread_local!(static OWNER: Cell<Owner> = const { Cell::new(Owner::Program) });

/// The owner of the work of a thread, for an allocator that counts memory by owner.
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
    /// The owner of this thread's current work.
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
    /// The wire between the hosts.
    pub link: LinkConfig,
    /// Maximum number of queue pairs of a host. The host's completion queue has room for the requests of all
    /// its queue pairs.
    pub qps: usize,
    /// Maximum number of requests of each work queue.
    pub depth: usize,
    /// Number of bytes of each host's memory.
    pub bytes: usize,
    /// Whether both sides ask for markers.
    pub markers: bool,
    /// The value of [`ConnParam::ib_semantics`] on both sides.
    pub ib_semantics: bool,
}

impl Config {
    /// The parameters for one queue pair without markers, with 128 requests in each work queue.
    pub fn new(link: LinkConfig, bytes: usize) -> Self {
        Self { link, qps: 1, depth: 128, bytes, markers: false, ib_semantics: false }
    }
}

/// One of the two hosts.
pub struct Host {
    /// The engine. The owner of the host polls the engine with [`poll_at`](Self::poll_at), or [`TwoHosts`]
    /// polls the engine.
    pub engine: Engine,
    /// The completion queue of all work queues.
    pub cq: CompletionQueue,
    /// The queue pairs. A's queue pairs are in the order in which they connect. B's queue pairs are in the
    /// order in which B accepted them.
    pub qps: Vec<QueuePair>,
    /// Memory that the host itself may write, and that the other host may read and write.
    pub memory: MemoryRegion,
    owner: Owner,
    depth: usize,
    events: EventChannel,
    pd: ProtectionDomain,
    /// The identifiers, which are kept because dropping an identifier would close its connection.
    ids: Vec<CmId>,
}

impl Host {
    fn new(owner: Owner, engine: Engine, config: &Config) -> Result<Self, Error> {
        let context = engine.context();
        let pd = context.alloc_pd()?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Ok(Self {
            cq: context.create_cq(2 * config.depth * config.qps, None)?,
            qps: Vec::with_capacity(config.qps),
            memory: pd.reg_mr(config.bytes, rights)?,
            owner,
            depth: config.depth,
            events: context.create_event_channel()?,
            pd,
            ids: Vec::with_capacity(config.qps),
            engine,
        })
    }

    /// Polls the engine once.
    pub fn poll_at(&mut self, now_us: u64) {
        self.engine.poll_at(Instant::from_micros(now_us as i64));
    }

    /// The address of this host's memory, for requests of the other host.
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

    /// Accepts all requests. Returns the number of connections that were established.
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
                other => {
                    return Err(Error::Connect { remote, reason: NotConnected::Other(format!("{other:?}")) });
                }
            }
        }
        Ok(established)
    }
}

/// The position of two connected engines among the engines of their hosts.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Number of the wire, which is a part of the addresses.
    wire: u8,
    /// Index of the engine, which is equal at both hosts.
    engine: usize,
}

impl Place {
    fn address(self, owner: Owner) -> [u8; 4] {
        [10, 0, self.wire, owner as u8]
    }

    /// The address and the port of the listener of this engine.
    fn listener(self) -> SocketAddr {
        (self.address(Owner::Server), PORT + self.engine as u16).into()
    }

    fn engine_config(self, owner: Owner, port: &dyn Port) -> Result<EngineConfig, Error> {
        let [a, b, c, d] = self.address(owner);
        let mut config = EngineConfig::new(port, &[&format!("{a}.{b}.{c}.{d}/24")])?;
        config.stack.seed = [owner as u8; 32];
        Ok(config)
    }
}

/// Both hosts.
pub struct TwoHosts {
    /// The host that connects.
    pub a: Host,
    /// The host that accepts.
    pub b: Host,
    config: Config,
    place: Place,
    /// The next local port to try, if the devices choose queues by a hash (RSS).
    next_port: u16,
    now_us: u64,
    clock: Clock,
    /// Difference between virtual time and the clock in microseconds.
    ahead_us: u64,
    _listener: CmId,
}

impl TwoHosts {
    /// Makes two unconnected hosts at the ends of a wire.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn new(config: Config) -> Result<Self, Error> {
        let [a, b] = contexts()?;
        Self::on_wire(0, [&a, &b], config)
    }

    /// Makes another wire between the same hosts, with its own unconnected engine on each side.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn another_wire(&self) -> Result<Self, Error> {
        let contexts = [self.a.engine.context(), self.b.engine.context()];
        Self::on_wire(self.place.wire + 1, contexts, self.config.clone())
    }

    fn on_wire(wire: u8, [a, b]: [&Context; 2], config: Config) -> Result<Self, Error> {
        let (port_a, port_b) = link::pair(&config.link);
        let place = Place { wire, engine: usize::from(wire) };
        let engine = |owner, context, port: Box<dyn Port>| -> Result<_, Error> {
            let config = place.engine_config(owner, &*port)?;
            Ok(Engine::new(context, port, config)?)
        };
        let engines = [engine(Owner::Client, a, port_a)?, engine(Owner::Server, b, port_b)?];
        Self::between(place, engines, config)
    }

    /// Makes two unconnected hosts that have several engines each, on the queues of one link. Each returned
    /// value has the engine of one queue of each host, and the connections between these two engines. All
    /// engines of a host have one address. `config` applies to each value.
    ///
    /// Since only the first engine of each host answers ARP, connect the engines with
    /// [`connect_all`](Self::connect_all).
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails.
    pub fn on_queues(config: &Config, queues: usize, steering: LinkSteering) -> Result<Vec<Self>, Error> {
        let (ports_a, ports_b) = link::queues(&config.link, queues, steering);
        let [a, b] = contexts()?;
        let engines = |owner, context, ports: QueuePorts| -> Result<_, Error> {
            let config = Place { wire: 0, engine: 0 }.engine_config(owner, &*ports[0])?;
            Ok(Engine::on_queues(context, ports, &config, &[])?)
        };
        let (a, b) = (engines(Owner::Client, &a, ports_a)?, engines(Owner::Server, &b, ports_b)?);
        let each = a.into_iter().zip(b).enumerate();
        each.map(|(engine, (a, b))| Self::between(Place { wire: 0, engine }, [a, b], config.clone()))
            .collect()
    }

    fn between(place: Place, [a, b]: [Engine; 2], config: Config) -> Result<Self, Error> {
        let a = Host::new(Owner::Client, a, &config)?;
        let b = Host::new(Owner::Server, b, &config)?;
        let listener = b.engine.context().create_id(&b.events);
        listener.listen_with(&ListenOptions::new(place.listener().port()))?;
        Ok(Self {
            a,
            b,
            config,
            place,
            next_port: FIRST_LOCAL_PORT,
            now_us: 0,
            clock: Clock::new(),
            ahead_us: 0,
            _listener: listener,
        })
    }

    /// Connects queue pairs until there are `count` connected queue pairs.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails, or [`Error::Connect`] if a connection is not
    /// established.
    pub fn connect(&mut self, count: usize) -> Result<(), Error> {
        Self::connect_all(std::slice::from_mut(self), count)
    }

    /// Connects queue pairs until each of `all` has `count` connected queue pairs. If the devices choose
    /// queues by a hash (RSS), the local ports are chosen so that the frames of a connection arrive at the
    /// engines that have the connection.
    ///
    /// # Errors
    /// Returns [`Error::Verbs`] if a verbs call fails, or [`Error::Connect`] if a connection is not
    /// established.
    pub fn connect_all(all: &mut [Self], count: usize) -> Result<(), Error> {
        while let Some(least) = all.iter().map(|hosts| hosts.a.qps.len()).min().filter(|least| *least < count)
        {
            let some = AT_A_TIME.min(count - least);
            let mut missing = 0;
            for hosts in &mut *all {
                let here = some.min(count.saturating_sub(hosts.a.qps.len()));
                hosts.begin(here)?;
                missing += 2 * here;
            }
            for _ in 0..MAX_POLLS {
                for hosts in &mut *all {
                    hosts.poll();
                    missing -= hosts.handle_events()?;
                }
                if missing == 0 {
                    break;
                }
            }
            if missing > 0 {
                let remote = all[0].place.listener();
                let reason = NotConnected::Other(format!("not within {MAX_POLLS} polls"));
                return Err(Error::Connect { remote, reason });
            }
        }
        Ok(())
    }

    /// Begins to connect `count` queue pairs.
    fn begin(&mut self, count: usize) -> Result<(), Error> {
        for _ in 0..count {
            let param = ConnParam { local_port: self.local_port(), ..self.param() };
            Owner::Client.run(|| self.a.connect(self.place.listener(), &param))?;
        }
        Ok(())
    }

    /// Accepts all requests. Returns the number of queue pairs that were connected.
    fn handle_events(&mut self) -> Result<usize, Error> {
        let (remote, param) = (self.place.listener(), self.param());
        let mut established = 0;
        for host in [&mut self.a, &mut self.b] {
            established += host.owner.run(|| host.handle_events(remote, &param))?;
        }
        Ok(established)
    }

    fn param(&self) -> ConnParam {
        let engine = Some(self.place.engine);
        let Config { markers, ib_semantics, .. } = self.config;
        ConnParam { markers, ib_semantics, engine, ..ConnParam::default() }
    }

    /// Returns the next local port with which the frames of both directions arrive at our queues. Returns
    /// `None` if a device does not choose queues by RSS, so that any port is suitable, or if no suitable port
    /// is left.
    fn local_port(&mut self) -> Option<u16> {
        let [a, b] = [&self.a, &self.b].map(|host| &host.engine.port_info().queue);
        let (Some(rss_a), Some(rss_b)) = (&a.rss, &b.rss) else { return None };
        let server = (self.place.listener().ip(), self.place.listener().port());
        let address = self.place.address(Owner::Client).into();
        let fits = |port: &u16| {
            let client = (address, *port);
            rss_a.queue(&Flow { src: server, dst: client }) == a.index
                && rss_b.queue(&Flow { src: client, dst: server }) == b.index
        };
        let port = (self.next_port..=u16::MAX).find(fits)?;
        self.next_port = port.saturating_add(1);
        Some(port)
    }

    /// The time of the last poll in microseconds.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// Advances virtual time, and returns the time of the next poll in microseconds.
    pub fn tick(&mut self) -> u64 {
        self.now_us += POLL_US;
        self.now_us
    }

    /// Advances virtual time and polls both hosts.
    pub fn poll(&mut self) {
        self.tick();
        self.poll_both();
    }

    /// From now on, time follows the clock, beginning with the time of the last poll. So no timer expires
    /// because of a pause.
    pub fn start_clock(&mut self) {
        self.ahead_us = self.now_us.wrapping_sub(self.clock.now_us());
    }

    /// Polls both hosts at the time of the clock, which [`start_clock`](Self::start_clock) has started.
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

/// The contexts of both hosts.
fn contexts() -> Result<[Context; 2], Error> {
    let context = |owner| {
        Ok::<_, Error>(Context::new(ContextConfig {
            seed: Some([owner as u8; 32]),
            ..ContextConfig::default()
        })?)
    };
    Ok([context(Owner::Client)?, context(Owner::Server)?])
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

    #[test]
    fn engines_on_queues_have_their_connections_and_hand_nothing_over() {
        for steering in [LinkSteering::Rss, LinkSteering::SenderQueue] {
            let config = Config { qps: 5, depth: 1, ..Config::new(LinkConfig::default(), 64) };
            let mut all = TwoHosts::on_queues(&config, 4, steering).unwrap();
            TwoHosts::connect_all(&mut all, 5).unwrap();
            for hosts in &all {
                for host in [&hosts.a, &hosts.b] {
                    assert_eq!(host.qps.len(), 5);
                    let counters = host.engine.counters();
                    assert!(counters.stack.rx_segments > 10, "{steering:?}: {counters:?}");
                    // Only ARP packets are handed over to another engine, since the first engine answers ARP.
                    let arp_alone = counters.stack.handed_over <= 1 && counters.stack.rx_handed_over <= 3;
                    assert!(arp_alone, "{steering:?}: {counters:?}");
                }
            }
        }
    }
}
