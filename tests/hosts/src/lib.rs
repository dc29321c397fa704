//! A host with an engine; two such hosts on a wire in memory; connections between them; and virtual time.
//! [`hooked`] has a port whose bursts a test can change.

#![forbid(unsafe_code)]

pub mod hooked;

use std::net::SocketAddr;

use dp::link::{self, LinkConfig};
use dp::{Mempool, Port};
use iwarp::engine::{Engine, EngineConfig};
use iwarp::memory::Access;
use iwarp::verbs::{
    AtomicOp, CmEvent, CmEventKind, CmId, CompletionQueue, ConnParam, ConnectionError, Context,
    ContextConfig, EventChannel, MemoryRegion, ProtectionDomain, QpInit, QpState, QueuePair, RemoteAddr,
    SendOp, SendRequest, StreamError, WcStatus, WorkCompletion,
};
use tcp_lite::{AddressProbing, Instant};

/// The access rights with which a region can be the source or the sink of a Read or Write of either host.
pub const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// The TCP port of listeners.
pub const PORT: u16 = 7174;

/// Returns a context whose STags depend only on `seed`.
pub fn context(seed: [u8; 32]) -> Context {
    Context::new(ContextConfig { seed: Some(seed), ..ContextConfig::default() }).expect("a seed")
}

/// One host: a context with one engine, event channel, protection domain and completion queue. `E` is the
/// engine or its owner.
pub struct Host<E = Engine> {
    /// The engine, which [`Pair`] or the user of this host polls.
    pub engine: E,
    /// The context of all objects.
    pub context: Context,
    /// The event channel of the host's connections.
    pub channel: EventChannel,
    /// A protection domain.
    pub pd: ProtectionDomain,
    /// A completion queue.
    pub cq: CompletionQueue,
    /// The address of the host's listener.
    pub address: SocketAddr,
    /// The packet buffers of the host's port.
    pub pool: Mempool,
}

impl Host {
    /// Creates a host with `addresses` on `port`. The completion queue of the host has `cqe` entries.
    ///
    /// # Panics
    /// If the port, an address or the configuration is not usable.
    pub fn new(
        context: Context,
        port: Box<dyn Port>,
        addresses: &[&str],
        cqe: usize,
        configure: impl FnOnce(&mut EngineConfig),
    ) -> Self {
        let mut config = EngineConfig::new(&*port, addresses).expect("good addresses");
        configure(&mut config);
        let address = SocketAddr::new(config.stack.addresses[0].address().into(), PORT);
        let pool = port.mempool().clone();
        let engine = Engine::new(&context, port, config).expect("an engine");
        Self {
            channel: context.create_event_channel().expect("a channel"),
            pd: context.alloc_pd().expect("a domain"),
            cq: context.create_cq(cqe, None).expect("a queue"),
            address,
            engine,
            context,
            pool,
        }
    }

    /// Polls the engine at time `now_us`, in microseconds. Returns whether there was anything to do.
    pub fn poll_us(&mut self, now_us: u64) -> bool {
        self.engine.poll_at(Instant::from_micros(now_us as i64))
    }

    /// Returns the time at which the engine needs its next poll, in microseconds, or `None` if no work is
    /// scheduled.
    pub fn next_us(&mut self, now_us: u64) -> Option<u64> {
        let deadline = self.engine.next_deadline(Instant::from_micros(now_us as i64));
        deadline.map(|at| (at.total_micros() as u64).max(now_us))
    }

    /// Returns the total size, in bytes, of the packet buffers of the host's port that are not free.
    pub fn pinned_bytes(&self) -> u64 {
        (self.pool.capacity() - self.pool.available()) as u64 * self.pool.data_bytes() as u64
    }

    /// Gives the engine to another owner, for example a thread. Returns the host with this owner.
    pub fn with_engine<E>(self, give: impl FnOnce(Engine) -> E) -> Host<E> {
        let Self { engine, context, channel, pd, cq, address, pool } = self;
        Host { engine: give(engine), context, channel, pd, cq, address, pool }
    }
}

impl<E> Host<E> {
    /// Creates a queue pair whose send queue and receive queue have 1024 entries each.
    ///
    /// # Panics
    /// If a limit of the context is reached.
    pub fn qp(&self) -> QueuePair {
        let init = QpInit { max_send_wr: 1024, max_recv_wr: 1024, ..QpInit::new(&self.cq) };
        self.pd.create_qp(&init).unwrap()
    }
}

/// Two hosts, and their virtual time.
pub struct Pair {
    /// The host that connects.
    pub a: Host,
    /// The host that listens.
    pub b: Host,
    /// The time of the next poll, in microseconds.
    pub now_us: i64,
}

impl Pair {
    /// Creates two hosts on a wire with the properties that `link` describes.
    pub fn new(link: &LinkConfig) -> Self {
        Self::over(link::pair(link), &ContextConfig::default(), |_| {})
    }

