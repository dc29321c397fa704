//! The stack. An engine passes received frames to its stack. The stack returns events, and frames to send.
//!
//! | file in `stack/` | what |
//! |---|---|
//! | this file | the calls of users |
//! | `receive.rs` | handles any received frame, and finds its connection |
//! | `prediction.rs` | the entry point of received frames, and the fast path for usual frames |
//! | `sender.rs` | queues segments on a connection |
//! | `transmit.rs` | chooses the connection to serve next, and builds the frame of any segment |
//! | `usual.rs`, `headers.rs` | builds the frames of usual segments, and the headers that these frames share |
//! | `connections.rs` | the slots of connections, and their places in the ready queue |
//! | `arming.rs` | when timers are set |
//! | `parts.rs` | the parts of the stack that a control block uses: `split`, `ctx` |
//! | `ahead.rs`, `gro.rs` | prefetches for a burst, and merges its segments |
//! | `opening.rs`, `errors.rs` | active opens, and their errors |
//! | `acknowledgements.rs` | calls of users that wait for acknowledgements, or decide when ours are sent |
//! | `slow.rs` | ARP, neighbour discovery, ICMP, fragments |
//! | `udp.rs` | UDP datagrams and multicast groups |
//! | `steering.rs` | calls of a stack that is one of several stacks of a host |
//! | `departure.rs`, `link.rs` | neighbours that are gone, the link of the port |
//! | `usage.rs`, `trace.rs`, `invariants.rs` | resources in use, events of `tracing`, invariants |

mod acknowledgements;
mod ahead;
mod arming;
mod connections;
mod departure;
mod errors;
mod gro;
mod headers;
mod invariants;
mod link;
mod opening;
mod parts;
mod prediction;
mod receive;
mod sender;
mod slow;
mod steering;
#[cfg(test)]
mod tests;
mod trace;
mod transmit;
mod udp;
mod udp_state;
mod usage;
mod usual;

use std::collections::VecDeque;
use std::iter::Peekable;
use std::net::IpAddr;
use std::ops::Range;

use dp::{BURST, Burst, Mbuf, Mempool, Offloads, TsoLimits};

pub use self::ahead::Ahead;
pub use self::errors::ConnectError;
pub use self::sender::{SegmentBuf, Sender};
pub use self::usage::StackUsage;
pub use crate::counters::StackCounters;
pub use crate::id::{ConnId, ListenerId};
pub use crate::listener::ListenError;

use self::connections::{Conn, Connections};
use self::transmit::Answer;
use self::udp_state::Udp;
use crate::address_conflict::{ADDRESSES, ConflictDetection};
use crate::event::EventQueue;
use crate::facade::IpCidr;
use crate::frame::Framing;
use crate::listener::{ListenConfig, ListenerCounters, Listeners};
use crate::neighbor::{KnownNeighbors, Neighbors};
use crate::reassembly::Reassembly;
use crate::route::Routes;
use crate::secrets::Secrets;
use crate::slow_path::SlowPath;
use crate::steering::Member;
use crate::syn_cookie::SynCookies;
use crate::tcp::{BulkPool, Ctx, MAX_EVICTION_REQUESTS, OutOfOrderSlab, SearchSlab, SegmentSlab, Tcb};
use crate::{Backoff, ConnInfo, Event, Instant, Keepalive, Received, SendError, StackConfig};

/// Maximum number of queued answers to segments of no connection: SYN-ACKs with a cookie, and RSTs. The limit
/// bounds the memory for such answers. Further answers are dropped, as if the network had lost them. The
/// limit is four bursts, because an engine receives up to four bursts before it transmits. If thousands of
/// peers connect at once, each SYN beyond the backlog should get an answer, because its sender would try
/// again only after a second.
const PENDING_ANSWERS: usize = 4 * BURST;

/// Number of event slots in addition to the slots of the connections. Each `Evict` that can wait at the same
/// time has a slot, and there is one more slot for the `Evict` of a connection that has just begun to hold
/// bytes. The `AddressConflict` of each address that we lose has a slot as well.
const SPARE_EVENTS: usize = MAX_EVICTION_REQUESTS + 1 + ADDRESSES;

