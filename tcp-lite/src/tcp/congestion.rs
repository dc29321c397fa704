//! Congestion control: how many octets may be in flight. NewReno (RFC 5681, RFC 6582) with the initial window of
//! RFC 6928.
//!
//! Not here: what counts as in flight or lost (`scoreboard.rs`) and when recovery starts and ends (`recovery.rs`).
//! The window is counted in octets and compared with the octets in flight before a segment is added, so in effect
//! it is rounded up to a whole segment.

/// What every algorithm answers.
pub(super) trait CongestionControl {
    /// The congestion window, octets.
    fn cwnd(&self) -> u32;

    /// New data was acknowledged outside recovery, or while retransmitting after a timeout. `in_flight` is
    /// what was unacknowledged before: a window that was not used does not grow.
    fn on_ack(&mut self, acked: u32, in_flight: u32);

    /// Loss was inferred from duplicate or selective acknowledgements.
    fn on_fast_retransmit(&mut self, in_flight: u32);

    /// All that was in flight when recovery began is acknowledged.
    fn on_recovered(&mut self);

    /// The retransmission timer expired; `first` unless the same segment had timed out before.
    fn on_timeout(&mut self, in_flight: u32, first: bool);

    /// Nothing was sent for longer than the retransmission timeout.
    fn on_idle(&mut self);

    /// EMSS dropped.
    fn set_mss(&mut self, mss: u32);
}

/// NewReno.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewReno {
    mss: u32,
    cwnd: u32,
    ssthresh: u32,
    /// Octets acknowledged since the window last grew in congestion avoidance.
    acked: u32,
}

impl NewReno {
    /// At the start of a connection. After the loss of a SYN the window is one segment (RFC 6928 section 2).
    pub(super) fn new(mss: u32, syn_lost: bool) -> Self {
        let cwnd = if syn_lost { mss } else { initial_window(mss) };
        Self { mss, cwnd, ssthresh: u32::MAX, acked: 0 }
    }
}

/// RFC 6928 section 2.
fn initial_window(mss: u32) -> u32 {
    (10 * mss).min(14_600.max(2 * mss))
}

impl CongestionControl for NewReno {
    fn cwnd(&self) -> u32 {
        self.cwnd
    }

    fn on_ack(&mut self, acked: u32, in_flight: u32) {
        if self.cwnd < self.ssthresh {
            // Slow start. Byte counting without a limit: peers that coalesce acknowledge many segments at once.
            if in_flight >= self.cwnd / 2 {
                self.cwnd = self.cwnd.saturating_add(acked).min(self.ssthresh.max(self.cwnd));
            }
        } else if in_flight.saturating_add(self.mss) >= self.cwnd {
            self.acked = self.acked.saturating_add(acked);
            if self.acked >= self.cwnd {
                self.acked -= self.cwnd;
                self.cwnd = self.cwnd.saturating_add(self.mss);
            }
        }
    }

    fn on_fast_retransmit(&mut self, in_flight: u32) {
        self.ssthresh = (in_flight / 2).max(2 * self.mss);
        self.cwnd = self.ssthresh;
        self.acked = 0;
    }

    fn on_recovered(&mut self) {
        self.cwnd = self.ssthresh;
        self.acked = 0;
    }

    fn on_timeout(&mut self, in_flight: u32, first: bool) {
        if first {
            self.ssthresh = (in_flight / 2).max(2 * self.mss);
        }
        self.cwnd = self.mss;
        self.acked = 0;
    }

    fn on_idle(&mut self) {
        self.cwnd = self.cwnd.min(initial_window(self.mss));
    }

    fn set_mss(&mut self, mss: u32) {
        self.mss = mss;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_initial_window_is_that_of_rfc_6928() {
        assert_eq!(NewReno::new(1000, false).cwnd(), 10_000);
        assert_eq!(NewReno::new(1448, false).cwnd(), 14_480);
        assert_eq!(NewReno::new(8948, false).cwnd(), 17_896);
        assert_eq!(NewReno::new(1448, true).cwnd(), 1448);
    }

    #[test]
    fn slow_start_doubles_and_avoidance_adds_one_segment_per_window() {
        let mut reno = NewReno::new(1000, false);
        reno.on_ack(10_000, 10_000);
        assert_eq!(reno.cwnd(), 20_000);
        reno.on_fast_retransmit(20_000);
        assert_eq!(reno.cwnd(), 10_000);
        reno.on_recovered();
        for _ in 0..10 {
            reno.on_ack(1000, 10_000);
        }
        assert_eq!(reno.cwnd(), 11_000);
    }

    #[test]
    fn a_window_that_is_not_used_does_not_grow() {
        let mut reno = NewReno::new(1000, false);
        reno.on_ack(1000, 1000);
        assert_eq!(reno.cwnd(), 10_000);
    }

    #[test]
    fn a_timeout_leaves_one_segment_and_halves_the_threshold_once() {
        let mut reno = NewReno::new(1000, false);
        reno.on_timeout(10_000, true);
        assert_eq!((reno.cwnd(), reno.ssthresh), (1000, 5000));
        reno.on_timeout(1000, false);
        assert_eq!((reno.cwnd(), reno.ssthresh), (1000, 5000));
        reno.on_timeout(1000, true);
        assert_eq!(reno.ssthresh, 2000, "never below two segments");
    }
}
