//! The stack: one for each engine. Frames in, frames and events out.
//!
//! | file in `stack/` | what |
//! |---|---|
//! | here | the calls of users |
//! | `receive.rs` | from a frame to a connection: any frame |
//! | `prediction.rs` | the same for the usual frame, in place |
//! | `sender.rs` | queueing segments on a connection |
//! | `transmit.rs` | from connections to frames: which connection is next, any segment |
//! | `usual.rs`, `headers.rs` | the same for the usual segment, and the headers that it copies |
//! | `connections.rs` | the slots of connections, and their places in the ready queue |
//! | `arming.rs` | when timers are set |
//! | `parts.rs` | what a control block uses of the stack: `split`, `ctx` |
//! | `ahead.rs`, `gro.rs` | prefetching for a burst, and joining its segments |
//! | `opening.rs`, `errors.rs` | active opens, and their errors |
//! | `acknowledgements.rs` | for users that wait for acknowledgements |
//! | `slow.rs` | ARP, neighbour discovery, ICMP, fragments |
//! | `steering.rs` | one of several stacks of its host |
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
use crate::tcp::{Ctx, MAX_EVICTION_REQUESTS, OutOfOrderSlab, SearchSlab, SegmentSlab, Tcb};
use crate::{Backoff, ConnInfo, Event, Instant, Keepalive, Received, SendError, StackConfig};

/// Limit of the queue of answers to segments of no connection: SYN-ACKs with a cookie, and RSTs. The limit
/// bounds the memory that such segments can take; further answers are dropped, as if lost on the wire. An
/// engine receives up to four bursts before it transmits. If thousands of peers connect at once, each SYN
/// beyond the backlog has to be answered: its sender would try again only after a second.
const PENDING_ANSWERS: usize = 4 * BURST;

/// Event slots beyond those of the connections: one `Evict` for each connection that is asked to give up
/// memory at a time, one for a newcomer, and one `AddressConflict` for the loss of each of our
/// addresses.
const SPARE_EVENTS: usize = MAX_EVICTION_REQUESTS + 1 + ADDRESSES;

/// A host on one port.
///
/// The order of calls in one poll: [`input`](Self::input) for every received frame, or
/// [`input_next`](Self::input_next) while there are any (with many connections after
/// [`look_ahead`](Self::look_ahead)), [`poll`](Self::poll) once, [`event`](Self::event) until `None`,
/// [`transmit`](Self::transmit) until it returns that no more is waiting. Nothing happens between polls: see
/// [`next_deadline`](Self::next_deadline).
pub struct Stack {
    config: StackConfig,
    framing: Framing,
    routes: Routes,
    secrets: Secrets,
    syn_cookies: SynCookies,
    pool: Mempool,
    bulk_pool: Option<Mempool>,
    connections: Connections,
    listeners: Listeners,
    neighbors: Neighbors,
    conflicts: ConflictDetection,
    /// Whether the port has a link, as [`Stack::set_link`] was last told.
    link_up: bool,
    /// True if the port was taken away: each connection ends with the next poll.
    port_gone: bool,
    /// The time when the connections end, if the link is still down.
    link_deadline: Option<Instant>,
    slow_path: SlowPath,
    reassembly: Reassembly,
    /// Holds a reassembled packet between the slow path and TCP.
    scratch: Vec<u8>,
    answers: VecDeque<Answer>,
    /// Spaces the attempts to send while the pool has no buffer.
    pool_retry: Backoff,
    segments: SegmentSlab,
    out_of_order: OutOfOrderSlab,
    searches: SearchSlab,
    events: EventQueue,
    counters: StackCounters,
    /// `Some` if the host has several stacks.
    member: Option<Box<Member>>,
    /// The latest time seen. Calls that start no timer take no time argument and use this one.
    now: Instant,
}

impl Stack {
    /// A stack that takes its buffers from `pool`. Memory for `config.limits` is allocated here, or grows up
    /// to those limits when objects are created.
    ///
    /// A segment is one buffer: if `pool`'s buffers are smaller than the MTU, segments are smaller as well.
    /// If there are IPv6 addresses but no link-local one, the link-local address of the Ethernet address is
    /// added.
    ///
    /// # Panics
    /// When an address in `config` is not a unicast address.
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
            pool_retry: Backoff::default(),
            // Unacknowledged segments must leave buffers free to receive the acknowledgements into.
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

