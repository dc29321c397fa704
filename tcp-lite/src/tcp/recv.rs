//! The receive side: frontier, what arrived beyond it, the window, SACK blocks (RFC 9293 section 3.8.6, RFC 2018,
//! RFC 2883).
//!
//! Octets are handed up when they arrive, in order or not, and never again: a segment that overlaps what was
//! handed up is trimmed to its new parts. So TCP holds no data, only ranges, and those live in a slab of the stack
//! while there is a hole. What its user gives up again under pressure counts as not received.
//! Not here: whether a segment is acceptable at all (`input.rs`), who has to give up what (`reorder.rs`).

use std::ops::Range;

use arrayvec::ArrayVec;
use dp::Mbuf;

use super::ctx::Ctx;
use super::header::{MAX_SACK_BLOCKS, SackBlock};
use super::out_of_order::OutOfOrder;
use super::reorder::{ReorderSlab, Room};
use super::seq::SeqSpace;
use crate::facade::TcpSeqNumber;

/// Receive state of one connection. Positions as in `seq.rs`.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) space: SeqSpace,
    /// RCV.NXT, the frontier.
    pub(super) nxt: u64,
    /// The right edge of the window, never taken back.
    pub(super) edge: u64,
    /// Shift of the windows we announce.
    pub(super) scale: u8,
    /// Where the peer's FIN stands, once known.
    pub(super) fin: Option<u64>,
    ranges: Option<u32>,
    /// Octets handed up and not released: ahead of the frontier, or in order and held all the same.
    pub(super) held: OutOfOrder,
    /// Octets that arrived twice, to be reported (RFC 2883).
    duplicate: Option<(u64, u64)>,
}

/// What a payload brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrival {
    /// The frontier moved.
    pub(super) advanced: bool,
    /// The sender should know at once: a hole appeared, shrank or closed, or octets came twice or were dropped.
    pub(super) urgent: bool,
    /// Nothing of it was taken, for want of room: what the sender knows is still so.
    pub(super) refused: bool,
}

impl Receiver {
    /// From the peer's SYN on. `window_octets` is what our SYN announces.
    pub(super) fn new(space: SeqSpace, scale: u8, window_octets: u32) -> Self {
        Self {
            space,
            nxt: 1,
            edge: 1 + u64::from(window_octets),
            scale,
            fin: None,
            ranges: None,
            held: OutOfOrder::default(),
            duplicate: None,
        }
    }

    /// Whether `seq` is at the frontier, with nothing beyond it.
    pub(super) fn is_next(&self, seq: TcpSeqNumber) -> bool {
        self.ranges.is_none() && seq == self.space.seq(self.nxt)
    }

