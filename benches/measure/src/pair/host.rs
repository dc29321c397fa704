//! Two hosts on wires in memory, and queue pairs between them.
//!
//! [`Hosts`] are the two contexts. A [`Lane`] is one wire with an engine of each host at its ends, driven by
//! one thread: it polls both engines alternately. The lane has its own clock, which stops while others are
//! measured, so that no timer expires meanwhile.

use std::time::{Duration, Instant};

use benches::endpoint::checked;
use benches::errors::Error;
use dp::Clock;
use dp::link::{self, LinkConfig};
use iwarp::engine::{Engine, EngineConfig, EngineCounters};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmEvent, CmEventKind, CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel,
    ListenOptions, MemoryRegion, ProtectionDomain, QpInit, QueuePair, WorkCompletion, cqe_for,
};

use crate::pair::heap::{self, Owner};

/// Connections set up at a time: fewer than a listener's backlog.
const AT_A_TIME: usize = 64;

/// Time limit of everything that is not measured.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(20);

/// First port to listen on.
const PORT: u16 = 7471;

/// The contexts of both hosts.
pub(crate) struct Hosts {
    client: Context,
    server: Context,
}

/// The parameters of a lane.
#[derive(Clone, Debug)]
pub(crate) struct LaneConfig {
    pub(crate) link: LinkConfig,
    /// Most queue pairs.
    pub(crate) qps: usize,
    /// Requests of each send and each receive queue.
    pub(crate) depth: usize,
    /// Bytes of the source region of Writes, and of the target region.
    pub(crate) bytes: usize,
}

/// One end of a lane.
struct End {
    engine: Engine,
    owner: Owner,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    events: EventChannel,
}

/// A wire with both its ends.
pub(crate) struct Lane {
    client: End,
    server: End,
    config: LaneConfig,
    clock: Clock,
    /// Difference between the clock and the lane's own time, microseconds.
    paused_us: u64,
    remote: std::net::SocketAddr,
    /// Number among the engines of each host.
    number: usize,
    _listener: CmId,
    pub(crate) source: MemoryRegion,
    pub(crate) target: MemoryRegion,
    /// Connected, in the order of their creation.
    pub(crate) qps: Vec<QueuePair>,
    /// The other ends, in any order, and their listener. They are kept so that they are not closed.
    servers: Vec<QueuePair>,
    ids: Vec<CmId>,
}

impl Hosts {
    /// # Errors
    /// [`Error::Verbs`].
    pub(crate) fn new() -> Result<Self, Error> {
        Ok(Self {
            client: Context::new(ContextConfig::default())?,
            server: Context::new(ContextConfig::default())?,
        })
    }

    /// Wire number `number` between the hosts, with its own engine at each end.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub(crate) fn lane(&self, number: u8, config: LaneConfig) -> Result<Lane, Error> {
        let (client_port, server_port) = link::pair(&config.link);
        let end = |owner, context: &Context, port: Box<dyn dp::Port>, last: u8| {
            let address = format!("10.0.{number}.{last}/24");
            let engine_config = EngineConfig::new(&*port, &[&address])?;
            let cqe = cqe_for([2 * config.depth * config.qps]);
            Ok::<_, Error>(End {
                engine: Engine::new(context, port, engine_config)?,
                owner,
                pd: context.alloc_pd()?,
                cq: context.create_cq(cqe, None)?,
                events: context.create_event_channel()?,
            })
        };
        let client = end(Owner::Client, &self.client, client_port, 2)?;
        let server = end(Owner::Server, &self.server, server_port, 1)?;
        let listener = self.server.create_id(&server.events);
        let port = PORT + u16::from(number);
        listener.listen_with(&ListenOptions::new(port))?;
        Ok(Lane {
            source: client.pd.reg_mr(config.bytes, Access::LOCAL_WRITE)?,
            target: server.pd.reg_mr(config.bytes, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            client,
            server,
            clock: Clock::new(),
            paused_us: 0,
            remote: ([10, 0, number, 1], port).into(),
            number: usize::from(number),
            _listener: listener,
            qps: Vec::with_capacity(config.qps),
            servers: Vec::with_capacity(config.qps),
            ids: Vec::with_capacity(2 * config.qps),
            config,
        })
    }
}

impl End {
    fn create_qp(&self, depth: usize) -> Result<QueuePair, Error> {
        let init = QpInit { max_send_wr: depth, max_recv_wr: depth, ..QpInit::new(&self.cq) };
        Ok(heap::owned(self.owner, || self.pd.create_qp(&init))?)
    }

    fn poll_at(&mut self, now_us: u64) -> bool {
        let now = tcp_lite::Instant::from_micros(now_us as i64);
        heap::owned(self.owner, || self.engine.poll_at(now))
    }

