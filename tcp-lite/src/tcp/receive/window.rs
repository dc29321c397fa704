//! The receive window: when its edge moves, and what the window field says (RFC 9293 section 3.8.6, RFC 7323
//! section 2).

use super::ReceiveHalf;
use crate::TcpConfig;
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::OutOfOrderSlab;

impl ReceiveHalf {
    /// The window field of a segment that is sent now.
    #[inline]
    pub(in crate::tcp) fn window_field(&self, ctx: &Ctx<'_>) -> u16 {
        let budget = self.window_budget(ctx.config);
        let units = budget >> self.scale;
        // A shortcut for a host that mostly sends: the user holds no bytes, and the window has its largest
        // size already.
        if self.held.held_bytes == 0 && self.edge == self.nxt + (u64::from(units) << self.scale) {
            return units as u16;
        }
        self.window(ctx.out_of_order, budget, self.mss.into())
    }

    /// Called when the user has read or released bytes: requests a window update if the peer may wait for
    /// one.
    pub(in crate::tcp) fn update_window(&mut self, ctx: &Ctx<'_>) {
        let budget = self.window_budget(ctx.config);
        if !self.has_window(ctx.config) && self.can_grow(ctx.out_of_order, budget, self.mss.into()) {
            self.acks.send_now();
        }
    }

    /// Whether the peer may still send at least half of the largest window. In this case, the peer does not
    /// wait for a window update.
    #[inline]
    pub(in crate::tcp) fn has_window(&self, config: &TcpConfig) -> bool {
        self.edge.saturating_sub(self.nxt) >= u64::from(self.window_budget(config) / 2)
    }

    /// The budget: the largest window that we announce. Without scaling, the size of the window field limits
    /// the budget.
    #[inline]
    fn window_budget(&self, config: &TcpConfig) -> u32 {
        config.recv_window_bytes.min(u32::from(u16::MAX) << self.scale)
    }

    /// The window field to send now (RFC 9293 section 3.8.6): the budget less the bytes below the frontier
    /// that the user still holds. (Held bytes above the frontier are inside the window already.)
    ///
    /// The edge stays where it was unless the window can grow ([`can_grow`](Self::can_grow)). The field
    /// counts units of `1 << scale` bytes, so it can seldom express exactly the edge that was announced
    /// before. If the next unit is within the budget and a segment fits the window, the field is rounded up
    /// to the next unit.
    ///
    /// Otherwise the field is rounded down (RFC 7323 section 2.4). If the field were rounded up, a small
    /// window could grow by less than a segment, and a peer that sends less than a unit at a time would never
    /// see the window close. The receiver accepts bytes up to `edge` in both cases.
    #[inline]
    fn window(&self, slab: &OutOfOrderSlab, budget_bytes: u32, mss: u32) -> u16 {
        let target = self.target_edge(slab, budget_bytes);
        let step = min_growth(budget_bytes, mss);
        let field = match self.grown_edge(target, step) {
            Some(edge) => (edge - self.nxt) >> self.scale,
            None => {
                let bytes = self.edge.saturating_sub(self.nxt);
                let beyond = bytes.div_ceil(1 << self.scale);
                let fits = bytes >= step && self.nxt + (beyond << self.scale) <= target;
                if fits { beyond } else { bytes >> self.scale }
            }
        };
        field.min(u64::from(u16::MAX)) as u16
    }

    /// Whether the window may be opened now. To avoid silly windows, the window is opened by at least a
    /// segment, or by half the budget if this is less (RFC 9293 section 3.8.6.2.2).
    fn can_grow(&self, slab: &OutOfOrderSlab, budget_bytes: u32, mss: u32) -> bool {
        self.grown_edge(self.target_edge(slab, budget_bytes), min_growth(budget_bytes, mss)).is_some()
    }

    #[inline]
    fn target_edge(&self, slab: &OutOfOrderSlab, budget_bytes: u32) -> u64 {
        let held_below = if self.held.held_bytes == 0 { 0 } else { self.held_below(slab) };
        self.nxt + u64::from(budget_bytes).saturating_sub(held_below)
    }

    /// Number of bytes below the frontier that the user holds.
    #[inline(never)]
    fn held_below(&self, slab: &OutOfOrderSlab) -> u64 {
        let above = self.ranges.map_or(0, |key| slab.get(key).bytes());
        self.held.held_bytes.saturating_sub(above)
    }

    /// The last edge up to `target` that a window field can express; `None` if this edge is less than `step`
    /// bytes beyond the present edge.
    #[inline]
    fn grown_edge(&self, target: u64, step: u64) -> Option<u64> {
        let edge = self.nxt + ((target - self.nxt) >> self.scale << self.scale);
        (edge >= self.edge + step).then_some(edge)
    }

    /// The window field of a segment that acknowledges only the bytes up to `ack`. The window ends at the
    /// announced edge.
    pub(in crate::tcp) fn window_from(&self, ack: u64) -> u16 {
        (self.edge.saturating_sub(ack) >> self.scale).min(u64::from(u16::MAX)) as u16
    }

    /// Called when a segment that acknowledges the bytes up to `ack` was sent with this window field: moves
    /// the edge.
    #[inline]
    pub(super) fn on_window_sent(&mut self, ack: u64, window: u16) {
        self.edge = self.edge.max(ack + (u64::from(window) << self.scale));
    }
}

/// Minimum number of bytes by which the window's edge moves.
#[inline]
fn min_growth(budget_bytes: u32, mss: u32) -> u64 {
    u64::from(mss.min(budget_bytes / 2))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facade::TcpSeqNumber;
    use crate::tcp::open_params::{Agreed, OpenParams};

    fn receive_half() -> ReceiveHalf {
        let params = OpenParams {
            local_port: 1,
            remote_port: 2,
            iss: TcpSeqNumber(0),
            timestamp_offset: 0,
            mss: 500,
            base_mss: 500,
            default_peer_mss: 500,
        };
        let agreed = Agreed { timestamps: false, sack: true, window_scale: Some(7), ecn: false };
        ReceiveHalf::new(&TcpConfig::default(), &params, agreed)
    }

    /// An edge that no window field can express is rounded up, but not beyond the budget.
    #[test]
    fn rounding_announces_no_more_than_the_budget() {
        let slab = OutOfOrderSlab::new(1, 1, &dp::Mempool::heap("test", 1, 64));
        let mut receive = receive_half();
        (receive.nxt, receive.edge, receive.scale) = (51, 1025, 7);
        // The edge is 974 bytes away: a window of 8 units ends at 1075, and a window of 7 units ends at 947.
        let window = |budget| receive.window(&slab, budget, 500);
        assert_eq!([window(1023), window(1024)], [7, 8]);
    }
}