    /// All the peer's octets and its FIN are here.
    pub(super) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.nxt > fin)
    }

    /// Hands up the new octets of `payload`, whose first octet is at `pos`.
    pub(super) fn take(&mut self, ctx: &mut Ctx<'_>, pos: i64, mut payload: Mbuf) -> Arrival {
        let mut arrival = Arrival::default();
        let before = self.nxt;
        let start = self.trim(ctx, pos, &mut payload, &mut arrival);
        let end = start + payload.len() as u64;
        let had_hole = self.ranges.is_some();
        let mut view = Some(payload);
        let mut gap = self.gap(ctx, start, end);
        let mut new = 0;
        let (mut at, mut twice, mut refused) = (start, None, false);
        while let Some((from, to)) = gap {
            if at < from {
                twice = twice.or(Some((at, from)));
            }
            at = to;
            gap = self.gap(ctx, to, end);
            // The last piece takes the buffer itself, the others views of it.
            let piece = if gap.is_some() { view.as_ref().and_then(Mbuf::share) } else { view.take() };
            let Some(mut piece) = piece else {
                ctx.counters.tx_no_mbuf += 1;
                arrival.urgent = true;
                break;
            };
            piece.advance((from - start) as usize);
            piece.truncate((to - from) as usize);
            if self.admit(ctx, from, to) {
                new += to - from;
                ctx.received(from - 1, piece, self.nxt - 1);
            } else {
                arrival.urgent = true;
                refused = true;
            }
        }
        arrival.refused = new == 0 && refused;
        if new < end - start && !arrival.urgent {
            // Inside the window, but here already; the first part of them is reported (RFC 2883 section 4.2).
            ctx.counters.rx_duplicate_octets += end - start - new;
            self.duplicate = twice.or(Some((at, end)));
            if let Some(ranges) = self.ranges {
                ctx.reorder.get_mut(ranges).touch(start);
            }
            arrival.urgent = true;
        }
        if self.fin == Some(self.nxt) {
            self.nxt += 1;
        }
        arrival.advanced = self.nxt != before;
        arrival.urgent |= had_hole || self.ranges.is_some();
        arrival
    }

    /// Cuts off what lies outside the window or was in order before; returns where the rest starts.
    fn trim(&mut self, ctx: &mut Ctx<'_>, pos: i64, payload: &mut Mbuf, arrival: &mut Arrival) -> u64 {
        let old = (self.nxt as i64 - pos).clamp(0, payload.len() as i64) as usize;
        if old > 0 {
            payload.advance(old);
            ctx.counters.rx_duplicate_octets += old as u64;
            self.report_duplicate(pos, old);
            arrival.urgent = true;
        }
        let start = (pos + old as i64).max(1) as u64;
        let limit = self.fin.map_or(self.edge, |fin| fin.min(self.edge));
        let room = limit.saturating_sub(start).min(payload.len() as u64) as usize;
        if room < payload.len() {
            payload.truncate(room);
            arrival.urgent = true;
        }
        start
    }

    fn gap(&self, ctx: &Ctx<'_>, start: u64, end: u64) -> Option<(u64, u64)> {
        match self.ranges {
            Some(ranges) => ctx.reorder.get(ranges).gap(start, end),
            None => (start < end).then_some((start, end)),
        }
    }

    /// Records new octets, or refuses them: no room for the event, or out of order and over a budget.
    fn admit(&mut self, ctx: &mut Ctx<'_>, start: u64, end: u64) -> bool {
        if !ctx.takes_octets() {
            return false;
        }
        if start == self.nxt {
            self.nxt = end;
            if let Some(key) = self.ranges {
                let ranges = ctx.reorder.get_mut(key);
                self.nxt = ranges.absorb(end);
                if ranges.is_empty() {
                    self.forget_ranges(ctx.reorder);
                }
            }
            return true;
        }
        let octets = end - start;
        let admitted = self.has_room(ctx, start, octets) && self.insert(ctx, start, end);
        if admitted {
            self.hold(ctx, octets as usize);
        } else {
            ctx.counters.rx_out_of_order_dropped += octets;
        }
        admitted
    }

    /// Whether `octets` out of order at `start` are taken. Asks for the memory they need; see `reorder.rs`.
    fn has_room(&mut self, ctx: &mut Ctx<'_>, start: u64, octets: u64) -> bool {
        let (held, bound) = (self.held.held_octets, u64::from(ctx.config.out_of_order_octets));
        let furthest = self.ranges.is_none_or(|key| ctx.reorder.get(key).end() <= start);
        if held + octets > bound {
            ctx.counters.out_of_order_over_connection += 1;
            // Beyond the bound by one segment at most, until the user has answered.
            if furthest || held > bound {
                return false;
            }
            ctx.reorder.on_asked();
            ctx.evict(ctx.conn, (held + octets - bound) as usize);
        }
        let (need, takes) = match ctx.reorder.room(ctx.pool, octets) {
            Room::Plenty => return true,
            Room::Tight(need) => (need, true),
            Room::Full(need) => {
                ctx.counters.out_of_order_over_stack += 1;
                (need, false)
            }
            Room::NoBuffers(need) => {
                ctx.counters.out_of_order_no_buffers += 1;
                (need, false)
            }
        };
        // Of the connection that keeps most the newcomer itself is the furthest: better not to take it than to take it back.
        if furthest && self.ranges.is_some_and(|key| ctx.reorder.keeps_most(key)) {
            return false;
        }
        for (conn, octets) in ctx.reorder.ask(need) {
            ctx.evict(conn, octets);
        }
        takes
    }

    fn insert(&mut self, ctx: &mut Ctx<'_>, start: u64, end: u64) -> bool {
        let Some(key) = self.ranges.or_else(|| ctx.reorder.take(ctx.conn)) else { return false };
        self.ranges = Some(key);
        let ranges = ctx.reorder.get_mut(key);
        let takes = ranges.takes(start, end);
        if takes {
            ranges.insert(start, end);
        }
        takes
    }

    /// The user gives up the octets at these positions, or none of them: `false` if not all are ahead of the frontier,
    /// or if that would leave more ranges than are told apart.
    pub(super) fn evict(&mut self, ctx: &mut Ctx<'_>, stretches: &[Range<u64>]) -> bool {
        let Some(key) = self.ranges else { return false };
        let ranges = ctx.reorder.get_mut(key);
        if !ranges.remove(stretches) {
            return false;
        }
        let emptied = ranges.is_empty();
        let octets: u64 = stretches.iter().map(|stretch| stretch.end - stretch.start).sum();
        ctx.counters.rx_out_of_order_evicted += octets;
        self.release(ctx, octets as usize);
        if emptied {
            self.forget_ranges(ctx.reorder);
        }
        // Nothing may be said to be here that is not.
        let gone = |(from, to)| stretches.iter().any(|gone| gone.start < to && from < gone.end);
        self.duplicate = self.duplicate.filter(|duplicate| !gone(*duplicate));
        true
    }

    /// Gives the range set back.
    fn forget_ranges(&mut self, slab: &mut ReorderSlab) {
        if let Some(key) = self.ranges.take() {
            slab.remove(key);
        }
    }

    /// Takes the peer's FIN. The first one counts. The frontier passes it when all bytes before it have arrived. A FIN
    /// below bytes that have arrived is ignored: nothing follows a FIN (RFC 9293 section 3.4).
    pub(super) fn take_fin(&mut self, reorder: &ReorderSlab, pos: u64) {
        if self.ranges.is_some_and(|key| reorder.get(key).end() > pos) {
            return;
        }
        if *self.fin.get_or_insert(pos) == self.nxt {
            self.nxt += 1;
        }
    }

    /// A whole segment at `pos` came again: its octets are named in the next SACK block.
    pub(super) fn report_duplicate(&mut self, pos: i64, octets: usize) {
        let end = pos + octets as i64;
        if end > 1 {
            self.duplicate = Some((pos.max(1) as u64, end as u64));
        }
    }

    /// `octets` handed up in order count as held.
    pub(super) fn hold(&mut self, ctx: &mut Ctx<'_>, octets: usize) {
        self.held.hold(octets as u64);
        ctx.counters.out_of_order.hold(octets as u64);
        self.weigh(ctx);
    }

    /// `octets` handed up ahead of the frontier are no longer held.
    pub(super) fn release(&mut self, ctx: &mut Ctx<'_>, octets: usize) {
        let octets = self.held.held_octets.min(octets as u64);
        self.held.release(octets);
        ctx.counters.out_of_order.release(octets);
        self.weigh(ctx);
    }

    /// The user keeps `octets` octets of packet buffers for what is held.
    pub(super) fn pin(&mut self, ctx: &mut Ctx<'_>, octets: usize) {
        let before = self.held.pinned_octets;
        self.held.pin(before, octets as u64);
        ctx.counters.out_of_order.pin(before, octets as u64);
        self.weigh(ctx);
    }

    /// What the connection holds counts among the others' while it has a hole.
    fn weigh(&self, ctx: &mut Ctx<'_>) {
        if let Some(key) = self.ranges {
            ctx.reorder.weigh(key, self.held.held_octets, self.held.pinned_octets);
        }
    }

    /// The connection is over: nothing of it is counted any more.
    pub(super) fn dispose(&mut self, ctx: &mut Ctx<'_>) {
        self.forget_ranges(ctx.reorder);
        self.release(ctx, usize::MAX);
        self.pin(ctx, 0);
    }

    /// The window field to send now (RFC 9293 section 3.8.6): the budget less what the user still holds below the
    /// frontier (what is above lies inside the window already).
    ///
    /// The edge stays where it was unless the window [`grows`](Self::grows). The field counts units of `1 << scale` octets, so
    /// that an edge that stays is seldom one it can say. Then it says the next one beyond, as long as that is within
    /// the budget and a segment fits the window; a smaller window would grow by less than a segment, and a peer that sends less than a
    /// unit at a time would never see it close. There it says the last one in front (RFC 7323 section 2.4); up to `edge` octets
    /// are taken all the same.
    pub(super) fn window(&self, slab: &ReorderSlab, budget_octets: u32, mss: u32) -> u16 {
        let wanted = self.wanted(slab, budget_octets);
        let step = step(budget_octets, mss);
        let field = match self.grown(wanted, step) {
            Some(edge) => (edge - self.nxt) >> self.scale,
            None => {
                let octets = self.edge.saturating_sub(self.nxt);
                let beyond = octets.div_ceil(1 << self.scale);
                let fits = octets >= step && self.nxt + (beyond << self.scale) <= wanted;
                if fits { beyond } else { octets >> self.scale }
            }
        };
        field.min(u64::from(u16::MAX)) as u16
    }

    /// Whether the window may be opened now: by a segment or half the budget at least, against the silly window
    /// (RFC 9293 section 3.8.6.2.2).
    pub(super) fn grows(&self, slab: &ReorderSlab, budget_octets: u32, mss: u32) -> bool {
        self.grown(self.wanted(slab, budget_octets), step(budget_octets, mss)).is_some()
    }

    /// The edge that the budget allows now.
    fn wanted(&self, slab: &ReorderSlab, budget_octets: u32) -> u64 {
        let above = self.ranges.map_or(0, |key| slab.get(key).octets());
        let held_below = self.held.held_octets.saturating_sub(above);
        self.nxt + u64::from(budget_octets).saturating_sub(held_below)
    }

    /// The last edge up to `wanted` that a window field can say, if that is `step` octets beyond the present one.
    fn grown(&self, wanted: u64, step: u64) -> Option<u64> {
        let edge = self.nxt + ((wanted - self.nxt) >> self.scale << self.scale);
        (edge >= self.edge + step).then_some(edge)
    }

    /// The window field of a segment that acknowledges only up to `ack`: to the edge that was announced.
    pub(super) fn window_from(&self, ack: u64) -> u16 {
        (self.edge.saturating_sub(ack) >> self.scale).min(u64::from(u16::MAX)) as u16
    }

    /// A segment that acknowledges up to `ack` was sent with this window field.
    pub(super) fn on_window_sent(&mut self, ack: u64, window: u16) {
        self.edge = self.edge.max(ack + (u64::from(window) << self.scale));
    }

    /// SACK blocks to send, `count` at most: octets that came twice, then the ranges, latest first
    /// (RFC 2018 section 4, RFC 2883 section 4).
    pub(super) fn sack_blocks(
        &self,
        slab: &ReorderSlab,
        count: usize,
    ) -> ArrayVec<SackBlock, MAX_SACK_BLOCKS> {
        let mut blocks = ArrayVec::new();
        let count = count.min(MAX_SACK_BLOCKS);
        let block = |start, end| (self.space.seq(start), self.space.seq(end));
        if let Some((start, end)) = self.duplicate.filter(|_| count > 0) {
            blocks.push(block(start, end));
        }
        if let Some(key) = self.ranges {
            let recent = slab.get(key).recent::<MAX_SACK_BLOCKS>(count - blocks.len().min(count));
            blocks.extend(recent.iter().map(|range| block(range.start, range.end)));
        }
        blocks
    }

    /// Whether there is something to put into SACK blocks.
    pub(super) fn has_sack_blocks(&self) -> bool {
        self.duplicate.is_some() || self.ranges.is_some()
    }

    /// The SACK blocks were sent: duplicates are reported once.
    pub(super) fn on_sack_sent(&mut self) {
        self.duplicate = None;
    }
}

/// Octets by which the edge of a window moves, at least.
fn step(budget_octets: u32, mss: u32) -> u64 {
    u64::from(mss.min(budget_octets / 2))
}

#[cfg(test)]
mod tests {
    use super::super::reorder::ReorderSlab;
    use super::*;
    use crate::facade::TcpSeqNumber;

    /// An edge that no window field can say is rounded up, but not beyond what the budget allows.
    #[test]
    fn rounding_announces_no_more_than_the_budget() {
        let slab = ReorderSlab::new(1, 1, &dp::Mempool::heap("test", 1, 64));
        let mut receiver = Receiver::new(SeqSpace::new(TcpSeqNumber(0)), 7, 1024);
        (receiver.nxt, receiver.edge) = (51, 1025);
        // 974 bytes up to the edge: 8 units reach to 1075, 7 to 947.
        let window = |budget| receiver.window(&slab, budget, 500);
        assert_eq!([window(1023), window(1024)], [7, 8]);
    }
}
