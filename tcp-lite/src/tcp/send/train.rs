//! Trains: new segments that leave together. Either in one frame, which the port cuts at their ends
//! (TSO) or passes uncut, or in frames of their own, for which connection, windows and headers are
//! looked up once.
//!
//! Trains exist only in transmission. Each segment has its own record, boundaries and time of
//! transmission, and is acknowledged and retransmitted by itself. If the port cuts, all are as long as
//! the first, except that the last may be shorter.

use super::{Pending, SendHalf};
use crate::ip::IPV6_BYTES;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::MAX_HEADER_BYTES;
use crate::tcp::slabs::{EXTERNAL_VIEWS, SegmentKey};

/// Maximum payload bytes of a train: an IP packet has at most 65,535 bytes.
const MAX_TRAIN_BYTES: u64 = (u16::MAX as usize - IPV6_BYTES - MAX_HEADER_BYTES) as u64;

impl SendHalf {
    /// The number of segments that may leave together from the new segment `first` on: up to `most`, in
    /// at most `views` contiguous ranges of memory. Also returns whether the last of them is the last of
    /// the queue. Changes nothing in the connection.
    #[inline]
    pub(in crate::tcp) fn train(
        &self,
        ctx: &Ctx<'_>,
        first: SegmentKey,
        (most, mut views): (usize, usize),
    ) -> (usize, bool) {
        // A paced connection sends its segments one by one (one whose path is too short for pacing is not
        // paced). A segment that was cut for a small window is the last one sent.
        let alone = self.rate.is_paced(ctx.config) || self.pending.contains(Pending::CUT);
        let most = match self.loss.frto_allowance() {
            _ if alone => 1,
            Some(left) => usize::from(left).min(most),
            None => most,
        };
        let bytes = u64::from(ctx.segments.get(first).len);
        let external = ctx.segments.is_external(first);
        if external {
            views = views.saturating_sub(EXTERNAL_VIEWS - 1);
        }
        let (mut last, mut count, mut sum) = (first, 1, bytes);
        while count < most
            && let Some(next) = self.follower(ctx, last, bytes, sum)
        {
            let segment = ctx.segments.get(next);
            if external || !ctx.segments.get(last).adjoins(segment) {
                let more = if external { EXTERNAL_VIEWS } else { 1 };
                if views <= more {
                    break;
                }
                views -= more;
            }
            sum += u64::from(segment.len);
            (last, count) = (next, count + 1);
        }
        (count, ctx.segments.get(last).next.is_none())
    }

    /// The segment that may follow `last`, the end of a train of `sum` bytes that began with a segment
    /// of `bytes`.
    #[inline]
    fn follower(&self, ctx: &Ctx<'_>, last: SegmentKey, bytes: u64, sum: u64) -> Option<SegmentKey> {
        let before = ctx.segments.get(last);
        // A shorter segment ends the train.
        let next = before.next.filter(|_| u64::from(before.len) == bytes)?;
        let segment = ctx.segments.get(next);
        let fits = u64::from(segment.len) <= bytes
            && segment.external.is_some() == before.external.is_some()
            && sum + u64::from(segment.len) <= MAX_TRAIN_BYTES
            && self.queue.fits_window(segment)
            && self.pipe() + sum < self.send_limit();
        fits.then_some(next)
    }
}
