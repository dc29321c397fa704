//! The invariants of the receiving half.

use super::ReceiveHalf;
use crate::id::ConnId;
use crate::invariant::{Check, ensure};
use crate::tcp::slabs::OutOfOrderSlab;

impl ReceiveHalf {
    /// Checks that the frontier, the window, the FIN, the ranges and the numbers of held bytes are
    /// consistent. Returns whether there is a hole.
    pub(in crate::tcp) fn check(&self, out_of_order: &OutOfOrderSlab, conn: ConnId) -> Check<bool> {
        let (nxt, edge) = (self.nxt, self.edge);
        // RCV.NXT may be one position beyond the edge, because the peer's FIN may be at the edge.
        ensure!(nxt <= edge + 1, "RCV.NXT {nxt} beyond the edge {edge}");
        ensure!(nxt <= self.fin.saturating_add(1), "RCV.NXT {nxt}, FIN {:?}", self.fin);
        let held = &self.held;
        let at_most = held.held_bytes <= held.max_held_bytes && held.pinned_bytes <= held.max_pinned_bytes;
        ensure!(at_most, "more than ever: {held:?}");
        if let Some(key) = self.ranges {
            // The receiver accepts no bytes after the peer's FIN, and no FIN below received bytes.
            let limit = self.fin.min(edge);
            out_of_order.check_set(key, conn, (held.held_bytes, held.pinned_bytes), (nxt, limit))?;
        }
        Ok(self.ranges.is_some())
    }

    /// For an open connection: checks that all received bytes will be acknowledged.
    pub(in crate::tcp) fn check_acks(&self) -> Check {
        self.acks.check()
    }
}
