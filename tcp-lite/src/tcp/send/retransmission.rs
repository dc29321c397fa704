//! What the timers of the sending half do when they are due: retransmission, reordering, tail loss probe
//! and persist, one at a time, and the user timeout above all of them (RFC 9293 sections 3.8.1 to 3.8.3
//! and 3.8.6.1, RFC 6298 section 5, RFC 8985 section 7.3). When they are due is in `deadline.rs`, the
//! response of loss recovery to a timeout in `recovery.rs`.

use super::deadline::STUCK_INTERVAL;
use super::frto::Frto;
use super::path_mtu::BlackHole;
use super::timers::SendTimer;
use super::{Fin, Pending, SendHalf};
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::{Marks, SegmentSlab};

/// Result of the timers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tcp) struct Expired {
    /// Segments in flight were not acknowledged in time.
    pub(in crate::tcp) unanswered: bool,
    /// The user timeout is over (RFC 9293 section 3.8.3), or enough SYNs were sent: the connection ends.
    pub(in crate::tcp) give_up: bool,
}

impl SendHalf {
    /// Whether a timer other than that of keepalives will notice a silent peer.
    #[inline]
    pub(in crate::tcp) fn is_waiting(&self) -> bool {
        self.queue.outstanding() > 0 || self.timers.running().is_some()
    }

    /// Runs the timers that are due at `ctx.now`.
    pub(in crate::tcp) fn on_timer(&mut self, ctx: &mut Ctx<'_>) -> Expired {
        self.rate.advance_pace(ctx.now);
        if self.path.due().is_some_and(|at| at <= ctx.now) {
            self.path.on_timer(ctx, self.queue.una(), self.fin == Fin::NotAsked);
        }
        match self.timers.expired(ctx.now) {
            Some(timer) => {
                Expired { unanswered: timer == SendTimer::Rto, give_up: self.on_expired(ctx, timer) }
            }
            None => Expired::default(),
        }
    }

    /// Returns whether the connection ends.
    fn on_expired(&mut self, ctx: &mut Ctx<'_>, timer: SendTimer) -> bool {
        // RFC 5041 section 8.4.2, RFC 5044 section 9.4, RFC 5040 section 8.2.2 and RFC 5042 section 5.4.5
        // (DDP-248, MPA-258, RDMAP-382, SEC-079): that a security association was deleted is no reason to
        // end the stream, and is not known here. The path is silent then, and lost segments come again. A
        // path that stays silent for the user timeout does end the stream, whatever the cause.
        if self.timers.is_given_up(ctx.now, ctx.config.user_timeout) {
            return true;
        }
        match timer {
            SendTimer::Rto | SendTimer::Stuck if self.is_stuck(ctx.segments) => {
                // The segment was not sent, so no answer is missing: neither the network nor the path
                // MTU is the cause, and the RTO stays.
                let stuck = (ctx.now + STUCK_INTERVAL, SendTimer::Stuck);
                self.timers.start(ctx.now, stuck, ctx.config.user_timeout);
                return false;
            }
            SendTimer::Stuck => {}
            SendTimer::Persist => self.on_persist(ctx),
            SendTimer::Reorder => self.on_reorder_timer(ctx),
            SendTimer::LossProbe => {
                // The RTO is the last resort if the probe fails (RFC 8985 section 7.3).
                self.pending |= Pending::LOSS_PROBE;
                self.timers.delay_rto(ctx.now + self.rate.rto());
            }
            SendTimer::Rto if self.queue.una() == 0 => {
                if !self.timers.on_syn_timeout(ctx.config.syn_retries) {
                    return true;
                }
                ctx.counters.rto_expired += 1;
                self.rate.back_off_rto();
                self.timers.delay_rto(ctx.now + self.rate.rto());
                self.pending |= Pending::SYN;
            }
            SendTimer::Rto => {
                if self.fin == Fin::Sent {
                    self.fin = Fin::Due;
                }
                self.on_retransmission_timeout(ctx);
                self.lower_emss_in_black_hole(ctx);
            }
        }
        false
    }

