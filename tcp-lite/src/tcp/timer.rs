//! Timers of a connection: retransmission, reordering, tail loss probe and persist (one at a time), delayed ACK, keepalive, TIME-WAIT, and the
//! user timeout over all (RFC 9293 sections 3.8.1 to 3.8.6, RFC 6298 section 5).

use super::ctx::Ctx;
use super::frto::Frto;
use super::recovery::Phase;
use super::send::Marks;
use super::tcb::{Fin, Pending, State, Tcb};
use crate::{CloseReason, Duration, Instant};

/// Longest wait before a segment is cut to a window that is open and stays too small (RFC 9293 section 3.8.6.2.1: 0.1 to
/// 1 second), unless the RTO is longer. A closed window is probed ever more seldom.
const OVERRIDE_MAX: Duration = Duration::from_secs(1);

/// How often it is looked, for the user timeout, at what finds no way out: the port takes nothing, no buffer is free, or nobody
/// answers for the next hop. (`TCP_RESOURCE_PROBE_INTERVAL` of Linux.) To be sent it needs no timer.
const STUCK_INTERVAL: Duration = Duration::from_millis(500);

/// What the first timer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resend {
    /// An acknowledgement of what is in flight: RTO.
    Ack,
    /// An acknowledgement of what was overtaken (RFC 8985, the reordering timer).
    Reorder,
    /// An acknowledgement of the last that was sent (RFC 8985, PTO).
    Probe,
    /// A window for what is not.
    Window,
    /// A way out: for a SYN or FIN that was never sent, or for what timed out and was not sent again since.
    WayOut,
}

/// When what is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    pub(super) resend: Option<(Instant, Resend)>,
    /// When the next segment that was overtaken will be lost.
    pub(super) reorder: Option<Instant>,
    /// When our SYN or FIN was sent last.
    pub(super) control_sent_at: Instant,
    /// When data was sent or acknowledged last: the PTO counts from here.
    pub(super) tail_from: Instant,
    /// The RTO does not expire before this.
    pub(super) patience: Instant,
    pub(super) delayed_ack: Option<Instant>,
    pub(super) keepalive: Option<Instant>,
    pub(super) time_wait: Option<Instant>,
    /// Since when whatever waits has waited: the user timeout counts from here.
    pub(super) progress: Instant,
    pub(super) last_sent: Instant,
    pub(super) persist_backoff: u32,
    pub(super) keepalive_probes: u8,
    pub(super) syn_sends: u8,
}

impl Timers {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            resend: None,
            reorder: None,
            control_sent_at: now,
            tail_from: now,
            patience: now,
            delayed_ack: None,
            keepalive: None,
            time_wait: None,
            progress: now,
            last_sent: now,
            persist_backoff: 0,
            keepalive_probes: 0,
            syn_sends: 0,
        }
    }

    /// Nothing is waited for any more.
    pub(super) fn stop(&mut self) {
        self.resend = None;
        self.reorder = None;
        self.delayed_ack = None;
        self.keepalive = None;
        self.time_wait = None;
    }
}