/// A host on one port.
///
/// A caller makes these calls in each poll, in this order: [`input`](Self::input) for every received frame,
/// or [`input_next`](Self::input_next) while frames are left; [`poll`](Self::poll) once;
/// [`sender`](Self::sender) for each connection with data to send; [`transmit`](Self::transmit) until it
/// returns `false`. A caller with many connections calls [`look_ahead`](Self::look_ahead) before
/// `input_next`. After any of these calls, the caller may call [`event`](Self::event) until it returns
/// `None`. [`next_deadline`](Self::next_deadline) returns the time of the next poll. The stack does nothing
/// between polls.
pub struct Stack {
    config: StackConfig,
    framing: Framing,
    routes: Routes,
    secrets: Secrets,
    syn_cookies: SynCookies,
    pool: Mempool,
    bulk_pool: Option<BulkPool>,
    connections: Connections,
    listeners: Listeners,
    neighbors: Neighbors,
    conflicts: ConflictDetection,
    /// True if the port has a link, according to the last call of [`Stack::set_link`].
    link_up: bool,
    /// True if the port was removed, so that each later poll ends the connections that exist.
    port_gone: bool,
    /// The time at which the connections end, unless the link comes up before; `None` if the link is up, or
    /// if the connections have ended because of it.
    link_deadline: Option<Instant>,
    slow_path: SlowPath,
    reassembly: Reassembly,
    /// Buffer in which a packet that reassembly or smoltcp has returned is passed on.
    scratch: Vec<u8>,
    answers: VecDeque<Answer>,
    /// Ports, groups and datagrams; `None` until they are first used.
    udp: Option<Box<Udp>>,
    /// The times at which the stack tries again to send, while the pool has no buffer.
    pool_retry: Backoff,
    segments: SegmentSlab,
    out_of_order: OutOfOrderSlab,
    searches: SearchSlab,
    events: EventQueue,
    counters: StackCounters,
    /// The state that this stack shares with the other stacks of its host; `None` if it is the only stack.
    member: Option<Box<Member>>,
    /// The latest time that a caller passed. Calls that start no timer take no time argument and use this
    /// time.
    now: Instant,
}

impl Stack {
    /// Creates a stack that allocates its buffers from `pool`. Other memory is allocated in this call, or
    /// later when connections and other objects are created, up to `config.limits`.
    ///
    /// The payload of a segment has to fit into one buffer, so if `pool`'s buffers are smaller than the MTU,
    /// segments are smaller as well. If there are IPv6 addresses but no link-local address, and fewer than
    /// eight addresses, the stack adds the link-local address that follows from the Ethernet address.
    ///
    /// # Panics
    /// If an address in `config` is not a unicast address.
    pub fn new(config: StackConfig, pool: Mempool) -> Self {
        let secrets = Secrets::new(config.seed);
        let routes = Routes::new(config.mac, config.addresses.clone(), config.gateways.clone());
        let limits = config.limits;
        Self {
            framing: Framing::new(&config),
            connections: Connections::new(limits.connections, secrets.table_state()),
            listeners: Listeners::new(limits.listeners, limits.backlog, secrets.table_state()),
            neighbors: Neighbors::new(
                limits.neighbors,
                KnownNeighbors::new(&config, &routes),
                secrets.table_state(),
            ),
            conflicts: ConflictDetection::new(
                config.address_probing,
                routes.addresses().iter().map(IpCidr::address),
                secrets.probe_wait(),
            ),
            link_up: true,
            port_gone: false,
            link_deadline: None,
            slow_path: SlowPath::new(&config, &routes, pool.clone(), secrets.slow_path_seed),
            reassembly: Reassembly::default(),
            scratch: Vec::new(),
            answers: VecDeque::with_capacity(PENDING_ANSWERS),
            udp: None,
            pool_retry: Backoff::default(),
            // Unacknowledged segments use at most half of the buffers, because received acknowledgements need
            // buffers as well.
            segments: SegmentSlab::new(limits.tx_segments, (pool.capacity() / 2).max(1)),
            out_of_order: OutOfOrderSlab::new(limits.connections, limits.out_of_order_bytes, &pool),
            searches: SearchSlab::new(limits.path_mtu_searches.min(pool.capacity() / 16)),
            events: EventQueue::with_capacity(limits.events + SPARE_EVENTS),
            counters: StackCounters::default(),
            member: None,
            syn_cookies: SynCookies::new(secrets.cookie),
            now: Instant::ZERO,
            config,
            routes,
            secrets,
            pool,
            bulk_pool: None,
        }
    }