    /// Creates two hosts on a wire without faults, and a connection between them.
    pub fn connected() -> (Self, Connected) {
        Self::connected_by(&ConnParam::default())
    }

    /// Connects as [`connected`](Self::connected) does, but both endpoints agree on InfiniBand's semantics.
    pub fn agreeing() -> (Self, Connected) {
        Self::connected_by(&agreeing())
    }

    fn connected_by(param: &ConnParam) -> (Self, Connected) {
        let mut pair = Self::new(&LinkConfig::default());
        let c = pair.connect(param);
        (pair, c)
    }

    /// Creates two hosts on a wire without faults. B listens.
    pub fn listening() -> (Self, CmId) {
        let mut pair = Self::new(&LinkConfig::default());
        let listener = pair.listen();
        (pair, listener)
    }

    /// Creates two hosts over any two ports. `configure` configures both engines.
    pub fn over(
        (port_a, port_b): (Box<dyn Port>, Box<dyn Port>),
        config: &ContextConfig,
        configure: impl Fn(&mut EngineConfig),
    ) -> Self {
        let host = |port: Box<dyn Port>, number: u8| {
            let context = Context::new(ContextConfig { seed: Some([number; 32]), ..config.clone() }).unwrap();
            let addresses = [format!("10.0.0.{number}/24"), format!("fd00::{number}/64")];
            Host::new(context, port, &addresses.each_ref().map(String::as_str), 4096, |config| {
                config.stack.seed = [number; 32];
                // Tests refer to frames by their number on the wire, and address probes would shift these
                // numbers.
                config.stack.address_probing = AddressProbing::Off;
                configure(config);
            })
        };
        Self { a: host(port_a, 1), b: host(port_b, 2), now_us: 0 }
    }

    /// Polls both engines. If nothing happened, advances the time to the next deadline. Otherwise, or without
    /// a deadline, advances the time by one microsecond.
    pub fn poll(&mut self) {
        let now = Instant::from_micros(self.now_us);
        let busy_a = self.a.engine.poll_at(now);
        let busy_b = self.b.engine.poll_at(now);
        let next = if busy_a || busy_b {
            None
        } else {
            let deadlines = [self.a.engine.next_deadline(now), self.b.engine.next_deadline(now)];
            deadlines.into_iter().flatten().min()
        };
        self.now_us = next.map_or(self.now_us + 1, |at| at.total_micros().max(self.now_us + 1));
    }

    /// Whether neither engine has a deadline.
    pub fn is_asleep(&mut self) -> bool {
        let now = Instant::from_micros(self.now_us);
        self.a.engine.next_deadline(now).is_none() && self.b.engine.next_deadline(now).is_none()
    }

