//! The timers of the sending half: retransmission, reordering, tail loss probe and persist, one at a
//! time, and the user timeout above all of them (RFC 9293 sections 3.8.1 to 3.8.3 and 3.8.6.1, RFC 6298
//! section 5, RFC 8985 section 7.2).

use super::frto::Frto;
use super::path_mtu::BlackHole;
use super::timers::Resend;
use super::{Fin, Pending, Phase, SendHalf};
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::Marks;
use crate::{Duration, Instant};

/// Longest wait before a segment is cut to a window that is open but stays too small (RFC 9293 section
/// 3.8.6.2.1: 0.1 to 1 second), unless the RTO is longer. A closed window is probed at increasing
/// intervals instead.
const OVERRIDE_MAX: Duration = Duration::from_secs(1);

/// How often the user timeout is checked for segments that cannot be sent: the port takes nothing, no
/// buffer is free, or the next hop does not answer. (`TCP_RESOURCE_PROBE_INTERVAL` of Linux.) Sending
/// them needs no timer.
const STUCK_INTERVAL: Duration = Duration::from_millis(500);

/// Result of the timers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tcp) struct Expired {
    /// Segments in flight were not acknowledged in time.
    pub(in crate::tcp) unanswered: bool,
    /// The user timeout is over (RFC 9293 section 3.8.3), or enough SYNs were sent: the connection ends.
    pub(in crate::tcp) give_up: bool,
}

impl SendHalf {
    /// When [`on_timer`](Self::on_timer) wants to be called.
    #[inline]
    pub(in crate::tcp) fn deadline(&self) -> Option<Instant> {
        let resend = self.timers.resend.map(|(at, _)| at);
        let paced = self.pace.opens_at().filter(|_| self.queue.unsent.is_some() || self.queue.lost_bytes > 0);
        first_of(resend, first_of(paced, self.path.due()))
    }

    /// Whether a timer watches the peer already.
    #[inline]
    pub(in crate::tcp) fn is_waiting(&self) -> bool {
        self.queue.outstanding() > 0 || self.timers.resend.is_some()
    }

    /// Runs the timers that are due at `ctx.now`.
    pub(in crate::tcp) fn on_timer(&mut self, ctx: &mut Ctx<'_>) -> Expired {
        self.pace.advance(ctx.now);
        if self.path.due().is_some_and(|at| at <= ctx.now) {
            self.path.on_timer(ctx, self.queue.una, self.fin == Fin::NotAsked);
        }
        match self.timers.resend {
            Some((at, resend)) if at <= ctx.now => {
                self.timers.resend = None;
                Expired { unanswered: resend == Resend::Ack, give_up: self.on_resend(ctx, resend) }
            }
            _ => Expired::default(),
        }
    }

    /// Returns whether the connection ends.
    fn on_resend(&mut self, ctx: &mut Ctx<'_>, resend: Resend) -> bool {
        if ctx.now >= self.timers.progress + ctx.config.user_timeout {
            return true;
        }
        match resend {
            Resend::Ack | Resend::Stuck if self.is_stuck(ctx) => {
                // The segment was not sent, so no answer is missing: neither the network nor the path
                // MTU is the cause, and the RTO stays.
                let give_up_at = self.timers.progress + ctx.config.user_timeout;
                self.timers.resend = Some(((ctx.now + STUCK_INTERVAL).min(give_up_at), Resend::Stuck));
                return false;
            }
            Resend::Stuck => {}
            Resend::Window => self.on_persist(ctx),
            Resend::Reorder => self.on_reorder_timer(ctx),
            Resend::LossProbe => {
                // The RTO is the last resort if the probe fails (RFC 8985 section 7.3).
                self.pending |= Pending::LOSS_PROBE;
                self.timers.rto_not_before = ctx.now + self.rtt.rto();
            }
            Resend::Ack if self.queue.una == 0 => {
                if self.timers.syn_timeouts >= ctx.config.syn_retries {
                    return true;
                }
                self.timers.syn_timeouts += 1;
                ctx.counters.rto_expired += 1;
                self.rtt.back_off();
                self.timers.rto_not_before = ctx.now + self.rtt.rto();
                self.pending |= Pending::SYN;
            }
            Resend::Ack => {
                if self.fin == Fin::Sent {
                    self.fin = Fin::Due;
                }
                self.on_retransmission_timeout(ctx);
                self.lower_emss_in_black_hole(ctx);
            }
        }
        self.arm(ctx);
        false
    }

