//! The invariants of the sending half.

use super::SendHalf;
use super::loss::SendTimer;
use crate::invariant::{Check, ensure};
use crate::tcp::slabs::{PageKey, SearchSlab, SegmentSlab};

/// What the sending half holds in the slabs.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct SendHoldings {
    pub(in crate::tcp) segments: usize,
    pub(in crate::tcp) open_page: Option<PageKey>,
    pub(in crate::tcp) searches: bool,
}

impl SendHalf {
    /// Checks the queue and the path MTU search. Returns what the sending half holds in the slabs.
    pub(in crate::tcp) fn check(&self, slab: &SegmentSlab, searches: &SearchSlab) -> Check<SendHoldings> {
        let searches = self.path.check(searches)?;
        let queue = &self.queue;
        queue.check(slab)?;
        Ok(SendHoldings { segments: queue.segment_count() as usize, open_page: queue.open_page(), searches })
    }

    /// Checks that a timer other than the persist timer runs while anything is in flight.
    pub(in crate::tcp) fn check_timer(&self) -> Check {
        let (outstanding, timer) = (self.queue.outstanding(), self.loss.running_timer());
        let watches = timer.is_some_and(|(_, timer)| timer != SendTimer::Persist);
        ensure!(outstanding == 0 || watches, "{outstanding} outstanding, and the timer is {timer:?}");
        Ok(())
    }
}
