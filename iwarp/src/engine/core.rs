//! One turn of an engine: frames in, events to connections, queue pairs send, frames out.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dp::{Burst, Clock, Port};
use tcp_lite::{CloseReason, ConnId, ConnectError, Event, Instant, ListenerId, Stack};

use crate::memory::Turn;
use crate::mpa::HeldSlab;
use crate::verbs::{Ask, CmCommand, CmEventKind, CmId, ConnParam, ConnectionError, QpShared};

use super::EngineConfig;
use super::connection::Connection;
use super::counters::EngineCounters;
use super::shared::EngineShared;

/// Bursts received in one turn at most: what a doorbell or timer may have to wait.
const MAX_BURSTS: usize = 4;

/// Octets that queue pairs hand to TCP before frames are received again. Less than a turn receives: so a peer of the
/// same kind keeps up, and rings stay short.
const SEND_OCTETS: usize = 128 << 10;

/// Queue pairs that have just begun to send which go before all others in one turn.
const MAX_FRESH: usize = 16;

/// Bursts sent in one turn at most.
const MAX_TX_BURSTS: usize = 64;

/// What moves the data, without thread or clock.
pub(super) struct Core {
    io: Io,
    port: Box<dyn Port>,
    connections: Vec<Option<Box<Connection>>>,
    connection_count: usize,
    rx: Burst,
    tx: Burst,
}

/// What connections work with.
pub(super) struct Io {
    pub(super) now: Instant,
    pub(super) tcp: Stack,
    pub(super) held: HeldSlab,
    pub(super) counters: EngineCounters,
    pub(super) config: EngineConfig,
    pub(super) shared: Arc<EngineShared>,
    /// Slots of connections that have just begun to send. They go first, once: what is small is not kept waiting by
    /// bulk.
    fresh: VecDeque<u32>,
    /// Slots of connections that have used up a turn and want another.
    bulk: VecDeque<u32>,
    /// Deadlines of startup and close. An entry may be outdated: the connection knows.
    deadlines: BTreeSet<(Instant, u32)>,
    listeners: Vec<Listener>,
}

/// A port that is listened on.
struct Listener {
    id: CmId,
    port: u16,
    tcp: ListenerId,
    backlog: usize,
    timeout: Duration,
}

impl Io {
    /// Enters a deadline of a connection.
    pub(super) fn arm(&mut self, conn: ConnId, deadline: Instant) {
        self.deadlines.insert((deadline, conn.slot() as u32));
    }

    /// Lets a connection have a turn to send, soon.
    pub(super) fn want_turn(&mut self, conn: ConnId) {
        self.fresh.push_back(conn.slot() as u32);
    }

    /// Who listens on `port`.
    pub(super) fn listener(&self, port: u16) -> Option<CmId> {
        self.listeners.iter().find(|listener| listener.port == port).map(|listener| listener.id.clone())
    }
}

impl Core {
    pub(super) fn new(shared: Arc<EngineShared>, port: Box<dyn Port>, config: EngineConfig) -> Self {
        let tcp = Stack::new(config.stack.clone(), port.mempool().clone());
        // With a slot for every buffer of the pool there is always one.
        let buffers = port.mempool().capacity();
        let held = HeldSlab::new(buffers, buffers);
        let io = Io {
            now: Instant::ZERO,
            tcp,
            held,
            counters: EngineCounters::default(),
            fresh: VecDeque::with_capacity(config.stack.limits.connections),
            bulk: VecDeque::with_capacity(config.stack.limits.connections),
            config,
            shared,
            deadlines: BTreeSet::new(),
            listeners: Vec::new(),
        };
        let (rx, tx) = (Burst::new(), Burst::new());
        Self { io, port, connections: Vec::new(), connection_count: 0, rx, tx }
    }

    pub(super) fn shared(&self) -> &Arc<EngineShared> {
        &self.io.shared
    }

    pub(super) fn port(&self) -> &dyn Port {
        &*self.port
    }

    pub(super) fn counters(&self) -> EngineCounters {
        EngineCounters { port: self.port.counters(), stack: self.io.tcp.counters(), ..self.io.counters }
    }

    /// One turn. Returns whether there was anything to do.
    pub(super) fn turn(&mut self, now: Instant, turn: &Turn) -> bool {
        let start = Clock::cycles();
        self.io.now = now;
        let mut busy = self.run_commands(turn);
        busy |= self.receive(turn);
        self.io.tcp.poll(now);
        busy |= self.run_events(turn);
        busy |= self.run_deadlines();
        busy |= self.send(turn);
        busy |= self.flush();
        self.io.counters.turns += 1;
        if busy {
            self.io.counters.busy_turns += 1;
            self.io.counters.busy_cycles += Clock::cycles().wrapping_sub(start);
        }
        busy
    }