    /// The oldest segment timed out: lowers EMSS if the segment is too large for the path.
    fn lower_emss_in_black_hole(&mut self, ctx: &mut Ctx<'_>) {
        let Some(key) = self.queue.head else { return };
        let len = ctx.segments.get(key).len;
        match self.path.on_timeout(ctx, len) {
            BlackHole::No => {}
            BlackHole::Possible => self.pending |= Pending::WINDOW_PROBE,
            BlackHole::Found => self.on_emss_lowered(ctx),
        }
    }

    /// Whether the segment that timed out before has not been retransmitted since, or the SYN was never
    /// sent. (F-RTO holds the oldest segment back on purpose.)
    fn is_stuck(&self, ctx: &Ctx<'_>) -> bool {
        if self.queue.una == 0 {
            return self.pending.contains(Pending::SYN);
        }
        match self.queue.head.filter(|key| self.queue.unsent != Some(*key)) {
            Some(key) => {
                let lost = ctx.segments.get(key).marks.contains(Marks::LOST);
                lost && !matches!(self.recovery.frto, Frto::New(_))
            }
            None => self.fin == Fin::Due,
        }
    }

    /// Whether a SYN or FIN that was never sent is next.
    fn awaits_first_control(&self) -> bool {
        self.queue.nxt == 0 && self.pending.contains(Pending::SYN) || self.is_fin_next()
    }

