//! The peer's timestamps: TS.Recent and PAWS (RFC 7323 sections 4.3 and 5).

use crate::Duration;
use crate::tcp::ctx::{Ctx, Seconds};
use crate::tcp::header::{Flags, TcpHeader};

/// The age at which TS.Recent becomes invalid (RFC 7323 section 5.5: 24 days).
const TS_RECENT_LIFE: Duration = Duration::from_secs(24 * 24 * 3600);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerTimestamps {
    /// TS.Recent, and the time at which it was stored.
    recent: u32,
    recent_at: Seconds,
}

impl PeerTimestamps {
    #[inline]
    pub(super) fn recent(&self) -> u32 {
        self.recent
    }

    /// Stores a timestamp of the peer as TS.Recent.
    pub(super) fn set(&mut self, ctx: &Ctx<'_>, value: u32) {
        *self = Self { recent: value, recent_at: ctx.second() };
    }

    /// Updates TS.Recent (RFC 7323 section 4.3) from an acceptable segment at `pos`. Any value replaces an
    /// outdated TS.Recent (section 5.5).
    #[inline]
    pub(super) fn learn(&mut self, ctx: &Ctx<'_>, header: &TcpHeader, pos: i64, last_ack_sent: u64) {
        if let Some((value, _)) = header.options.timestamps
            && pos <= last_ack_sent as i64
            && (self.is_newest(value) || self.is_outdated(ctx))
        {
            self.set(ctx, value);
        }
    }

    /// Whether `value` is not older than TS.Recent.
    #[inline]
    pub(super) fn is_newest(&self, value: u32) -> bool {
        value.wrapping_sub(self.recent) as i32 >= 0
    }

    /// Whether the timestamp of a segment shows that the segment is old (PAWS, RFC 7323 section 5.2). As in
    /// most stacks, a segment without timestamps does not count as old.
    #[inline]
    pub(super) fn is_old(&self, ctx: &Ctx<'_>, header: &TcpHeader) -> bool {
        let Some((value, _)) = header.options.timestamps else { return false };
        !header.flags.contains(Flags::RST) && !self.is_newest(value) && !self.is_outdated(ctx)
    }

    fn is_outdated(&self, ctx: &Ctx<'_>) -> bool {
        u64::from(ctx.second().wrapping_sub(self.recent_at)) >= TS_RECENT_LIFE.secs()
    }
}