    /// Makes connections with much to send use the buffers of `pool`, several segments in each, so that a
    /// train consists of few views. Small messages use the stack's own pool, and so do all messages while
    /// `pool` is empty.
    pub fn set_bulk_pool(&mut self, pool: Mempool) {
        self.bulk_pool = Some(pool);
    }

    /// Limits trains of segments to those that the port can cut. Without this call the port is assumed to cut
    /// any train. Segments that are too short or too long for the port are sent in separate frames.
    pub fn set_tso_limits(&mut self, limits: TsoLimits) {
        self.framing.tso = limits;
    }

    /// Tells the stack whether the port passes trains of segments on uncut although [`StackConfig::offloads`]
    /// has no [`TX_TSO`](dp::Offloads::TX_TSO). By default it does not.
    pub fn set_passes_large_frames(&mut self, passes: bool) {
        let cuts = self.config.offloads.contains(Offloads::TX_TSO);
        self.framing.offloads.set(Offloads::TX_TSO, cuts || passes);
    }

    /// Handles one received frame.
    pub fn input(&mut self, now: Instant, frame: Mbuf) {
        self.advance(now);
        self.receive(self.now, frame, &mut std::iter::empty().peekable());
    }

    /// Handles the next frame of a received burst. The frames after it that continue the same stream in order
    /// are processed together with it: each is treated as if it came alone, except that their payloads are
    /// handed up as one.
    pub fn input_next(&mut self, now: Instant, frames: &mut Peekable<impl Iterator<Item = Mbuf>>) {
        self.advance(now);
        if let Some(frame) = frames.next() {
            self.receive(self.now, frame, frames);
        }
    }

    /// Runs the timers that are due, and the slow path. A retransmission or an acknowledgement that is due
    /// within 100 us may be late by less than that if [`next_deadline`](Self::next_deadline) is not asked
    /// between the polls.
    pub fn poll(&mut self, now: Instant) {
        if now > self.now {
            self.arm_before(now);
        }
        self.advance(now);
        let now = self.now;
        while let Some(slot) = self.connections.wheel.expired(now) {
            if self.connections.is_unarmed(slot) {
                // A segment that arrived may have moved the timer that is due.
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
            // Transmission, which also sets them, may not follow: the port may take nothing.
            self.arm_timers();
        }
        let (moved, mut has_news) = (self.neighbors.poll(now), self.conflicts.poll(now));
        if self.has_news_of_host() {
            has_news |= self.follow_leader(now);
        }
        if moved || has_news {
            self.connections.wake_waiting();
        }
        self.slow_path.poll(now);
        if self.link_deadline.is_some_and(|at| at <= now) {
            self.end_without_link(now);
        }
    }

    /// Whether an event waits to be taken.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The oldest event not yet taken, if it is [`Event::Received`] and came while no event waited. Bytes
    /// that are taken this way after each call of [`input_next`](Self::input_next) cost less;
    /// [`event`](Self::event) returns all events.
    #[inline]
    pub fn received(&mut self) -> Option<(ConnId, Received)> {
        self.events.pop_received()
    }

    /// The oldest event not yet taken.
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

    /// Fills the free places of `out` with frames to send; connections are served round robin. Returns
    /// whether more frames could be sent now (those that wait for packet buffers do not count).
    ///
    /// Frames in `out` count as sent and their timers run, even if the port takes the frames late. Do not
    /// call this while the port takes no frames: timers run anyway, and retransmissions then wait in the
    /// stack rather than in a queue behind their first copies.
    pub fn transmit(&mut self, now: Instant, out: &mut Burst) -> bool {
        self.advance(now);
        let more = match self.has_to_transmit() {
            true => self.fill(self.now, out),
            false => {
                // Nothing waits for a buffer.
                self.pool_retry.succeeded();
                false
            }
        };
        self.arm_after_turn();
        more
    }

    /// When [`poll`](Self::poll) or [`transmit`](Self::transmit) has something to do next; `None` if only new
    /// input can give them work. The returned time may be early, but never late.
    pub fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        if !self.has_to_transmit() {
            return self.next_timer(now);
        }
        // No event tells when buffers are free again, so transmission is retried with a backoff.
        let Some(next_try) = self.pool_retry.next_try(now) else { return Some(now) };
        self.next_timer(now).map_or(Some(next_try), |at| Some(at.min(next_try)))
    }

