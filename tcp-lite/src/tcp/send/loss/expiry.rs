//! The actions of the timer of the sending half, for example a retransmission or a tail loss probe (RFC 9293
//! sections 3.8.1 to 3.8.3, RFC 6298 section 5, RFC 8985 section 7.3). When the timer is due, at most one
//! action is performed. The user timeout is checked before each action. `deadline.rs` decides when the timer
//! is due.

use super::deadline::STUCK_INTERVAL;
use super::timers::SendTimer;
use super::{LossRecovery, Phase, SendState};
use crate::Instant;
use crate::tcp::congestion::Timeout;
use crate::tcp::ctx::Ctx;

/// What the caller has to do after the timer has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp::send) enum TimerAction {
    Nothing,
    /// The user timeout has expired, or enough SYNs were sent: end the connection.
    GiveUp,
    /// Send our SYN again.
    SendSyn,
    /// The peer's window has stayed too small: probe the window, or cut a segment to the window.
    Persist,
    /// The retransmission timer expired, so the oldest segment counts as lost. The segment may be too long
    /// for the path.
    TimedOut,
}

impl LossRecovery {
    /// If the running timer is due, stops it and performs its action. Returns the timer, and what the caller
    /// has to do; `None` if no timer is due. `syn_due` is true if our SYN has to be sent.
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
        // (DDP-248, MPA-258, RDMAP-382, SEC-079): the deletion of a security association is no reason to end
        // the stream. TCP does not learn of the deletion, and retransmits lost segments. If the peer stays
        // silent for the user timeout, the stream ends, whatever the cause is.
        if self.timers.is_given_up(ctx.now, ctx.config.user_timeout) {
            return TimerAction::GiveUp;
        }
        match timer {
            SendTimer::Rto | SendTimer::Stuck if self.is_stuck(ctx.segments, state.queue, syn_due) => {
                // The retransmission could not be sent, so no acknowledgement is missing. The network and the
                // path MTU are not the cause, so the RTO stays the same.
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
                // If the probe fails, the RTO expires as the last resort (RFC 8985 section 7.3).
                self.loss_probe.make_due();
                self.timers.delay_rto(ctx.now + state.rate.rto());
                TimerAction::Nothing
            }
            SendTimer::Rto if state.range.una == 0 => {
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

    /// Called when the reordering timer expired: marks the segments lost for which the reordering window has
    /// passed.
    fn on_reorder_timer(&mut self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>) {
        if self.detect_loss(ctx, state) && self.phase == Phase::Fast {
            self.update_prr(state, 0, false);
        }
    }

    /// Called when the retransmission timer expired, or when the link is up again: marks segments in flight
    /// lost, and reduces the window (RFC 6298 section 5.4 to 5.6, RFC 5681 section 3.1).
    pub(in crate::tcp::send) fn on_timeout(&mut self, ctx: &mut Ctx<'_>, state: SendState<'_>) {
        let SendState { queue, range, rate, agreed, .. } = state;
        ctx.counters.rto_expired += 1;
        queue.positions_mut().send_fin_again();
        let was = self.phase;
        let in_flight = range.outstanding();
        let oldest = queue.head().map(|key| ctx.segments.get(key).sent);
        // Unacknowledged segments that were sent by this time are lost (RFC 8985 section 6.3).
        let lost_before = match agreed.sack {
            true => ctx.now - self.rack.loss_delay(self.reordering_window(queue, rate)),
            false => ctx.now,
        };
        let is_first_timeout = queue.sent().mark_timed_out(ctx.segments, lost_before);
        self.timers.set_reorder(None);
        let timeout = match was {
            Phase::Loss if !is_first_timeout => Timeout::Again,
            Phase::Open | Phase::Fast if rate.answers(range.una, oldest) => Timeout::Answered,
            _ => Timeout::Congestion,
        };
        let before = rate.on_timeout(ctx.now, in_flight, timeout, queue.sent_so_far());
        if timeout != Timeout::Again {
            self.undo.start(range.una, range.nxt, true, Some(before));
        }
        // With timestamps, Eifel detects a spurious timeout earlier than F-RTO would.
        self.frto.on_timeout(was == Phase::Open && !agreed.timestamps);
        self.phase = Phase::Loss;
        self.recovery_point = range.nxt;
        self.dup_acks = 0;
        self.loss_probe.forget();
        self.timers.delay_rto(ctx.now + rate.rto());
    }

    /// Called when the link is up again: the retransmission timer does not expire before `rto_at`.
    pub(in crate::tcp::send) fn on_link_up(&mut self, rto_at: Instant) {
        self.timers.delay_rto(rto_at);
    }
}
