//! The invariants of the send queue.

use super::SendQueue;
use crate::invariant::{Check, ensure};
use crate::tcp::slabs::SegmentSlab;

impl SendQueue {
    /// Checks that the parts of the queue are sound, and consistent with each other.
    pub(in crate::tcp::send) fn check(&self, slab: &SegmentSlab) -> Check {
        self.segments.check(slab)?;
        let segments = self.segments.head().into_iter().flat_map(|head| slab.iter_from(head));
        self.pages.check(slab, segments.map(|key| slab.get(key).page))?;
        self.scoreboard.check(slab, &self.segments)?;
        // (A connection that has ended has dropped its segments, but keeps its positions.)
        if self.segments.head().is_some() || self.positions.una() >= self.positions.end() {
            self.check_positions(slab)
        } else {
            Ok(())
        }
    }

    /// Checks that SND.UNA, SND.NXT and the segments are consistent. Not called for a connection that has
    /// ended.
    fn check_positions(&self, slab: &SegmentSlab) -> Check {
        self.positions.check()?;
        let (una, nxt, end) = (self.positions.una(), self.positions.nxt(), self.positions.end());
        if let Some(head) = self.segments.head() {
            let first = slab.get(head);
            let is_oldest = first.pos <= una.max(1) && una < first.end();
            ensure!(is_oldest, "SND.UNA {una}, the oldest segment {}..{}", first.pos, first.end());
        }
        let last = self.segments.head().and_then(|head| slab.iter_from(head).last());
        if let Some(last) = last.map(|last| slab.get(last)) {
            ensure!(last.end() == end, "the queue ends at {}, not {end}", last.end());
        }
        match self.segments.unsent() {
            Some(key) => ensure!(slab.get(key).pos == nxt, "SND.NXT {nxt}, unsent {}", slab.get(key).pos),
            None => ensure!(una == 0 || nxt >= end, "SND.NXT {nxt}, end {end}, nothing unsent"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_queue::assert_all_found;
    use crate::Instant;
    use crate::tcp::slabs::ConnectionPages;

    #[test]
    fn positions_that_do_not_fit_are_found() {
        assert_all_found(&[
            (|q| q.queue.positions.set(402, 401, 501), "SND.UNA 402, SND.NXT 401, end 501"),
            (|q| q.queue.positions.set(1, 503, 501), "SND.UNA 1, SND.NXT 503, end 501"),
            (|q| q.queue.positions.set(101, 401, 501), "SND.UNA 101, the oldest segment 1..101"),
            (|q| q.queue.positions.set(1, 401, 502), "the queue ends at 501, not 502"),
            (|q| q.queue.positions.set(1, 301, 501), "SND.NXT 301, unsent 401"),
            (
                |q| {
                    q.queue.on_sent(&mut q.slab, Instant::from_millis(9));
                    q.queue.positions.set(1, 500, 501);
                },
                "SND.NXT 500, end 501, nothing unsent",
            ),
        ]);
    }

    #[test]
    fn a_wrong_number_of_small_pages_is_found() {
        assert_all_found(&[(|q| q.queue.pages = ConnectionPages::default(), "0 small pages of 1")]);
    }
}
