//! What the user holds of what was handed up, and gives up again under pressure (RFC 2018 section
//! 8).

use std::ops::Range;

use super::ReceiveHalf;
use crate::tcp::ctx::Ctx;

/// Stretches that a user may give up at a time.
pub(in crate::tcp) const MAX_EVICTED: usize = 16;

impl ReceiveHalf {
    /// The user gives up the bytes at these positions, or none of them: `false` if not all are
    /// ahead of the frontier, or if that would leave more ranges than are told apart.
    pub(in crate::tcp) fn evict(&mut self, ctx: &mut Ctx<'_>, stretches: &[Range<u64>]) -> bool {
        let Some(key) = self.ranges else { return false };
        let ranges = ctx.reorder.get_mut(key);
        if !ranges.remove(stretches) {
            return false;
        }
        let emptied = ranges.is_empty();
        let bytes: u64 = stretches.iter().map(|stretch| stretch.end - stretch.start).sum();
        ctx.counters.rx_out_of_order_evicted += bytes;
        self.release(ctx, bytes as usize);
        if emptied {
            self.forget_ranges(ctx.reorder);
        }
        // Nothing may be said to be here that is not.
        let gone = |(from, to)| stretches.iter().any(|gone| gone.start < to && from < gone.end);
        self.duplicate = self.duplicate.filter(|duplicate| !gone(*duplicate));
        true
    }

    /// `bytes` handed up in order count as held.
    pub(in crate::tcp) fn hold(&mut self, ctx: &mut Ctx<'_>, bytes: usize) {
        self.held.hold(bytes as u64);
        ctx.counters.out_of_order.hold(bytes as u64);
        self.weigh(ctx);
    }

    /// `bytes` handed up ahead of the frontier are no longer held.
    pub(in crate::tcp) fn release(&mut self, ctx: &mut Ctx<'_>, bytes: usize) {
        let bytes = self.held.held_bytes.min(bytes as u64);
        self.held.release(bytes);
        ctx.counters.out_of_order.release(bytes);
        self.weigh(ctx);
    }

    /// The user keeps `bytes` bytes of packet buffers for what is held.
    pub(in crate::tcp) fn pin(&mut self, ctx: &mut Ctx<'_>, bytes: usize) {
        let before = self.held.pinned_bytes;
        self.held.pin(before, bytes as u64);
        ctx.counters.out_of_order.pin(before, bytes as u64);
        self.weigh(ctx);
    }

    /// What the connection holds counts among the others' while it has a hole.
    fn weigh(&self, ctx: &mut Ctx<'_>) {
        if let Some(key) = self.ranges {
            ctx.reorder.weigh(key, self.held.held_bytes, self.held.pinned_bytes);
        }
    }
}
