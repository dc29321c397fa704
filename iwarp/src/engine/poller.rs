//! One poll of an engine: receives frames, passes events to connections, lets queue pairs send, and sends
//! frames.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use dp::profile::{self, Layer};
use dp::{Burst, Clock, Port, PortBase};
use tcp_lite::facade::EthernetAddress;
use tcp_lite::{Backoff, CloseReason, ConnId, Deadline, Event, Instant, ListenerId, Member, Stack};

use crate::memory::EpochGuard;
use crate::mpa::HeldSlab;
use crate::queues::EventSource;
use crate::stream::{RequestPool, StreamCounters};
use crate::verbs::{AsyncEventKind, AsyncEvents, CmShared, ConnectionError, EngineCounters, EngineHandle};

use super::EngineConfig;
use super::acks::Acks;
use super::carrier::Carrier;
use super::connection::{self, Connection, Retry};
use super::datagrams::{DatagramCounters, Datagrams};
use super::orphans::Orphans;
use super::polled_time::PolledTime;
use super::siblings::Siblings;
use super::state::EngineState;
use super::trace;
use super::tx_scheduler::TxScheduler;

mod commands;
mod invariants;
mod receiving;
mod sending;
mod status;

/// The state of a connection is prefetched when this many other connections have to be handled before it. A
/// larger distance hides more of the memory latency; with a smaller distance, the cache lines are less likely
/// to be evicted before they are used.
const PREFETCH_DISTANCE: usize = 2;

/// The slot number in `deadlines` that stands for [`Orphans`] instead of a connection.
const ORPHANS: u32 = u32::MAX;

/// The state that a poll uses: the engine without its thread and its clock.
pub(super) struct Poller {
    state: EngineState,
    /// Converts the time of the clock, which callers and the port use, to `state.now`.
    time: PolledTime,
    port: Box<dyn Port>,
    carrier: Carrier,
    connections: Vec<Option<Box<Connection>>>,
    connection_count: usize,
    datagrams: Datagrams,
    /// The next deadline of each connection, with the connection's slot: at most one entry per connection.
    /// Deadlines of queue pairs without a peer have the slot [`ORPHANS`].
    deadlines: BTreeSet<(Instant, u32)>,
    /// Second attempts to connect, which begin when all events of TCP are handled.
    retries: Vec<Retry>,
    /// Received frames; `None` while they are handed to TCP.
    rx: Option<Box<Burst>>,
    /// Frames that TCP has generated and the port has not accepted yet.
    tx: Burst,
    /// The backoff while the port accepts no frames.
    port_backoff: Backoff,
    /// The engines of the other queues of the device.
    siblings: Siblings,
    /// The backoff while queue pairs find no free packet buffer.
    mbuf_backoff: Backoff,
}

impl Poller {
    pub(super) fn new(
        handle: Arc<EngineHandle>,
        port: Box<dyn Port>,
        config: EngineConfig,
        async_events: AsyncEvents,
    ) -> Self {
        trace::engine_started(handle.index(), port.info(), &config.stack);
        let mut tcp = Stack::new(config.stack.clone(), port.mempool().clone());
        if let Some(bulk) = port.bulk_mempool() {
            tcp.set_bulk_pool(bulk.clone(), port.info().lent_from);
        }
        tcp.set_passes_large_frames(port.passes_large_frames());
        tcp.set_tso_limits(port.info().tso);
        // By default, there is one slot for each buffer of the pool.
        let buffers = port.mempool().capacity();
        let held = HeldSlab::new(config.held_buffers.unwrap_or(buffers), buffers);
        let state = EngineState {
            now: Instant::ZERO,
            tcp,
            held,
            request_pool: RequestPool::new(config.request_records),
            counters: EngineCounters::default(),
            stream_counters: StreamCounters::default(),
            tx_scheduler: TxScheduler::new(config.stack.limits.connections),
            acks: Acks::new(config.stack.limits.connections),
            orphans: Orphans::default(),
            config,
            async_events: EventSource::new(&async_events, handle.index() as u32),
            handle,
            listeners: Vec::new(),
            listener_changes_reported: 0,
        };
        let (rx, tx) = (Some(Box::default()), Burst::new());
        Self {
            state,
            time: PolledTime::new(),
            carrier: Carrier::new(&*port),
            port,
            connections: Vec::new(),
            connection_count: 0,
            datagrams: Datagrams::default(),
            deadlines: BTreeSet::new(),
            retries: Vec::new(),
            rx,
            tx,
            port_backoff: Backoff::default(),
            siblings: Siblings::default(),
            mbuf_backoff: Backoff::default(),
        }
    }

