//! Acknowledgements that the user withholds: the user has the bytes, and has to tell the peer something else
//! first.
//!
//! Segments that have to be sent acknowledge only the bytes before the withheld ones. Meanwhile no segment is
//! sent as an acknowledgement alone: the peer would take it for a sign of loss.

use super::ReceiveHalf;

/// After every position: nothing is withheld.
pub(super) const NOTHING: u64 = u64::MAX;

impl ReceiveHalf {
    /// Withholds the acknowledgement of the bytes from this position on; `None`: of no bytes. Acknowledged
    /// bytes stay acknowledged.
    pub(in crate::tcp) fn withhold(&mut self, from: Option<u64>) {
        let was_withheld = self.is_withholding();
        self.withheld = from.map_or(NOTHING, |from| from.max(self.acks.last_ack_sent()));
        if was_withheld {
            self.send_ack();
        }
    }

    /// Whether bytes have arrived whose acknowledgement is withheld.
    #[inline]
    pub(in crate::tcp) fn is_withholding(&self) -> bool {
        self.withheld < self.nxt
    }

    /// The window of a segment that acknowledges only bytes that are not withheld: it ends at the announced
    /// edge.
    pub(in crate::tcp) fn withheld_window(&self) -> u16 {
        self.window_from(self.acknowledged())
    }

    /// The position up to which a segment sent now acknowledges.
    #[inline]
    pub(in crate::tcp) fn acknowledged(&self) -> u64 {
        self.nxt.min(self.withheld)
    }
}