    /// The oldest segment timed out: lowers EMSS if the segment is too large for the path.
    fn lower_emss_in_black_hole(&mut self, ctx: &mut Ctx<'_>) {
        let Some(key) = self.queue.head() else { return };
        let len = ctx.segments.get(key).len;
        match self.path.on_timeout(ctx, len) {
            BlackHole::No => {}
            BlackHole::Possible => self.pending |= Pending::WINDOW_PROBE,
            BlackHole::Found => self.on_emss_lowered(ctx),
        }
    }

    /// Whether the segment that timed out before has not been retransmitted since, or the SYN was never
    /// sent. (F-RTO holds the oldest segment back on purpose.)
    pub(super) fn is_stuck(&self, segments: &SegmentSlab) -> bool {
        if self.queue.una() == 0 {
            return self.pending.contains(Pending::SYN);
        }
        match self.queue.oldest_sent() {
            Some(key) => {
                let lost = segments.get(key).marks.contains(Marks::LOST);
                lost && !matches!(self.recovery.frto, Frto::New(_))
            }
            None => self.fin == Fin::Due,
        }
    }

    /// The peer's window has stayed too small: probes it if it is closed, otherwise cuts a segment to it
    /// (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    fn on_persist(&mut self, ctx: &mut Ctx<'_>) {
        self.timers.back_off_persist();
        self.pending.remove(Pending::CUT);
        let too_small =
            self.queue.unsent().is_some_and(|key| ctx.segments.get(key).end() > self.window.edge());
        if too_small {
            let closed = self.window.edge() <= self.queue.nxt();
            ctx.counters.window_probes += u64::from(closed);
            self.pending |= if closed { Pending::WINDOW_PROBE } else { Pending::CUT };
        }
    }

    /// Whether the peer offers less than a segment, and less than half of the largest window it has
    /// offered. Each cut for such a window splits an FPDU for a few bytes, so the cuts come at
    /// increasing intervals. A peer that never offered more is small rather than silly, and does not
    /// have to wait (RFC 9293 section 3.8.6.2.1, condition 3).
    #[inline]
    pub(super) fn is_window_silly(&self, ctx: &Ctx<'_>) -> bool {
        let offered = self.window.edge().saturating_sub(self.queue.una());
        2 * offered < self.window.max() && self.is_blocked_by_window(ctx)
    }

    /// The link is up again. Segments sent meanwhile are lost: retransmits them now rather than when the
    /// timer expires, which may have backed off many times.
    pub(in crate::tcp) fn on_link_up(&mut self, ctx: &mut Ctx<'_>) {
        if self.queue.una() == 0 {
            if self.has_sent_syn() {
                self.pending |= Pending::SYN;
            }
        } else if self.queue.outstanding() > 0 {
            if self.fin == Fin::Sent {
                self.fin = Fin::Due;
            }
            self.on_retransmission_timeout(ctx);
            // The timeouts were not due to the segments' length.
            self.path.on_progress();
            // The probe is answered at once, while a single retransmission may wait for a delayed
            // acknowledgement.
            self.pending |= Pending::WINDOW_PROBE;
        } else if self.timers.due(SendTimer::Persist).is_some() {
            self.on_persist(ctx);
            self.timers.forget_persist_backoff();
        }
        self.rate.forget_rto_backoff();
        self.timers.delay_rto(ctx.now + self.rate.rto());
    }

    /// Whether our SYN was sent more than once.
    pub(in crate::tcp) fn has_sent_syn_again(&self) -> bool {
        self.timers.syn_sends() > 1
    }

    /// Whether our SYN was sent at all.
    pub(in crate::tcp) fn has_sent_syn(&self) -> bool {
        self.timers.syn_sends() > 0
    }

    /// Our FIN has to be sent. If the queue is empty, the user timeout counts from now on.
    pub(in crate::tcp) fn await_fin(&mut self, ctx: &Ctx<'_>) {
        if self.queue.queued() == 0 {
            self.timers.restart_user_timeout(ctx.now);
        }
    }
}