    /// Sets a pool of large buffers for connections that have much to send. Several segments share a large
    /// buffer, so a train consists of few views. Connections with few bytes to send use the stack's own pool.
    /// While `pool` has no free buffer, all connections use the stack's own pool. If the port does not copy
    /// these buffers ([`PortInfo::lent_from`](dp::PortInfo::lent_from)), `long_message` is the minimum number
    /// of bytes of a message that is written to a large buffer even if nothing else is queued.
    pub fn set_bulk_pool(&mut self, pool: Mempool, long_message: Option<usize>) {
        self.bulk_pool = Some(BulkPool { pool, long_message });
    }

    /// Sets the limits of the trains of segments that the port can cut. Without this call, the stack assumes
    /// that the port can cut any train. Segments that are too short or too long for the port are sent in
    /// separate frames.
    pub fn set_tso_limits(&mut self, limits: TsoLimits) {
        self.framing.tso = limits;
    }

    /// Sets whether the port forwards trains of segments uncut although [`StackConfig::offloads`] has no
    /// [`TX_TSO`](dp::Offloads::TX_TSO). The default is `false`.
    pub fn set_passes_large_frames(&mut self, passes: bool) {
        let cuts = self.config.offloads.contains(Offloads::TX_TSO);
        self.framing.offloads.set(Offloads::TX_TSO, cuts || passes);
    }

    /// Handles one received frame.
    pub fn input(&mut self, now: Instant, frame: Mbuf) {
        self.advance(now);
        self.input_frame(self.now, frame, &mut std::iter::empty().peekable());
    }

    /// Handles the next frame of a received burst, and also the following frames that continue the same
    /// stream in order. The result is the same as with a separate call for each frame, except that one event
    /// has all payloads.
    pub fn input_next(&mut self, now: Instant, frames: &mut Peekable<impl Iterator<Item = Mbuf>>) {
        self.advance(now);
        if let Some(frame) = frames.next() {
            self.input_frame(self.now, frame, frames);
        }
    }

    /// Runs the timers of connections, neighbours, addresses, datagrams and groups that are due, and the slow
    /// path. If the user does not call [`next_deadline`](Self::next_deadline) between polls, a retransmission
    /// or an acknowledgement may be up to 100 us late.
    pub fn poll(&mut self, now: Instant) {
        if now > self.now {
            self.arm_before(now);
        }
        self.advance(now);
        let now = self.now;
        while let Some(slot) = self.connections.wheel.expired(now) {
            if self.connections.is_unarmed(slot) {
                // A segment that arrived may have changed the deadline of the timer that is due.
                self.arm_timers();
                continue;
            }
            let unanswered = self.with(now, slot, |tcb, ctx| tcb.on_timer(ctx));
            if unanswered == Some(true)
                && let Some(conn) = self.connections.get(slot)
            {
                trace::retransmission_timeout(conn, &self.config.tcp);
                self.neighbors.doubt(now, &conn.next_hop);
            }
            // `transmit` sets the timers as well, but the user does not call it while the port accepts no
            // frames.
            self.arm_timers();
        }
        let (moved, mut has_news) = (self.neighbors.poll(now), self.conflicts.poll(now));
        if self.has_news_of_host() {
            has_news |= self.follow_leader(now);
        }
        if moved || has_news {
            self.wake_waiting(now);
        }
        if self.udp.is_some() {
            self.poll_udp(now);
        }
        self.slow_path.poll(now);
        if self.link_deadline.is_some_and(|at| at <= now) {
            self.end_without_link(now);
        }
    }

    /// Whether there are events that the user has not taken.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Removes and returns the oldest event if it is an [`Event::Received`] that was raised while no other
    /// event waited. If the user calls this function after each call of [`input_next`](Self::input_next),
    /// received bytes cost less time than with [`event`](Self::event), which returns all events.
    #[inline]
    pub fn received(&mut self) -> Option<(ConnId, Received)> {
        self.events.pop_received()
    }

    /// Removes and returns the oldest event; `None` if no event waits.
    pub fn event(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        match event {
            Some(Event::Evict { .. }) => self.out_of_order.on_eviction_request_taken(),
            Some(Event::Writable { conn } | Event::Acknowledged { conn }) => {
                let conn = self.connections.live(conn).and_then(|slot| self.connections.get_mut(slot));
                if let (Some(event), Some((_, conn))) = (&event, conn) {
                    conn.tcb.on_event_taken(event);
                }
            }
            _ => {}
        }
        event
    }