    /// As [`next_deadline`](Self::next_deadline), for [`poll`](Self::poll) alone: for use while the port
    /// takes nothing and [`transmit`](Self::transmit) is not called.
    pub fn next_timer(&mut self, now: Instant) -> Option<Instant> {
        self.arm_timers();
        // No spare page is kept during a sleep.
        self.segments.free_spare_page();
        if self.slow_path.is_dirty() {
            return Some(now);
        }
        let due = [
            self.connections.wheel.next_deadline(),
            self.neighbors.next_deadline(),
            self.conflicts.next_deadline(),
            self.link_deadline.filter(|_| self.connections.len() > 0),
        ];
        due.into_iter().flatten().min()
    }

    /// Accepts connections to `port` on every address.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(&mut self, port: u16) -> Result<ListenerId, ListenError> {
        self.listen_with(port, ListenConfig::default())
    }

    /// As [`listen`](Self::listen), with limits for this listener.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen_with(&mut self, port: u16, config: ListenConfig) -> Result<ListenerId, ListenError> {
        self.listeners.add(port, config)
    }

    /// The SYNs that a listener did not answer, and the number of its half-open connections; `None` for a
    /// dead id.
    pub fn listener_counters(&self, listener: ListenerId) -> Option<(ListenerCounters, usize)> {
        self.listeners.counters(listener)
    }

    /// Drops SYNs from `address` to a listener until `until`. For addresses whose connections fail: each such
    /// connection costs more than many segments. Has no effect on existing connections, nor with a dead id.
    pub fn block_address(&mut self, now: Instant, listener: ListenerId, address: IpAddr, until: Instant) {
        self.advance(now);
        self.listeners.block_address(self.now, listener, address.into(), until);
    }

    /// A number that increases with every change of the [`listener_counters`](Self::listener_counters) of any
    /// listener.
    pub fn listener_changes(&self) -> u64 {
        self.listeners.changes()
    }

    /// Stops accepting. Accepted connections stay; half-open ones are dropped.
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

    /// Sends FIN after all queued segments. Receiving continues.
    pub fn close(&mut self, now: Instant, conn: ConnId) {
        self.advance(now);
        self.with_live(conn, |tcb, ctx| tcb.close(ctx));
    }

    /// Sends RST and drops all queued segments. `Event::Closed(Aborted)` follows. No effect on a dead id.
    pub fn abort(&mut self, now: Instant, conn: ConnId) {
        self.advance(now);
        self.with_live(conn, |tcb, ctx| tcb.abort(ctx));
    }

    /// Returns a handle to queue segments on `conn`: see [`Sender::segment`].
    ///
    /// # Errors
    /// [`SendError::Closed`].
    #[inline]
    pub fn sender(&mut self, now: Instant, conn: ConnId) -> Result<Sender<'_>, SendError> {
        self.advance(now);
        let (parts, connections, _) = self.split(self.now);
        let found = connections.find_live(conn).ok_or(SendError::Closed)?;
        let framing = parts.framing;
        let ctx = parts.ctx(conn, found.conn.listener);
        Ok(Sender { ctx, framing, found, pushed: false, opened: false })
    }

    /// Cuts `bytes` into segments of EMSS and queues those that fit; returns how many bytes were taken.
    /// For plain streams: FPDUs are queued with [`sender`](Self::sender).
    ///
    /// # Errors
    /// As [`Sender::segment`], when not a single byte was taken.
    pub fn send(&mut self, now: Instant, conn: ConnId, bytes: &[u8]) -> Result<usize, SendError> {
        self.advance(now);
        let sent = self.with_live(conn, |tcb, ctx| {
            let mut rest = bytes;
            while !rest.is_empty() {
                let (page, emss) = match tcb.page_for_segment(ctx) {
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

    /// Tells the stack that `bytes` bytes that were handed up ahead of the frontier are no longer held: they
    /// were placed, or the frontier passed them and they were consumed. The out-of-order budget counts bytes
    /// that were handed up and not released.
    #[inline]
    pub fn release(&mut self, conn: ConnId, bytes: usize) {
        // The usual case: the bytes were in order, and our announced window is large enough. Then nothing
        // changes.
        if bytes == 0
            && let Some(live) = self.connections.live(conn).and_then(|slot| self.connections.get(slot))
            && live.tcb.has_window(&self.config.tcp)
        {
            return;
        }
        self.release_any(conn, bytes);
    }

    /// See [`release`](Self::release).
    #[inline(never)]
    fn release_any(&mut self, conn: ConnId, bytes: usize) {
        self.with_live(conn, |tcb, ctx| tcb.release(ctx, bytes));
    }

    /// Prefetches the state of the connection in `slot`, which is about to send or to receive.
    pub fn prefetch(&self, slot: usize) {
        self.connections.prefetch(slot);
    }

    /// Tells the stack that `bytes` bytes that were handed up in order are still held, until they are
    /// [`release`](Self::release)d: the window shrinks by the same number. For readers of plain streams that
    /// may be slower than their peer.
    pub fn hold(&mut self, conn: ConnId, bytes: usize) {
        self.with_live(conn, |tcb, ctx| tcb.hold(ctx, bytes));
    }

    /// Gives up bytes that were handed up ahead of the frontier and not [`release`](Self::release)d: at most
    /// 16 ranges of the stream, by offset, without overlap. These bytes count as not received from now on,
    /// and may arrive again. Either all ranges or none are given up. Returns `false`, and the user keeps all
    /// bytes, if some are in order by now (then all below them are), or if too many ranges would be left.
    pub fn evict(&mut self, conn: ConnId, stretches: &[Range<u64>]) -> bool {
        self.with_live(conn, |tcb, ctx| tcb.evict(ctx, stretches)).unwrap_or(true)
    }

    /// Tells the stack how many bytes of packet buffers the user keeps in total for bytes ahead of the
    /// frontier: a small segment may pin a whole buffer.
    pub fn pin(&mut self, conn: ConnId, bytes: usize) {
        self.with_live(conn, |tcb, ctx| tcb.pin(ctx, bytes));
    }

    /// Sets the keepalive of one connection in place of that of [`TcpConfig`](crate::TcpConfig); `None`
    /// turns it off.
    pub fn set_keepalive(&mut self, now: Instant, conn: ConnId, keepalive: Option<Keepalive>) {
        self.advance(now);
        self.with_live(conn, |tcb, ctx| tcb.set_keepalive(ctx, keepalive));
    }

    /// State, sizes and counters of a connection; `None` for a dead id.
    pub fn info(&self, conn: ConnId) -> Option<ConnInfo> {
        let conn = self.connections.get(self.connections.live(conn)?)?;
        Some(conn.tcb.info(&self.config.tcp, conn.tuple.local_addr(), conn.tuple.remote_addr()))
    }

    /// The counters since the stack was made, including those of ended connections.
    pub fn counters(&self) -> StackCounters {
        StackCounters {
            neighbor_moves_refused: self.neighbors.moves_refused(),
            rx_fragments_dropped: self.reassembly.dropped(),
            ..self.counters
        }
    }

    /// Sets the time; it never goes back.
    fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Calls `work` on the connection in `slot`, then [`settle`](Self::settle)s it. `None` if the slot is
    /// free.
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

    /// As [`with`](Self::with), for a user's id; `None` if it is dead.
    fn with_live<R>(&mut self, conn: ConnId, work: impl FnOnce(&mut Tcb, &mut Ctx<'_>) -> R) -> Option<R> {
        let slot = self.connections.live(conn)?;
        self.with(self.now, slot, work)
    }

    /// Follows up on a call that may have changed a control block: its timer, its end, its place in the
    /// ready queue.
    fn settle(&mut self, slot: u32) {
        if self.connections.settle_later(slot) {
            return;
        }
        self.arm(slot);
        if self.connections.get(slot).is_some_and(|conn| conn.tcb.wants_transmit()) {
            self.connections.make_ready(slot);
        }
    }

    /// Drops a connection in any state. Raises no event.
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
