//! Processes payload, in order or beyond a hole (RFC 9293 sections 3.4 and 3.10.7.4, seventh step).
//!
//! `connection/input.rs` decides whether a segment is acceptable. `slabs/out_of_order.rs` decides which
//! connection has to give up memory.

use std::num::NonZeroU64;

use dp::Mbuf;

use super::ReceiveHalf;
use crate::tcp::ctx::Ctx;
use crate::tcp::seq::offset_of;
use crate::tcp::slabs::Room;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrival {
    /// True if the frontier moved.
    pub(super) advanced: bool,
    /// True if an immediate acknowledgement is required: a hole appeared, shrank or closed, or bytes were
    /// duplicates or dropped.
    pub(super) ack_now: bool,
    /// True if no byte was accepted, because memory is short or the event queue is full. In this case, an
    /// acknowledgement would report nothing new.
    pub(super) refused: bool,
}

impl ReceiveHalf {
    /// Passes the new bytes of `payload`, whose first byte is at `pos`, to the user.
    pub(super) fn take(&mut self, ctx: &mut Ctx<'_>, pos: i64, mut payload: Mbuf) -> Arrival {
        let mut arrival = Arrival::default();
        let before = self.nxt;
        let start = self.trim(ctx, pos, &mut payload, &mut arrival);
        let end = start + payload.len() as u64;
        let had_hole = self.ranges.is_some();
        let mut rest = Some(payload);
        let mut gap = self.gap(ctx, start, end);
        let mut accepted = 0;
        let (mut seen_to, mut first_duplicate, mut refused) = (start, None, false);
        while let Some((from, to)) = gap {
            if seen_to < from {
                first_duplicate = first_duplicate.or(Some((seen_to, from)));
            }
            seen_to = to;
            gap = self.gap(ctx, to, end);
            // The last piece is the buffer itself. Earlier pieces are views of the buffer.
            let piece = if gap.is_some() { rest.as_ref().and_then(Mbuf::share) } else { rest.take() };
            let Some(mut piece) = piece else {
                ctx.counters.rx_no_mbuf += 1;
                arrival.ack_now = true;
                break;
            };
            piece.advance((from - start) as usize);
            piece.truncate((to - from) as usize);
            if self.admit(ctx, from, to) {
                accepted += to - from;
                ctx.received(offset_of(from), piece, offset_of(self.nxt));
            } else {
                arrival.ack_now = true;
                refused = true;
            }
        }
        arrival.refused = accepted == 0 && refused;
        if accepted < end - start && !arrival.ack_now {
            // The segment has duplicate bytes inside the window. The first run of duplicate bytes is reported
            // (RFC 2883 section 4.2).
            ctx.counters.rx_duplicate_bytes += end - start - accepted;
            let (from, to) = first_duplicate.unwrap_or((seen_to, end));
            self.duplicate = NonZeroU64::new(from).map(|from| (from, to));
            if let Some(ranges) = self.ranges {
                ctx.out_of_order.get_mut(ranges).touch(start);
            }
            arrival.ack_now = true;
        }
        if self.fin == self.nxt {
            self.nxt += 1;
        }
        arrival.advanced = self.nxt != before;
        arrival.ack_now |= had_hole || self.ranges.is_some();
        arrival
    }

    /// Cuts off the bytes below the frontier, beyond the window, and after the peer's FIN. Returns the
    /// position of the first remaining byte.
    fn trim(&mut self, ctx: &mut Ctx<'_>, pos: i64, payload: &mut Mbuf, arrival: &mut Arrival) -> u64 {
        let old = (self.nxt as i64 - pos).clamp(0, payload.len() as i64) as usize;
        if old > 0 {
            payload.advance(old);
            ctx.counters.rx_duplicate_bytes += old as u64;
            self.report_duplicate(pos, old);
            arrival.ack_now = true;
        }
        let start = (pos + old as i64).max(1) as u64;
        // RFC 5041 section 6.2.1 (DDP-150): no data follows the FIN that announces a graceful teardown. Bytes
        // after the FIN are cut off here, so that DDP never receives such bytes.
        let limit = self.fin.min(self.edge);
        let room = limit.saturating_sub(start).min(payload.len() as u64) as usize;
        if room < payload.len() {
            payload.truncate(room);
            arrival.ack_now = true;
        }
        start
    }

