//! Trains: fresh segments that leave together. In one frame, which the port cuts where they end
//! (TSO), or which the wire passes as it is; else in frames of their own, for which connection,
//! windows and headers are looked at once.
//!
//! Only a way to transmit. Each segment has its record, its boundaries and its time, is
//! acknowledged and sent again by itself. All are as long as the first, where the port is told to
//! cut; the last may be shorter.

use super::frto::Frto;
use super::{Pending, SendHalf};
use crate::ip::IPV6_BYTES;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::MAX_HEADER_BYTES;
use crate::tcp::slabs::SegmentKey;

/// Payload bytes of a train at most: an IP packet has 65,535.
const MAX_TRAIN_BYTES: u64 = (u16::MAX as usize - IPV6_BYTES - MAX_HEADER_BYTES) as u64;

impl SendHalf {
    /// How many segments may leave together that begin with the fresh segment `first`, up to
    /// `most`, in `views` stretches of memory; and whether the last of them is the last of the
    /// queue. Asking changes nothing of the connection.
    #[inline]
    pub(in crate::tcp) fn train(
        &self,
        ctx: &Ctx<'_>,
        first: SegmentKey,
        (most, mut views): (usize, usize),
    ) -> (usize, bool) {
        // A paced connection lets its segments go one by one; a segment that was cut for a small
        // window is the last that goes.
        let alone = ctx.config.pacing.is_some() || self.pending.contains(Pending::CUT);
        let most = match self.recovery.frto {
            _ if alone => 1,
            Frto::Fresh(left) => usize::from(left).min(most),
            Frto::Off | Frto::Resent => most,
        };
        let bytes = u64::from(ctx.segments.get(first).len);
        let (mut last, mut count, mut sum) = (first, 1, bytes);
        while count < most
            && let Some(next) = self.follower(ctx, last, bytes, sum)
        {
            let segment = ctx.segments.get(next);
            if !ctx.segments.get(last).adjoins(segment) {
                if views <= 1 {
                    break;
                }
                views -= 1;
            }
            sum += u64::from(segment.len);
            (last, count) = (next, count + 1);
        }
        (count, ctx.segments.get(last).next.is_none())
    }

    /// What may leave behind `last`, the end of a train of `sum` bytes that began with a segment
    /// of `bytes`.
    fn follower(&self, ctx: &Ctx<'_>, last: SegmentKey, bytes: u64, sum: u64) -> Option<SegmentKey> {
        let before = ctx.segments.get(last);
        // A shorter one is the last.
        let next = before.next.filter(|_| u64::from(before.len) == bytes)?;
        let segment = ctx.segments.get(next);
        let fits = u64::from(segment.len) <= bytes
            && sum + u64::from(segment.len) <= MAX_TRAIN_BYTES
            && segment.end() <= self.window.edge()
            && self.pipe() + sum < self.cwnd();
        fits.then_some(next)
    }
}
