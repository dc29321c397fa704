//! One turn of an engine: frames in, events to connections, queue pairs send, frames out.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dp::profile::{self, Layer};
use dp::{Burst, Clock, LinkState, Port};
use tcp_lite::{Backoff, CloseReason, ConnId, ConnectError, Event, Instant, ListenConfig, ListenerId, Stack};

use crate::memory::EpochGuard;
use crate::mpa::HeldSlab;
use crate::queues::{Ask, QpShared};
use crate::rdmap::stream::{Records, StreamCounters};
use crate::verbs::{
    AsyncEventKind, AsyncEvents, CmCommand, CmEventKind, CmShared, ConnParam, ConnectionError, EngineShared,
    ListenerShared,
};

use super::EngineConfig;
use super::carrier::Carrier;
use super::connection::{Connection, Retry};
use super::counters::EngineCounters;
use super::listening::Listener;
use super::rate::Rate;
use super::tx_scheduler::TxScheduler;

mod receiving;
mod sending;

/// What a connection needs is fetched when its turn, or a frame for it, is behind so many others.
const AHEAD: usize = 2;

/// What moves the data, without thread or clock.
pub(super) struct Core {
    io: Io,
    port: Box<dyn Port>,
    carrier: Carrier,
    connections: Vec<Option<Box<Connection>>>,
    connection_count: usize,
    /// When connections want to be woken, and their slots: one entry for each at most.
    deadlines: BTreeSet<(Instant, u32)>,
    rx: Burst,
    /// Frames that TCP has sent and the port has not taken yet.
    tx: Burst,
    /// The port takes nothing.
    full: Backoff,
    /// Queue pairs would hand FPDUs to TCP, and no buffer is free.
    starved: Backoff,
}

/// What connections work with.
pub(super) struct Io {
    pub(super) now: Instant,
    pub(super) tcp: Stack,
    pub(super) held: HeldSlab,
    pub(super) records: Records,
    pub(super) counters: EngineCounters,
    /// Of all RDMA streams; those of `counters` are taken from here when they are asked for.
    pub(super) streams: StreamCounters,
    pub(super) config: EngineConfig,
    pub(super) shared: Arc<EngineShared>,
    /// Where the context hears of the port.
    async_events: AsyncEvents,
    tx_scheduler: TxScheduler,
    listeners: Vec<Listener>,
    /// Somebody found no packet buffer free in this turn to send.
    pub(super) no_mbuf: bool,
    /// Changes to half-open connections and unanswered SYNs that the listeners' counters show.
    syns_told: u64,
}

impl Io {
    /// Lets a connection have a turn to send, soon.
    pub(super) fn want_turn(&mut self, conn: ConnId) {
        self.tx_scheduler.begin(conn.slot() as u32);
    }

    /// A connection that came to `listener` from `address` has failed by the peer's fault.
    pub(super) fn blame(&mut self, listener: &Arc<CmShared>, address: IpAddr) {
        let (now, tcp) = (self.now, &mut self.tcp);
        if let Some(listener) = self.listeners.iter_mut().find(|known| Arc::ptr_eq(&known.id, listener))
            && let Some(until) = listener.rate.blame(now, address)
        {
            tcp.block_address(now, listener.tcp, address, until);
        }
    }

    /// Tells the context what happened to this engine's port.
    fn tell(&self, kind: AsyncEventKind) {
        self.async_events.push(kind, self.shared.index() as u32, None);
    }

    /// The time of the turn.
    pub(super) fn now_us(&self) -> u64 {
        // Times are not negative.
        self.now.total_micros() as u64
    }
}

