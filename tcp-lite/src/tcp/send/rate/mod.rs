//! The rate at which a connection sends: the congestion window, the round-trip time, the retransmission
//! timeout, the pacing, and the response to echoed marks (RFC 5681, RFC 6298, RFC 3168, RFC 8257).
//!
//! This module does not use the segments in the queue or the state of a recovery. The callers pass everything
//! that this module needs as arguments.

mod pacing;
mod reduction;
mod rtt;

pub(super) use self::reduction::Reduction;
pub(super) use self::rtt::micros_since;

use self::pacing::{Pace, PaceRate};
use self::rtt::RttEstimator;
use crate::tcp::congestion::{Ack, Congestion, CongestionControl, Signal, Timeout, saturated};
use crate::tcp::send::queue::SentSoFar;
use crate::tcp::slabs::Sent;
use crate::{Duration, Instant, Pacing, TcpConfig};

/// Congestion control of one connection, and its inputs.
#[derive(Debug)]
pub(super) struct RateControl {
    congestion: Congestion,
    rtt: RttEstimator,
    pace: Pace,
    reduction: Reduction,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    /// The position of the oldest lost byte, or a lower position.
    pub(super) oldest: u64,
    /// The latest lost transmission, if it is known.
    pub(super) latest: Option<Sent>,
    /// Number of bytes that were sent and are not acknowledged cumulatively (RFC 5681, `FlightSize`).
    pub(super) in_flight: u64,
}

/// What an acknowledgement reports to congestion control, like `rate_sample` in Linux.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateSample {
    /// Number of bytes acknowledged cumulatively.
    pub(super) acked: u64,
    /// Number of bytes newly known to have arrived. Each byte counts once.
    pub(super) delivered: u64,
    /// The round-trip time in microseconds that this acknowledgement measured; `None` if it measured none.
    pub(super) rtt_us: Option<u64>,
    /// Number of bytes that were believed to be in the network before the acknowledgement arrived.
    pub(super) pipe: u64,
    /// SND.UNA and SND.NXT after the acknowledgement arrived.
    pub(super) una: u64,
    pub(super) nxt: u64,
    pub(super) ece: bool,
}

impl RateControl {
    /// The state before the SYNs have agreed on anything and before any measurement.
    pub(super) fn new(config: &TcpConfig, mss: u32) -> Self {
        Self {
            congestion: Congestion::new(config.congestion, mss, false),
            rtt: RttEstimator::new(config.rto_initial, config.rto_min, config.rto_max),
            pace: Pace::OPEN,
            reduction: Reduction::default(),
        }
    }

    /// Called when the handshake is over: restarts congestion control with this EMSS. `rtt_us` is the
    /// round-trip time in microseconds that the handshake measured; `None` if it measured none. `syn_lost` is
    /// true if our SYN was sent more than once.
    pub(super) fn establish(
        &mut self,
        now: Instant,
        config: &TcpConfig,
        emss: u32,
        (rtt_us, syn_lost): (Option<u64>, bool),
    ) {
        match rtt_us {
            Some(rtt_us) => self.rtt.sample(now, rtt_us),
            None if syn_lost => self.rtt.on_syn_lost(),
            None => {}
        }
        self.rtt.forget_backoff();
        self.congestion = Congestion::new(config.congestion, emss, syn_lost);
    }

    /// Called when a round-trip time, in microseconds, was measured unambiguously.
    #[inline]
    pub(super) fn sample_rtt(&mut self, now: Instant, rtt_us: u64) {
        self.rtt.sample(now, rtt_us);
    }

    /// Called when a timeout was spurious, because the round-trip time of the path has become longer than the
    /// estimate (RFC 4015 section 3.2, step 8).
    pub(super) fn reseed_rtt(&mut self, rtt_us: u64) {
        self.rtt.reseed(rtt_us);
    }

    pub(super) fn rto(&self) -> Duration {
        self.rtt.rto()
    }

    /// The timeout after `doublings` doublings, whatever the present backoff is.
    pub(super) fn rto_after(&self, doublings: u32) -> Duration {
        self.rtt.after(doublings)
    }