    fn event(&self) -> Option<CmEvent> {
        heap::owned(self.owner, || self.events.poll())
    }
}

impl Lane {
    /// The lane's time, microseconds.
    pub(crate) fn now_us(&self) -> u64 {
        self.clock.now_us() - self.paused_us
    }

    /// The lane's time has stood still since `since_us`.
    pub(crate) fn resume(&mut self, since_us: u64) {
        self.paused_us = self.clock.now_us() - since_us;
    }

    /// Polls either engine once. Returns whether one of them did anything.
    #[inline]
    pub(crate) fn poll(&mut self) -> bool {
        let now_us = self.now_us();
        self.client.poll_at(now_us) | self.server.poll_at(now_us)
    }

    /// Bytes placed into the server's memory so far.
    pub(crate) fn placed_bytes(&self) -> u64 {
        self.server.engine.counters().rx_placed_bytes
    }

    /// Counters of the client's engine and of the server's.
    pub(crate) fn counters(&self) -> [EngineCounters; 2] {
        [self.client.engine.counters(), self.server.engine.counters()]
    }

    /// Polls completions of the client's requests into `room`. Each has succeeded.
    ///
    /// # Errors
    /// [`Error::Completion`].
    pub(crate) fn completions<'a>(
        &self,
        room: &'a mut [WorkCompletion],
    ) -> Result<&'a [WorkCompletion], Error> {
        let count = self.client.cq.poll(room);
        let completions = &room[..count];
        completions.iter().try_for_each(|completion| checked(completion, "Write"))?;
        Ok(completions)
    }

    /// Polls the engines until `done`.
    ///
    /// # Errors
    /// [`Error::Silent`], and the errors of `done`.
    pub(crate) fn until(
        &mut self,
        doing: &'static str,
        mut done: impl FnMut(&mut Self) -> Result<bool, Error>,
    ) -> Result<(), Error> {
        let start = Instant::now();
        while !done(self)? {
            self.poll();
            if start.elapsed() > TIME_LIMIT {
                return Err(Error::Silent { doing, after: TIME_LIMIT });
            }
        }
        Ok(())
    }

    /// Polls the engines for this time.
    ///
    /// # Errors
    /// None is expected.
    pub(crate) fn rest(&mut self, time: Duration) -> Result<(), Error> {
        let end = Instant::now() + time;
        self.until("resting", |_| Ok(Instant::now() >= end))
    }

    /// Connects queue pairs until there are `count`.
    ///
    /// # Errors
    /// [`Error::Verbs`], [`Error::Connect`], [`Error::Silent`].
    pub(crate) fn connect(&mut self, count: usize) -> Result<(), Error> {
        while self.qps.len() < count {
            self.connect_some(AT_A_TIME.min(count - self.qps.len()))?;
        }
        Ok(())
    }

    fn connect_some(&mut self, count: usize) -> Result<(), Error> {
        let param = ConnParam { engine: Some(self.number), ..ConnParam::default() };
        let remote = self.remote;
        for _ in 0..count {
            let qp = self.client.create_qp(self.config.depth)?;
            let id = heap::owned(Owner::Client, || {
                let id = self.client.engine.context().create_id(&self.client.events);
                id.connect(&qp, remote, &param).map(|()| id)
            })?;
            self.qps.push(qp);
            self.ids.push(id);
        }
        let (mut client, mut server) = (0, 0);
        self.until("connecting", |lane| {
            while let Some(event) = lane.client.event() {
                client += usize::from(established(&event, remote)?);
            }
            while let Some(event) = lane.server.event() {
                if matches!(event.kind, CmEventKind::ConnectRequest { .. }) {
                    let qp = lane.server.create_qp(lane.config.depth)?;
                    heap::owned(Owner::Server, || event.id.accept(&qp, &ConnParam::default()))?;
                    lane.servers.push(qp);
                    lane.ids.push(event.id.clone());
                } else {
                    server += usize::from(established(&event, remote)?);
                }
            }
            Ok(client == count && server == count)
        })
    }
}

/// Whether a connection is established.
///
/// # Errors
/// [`Error::Connect`] if it cannot be any more.
fn established(event: &CmEvent, remote: std::net::SocketAddr) -> Result<bool, Error> {
    match &event.kind {
        CmEventKind::Established { .. } => Ok(true),
        CmEventKind::Rejected { .. }
        | CmEventKind::ConnectError { .. }
        | CmEventKind::Disconnected { .. } => {
            Err(Error::Connect { remote, reason: format!("{:?}", event.kind) })
        }
        _ => Ok(false),
    }
}
