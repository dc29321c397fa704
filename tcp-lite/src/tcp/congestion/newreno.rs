//! NewReno: slow start, and growth by one segment per window in congestion avoidance (RFC 5681, RFC 6582).

use super::{Ack, CongestionControl, Signal, Timeout, initial_window};
use crate::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct NewReno {
    mss: u32,
    cwnd: u32,
    ssthresh: u32,
    /// Number of bytes that were acknowledged in congestion avoidance and have not yet made the window grow.
    acked: u32,
    /// Window and threshold before the last reduction; `None` if there was no reduction, or if the last
    /// reduction was undone.
    prior_state: Option<(u32, u32)>,
}

impl NewReno {
    pub(super) fn new(mss: u32, cwnd: u32) -> Self {
        Self { mss, cwnd, ssthresh: u32::MAX, acked: 0, prior_state: None }
    }

    fn save_prior_state(&mut self) {
        self.prior_state = Some((self.cwnd, self.ssthresh));
    }

    /// Saves the state, and sets the threshold (RFC 5681 section 3.1, equation 4). The caller sets the
    /// window.
    fn reduce(&mut self, in_flight: u32) {
        self.save_prior_state();
        self.ssthresh = (in_flight / 2).max(2 * self.mss);
    }

    /// Sets the threshold and the window to `bytes`, but at least to two segments.
    pub(super) fn reduce_to(&mut self, bytes: u32) {
        self.reduce(bytes.saturating_mul(2));
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
        if self.cwnd < self.ssthresh {
            self.cwnd = self.cwnd.saturating_add(ack.slow_start_bytes(self.mss)).min(self.ssthresh);
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

    fn on_timeout(&mut self, _now: Instant, in_flight: u32, timeout: Timeout) {
        match timeout {
            Timeout::Congestion => self.reduce(in_flight),
            Timeout::Answered => self.save_prior_state(),
            Timeout::Again => {}
        }
        self.cwnd = self.mss;
        self.acked = 0;
    }

    fn undo(&mut self, _now: Instant, limit: u32) {
        if let Some((cwnd, ssthresh)) = self.prior_state.take() {
            self.cwnd = self.cwnd.max(cwnd.min(limit));
            self.ssthresh = self.ssthresh.max(ssthresh).max(cwnd);
        }
    }

    fn on_idle(&mut self, _now: Instant, _idle: Duration) {
        // After an idle time, the window is at most the initial window (RFC 5681 section 4.1).
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
        reno.on_ack(&ack(10_000));
        assert_eq!(reno.cwnd(), 20_000);
        reno.on_congestion(NOW, 20_000, Signal::Loss);
        assert_eq!(reno.cwnd(), 10_000);
        for _ in 0..10 {
            reno.on_ack(&ack(1000));
        }
        assert_eq!(reno.cwnd(), 11_000);
    }

    #[test]
    fn avoidance_counts_every_byte_and_a_reduction_begins_anew() {
        let mut reno = NewReno::new(1000, 20_000);
        reno.on_congestion(NOW, 20_000, Signal::Loss);
        let mut after = |acked| {
            reno.on_ack(&ack(acked));
            reno.cwnd()
        };
        // 12000 bytes are acknowledged in a window of 10000 bytes, so 2000 bytes are left over. With 9000
        // more bytes, 11000 bytes are acknowledged in a window of 11000 bytes.
        assert_eq!([after(6000), after(6000), after(9000)], [10_000, 11_000, 12_000]);
        assert_eq!(after(11_000), 12_000);
        reno.on_congestion(NOW, 12_000, Signal::Loss);
        reno.on_ack(&ack(5999));
        assert_eq!(reno.cwnd(), 6000);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut reno = NewReno::new(1000, 10_000);
        reno.on_unused(NOW);
        assert_eq!(reno.cwnd(), 10_000);
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_halves_the_threshold_once() {
        let mut reno = NewReno::new(1000, 10_000);
        reno.on_timeout(NOW, 10_000, Timeout::Congestion);
        assert_eq!((reno.cwnd(), reno.ssthresh), (1000, 5000));
        reno.on_timeout(NOW, 1000, Timeout::Again);
        assert_eq!((reno.cwnd(), reno.ssthresh), (1000, 5000));
        reno.on_timeout(NOW, 1000, Timeout::Congestion);
        assert_eq!(reno.ssthresh, 2000, "never below two segments");
    }

    #[test]
    fn undo_takes_back_the_last_reduction_and_only_that() {
        let mut reno = NewReno::new(1000, 10_000);
        reno.on_congestion(NOW, 10_000, Signal::Loss);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (5000, 5000));
        reno.on_timeout(NOW, 5000, Timeout::Congestion);
        reno.on_timeout(NOW, 5000, Timeout::Again);
        reno.undo(NOW, u32::MAX);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (5000, 5000));
        reno.undo(NOW, u32::MAX);
        assert_eq!((reno.cwnd(), reno.ssthresh()), (5000, 5000), "once");
    }
}