    /// Called when the retransmission timer expired: doubles the timeout (RFC 6298 section 5.5).
    pub(super) fn back_off_rto(&mut self) {
        self.rtt.back_off();
    }

    /// Resets the backoff of the timeout, because the path was not the cause of the earlier timeouts.
    pub(super) fn forget_rto_backoff(&mut self) {
        self.rtt.forget_backoff();
    }

    /// Smoothed round-trip time in microseconds; 0 before the first sample.
    #[inline]
    pub(super) fn srtt_us(&self) -> u32 {
        self.rtt.srtt_us()
    }

    #[inline]
    pub(super) fn srtt(&self) -> Duration {
        Duration::from_micros(u64::from(self.rtt.srtt_us()))
    }

    /// The recent minimum round-trip time in microseconds; 0 before the first sample.
    #[inline]
    pub(super) fn min_rtt_us(&self) -> u32 {
        self.rtt.min_rtt_us()
    }

    /// The congestion window in bytes.
    #[inline]
    pub(super) fn cwnd(&self) -> u32 {
        self.congestion.cwnd()
    }

    /// The slow start threshold in bytes.
    pub(super) fn ssthresh(&self) -> u32 {
        self.congestion.ssthresh()
    }

    pub(super) fn set_emss(&mut self, emss: u32) {
        self.congestion.set_mss(emss);
    }

    /// Called before the first data after a time `idle` in which no data was sent: if `idle` is longer than
    /// the timeout, reduces the window (RFC 5681 section 4.1).
    #[inline]
    pub(super) fn on_idle(&mut self, now: Instant, idle: Duration) {
        if idle > self.rtt.rto() {
            self.congestion.on_idle(now, idle);
        }
    }

    /// Called for an acknowledgement after which the window may grow. The window grows if enough of the
    /// window was in use and the peer echoes no marks.
    #[inline(always)]
    pub(super) fn on_ack(&mut self, now: Instant, config: &TcpConfig, emss: u32, sample: &RateSample) {
        let (cwnd, in_flight) = (self.congestion.cwnd(), saturated(sample.pipe));
        let used = match cwnd < self.congestion.ssthresh() {
            // Slow start doubles the window in each round trip, so only about half of the present window can
            // have been in use.
            true => in_flight >= cwnd / 2,
            false => in_flight.saturating_add(emss) >= cwnd,
        };
        // An acknowledgement that signals congestion does not open the window.
        if used && !sample.ece {
            // `Ack` is made only here, so that other acknowledgements store nothing.
            return self.grow_window(&Ack {
                now,
                acked: saturated(sample.acked),
                delivered: saturated(sample.delivered),
                una: sample.una,
                nxt: sample.nxt,
                rtt_us: sample.rtt_us.map(saturated),
                srtt_us: self.rtt.srtt_us(),
                paced: self.is_paced(config),
            });
        }
        self.congestion.on_unused(now);
        self.observe_ack(sample);
    }

    #[inline(never)]
    fn grow_window(&mut self, ack: &Ack) {
        self.congestion.on_ack(ack);
    }

    /// Called for an acknowledgement after which the window may not grow. The estimate of RFC 8257 section
    /// 3.3 uses every acknowledgement.
    #[inline]
    pub(super) fn observe_ack(&mut self, sample: &RateSample) {
        self.congestion.observe(saturated(sample.acked), sample.una, sample.nxt, sample.ece);
    }

    /// Whether the last reduction of the window covers this loss.
    pub(super) fn answers(&self, oldest: u64, latest: Option<Sent>) -> bool {
        self.reduction.answers(oldest, latest)
    }

    /// Reduces the window for a loss, unless an earlier reduction covers the loss. Returns the previous
    /// reduction if the window was reduced, otherwise `None`.
    pub(super) fn reduce_for_loss(
        &mut self,
        now: Instant,
        loss: &Loss,
        sent: SentSoFar,
    ) -> Option<Reduction> {
        let Loss { oldest, latest, in_flight } = *loss;
        let before = self.reduction;
        if before.answers(oldest, latest) {
            return None;
        }
        // During a recovery, more bytes may be in flight than the window allowed when the segment was lost.
        let window = if before.covers(oldest) { self.congestion.cwnd() } else { u32::MAX };
        self.congestion.on_congestion(now, saturated(in_flight).min(window), Signal::Loss);
        self.reduction = Reduction::new(sent, true);
        Some(before)
    }