    /// Polls until `done` returns `Some`, and returns this value.
    ///
    /// # Panics
    /// After a minute of virtual time, or a million polls.
    pub fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let limit_us = self.now_us + 60_000_000;
        for _ in 0..1_000_000 {
            if let Some(value) = done(self) {
                return value;
            }
            assert!(self.now_us < limit_us, "nothing happened for a minute");
            self.poll();
        }
        panic!("nothing happened in a million polls");
    }

    /// Polls for at least `us` microseconds of virtual time.
    pub fn run_us(&mut self, us: i64) {
        let end = self.now_us + us;
        while self.now_us < end {
            self.poll();
        }
    }

    /// Polls until A has an event, and returns the event.
    pub fn event_a(&mut self) -> CmEvent {
        self.until(|pair| pair.a.channel.poll())
    }

    /// Polls until B has an event, and returns the event.
    pub fn event_b(&mut self) -> CmEvent {
        self.until(|pair| pair.b.channel.poll())
    }

    /// Polls until A has a completion, and returns the completion.
    pub fn wc_a(&mut self) -> WorkCompletion {
        self.until(|pair| pair.a.cq.poll_one())
    }

    /// Polls until B has a completion, and returns the completion.
    pub fn wc_b(&mut self) -> WorkCompletion {
        self.until(|pair| pair.b.cq.poll_one())
    }

    /// Makes B listen, connects A to B with `param` for both endpoints, and ends the listener. Returns when
    /// both endpoints are established.
    pub fn connect(&mut self, param: &ConnParam) -> Connected {
        self.connect_with(param, param)
    }

    /// Connects as [`connect`](Self::connect) does, but with separate parameters for each endpoint.
    pub fn connect_with(&mut self, param_a: &ConnParam, param_b: &ConnParam) -> Connected {
        let listener = self.listen();
        let connected = self.connect_again(param_a, param_b);
        listener.disconnect();
        connected
    }

    /// Makes B listen at [`PORT`]. Returns the listener.
    pub fn listen(&mut self) -> CmId {
        let listener = self.b.context.create_id(&self.b.channel);
        listener.listen(PORT, 16, std::time::Duration::from_secs(10)).unwrap();
        self.poll();
        listener
    }

    /// Registers a region of A and a region of B, each of `len` bytes, which the peer may read and write.
    pub fn regions(&self, len: usize) -> (MemoryRegion, MemoryRegion) {
        (self.a.pd.reg_mr(len, ALL).unwrap(), self.b.pd.reg_mr(len, ALL).unwrap())
    }

    /// Makes A begin to connect to B. Returns A's queue pair and identifier.
    pub fn dial(&self, param: &ConnParam) -> (QueuePair, CmId) {
        let (qp, id) = (self.a.qp(), self.a.context.create_id(&self.a.channel));
        id.connect(&qp, self.b.address, param).unwrap();
        (qp, id)
    }

    /// Connects new queue pairs of A and B. B must be listening.
    pub fn connect_again(&mut self, param_a: &ConnParam, param_b: &ConnParam) -> Connected {
        let (qp_a, qp_b) = (self.a.qp(), self.b.qp());
        self.connect_qps(qp_a, qp_b, param_a, param_b)
    }

    /// Connects `qp_a` of A to `qp_b` of B. B must be listening.
    pub fn connect_qps(
        &mut self,
        qp_a: QueuePair,
        qp_b: QueuePair,
        param_a: &ConnParam,
        param_b: &ConnParam,
    ) -> Connected {
        let id_a = self.a.context.create_id(&self.a.channel);
        id_a.connect(&qp_a, self.b.address, param_a).unwrap();
        let request = self.event_b();
        assert!(matches!(request.kind, CmEventKind::ConnectRequest { .. }), "{request:?}");
        request.id.accept(&qp_b, param_b).unwrap();
        let established_a = self.event_a();
        assert!(matches!(established_a.kind, CmEventKind::Established { .. }), "{established_a:?}");
        let established_b = self.event_b();
        assert!(matches!(established_b.kind, CmEventKind::Established { .. }), "{established_b:?}");
        Connected { qp_a, qp_b, id_a, id_b: request.id, established_a, established_b }
    }

    /// Makes A execute `op` on the word `remote` of B, and returns the previous value of the word.
    pub fn atomic(&mut self, c: &Connected, op: AtomicOp, remote: RemoteAddr) -> u64 {
        let local = self.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        let op = SendOp::Atomic { remote, op };
        c.qp_a.post_send(&SendRequest::new(77, op, local.sge(0, 8))).unwrap();
        let wc = self.wc_a();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (77, WcStatus::Success, 8));
        let mut word = [0; 8];
        local.read_at(0, &mut word).unwrap();
        u64::from_ne_bytes(word)
    }
}

/// Both endpoints of a connection.
pub struct Connected {
    /// A's queue pair.
    pub qp_a: QueuePair,
    /// B's queue pair.
    pub qp_b: QueuePair,
    /// A's identifier.
    pub id_a: CmId,
    /// B's identifier.
    pub id_b: CmId,
    /// The event by which A learnt that the connection is established.
    pub established_a: CmEvent,
    /// The event by which B learnt that the connection is established.
    pub established_b: CmEvent,
}

/// Returns the parameters of an endpoint that agrees on InfiniBand's semantics.
pub fn agreeing() -> ConnParam {
    ConnParam { ib_semantics: true, ..ConnParam::default() }
}

/// Returns the reason why a connection was not established.
pub fn connect_error(event: CmEvent) -> ConnectionError {
    let CmEventKind::ConnectError { error, .. } = event.kind else { panic!("{event:?}") };
    error
}

/// Checks that both users got the error that B detected in a message of A, and that B sent exactly one
/// Terminate.
pub fn expect_terminate(pair: &mut Pair, c: &Connected, layer: u8, etype: u8, code: u8) {
    let found = StreamError { layer, etype, code, from_peer: false };
    let told = StreamError { from_peer: true, ..found };
    let event = pair.event_a();
    assert!(
        matches!(event.kind, CmEventKind::Disconnected { error: Some(ConnectionError::Stream(e)), .. } if e == told),
        "{event:?}"
    );
    let event = pair.event_b();
    assert!(
        matches!(event.kind, CmEventKind::Disconnected { error: Some(ConnectionError::Stream(e)), .. } if e == found),
        "{event:?}"
    );
    assert_eq!(c.qp_a.error(), Some(told));
    assert_eq!(c.qp_b.error(), Some(found));
    assert_eq!((c.qp_a.state(), c.qp_b.state()), (QpState::Error, QpState::Error));
    assert_eq!(pair.b.engine.counters().tx_terminates, 1);
    assert_eq!(pair.a.engine.counters().rx_terminates, 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_connect_and_the_time_goes_on_by_deadlines() {
        let (mut pair, c) = Pair::connected();
        assert_eq!((c.qp_a.state(), c.qp_b.state()), (QpState::Rts, QpState::Rts));
        // The maximum number of polls is far below the number of microseconds, since `poll` advances the time
        // of an idle pair to its next deadline.
        let (end_us, mut polls) = (pair.now_us + 1_000_000, 0);
        while pair.now_us < end_us {
            pair.poll();
            polls += 1;
        }
        assert!(polls < 1000, "{polls} polls");
    }
}
