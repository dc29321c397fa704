//! What loss recovery and the sending half ask about the send queue.

use super::SendQueue;
use super::positions::SendRange;
use crate::tcp::send::loss::Rack;
use crate::tcp::slabs::{SegmentKey, SegmentSlab};

impl SendQueue {
    // ---- positions ----

    /// The positions that were sent and are not acknowledged.
    #[inline]
    pub(in crate::tcp::send) fn range(&self) -> SendRange {
        SendRange { una: self.una(), nxt: self.nxt() }
    }

    /// The oldest unacknowledged position (SND.UNA).
    #[inline]
    pub(in crate::tcp::send) fn una(&self) -> u64 {
        self.positions.una()
    }

    /// The next position to send (SND.NXT).
    #[inline]
    pub(in crate::tcp::send) fn nxt(&self) -> u64 {
        self.positions.nxt()
    }

    /// Position after the last pushed byte, which is the position of the FIN.
    #[inline]
    pub(in crate::tcp::send) fn end(&self) -> u64 {
        self.positions.end()
    }

    /// Number of pushed bytes that are not acknowledged, whether sent or unsent.
    #[inline]
    pub(in crate::tcp::send) fn queued(&self) -> u64 {
        self.positions.queued()
    }

    /// Number of positions that were sent and are not acknowledged: SND.NXT - SND.UNA.
    #[inline]
    pub(in crate::tcp::send) fn outstanding(&self) -> u64 {
        self.positions.outstanding()
    }

    /// Whether the user has not closed.
    pub(in crate::tcp::send) fn may_push(&self) -> bool {
        self.positions.may_push()
    }

    /// Whether our FIN has to be sent, perhaps after other segments.
    #[inline]
    pub(in crate::tcp::send) fn is_fin_due(&self) -> bool {
        self.positions.is_fin_due()
    }

    // ---- the peer's window ----

    /// Like [`Positions::is_ack_acceptable`](super::Positions::is_ack_acceptable), with the peer's largest
    /// window so far.
    #[inline]
    pub(in crate::tcp::send) fn is_ack_acceptable(&self, ack: i64) -> bool {
        self.positions.is_ack_acceptable(ack, self.window.max())
    }

    /// Number of bytes from `pos` on that the peer's window covers.
    #[inline]
    pub(in crate::tcp::send) fn window_from(&self, pos: u64) -> u32 {
        self.window.edge().saturating_sub(pos) as u32
    }

    // ---- segments ----

    /// Number of queued segments.
    #[inline]
    pub(in crate::tcp::send) fn segment_count(&self) -> u32 {
        self.segments.count()
    }

    /// The oldest segment; `None` if the queue is empty.
    #[inline]
    pub(in crate::tcp::send) fn head(&self) -> Option<SegmentKey> {
        self.segments.head()
    }

    /// The first segment that was never sent; `None` if all segments were sent.
    #[inline]
    pub(in crate::tcp::send) fn unsent(&self) -> Option<SegmentKey> {
        self.segments.unsent()
    }

    #[inline]
    pub(in crate::tcp::send) fn has_unsent(&self) -> bool {
        self.segments.has_unsent()
    }

    /// The oldest segment, if it was sent.
    #[inline]
    pub(in crate::tcp::send) fn oldest_sent(&self) -> Option<SegmentKey> {
        self.segments.oldest_sent()
    }

    /// The last sent segment of the queue; `None` if no sent segment is queued.
    #[inline]
    pub(in crate::tcp::send) fn last_sent(&self) -> Option<SegmentKey> {
        self.segments.last_sent()
    }

    // ---- lost and selectively acknowledged segments ----

    #[inline]
    pub(in crate::tcp::send) fn has_lost(&self) -> bool {
        self.scoreboard.has_lost()
    }

    /// The next segment to retransmit: the oldest segment if it is lost, otherwise the segment that was
    /// marked lost first.
    #[inline]
    pub(in crate::tcp::send) fn next_to_retransmit(&self) -> Option<SegmentKey> {
        self.scoreboard.next_to_retransmit()
    }

    /// Number of selectively acknowledged segments.
    #[inline]
    pub(in crate::tcp::send) fn sacked_segments(&self) -> u32 {
        self.scoreboard.sacked_segments()
    }

    /// Whether a segment has arrived that was sent later than the segment that has been in flight longest.
    #[inline]
    pub(in crate::tcp::send) fn is_overtaken(&self, slab: &SegmentSlab, rack: &Rack) -> bool {
        self.scoreboard.is_overtaken(slab, rack)
    }
}

#[cfg(test)]
impl SendQueue {
    pub(in crate::tcp::send) fn lost_bytes(&self) -> u64 {
        self.scoreboard.lost_bytes()
    }
}
