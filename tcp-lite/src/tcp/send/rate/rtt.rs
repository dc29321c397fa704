//! Estimates the round-trip time and computes the retransmission timeout, in microseconds (RFC 6298).
//!
//! The caller applies Karn's rule and passes only unambiguous samples: the sample of a segment that was sent
//! once, or the sample of an echoed timestamp.
//!
//! The minimum of the timeout applies to the term of the variation (`max(G, K * RTTVAR)` of section 2.3), as
//! in Linux. On a long and steady path this term becomes very small. Without the minimum, the timeout would
//! then expire before a delayed acknowledgement arrives.

use crate::facade::{Duration, Instant};

/// The length of a window in which the minimum RTT is measured. A minimum is forgotten after one to two
/// windows (RFC 8985 section 6.2, step 1: a windowed minimum). The window is long enough that the bottleneck
/// queue was probably empty at least once, and short enough to follow a change of path.
const MIN_RTT_WINDOW: Duration = Duration::from_secs(30);

/// Maximum number of doublings of a timeout. After 32 doublings, the timeout exceeds any upper bound, because
/// the bound has 32 bits.
const MAX_DOUBLINGS: u32 = 32;

/// Timeout of the first data after the loss of a SYN, if nothing was measured (RFC 6298 section 5.7).
const AFTER_LOST_SYN_US: u64 = 3_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct RttEstimator {
    /// Eight times the smoothed RTT, so that division loses no precision of small RTTs; 0 before the first
    /// sample.
    srtt8_us: u64,
    /// Four times the variation.
    rttvar4_us: u64,
    /// Timeout before backoff, without the upper bound.
    base_us: u64,
    /// Bounds of the timeout in microseconds; 32 bits allow 71 minutes.
    min_us: u32,
    max_us: u32,
    backoff: u32,
    /// The lowest sample of the previous window, and the lowest sample of the present window; `u32::MAX` if a
    /// window has no sample.
    lowest_us: (u32, u32),
    /// The time at which the present window began.
    window_from: Instant,
}

impl RttEstimator {
    /// The state before the first sample, with the timeout `initial` (RFC 6298 section 2.1).
    pub(super) fn new(initial: Duration, min: Duration, max: Duration) -> Self {
        Self {
            srtt8_us: 0,
            rttvar4_us: 0,
            base_us: initial.total_micros(),
            min_us: micros(min),
            max_us: micros(max).max(1),
            backoff: 0,
            lowest_us: (u32::MAX, u32::MAX),
            window_from: Instant::ZERO,
        }
    }

    /// Adds an unambiguous measurement, and ends the backoff (RFC 6298 sections 2.2, 2.3, 5.7).
    #[inline]
    pub(super) fn sample(&mut self, now: Instant, rtt_us: u64) {
        let rtt_us = rtt_us.clamp(1, self.max_us.into());
        if now >= self.window_from + MIN_RTT_WINDOW {
            self.lowest_us = (self.lowest_us.1, u32::MAX);
            self.window_from = now;
        }
        self.lowest_us.1 = self.lowest_us.1.min(rtt_us.min(u64::from(u32::MAX)) as u32);
        if self.srtt8_us == 0 {
            self.srtt8_us = rtt_us * 8;
            self.rttvar4_us = rtt_us * 2;
        } else {
            let error = rtt_us.abs_diff(self.srtt8_us / 8);
            self.rttvar4_us = self.rttvar4_us - self.rttvar4_us / 4 + error;
            self.srtt8_us = self.srtt8_us - self.srtt8_us / 8 + rtt_us;
        }
        self.base_us = self.srtt8_us / 8 + self.rttvar4_us.max(self.min_us.into()).max(1);
        self.backoff = 0;
    }

    /// Called when a timeout was spurious: restarts with this measurement, and with a larger variation (RFC
    /// 4015 section 3.2, step 8).
    pub(super) fn reseed(&mut self, rtt_us: u64) {
        let rtt_us = rtt_us.clamp(1, self.max_us.into());
        self.srtt8_us = rtt_us * 8;
        self.rttvar4_us = (self.rttvar4_us * 2).max(rtt_us * 2);
        self.base_us = self.srtt8_us / 8 + self.rttvar4_us.max(self.min_us.into()).max(1);
        self.backoff = 0;
    }

