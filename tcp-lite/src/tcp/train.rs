//! Trains: fresh segments that leave together. In one frame, which the port cuts where they end (TSO), or which the wire passes as it
//! is; else in frames of their own, for which connection, windows and headers are looked at once.
//!
//! Only a way to transmit. Each segment has its record, its boundaries and its time, is acknowledged and sent again by
//! itself. All are as long as the first, where the port is told to cut; the last may be shorter.

use super::ctx::Ctx;
use super::frto::Frto;
use super::header::{Flags, MAX_HEADER_OCTETS};
use super::output::{Kind, Payload, Transmission};
use super::send::SegmentKey;
use super::tcb::{Pending, Tcb};
use crate::ip::IPV6_OCTETS;

/// Segments of a train at most: buffers of a frame, less one for the headers.
pub(crate) const MAX_TRAIN: usize = dp::mbuf::MAX_SEGMENTS - 1;

/// Payload octets of a train at most: an IP packet has 65,535.
const MAX_TRAIN_OCTETS: u64 = (u16::MAX as usize - IPV6_OCTETS - MAX_HEADER_OCTETS) as u64;

impl Tcb {
    /// Adds to `transmission` what may leave together with it, to `most` segments in all that lie in `views` stretches of memory.
    /// Asking changes nothing of the connection.
    pub(crate) fn couple(
        &self,
        ctx: &Ctx<'_>,
        transmission: &mut Transmission,
        (most, mut views): (usize, usize),
    ) {
        let Some(Payload::Segment(first)) = transmission.payload else { return };
        // CWR is for one segment alone; a paced connection lets its segments go one by one; a segment that was cut for a
        // small window is the last that goes.
        if transmission.kind != Kind::Fresh
            || transmission.header.flags.contains(Flags::CWR)
            || ctx.config.pacing.is_some()
            || self.pending.contains(Pending::CUT)
        {
            return;
        }
        let most = match self.recovery.frto {
            Frto::Fresh(left) => usize::from(left).min(most),
            Frto::Off | Frto::Resent => most,
        };
        let octets = u64::from(ctx.segments.get(first).len);
        let (mut last, mut count, mut sum) = (first, 1, octets);
        while count < most
            && let Some(next) = self.follower(ctx, last, octets, sum)
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
        transmission.segments = count;
        if ctx.segments.get(last).next.is_none() {
            transmission.header.flags |= Flags::PSH;
        }
    }

    /// What may leave behind `last`, the end of a train of `sum` octets that began with a segment of `octets`.
    fn follower(&self, ctx: &Ctx<'_>, last: SegmentKey, octets: u64, sum: u64) -> Option<SegmentKey> {
        let before = ctx.segments.get(last);
        // A shorter one is the last.
        let next = before.next.filter(|_| u64::from(before.len) == octets)?;
        let segment = ctx.segments.get(next);
        let fits = u64::from(segment.len) <= octets
            && sum + u64::from(segment.len) <= MAX_TRAIN_OCTETS
            && segment.end() <= self.window.edge
            && self.pipe() + sum < self.cwnd();
        fits.then_some(next)
    }
}
