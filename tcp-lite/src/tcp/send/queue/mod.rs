//! The send queue of one connection: the segments from `push` until their acknowledgement, the FIN, and the
//! peer's window (RFC 9293 section 3.10.2, SEND, and section 3.4; SND.UNA, SND.NXT and SND.WND).
//!
//! Segments are cut only by [`SendQueue::split`]. The sending half cuts a segment that is longer than a
//! lowered EMSS. After the persist timer has expired, the sending half also cuts a segment that does not fit
//! the peer's window. An acknowledgement in the middle of a segment does not cut the segment. The records are
//! in `slabs/segment.rs`.
//!
//! The queue has these parts, each with its own fields and checks:
//!
//! | part | what it knows | where |
//! |---|---|---|
//! | [`QueuedSegments`] | the list of segments, and which were sent | `segments.rs`, `train.rs` |
//! | [`ConnectionPages`] | the pages that segments are written to | `slabs/connection_pages.rs` |
//! | [`Scoreboard`] | which segments are in flight, have arrived or are lost | `scoreboard.rs`, `flight.rs`, `index.rs` |
//! | [`Positions`] | sequence numbers, SND.UNA, SND.NXT, the FIN | `positions.rs` |
//! | [`PeerWindow`] | SND.WND | `window.rs` |
//!
//! [`SendQueue`] has the steps that change several of these parts: a segment is queued, sent, cut or
//! acknowledged. `queries.rs` answers what loss recovery and the sending half ask about the parts.

mod flight;
mod index;
mod invariants;
mod list;
mod positions;
mod queries;
mod scoreboard;
mod segments;
#[cfg(test)]
pub(super) mod test_queue;
mod train;
mod window;

pub(super) use self::positions::{Positions, SendRange};
pub(super) use self::scoreboard::Detected;
pub(super) use self::train::TrainLimits;

use dp::{ExtBuf, Mempool};

use self::scoreboard::{Scoreboard, SentSegments};
use self::segments::QueuedSegments;
use self::window::PeerWindow;
use super::ack_sample::AckSample;
use crate::Instant;
use crate::facade::TcpSeqNumber;
use crate::tcp::SendError;
use crate::tcp::slabs::{
    BulkPool, ConnectionPages, Marks, PageKey, RemovedRun, Segment, SegmentKey, SegmentSlab,
};

/// How far transmission has advanced. A reduction of the congestion window covers congestion only among the
/// bytes that were sent before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentSoFar {
    pub(super) nxt: u64,
    pub(super) transmissions: u32,
}

#[derive(Debug)]
pub(super) struct SendQueue {
    segments: QueuedSegments,
    pages: ConnectionPages,
    scoreboard: Scoreboard,
    positions: Positions,
    /// The peer's window (SND.WND).
    window: PeerWindow,
}

impl SendQueue {
    /// The state before anything was sent. `iss` is the sequence number of the SYN.
    pub(super) fn new(iss: TcpSeqNumber) -> Self {
        Self {
            segments: QueuedSegments::default(),
            pages: ConnectionPages::default(),
            scoreboard: Scoreboard::default(),
            positions: Positions::new(iss),
            window: PeerWindow::new(),
        }
    }

    #[inline]
    pub(super) fn positions(&self) -> &Positions {
        &self.positions
    }

    /// Like [`positions`](Self::positions), but mutable, for changes of the SYN and the FIN.
    #[inline]
    pub(super) fn positions_mut(&mut self) -> &mut Positions {
        &mut self.positions
    }

