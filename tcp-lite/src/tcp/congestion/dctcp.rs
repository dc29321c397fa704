//! DCTCP (RFC 8257): like NewReno, but after marks the window is reduced in proportion to the estimated share
//! of marked bytes. DCTCP is only for networks whose switches mark early, and for connections with DCTCP at
//! both endpoints.

use super::newreno::NewReno;
use super::{Ack, CongestionControl, Signal, Timeout};
use crate::{Duration, Instant};

/// Weight of the newest window in the estimate (section 4.2, g).
const GAIN: f64 = 1.0 / 16.0;

#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Dctcp {
    reno: NewReno,
    /// Estimated fraction of bytes that were marked (section 3.3, DCTCP.Alpha).
    alpha: f64,
    /// The window of observation ends with the first acknowledgement beyond this position (DCTCP.WindowEnd).
    window_end: u64,
    /// The number of bytes acknowledged in this window of observation, and the number of bytes among them
    /// that were acknowledged with ECE.
    acked: u32,
    marked: u32,
}

impl Dctcp {
    pub(super) fn new(mss: u32, cwnd: u32) -> Self {
        Self { reno: NewReno::new(mss, cwnd), alpha: 1.0, window_end: 0, acked: 0, marked: 0 }
    }
}

impl CongestionControl for Dctcp {
    fn cwnd(&self) -> u32 {
        self.reno.cwnd()
    }

    fn ssthresh(&self) -> u32 {
        self.reno.ssthresh()
    }

    fn on_ack(&mut self, ack: &Ack) {
        self.observe(ack.acked, ack.una, ack.nxt, false);
        self.reno.on_ack(ack);
    }

    /// Performs steps 1 to 8 of section 3.3. Called for every acknowledgement of new bytes, also in fast
    /// recovery.
    fn observe(&mut self, acked: u32, una: u64, nxt: u64, ece: bool) {
        self.acked = self.acked.saturating_add(acked);
        if ece {
            self.marked = self.marked.saturating_add(acked);
        }
        if una > self.window_end && self.acked > 0 {
            let share = f64::from(self.marked) / f64::from(self.acked);
            self.alpha = self.alpha * (1.0 - GAIN) + GAIN * share;
            self.window_end = nxt;
            (self.acked, self.marked) = (0, 0);
        }
    }

    fn on_congestion(&mut self, now: Instant, in_flight: u32, signal: Signal) {
        match signal {
            // Section 3.5: DCTCP treats a loss like NewReno.
            Signal::Loss => self.reno.on_congestion(now, in_flight, signal),
            // Section 3.3, step 9.
            Signal::Ecn => {
                let cwnd = f64::from(self.reno.cwnd()) * (1.0 - self.alpha / 2.0);
                self.reno.reduce_to(cwnd as u32);
            }
        }
    }

    fn treats_marks_like_loss(&self) -> bool {
        false
    }

    fn on_timeout(&mut self, now: Instant, in_flight: u32, timeout: Timeout) {
        self.reno.on_timeout(now, in_flight, timeout);
    }

    fn undo(&mut self, now: Instant, limit: u32) {
        self.reno.undo(now, limit);
    }

    fn on_idle(&mut self, now: Instant, idle: Duration) {
        self.reno.on_idle(now, idle);
    }

    fn set_mss(&mut self, mss: u32) {
        self.reno.set_mss(mss);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::NOW;
    use super::*;

    /// Reports `windows` windows of ten acknowledgements each. In each window, `marked` acknowledgements echo
    /// marks.
    fn observe(dctcp: &mut Dctcp, windows: u64, marked: u64) {
        let begin = dctcp.window_end;
        for window in 0..windows {
            for part in 1..=10 {
                let una = begin + window * 10 + part;
                let ece = part <= marked;
                dctcp.observe(1000, una, una + 9, ece);
            }
        }
    }

    #[test]
    fn the_window_falls_by_half_the_share_of_marks() {
        let mut dctcp = Dctcp::new(1000, 100_000);
        observe(&mut dctcp, 200, 2);
        assert!((0.19..0.21).contains(&dctcp.alpha), "{}", dctcp.alpha);
        dctcp.on_congestion(NOW, 100_000, Signal::Ecn);
        assert!((89_000..91_000).contains(&dctcp.cwnd()), "{}", dctcp.cwnd());
        assert_eq!(dctcp.ssthresh(), dctcp.cwnd());
    }

    #[test]
    fn each_window_counts_for_a_sixteenth_and_only_its_own_bytes() {
        let mut dctcp = Dctcp::new(1000, 100_000);
        dctcp.window_end = 10;
        let mut window = |marked: u32, rest: u32| {
            let una = dctcp.window_end;
            dctcp.observe(marked, una, una, true);
            dctcp.observe(rest, una + 1, una + 10, false);
            dctcp.alpha
        };
        // In each window, the first acknowledgement echoes marks and the second does not. In the first
        // window, the marked acknowledgement has nine tenths of the bytes, so the estimate becomes 15 / 16 +
        // 0.9 / 16.
        let alphas = [window(9000, 1000), window(0, 10_000), window(5000, 5000)];
        let wanted = [0.99375, 0.99375 * 15.0 / 16.0, (0.99375 * 15.0 / 16.0 * 15.0 + 0.5) / 16.0];
        for (alpha, wanted) in alphas.into_iter().zip(wanted) {
            assert!((alpha - wanted).abs() < 1e-12, "{alpha} {wanted}");
        }
    }

    #[test]
    fn nothing_known_and_loss_both_halve() {
        for signal in [Signal::Ecn, Signal::Loss] {
            let mut dctcp = Dctcp::new(1000, 100_000);
            dctcp.on_congestion(NOW, 100_000, signal);
            assert_eq!(dctcp.cwnd(), 50_000, "{signal:?}");
        }
        let mut quiet = Dctcp::new(1000, 100_000);
        observe(&mut quiet, 200, 0);
        quiet.on_congestion(NOW, 100_000, Signal::Loss);
        assert_eq!(quiet.cwnd(), 50_000);
    }
}
