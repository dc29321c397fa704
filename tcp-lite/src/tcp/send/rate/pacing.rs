//! Pacing: the segments of a window are spread over the round trip instead of being sent all at once. Without
//! pacing, a short bottleneck queue could overflow when one acknowledgement covers many segments, or after an
//! idle time.
//!
//! Pacing is an option, which is off by default ([`TcpConfig::pacing`](crate::TcpConfig::pacing)). A burst of
//! several segments is sent at once. The next burst follows after the time that the first burst takes at the
//! paced rate. The paced rate is twice the window per round trip in slow start, and 1.2 times the window per
//! round trip otherwise (the ratios of Linux). Pacing delays new segments and retransmissions. The exceptions
//! are a retransmission of the oldest segment, a tail loss probe, and the new segments that F-RTO allows.

use crate::{Duration, Instant, Pacing, TcpConfig};

/// Pacing rates in tenths of a window per round trip: the rate in slow start, and the rate otherwise.
const SLOW_START_TENTHS: u64 = 20;
const AVOIDANCE_TENTHS: u64 = 12;

#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// The time at which all segments sent so far would be sent completely at the paced rate.
    next_at: Instant,
    /// True if segments wait until `next_at`.
    closed: bool,
}

impl Pace {
    pub(super) const OPEN: Self = Self { next_at: Instant::ZERO, closed: false };

    /// Accounts for a segment of `len` bytes that was sent, new or again.
    pub(super) fn on_segment_sent(&mut self, pacing: Pacing, now: Instant, len: u32, rate: PaceRate) {
        let (srtt_us, cwnd) = (u64::from(rate.srtt_us), u64::from(rate.cwnd));
        // (In fast recovery, the window equals the threshold.)
        let tenths = if rate.cwnd < rate.ssthresh { SLOW_START_TENTHS } else { AVOIDANCE_TENTHS };
        let takes_us = |bytes: u64| bytes * srtt_us * 10 / (cwnd * tenths).max(1);
        let burst = u64::from(pacing.burst_segments.max(1)) * u64::from(rate.emss);
        let (takes, burst) = (takes_us(u64::from(len)), takes_us(burst));
        let [takes, burst, round_trip] = [takes, burst, srtt_us].map(Duration::from_micros);
        self.on_sent(now, takes, burst, round_trip);
    }

    /// Accounts for a segment that was sent at `now` and takes the time `takes` at the paced rate. `burst` is
    /// the time by which transmission may be ahead of the paced rate. If a poll is late by at most `burst`,
    /// later segments are sent earlier to make up for the lost time. After a longer idle time, `next_at` is
    /// computed from `now`.
    ///
    /// The next segment waits for at most a round trip. After a round trip, the bytes in flight are
    /// acknowledged or lost, and the congestion window alone limits the rate.
    fn on_sent(&mut self, now: Instant, takes: Duration, burst: Duration, round_trip: Duration) {
        let from = if self.next_at + burst < now { now } else { self.next_at };
        self.next_at = (from + takes).min(now + round_trip);
        if self.next_at >= now + burst {
            self.closed = true;
        }
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        !self.closed
    }

    /// The time at which pacing allows the next segment; `None` if pacing allows a segment now.
    #[inline]
    pub(super) fn opens_at(&self) -> Option<Instant> {
        self.closed.then_some(self.next_at)
    }

    /// Allows segments again if the time `next_at` is reached.
    #[inline]
    pub(super) fn advance(&mut self, now: Instant) {
        if self.closed {
            self.closed = self.next_at > now;
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PaceRate {
    pub(super) srtt_us: u32,
    pub(super) cwnd: u32,
    pub(super) ssthresh: u32,
    pub(super) emss: u32,
}

/// The pacing parameters; `None` if pacing is off, or if the round-trip time is too short for pacing.
#[inline]
pub(super) fn pacing(config: &TcpConfig, srtt_us: u32) -> Option<Pacing> {
    config.pacing.filter(|pacing| u64::from(srtt_us) >= pacing.rtt_min.total_micros().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKES: Duration = Duration::from_micros(10);
    const BURST_TIME: Duration = Duration::from_micros(40);

    fn us(us: i64) -> Instant {
        Instant::from_micros(us)
    }

    /// The time at which each of `count` segments is sent. A segment takes 10 us, a burst has 4 segments, and
    /// the sender polls at the times `polls`.
    fn departures(polls: impl IntoIterator<Item = i64>, count: usize) -> Vec<i64> {
        let mut pace = Pace::OPEN;
        let mut left = Vec::new();
        for now in polls {
            pace.advance(us(now));
            while pace.is_open() && left.len() < count {
                pace.on_sent(us(now), TAKES, BURST_TIME, Duration::from_micros(1000));
                left.push(now);
            }
        }
        left
    }

    /// Like [`departures`], but returns the bursts: the time of each burst, and its number of segments.
    fn bursts(polls: impl IntoIterator<Item = i64>, count: usize) -> Vec<(i64, usize)> {
        departures(polls, count).chunk_by(|a, b| a == b).map(|burst| (burst[0], burst.len())).collect()
    }

    #[test]
    fn bursts_are_spaced_by_what_they_take() {
        assert_eq!(bursts(1000..2000, 14), [(1000, 4), (1040, 4), (1080, 4), (1120, 2)]);
    }

    #[test]
    fn a_late_poll_is_made_up_for_and_an_idle_time_is_not() {
        assert_eq!(
            bursts([1000, 1039, 1055, 1099, 1100, 1140], 24),
            [(1000, 4), (1055, 6), (1100, 4), (1140, 4)]
        );
        assert_eq!(bursts([1000, 1081, 1121], 24), [(1000, 4), (1081, 4), (1121, 4)]);
    }

    #[test]
    fn however_many_leave_without_waiting_the_next_waits_for_a_round_trip_at_most() {
        let mut pace = Pace::OPEN;
        for now in 1000..1050 {
            pace.on_sent(us(now), TAKES, BURST_TIME, Duration::from_micros(120));
        }
        assert_eq!(pace.opens_at(), Some(us(1049 + 120)));
        pace.advance(us(1049 + 120));
        assert!(pace.is_open());
    }

    #[test]
    fn a_burst_that_takes_a_round_trip_is_no_reason_to_wait() {
        let mut pace = Pace::OPEN;
        for now in 1000..1050 {
            pace.on_sent(us(now), TAKES, BURST_TIME, Duration::from_micros(39));
        }
        assert!(pace.is_open());
    }
}
