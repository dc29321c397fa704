//! The timer of the sending half, the times it is computed from, and when it is due (RFC 6298, RFC 8985
//! section 7.2, RFC 9293 sections 3.8.1 and 3.8.6.1). What happens then is in `retransmission.rs`.

use super::{Pending, Phase, SendHalf};
use crate::tcp::ctx::Ctx;
use crate::{Duration, Instant};

/// Longest wait before a segment is cut to a window that is open but stays too small (RFC 9293 section
/// 3.8.6.2.1: 0.1 to 1 second), unless the RTO is longer. A closed window is probed at increasing
/// intervals instead.
const OVERRIDE_MAX: Duration = Duration::from_secs(1);

/// How often the user timeout is checked for segments that cannot be sent: the port takes nothing, no
/// buffer is free, or the next hop does not answer. (`TCP_RESOURCE_PROBE_INTERVAL` of Linux.) Sending
/// them needs no timer.
pub(super) const STUCK_INTERVAL: Duration = Duration::from_millis(500);

/// What the running timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendTimer {
    /// Acknowledgement of what is in flight: RTO.
    Rto,
    /// Acknowledgement of overtaken segments (RFC 8985, the reordering timer).
    Reorder,
    /// Acknowledgement of the last segment sent (RFC 8985, PTO).
    LossProbe,
    /// A larger window, while nothing is in flight (persist timer).
    Persist,
    /// Transmission of a SYN or FIN that was never sent, or of a segment that timed out and could not be
    /// retransmitted.
    Stuck,
}

/// The timer and its times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    pub(super) running: Option<(Instant, SendTimer)>,
    /// When the next overtaken segment will be lost.
    pub(super) reorder: Option<Instant>,
    /// When our SYN or FIN was last sent.
    pub(super) control_sent_at: Instant,
    /// When data was last sent or acknowledged: the PTO counts from here.
    pub(super) pto_from: Instant,
    /// The RTO does not expire before this.
    pub(super) rto_not_before: Instant,
    /// Since when there has been no progress: the user timeout counts from here.
    pub(super) progress: Instant,
    /// When data was last sent, new or again: the idle time counts from here (RFC 5681 section 4.1).
    pub(super) data_sent_at: Instant,
    pub(super) persist_backoff: u32,
    /// Transmissions of our SYN, answers to the peer's repeated SYN included.
    pub(super) syn_sends: u8,
    /// Timeouts of our SYN (RFC 9293 section 3.8.3 counts these, not answers).
    pub(super) syn_timeouts: u8,
}

impl Timers {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            running: None,
            reorder: None,
            control_sent_at: now,
            pto_from: now,
            rto_not_before: now,
            progress: now,
            data_sent_at: now,
            persist_backoff: 0,
            syn_sends: 0,
            syn_timeouts: 0,
        }
    }

    /// Stops all timers.
    pub(super) fn stop(&mut self) {
        self.running = None;
        self.reorder = None;
    }
}

impl SendHalf {
    /// When [`on_timer`](Self::on_timer) wants to be called.
    #[inline]
    pub(in crate::tcp) fn deadline(&self) -> Option<Instant> {
        let running = self.timers.running.map(|(at, _)| at);
        let paced = self.pace.opens_at().filter(|_| self.queue.unsent.is_some() || self.queue.lost_bytes > 0);
        first_of(running, first_of(paced, self.path.due()))
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
            match self.timers.running {
                Some((running, SendTimer::Persist)) => (running.min(at), SendTimer::Persist),
                _ => (at, SendTimer::Persist),
            }
        } else if self.awaits_first_control() {
            match self.timers.running {
                Some(running @ (_, SendTimer::Stuck)) => running,
                _ => (ctx.now + STUCK_INTERVAL, SendTimer::Stuck),
            }
        } else {
            self.timers.running = None;
            return;
        };
        // No timer is later than the user timeout.
        let give_up_at = (self.timers.progress + ctx.config.user_timeout).max(ctx.now);
        self.timers.running = Some((wanted.0.min(give_up_at), wanted.1));
    }

    /// The first deadline of the segments in flight.
    fn flight_deadline(&self, ctx: &Ctx<'_>) -> (Instant, SendTimer) {
        let rto_at = self.rto_at(ctx);
        if let Some(at) = self.timers.reorder {
            return if at < rto_at { (at, SendTimer::Reorder) } else { (rto_at, SendTimer::Rto) };
        }
        match self.pto(ctx) {
            Some(pto) => (rto_at.min(self.timers.pto_from + pto), SendTimer::LossProbe),
            None => (rto_at, SendTimer::Rto),
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

    /// When the peer's window will have been too small for long enough. The wait is shorter for an open
    /// window than for a closed one.
    fn persist_at(&self, ctx: &Ctx<'_>) -> Instant {
        let backed_off = self.rtt.after(self.timers.persist_backoff);
        let is_open = self.window.edge() > self.queue.nxt;
        let most = if is_open { self.rtt.after(0).max(OVERRIDE_MAX) } else { backed_off };
        ctx.now + backed_off.min(most)
    }

    /// Whether a SYN or FIN that was never sent is next.
    fn awaits_first_control(&self) -> bool {
        self.queue.nxt == 0 && self.pending.contains(Pending::SYN) || self.is_fin_next()
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