    /// Called when the peer echoes marks in an acknowledgement up to `ack`. Reduces the window at most once
    /// for each window of data (RFC 3168 section 6.1.2). The window is also reduced during a recovery,
    /// because marks on bytes sent since the last reduction are new congestion, and a receiver of RFC 8257
    /// echoes such marks only once. `in_flight` is RFC 5681's `FlightSize`. Returns whether the window was
    /// reduced.
    pub(super) fn reduce_for_marks(
        &mut self,
        now: Instant,
        (ack, recovering): (u64, bool),
        in_flight: u64,
        sent: SentSoFar,
    ) -> bool {
        if !self.reduction.is_new_congestion(ack) {
            return false;
        }
        let window = if recovering { self.congestion.cwnd() } else { u32::MAX };
        self.congestion.on_congestion(now, saturated(in_flight).min(window), Signal::Ecn);
        self.reduction = Reduction::new(sent, self.congestion.treats_marks_like_loss());
        true
    }

    /// Called when the retransmission timer expired with `in_flight` bytes in flight: sets the window to one
    /// segment, changes the threshold as `timeout` requires, and doubles the RTO. Returns the previous
    /// reduction.
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        in_flight: u64,
        timeout: Timeout,
        sent: SentSoFar,
    ) -> Reduction {
        self.congestion.on_timeout(now, saturated(in_flight), timeout);
        self.rtt.back_off();
        std::mem::replace(&mut self.reduction, Reduction::new(sent, true))
    }

    /// Called when the last reduction was spurious. `before` is the reduction before the spurious reduction.
    /// The window grows back by slow start, from at most `limit` bytes (RFC 4015 section 3.2, step 9).
    pub(super) fn undo_reduction(&mut self, now: Instant, limit: u64, before: Reduction) {
        self.congestion.undo(now, saturated(limit));
        self.reduction.undo(before);
    }

    /// Whether the next new segment carries CWR, if ECN was agreed on.
    #[inline]
    pub(super) fn is_cwr_next(&self) -> bool {
        self.reduction.is_announced_next()
    }

    #[inline]
    pub(super) fn on_new_sent(&mut self, now: Instant, config: &TcpConfig, emss: u32, len: u32) {
        self.on_sent(now, config, emss, len);
        self.reduction.on_new_sent();
    }

    /// Called when a segment of `len` bytes was sent, new or again.
    #[inline]
    pub(super) fn on_sent(&mut self, now: Instant, config: &TcpConfig, emss: u32, len: u32) {
        let Some(pacing) = self.pacing(config) else {
            self.pace = Pace::OPEN;
            return;
        };
        let rate = PaceRate {
            srtt_us: self.rtt.srtt_us(),
            cwnd: self.congestion.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            emss,
        };
        self.pace.on_segment_sent(pacing, now, len, rate);
    }

    #[inline]
    pub(super) fn is_paced(&self, config: &TcpConfig) -> bool {
        self.pacing(config).is_some()
    }

    #[inline]
    fn pacing(&self, config: &TcpConfig) -> Option<Pacing> {
        pacing::pacing(config, self.rtt.srtt_us())
    }

    #[inline]
    pub(super) fn is_pace_open(&self) -> bool {
        self.pace.is_open()
    }

    /// The time at which pacing allows the next segment; `None` if pacing allows a segment now.
    #[inline]
    pub(super) fn pace_opens_at(&self) -> Option<Instant> {
        self.pace.opens_at()
    }

    /// Allows segments again if the time of the next segment is reached.
    #[inline]
    pub(super) fn advance_pace(&mut self, now: Instant) {
        self.pace.advance(now);
    }
}

#[cfg(test)]
impl RateControl {
    pub(super) fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    pub(super) fn congestion_mut(&mut self) -> &mut Congestion {
        &mut self.congestion
    }
}

#[cfg(test)]
mod tests;
