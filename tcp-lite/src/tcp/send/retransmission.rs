//! The timer of the sending half, and the effects of the timer outside of loss recovery (RFC 9293 sections
//! 3.8.1 to 3.8.3 and 3.8.6.1). Such effects are, for example, a repeated SYN, a probe of the peer's window,
//! and a smaller EMSS. `loss/deadline.rs` decides when the timer is due, and `loss/expiry.rs` has the timer's
//! actions in loss recovery.

use super::loss::{SendTimer, TimerAction};
use super::path_mtu::BlackHole;
use super::{Pending, SendHalf};
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::SegmentSlab;
use crate::{Instant, TcpConfig};

/// Result of [`SendHalf::on_timer`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tcp) struct Expired {
    /// True if the retransmission timer expired.
    pub(in crate::tcp) unanswered: bool,
    /// True if the user timeout has expired (RFC 9293 section 3.8.3) or enough SYNs were sent, so that the
    /// connection ends.
    pub(in crate::tcp) give_up: bool,
}

impl SendHalf {
    /// Whether a timer other than the keepalive timer will detect a silent peer.
    #[inline]
    pub(in crate::tcp) fn is_waiting(&self) -> bool {
        self.queue.outstanding() > 0 || self.loss.running_timer().is_some()
    }

    /// The time at which [`on_timer`](Self::on_timer) has to be called; `None` if no timer runs.
    #[inline]
    pub(in crate::tcp) fn deadline(&self) -> Option<Instant> {
        let running = self.loss.running_timer().map(|(at, _)| at);
        let paced = self.rate.pace_opens_at().filter(|_| self.queue.has_unsent() || self.queue.has_lost());
        first_of(running, first_of(paced, self.path.due()))
    }

    /// Whether a timer of only microseconds runs, or has to be set.
    #[inline]
    pub(in crate::tcp) fn has_short_timer(&self) -> bool {
        !self.rate.is_pace_open() || self.loss.has_reordering_timer()
    }

    /// Sets the timer that is due first. The choice depends on what is outstanding or queued now, and on the
    /// times of transmission.
    #[inline]
    pub(in crate::tcp) fn arm(&mut self, now: Instant, config: &TcpConfig, segments: &SegmentSlab) {
        let (sack, syn_due) = (self.agreed.sack, self.is_syn_next());
        self.loss.arm(now, config, segments, (&self.queue, &self.rate), (sack, syn_due));
    }

    pub(in crate::tcp) fn on_timer(&mut self, ctx: &mut Ctx<'_>) -> Expired {
        self.rate.advance_pace(ctx.now);
        if self.path.due().is_some_and(|at| at <= ctx.now) {
            self.path.on_timer(ctx, self.queue.una(), self.queue.may_push());
        }
        let syn_due = self.is_syn_next();
        let (loss, state) = self.loss_and_state();
        let Some((timer, action)) = loss.on_timer(ctx, state, syn_due) else { return Expired::default() };
        match action {
            TimerAction::Nothing | TimerAction::GiveUp => {}
            TimerAction::SendSyn => self.pending |= Pending::SYN,
            TimerAction::Persist => self.on_persist(ctx),
            TimerAction::TimedOut => self.lower_emss_in_black_hole(ctx),
        }
        Expired { unanswered: timer == SendTimer::Rto, give_up: action == TimerAction::GiveUp }
    }

    /// Called when the oldest segment timed out: lowers the EMSS if the segment is too large for the path. If
    /// the segment may be too large, requests a small probe that the peer has to answer.
    fn lower_emss_in_black_hole(&mut self, ctx: &mut Ctx<'_>) {
        let Some(key) = self.queue.head() else { return };
        let len = ctx.segments.get(key).len;
        match self.path.on_timeout(ctx, len) {
            BlackHole::No => {}
            BlackHole::Possible => self.pending |= Pending::WINDOW_PROBE,
            BlackHole::Found => self.on_emss_lowered(ctx),
        }
    }

    /// Called when the peer's window has stayed too small. If the window is closed, probes it; otherwise cuts
    /// a segment to the window (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    fn on_persist(&mut self, ctx: &mut Ctx<'_>) {
        self.loss.back_off_persist();
        self.pending.remove(Pending::CUT);
        if self.queue.has_unsent() && !self.queue.is_new_sendable(ctx.segments) {
            let closed = !self.queue.is_window_open();
            ctx.counters.window_probes += u64::from(closed);
            self.pending |= if closed { Pending::WINDOW_PROBE } else { Pending::CUT };
        }
    }

    /// Called when the link is up again. Segments that were in flight when the link went down are probably
    /// lost. So outstanding segments are marked lost as after a timeout, and their retransmission starts now,
    /// because the retransmission timer may have backed off many times.
    pub(in crate::tcp) fn on_link_up(&mut self, ctx: &mut Ctx<'_>) {
        if self.queue.una() == 0 {
            if self.syn_sends() > 0 {
                self.pending |= Pending::SYN;
            }
        } else if self.queue.outstanding() > 0 {
            let (loss, state) = self.loss_and_state();
            loss.on_timeout(ctx, state);
            // The link was the reason for the timeouts, not the length of the segments.
            self.path.on_progress();
            // The peer answers the probe at once, while a single retransmission may wait for a delayed
            // acknowledgement.
            self.pending |= Pending::WINDOW_PROBE;
        } else if matches!(self.loss.running_timer(), Some((_, SendTimer::Persist))) {
            self.on_persist(ctx);
            self.loss.forget_persist_backoff();
        }
        self.rate.forget_rto_backoff();
        self.loss.on_link_up(ctx.now + self.rate.rto());
    }

    pub(in crate::tcp) fn syn_sends(&self) -> u8 {
        self.loss.syn_sends()
    }

    /// Called when our FIN has to be sent. If the queue is empty, the user timeout starts now.
    pub(in crate::tcp) fn await_fin(&mut self, ctx: &Ctx<'_>) {
        if self.queue.queued() == 0 {
            self.loss.restart_user_timeout(ctx.now);
        }
    }
}

/// The earlier of the times `a` and `b`; `None` if both times are `None`. This function uses no iterator over
/// options, because an iterator takes four times as long, and this function runs for every segment.
#[inline]
pub(in crate::tcp) fn first_of(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