    /// Called when the timer expired: doubles the timeout (RFC 6298 section 5.5).
    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_DOUBLINGS);
    }

    /// Resets the backoff. Called when the handshake is over, because the backoff does not apply to data (RFC
    /// 6298 section 5.7), and when the link is up again.
    pub(super) fn forget_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Called when a SYN was lost and the answer to the SYN gave no sample. The path may be longer than the
    /// first timeout.
    pub(super) fn on_syn_lost(&mut self) {
        self.base_us = self.base_us.max(AFTER_LOST_SYN_US);
    }

    pub(super) fn rto(&self) -> Duration {
        self.after(self.backoff)
    }

    #[inline]
    pub(super) fn after(&self, doublings: u32) -> Duration {
        let base_us = self.base_us.max(self.min_us.into());
        if doublings == 0 {
            return Duration::from_micros(base_us.min(u64::from(self.max_us)));
        }
        let doubled_us = u128::from(base_us) << doublings.min(MAX_DOUBLINGS);
        Duration::from_micros(doubled_us.min(u128::from(self.max_us)) as u64)
    }

    /// The recent minimum RTT in microseconds; 0 before the first sample.
    #[inline]
    pub(super) fn min_rtt_us(&self) -> u32 {
        let lowest_us = self.lowest_us.0.min(self.lowest_us.1);
        if lowest_us == u32::MAX { 0 } else { lowest_us }
    }

    /// Smoothed RTT in microseconds; 0 before the first sample.
    #[inline]
    pub(super) fn srtt_us(&self) -> u32 {
        (self.srtt8_us / 8).min(u64::from(u32::MAX)) as u32
    }
}

/// Microseconds from `then` to `now`; 0 if `now` is earlier.
#[inline]
pub(in crate::tcp::send) fn micros_since(now: Instant, then: Instant) -> u64 {
    now.total_micros().max(then.total_micros()).wrapping_sub(then.total_micros()) as u64
}

fn micros(duration: Duration) -> u32 {
    duration.total_micros().min(u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;

    fn estimator() -> RttEstimator {
        RttEstimator::new(Duration::from_secs(1), Duration::from_millis(50), Duration::from_secs(60))
    }

    #[test]
    fn the_timeout_doubles_up_to_its_ceiling_and_a_sample_ends_that() {
        let mut rtt = estimator();
        let mut seen = Vec::new();
        for _ in 0..8 {
            seen.push(rtt.rto().total_millis());
            rtt.back_off();
        }
        assert_eq!(seen, [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
        for _ in 0..100 {
            rtt.back_off();
        }
        assert_eq!(rtt.rto().total_millis(), 60_000);
        rtt.sample(NOW, 100_000);
        assert_eq!(rtt.rto().total_millis(), 300, "SRTT + 4 * SRTT / 2");
    }

    #[test]
    fn the_floor_holds_and_small_round_trips_are_not_lost_by_rounding() {
        let mut rtt = estimator();
        for _ in 0..200 {
            rtt.sample(NOW, 7);
        }
        assert_eq!((rtt.srtt_us(), rtt.rto().total_millis()), (7, 50));
        for _ in 0..200 {
            rtt.sample(NOW, 3);
        }
        assert_eq!(rtt.srtt_us(), 3);
    }

    #[test]
    fn a_steady_way_longer_than_the_floor_leaves_the_peer_time_to_acknowledge() {
        let mut rtt = estimator();
        for _ in 0..200 {
            rtt.sample(Instant::ZERO, 62_000);
        }
        assert_eq!(rtt.rto().total_millis(), 62 + 50);
    }

    #[test]
    fn the_variation_follows_rfc_6298() {
        let mut rtt = estimator();
        rtt.sample(NOW, 100_000);
        rtt.sample(NOW, 200_000);
        // SRTT = 7/8 * 100 + 1/8 * 200 = 112.5 ms, RTTVAR = 3/4 * 50 + 1/4 * 100 = 62.5 ms.
        assert_eq!(rtt.srtt_us(), 112_500);
        assert_eq!(rtt.rto().total_micros(), 112_500 + 4 * 62_500);
    }

    #[test]
    fn the_lowest_round_trip_is_forgotten_after_two_windows_without_it() {
        let mut rtt = estimator();
        assert_eq!(rtt.min_rtt_us(), 0);
        let mut lowest = |at_secs, sample_us| {
            rtt.sample(Instant::from_secs(at_secs), sample_us);
            rtt.min_rtt_us()
        };
        assert_eq!(lowest(100, 500), 500);
        assert_eq!(lowest(101, 300), 300);
        assert_eq!(lowest(102, 900), 300);
        assert_eq!(lowest(131, 800), 300, "the window before this one counts");
        assert_eq!(lowest(162, 900), 800);
    }

    #[test]
    fn a_spurious_timeout_makes_the_next_one_later() {
        let mut rtt = estimator();
        for _ in 0..100 {
            rtt.sample(NOW, 100_000);
        }
        rtt.back_off();
        rtt.reseed(300_000);
        // SRTT is the measurement, and RTTVAR is half of the measurement.
        assert_eq!((rtt.srtt_us(), rtt.rto().total_millis()), (300_000, 900));
    }
}
