//! DCTCP (RFC 8257): NewReno that answers marks by their share of the octets. For networks that mark early, and
//! only where both ends run it.

use super::newreno::NewReno;
use super::{Ack, CongestionControl, Signal};
use crate::Instant;

/// Weight of the newest window in the estimate (section 4.2, g).
const GAIN: f64 = 1.0 / 16.0;

/// DCTCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dctcp {
    reno: NewReno,
    /// Estimated share of octets that met congestion (section 3.3, DCTCP.Alpha).
    alpha: f64,
    /// The window of observation ends when this position is acknowledged (DCTCP.WindowEnd).
    window_end: u64,
    /// Octets acknowledged in this window, and those of them by acknowledgements with ECE.
    acked: u64,
    marked: u64,
}

impl Dctcp {
    /// At the start of a connection.
    pub(super) fn new(mss: u32, syn_lost: bool) -> Self {
        Self { reno: NewReno::new(mss, syn_lost), alpha: 1.0, window_end: 0, acked: 0, marked: 0 }
    }

    /// Section 3.3, steps 1 to 8.
    fn observe(&mut self, ack: &Ack) {
        self.acked += u64::from(ack.acked);
        if ack.ece {
            self.marked += u64::from(ack.acked);
        }
        if ack.una > self.window_end && self.acked > 0 {
            let share = self.marked as f64 / self.acked as f64;
            self.alpha = self.alpha * (1.0 - GAIN) + GAIN * share;
            self.window_end = ack.nxt;
            (self.acked, self.marked) = (0, 0);
        }
    }
}