    pub(super) fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        if !self.io.fresh.is_empty() || !self.io.bulk.is_empty() || !self.tx.is_empty() {
            return Some(now);
        }
        let own = self.io.deadlines.first().map(|(at, _)| *at);
        let wire = self.port.next_due_us().map(|us| Instant::from_micros(us as i64));
        [own, wire, self.io.tcp.next_deadline(now)].into_iter().flatten().min()
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

    fn run_commands(&mut self, turn: &Turn) -> bool {
        let mut busy = false;
        while let Some(command) = self.io.shared.next_command() {
            busy = true;
            self.run_command(command, turn);
        }
        if self.io.shared.take_doorbells_lost() {
            for slot in 0..self.connections.len() {
                self.with(slot, |connection, io| connection.activate(io));
            }
        }
        while let Some(slot) = self.io.shared.next_doorbell() {
            busy = true;
            self.with(slot as usize, |connection, io| connection.activate(io));
        }
        busy
    }

    fn run_command(&mut self, command: CmCommand, turn: &Turn) {
        match command {
            CmCommand::Connect { id, qp, remote, param } => self.connect(id, &qp, remote, &param),
            CmCommand::Listen { id, port, backlog, timeout } => match self.io.tcp.listen(port) {
                Ok(tcp) => self.io.listeners.push(Listener { id, port, tcp, backlog, timeout }),
                Err(_) => {
                    id.announce(None, CmEventKind::ConnectError { error: ConnectionError::NoResources })
                }
            },
            CmCommand::Unlisten { port } => {
                if let Some(at) = self.io.listeners.iter().position(|listener| listener.port == port) {
                    let listener = self.io.listeners.swap_remove(at);
                    self.io.tcp.unlisten(listener.tcp);
                }
            }
            CmCommand::Accept { id, conn, qp, param } => {
                qp.slot.store(conn.slot() as u32, Ordering::Release);
                let taken = self.with_conn(conn, |connection, io| {
                    connection.accept(io, turn, id.clone(), Arc::clone(&qp), &param);
                });
                if !taken {
                    // Its end has been told.
                    qp.enter_error();
                }
            }
            CmCommand::Reject { conn, private_data } => {
                self.with_conn(conn, |connection, io| connection.reject(io, &private_data));
            }
            CmCommand::Disconnect { id } => self.with_id(&id, |connection, io| connection.disconnect(io)),
            CmCommand::Abort { id } => self.with_id(&id, |connection, io| connection.abort(io)),
        }
    }

