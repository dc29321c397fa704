//! Trains: new segments that are sent together. A train is either one frame or one frame for each segment.
//! The port divides a single frame at the ends of the segments (TSO), or sends the whole frame. For separate
//! frames, the connection, the windows and the headers are looked up only once for the whole train.
//!
//! Only the transmission is common to the segments of a train. Each segment has its own record, boundaries
//! and time of transmission, and is acknowledged and retransmitted separately. All segments of a train are as
//! long as the first segment, except that the last segment may be shorter. TSO requires this.

use super::queue::TrainLimits;
use super::{Pending, SendHalf};
use crate::ip::IPV6_BYTES;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::MAX_HEADER_BYTES;
use crate::tcp::slabs::SegmentKey;

/// Maximum number of payload bytes of a train: an IP packet has at most 65,535 bytes.
const MAX_TRAIN_BYTES: u64 = (u16::MAX as usize - IPV6_BYTES - MAX_HEADER_BYTES) as u64;

impl SendHalf {
    /// The number of segments that may be sent together from the new segment `first` on: up to `most`
    /// segments, in at most `views` contiguous ranges of memory. Also returns whether the last of these
    /// segments is the last segment of the queue. Does not change the connection.
    #[inline]
    pub(in crate::tcp) fn train(
        &self,
        ctx: &Ctx<'_>,
        first: SegmentKey,
        (most, views): (usize, usize),
    ) -> (usize, bool) {
        // A paced connection sends its segments one by one. (A connection whose round trip is too short for
        // pacing is not paced.) If a segment has to be cut for a small window, no other segment is sent with
        // it.
        let alone = self.rate.is_paced(ctx.config) || self.pending.contains(Pending::CUT);
        let segments = match self.loss.frto_allowance() {
            _ if alone => 1,
            Some(left) => usize::from(left).min(most),
            None => most,
        };
        let allowance = self.send_limit().saturating_sub(self.pipe());
        let limits = TrainLimits { segments, views, bytes: MAX_TRAIN_BYTES, allowance };
        self.queue.train(ctx.segments, first, &limits)
    }
}
