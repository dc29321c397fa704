//! When the timer of the sending half is due, and for what: the first of the deadlines of what is outstanding
//! or queued (RFC 6298, RFC 8985 section 7.2, RFC 9293 sections 3.8.1 and 3.8.6.1). The times that they count
//! from are in `timers.rs`; what happens when the timer is due is in `retransmission.rs`.

use super::timers::SendTimer;
use super::{Pending, Phase, SendHalf};
use crate::tcp::slabs::SegmentSlab;
use crate::{Duration, Instant, TcpConfig};

/// Longest wait before a segment is cut to a window that is open but stays too small (RFC 9293 section
/// 3.8.6.2.1: 0.1 to 1 second), unless the RTO is longer. A closed window is probed at increasing
/// intervals instead.
const OVERRIDE_MAX: Duration = Duration::from_secs(1);

/// How often the user timeout is checked for segments that cannot be sent: the port takes nothing, no
/// buffer is free, or the next hop does not answer. (`TCP_RESOURCE_PROBE_INTERVAL` of Linux.) Sending
/// them needs no timer.
pub(super) const STUCK_INTERVAL: Duration = Duration::from_millis(500);

impl SendHalf {
    /// When [`on_timer`](Self::on_timer) wants to be called.
    #[inline]
    pub(in crate::tcp) fn deadline(&self) -> Option<Instant> {
        let running = self.timers.running().map(|(at, _)| at);
        let paced = self.rate.pace_opens_at().filter(|_| self.queue.has_unsent() || self.queue.has_lost());
        first_of(running, first_of(paced, self.path.due()))
    }

    /// Whether a timer that counts microseconds runs, or is to be set.
    #[inline]
    pub(in crate::tcp) fn has_short_timer(&self) -> bool {
        !self.rate.is_pace_open() || self.timers.reorder_at().is_some()
    }

    /// Sets the timer that is due first, by what is outstanding or queued now, and when it was sent. Without
    /// a change it stays as it is: a persist timer keeps running, but not for longer than it would be set to
    /// now, and so does the timer of a segment that cannot be sent.
    #[inline]
    pub(in crate::tcp) fn arm(&mut self, now: Instant, config: &TcpConfig, segments: &SegmentSlab) {
        let wanted = if self.queue.outstanding() > 0 {
            match self.timers.due(SendTimer::Stuck) {
                Some(running) if self.is_stuck(segments) => (running, SendTimer::Stuck),
                _ => self.flight_deadline(config, segments),
            }
        } else if self.queue.has_unsent() {
            // If the segment fits it is about to be sent; if that fails, this timer tries again.
            let at = self.persist_at(now);
            let running = self.timers.due(SendTimer::Persist);
            (running.map_or(at, |running| running.min(at)), SendTimer::Persist)
        } else if self.awaits_first_control() {
            let running = self.timers.due(SendTimer::Stuck);
            (running.unwrap_or(now + STUCK_INTERVAL), SendTimer::Stuck)
        } else {
            return self.timers.cancel();
        };
        self.timers.start(now, wanted, config.user_timeout);
    }

    /// The first deadline of the segments in flight.
    fn flight_deadline(&self, config: &TcpConfig, segments: &SegmentSlab) -> (Instant, SendTimer) {
        let rto_at = self.rto_at(segments);
        if let Some(at) = self.timers.reorder_at() {
            return if at < rto_at { (at, SendTimer::Reorder) } else { (rto_at, SendTimer::Rto) };
        }
        match self.pto(config, segments) {
            Some(pto) => (rto_at.min(self.timers.pto_at(pto)), SendTimer::LossProbe),
            None => (rto_at, SendTimer::Rto),
        }
    }

    /// The delay of a tail loss probe, if one may be sent (RFC 8985 section 7.2).
    fn pto(&self, config: &TcpConfig, segments: &SegmentSlab) -> Option<Duration> {
        let quiet = self.recovery.phase == Phase::Open
            && self.queue.sacked_segments() == 0
            && !self.queue.has_lost()
            && !self.pending.contains(Pending::LOSS_PROBE);
        let allowed =
            quiet && self.agreed.sack && self.queue.una() > 0 && self.recovery.loss_probe.may_send();
        if !allowed {
            return None;
        }
        // (A probe requires an RTT sample, so the SRTT is valid.)
        let twice = (self.rate.srtt() * 2).max(config.tail_probe_min);
        // A single segment may wait for the peer's delayed acknowledgement, which the floor of the RTO
        // covers.
        let single = self.queue.head().is_some_and(|key| {
            segments.get(key).next == self.queue.unsent() && self.queue.nxt() <= self.queue.end()
        });
        Some(if single { twice + config.rto_min } else { twice })
    }

    /// When the retransmission timer expires: an RTO after the last transmission of the oldest segment,
    /// not after the last acknowledgement, which would add a round trip each time (RFC 7765). A recent
    /// acknowledgement shows that the path works, and gives the other segments one more round trip:
    /// their acknowledgements may wait to be read.
    fn rto_at(&self, segments: &SegmentSlab) -> Instant {
        let oldest = self.queue.oldest_sent();
        self.timers.rto_at(oldest.map(|key| segments.get(key).sent.at), self.rate.rto())
    }

    /// When the peer's window will have been too small for long enough. The wait is shorter for an open
    /// window than for a closed one.
    fn persist_at(&self, now: Instant) -> Instant {
        let backed_off = self.rate.rto_after(self.timers.persist_backoff());
        let is_open = self.window.edge() > self.queue.nxt();
        let most = if is_open { self.rate.rto_after(0).max(OVERRIDE_MAX) } else { backed_off };
        now + backed_off.min(most)
    }

    /// Whether a SYN or FIN that was never sent is next.
    fn awaits_first_control(&self) -> bool {
        self.queue.nxt() == 0 && self.pending.contains(Pending::SYN) || self.is_fin_next()
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
