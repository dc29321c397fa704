//! When the window is reduced: once for each window of data, whatever tells of congestion first,
//! and once more for what was sent since and is lost, too (RFC 3168 section 6.1.2, RFC 5681 section
//! 4.3).
//!
//! That includes retransmissions: the loss of one is congestion anew, and there the window is
//! lowered although Linux does not (it only withholds the slow start bound of PRR). RFC 8985 leaves
//! the answer to congestion control, and names RFC 5681's (section 3.4). How far it is lowered is
//! congestion control's affair. A timeout leaves one segment of the window in any case, but lowers
//! the threshold by the same rule, as Linux does (`recovery.rs`).

use crate::tcp::slabs::Sent;

/// The last reduction of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reduction {
    /// The next new segment says so, where ECN was agreed on (CWR).
    announce: bool,
    /// The number of the last transmission before it.
    nr: u32,
    /// SND.NXT then: marks on what was sent before are the same congestion.
    until: u64,
    /// It was as deep as that for a loss: so are losses.
    deep: bool,
}

impl Reduction {
    /// The window was reduced when `count` transmissions had been made and SND.NXT was `nxt`;
    /// `deep`: as for a loss; `announce`: CWR is due.
    pub(super) fn new(announce: bool, count: u32, nxt: u64, deep: bool) -> Self {
        Self { announce, nr: count, until: nxt, deep }
    }

    /// Whether CWR is due on the next new segment.
    #[inline]
    pub(super) fn is_announced_next(&self) -> bool {
        self.announce
    }

    /// A new segment went out.
    #[inline]
    pub(super) fn on_fresh_sent(&mut self) {
        self.announce = false;
    }

    /// Whether marks that were echoed up to `ack` are still to be answered.
    pub(super) fn is_new_congestion(&self, ack: u64) -> bool {
        ack > self.until
    }

    /// Whether it was made for congestion of which the loss of what starts at `oldest` tells no
    /// more; `latest`: the latest transmission that was lost, if it is known.
    pub(super) fn answers(&self, oldest: u64, latest: Option<Sent>) -> bool {
        self.covers(oldest) && !latest.is_some_and(|latest| latest.follows(self.nr))
    }

    /// Whether it was as deep as for a loss, and bytes at `oldest` had been sent by then.
    pub(super) fn covers(&self, oldest: u64) -> bool {
        self.deep && oldest < self.until
    }

    /// The last reduction was for nothing, and was taken back: `before` was the one before it. That
    /// one is announced still, unless a new segment has said so since.
    pub(super) fn take_back(&mut self, before: Self) {
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
