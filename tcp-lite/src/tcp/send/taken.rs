//! The acknowledged bytes that the peer's user has taken (the peer's side is `receive/untaken.rs`).

use super::SendHalf;
use crate::facade::TcpSeqNumber;
use crate::tcp::ctx::Ctx;

/// Behind every position: all that is acknowledged is taken.
pub(super) const ALL_TAKEN: u64 = u64::MAX;

impl SendHalf {
    /// Processes a segment that acknowledges the bytes up to `ack`, of which those from `untaken` on, if
    /// given, are not taken. Returns whether the segment reports untaken bytes, or follows one that did.
    #[inline]
    pub(in crate::tcp) fn learn_taken(
        &mut self,
        ctx: &mut Ctx<'_>,
        ack: u64,
        untaken: Option<TcpSeqNumber>,
    ) -> bool {
        let tells = untaken.is_some() || self.taken != ALL_TAKEN;
        if tells {
            self.learn_told(ctx, ack, untaken);
        }
        tells
    }

    /// Bytes that are taken stay taken, so segments may arrive in any order.
    #[cold]
    fn learn_told(&mut self, ctx: &mut Ctx<'_>, ack: u64, untaken: Option<TcpSeqNumber>) {
        let una = self.queue.una();
        let acknowledged = una.max(ack);
        let told = match untaken {
            Some(seq) => (self.space.pos(seq, acknowledged).max(0) as u64).min(ack),
            None => ack,
        };
        let taken = self.taken.min(una).max(told);
        let taken = if taken < acknowledged { taken } else { ALL_TAKEN };
        if std::mem::replace(&mut self.taken, taken) != taken {
            self.raise_acknowledged(ctx, false);
        }
    }

    /// The position behind everything that is acknowledged and taken.
    pub(in crate::tcp) fn taken(&self) -> u64 {
        self.taken.min(self.pushed_and_acknowledged().1)
    }
}
