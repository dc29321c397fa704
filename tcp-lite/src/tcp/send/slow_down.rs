//! The answers to congestion: a loss, or marks that the peer echoes (RFC 5681 section 3.2, RFC 3168
//! section 6.1.2, RFC 8257).
//!
//! Here the window is reduced; whether that was done already for the same congestion is in
//! `reduction.rs`, how far is congestion control's affair.

use super::prr::Prr;
use super::reduction::Reduction;
use super::{Phase, SendHalf};
use crate::tcp::congestion::{CongestionControl, Signal, saturated};
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::Sent;

impl SendHalf {
    /// Slows down for the loss of bytes that start at or above `oldest`; `latest`: the latest
    /// transmission that was lost, if it is known; `in_flight`: RFC 5681's `FlightSize`. Returns
    /// whether that was news.
    pub(super) fn answer_loss(
        &mut self,
        ctx: &Ctx<'_>,
        oldest: u64,
        latest: Option<Sent>,
        in_flight: u64,
    ) -> bool {
        if self.reduction.answers(oldest, latest) {
            return false;
        }
        // What is in flight in a recovery is not what the window allowed when it was lost.
        let window = if self.reduction.covers(oldest) { self.congestion.cwnd() } else { u32::MAX };
        self.congestion.on_congestion(ctx.now, saturated(in_flight).min(window), Signal::Loss);
        self.on_reduced(true);
        true
    }

    /// Slows down for marks.
    pub(super) fn answer_marks(&mut self, ctx: &Ctx<'_>) {
        let recovering = self.recovery.phase != Phase::Open;
        let window = if recovering { self.congestion.cwnd() } else { u32::MAX };
        self.congestion.on_congestion(ctx.now, saturated(self.queue.in_flight()).min(window), Signal::Ecn);
        self.on_reduced(self.congestion.answers_marks_like_loss());
    }

    /// The window was reduced; `deep`: as for a loss.
    pub(super) fn on_reduced(&mut self, deep: bool) {
        let (announce, nr, until) = (self.agreed.ecn, self.queue.flight.count, self.queue.nxt);
        self.reduction = Reduction::new(announce, nr, until, deep);
    }

    /// RACK has found something lost that was sent last as `latest`, while recovery is under way.
    pub(super) fn answer_loss_in_recovery(&mut self, ctx: &Ctx<'_>, latest: Sent) {
        if self.answer_loss(ctx, self.queue.una, Some(latest), self.queue.in_flight()) {
            self.pace_recovery_anew();
        }
    }

    /// The window was reduced again: fast recovery, if it is under way, goes from what is in flight
    /// now to the new threshold.
    pub(super) fn pace_recovery_anew(&mut self) {
        if self.recovery.phase == Phase::Fast {
            self.recovery.high = self.queue.nxt;
            self.recovery.prr = Prr::new(self.pipe());
        }
    }

    /// The peer echoes marks up to `ack`: at most one reduction for each window of data (RFC 3168
    /// section 6.1.2). In a recovery, too, marks on what was sent since the last reduction are
    /// congestion anew; a receiver of RFC 8257 echoes them once only.
    pub(super) fn on_ecn_echo(&mut self, ctx: &mut Ctx<'_>, ack: u64) {
        let recovering = self.recovery.phase != Phase::Open;
        if recovering {
            // Whatever was lost, there was a reason to reduce the window.
            self.recovery.undo.keep_reduction();
        }
        if !self.reduction.is_new_congestion(ack) {
            return;
        }
        ctx.counters.ecn_reductions += 1;
        if !recovering {
            self.recovery.undo.forget();
        }
        self.answer_marks(ctx);
        if ack < self.recovery.high {
            self.pace_recovery_anew();
        }
    }
}