    /// The sent segments, so that the caller can mark them.
    #[inline]
    pub(super) fn sent(&mut self) -> SentSegments<'_> {
        self.scoreboard.of(&self.segments, self.positions.nxt())
    }

    /// Whether the oldest segment counts as lost and is the next segment to be retransmitted.
    #[inline]
    pub(super) fn is_oldest_lost(&self) -> bool {
        let lost = self.scoreboard.next_to_retransmit();
        lost.is_some() && lost == self.segments.head()
    }

    /// The page to which the next segment is written; `None` if no page is open.
    pub(super) fn open_page(&self) -> Option<PageKey> {
        self.pages.open()
    }

    /// Number of outstanding bytes that are neither selectively acknowledged nor marked lost (with SACK, RFC
    /// 6675's `pipe`).
    #[inline]
    pub(super) fn not_sacked_nor_lost(&self) -> u64 {
        self.positions.outstanding().saturating_sub(self.scoreboard.sacked_or_lost_bytes())
    }

    /// Like [`ConnectionPages::page`], for this connection.
    #[inline]
    pub(super) fn page(
        &mut self,
        slab: &mut SegmentSlab,
        pools: (&Mempool, Option<&BulkPool>),
        bytes: usize,
        following: impl FnOnce() -> usize,
    ) -> Result<(PageKey, usize), SendError> {
        let queued = self.positions.queued();
        self.pages.page(slab, pools, bytes, (queued, following))
    }

    /// Whether [`page`](Self::page) has space for `bytes` bytes, so that `page` does not return
    /// [`SendError::BufferFull`].
    pub(super) fn may_have_page(&self, slab: &SegmentSlab, bulk: Option<&BulkPool>, bytes: usize) -> bool {
        self.pages.may_have_page(slab, bulk, bytes, self.positions.queued())
    }

    /// Called if nothing was written to the page: frees the page if it is empty.
    pub(super) fn close_page(&mut self, slab: &mut SegmentSlab) {
        self.pages.close_if_empty(slab);
    }

    /// Whether our FIN has to be sent and nothing has to be sent before it.
    #[inline]
    pub(super) fn is_fin_next(&self) -> bool {
        self.positions.is_fin_due()
            && !self.segments.has_unsent()
            && !self.scoreboard.has_lost()
            && self.positions.is_syn_acked()
    }

    pub(super) fn sent_so_far(&self) -> SentSoFar {
        SentSoFar { nxt: self.positions.nxt(), transmissions: self.scoreboard.transmissions() }
    }

    /// The peer's window, for changes by the segments of the handshake.
    pub(super) fn window_mut(&mut self) -> &mut PeerWindow {
        &mut self.window
    }

    /// Called when a segment at `pos` acknowledges up to `ack` and announces a window of `bytes` bytes. A
    /// segment that is older than the last update changes nothing. Returns whether the window's edge moved.
    #[inline]
    pub(super) fn update_window(&mut self, pos: i64, ack: u64, bytes: u64) -> bool {
        self.window.update(pos, ack, self.positions.una(), bytes)
    }

    /// Whether the peer's window reaches beyond SND.NXT.
    #[inline]
    pub(super) fn is_window_open(&self) -> bool {
        self.positions.nxt() < self.window.edge()
    }

    #[inline]
    pub(super) fn fits_window(&self, segment: &Segment) -> bool {
        segment.end() <= self.window.edge()
    }

    /// Whether there is a new segment that fits the peer's window.
    pub(super) fn is_new_sendable(&self, slab: &SegmentSlab) -> bool {
        self.segments.unsent().is_some_and(|key| self.fits_window(slab.get(key)))
    }

    /// Whether the peer's window does not cover the oldest queued segment. There are two cases: nothing is in
    /// flight and the window is too small for the next segment, or the window shrank below the bytes in
    /// flight.
    #[inline]
    pub(super) fn is_blocked_by_window(&self, slab: &SegmentSlab) -> bool {
        self.segments.head().is_some_and(|key| !self.fits_window(slab.get(key)))
    }

    /// Whether the peer offers less than a segment, and less than half of the largest window that it has
    /// offered. Each cut for such a window splits an FPDU and sends only a few bytes, so the intervals
    /// between cuts increase. If a peer has never offered more, its window is small rather than silly, and
    /// the sender does not wait (RFC 9293 section 3.8.6.2.1, condition 3).
    #[inline]
    pub(super) fn is_window_silly(&self, slab: &SegmentSlab) -> bool {
        let offered = self.window.edge().saturating_sub(self.positions.una());
        2 * offered < self.window.max() && self.is_blocked_by_window(slab)
    }

    /// Queues the next `bytes` bytes of the open page as a segment. `checksum` is the partial Internet
    /// checksum of these bytes, if it is known.
    #[inline(always)]
    pub(super) fn push(&mut self, slab: &mut SegmentSlab, bytes: usize, checksum: Option<u16>) {
        let Some(page) = self.pages.open() else { return };
        let key = slab.insert(page, bytes, self.positions.end(), checksum);
        self.append(slab, key, bytes);
    }

    /// Like [`push`](Self::push), but the segment also has external memory: `external` has this memory, and
    /// the number of bytes of the page before it.
    pub(super) fn push_external(&mut self, slab: &mut SegmentSlab, bytes: usize, external: (ExtBuf, u32)) {
        let Some(page) = self.pages.open() else { return };
        let all = bytes + external.0.len();
        let key = slab.insert_external(page, bytes, self.positions.end(), external);
        self.append(slab, key, all);
    }

    #[inline(always)]
    fn append(&mut self, slab: &mut SegmentSlab, key: SegmentKey, bytes: usize) {
        self.positions.on_pushed(bytes);
        self.segments.append(slab, key);
    }

    /// Called when the segment at the front of the unsent segments has been sent. Returns the length of this
    /// segment.
    #[inline]
    pub(super) fn on_sent(&mut self, slab: &mut SegmentSlab, now: Instant) -> u32 {
        let Some(key) = self.segments.unsent() else { return 0 };
        let segment = slab.get(key);
        let (len, end, next) = (segment.len, segment.end(), segment.next);
        self.scoreboard.on_sent(slab, key, now);
        self.positions.on_sent(end);
        self.segments.on_sent(key, next);
        len
    }

    /// Whether each sent segment in the queue is in flight (not known to have arrived or to be lost), and was
    /// sent once, in the order of the queue.
    #[inline]
    pub(super) fn is_orderly(&self) -> bool {
        self.scoreboard.is_orderly(self.positions.una())
    }

    /// Like [`acknowledge`](Self::acknowledge), for a queue that [is orderly](Self::is_orderly). Changes
    /// nothing and returns `None` if no segment is wholly below `ack`.
    #[inline]
    pub(super) fn acknowledge_orderly(&mut self, slab: &mut SegmentSlab, ack: u64) -> Option<RemovedRun> {
        debug_assert!(self.is_orderly(), "segments with marks, or in another order");
        let (removed, goes_on) = self.remove_run(slab, self.segments.head()?, ack);
        debug_assert!(!goes_on, "segments are left that are acknowledged");
        let removed = removed?;
        self.positions.on_run_acknowledged(ack);
        Some(removed)
    }

    /// Removes the segments that are wholly below `ack`, which is at most SND.NXT.
    pub(super) fn acknowledge(&mut self, slab: &mut SegmentSlab, ack: u64, sample: &mut AckSample) {
        sample.acked += self.positions.on_acknowledged(ack);
        while let Some(head) = self.segments.head() {
            let (removed, goes_on) = self.remove_run(slab, head, self.positions.una());
            if let Some(removed) = removed {
                sample.acknowledge_run(&removed);
            }
            let Some(key) = self.segments.head().filter(|_| goes_on) else { break };
            // The segment was sent out of order or more than once, or its arrival was known before.
            sample.acknowledge(slab.get(key));
            self.remove_head(slab);
        }
        self.sent().put_oldest_first(slab);
    }

    /// Removes segments at the front up to `una`, as long as each segment was sent once, in the order of the
    /// queue, and was not selectively acknowledged before. Returns these segments, and whether another
    /// acknowledged segment follows, which does not meet these conditions.
    #[inline(always)]
    fn remove_run(
        &mut self,
        slab: &mut SegmentSlab,
        head: SegmentKey,
        una: u64,
    ) -> (Option<RemovedRun>, bool) {
        let run = slab.remove_run((head, self.scoreboard.oldest_in_flight()), una, &mut self.pages);
        if run.removed.is_none() {
            return (None, run.goes_on);
        }
        self.scoreboard.on_run_removed(slab, run.oldest);
        self.segments.on_run_removed(run.count, run.next);
        (run.removed, run.goes_on)
    }

    /// Drops the oldest segment if it is the acknowledged part of a segment that was split. Returns whether a
    /// segment was dropped.
    pub(super) fn drop_acknowledged(&mut self, slab: &mut SegmentSlab) -> bool {
        let acknowledged =
            self.segments.head().is_some_and(|key| slab.get(key).end() <= self.positions.una());
        if acknowledged {
            self.remove_head(slab);
            self.sent().put_oldest_first(slab);
        }
        acknowledged
    }

    fn remove_head(&mut self, slab: &mut SegmentSlab) {
        let Some(key) = self.segments.head() else { return };
        self.sent().set_marks(slab, key, Marks::empty());
        let next = slab.get(key).next;
        if let Some((page, kind)) = slab.release(key) {
            self.pages.on_freed(page, kind);
        }
        slab.free(key, key, 1);
        self.segments.on_head_removed(key, next);
    }

    /// Splits a segment that is lost or unsent, so that its first part has `at` bytes. The rest becomes a
    /// separate segment, which is sent after the first part. Returns `false` if `at` is not inside the
    /// segment.
    pub(super) fn split(&mut self, slab: &mut SegmentSlab, key: SegmentKey, at: u32) -> bool {
        let segment = slab.get(key);
        if at == 0 || at >= segment.len {
            return false;
        }
        let marks = segment.marks;
        debug_assert!(
            !marks.intersects(Marks::IN_FLIGHT | Marks::SACKED),
            "neither lost nor unsent: {marks:?}"
        );
        let second = slab.split(key, at);
        slab.get_mut(second).marks = marks;
        self.scoreboard.on_split(slab, key, second);
        self.segments.on_split(key, second);
        true
    }

    pub(super) fn clear(&mut self, slab: &mut SegmentSlab) {
        while self.segments.head().is_some() {
            self.remove_head(slab);
        }
        self.close_page(slab);
    }
}

#[cfg(test)]
impl SendQueue {
    /// Acts as if `bytes` more bytes had been sent and acknowledged.
    pub(super) fn skip(&mut self, bytes: u64) {
        self.window.advance(bytes);
        self.positions.skip(bytes);
    }
}
