//! Acknowledgements that the user withholds. The user has received the bytes, but has to send another message
//! to the peer before the acknowledgement is sent.
//!
//! Segments that have to be sent for other reasons acknowledge only the bytes before the first byte whose
//! acknowledgement is withheld. No segment is sent only as an acknowledgement while such a byte has arrived,
//! because the peer would treat the repeated acknowledgement as a sign of loss. (With DCTCP, a separate
//! acknowledgement is still sent when the ECN mark changes.)

use super::ReceiveHalf;

/// The value of `withheld` if no acknowledgement is withheld: a position after all other positions.
pub(super) const NOTHING: u64 = u64::MAX;

impl ReceiveHalf {
    /// Withholds the acknowledgement of the bytes from this position on. With `None`, withholds no
    /// acknowledgement. Acknowledged bytes stay acknowledged. If the acknowledgement of bytes that have
    /// arrived was withheld before this call, requests an acknowledgement.
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

    /// The window field of a segment that acknowledges only the bytes up to
    /// [`acknowledged`](Self::acknowledged). The window ends at the announced edge.
    pub(in crate::tcp) fn withheld_window(&self) -> u16 {
        self.window_from(self.acknowledged())
    }

    /// The position up to which a segment that is sent now acknowledges.
    #[inline]
    pub(in crate::tcp) fn acknowledged(&self) -> u64 {
        self.nxt.min(self.withheld)
    }
}
