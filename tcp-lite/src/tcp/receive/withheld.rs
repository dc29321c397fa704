//! Acknowledgements that the user withholds: it has the bytes, and the peer has to learn something else
//! first.
//!
//! Segments that have to be sent acknowledge only the bytes before them. No segment is sent to acknowledge
//! anything: the peer would take it for a sign of loss.

use super::ReceiveHalf;

/// Behind every position: nothing is withheld.
pub(super) const NOTHING: u64 = u64::MAX;

impl ReceiveHalf {
    /// The bytes from this position on are not acknowledged; `None`: all are. What is acknowledged stays so.
    pub(in crate::tcp) fn withhold(&mut self, from: Option<u64>) {
        let was_withheld = self.is_withholding();
        self.withheld = from.map_or(NOTHING, |from| from.max(self.acks.last_ack_sent()));
        if was_withheld {
            self.send_ack();
        }
    }

    /// Whether bytes have arrived that are not acknowledged for this reason.
    #[inline]
    pub(in crate::tcp) fn is_withholding(&self) -> bool {
        self.withheld < self.nxt
    }

    /// The window of a segment that acknowledges only what is not withheld: it reaches the announced edge.
    pub(in crate::tcp) fn withheld_window(&self) -> u16 {
        self.window_from(self.acknowledged())
    }

    /// The position up to which a segment sent now acknowledges.
    #[inline]
    pub(in crate::tcp) fn acknowledged(&self) -> u64 {
        self.nxt.min(self.withheld)
    }
}
