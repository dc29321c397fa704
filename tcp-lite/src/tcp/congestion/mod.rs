//! Congestion control: decides how many bytes may be in flight (RFC 9293 section 3.8.2, RFC 5681).
//!
//! [`CongestionControl`] is the interface of an algorithm. [`Congestion`] is the algorithm of a connection:
//! an enum, so that a call needs neither a virtual function nor an allocation. `send/loss/` decides when a
//! recovery starts and ends, and what it may send. The window is in bytes. A segment may be sent if the bytes
//! in flight before it are below the window, so in effect the window is rounded up to a whole segment.

mod cubic;
mod dctcp;
mod hystart;
mod newreno;

use cubic::Cubic;
use dctcp::Dctcp;
use newreno::NewReno;

use crate::{CongestionAlgorithm, Duration, Instant};

/// An acknowledgement outside of fast recovery after which the window may grow. Enough of the window was in
/// use before this acknowledgement (RFC 7661 section 4.3; `RateControl::on_ack`), and the peer echoes no
/// congestion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack {
    pub(super) now: Instant,
    /// Number of bytes acknowledged cumulatively, including bytes that were selectively acknowledged before.
    pub(super) acked: u32,
    /// Number of bytes newly acknowledged, cumulatively or selectively. Each byte counts once.
    pub(super) delivered: u32,
    /// SND.UNA and SND.NXT as 64-bit positions (`seq.rs`). A round trip ends when the bytes sent at its
    /// beginning are acknowledged.
    pub(super) una: u64,
    pub(super) nxt: u64,
    /// The round-trip time in microseconds that this acknowledgement measured; `None` if the acknowledgement
    /// measured no round-trip time.
    pub(super) rtt_us: Option<u32>,
    /// Smoothed round-trip time in microseconds; 0 before the first measurement.
    pub(super) srtt_us: u32,
    /// True if pacing spreads the segments that this acknowledgement allows over the round trip
    /// (`send/rate/pacing.rs`).
    pub(super) paced: bool,
}

/// Maximum number of segments that one acknowledgement adds to the window in slow start, unless pacing
/// spreads the segments that may then be sent (RFC 9406 section 4.3, L). The RFC recommends 8 segments. But a
/// peer with GRO acknowledges about 45 segments (64 KiB) at once, and a polling peer acknowledges all
/// segments of one poll at once. With a limit of 8 segments, the window would be far from doubling in each
/// round trip.
const SLOW_START_LIMIT: u32 = 64;

impl Ack {
    /// Number of bytes by which slow start opens the window (RFC 9406 section 4.2).
    fn slow_start_bytes(&self, mss: u32) -> u32 {
        let limit = if self.paced { u32::MAX } else { SLOW_START_LIMIT * mss };
        self.delivered.min(limit)
    }
}

/// A sign of congestion other than a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    Loss,
    /// A router marked segments (RFC 3168).
    Ecn,
}

/// What a timeout means for the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// New congestion.
    Congestion,
    /// Congestion in a window of data for which the window was already reduced. The threshold does not change
    /// (RFC 3168 section 6.1.2).
    Answered,
    /// No new congestion: the same segment had timed out before (RFC 5681 section 3.1).
    Again,
}

/// The interface of a congestion control algorithm.
///
/// Each reduction saves the previous state, so that [`undo`](Self::undo) can restore this state until the
/// next reduction. Reductions are [`on_congestion`](Self::on_congestion), and
/// [`on_timeout`](Self::on_timeout) unless `timeout` is [`Timeout::Again`]. A caller that reduces the window
/// for any reason other than a recovery must also call `Undo::forget` (`send/loss/undo.rs`).
pub(super) trait CongestionControl {
    /// The congestion window in bytes. The window is not used during fast recovery, where proportional rate
    /// reduction decides what may be sent (RFC 6937).
    fn cwnd(&self) -> u32;

    /// The slow start threshold in bytes; `u32::MAX` until it is set for the first time.
    fn ssthresh(&self) -> u32;

    /// Called when data was acknowledged outside of fast recovery, or during retransmission after a timeout.
    fn on_ack(&mut self, ack: &Ack);

    /// Called instead of [`on_ack`](Self::on_ack) if the window must not grow.
    fn on_unused(&mut self, _now: Instant) {}

    /// Called for each acknowledgement of `acked` bytes that [`on_ack`](Self::on_ack) does not report. `una`
    /// and `nxt` are SND.UNA and SND.NXT; `ece` is true if the peer echoes congestion experienced (RFC 3168
    /// section 6.1.2). The call does not change the window.
    fn observe(&mut self, _acked: u32, _una: u64, _nxt: u64, _ece: bool) {}

