//! What happens when the timer of the sending half is due: retransmission, reordering and tail loss probe,
//! one at a time, and the user timeout above all of them (RFC 9293 sections 3.8.1 to 3.8.3, RFC 6298 section
//! 5, RFC 8985 section 7.3). When it is due is in `deadline.rs`.

use super::deadline::STUCK_INTERVAL;
use super::timers::SendTimer;
use super::{LossRecovery, Phase, SendState};
use crate::Instant;
use crate::tcp::congestion::Timeout;
use crate::tcp::ctx::Ctx;

/// The action that remains for the caller after a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp::send) enum TimerAction {
    Nothing,
    /// The user timeout is over, or enough SYNs were sent: the connection ends.
    GiveUp,
    /// Our SYN has to be sent again.
    SendSyn,
    /// The peer's window has stayed too small.
    Persist,
    /// The oldest segment is lost by the retransmission timer: its length may be the reason.
    TimedOut,
}

impl LossRecovery {
    /// Takes the running timer, if it is due, and runs its action. `syn_due`: our SYN has to be sent.
    pub(in crate::tcp::send) fn on_timer(
        &mut self,
        ctx: &mut Ctx<'_>,
        state: SendState<'_>,
        syn_due: bool,
    ) -> Option<(SendTimer, TimerAction)> {
        let timer = self.timers.expired(ctx.now)?;
        Some((timer, self.on_expired(ctx, state, timer, syn_due)))
    }

    fn on_expired(
        &mut self,
        ctx: &mut Ctx<'_>,
        mut state: SendState<'_>,
        timer: SendTimer,
        syn_due: bool,
    ) -> TimerAction {
        // RFC 5041 section 8.4.2, RFC 5044 section 9.4, RFC 5040 section 8.2.2 and RFC 5042 section 5.4.5
        // (DDP-248, MPA-258, RDMAP-382, SEC-079): that a security association was deleted is no reason to
        // end the stream, and is not known here. The path is silent then, and lost segments come again. A
        // path that stays silent for the user timeout does end the stream, whatever the cause.
        if self.timers.is_given_up(ctx.now, ctx.config.user_timeout) {
            return TimerAction::GiveUp;
        }
        match timer {
            SendTimer::Rto | SendTimer::Stuck if self.is_stuck(ctx.segments, state.queue, syn_due) => {
                // The segment was not sent, so no answer is missing: neither the network nor the path
                // MTU is the cause, and the RTO stays.
                let stuck = (ctx.now + STUCK_INTERVAL, SendTimer::Stuck);
                self.timers.start(ctx.now, stuck, ctx.config.user_timeout);
                TimerAction::Nothing
            }
            SendTimer::Stuck => TimerAction::Nothing,
            SendTimer::Persist => TimerAction::Persist,
            SendTimer::Reorder => {
                self.on_reorder_timer(ctx, &mut state);
                TimerAction::Nothing
            }
            SendTimer::LossProbe => {
                // The RTO is the last resort if the probe fails (RFC 8985 section 7.3).
                self.loss_probe.make_due();
                self.timers.delay_rto(ctx.now + state.rate.rto());
                TimerAction::Nothing
            }
            SendTimer::Rto if state.queue.positions().una() == 0 => {
                if !self.timers.on_syn_timeout(ctx.config.syn_retries) {
                    return TimerAction::GiveUp;
                }
                ctx.counters.rto_expired += 1;
                state.rate.back_off_rto();
                self.timers.delay_rto(ctx.now + state.rate.rto());
                TimerAction::SendSyn
            }
            SendTimer::Rto => {
                self.on_timeout(ctx, state);
                TimerAction::TimedOut
            }
        }
    }

    /// Segments overtaken for long enough are lost.
    fn on_reorder_timer(&mut self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>) {
        if self.detect_loss(ctx, state) && self.phase == Phase::Fast {
            self.update_prr(state, 0, false);
        }
    }

    /// What is in flight is lost: the retransmission timer expired (RFC 6298 section 5.4 to 5.6, RFC 5681
    /// section 3.1).
    pub(in crate::tcp::send) fn on_timeout(&mut self, ctx: &mut Ctx<'_>, state: SendState<'_>) {
        let SendState { queue, rate, agreed, .. } = state;
        ctx.counters.rto_expired += 1;
        queue.positions_mut().send_fin_again();
        let was = self.phase;
        let in_flight = queue.positions().outstanding();
        let oldest = queue.segments().head().map(|key| ctx.segments.get(key).sent);
        // Unacknowledged segments sent by this time are lost (RFC 8985 section 6.3).
        let lost_before = match agreed.sack {
            true => ctx.now - self.rack.loss_delay(self.reordering_window(queue, rate)),
            false => ctx.now,
        };
        let is_first_timeout = queue.sent().mark_timed_out(ctx.segments, lost_before);
        self.timers.set_reorder(None);
        let timeout = match was {
            Phase::Loss if !is_first_timeout => Timeout::Again,
            Phase::Open | Phase::Fast if rate.answers(queue.positions().una(), oldest) => Timeout::Answered,
            _ => Timeout::Congestion,
        };
        let before = rate.on_timeout(ctx.now, in_flight, timeout, queue.sent_so_far());
        if timeout != Timeout::Again {
            self.undo.start(queue.positions().una(), queue.positions().nxt(), true, Some(before));
        }
        // With timestamps, Eifel detects a spurious timeout sooner, on any acknowledgement.
        self.frto.on_timeout(was == Phase::Open && !agreed.timestamps);
        self.phase = Phase::Loss;
        self.recovery_point = queue.positions().nxt();
        self.dup_acks = 0;
        self.loss_probe.forget();
        self.timers.delay_rto(ctx.now + rate.rto());
    }

    /// The link is up again: the timer does not expire before `at`.
    pub(in crate::tcp::send) fn on_link_up(&mut self, rto_at: Instant) {
        self.timers.delay_rto(rto_at);
    }
}