impl Core {
    pub(super) fn new(
        shared: Arc<EngineShared>,
        port: Box<dyn Port>,
        config: EngineConfig,
        async_events: AsyncEvents,
    ) -> Self {
        let mut tcp = Stack::new(config.stack.clone(), port.mempool().clone());
        if let Some(bulk) = port.bulk_mempool() {
            tcp.set_bulk_pool(bulk.clone());
        }
        tcp.set_passes_large_frames(port.passes_large_frames());
        tcp.set_tso_limits(port.info().tso);
        // With a slot for every buffer of the pool there is always one.
        let buffers = port.mempool().capacity();
        let held = HeldSlab::new(config.held_buffers.unwrap_or(buffers), buffers);
        let io = Io {
            now: Instant::ZERO,
            tcp,
            held,
            records: Records::new(config.request_records),
            counters: EngineCounters::default(),
            streams: StreamCounters::default(),
            tx_scheduler: TxScheduler::new(config.stack.limits.connections),
            config,
            shared,
            async_events,
            listeners: Vec::new(),
            no_mbuf: false,
            syns_told: 0,
        };
        let (rx, tx) = (Burst::new(), Burst::new());
        Self {
            io,
            carrier: Carrier::new(&*port),
            port,
            connections: Vec::new(),
            connection_count: 0,
            deadlines: BTreeSet::new(),
            rx,
            tx,
            full: Backoff::default(),
            starved: Backoff::default(),
        }
    }

    pub(super) fn shared(&self) -> &Arc<EngineShared> {
        &self.io.shared
    }

    pub(super) fn port(&self) -> &dyn Port {
        &*self.port
    }

    pub(super) fn counters(&self) -> EngineCounters {
        let StreamCounters { rx_fpdus, rx_fpdus_early, tx_fpdus, rx_placed_bytes, tx_fetched_bytes } =
            self.io.streams;
        EngineCounters {
            port: self.port.counters(),
            stack: self.io.tcp.counters(),
            rx_fpdus,
            rx_fpdus_early,
            tx_fpdus,
            rx_placed_bytes,
            tx_fetched_bytes,
            request_growths: self.io.records.growths(),
            ..self.io.counters
        }
    }

    pub(super) fn stack(&self) -> &Stack {
        &self.io.tcp
    }

    /// One turn. Returns whether there was anything to do.
    pub(super) fn turn(&mut self, now: Instant, guard: &EpochGuard) -> bool {
        let start = Clock::cycles();
        let _engine = profile::scope(Layer::Engine);
        self.io.now = now;
        self.io.shared.set_now_us(self.io.now_us());
        self.look_at_link();
        let mut busy = self.run_commands(guard);
        busy |= self.receive(guard);
        profile::within(Layer::TcpOut, || self.io.tcp.poll(now));
        busy |= self.run_events(guard);
        busy |= self.run_deadlines(guard);
        self.count_syns();
        busy |= self.send(guard);
        busy |= self.flush();
        self.io.counters.turns += 1;
        if busy {
            self.io.counters.busy_turns += 1;
            self.io.counters.busy_cycles += Clock::cycles().wrapping_sub(start);
        }
        busy
    }

