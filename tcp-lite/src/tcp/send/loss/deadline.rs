//! The time at which the timer of the sending half is due, and the purpose of this timer. The timer is due at
//! the first deadline of the outstanding segments. If no segment is outstanding, the timer is due at the
//! deadline of what waits to be sent (RFC 6298, RFC 8985 section 7.2, RFC 9293 sections 3.8.1 and 3.8.6.1).
//! `timers.rs` has the times from which these deadlines are computed. `expiry.rs` has the actions of the
//! timer.

use super::frto::Frto;
use super::timers::SendTimer;
use super::{LossRecovery, Phase};
use crate::tcp::send::queue::SendQueue;
use crate::tcp::send::rate::RateControl;
use crate::tcp::slabs::{Marks, SegmentSlab};
use crate::{Duration, Instant, TcpConfig};

/// The maximum wait before a segment is cut because the peer's window is open but stays too small for the
/// segment (RFC 9293 section 3.8.6.2.1: 0.1 to 1 second). If the RTO is longer, the maximum wait is the RTO.
/// A closed window is probed at increasing intervals instead.
const OVERRIDE_MAX: Duration = Duration::from_secs(1);

/// The interval at which the user timeout is checked for segments that cannot be sent: the port accepts no
/// frames, no buffer is free, or the next hop does not answer. (`TCP_RESOURCE_PROBE_INTERVAL` of Linux.) The
/// transmission itself needs no timer.
pub(super) const STUCK_INTERVAL: Duration = Duration::from_millis(500);

impl LossRecovery {
    /// The running timer, and the time at which it is due; `None` if no timer runs.
    #[inline]
    pub(in crate::tcp::send) fn running_timer(&self) -> Option<(Instant, SendTimer)> {
        self.timers.running()
    }

    #[inline]
    pub(in crate::tcp::send) fn has_reordering_timer(&self) -> bool {
        self.timers.reorder_at().is_some()
    }

    /// Sets the timer that is due first, or stops the timer if nothing is outstanding or waits to be sent.
    /// The choice depends on what is outstanding or queued now, and on the times of transmission. Two timers
    /// that run already keep their deadline: a persist timer, unless it would now be set to an earlier time,
    /// and the timer of a SYN, FIN or segment that cannot be sent. `syn_due` is true if our SYN has to be
    /// sent.
    #[inline]
    pub(in crate::tcp::send) fn arm(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        segments: &SegmentSlab,
        (queue, rate): (&SendQueue, &RateControl),
        (sack, syn_due): (bool, bool),
    ) {
        let wanted = if queue.outstanding() > 0 {
            match self.timers.due(SendTimer::Stuck) {
                Some(running) if self.is_stuck(segments, queue, syn_due) => (running, SendTimer::Stuck),
                _ => self.flight_deadline(config, segments, (queue, rate), sack),
            }
        } else if queue.has_unsent() {
            // If the segment fits, it is about to be sent. If the transmission fails, this timer tries again.
            let at = self.persist_at(now, queue, rate);
            let running = self.timers.due(SendTimer::Persist);
            (running.map_or(at, |running| running.min(at)), SendTimer::Persist)
        } else if queue.nxt() == 0 && syn_due || queue.is_fin_next() {
            let running = self.timers.due(SendTimer::Stuck);
            (running.unwrap_or(now + STUCK_INTERVAL), SendTimer::Stuck)
        } else {
            return self.timers.cancel();
        };
        self.timers.start(now, wanted, config.user_timeout);
    }

    /// The first deadline of the segments in flight.
    fn flight_deadline(
        &self,
        config: &TcpConfig,
        segments: &SegmentSlab,
        (queue, rate): (&SendQueue, &RateControl),
        sack: bool,
    ) -> (Instant, SendTimer) {
        let rto_at = self.rto_at(segments, queue, rate);
        if let Some(at) = self.timers.reorder_at() {
            return if at < rto_at { (at, SendTimer::Reorder) } else { (rto_at, SendTimer::Rto) };
        }
        match self.pto(config, segments, (queue, rate), sack) {
            Some(pto) => (rto_at.min(self.timers.pto_at(pto)), SendTimer::LossProbe),
            None => (rto_at, SendTimer::Rto),
        }
    }

    /// The delay of a tail loss probe; `None` if no probe may be sent (RFC 8985 section 7.2).
    fn pto(
        &self,
        config: &TcpConfig,
        segments: &SegmentSlab,
        (queue, rate): (&SendQueue, &RateControl),
        sack: bool,
    ) -> Option<Duration> {
        let quiet = self.phase == Phase::Open && queue.sacked_segments() == 0 && !queue.has_lost();
        let allowed = quiet && sack && queue.una() > 0 && self.loss_probe.may_send();
        if !allowed {
            return None;
        }
        // (A probe requires an RTT sample, so the SRTT is valid.)
        let twice = (rate.srtt() * 2).max(config.tail_probe_min);
        // A single segment may wait for the peer's delayed acknowledgement. `rto_min` covers this delay.
        let single = queue
            .head()
            .is_some_and(|key| segments.get(key).next == queue.unsent() && queue.nxt() <= queue.end());
        Some(if single { twice + config.rto_min } else { twice })
    }

    /// The time at which the retransmission timer expires: an RTO after the last transmission of the oldest
    /// segment. If the RTO started at the last acknowledgement instead, each timeout would take one more
    /// round trip (RFC 7765). But a recent acknowledgement shows that the path works, and gives the other
    /// segments one more round trip.
    fn rto_at(&self, segments: &SegmentSlab, queue: &SendQueue, rate: &RateControl) -> Instant {
        let oldest = queue.oldest_sent();
        self.timers.rto_at(oldest.map(|key| segments.get(key).sent.at), rate.rto())
    }

    /// The time at which the persist timer expires if the peer's window stays too small. The wait doubles
    /// with each expiry. For an open window, the wait is at most [`OVERRIDE_MAX`], or the RTO if the RTO is
    /// longer.
    fn persist_at(&self, now: Instant, queue: &SendQueue, rate: &RateControl) -> Instant {
        let backed_off = rate.rto_after(self.timers.persist_backoff());
        let most = if queue.is_window_open() { rate.rto_after(0).max(OVERRIDE_MAX) } else { backed_off };
        now + backed_off.min(most)
    }

    /// Whether the oldest sent segment counts as lost and was not retransmitted since. If no sent segment is
    /// queued: whether our SYN or FIN has to be sent. (If F-RTO holds the oldest segment back on purpose, the
    /// result is `false`.)
    pub(super) fn is_stuck(&self, segments: &SegmentSlab, queue: &SendQueue, syn_due: bool) -> bool {
        if queue.una() == 0 {
            return syn_due;
        }
        match queue.oldest_sent() {
            Some(key) => {
                let lost = segments.get(key).marks.contains(Marks::LOST);
                lost && !matches!(self.frto, Frto::New(_))
            }
            None => queue.is_fin_due(),
        }
    }
}