    /// Adds the engine to the engines on the queues of a device.
    pub(super) fn join(&mut self, member: Member, siblings: Siblings) {
        self.state.tcp.join(member);
        self.siblings = siblings;
    }

    /// Whether engines of other queues have handed over frames.
    pub(super) fn has_handed(&self) -> bool {
        self.state.tcp.has_handed()
    }

    /// Returns the descriptor that becomes readable for each frame. Returns `None` if the port has no
    /// descriptor, or if the engine also receives on the queues of engines that are gone.
    pub(super) fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        if self.siblings.adopted.is_empty() { self.port.poll_fd() } else { None }
    }

    pub(super) fn handle(&self) -> &Arc<EngineHandle> {
        &self.state.handle
    }

    pub(super) fn port(&self) -> &dyn Port {
        &*self.port
    }

    pub(super) fn port_mut(&mut self) -> &mut dyn Port {
        &mut *self.port
    }

    /// Whether a datagram or a frame waits to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.datagrams.is_waiting()
            || self.state.tcp.has_unsent_datagrams()
            || !self.tx.is_empty()
            || self.port.has_unsent()
    }

    pub(super) fn counters(&self) -> EngineCounters {
        let StreamCounters {
            rx_fpdus,
            rx_fpdus_early,
            rx_not_ready,
            rx_uc_not_ready,
            rx_uc_too_long,
            rx_uc_refused,
            tx_fpdus,
            rx_placed_bytes,
            tx_fetched_bytes,
            tx_zero_copy_bytes,
        } = self.state.stream_counters;
        let DatagramCounters { rx_ud, rx_ud_invalid, rx_ud_refused, rx_ud_not_ready, tx_ud, tx_ud_dropped } =
            self.datagrams.counters;
        let mut port = self.port.counters();
        self.siblings.adopted.iter().for_each(|adopted| port += adopted.counters());
        EngineCounters {
            port,
            stack: self.state.tcp.counters(),
            rx_fpdus,
            rx_fpdus_early,
            rx_not_ready,
            rx_uc_not_ready,
            rx_uc_too_long,
            rx_uc_refused,
            tx_fpdus,
            rx_placed_bytes,
            tx_fetched_bytes,
            tx_zero_copy_bytes,
            rx_ud,
            rx_ud_invalid,
            rx_ud_refused,
            rx_ud_not_ready,
            tx_ud,
            tx_ud_dropped,
            request_growths: self.state.request_pool.growths(),
            ..self.state.counters
        }
    }

    pub(super) fn stack(&self) -> &Stack {
        &self.state.tcp
    }

    /// Polls once. At the start of the poll, the clock shows `clock` and the cycle counter shows `start`.
    /// Returns whether there was any work.
    pub(super) fn poll(&mut self, clock: Instant, start: u64, guard: &EpochGuard<'_>) -> bool {
        let _engine = profile::scope(Layer::Engine);
        let now = self.set_time(clock);
        self.state.handle.set_now_us(self.state.now_us());
        // Only connections with InfiniBand's semantics owe acknowledgements (`acks.rs`): TCP acknowledges all
        // other bytes by itself.
        let owed = self.state.acks.due(now);
        let limits = self.state.acks.due_limits(now);
        let mut busy = self.carrier.is_due(now) && self.step(guard, Self::poll_link).1;
        busy |= self.serve_users(guard);
        busy |= self.receive_bursts(guard);
        busy |= self.step(guard, |poller| profile::within(Layer::TcpOut, || poller.state.tcp.poll(now))).1;
        busy |= self.run_deadlines(guard);
        self.begin_retries(guard);
        self.report_listeners();
        let (owed, limits) = match self.state.config.acknowledge_at_once {
            true => (self.state.acks.owed(), self.state.acks.owed_limits()),
            false => (owed, limits),
        };
        if limits > 0 {
            self.tell_limits(limits);
        }
        busy |= self.fill_tcp(guard);
        if self.datagrams.is_waiting() {
            busy |= self.send_datagrams(guard);
        }
        if owed > 0 {
            self.acknowledge(owed);
        }
        // While TCP sends, it may give up connections. This causes events, so the call is a step.
        let (sent, had_events) = self.step(guard, Self::send_frames);
        busy |= sent | had_events;
        self.state.counters.polls += 1;
        if busy {
            self.state.counters.busy_polls += 1;
            self.state.counters.busy_cycles += Clock::cycles().wrapping_sub(start);
        }
        busy
    }

    /// Sets the engine's time from `clock`.
    #[inline]
    fn set_time(&mut self, clock: Instant) -> Instant {
        let (now, is_pause) = self.time.advance(clock);
        self.state.now = if is_pause { self.end_pause(clock) } else { now };
        self.state.now
    }

    /// Returns the clock's time in this poll, for the port. This time includes the standstills of this
    /// engine, since other users of the port's wire do not stand still with the engine.
    fn clock_us(&self) -> u64 {
        // The time is not negative.
        self.time.clock_at(self.state.now).total_micros() as u64
    }

    /// Called when no thread has polled for a long time.
    #[cold]
    fn end_pause(&mut self, clock: Instant) -> Instant {
        let due = self.next_due(self.state.now);
        self.time.end_pause(clock, due)
    }

    /// Returns the time at which [`poll`](Self::poll) next has work, as the clock shows it.
    pub(super) fn next_deadline(&mut self, clock: Instant) -> Option<Instant> {
        let due = self.next_due(self.time.of(clock))?;
        Some(self.time.clock_at(due))
    }

    /// As [`next_deadline`](Self::next_deadline), in the engine's time.
    fn next_due(&mut self, now: Instant) -> Option<Instant> {
        let may_send = self.state.tx_scheduler.waiting() != (0, 0) && !self.mbuf_backoff.is_refused();
        if may_send || !self.tx.is_empty() && !self.port_backoff.is_refused() || !self.retries.is_empty() {
            return Some(now);
        }
        if self.state.acks.owed() + self.state.acks.owed_limits() > 0 || self.state.tcp.has_handed() {
            return Some(now);
        }
        let again =
            [self.port_backoff.next_try(now), self.mbuf_backoff.next_try(now)].into_iter().flatten().min();
        let own = self.deadlines.first().map(|(at, _)| *at);
        let datagrams = self.datagrams.next_deadline(now);
        let link = self.carrier.next_deadline();
        let wire = self.port.next_due_us().map(|us| self.time.of(Instant::from_micros(us as i64)));
        // While the port accepts no frames, TCP generates no frames, so only TCP's timers matter.
        let tcp = match self.port_backoff.is_refused() {
            true => self.state.tcp.next_timer(now),
            false => self.state.tcp.next_deadline(now),
        };
        [own, datagrams, wire, link, again, tcp].into_iter().flatten().min()
    }

    /// Ends the engine: refuses the queued commands, resets all connections and sends the resets, and fails
    /// all requests and connects that would be retried. If the device has other queues, hands the port over
    /// to an engine of these queues that still runs.
    pub(super) fn shut_down(&mut self, clock: Instant) {
        self.set_time(clock);
        self.state.handle.stop();
        trace::engine_ended(self.state.handle.index(), self.connection_count);
        while let Some(command) = self.state.handle.next_command() {
            command.refuse();
        }
        for slot in 0..self.connections.len() {
            self.with(slot, |connection, state| {
                connection.shut_down(state);
            });
        }
        self.state.orphans.end_all();
        self.datagrams.end_all();
        for retry in std::mem::take(&mut self.retries) {
            retry.id.not_connected(&retry.qp, ConnectionError::Tcp(CloseReason::Aborted));
        }
        self.send_frames();
        if self.siblings.exist() {
            let in_its_place = PortBase::new(self.port.info().clone(), self.port.mempool().clone());
            self.siblings.leave(std::mem::replace(&mut self.port, Box::new(in_its_place)));
        }
    }

    // ---- the port ----

    /// Passes the multicast groups of the stack to the port, if they have changed.
    #[inline]
    fn tell_groups(&mut self) {
        if self.datagrams.take_new_groups() {
            let groups: Vec<IpAddr> = self.state.tcp.groups().collect();
            if let Err(error) = self.port.set_groups(&groups) {
                trace::groups_refused(&self.state, groups.len(), &error);
            }
        }
    }

    #[inline(never)]
    fn poll_link(&mut self) {
        let now = self.state.now;
        // A received message may have ended the last member of a group.
        self.tell_groups();
        while let Some(mac) = self.port.next_departed() {
            self.state.tcp.end_neighbor(now, EthernetAddress(mac));
        }
        let change = self.carrier.look(now, &mut *self.port);
        self.state.tcp.set_passes_large_frames(self.port.passes_large_frames());
        let Some(state) = change else { return };
        trace::link_changed(&self.state, state);
        if let Some(kind) = self.carrier.tell(state, now, &mut self.state.tcp) {
            self.state.push_async_event(kind);
        }
    }

    // ---- steps, and events of the stack ----

    /// Runs `act`, then handles the resulting events of TCP. Returns the result of `act`, and whether there
    /// were events. Code that may make TCP queue an event runs in a step, except at the engine's end. So no
    /// event is left when a step begins. The user of an ended connection receives the event of the end before
    /// another connection occupies the slot.
    #[inline]
    fn step<T>(&mut self, guard: &EpochGuard<'_>, act: impl FnOnce(&mut Self) -> T) -> (T, bool) {
        debug_assert!(!self.state.tcp.has_events(), "TCP was called outside of a step");
        let result = act(self);
        (result, self.state.tcp.has_events() && self.run_events(guard))
    }

    /// Handles the queued events of TCP, and then completes the requests whose bytes the peer has
    /// acknowledged. Returns whether there were events.
    fn run_events(&mut self, guard: &EpochGuard<'_>) -> bool {
        let mut busy = false;
        while let Some(event) = self.state.tcp.event() {
            busy = true;
            match event {
                Event::Established { conn, listener: None } => {
                    self.with_conn(conn, |connection, state| {
                        connection.on(state, connection::Event::Established)
                    });
                }
                Event::Established { conn, listener: Some(listener) } => self.accepted(conn, listener),
                Event::Received { conn, received } => {
                    self.with_conn(conn, |connection, state| connection.on_received(state, guard, received));
                }
                Event::Evict { conn, bytes } => {
                    self.with_conn(conn, |connection, state| {
                        connection.on(state, connection::Event::Evict { bytes })
                    });
                }
                Event::Writable { conn } => {
                    self.with_conn(conn, |connection, state| connection.schedule_tx(state));
                }
                Event::Acknowledged { conn } => {
                    self.with_conn(conn, |connection, state| connection.on_acknowledged(state));
                }
                Event::PeerClosed { conn } => {
                    self.with_conn(conn, |connection, state| {
                        connection.on(state, connection::Event::PeerClosed)
                    });
                }
                Event::Closed { conn, reason } => {
                    self.with_conn(conn, |connection, state| connection.on_closed(state, reason));
                }
                Event::AddressConflict { address, mac, lost } => {
                    trace::address_conflict(&self.state, address, mac, lost);
                    self.state.push_async_event(AsyncEventKind::AddressConflict);
                }
                Event::Datagram => self.receive_datagram(guard),
            }
        }
        while let Some(conn) = self.state.acks.next_arrived() {
            self.with_conn(conn, |connection, state| connection.complete_acknowledged(state));
        }
        busy
    }

    /// Sends the acknowledgements that `owed` connections owe, unless TCP has acknowledged the bytes by now.
    #[cold]
    fn acknowledge(&mut self, owed: usize) {
        let Self { state: EngineState { acks, tcp, now, .. }, connections, .. } = self;
        for conn in acks.take_owed(owed) {
            tcp.acknowledge_early(*now, conn);
            if let Some(Some(connection)) = connections.get_mut(conn.slot())
                && connection.conn() == conn
            {
                connection.on_acknowledging();
            }
        }
    }

    /// Makes `count` connections send their limit to the peer: the MSN up to which the peer's messages find a
    /// receive request.
    #[cold]
    fn tell_limits(&mut self, count: usize) {
        let Self { state, connections, .. } = self;
        for _ in 0..count {
            let Some(conn) = state.acks.take_limit() else { return };
            if let Some(Some(connection)) = connections.get_mut(conn.slot())
                && connection.conn() == conn
            {
                connection.tell_limit(state);
            }
        }
    }

    /// Handles a connection that TCP has established for the listener `tcp`: adds the connection, or resets
    /// it if it is not admitted.
    fn accepted(&mut self, conn: ConnId, tcp: ListenerId) {
        let now = self.state.now;
        let listener = self.state.listeners.iter_mut().find(|listener| listener.tcp == tcp);
        let Some((listener, info)) = listener.zip(self.state.tcp.info(conn)) else {
            return self.state.tcp.abort(now, conn);
        };
        let Some(admitted) = listener.admit(now, info.remote.ip()) else {
            self.state.counters.connections_refused += 1;
            trace::tcp_refused(&self.state, conn);
            return self.state.tcp.abort(now, conn);
        };
        match Connection::accepted(conn, admitted, &mut self.state) {
            Some(connection) => {
                trace::tcp_established(&self.state, conn);
                self.insert(connection);
                self.with_conn(conn, |connection, state| connection.on(state, connection::Event::Accepted));
            }
            None => self.state.tcp.abort(now, conn),
        }
    }

    /// Updates the listeners' statistics of half-open connections and refused SYNs if the stack's counts have
    /// changed.
    fn report_listeners(&mut self) {
        let changes = self.state.tcp.listener_changes();
        if changes == self.state.listener_changes_reported {
            return;
        }
        self.report_changed_listeners(changes);
    }

    #[cold]
    fn report_changed_listeners(&mut self, changes: u64) {
        self.state.listener_changes_reported = changes;
        let EngineState { listeners, tcp, .. } = &mut self.state;
        for listener in listeners {
            if let Some(now) = tcp.listener_counters(listener.tcp) {
                listener.report(now);
            }
        }
    }

    // ---- deadlines ----

    #[inline]
    fn run_deadlines(&mut self, guard: &EpochGuard<'_>) -> bool {
        let is_due = self.deadlines.first().is_some_and(|(at, _)| *at <= self.state.now);
        if is_due {
            self.run_due(guard);
        }
        is_due
    }

    /// Runs the deadlines that are due.
    #[inline(never)]
    fn run_due(&mut self, guard: &EpochGuard<'_>) {
        while let Some(&(at, slot)) = self.deadlines.first()
            && at <= self.state.now
        {
            self.deadlines.pop_first();
            if slot == ORPHANS {
                self.state.orphans.end_due(self.state.now);
                continue;
            }
            self.step(guard, |poller| {
                poller.with(slot as usize, |connection, state| {
                    connection.scheduled = Deadline::NONE;
                    connection.on_time(state);
                })
            });
        }
    }

    // ---- connections by slot ----

    /// Adds a connection. The connection's slot in `connections` is free, since [`step`](Self::step) handles
    /// the end of the old connection before TCP can reuse the slot.
    fn insert(&mut self, connection: Connection) {
        let slot = connection.conn().slot();
        if self.connections.len() <= slot {
            self.connections.resize_with(slot + 1, || None);
        }
        debug_assert!(self.connections[slot].is_none(), "slot {slot} still has a connection");
        self.connections[slot] = Some(Box::new(connection));
        self.connection_count += 1;
        self.state.handle.set_connections(self.connection_count);
        // The user may have posted requests before the slot was known, and these requests rang no doorbell.
        self.with(slot, |connection, state| connection.schedule_tx(state));
    }

    /// Prefetches the state of the connection in `slot`. With many connections, this state is usually not in
    /// the cache.
    fn prefetch(&self, slot: Option<usize>) {
        let Some(slot) = slot else { return };
        if let Some(connection) = self.connection(slot) {
            dp::prefetch(connection);
            self.state.tcp.prefetch(slot);
        }
    }

    fn connection(&self, slot: usize) -> Option<&Connection> {
        self.connections.get(slot)?.as_deref()
    }

    /// Runs `action` on the connection in `slot`, if the slot is in use. Then [records](Self::record) the
    /// effects. Returns whether the slot was in use.
    fn with(&mut self, slot: usize, action: impl FnOnce(&mut Connection, &mut EngineState)) -> bool {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return false };
        action(connection, &mut self.state);
        self.record(slot);
        true
    }

    /// Records the effects of a call of the connection in `slot`: the bytes that the connection holds, and
    /// its deadline. Removes a connection that has ended.
    #[inline(never)]
    fn record(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot).and_then(Option::as_mut) else { return };
        connection.report_pinned(&mut self.state);
        let due = if connection.closed { Deadline::NONE } else { connection.next_deadline() };
        if due != connection.scheduled {
            if let Some(old) = std::mem::replace(&mut connection.scheduled, due).get() {
                self.deadlines.remove(&(old, slot as u32));
            }
            if let Some(due) = due.get() {
                self.deadlines.insert((due, slot as u32));
            }
        }
        if connection.closed {
            self.deadlines.extend(self.state.orphans.take_added().map(|at| (at, ORPHANS)));
            let retry = self.connections[slot].take().and_then(|connection| connection.take_retry());
            self.connection_count -= 1;
            self.state.handle.set_connections(self.connection_count);
            self.retries.extend(retry.map(|retry| *retry));
        }
    }

    fn with_conn(&mut self, conn: ConnId, action: impl FnOnce(&mut Connection, &mut EngineState)) -> bool {
        let slot = conn.slot();
        let alive = self.connection(slot).is_some_and(|connection| connection.conn() == conn);
        alive && self.with(slot, action)
    }

    fn with_id(&mut self, id: &CmShared, action: impl FnOnce(&mut Connection, &mut EngineState)) -> bool {
        id.conn().is_some_and(|conn| self.with_conn(conn, action))
    }
}