    /// Called at the first sign of congestion in this window of data: sets the threshold and the window.
    /// `in_flight` is the number of bytes sent and not acknowledged cumulatively (RFC 5681, `FlightSize`).
    fn on_congestion(&mut self, now: Instant, in_flight: u32, signal: Signal);

    /// Whether marks reduce the congestion window as much as a loss does. If `false`, a loss in a window of
    /// data that had marks reduces the congestion window again (RFC 8257 section 3.5).
    fn treats_marks_like_loss(&self) -> bool {
        true
    }

    /// Called when the retransmission timer has expired: sets the window to one segment, and changes the
    /// threshold as `timeout` requires.
    fn on_timeout(&mut self, now: Instant, in_flight: u32, timeout: Timeout);

    /// Called when the last reduction was spurious. Restores the window, but for now to at most `limit`
    /// bytes, and sets the threshold so that slow start restores the rest. The window and the threshold never
    /// become smaller by this call. Does nothing if the reduction was already undone.
    fn undo(&mut self, now: Instant, limit: u32);

    /// Called when nothing was sent for `idle`, which is longer than the retransmission timeout.
    fn on_idle(&mut self, now: Instant, idle: Duration);

    /// Sets the EMSS to `mss` bytes. The window does not change.
    fn set_mss(&mut self, mss: u32);
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Congestion {
    /// NewReno (RFC 5681, RFC 6582).
    NewReno(NewReno),
    /// CUBIC (RFC 9438).
    Cubic(Cubic),
    /// DCTCP (RFC 8257).
    Dctcp(Dctcp),
}

impl Congestion {
    /// The algorithm of a new connection. If the SYN was lost, the window is one segment (RFC 6928 section
    /// 2).
    pub(super) fn new(algorithm: CongestionAlgorithm, mss: u32, syn_lost: bool) -> Self {
        let cwnd = if syn_lost { mss } else { initial_window(mss) };
        match algorithm {
            CongestionAlgorithm::NewReno => Self::NewReno(NewReno::new(mss, cwnd)),
            CongestionAlgorithm::Cubic => Self::Cubic(Cubic::new(mss, cwnd)),
            CongestionAlgorithm::Dctcp => Self::Dctcp(Dctcp::new(mss, cwnd)),
        }
    }
}

/// Dispatches a call to the algorithm.
macro_rules! each {
    ($self:ident, $algorithm:ident => $call:expr) => {
        match $self {
            Congestion::NewReno($algorithm) => $call,
            Congestion::Cubic($algorithm) => $call,
            Congestion::Dctcp($algorithm) => $call,
        }
    };
}

impl CongestionControl for Congestion {
    fn cwnd(&self) -> u32 {
        each!(self, it => it.cwnd())
    }

    fn ssthresh(&self) -> u32 {
        each!(self, it => it.ssthresh())
    }

    fn on_ack(&mut self, ack: &Ack) {
        each!(self, it => it.on_ack(ack))
    }

    #[inline]
    fn on_unused(&mut self, now: Instant) {
        each!(self, it => it.on_unused(now))
    }

    #[inline]
    fn observe(&mut self, acked: u32, una: u64, nxt: u64, ece: bool) {
        each!(self, it => it.observe(acked, una, nxt, ece))
    }

    fn on_congestion(&mut self, now: Instant, in_flight: u32, signal: Signal) {
        each!(self, it => it.on_congestion(now, in_flight, signal))
    }

    fn treats_marks_like_loss(&self) -> bool {
        each!(self, it => it.treats_marks_like_loss())
    }

    fn on_timeout(&mut self, now: Instant, in_flight: u32, timeout: Timeout) {
        each!(self, it => it.on_timeout(now, in_flight, timeout))
    }

    fn undo(&mut self, now: Instant, limit: u32) {
        each!(self, it => it.undo(now, limit))
    }

    fn on_idle(&mut self, now: Instant, idle: Duration) {
        each!(self, it => it.on_idle(now, idle))
    }

    fn set_mss(&mut self, mss: u32) {
        each!(self, it => it.set_mss(mss))
    }
}

/// Converts a number of bytes to the type that the algorithms use.
pub(super) fn saturated(bytes: u64) -> u32 {
    bytes.min(u64::from(u32::MAX)) as u32
}

/// The initial window (RFC 6928 section 2).
pub(super) fn initial_window(mss: u32) -> u32 {
    (10 * mss).min(14_600.max(2 * mss))
}

#[cfg(test)]
mod tests;
