//! The SACK blocks that we send, including D-SACK blocks for duplicates (RFC 2018 section 4, RFC 2883 section
//! 4).

use std::num::NonZeroU64;

use arrayvec::ArrayVec;

use super::ReceiveHalf;
use crate::tcp::header::{MAX_SACK_BLOCKS, SackBlock};
use crate::tcp::slabs::OutOfOrderSlab;

impl ReceiveHalf {
    /// Called when `bytes` bytes at `pos` (a whole segment, or a part of one) are duplicates: the next SACK
    /// reports these bytes.
    pub(in crate::tcp) fn report_duplicate(&mut self, pos: i64, bytes: usize) {
        let end = pos + bytes as i64;
        if end > 1 {
            self.duplicate = NonZeroU64::new(pos.max(1) as u64).map(|start| (start, end as u64));
        }
    }

    /// At most `count` SACK blocks to send: first the duplicate bytes, then the ranges, latest first (RFC
    /// 2018 section 4, RFC 2883 section 4).
    pub(in crate::tcp) fn sack_blocks(
        &self,
        slab: &OutOfOrderSlab,
        count: usize,
    ) -> ArrayVec<SackBlock, MAX_SACK_BLOCKS> {
        let mut blocks = ArrayVec::new();
        let count = count.min(MAX_SACK_BLOCKS);
        let block = |start, end| (self.space.seq(start), self.space.seq(end));
        if let Some((start, end)) = self.duplicate.filter(|_| count > 0) {
            let start = start.get();
            blocks.push(block(start, end));
        }
        if let Some(key) = self.ranges {
            let recent = slab.get(key).recent::<MAX_SACK_BLOCKS>(count - blocks.len().min(count));
            blocks.extend(recent.iter().map(|range| block(range.start, range.end)));
        }
        blocks
    }

    #[inline]
    pub(in crate::tcp) fn has_sack_blocks(&self) -> bool {
        self.duplicate.is_some() || self.ranges.is_some()
    }

    /// Called when the SACK blocks were sent: forgets the duplicate bytes, which are reported only once.
    pub(super) fn on_sack_sent(&mut self) {
        self.duplicate = None;
    }
}
