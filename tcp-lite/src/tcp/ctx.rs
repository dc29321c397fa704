//! The context that the stack passes to each call of a control block: the time, the configuration, buffer
//! pools, shared slabs, counters, and the event queue.
//!
//! A [`Tcb`](super::Tcb) itself holds nothing that several connections share.

use dp::{Mbuf, Mempool};

use super::slabs::{BulkPool, OutOfOrderSlab, SearchSlab, SegmentSlab};
use crate::counters::StackCounters;
use crate::event::EventQueue;
use crate::id::{ConnId, ListenerId};
use crate::{CloseReason, Event, Instant, Received, TcpConfig};

/// Maximum number of events of one connection that wait for the user: `Established`, `Writable`,
/// `Acknowledged`, `PeerClosed`, `Closed`. `Received` and `Evict` do not count, because they have limits of
/// their own.
pub(crate) const EVENTS_PER_CONNECTION: usize = 5;

pub(crate) struct Ctx<'a> {
    /// The time of this poll.
    pub(crate) now: Instant,
    pub(crate) config: &'a TcpConfig,
    /// The pool for new packet buffers.
    pub(crate) pool: &'a Mempool,
    /// The pool for large buffers that hold many segments; `None` if the user has set no such pool.
    pub(crate) bulk_pool: Option<&'a BulkPool>,
    /// The segments of all connections that are queued for transmission.
    pub(crate) segments: &'a mut SegmentSlab,
    /// Out-of-order ranges of the connections that have a hole.
    pub(crate) out_of_order: &'a mut OutOfOrderSlab,
    /// Path MTU searches of the connections that probe.
    pub(crate) searches: &'a mut SearchSlab,
    pub(crate) counters: &'a mut StackCounters,
    pub(crate) events: &'a mut EventQueue,
    /// While at least this number of events wait, received bytes are dropped, and the peer retransmits them.
    /// Other events are queued in any case.
    pub(crate) events_limit: usize,
    /// The connection whose control block is called.
    pub(crate) conn: ConnId,
    /// The listener that accepted the connection; `None` if we opened the connection.
    pub(crate) listener: Option<ListenerId>,
}

/// Whole seconds of the clock in 32 bits, which wrap after 136 years.
pub(super) type Seconds = u32;

impl Ctx<'_> {
    pub(super) fn second(&self) -> Seconds {
        self.now.secs() as u32
    }

    /// Whether received bytes can be queued for the user.
    pub(crate) fn takes_bytes(&self) -> bool {
        self.events.len() < self.events_limit
    }

    #[inline]
    pub(crate) fn received(&mut self, offset: u64, buf: Mbuf, frontier: u64) {
        self.events.push_received(self.conn, Received { offset, buf, frontier });
    }

    /// Asks the user of `conn` to give up `bytes` bytes. `conn` may be this connection or another connection.
    pub(crate) fn evict(&mut self, conn: ConnId, bytes: usize) {
        self.events.push_back(Event::Evict { conn, bytes });
    }

    pub(crate) fn established(&mut self) {
        self.events.push_back(Event::Established { conn: self.conn, listener: self.listener });
    }

    pub(crate) fn writable(&mut self) {
        self.events.push_back(Event::Writable { conn: self.conn });
    }

    pub(crate) fn acknowledged(&mut self) {
        self.events.push_back(Event::Acknowledged { conn: self.conn });
    }

    pub(crate) fn peer_closed(&mut self) {
        self.events.push_back(Event::PeerClosed { conn: self.conn });
    }

    pub(crate) fn closed(&mut self, reason: CloseReason) {
        self.events.push_back(Event::Closed { conn: self.conn, reason });
    }
}
