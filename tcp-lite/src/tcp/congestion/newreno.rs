//! NewReno: slow start, and one segment more for each window in congestion avoidance (RFC 5681, RFC 6582).

use super::{Ack, CongestionControl, Signal, initial_window};
use crate::{Duration, Instant};

/// NewReno.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct NewReno {
    mss: u32,
    cwnd: u32,
    ssthresh: u32,
    /// Octets acknowledged since the window last grew in congestion avoidance.
    acked: u32,
    /// Window and threshold before the last reduction, until that is taken back.
    before: Option<(u32, u32)>,
}

impl NewReno {
    /// At the start of a connection, with its first window.
    pub(super) fn new(mss: u32, cwnd: u32) -> Self {
        Self { mss, cwnd, ssthresh: u32::MAX, acked: 0, before: None }
    }

    /// RFC 5681 section 3.1, equation 4.
    fn reduce(&mut self, in_flight: u32) {
        self.before = Some((self.cwnd, self.ssthresh));
        self.ssthresh = (in_flight / 2).max(2 * self.mss);
    }

    /// A window of `octets`, but two segments at least.
    pub(super) fn reduce_to(&mut self, octets: u32) {
        self.reduce(octets.saturating_mul(2));
        self.cwnd = self.ssthresh;
        self.acked = 0;
    }
}

impl CongestionControl for NewReno {
    fn cwnd(&self) -> u32 {
        self.cwnd
    }

    fn ssthresh(&self) -> u32 {
        self.ssthresh
    }

    fn on_ack(&mut self, ack: &Ack) {
        if !ack.cwnd_limited {
            return;
        }
        if self.cwnd < self.ssthresh {
            // Byte counting without a limit: peers that coalesce acknowledge many segments at once.
            self.cwnd = self.cwnd.saturating_add(ack.delivered).min(self.ssthresh);
        } else {
            self.acked = self.acked.saturating_add(ack.delivered);
            if self.acked >= self.cwnd {
                self.acked -= self.cwnd;
                self.cwnd = self.cwnd.saturating_add(self.mss);
            }
        }
    }

    fn on_congestion(&mut self, _now: Instant, in_flight: u32, _signal: Signal) {
        self.reduce_to(in_flight / 2);
    }

    fn on_recovered(&mut self, _now: Instant) {
        self.cwnd = self.ssthresh;
        self.acked = 0;
    }

    fn on_timeout(&mut self, _now: Instant, in_flight: u32, first: bool) {
        if first {
            self.reduce(in_flight);
        }
        self.cwnd = self.mss;
        self.acked = 0;
    }

    fn undo(&mut self, _now: Instant, limit: u32) {
        if let Some((cwnd, ssthresh)) = self.before.take() {
            self.cwnd = self.cwnd.max(cwnd.min(limit));
            self.ssthresh = self.ssthresh.max(ssthresh).max(cwnd);
        }
    }

    fn on_idle(&mut self, _now: Instant, _idle: Duration) {
        // RFC 5681 section 4.1.
        self.cwnd = self.cwnd.min(initial_window(self.mss));
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, ack};
    use super::*;

    #[test]
    fn slow_start_doubles_and_avoidance_adds_one_segment_per_window() {
        let mut reno = NewReno::new(1000, 10_000);
        reno.on_ack(&ack(10_000, true));
        assert_eq!(reno.cwnd(), 20_000);
        reno.on_congestion(NOW, 20_000, Signal::Loss);
        assert_eq!(reno.cwnd(), 10_000);
        reno.on_recovered(NOW);
        for _ in 0..10 {
            reno.on_ack(&ack(1000, true));
        }
        assert_eq!(reno.cwnd(), 11_000);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut reno = NewReno::new(1000, 10_000);
        reno.on_ack(&ack(1000, false));
        assert_eq!(reno.cwnd(), 10_000);
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_halves_the_threshold_once() {
        let mut reno = NewReno::new(1000, 10_000);
        reno.on_timeout(NOW, 10_000, true);
        assert_eq!((reno.cwnd(), reno.ssthresh), (1000, 5000));
        reno.on_timeout(NOW, 1000, false);
        assert_eq!((reno.cwnd(), reno.ssthresh), (1000, 5000));
        reno.on_timeout(NOW, 1000, true);
        assert_eq!(reno.ssthresh, 2000, "never below two segments");
    }

    #[test]
    fn undo_takes_back_the_last_reduction_and_only_that() {
        let mut reno = NewReno::new(1000, 10_000);
        reno.on_congestion(NOW, 10_000, Signal::Loss);
        reno.on_recovered(NOW);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (5000, 5000));
        reno.on_timeout(NOW, 5000, true);
        reno.on_timeout(NOW, 5000, false);
        reno.undo(NOW, u32::MAX);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (5000, 5000));
        reno.undo(NOW, u32::MAX);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (5000, 5000), "once");
    }
}
