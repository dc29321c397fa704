//! The response to congestion: a loss, or marks that the peer echoes (RFC 5681 section 3.2, RFC 3168
//! section 6.1.2, RFC 8257).
//!
//! `rate` decides whether the window was already reduced for the same congestion, and how far it is reduced.

use super::prr::Prr;
use super::rate::{Loss, Reduction};
use super::{Phase, SendHalf};
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::Sent;

impl SendHalf {
    /// Reduces the window for a loss, unless an earlier reduction covers it. Returns the reduction before,
    /// if it did.
    pub(super) fn reduce_for_loss(&mut self, ctx: &Ctx<'_>, loss: &Loss) -> Option<Reduction> {
        let sent = self.sent_so_far();
        self.rate.reduce_for_loss(ctx.now, loss, sent)
    }

    /// RACK found a loss during recovery; `latest` is the latest lost transmission.
    pub(super) fn reduce_for_loss_in_recovery(&mut self, ctx: &Ctx<'_>, latest: Sent) {
        let (oldest, in_flight) = (self.queue.una(), self.queue.outstanding());
        if self.reduce_for_loss(ctx, &Loss { oldest, latest: Some(latest), in_flight }).is_some() {
            self.restart_prr();
        }
    }

    /// The window was reduced again: fast recovery, if in progress, restarts from what is in flight now
    /// with the new threshold.
    pub(super) fn restart_prr(&mut self) {
        if self.recovery.phase == Phase::Fast {
            self.recovery.recovery_point = self.queue.nxt();
            self.recovery.prr = Prr::new(self.pipe());
        }
    }

    /// The peer echoes marks up to `ack`.
    pub(super) fn on_ecn_echo(&mut self, ctx: &mut Ctx<'_>, ack: u64) {
        let recovering = self.recovery.phase != Phase::Open;
        if recovering {
            // Even if the recovery is spurious, the reduction was justified.
            self.recovery.undo.keep_reduction();
        }
        let (in_flight, sent) = (self.queue.outstanding(), self.sent_so_far());
        if !self.rate.reduce_for_marks(ctx.now, (ack, recovering), in_flight, sent) {
            return;
        }
        ctx.counters.ecn_reductions += 1;
        if !recovering {
            self.recovery.undo.forget();
        }
        if ack < self.recovery.recovery_point {
            self.restart_prr();
        }
    }
}