impl Tcb {
    /// When [`on_timer`](Self::on_timer) wants to be called. May change by any call.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let Timers { resend, delayed_ack, keepalive, time_wait, .. } = self.timers;
        let resend = resend.map(|(at, _)| at);
        // By hand: an iterator over six options takes four times as long, and every segment asks.
        let earlier = |a: Option<Instant>, b: Option<Instant>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        let resend = earlier(resend, delayed_ack);
        let idle = earlier(keepalive, time_wait);
        earlier(earlier(resend, idle), earlier(self.pace_deadline(), self.path.due()))
    }

    /// Timers that are due at `ctx.now`. Harmless when none is. Returns whether what is in flight was not acknowledged
    /// in time.
    pub(crate) fn on_timer(&mut self, ctx: &mut Ctx<'_>) -> bool {
        self.pace.advance(ctx.now);
        let now = ctx.now;
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.timers.time_wait) {
            self.terminate(ctx, CloseReason::Graceful, false);
            // One that found no way out.
            self.pending.remove(Pending::RST);
            return false;
        }
        if due(self.timers.delayed_ack) {
            self.timers.delayed_ack = None;
            self.pending |= Pending::ACK;
        }
        if due(self.timers.keepalive) {
            self.on_keepalive(ctx);
        }
        if due(self.path.due()) {
            self.on_path_timer(ctx);
        }
        if let Some((at, resend)) = self.timers.resend
            && at <= ctx.now
        {
            self.timers.resend = None;
            self.on_resend(ctx, resend);
            return resend == Resend::Ack;
        }
        false
    }

    fn on_resend(&mut self, ctx: &mut Ctx<'_>, resend: Resend) {
        if ctx.now >= self.timers.progress + ctx.config.user_timeout {
            return self.give_up(ctx);
        }
        match resend {
            Resend::Ack | Resend::WayOut if self.is_stuck(ctx) => {
                // No answer can be missing: neither the network nor the path's MTU is to blame, and the RTO stays.
                let give_up_at = self.timers.progress + ctx.config.user_timeout;
                self.timers.resend = Some(((ctx.now + STUCK_INTERVAL).min(give_up_at), Resend::WayOut));
                return;
            }
            Resend::WayOut => {}
            Resend::Window => self.on_persist(ctx),
            Resend::Reorder => self.on_reorder_timer(ctx),
            Resend::Probe => {
                // The RTO is the last resort, should the probe fail (RFC 8985 section 7.3).
                self.pending |= Pending::TAIL;
                self.timers.patience = ctx.now + self.rtt.rto();
            }
            Resend::Ack if self.snd.una == 0 => {
                if self.timers.syn_sends > ctx.config.syn_retries {
                    return self.give_up(ctx);
                }
                ctx.counters.rto_expired += 1;
                self.rtt.back_off();
                self.timers.patience = ctx.now + self.rtt.rto();
                self.pending |= Pending::SYN;
            }
            Resend::Ack => {
                if self.fin == Fin::Sent {
                    self.fin = Fin::Due;
                }
                self.on_retransmission_timeout(ctx);
                self.suspect_path(ctx);
            }
        }
        self.arm_resend(ctx);
    }

    /// What timed out before has not been sent again since, or the SYN not at all. (F-RTO keeps the oldest segment back on purpose.)
    fn is_stuck(&self, ctx: &Ctx<'_>) -> bool {
        if self.snd.una == 0 {
            return self.pending.contains(Pending::SYN);
        }
        match self.snd.head.filter(|key| self.snd.unsent != Some(*key)) {
            Some(key) => {
                let lost = ctx.segments.get(key).marks.contains(Marks::LOST);
                lost && !matches!(self.recovery.frto, Frto::Fresh(_))
            }
            None => self.fin == Fin::Due,
        }
    }

    /// A SYN or FIN has never been sent, and is next.
    fn awaits_first_control(&self) -> bool {
        self.snd.nxt == 0 && self.pending.contains(Pending::SYN) || self.is_fin_next()
    }

    /// Something was acknowledged.
    pub(super) fn on_progress(&mut self, ctx: &Ctx<'_>) {
        self.timers.progress = ctx.now;
        self.path.on_progress();
        if !self.is_window_silly(ctx) {
            self.timers.persist_backoff = 0;
        }
        self.timers.resend = None;
        self.timers.tail_from = ctx.now;
        self.timers.patience = ctx.now + Duration::from_micros(u64::from(self.rtt.srtt_us()));
    }

    /// The peer's window has stayed too small: probe it when it is closed, cut a segment to it when it is not
    /// (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    fn on_persist(&mut self, ctx: &mut Ctx<'_>) {
        self.timers.persist_backoff += 1;
        self.pending.remove(Pending::CUT);
        let too_small = self.snd.unsent.is_some_and(|key| ctx.segments.get(key).end() > self.window.edge);
        if too_small {
            let closed = self.window.edge <= self.snd.nxt;
            ctx.counters.window_probes += u64::from(closed);
            self.pending |= if closed { Pending::PROBE } else { Pending::CUT };
        }
    }

    /// The peer could take more at once, and offers less than half of that and less than a segment. Each cut for it is an FPDU
    /// torn for a few octets: they come at growing distances. Who never offered more is small, not silly, and is not kept waiting
    /// (RFC 9293 section 3.8.6.2.1, condition 3).
    fn is_window_silly(&self, ctx: &Ctx<'_>) -> bool {
        let offered = self.window.edge.saturating_sub(self.snd.una);
        self.is_blocked_by_window(ctx) && 2 * offered < self.window.max
    }

    /// When the peer's window will have been too small for long enough. A window that is open is not waited for as long as one
    /// that is closed.
    fn persist_at(&self, ctx: &Ctx<'_>) -> Instant {
        let backed_off = self.rtt.after(self.timers.persist_backoff);
        let is_open = self.window.edge > self.snd.nxt;
        let most = if is_open { self.rtt.after(0).max(OVERRIDE_MAX) } else { backed_off };
        ctx.now + backed_off.min(most)
    }

    /// RFC 9293 section 3.8.4.
    fn on_keepalive(&mut self, ctx: &mut Ctx<'_>) {
        let Some(keepalive) = self.keepalive else { return self.on_alive(ctx) };
        if self.snd.in_flight() > 0 || self.timers.resend.is_some() {
            // Other timers watch over the peer already.
            return self.on_alive(ctx);
        }
        if self.timers.keepalive_probes >= keepalive.probes {
            return self.give_up(ctx);
        }
        self.timers.keepalive_probes += 1;
        self.timers.keepalive = Some(ctx.now + keepalive.interval);
        self.pending |= Pending::PROBE;
    }

    /// The peer said something.
    pub(super) fn on_alive(&mut self, ctx: &Ctx<'_>) {
        self.timers.keepalive_probes = 0;
        if self.state != State::TimeWait {
            self.timers.keepalive = self.keepalive.map(|keepalive| ctx.now + keepalive.idle);
        }
    }

    /// The link has been gone for too long: nothing can be said to the peer any more, a RST included. A SYN may go on waiting for
    /// a peer that comes with the link.
    pub(crate) fn on_link_lost(&mut self, ctx: &mut Ctx<'_>) {
        if !matches!(self.state, State::SynSent | State::TimeWait) {
            self.terminate(ctx, CloseReason::LinkDown, false);
            self.pending.remove(Pending::RST);
        }
    }

    /// The link is there again. What was sent meanwhile is lost, and is sent again now rather than when its timer, backed off
    /// perhaps many times, expires.
    pub(crate) fn on_link_up(&mut self, ctx: &mut Ctx<'_>) {
        if matches!(self.state, State::Closed | State::TimeWait) {
            return;
        }
        if self.snd.una == 0 {
            if self.timers.syn_sends > 0 {
                self.pending |= Pending::SYN;
            }
        } else if self.snd.in_flight() > 0 {
            if self.fin == Fin::Sent {
                self.fin = Fin::Due;
            }
            self.on_retransmission_timeout(ctx);
            // What timed out meanwhile was not too long.
            self.path.on_progress();
            // Answered at once, where a single segment that is sent again may wait for a delayed acknowledgement.
            self.pending |= Pending::PROBE;
        } else if matches!(self.timers.resend, Some((_, Resend::Window))) {
            self.on_persist(ctx);
            self.timers.persist_backoff = 0;
        }
        self.rtt.forget_backoff();
        self.timers.patience = ctx.now + self.rtt.rto();
        self.arm_resend(ctx);
    }

    /// Whether our SYN was sent more than once.
    pub(crate) fn has_sent_syn_again(&self) -> bool {
        self.timers.syn_sends > 1
    }

    fn give_up(&mut self, ctx: &mut Ctx<'_>) {
        // A peer that never answered our SYN knows of no connection.
        let reset = self.snd.una > 0;
        self.terminate(ctx, CloseReason::TimedOut, reset);
    }

    /// Sets the first timer for what is waited for now. The one for a window goes on running,
    /// but not for longer than it would be set now.
    pub(super) fn arm_resend(&mut self, ctx: &Ctx<'_>) {
        if matches!(self.state, State::Closed | State::TimeWait) {
            self.timers.resend = None;
            return;
        }
        let wanted = if self.snd.in_flight() > 0 {
            self.flight_deadline(ctx)
        } else if self.snd.unsent.is_some() {
            // If it fits, it is on its way out; but should it not get out now, somebody has to ask again.
            let at = self.persist_at(ctx);
            match self.timers.resend {
                Some((running, Resend::Window)) => (running.min(at), Resend::Window),
                _ => (at, Resend::Window),
            }
        } else if self.awaits_first_control() {
            match self.timers.resend {
                Some(running @ (_, Resend::WayOut)) => running,
                _ => (ctx.now + STUCK_INTERVAL, Resend::WayOut),
            }
        } else {
            self.timers.resend = None;
            return;
        };
        // The user timeout is not overslept.
        let give_up_at = (self.timers.progress + ctx.config.user_timeout).max(ctx.now);
        self.timers.resend = Some((wanted.0.min(give_up_at), wanted.1));
    }

    /// What the segments in flight wait for first.
    fn flight_deadline(&self, ctx: &Ctx<'_>) -> (Instant, Resend) {
        let rto_at = self.rto_at(ctx);
        if let Some(at) = self.timers.reorder {
            return if at < rto_at { (at, Resend::Reorder) } else { (rto_at, Resend::Ack) };
        }
        match self.pto(ctx) {
            Some(pto) => (rto_at.min(self.timers.tail_from + pto), Resend::Probe),
            None => (rto_at, Resend::Ack),
        }
    }

    /// After how long a tail loss probe is due, if one may be sent (RFC 8985 section 7.2).
    fn pto(&self, ctx: &Ctx<'_>) -> Option<Duration> {
        let quiet = self.recovery.phase == Phase::Open
            && self.snd.sacked_segments == 0
            && self.snd.lost_octets == 0
            && !self.pending.contains(Pending::TAIL);
        let allowed = quiet && self.agreed.sack && self.snd.una > 0 && self.recovery.tail.may_send();
        if !allowed {
            return None;
        }
        // (A probe needs a measurement, so there is one.)
        let twice = Duration::from_micros(2 * u64::from(self.rtt.srtt_us())).max(ctx.config.tail_probe_min);
        // A single segment may wait for the peer's delayed acknowledgement, which the floor of the RTO is above.
        let single = self
            .snd
            .head
            .is_some_and(|key| ctx.segments.get(key).next == self.snd.unsent && self.snd.nxt <= self.snd.end);
        Some(if single { twice + ctx.config.rto_min } else { twice })
    }

    /// When the retransmission timer expires: an RTO after the oldest segment was sent last, not after the last
    /// acknowledgement, which would add a round trip each time (RFC 7765). What was acknowledged just now shows that
    /// the way is open, and gives the rest one round trip: their acknowledgements may wait to be read.
    fn rto_at(&self, ctx: &Ctx<'_>) -> Instant {
        let oldest = self.snd.head.filter(|key| self.snd.unsent != Some(*key));
        let sent_at = oldest.map_or(self.timers.control_sent_at, |key| ctx.segments.get(key).sent.at);
        (sent_at + self.rtt.rto()).max(self.timers.patience)
    }
}
