//! Decides when the window is reduced: once for each window of data, at the first loss or mark. The window is
//! reduced once more if segments that were sent after the reduction are lost as well (RFC 3168 section 6.1.2,
//! RFC 5681 section 4.3). The same applies if a loss follows marks that reduced the window less than a loss
//! does (RFC 8257 section 3.5).
//!
//! Retransmissions count as well: the loss of a retransmission that was sent after the reduction is new
//! congestion, and reduces the window. Linux does not reduce the window in this case (it only withholds the
//! slow start bound of PRR). RFC 8985 leaves the response to congestion control, and refers to RFC 5681
//! (section 3.4). A timeout sets the window to one segment in any case, but lowers the threshold by the same
//! rule, as in Linux (`loss/expiry.rs`).

use crate::tcp::send::queue::SentSoFar;
use crate::tcp::slabs::Sent;

#[derive(Clone, Copy, Debug, Default)]
pub(in crate::tcp::send) struct Reduction {
    /// True if the next new segment carries CWR, provided that ECN was agreed on.
    announce: bool,
    /// The number of the last transmission before the reduction.
    nr: u32,
    /// SND.NXT at the reduction. Marks on bytes below this position belong to the congestion for which the
    /// window was reduced already.
    until: u64,
    /// True if the reduction was as deep as a reduction for a loss, so that the reduction covers losses as
    /// well.
    deep: bool,
}

impl Reduction {
    /// A new reduction, made after `sent` was sent. `deep` is true if the reduction is as deep as a reduction
    /// for a loss. CWR is due.
    pub(super) fn new(sent: SentSoFar, deep: bool) -> Self {
        Self { announce: true, nr: sent.transmissions, until: sent.nxt, deep }
    }

    /// Whether CWR is due on the next new segment, if ECN was agreed on.
    #[inline]
    pub(super) fn is_announced_next(&self) -> bool {
        self.announce
    }

    /// Called when a new segment was sent: CWR is no longer due.
    #[inline]
    pub(super) fn on_new_sent(&mut self) {
        self.announce = false;
    }

    /// Whether ECN marks that the peer echoed, up to position `ack`, require a new reduction.
    pub(super) fn is_new_congestion(&self, ack: u64) -> bool {
        ack > self.until
    }

    /// Whether this reduction already covers the loss of bytes from `oldest` on. `latest` is the latest lost
    /// transmission, if it is known.
    pub(super) fn answers(&self, oldest: u64, latest: Option<Sent>) -> bool {
        self.covers(oldest) && !latest.is_some_and(|latest| latest.follows(self.nr))
    }

    /// Whether the reduction was as deep as a reduction for a loss, and the byte at `oldest` had been sent
    /// before the reduction.
    pub(super) fn covers(&self, oldest: u64) -> bool {
        self.deep && oldest < self.until
    }

    /// Undoes the last reduction, which was spurious. `before` is the reduction before the spurious
    /// reduction. If CWR was due for that reduction, it is still due, unless a new segment has carried it
    /// since.
    pub(super) fn undo(&mut self, before: Self) {
        *self = Self { announce: self.announce && before.announce, ..before };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_after_a_reduction_is_not_answered_by_it() {
        let reduction = Reduction { announce: false, nr: 5, until: 1000, deep: true };
        assert_eq!([999, 1000].map(|oldest| reduction.answers(oldest, None)), [true, false]);
        assert_eq!([1000, 1001].map(|ack| reduction.is_new_congestion(ack)), [false, true]);
    }
}
