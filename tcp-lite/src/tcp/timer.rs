//! Timers of a connection: retransmission and persist (never both), delayed ACK, keepalive, TIME-WAIT, and the
//! user timeout over all (RFC 9293 sections 3.8.1 to 3.8.6, RFC 6298 section 5).

use super::congestion::CongestionControl;
use super::ctx::Ctx;
use super::recovery::Phase;
use super::tcb::{Fin, Pending, State, Tcb};
use crate::{CloseReason, Instant};

/// What the first timer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resend {
    /// An acknowledgement of what is in flight.
    Ack,
    /// A window for what is not.
    Window,
}

/// When what is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    pub(super) resend: Option<(Instant, Resend)>,
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
        self.delayed_ack = None;
        self.keepalive = None;
        self.time_wait = None;
    }
}

impl Tcb {
    /// When [`on_timer`](Self::on_timer) wants to be called. May change by any call.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let Timers { resend, delayed_ack, keepalive, time_wait, .. } = self.timers;
        [resend.map(|(at, _)| at), delayed_ack, keepalive, time_wait].into_iter().flatten().min()
    }

    /// Timers that are due at `ctx.now`. Harmless when none is. Returns whether what is in flight was not acknowledged
    /// in time.
    pub(crate) fn on_timer(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= ctx.now);
        if due(self.timers.time_wait) {
            self.terminate(ctx, CloseReason::Graceful, false);
            return false;
        }
        if due(self.timers.delayed_ack) {
            self.timers.delayed_ack = None;
            self.pending |= Pending::ACK;
        }
        if due(self.timers.keepalive) {
            self.on_keepalive(ctx);
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
            Resend::Window => self.on_persist(ctx),
            Resend::Ack if self.snd.una == 0 => {
                if self.timers.syn_sends > ctx.config.syn_retries {
                    return self.give_up(ctx);
                }
                ctx.counters.rto_expired += 1;
                self.rtt.back_off();
                self.pending |= Pending::SYN;
            }
            Resend::Ack => self.on_retransmission_timeout(ctx),
        }
        self.arm_resend(ctx);
    }

    /// RFC 6298 section 5.4 to 5.6, RFC 5681 section 3.1.
    fn on_retransmission_timeout(&mut self, ctx: &mut Ctx<'_>) {
        ctx.counters.rto_expired += 1;
        let in_flight = self.snd.in_flight() as u32;
        let first = self.snd.mark_all_lost(ctx.segments);
        if self.fin == Fin::Sent {
            self.fin = Fin::Due;
        }
        self.congestion.on_timeout(ctx.now, in_flight, first || self.recovery.phase != Phase::Loss);
        self.recovery.phase = Phase::Loss;
        self.recovery.high = self.snd.nxt;
        self.recovery.dup_acks = 0;
        self.rtt.back_off();
    }

    /// The peer's window has stayed too small: probe it when it is closed, cut a segment to it when it is not
    /// (RFC 9293 sections 3.8.6.1 and 3.8.6.2.1).
    fn on_persist(&mut self, ctx: &Ctx<'_>) {
        self.timers.persist_backoff += 1;
        let too_small = self.snd.unsent.is_some_and(|key| ctx.segments.get(key).end() > self.window.edge);
        if too_small {
            self.pending |= if self.window.edge > self.snd.nxt { Pending::CUT } else { Pending::PROBE };
        }
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

    fn give_up(&mut self, ctx: &mut Ctx<'_>) {
        // A peer that never answered our SYN knows of no connection.
        let reset = self.snd.una > 0;
        self.terminate(ctx, CloseReason::TimedOut, reset);
    }

    /// Sets the first timer for what is waited for now; one that runs for the same goes on running.
    pub(super) fn arm_resend(&mut self, ctx: &Ctx<'_>) {
        if matches!(self.state, State::Closed | State::TimeWait) {
            self.timers.resend = None;
            return;
        }
        let wanted = if self.snd.in_flight() > 0 {
            Some(Resend::Ack)
        } else if self.snd.unsent.is_some() {
            // If it fits, it is on its way out; but should it not get out now, somebody has to ask again.
            Some(Resend::Window)
        } else {
            None
        };
        let running = self.timers.resend.map(|(_, resend)| resend);
        if running == wanted {
            return;
        }
        self.timers.resend = wanted.map(|resend| {
            let after = match resend {
                Resend::Ack => self.rtt.rto(),
                Resend::Window => self.rtt.after(self.timers.persist_backoff),
            };
            // The user timeout is not overslept.
            let give_up_at = self.timers.progress + ctx.config.user_timeout;
            ((ctx.now + after).min(give_up_at.max(ctx.now)), resend)
        });
    }
}
