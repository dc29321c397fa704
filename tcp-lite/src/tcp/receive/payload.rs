//! Payload arrives, in order or ahead of a hole (RFC 9293 sections 3.4 and 3.10.7.4, seventh step).
//!
//! Not here: whether a segment is acceptable at all (`connection/input.rs`), who has to give up
//! what (`reorder.rs`).

use dp::Mbuf;

use super::ReceiveHalf;
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::Room;

/// What a payload brought.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrival {
    /// The frontier moved.
    pub(super) advanced: bool,
    /// The sender should know at once: a hole appeared, shrank or closed, or bytes came twice or
    /// were dropped.
    pub(super) urgent: bool,
    /// Nothing of it was taken, for want of room: what the sender knows is still so.
    pub(super) refused: bool,
}

impl ReceiveHalf {
    /// Hands up the new bytes of `payload`, whose first byte is at `pos`.
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
            // Inside the window, but here already; the first part of them is reported (RFC 2883
            // section 4.2).
            ctx.counters.rx_duplicate_bytes += end - start - new;
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
            ctx.counters.rx_duplicate_bytes += old as u64;
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

    /// Records new bytes, or refuses them: no room for the event, or out of order and over a
    /// budget.
    fn admit(&mut self, ctx: &mut Ctx<'_>, start: u64, end: u64) -> bool {
        if !ctx.takes_bytes() {
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
        let bytes = end - start;
        let admitted = self.has_room(ctx, start, bytes) && self.insert(ctx, start, end);
        if admitted {
            self.hold(ctx, bytes as usize);
        } else {
            ctx.counters.rx_out_of_order_dropped += bytes;
        }
        admitted
    }

    /// Whether `bytes` out of order at `start` are taken. Asks for the memory they need; see
    /// `reorder.rs`.
    fn has_room(&mut self, ctx: &mut Ctx<'_>, start: u64, bytes: u64) -> bool {
        let (held, bound) = (self.held.held_bytes, u64::from(ctx.config.out_of_order_bytes));
        let furthest = self.ranges.is_none_or(|key| ctx.reorder.get(key).end() <= start);
        if held + bytes > bound {
            ctx.counters.out_of_order_over_connection += 1;
            // Beyond the bound by one segment at most, until the user has answered.
            if furthest || held > bound {
                return false;
            }
            ctx.reorder.on_asked();
            ctx.evict(ctx.conn, (held + bytes - bound) as usize);
        }
        let (need, takes) = match ctx.reorder.room(ctx.pool, bytes) {
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
        // Of the connection that keeps most the newcomer itself is the furthest: better not to take
        // it than to take it back.
        if furthest && self.ranges.is_some_and(|key| ctx.reorder.keeps_most(key)) {
            return false;
        }
        for (conn, bytes) in ctx.reorder.ask(need) {
            ctx.evict(conn, bytes);
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
}
