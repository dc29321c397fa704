//! Two hosts, the connections between them, and the virtual time.

use std::net::SocketAddr;

use dp::Mempool;
use dp::link::LinkConfig;
use iwarp::engine::{Engine, EngineConfig};
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionQueue, ConnParam, ConnectionError, Context, ContextConfig,
    EventChannel, MemoryRegion, ProtectionDomain, QpInit, QpState, QueuePair, StreamError, WorkCompletion,
};
use tcp_lite::Instant;

use super::{ALL, PORT, Testbed};

/// One host: a context with one engine, and one of each object.
pub(crate) struct Host {
    pub(crate) engine: Engine,
    pub(crate) context: Context,
    pub(crate) channel: EventChannel,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    pub(crate) address: SocketAddr,
    /// The packet buffers of its port.
    pub(crate) pool: Mempool,
}

/// Two hosts and the time.
pub(crate) struct Pair {
    pub(crate) a: Host,
    pub(crate) b: Host,
    pub(crate) now_us: i64,
}

impl Pair {
    pub(crate) fn new(link: &LinkConfig) -> Self {
        Testbed::on(link).hosts()
    }

    /// Two hosts on a wire without faults, and a connection between them.
    pub(crate) fn connected() -> (Self, Connected) {
        Self::connected_by(&ConnParam::default())
    }

    /// The same, where both ends agree on InfiniBand's semantics.
    pub(crate) fn agreeing() -> (Self, Connected) {
        Self::connected_by(&agreeing())
    }

    fn connected_by(param: &ConnParam) -> (Self, Connected) {
        let mut pair = Testbed::new().hosts();
        let c = pair.connect(param);
        (pair, c)
    }

    /// Two hosts on a wire without faults, of which B listens.
    pub(crate) fn listening() -> (Self, CmId) {
        let mut pair = Testbed::new().hosts();
        let listener = pair.listen();
        (pair, listener)
    }

    /// Two hosts whose engines are configured alike, over any two ports.
    pub(super) fn over(
        (port_a, port_b): (Box<dyn dp::Port>, Box<dyn dp::Port>),
        config: &ContextConfig,
        configure: impl Fn(&mut EngineConfig),
    ) -> Self {
        let host = |port: Box<dyn dp::Port>, number: u8| {
            let context = Context::new(ContextConfig { seed: Some([number; 32]), ..config.clone() }).unwrap();
            let v4 = format!("10.0.0.{number}/24");
            let v6 = format!("fd00::{number}/64");
            let mut config = EngineConfig::new(&*port, &[&v4, &v6]).unwrap();
            config.stack.seed = [number; 32];
            // Tests name frames by their number on the wire: probes of addresses would shift these.
            config.stack.address_probing = tcp_lite::AddressProbing::Off;
            configure(&mut config);
            let pool = port.mempool().clone();
            let engine = Engine::new(&context, port, config).unwrap();
            Host {
                channel: context.create_event_channel().unwrap(),
                pd: context.alloc_pd().unwrap(),
                cq: context.create_cq(4096, None).unwrap(),
                address: format!("10.0.0.{number}:{PORT}").parse().unwrap(),
                engine,
                context,
                pool,
            }
        };
        Self { a: host(port_a, 1), b: host(port_b, 2), now_us: 0 }
    }

    /// Polls both engines. Then the time advances: to the next deadline if nothing happened.
    pub(crate) fn poll(&mut self) {
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
    pub(crate) fn is_asleep(&mut self) -> bool {
        let now = Instant::from_micros(self.now_us);
        self.a.engine.next_deadline(now).is_none() && self.b.engine.next_deadline(now).is_none()
    }

    /// Polls until `done` returns something.
    ///
    /// # Panics
    /// After a minute of virtual time, or a million polls.
    pub(crate) fn until<T>(&mut self, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
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

    pub(crate) fn run_us(&mut self, us: i64) {
        let end = self.now_us + us;
        while self.now_us < end {
            self.poll();
        }
    }

    pub(crate) fn event_a(&mut self) -> CmEvent {
        self.until(|pair| pair.a.channel.poll())
    }

    pub(crate) fn event_b(&mut self) -> CmEvent {
        self.until(|pair| pair.b.channel.poll())
    }

    pub(crate) fn wc_a(&mut self) -> WorkCompletion {
        self.until(|pair| pair.a.cq.poll_one())
    }

    pub(crate) fn wc_b(&mut self) -> WorkCompletion {
        self.until(|pair| pair.b.cq.poll_one())
    }

    /// A connects to B, both with `param`; both are established.
    pub(crate) fn connect(&mut self, param: &ConnParam) -> Connected {
        self.connect_with(param, param)
    }

    pub(crate) fn connect_with(&mut self, param_a: &ConnParam, param_b: &ConnParam) -> Connected {
        let listener = self.listen();
        let connected = self.connect_again(param_a, param_b);
        listener.disconnect();
        connected
    }

    pub(crate) fn listen(&mut self) -> CmId {
        let listener = self.b.context.create_id(&self.b.channel);
        listener.listen(PORT, 16, std::time::Duration::from_secs(10)).unwrap();
        self.poll();
        listener
    }

    /// Regions of A and of B, each of `len` bytes, which the peer may read and write.
    pub(crate) fn regions(&self, len: usize) -> (MemoryRegion, MemoryRegion) {
        (self.a.pd.reg_mr(len, ALL).unwrap(), self.b.pd.reg_mr(len, ALL).unwrap())
    }

    /// A begins to connect to B.
    pub(crate) fn dial(&self, param: &ConnParam) -> (QueuePair, CmId) {
        let (qp, id) = (self.a.qp(), self.a.context.create_id(&self.a.channel));
        id.connect(&qp, self.b.address, param).unwrap();
        (qp, id)
    }

    /// One more connection to the same listener.
    pub(crate) fn connect_again(&mut self, param_a: &ConnParam, param_b: &ConnParam) -> Connected {
        let (qp_a, qp_b) = (self.a.qp(), self.b.qp());
        self.connect_qps(qp_a, qp_b, param_a, param_b)
    }

    /// Connects queue pairs that the test has made.
    pub(crate) fn connect_qps(
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
}

impl Host {
    pub(crate) fn qp(&self) -> QueuePair {
        let init = QpInit { max_send_wr: 1024, max_recv_wr: 1024, ..QpInit::new(&self.cq) };
        self.pd.create_qp(&init).unwrap()
    }
}

/// Both ends of a connection.
pub(crate) struct Connected {
    pub(crate) qp_a: QueuePair,
    pub(crate) qp_b: QueuePair,
    pub(crate) id_a: CmId,
    pub(crate) id_b: CmId,
    pub(crate) established_a: CmEvent,
    pub(crate) established_b: CmEvent,
}

/// The parameters of an end that agrees on InfiniBand's semantics.
pub(crate) fn agreeing() -> ConnParam {
    ConnParam { ib_semantics: true, ..ConnParam::default() }
}

/// Why a connection did not come about.
pub(crate) fn connect_error(event: CmEvent) -> ConnectionError {
    let CmEventKind::ConnectError { error, .. } = event.kind else { panic!("{event:?}") };
    error
}

/// Both users are told of an error that B found in a message of A's, and one Terminate was sent.
pub(crate) fn expect_terminate(pair: &mut Pair, c: &Connected, layer: u8, etype: u8, code: u8) {
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