    /// Fills the free places of `out` with frames to send. Connections are served round robin. Returns
    /// whether more frames could be sent now. Frames that wait for packet buffers do not count.
    ///
    /// Frames in `out` count as sent, and their timers start, even if the port accepts the frames late. Do
    /// not call this function while the port accepts no frames: the timers would expire, and retransmissions
    /// would be queued behind the segments that they repeat.
    pub fn transmit(&mut self, now: Instant, out: &mut Burst) -> bool {
        self.advance(now);
        let more = match self.has_to_transmit() {
            true => self.fill(self.now, out),
            false => {
                // No frame waits for a buffer.
                self.pool_retry.succeeded();
                false
            }
        };
        self.arm_after_turn();
        more
    }

    /// The next time at which [`poll`](Self::poll) or [`transmit`](Self::transmit) has something to do;
    /// `None` if both functions have nothing to do until a frame arrives or the user calls the stack. The
    /// returned time may be early, but is never late.
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        if !self.has_to_transmit() {
            return self.next_timer(now);
        }
        // No event reports that buffers are free again, so transmission is retried with a backoff.
        let Some(next_try) = self.pool_retry.next_try(now) else { return Some(now) };
        self.next_timer(now).map_or(Some(next_try), |at| Some(at.min(next_try)))
    }

    /// Like [`next_deadline`](Self::next_deadline), but only for [`poll`](Self::poll). Use this function
    /// while the port accepts no frames and [`transmit`](Self::transmit) is therefore not called.
    pub fn next_timer(&mut self, now: Instant) -> Option<Instant> {
        self.arm_timers();
        // The caller may sleep now, so the buffer that is kept for the next page is freed.
        self.segments.free_spare_page();
        if self.slow_path.is_dirty() {
            return Some(now);
        }
        let due = [
            self.connections.wheel.next_deadline(),
            self.neighbors.next_deadline(),
            self.conflicts.next_deadline(),
            self.link_deadline.filter(|_| self.connections.len() > 0),
            self.next_udp_deadline(),
        ];
        due.into_iter().flatten().min()
    }

    /// Accepts connections to `port` on every address.
    ///
    /// # Errors
    /// [`ListenError::InUse`] if the port has a listener already. [`ListenError::NoListener`] if there are
    /// `Limits::listeners` listeners already.
    pub fn listen(&mut self, port: u16) -> Result<ListenerId, ListenError> {
        self.listen_with(port, ListenConfig::default())
    }

    /// Like [`listen`](Self::listen), with a configuration for this listener.
    ///
    /// # Errors
    /// The errors of [`listen`](Self::listen), under the same conditions.
    pub fn listen_with(&mut self, port: u16, config: ListenConfig) -> Result<ListenerId, ListenError> {
        self.listeners.add(port, config)
    }

    /// The numbers of SYNs that a listener refused, or that arrived while the listener was full, and the
    /// number of its half-open connections; `None` if the id is not valid.
    pub fn listener_counters(&self, listener: ListenerId) -> Option<(ListenerCounters, usize)> {
        self.listeners.counters(listener)
    }

    /// Drops SYNs and ACKs of SYN cookies from `address` to a listener until the time `until`. Use this call
    /// for addresses whose connections fail, because such a connection takes as much time as the processing
    /// of many segments. The call does not change existing connections. If the id is not valid, the call does
    /// nothing.
    pub fn block_address(&mut self, now: Instant, listener: ListenerId, address: IpAddr, until: Instant) {
        self.advance(now);
        self.listeners.block_address(self.now, listener, address.into(), until);
    }

    /// A number that increases whenever the [`listener_counters`](Self::listener_counters) of any listener
    /// change.
    pub fn listener_changes(&self) -> u64 {
        self.listeners.changes()
    }

    /// Closes the listener and drops its half-open connections. The listener's established connections
    /// continue.
    pub fn unlisten(&mut self, listener: ListenerId) {
        if !self.listeners.remove(listener) {
            return;
        }
        let half_open = |conn: &Conn| conn.half_open && conn.listener == Some(listener);
        let dropped: Vec<u32> =
            self.connections.occupied().filter(|(_, conn)| half_open(conn)).map(|(slot, _)| slot).collect();
        for slot in dropped {
            self.forget(self.now, slot);
        }
    }

    /// Sends FIN after all queued segments. The connection can still receive. A connection in SYN-SENT ends
    /// at once. Does nothing if the id is not valid.
    pub fn close(&mut self, now: Instant, conn: ConnId) {
        self.advance(now);
        self.with_live(conn, |tcb, ctx| tcb.close(ctx));
    }

    /// Drops all queued segments, and sends RST if the peer may know of the connection.
    /// `Event::Closed(Aborted)` follows. Does nothing if the id is not valid.
    pub fn abort(&mut self, now: Instant, conn: ConnId) {
        self.advance(now);
        self.with_live(conn, |tcb, ctx| tcb.abort(ctx));
    }

    /// Returns a handle to queue segments on `conn`: see [`Sender::segment`].
    ///
    /// # Errors
    /// [`SendError::Closed`] if the id is not valid.
    #[inline]
    pub fn sender(&mut self, now: Instant, conn: ConnId) -> Result<Sender<'_>, SendError> {
        self.advance(now);
        let (parts, connections, _) = self.split(self.now);
        let found = connections.find_live(conn).ok_or(SendError::Closed)?;
        let framing = parts.framing;
        let ctx = parts.ctx(conn, found.conn.listener);
        Ok(Sender { ctx, framing, found, pushed: false, opened: false })
    }

    /// Cuts `bytes` into segments of up to EMSS bytes and queues the segments that fit. Returns the number of
    /// bytes that were queued. This call is for plain streams. For FPDUs, use [`sender`](Self::sender).
    ///
    /// # Errors
    /// The errors of [`Sender::segment`], if no byte was queued.
    pub fn send(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) -> Result<usize, SendError> {
        self.advance(now);
        let sent = self.with_live(conn, |tcb, ctx| {
            let mut rest = bytes;
            while !rest.is_empty() {
                let (page, emss) = match tcb.page_for_segment(ctx, || rest.len()) {
                    Ok(place) => place,
                    Err(error) if rest.len() == bytes.len() => return Err(error),
                    Err(_) => break,
                };
                let (now, later) = rest.split_at(rest.len().min(emss));
                ctx.segments.room(page)[..now.len()].copy_from_slice(now);
                tcb.push(ctx, now.len(), None);
                rest = later;
            }
            tcb.on_pushed(ctx.now);
            Ok(bytes.len() - rest.len())
        });
        sent.unwrap_or(Err(SendError::Closed))
    }

    /// Tells the stack that the user no longer holds `bytes` bytes. These bytes arrived ahead of the frontier
    /// (the next expected byte), or were reported with [`hold`](Self::hold). The user has placed these bytes,
    /// or has consumed them after the frontier passed them. The limits of out-of-order bytes count these
    /// bytes until they are released.
    #[inline]
    pub fn release(&mut self, conn: ConnId, bytes: usize) {
        // In the usual case, the user holds no bytes and our announced window is large enough, so the call
        // changes nothing.
        if bytes == 0
            && let Some(live) = self.connections.live(conn).and_then(|slot| self.connections.get(slot))
            && live.tcb.has_window(&self.config.tcp)
        {
            return;
        }
        self.release_any(conn, bytes);
    }

    /// The general path of [`release`](Self::release).
    #[inline(never)]
    fn release_any(&mut self, conn: ConnId, bytes: usize) {
        self.with_live(conn, |tcb, ctx| tcb.release(ctx, bytes));
    }

    /// Prefetches the state of the connection in `slot`, which is about to send or to receive.
    pub fn prefetch(&self, slot: usize) {
        self.connections.prefetch(slot);
    }

    /// Tells the stack that the user holds `bytes` bytes that it received in order. The receive window is
    /// smaller by `bytes` until the user releases these bytes ([`release`](Self::release)). This call is for
    /// readers of plain streams that may be slower than their peer.
    pub fn hold(&mut self, conn: ConnId, bytes: usize) {
        self.with_live(conn, |tcb, ctx| tcb.hold(ctx, bytes));
    }

    /// Gives up bytes that the user received ahead of the frontier and did not [`release`](Self::release): at
    /// most 16 ranges of stream offsets, which are sorted and do not overlap. From now on these bytes count
    /// as not received, and may arrive again. Returns `false` and gives up no bytes if some of these bytes
    /// are in order by now (then all bytes before them are in order as well), if there are more than 16
    /// ranges, or if too many ranges would be left. If the id is not valid, does nothing and returns `true`.
    pub fn evict(&mut self, conn: ConnId, stretches: &[Range<u64>]) -> bool {
        self.with_live(conn, |tcb, ctx| tcb.evict(ctx, stretches)).unwrap_or(true)
    }

    /// Tells the stack how many bytes of packet buffers the user keeps in total for bytes ahead of the
    /// frontier. This number may be much larger than the number of held bytes, because a small segment may
    /// occupy a whole buffer.
    pub fn pin(&mut self, conn: ConnId, bytes: usize) {
        self.with_live(conn, |tcb, ctx| tcb.pin(ctx, bytes));
    }

    /// Sets the keepalive of one connection; `None` turns the keepalive off. Without this call, the keepalive
    /// is that of [`TcpConfig`](crate::TcpConfig).
    pub fn set_keepalive(&mut self, now: Instant, conn: ConnId, keepalive: Option<Keepalive>) {
        self.advance(now);
        self.with_live(conn, |tcb, ctx| tcb.set_keepalive(ctx, keepalive));
    }

    /// State, sizes and counters of a connection; `None` if the id is not valid.
    pub fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        let conn = self.connections.get(self.connections.live(conn)?)?;
        Some(conn.tcb.info(&self.config.tcp, conn.tuple.local_addr(), conn.tuple.remote_addr()))
    }

    /// ISS and IRS of a connection (RFC 9293 section 3.3.1): the sequence numbers of our SYN and of the
    /// peer's SYN. `None` if the id is not valid. IRS has no meaning before the peer's SYN has arrived.
    pub fn initial_sequence_numbers(&self, conn: ConnId) -> Option<(u32, u32)> {
        let conn = self.connections.get(self.connections.live(conn)?)?;
        Some(conn.tcb.initial_sequence_numbers())
    }

    /// The counters since the stack was created, including the counters of ended connections.
    pub fn counters(&self) -> StackCounters {
        StackCounters {
            neighbor_moves_refused: self.neighbors.moves_refused(),
            rx_fragments_dropped: self.reassembly.dropped(),
            ..self.counters
        }
    }

    /// Sets the time, unless `now` is earlier than the present time.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Calls `work` on the connection in `slot`, and then [`settle`](Self::settle) for the slot. Returns
    /// `None` if the slot is free.
    fn with<R>(
        &mut self,
        now: Instant,
        slot: u32,
        work: impl FnOnce(&mut Tcb, &mut Ctx<'_>) -> R,
    ) -> Option<R> {
        let (parts, connections, _) = self.split(now);
        let (id, conn) = connections.get_mut(slot)?;
        let result = work(&mut conn.tcb, &mut parts.ctx(id, conn.listener));
        self.settle(slot);
        Some(result)
    }

    /// Like [`with`](Self::with), for a user's id. Returns `None` if the id is not valid.
    fn with_live<R>(&mut self, conn: ConnId, work: impl FnOnce(&mut Tcb, &mut Ctx<'_>) -> R) -> Option<R> {
        let slot = self.connections.live(conn)?;
        self.with(self.now, slot, work)
    }

    /// Called after a call that may have changed a control block: sets the connection's timer or marks it to
    /// be set later, removes the connection if it has ended, and queues the connection if it has something to
    /// send.
    fn settle(&mut self, slot: u32) {
        if self.connections.settle_and_arm_later(slot) {
            return;
        }
        self.arm(slot);
        if self.connections.get(slot).is_some_and(|conn| conn.tcb.wants_transmit()) {
            self.connections.make_ready(slot);
        }
    }

    /// Drops a connection in any state, without an event.
    fn forget(&mut self, now: Instant, slot: u32) {
        let (parts, connections, _) = self.split(now);
        let Some((id, conn)) = connections.get_mut(slot) else { return };
        conn.tcb.dispose(&mut parts.ctx(id, conn.listener));
        let half_open = conn.listener.filter(|_| conn.half_open);
        let tuple = conn.tuple;
        connections.remove(slot);
        if let Some(member) = &self.member {
            member.release(&tuple);
        }
        if let Some(listener) = half_open {
            self.listeners.settle_half_open(listener, &tuple.remote);
        }
    }
}
