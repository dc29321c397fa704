//! The response to congestion: a loss, or marks that the peer echoes (RFC 5681 section 3.2, RFC 3168
//! section 6.1.2, RFC 8257).
//!
//! The window is reduced here. `reduction.rs` decides whether that was already done for the same
//! congestion, the congestion control algorithm how far.

use super::prr::Prr;
use super::reduction::Reduction;
use super::{Phase, SendHalf};
use crate::tcp::congestion::{CongestionControl, Signal, saturated};
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::Sent;

impl SendHalf {
    /// Reduces the window for the loss of bytes at or above `oldest`; `latest`: the latest lost
    /// transmission, if it is known; `in_flight`: RFC 5681's `FlightSize`. Returns whether it did: an earlier
    /// reduction may cover the loss.
    pub(super) fn reduce_for_loss(
        &mut self,
        ctx: &Ctx<'_>,
        oldest: u64,
        latest: Option<Sent>,
        in_flight: u64,
    ) -> bool {
        if self.reduction.answers(oldest, latest) {
            return false;
        }
        // During a recovery more may be in flight than the window allowed when the segment was lost.
        let window = if self.reduction.covers(oldest) { self.congestion.cwnd() } else { u32::MAX };
        self.congestion.on_congestion(ctx.now, saturated(in_flight).min(window), Signal::Loss);
        self.on_reduced(true);
        true
    }

    /// Reduces the window for marks.
    pub(super) fn reduce_for_marks(&mut self, ctx: &Ctx<'_>) {
        let recovering = self.recovery.phase != Phase::Open;
        let window = if recovering { self.congestion.cwnd() } else { u32::MAX };
        self.congestion.on_congestion(ctx.now, saturated(self.queue.outstanding()).min(window), Signal::Ecn);
        self.on_reduced(self.congestion.treats_marks_like_loss());
    }

    /// The window was reduced; `deep`: as for a loss.
    pub(super) fn on_reduced(&mut self, deep: bool) {
        let (announce, nr, until) = (self.agreed.ecn, self.queue.transmissions(), self.queue.nxt());
        self.reduction = Reduction::new(announce, nr, until, deep);
    }

    /// RACK found a loss during recovery; `latest` is the latest lost transmission.
    pub(super) fn reduce_for_loss_in_recovery(&mut self, ctx: &Ctx<'_>, latest: Sent) {
        if self.reduce_for_loss(ctx, self.queue.una(), Some(latest), self.queue.outstanding()) {
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

    /// The peer echoes marks up to `ack`: reduces the window at most once for each window of data (RFC
    /// 3168 section 6.1.2). During a recovery, too, marks on bytes sent since the last reduction are new
    /// congestion; a receiver of RFC 8257 echoes them only once.
    pub(super) fn on_ecn_echo(&mut self, ctx: &mut Ctx<'_>, ack: u64) {
        let recovering = self.recovery.phase != Phase::Open;
        if recovering {
            // Even if the recovery is spurious, the reduction was justified.
            self.recovery.undo.keep_reduction();
        }
        if !self.reduction.is_new_congestion(ack) {
            return;
        }
        ctx.counters.ecn_reductions += 1;
        if !recovering {
            self.recovery.undo.forget();
        }
        self.reduce_for_marks(ctx);
        if ack < self.recovery.recovery_point {
            self.restart_prr();
        }
    }
}
