//! Pacing: segments leave spread over the round trip rather than all at once, so that a short queue
//! on the way is not overrun by what an acknowledgement of many, or the end of an idle time, lets
//! go.
//!
//! An option, off by default ([`TcpConfig::pacing`](crate::TcpConfig::pacing)). A burst of some
//! segments leaves at once; the next one when the time is over that the burst takes at twice the
//! window for each round trip in slow start, and at 1.2 times the window otherwise (the ratios of
//! Linux). Not delayed are acknowledgements, probes, FINs, and the oldest segment when it is sent
//! again. Segments stay whole.

use crate::{Duration, Instant, Pacing, TcpConfig};

/// Tenths of a window for each round trip: in slow start, and otherwise.
const SLOW_START_TENTHS: u64 = 20;
const AVOIDANCE_TENTHS: u64 = 12;

/// What one connection remembers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// When what was sent so far is paid for.
    paid: Instant,
    /// Segments wait until then.
    closed: bool,
}

impl Pace {
    /// Nothing was sent yet.
    pub(super) const OPEN: Self = Self { paid: Instant::ZERO, closed: false };

    /// A segment of `len` bytes was sent, new or again.
    pub(super) fn on_segment_sent(&mut self, pacing: Pacing, now: Instant, len: u32, rate: Rate) {
        let (srtt_us, cwnd) = (u64::from(rate.srtt_us), u64::from(rate.cwnd));
        // (In fast recovery the window is the threshold.)
        let tenths = if rate.cwnd < rate.ssthresh { SLOW_START_TENTHS } else { AVOIDANCE_TENTHS };
        let takes_us = |bytes: u64| bytes * srtt_us * 10 / (cwnd * tenths).max(1);
        let burst = u64::from(pacing.burst_segments.max(1)) * u64::from(rate.emss);
        let (takes, burst) = (takes_us(u64::from(len)), takes_us(burst));
        let [takes, burst, round_trip] = [takes, burst, srtt_us].map(Duration::from_micros);
        self.on_sent(now, takes, burst, round_trip);
    }

    /// A segment leaves `now`, which takes `takes` of the path's time; `burst`: how much of it may
    /// be used in advance. A poller that comes late makes up for less than that; who was idle
    /// begins anew.
    ///
    /// The next one waits for a round trip at most. By then what was sent is acknowledged or lost,
    /// and the window is enough to hold segments back. More is owed only when segments that do not
    /// wait left in between, or when acknowledgements come back much faster than the smoothed round
    /// trip: then that is too long, not the burst.
    fn on_sent(&mut self, now: Instant, takes: Duration, burst: Duration, round_trip: Duration) {
        let from = if self.paid + burst < now { now } else { self.paid };
        self.paid = (from + takes).min(now + round_trip);
        if self.paid >= now + burst {
            self.closed = true;
        }
    }

    /// Whether segments may leave.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        !self.closed
    }

    /// When they may, if not now.
    #[inline]
    pub(super) fn opens_at(&self) -> Option<Instant> {
        self.closed.then_some(self.paid)
    }

    /// Time has passed.
    #[inline]
    pub(super) fn advance(&mut self, now: Instant) {
        self.closed &= self.paid > now;
    }
}

/// What the spacing depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rate {
    pub(super) srtt_us: u32,
    pub(super) cwnd: u32,
    pub(super) ssthresh: u32,
    pub(super) emss: u32,
}

/// How segments are spread, if they are: not where the path is too short for it.
#[inline]
pub(super) fn pacing(config: &TcpConfig, srtt_us: u32) -> Option<Pacing> {
    config.pacing.filter(|pacing| u64::from(srtt_us) >= pacing.rtt_min.total_micros().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAKES: Duration = Duration::from_micros(10);
    const BURST: Duration = Duration::from_micros(40);

    fn us(us: i64) -> Instant {
        Instant::from_micros(us)
    }

    /// When each of `count` segments leaves that takes 10 us, in bursts of 4, polled at these
    /// times.
    fn departures(polls: impl IntoIterator<Item = i64>, count: usize) -> Vec<i64> {
        let mut pace = Pace::OPEN;
        let mut left = Vec::new();
        for now in polls {
            pace.advance(us(now));
            while pace.is_open() && left.len() < count {
                pace.on_sent(us(now), TAKES, BURST, Duration::from_micros(1000));
                left.push(now);
            }
        }
        left
    }

    /// The same as bursts: when, and how many.
    fn bursts(polls: impl IntoIterator<Item = i64>, count: usize) -> Vec<(i64, usize)> {
        departures(polls, count).chunk_by(|a, b| a == b).map(|burst| (burst[0], burst.len())).collect()
    }

    #[test]
    fn bursts_are_spaced_by_what_they_take() {
        assert_eq!(bursts(1000..2000, 14), [(1000, 4), (1040, 4), (1080, 4), (1120, 2)]);
    }

    #[test]
    fn who_is_polled_late_makes_up_for_it_and_who_was_idle_does_not() {
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
            pace.on_sent(us(now), TAKES, BURST, Duration::from_micros(120));
        }
        assert_eq!(pace.opens_at(), Some(us(1049 + 120)));
        pace.advance(us(1049 + 120));
        assert!(pace.is_open());
    }

    #[test]
    fn a_burst_that_takes_a_round_trip_is_no_reason_to_wait() {
        let mut pace = Pace::OPEN;
        for now in 1000..1050 {
            pace.on_sent(us(now), TAKES, BURST, Duration::from_micros(39));
        }
        assert!(pace.is_open());
    }
}
