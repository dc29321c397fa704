//! What a control block borrows from its stack for one call: time, buffers, shared storage, the
//! event queue.
//!
//! A [`Tcb`](super::Tcb) holds nothing that is shared; whatever it needs of its surroundings comes
//! in here.

use std::collections::VecDeque;

use dp::{Mbuf, Mempool};

use super::slabs::{ReorderSlab, SearchSlab, SegmentSlab};
use crate::counters::StackCounters;
use crate::id::{ConnId, ListenerId};
use crate::{CloseReason, Event, Instant, Received, TcpConfig};

/// Events of one connection, beside bytes, that wait for the user at most: `Established`,
/// `Writable`, `PeerClosed`, `Closed`.
pub(crate) const EVENTS_PER_CONNECTION: usize = 4;

/// One call's surroundings.
pub(crate) struct Ctx<'a> {
    /// The time of the turn.
    pub(crate) now: Instant,
    /// How connections behave.
    pub(crate) config: &'a TcpConfig,
    /// Where fresh packet buffers come from.
    pub(crate) pool: &'a Mempool,
    /// Where large ones come from, for many segments at a time.
    pub(crate) bulk_pool: Option<&'a Mempool>,
    /// Records of segments queued for transmission, of all connections.
    pub(crate) segments: &'a mut SegmentSlab,
    /// Records of out-of-order ranges, of the connections that have any.
    pub(crate) reorder: &'a mut ReorderSlab,
    /// Records of searches for larger segments, of the connections that probe.
    pub(crate) searches: &'a mut SearchSlab,
    /// The stack's counters.
    pub(crate) counters: &'a mut StackCounters,
    /// Where events go.
    pub(crate) events: &'a mut VecDeque<Event>,
    /// Received bytes are dropped (and come again) while so many events wait. Other events, at
    /// most [`EVENTS_PER_CONNECTION`] for each connection, are always taken.
    pub(crate) events_limit: usize,
    /// The connection being worked on.
    pub(crate) conn: ConnId,
    /// Who accepted it.
    pub(crate) listener: Option<ListenerId>,
}

/// Whole seconds of the clock, where a block has no room for more; they wrap after a century.
pub(super) type Seconds = u32;

impl Ctx<'_> {
    /// The second that it is.
    pub(super) fn second(&self) -> Seconds {
        self.now.secs() as u32
    }

    /// Whether received bytes can be handed up.
    pub(crate) fn takes_bytes(&self) -> bool {
        self.events.len() < self.events_limit
    }

    pub(crate) fn received(&mut self, offset: u64, buf: Mbuf, frontier: u64) {
        self.events
            .push_back(Event::Received { conn: self.conn, received: Received { offset, buf, frontier } });
    }

    /// `conn`, this one or another, is asked to give up `bytes`.
    pub(crate) fn evict(&mut self, conn: ConnId, bytes: usize) {
        self.events.push_back(Event::Evict { conn, bytes });
    }

    pub(crate) fn established(&mut self) {
        self.events.push_back(Event::Established { conn: self.conn, listener: self.listener });
    }

    pub(crate) fn writable(&mut self) {
        self.events.push_back(Event::Writable { conn: self.conn });
    }

    pub(crate) fn peer_closed(&mut self) {
        self.events.push_back(Event::PeerClosed { conn: self.conn });
    }

    pub(crate) fn closed(&mut self, reason: CloseReason) {
        self.events.push_back(Event::Closed { conn: self.conn, reason });
    }
}