    pub(super) fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let may_send = self.io.tx_scheduler.waiting() != (0, 0) && !self.starved.is_refused();
        if may_send || !self.tx.is_empty() && !self.full.is_refused() {
            return Some(now);
        }
        let again = [self.full.next_try(now), self.starved.next_try(now)].into_iter().flatten().min();
        let own = self.deadlines.first().map(|(at, _)| *at);
        let link = self.carrier.next_deadline(self.connection_count > 0);
        let wire = self.port.next_due_us().map(|us| Instant::from_micros(us as i64));
        // While the port takes nothing, what TCP would send now waits with it.
        let tcp = match self.full.is_refused() {
            true => self.io.tcp.next_timer(now),
            false => self.io.tcp.next_deadline(now),
        };
        [own, wire, link, again, tcp].into_iter().flatten().min()
    }

    /// Resets all connections and sends what that takes.
    pub(super) fn shut_down(&mut self, now: Instant) {
        self.io.now = now;
        self.io.shared.stop();
        while let Some(command) = self.io.shared.next_command() {
            command.refuse();
        }
        for slot in 0..self.connections.len() {
            self.with(slot, |connection, io| {
                connection.abort(io);
                connection.finish(io);
            });
        }
        self.flush();
    }

    // ---- from users ----

    fn run_commands(&mut self, guard: &EpochGuard) -> bool {
        let mut busy = false;
        while let Some(command) = self.io.shared.next_command() {
            busy = true;
            self.run_command(command, guard);
            self.run_events(guard);
        }
        if self.io.shared.doorbells().take_lost() {
            for slot in 0..self.connections.len() {
                self.with(slot, |connection, io| connection.activate(io));
            }
        }
        while let Some(slot) = self.io.shared.doorbells().next() {
            busy = true;
            self.with(slot as usize, |connection, io| connection.activate(io));
        }
        busy
    }

    fn run_command(&mut self, command: CmCommand, guard: &EpochGuard) {
        match command {
            CmCommand::Connect { id, qp, remote, param } => self.connect(id, &qp, remote, param, None),
            CmCommand::ConnectStream { id, stream, remote, param } => match self.open(remote, &param) {
                Ok(conn) => {
                    let now = self.io.now;
                    self.insert(Connection::connecting_stream(conn, id, stream, param, now));
                }
                Err(error) => id.not_streaming(error),
            },
            CmCommand::Streamed { id } => {
                self.with_id(&id, |connection, io| connection.streamed(io, guard));
            }
            CmCommand::StartInitiator { id, qp, param } => {
                if let Some(conn) = id.conn() {
                    qp.slot.store(conn.slot() as u32, Ordering::Release);
                }
                let started = self.with_id(&id, |connection, io| {
                    connection.start_initiator(io, Arc::clone(&qp), param);
                    connection.activate(io);
                });
                if !started {
                    // Its end has been told.
                    qp.enter_error();
                }
            }
            CmCommand::StartResponder { id, options } => {
                self.with_id(&id, |connection, io| connection.start_responder(io, guard, options));
            }
            CmCommand::Listen { id, listener } => self.listen(id, listener),
            CmCommand::Unlisten { port } => {
                let of_port = |listener: &Listener| listener.shared.options.port == port;
                if let Some(at) = self.io.listeners.iter().position(of_port) {
                    let listener = self.io.listeners.swap_remove(at);
                    self.io.tcp.unlisten(listener.tcp);
                }
            }
            CmCommand::Accept { id, conn, qp, param } => {
                qp.slot.store(conn.slot() as u32, Ordering::Release);
                let taken = self.with_conn(conn, |connection, io| {
                    connection.accept(io, guard, id, Arc::clone(&qp), param);
                });
                if !taken {
                    // Its end has been told.
                    qp.enter_error();
                }
            }
            CmCommand::Reject { conn, private_data } => {
                self.with_conn(conn, |connection, io| connection.reject(io, guard, &private_data, None));
            }
            CmCommand::Disconnect { id } => {
                self.with_id(&id, |connection, io| connection.disconnect(io));
            }
            CmCommand::Abort { id } => {
                self.with_id(&id, |connection, io| connection.abort(io));
            }
        }
    }

    fn listen(&mut self, id: Arc<CmShared>, shared: Arc<ListenerShared>) {
        let options = &shared.options;
        let config = ListenConfig {
            half_open: options.half_open,
            half_open_per_address: options.half_open_per_address,
            filter: options.filter.clone(),
        };
        match self.io.tcp.listen_with(options.port, config) {
            Ok(tcp) => {
                let limit = self.io.config.stack.limits.backlog;
                let half_open = options.half_open.map_or(limit, |own| own.min(limit));
                shared.count(|stats| stats.half_open_limit += half_open);
                let told = Default::default();
                let rate = Rate::new(options.rate_per_address, options.failures_per_address);
                self.io.listeners.push(Listener { id, shared, tcp, told, half_open, rate });
            }
            Err(_) => {
                let error = ConnectionError::NoResources;
                id.announce(None, CmEventKind::ConnectError { error, peer: None });
            }
        }
    }

    /// Starts a TCP connection.
    fn open(&mut self, remote: SocketAddr, param: &ConnParam) -> Result<ConnId, ConnectionError> {
        self.io.tcp.connect(self.io.now, remote, param.local_port).map_err(|error| match error {
            ConnectError::NoRoute(_) => ConnectionError::Tcp(CloseReason::Unreachable),
            ConnectError::NoConnection(_)
            | ConnectError::EventsWait(_)
            | ConnectError::NoPort
            | ConnectError::InUse => ConnectionError::NoResources,
        })
    }

    /// Starts a connection; `again` is the deadline of a first try that has failed.
    fn connect(
        &mut self,
        id: Arc<CmShared>,
        qp: &Arc<QpShared>,
        remote: SocketAddr,
        param: Box<ConnParam>,
        again: Option<Instant>,
    ) {
        let now = self.io.now;
        let started = if qp.asked() >= Ask::Terminate {
            Err(ConnectionError::Tcp(CloseReason::Aborted))
        } else {
            self.open(remote, &param)
        };
        let made = started.and_then(|conn| {
            qp.slot.store(conn.slot() as u32, Ordering::Release);
            Connection::connecting(
                conn,
                Arc::clone(&id),
                Arc::clone(qp),
                param,
                self.io.config.crc,
                now,
                again,
            )
            .inspect_err(|_| self.io.tcp.abort(now, conn))
        });
        match made {
            Ok(connection) => self.insert(connection),
            Err(error) => {
                self.io.counters.connections_failed += 1;
                id.not_connected(qp, error);
            }
        }
    }

    // ---- from the port ----

    fn look_at_link(&mut self) {
        let now = self.io.now;
        let Some(state) = self.carrier.look(now, &mut *self.port) else { return };
        let kind = match state {
            LinkState::Up => AsyncEventKind::PortActive,
            LinkState::Down => AsyncEventKind::PortError,
        };
        self.io.tcp.set_passes_large_frames(self.port.passes_large_frames());
        self.io.tcp.set_link(now, state == LinkState::Up);
        self.io.tell(kind);
    }

    // ---- from the stack ----

    fn run_events(&mut self, guard: &EpochGuard) -> bool {
        let mut busy = false;
        while let Some(event) = self.io.tcp.event() {
            busy = true;
            match event {
                Event::Established { conn, listener: None } => {
                    self.with_conn(conn, |connection, io| connection.on_established(io, guard));
                }
                Event::Established { conn, listener: Some(listener) } => self.accepted(conn, listener),
                Event::Received { conn, received } => {
                    self.with_conn(conn, |connection, io| connection.on_received(io, guard, received));
                }
                Event::Evict { conn, bytes } => {
                    self.with_conn(conn, |connection, io| connection.on_evict(io, bytes));
                }
                Event::Writable { conn } => {
                    self.with_conn(conn, |connection, io| connection.activate(io));
                }
                Event::PeerClosed { conn } => {
                    self.with_conn(conn, |connection, io| connection.on_peer_closed(io, guard));
                }
                Event::Closed { conn, reason } => {
                    self.with_conn(conn, |connection, io| connection.on_closed(io, reason));
                }
                Event::AddressConflict { .. } => self.io.tell(AsyncEventKind::AddressConflict),
            }
        }
        busy
    }

    /// A listener's connection is established.
    fn accepted(&mut self, conn: ConnId, tcp: ListenerId) {
        let now = self.io.now;
        let listener = self.io.listeners.iter_mut().find(|listener| listener.tcp == tcp);
        let Some((listener, info)) = listener.zip(self.io.tcp.info(conn)) else {
            return self.io.tcp.abort(now, conn);
        };
        let Some(admitted) = listener.admit(now, info.remote.ip()) else {
            self.io.counters.connections_refused += 1;
            return self.io.tcp.abort(now, conn);
        };
        let id = Arc::clone(&listener.id);
        match Connection::accepted(conn, id, admitted, &mut self.io) {
            Ok(connection) => {
                self.insert(connection);
                self.with_conn(conn, |connection, io| connection.announce_in_streaming_mode(io));
            }
            Err(_) => self.io.tcp.abort(now, conn),
        }
    }

    /// Tells listeners of half-open connections and of SYNs that were not answered, if that has changed.
    fn count_syns(&mut self) {
        let changes = self.io.tcp.listener_changes();
        if changes == self.io.syns_told {
            return;
        }
        self.io.syns_told = changes;
        let Io { listeners, tcp, .. } = &mut self.io;
        for listener in listeners {
            if let Some(now) = tcp.listener_counters(listener.tcp) {
                listener.tell(now);
            }
        }
    }

    // ---- deadlines ----

    fn run_deadlines(&mut self, guard: &EpochGuard) -> bool {
        let mut busy = false;
        while let Some(&(at, slot)) = self.deadlines.first()
            && at <= self.io.now
        {
            self.deadlines.pop_first();
            busy = true;
            self.with(slot as usize, |connection, io| {
                connection.entered = None;
                connection.on_time(io, guard);
            });
            // A connection that has ended hears no user any more, and is told before another one has its
            // place.
            self.run_events(guard);
        }
        busy
    }

    // ---- connections by name ----

    fn insert(&mut self, connection: Connection) {
        let slot = connection.conn().slot();
        if self.connections.len() <= slot {
            self.connections.resize_with(slot + 1, || None);
        }
        self.connections[slot] = Some(Box::new(connection));
        self.connection_count += 1;
        self.io.shared.set_connections(self.connection_count);
        // What its user asked before the slot was known rang at no door.
        self.with(slot, |connection, io| connection.activate(io));
    }

    /// Has the state of the connection in `slot` fetched: of many connections each was used long ago.
    fn prefetch(&self, slot: Option<usize>) {
        let Some(slot) = slot else { return };
        if let Some(Some(connection)) = self.connections.get(slot) {
            dp::prefetch(&**connection);
            self.io.tcp.prefetch(slot);
        }
    }

    /// Runs `action` on the connection in `slot`, if there is one; then sees to when it wants to be woken,
    /// and removes it when that was its end.
    fn with(&mut self, slot: usize, action: impl FnOnce(&mut Connection, &mut Io)) -> bool {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return false };
        action(connection, &mut self.io);
        connection.report_pinned(&mut self.io);
        let due = if connection.gone { None } else { connection.due() };
        if due != connection.entered {
            if let Some(old) = std::mem::replace(&mut connection.entered, due) {
                self.deadlines.remove(&(old, slot as u32));
            }
            if let Some(due) = due {
                self.deadlines.insert((due, slot as u32));
            }
        }
        if connection.gone {
            let retry = connection.take_retry();
            self.connections[slot] = None;
            self.connection_count -= 1;
            self.io.shared.set_connections(self.connection_count);
            if let Some(Retry { id, qp, remote, param, deadline }) = retry {
                self.connect(id, &qp, remote, param, Some(deadline));
            }
        }
        true
    }

    fn with_conn(&mut self, conn: ConnId, action: impl FnOnce(&mut Connection, &mut Io)) -> bool {
        let slot = conn.slot();
        let alive = self.connections.get(slot).and_then(Option::as_ref).is_some_and(|c| c.conn() == conn);
        alive && self.with(slot, action)
    }

    fn with_id(&mut self, id: &CmShared, action: impl FnOnce(&mut Connection, &mut Io)) -> bool {
        id.conn().is_some_and(|conn| self.with_conn(conn, action))
    }
}