    /// The peer's window has stayed too small: probes it if it is closed, otherwise cuts a segment to it
    /// (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    fn on_persist(&mut self, ctx: &mut Ctx<'_>) {
        self.timers.persist_backoff += 1;
        self.pending.remove(Pending::CUT);
        let too_small = self.queue.unsent.is_some_and(|key| ctx.segments.get(key).end() > self.window.edge());
        if too_small {
            let closed = self.window.edge() <= self.queue.nxt;
            ctx.counters.window_probes += u64::from(closed);
            self.pending |= if closed { Pending::WINDOW_PROBE } else { Pending::CUT };
        }
    }

    /// Whether the peer offers less than a segment, and less than half of the largest window it has
    /// offered. Each cut for such a window splits an FPDU for a few bytes, so the cuts come at
    /// increasing intervals. A peer that never offered more is small rather than silly, and does not
    /// have to wait (RFC 9293 section 3.8.6.2.1, condition 3).
    pub(super) fn is_window_silly(&self, ctx: &Ctx<'_>) -> bool {
        let offered = self.window.edge().saturating_sub(self.queue.una);
        self.is_blocked_by_window(ctx) && 2 * offered < self.window.max()
    }

    /// When the peer's window will have been too small for long enough. The wait is shorter for an open
    /// window than for a closed one.
    fn persist_at(&self, ctx: &Ctx<'_>) -> Instant {
        let backed_off = self.rtt.after(self.timers.persist_backoff);
        let is_open = self.window.edge() > self.queue.nxt;
        let most = if is_open { self.rtt.after(0).max(OVERRIDE_MAX) } else { backed_off };
        ctx.now + backed_off.min(most)
    }

    /// The link is up again. Segments sent meanwhile are lost: retransmits them now rather than when the
    /// timer expires, which may have backed off many times.
    pub(in crate::tcp) fn on_link_up(&mut self, ctx: &mut Ctx<'_>) {
        if self.queue.una == 0 {
            if self.timers.syn_sends > 0 {
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
        } else if matches!(self.timers.resend, Some((_, Resend::Window))) {
            self.on_persist(ctx);
            self.timers.persist_backoff = 0;
        }
        self.rtt.forget_backoff();
        self.timers.rto_not_before = ctx.now + self.rtt.rto();
        self.arm(ctx);
    }

    /// Whether our SYN was sent more than once.
    pub(in crate::tcp) fn has_sent_syn_again(&self) -> bool {
        self.timers.syn_sends > 1
    }

    /// Whether our SYN was sent at all.
    pub(in crate::tcp) fn has_sent_syn(&self) -> bool {
        self.timers.syn_sends > 0
    }

    /// Our FIN has to be sent. If the queue is empty, a timer watches it.
    pub(in crate::tcp) fn await_fin(&mut self, ctx: &Ctx<'_>) {
        if self.queue.queued() == 0 {
            self.timers.progress = ctx.now;
            self.arm(ctx);
        }
    }

    /// Sets the timer that is due first. A running persist timer keeps running, but not for longer than
    /// it would be set to now.
    ///
    /// To be called after everything that changes what is outstanding or queued, or when it was sent: after
    /// a segment that arrived or was sent, a push, a timer that ran, the open, and when the link is back.
    /// What only asks for a transmission (a SYN, a probe, segments marked lost because a router reports that
    /// they are too large) leaves the timer as it is: it is set when that transmission has left.
    pub(in crate::tcp) fn arm(&mut self, ctx: &Ctx<'_>) {
        let wanted = if self.queue.outstanding() > 0 {
            self.flight_deadline(ctx)
        } else if self.queue.unsent.is_some() {
            // If the segment fits it is about to be sent; if that fails, this timer tries again.
            let at = self.persist_at(ctx);
            match self.timers.resend {
                Some((running, Resend::Window)) => (running.min(at), Resend::Window),
                _ => (at, Resend::Window),
            }
        } else if self.awaits_first_control() {
            match self.timers.resend {
                Some(running @ (_, Resend::Stuck)) => running,
                _ => (ctx.now + STUCK_INTERVAL, Resend::Stuck),
            }
        } else {
            self.timers.resend = None;
            return;
        };
        // No timer is later than the user timeout.
        let give_up_at = (self.timers.progress + ctx.config.user_timeout).max(ctx.now);
        self.timers.resend = Some((wanted.0.min(give_up_at), wanted.1));
    }

    /// The first deadline of the segments in flight.
    fn flight_deadline(&self, ctx: &Ctx<'_>) -> (Instant, Resend) {
        let rto_at = self.rto_at(ctx);
        if let Some(at) = self.timers.reorder {
            return if at < rto_at { (at, Resend::Reorder) } else { (rto_at, Resend::Ack) };
        }
        match self.pto(ctx) {
            Some(pto) => (rto_at.min(self.timers.pto_from + pto), Resend::LossProbe),
            None => (rto_at, Resend::Ack),
        }
    }

    /// The delay of a tail loss probe, if one may be sent (RFC 8985 section 7.2).
    fn pto(&self, ctx: &Ctx<'_>) -> Option<Duration> {
        let quiet = self.recovery.phase == Phase::Open
            && self.queue.sacked_segments == 0
            && self.queue.lost_bytes == 0
            && !self.pending.contains(Pending::LOSS_PROBE);
        let allowed = quiet && self.agreed.sack && self.queue.una > 0 && self.recovery.loss_probe.may_send();
        if !allowed {
            return None;
        }
        // (A probe requires an RTT sample, so the SRTT is valid.)
        let twice = Duration::from_micros(2 * u64::from(self.rtt.srtt_us())).max(ctx.config.tail_probe_min);
        // A single segment may wait for the peer's delayed acknowledgement, which the floor of the RTO
        // covers.
        let single = self.queue.head.is_some_and(|key| {
            ctx.segments.get(key).next == self.queue.unsent && self.queue.nxt <= self.queue.end
        });
        Some(if single { twice + ctx.config.rto_min } else { twice })
    }

    /// When the retransmission timer expires: an RTO after the last transmission of the oldest segment,
    /// not after the last acknowledgement, which would add a round trip each time (RFC 7765). A recent
    /// acknowledgement shows that the path works, and gives the other segments one more round trip:
    /// their acknowledgements may wait to be read.
    fn rto_at(&self, ctx: &Ctx<'_>) -> Instant {
        let oldest = self.queue.head.filter(|key| self.queue.unsent != Some(*key));
        let sent_at = oldest.map_or(self.timers.control_sent_at, |key| ctx.segments.get(key).sent.at);
        (sent_at + self.rtt.rto()).max(self.timers.rto_not_before)
    }
}

/// The earlier of two times, if there is one. Written out because an iterator over options takes four
/// times as long, and this runs for every segment.
#[inline]
pub(in crate::tcp) fn first_of(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