    fn connect(&mut self, id: CmId, qp: &Arc<QpShared>, remote: std::net::SocketAddr, param: &ConnParam) {
        let now = self.io.now;
        let started = if qp.asked() >= Ask::Terminate {
            Err(ConnectionError::Tcp(CloseReason::Aborted))
        } else {
            self.io.tcp.connect(now, remote, param.local_port).map_err(|error| match error {
                ConnectError::NoRoute(_) => ConnectionError::Tcp(CloseReason::Unreachable),
                ConnectError::NoConnection(_) | ConnectError::NoPort | ConnectError::InUse => {
                    ConnectionError::NoResources
                }
            })
        };
        let made = started.and_then(|conn| {
            qp.slot.store(conn.slot() as u32, Ordering::Release);
            Connection::connecting(conn, id.clone(), Arc::clone(qp), param, now)
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

    // ---- from the wire ----

    fn receive(&mut self, turn: &Turn) -> bool {
        let now_us = self.now_us();
        let mut busy = false;
        for _ in 0..MAX_BURSTS {
            let count = self.port.rx_burst(now_us, &mut self.rx);
            if count == 0 {
                break;
            }
            busy = true;
            let mut frames = std::mem::take(&mut self.rx);
            for frame in frames.drain(..) {
                self.io.tcp.input(self.io.now, frame);
                self.run_events(turn);
            }
            self.rx = frames;
        }
        busy
    }

    fn run_events(&mut self, turn: &Turn) -> bool {
        let mut busy = false;
        while let Some(event) = self.io.tcp.event() {
            busy = true;
            match event {
                Event::Established { conn, listener: None } => {
                    self.with_conn(conn, |connection, io| connection.on_established(io));
                }
                Event::Established { conn, listener: Some(listener) } => self.accepted(conn, listener),
                Event::Received { conn, received } => {
                    self.with_conn(conn, |connection, io| connection.on_received(io, turn, received));
                }
                Event::Writable { conn } => {
                    self.with_conn(conn, |connection, io| connection.activate(io));
                }
                Event::PeerClosed { conn } => {
                    self.with_conn(conn, |connection, io| connection.on_peer_closed(io));
                }
                Event::Closed { conn, reason } => {
                    self.with_conn(conn, |connection, io| connection.on_closed(io, reason));
                }
            }
        }
        busy
    }

    /// A listener's connection is established.
    fn accepted(&mut self, conn: ConnId, tcp: ListenerId) {
        let now = self.io.now;
        let Some(listener) = self.io.listeners.iter().find(|listener| listener.tcp == tcp) else {
            return self.io.tcp.abort(now, conn);
        };
        let (port, backlog, timeout) = (listener.port, listener.backlog, listener.timeout);
        let undecided = self
            .connections
            .iter()
            .flatten()
            .filter(|connection| connection.backlog_of == Some(port))
            .count();
        if undecided >= backlog.max(1) {
            self.io.counters.backlog_full += 1;
            return self.io.tcp.abort(now, conn);
        }
        match Connection::accepted(conn, port, timeout, now) {
            Ok(connection) => self.insert(connection),
            Err(_) => self.io.tcp.abort(now, conn),
        }
    }

    // ---- deadlines ----

    fn run_deadlines(&mut self) -> bool {
        let mut busy = false;
        while let Some(&(at, slot)) = self.io.deadlines.first()
            && at <= self.io.now
        {
            self.io.deadlines.pop_first();
            busy = true;
            self.with(slot as usize, |connection, io| {
                // Outdated, if the connection has another deadline by now.
                if connection.deadline().is_some_and(|deadline| deadline <= io.now) {
                    connection.on_deadline(io);
                }
            });
        }
        busy
    }

    // ---- to the wire ----

    /// Lets queue pairs hand FPDUs to TCP, a bounded turn each: those that have just begun, then the others around.
    fn send(&mut self, turn: &Turn) -> bool {
        let mut left = SEND_OCTETS;
        let mut busy = false;
        for _ in 0..self.io.fresh.len().min(MAX_FRESH) {
            let Some(slot) = self.io.fresh.pop_front() else { break };
            left = left.saturating_sub(self.send_one(slot, turn));
            busy = true;
        }
        // Each at least once, or until the octets are used up; one that cannot go on leaves the ring.
        let mut tries = self.io.bulk.len().max(SEND_OCTETS / self.io.config.turn_octets.max(1));
        while left > 0
            && tries > 0
            && let Some(slot) = self.io.bulk.pop_front()
        {
            left = left.saturating_sub(self.send_one(slot, turn));
            tries -= 1;
            busy = true;
        }
        busy
    }

    /// One connection's turn to send. Returns the octets it handed to TCP.
    fn send_one(&mut self, slot: u32, turn: &Turn) -> usize {
        let before = self.io.counters.tx_fetched_octets;
        self.with(slot as usize, |connection, io| {
            connection.active = false;
            if connection.transmit(io, turn) && !connection.active {
                connection.active = true;
                io.bulk.push_back(slot);
            }
        });
        self.run_events(turn);
        (self.io.counters.tx_fetched_octets - before) as usize
    }

    /// Takes frames from the stack to the port, until there are none or the port's ring is full.
    fn flush(&mut self) -> bool {
        let now_us = self.now_us();
        let mut busy = false;
        for _ in 0..MAX_TX_BURSTS {
            let more = self.io.tcp.transmit(self.io.now, &mut self.tx);
            if self.tx.is_empty() {
                break;
            }
            let sent = self.port.tx_burst(now_us, &mut self.tx);
            busy |= sent > 0;
            if sent == 0 || (!more && self.tx.is_empty()) {
                break;
            }
        }
        busy
    }

    // ---- connections by name ----

    fn now_us(&self) -> u64 {
        // Times are not negative.
        self.io.now.total_micros() as u64
    }

    fn insert(&mut self, connection: Connection) {
        let slot = connection.conn().slot();
        if self.connections.len() <= slot {
            self.connections.resize_with(slot + 1, || None);
        }
        if let Some(deadline) = connection.deadline() {
            self.io.arm(connection.conn(), deadline);
        }
        self.connections[slot] = Some(Box::new(connection));
        self.connection_count += 1;
        self.io.shared.set_connections(self.connection_count);
    }

    /// Runs `action` on the connection in `slot`, if there is one, and removes it when that was its end.
    fn with(&mut self, slot: usize, action: impl FnOnce(&mut Connection, &mut Io)) -> bool {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return false };
        action(connection, &mut self.io);
        if connection.gone {
            self.connections[slot] = None;
            self.connection_count -= 1;
            self.io.shared.set_connections(self.connection_count);
        }
        true
    }

    fn with_conn(&mut self, conn: ConnId, action: impl FnOnce(&mut Connection, &mut Io)) -> bool {
        let slot = conn.slot();
        let alive = self.connections.get(slot).and_then(Option::as_ref).is_some_and(|c| c.conn() == conn);
        alive && self.with(slot, action)
    }

    fn with_id(&mut self, id: &CmId, action: impl FnOnce(&mut Connection, &mut Io)) {
        let slot = self.connections.iter().position(|c| c.as_ref().is_some_and(|c| c.id() == Some(id)));
        if let Some(slot) = slot {
            self.with(slot, action);
        }
    }
}