    fn gap(&self, ctx: &Ctx<'_>, start: u64, end: u64) -> Option<(u64, u64)> {
        match self.ranges {
            Some(ranges) => ctx.out_of_order.get(ranges).gap(start, end),
            None => (start < end).then_some((start, end)),
        }
    }

    /// Records new bytes and returns `true`. Returns `false` if the bytes are refused: the event queue is
    /// full, or the bytes are out of order and exceed a limit.
    fn admit(&mut self, ctx: &mut Ctx<'_>, start: u64, end: u64) -> bool {
        if !ctx.takes_bytes() {
            return false;
        }
        if start == self.nxt {
            self.nxt = end;
            if let Some(key) = self.ranges {
                let ranges = ctx.out_of_order.get_mut(key);
                self.nxt = ranges.absorb(end);
                if ranges.is_empty() {
                    self.forget_ranges(ctx.out_of_order);
                }
            }
            return true;
        }
        let bytes = end - start;
        let admitted = self.make_room(ctx, start, end) && self.insert(ctx, start, end);
        if admitted {
            self.hold(ctx, bytes as usize);
        } else {
            ctx.counters.rx_out_of_order_dropped_bytes += bytes;
        }
        admitted
    }

    /// Whether the out-of-order bytes `start..end` are accepted. If memory is short, asks connections to give
    /// up memory; see `slabs/out_of_order.rs`. If this connection exceeds its own limit, its user is asked to
    /// give up the excess, but only if the bytes are accepted.
    fn make_room(&mut self, ctx: &mut Ctx<'_>, start: u64, end: u64) -> bool {
        let bytes = end - start;
        let (charge, bound) = (self.out_of_order_charge(), u64::from(ctx.config.out_of_order_bytes));
        let ranges = self.ranges.map(|key| ctx.out_of_order.get(key));
        if ranges.is_some_and(|ranges| !ranges.takes(start, end)) {
            return false;
        }
        let furthest = ranges.is_none_or(|ranges| ranges.end() <= start);
        let excess = (charge + bytes).saturating_sub(bound);
        if excess > 0 {
            ctx.counters.out_of_order_over_connection += 1;
            // Bytes below the last range are still accepted until the held bytes exceed the limit, because
            // the user gives up other bytes for them.
            if furthest || self.held.held_bytes > bound {
                return false;
            }
        }
        let (need, takes) = match ctx.out_of_order.room(ctx.pool, bytes) {
            Room::Plenty => (0, true),
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
        // If this connection holds the most memory, it would be asked to give up its bytes furthest from the
        // frontier, and these bytes are the new segment. It is better to refuse this segment than to accept
        // it and then evict it.
        if need > 0 && furthest && self.ranges.is_some_and(|key| ctx.out_of_order.is_charged_most(key)) {
            return false;
        }
        if excess > 0 && takes {
            ctx.out_of_order.on_eviction_requested();
            // Converts the excess from charged bytes to bytes of payload, in proportion.
            let payload = (excess * self.held.held_bytes.max(1)).div_ceil(charge.max(1));
            ctx.evict(ctx.conn, payload as usize);
        }
        if need > 0 {
            for (conn, bytes) in ctx.out_of_order.request_eviction(need) {
                ctx.evict(conn, bytes);
            }
        }
        takes
    }

    /// The number of bytes that count against the connection's limit: the held bytes, or half of the pinned
    /// bytes if this half is larger. Scattered bytes pin many packet buffers. Half of the pinned bytes
    /// counts, because a full segment fills more than half of a buffer.
    fn out_of_order_charge(&self) -> u64 {
        self.held.held_bytes.max(self.held.pinned_bytes / 2)
    }

    fn insert(&mut self, ctx: &mut Ctx<'_>, start: u64, end: u64) -> bool {
        let Some(key) = self.ranges.or_else(|| ctx.out_of_order.take(ctx.conn)) else { return false };
        self.ranges = Some(key);
        ctx.out_of_order.get_mut(key).insert(start, end);
        true
    }
}
