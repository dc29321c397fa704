//! Bytes that the user holds, and may give up under memory pressure (RFC 2018 section 8).

use std::ops::Range;

use super::ReceiveHalf;
use crate::tcp::ctx::Ctx;

/// Maximum number of ranges that a user may give up in one call. The ranges are copied to an array on the
/// call stack.
pub(in crate::tcp) const MAX_EVICTED: usize = 16;

impl ReceiveHalf {
    /// Gives up the bytes at the positions `stretches`. Does nothing and returns `false` if some of these
    /// bytes were not received ahead of the frontier, or if too many ranges would remain to be stored.
    pub(in crate::tcp) fn evict(&mut self, ctx: &mut Ctx<'_>, stretches: &[Range<u64>]) -> bool {
        let Some(key) = self.ranges else { return false };
        let ranges = ctx.out_of_order.get_mut(key);
        if !ranges.remove(stretches) {
            return false;
        }
        let emptied = ranges.is_empty();
        let bytes: u64 = stretches.iter().map(|stretch| stretch.end - stretch.start).sum();
        ctx.counters.rx_out_of_order_evicted_bytes += bytes;
        self.release(ctx, bytes as usize);
        if emptied {
            self.forget_ranges(ctx.out_of_order);
        }
        // The next D-SACK must not report bytes that were given up.
        let gone = |(from, to)| stretches.iter().any(|gone| gone.start < to && from < gone.end);
        self.duplicate = self.duplicate.filter(|(from, to)| !gone((from.get(), *to)));
        true
    }

    /// Counts `bytes` bytes, in order or not, as held until the user releases them.
    pub(in crate::tcp) fn hold(&mut self, ctx: &mut Ctx<'_>, bytes: usize) {
        self.held.hold(bytes as u64);
        ctx.counters.out_of_order.hold(bytes as u64);
        self.charge(ctx);
    }

    /// Called when the user no longer holds `bytes` bytes: subtracts `bytes` from the number of held bytes.
    pub(in crate::tcp) fn release(&mut self, ctx: &mut Ctx<'_>, bytes: usize) {
        let bytes = self.held.held_bytes.min(bytes as u64);
        self.held.release(bytes);
        ctx.counters.out_of_order.release(bytes);
        self.charge(ctx);
    }

    /// Called when the user reports that its held bytes occupy `bytes` bytes of packet buffers: stores this
    /// number.
    pub(in crate::tcp) fn pin(&mut self, ctx: &mut Ctx<'_>, bytes: usize) {
        let before = self.held.pinned_bytes;
        self.held.pin(before, bytes as u64);
        ctx.counters.out_of_order.pin(before, bytes as u64);
        self.charge(ctx);
    }

    /// Updates the connection's entry in the slab. The entry exists while there is a hole.
    fn charge(&self, ctx: &mut Ctx<'_>) {
        if let Some(key) = self.ranges {
            ctx.out_of_order.charge(key, self.held.held_bytes, self.held.pinned_bytes);
        }
    }
}
