//! Congestion control: how many bytes may be in flight.
//!
//! [`CongestionControl`] is what every algorithm answers, [`Congestion`] the one a connection has: a value
//! without allocation, told apart by `match`. Not here: what counts as in flight or lost (`scoreboard.rs`),
//! when recovery starts and ends and what it may send (`recovery.rs`). The window is counted in bytes and
//! compared with the bytes in flight before a segment is added, so in effect it is rounded up to a whole
//! segment.

mod cubic;
mod dctcp;
mod hystart;
mod newreno;

use cubic::Cubic;
use dctcp::Dctcp;
use newreno::NewReno;

use crate::{CongestionAlgorithm, Duration, Instant};

/// What an acknowledgement says, outside of fast recovery.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ack {
    /// When it arrived.
    pub(super) now: Instant,
    /// Bytes acknowledged, whether selectively before or not.
    pub(super) acked: u32,
    /// Bytes newly known to have arrived, by acknowledgement or selective acknowledgement; each counts once.
    pub(super) delivered: u32,
    /// Positions acknowledged so far, and sent so far (SND.UNA, SND.NXT): a round trip is over when what was
    /// sent at its beginning is acknowledged.
    pub(super) una: u64,
    pub(super) nxt: u64,
    /// The round-trip time that this acknowledgement measured, microseconds.
    pub(super) rtt_us: Option<u32>,
    /// The window was used before it arrived, and nothing speaks against more: it may grow (RFC 7661 section
    /// 4.3).
    pub(super) cwnd_limited: bool,
    /// Smoothed round-trip time, microseconds; 0 before the first measurement.
    pub(super) srtt_us: u32,
    /// The peer echoes congestion experienced (RFC 3168 section 6.1.2).
    pub(super) ece: bool,
    /// What it lets go leaves spread over the round trip (`pacing.rs`).
    pub(super) paced: bool,
}

/// Segments that one acknowledgement adds to the window in slow start, at most, where nothing spreads what it
/// lets go (RFC 9406 section 4.3, L). The RFC recommends 8; but a peer that coalesces what it receives
/// acknowledges some 45 segments (64 KiB) at once, and a poller all that one turn found: by 8 for each of
/// those the window would grow by a few segments for each round trip instead of doubling. So it is what one
/// such acknowledgement names.
const SLOW_START_LIMIT: u32 = 64;

impl Ack {
    /// Bytes by which slow start opens the window (RFC 9406 section 4.2).
    fn slow_start_bytes(&self, mss: u32) -> u32 {
        let limit = if self.paced { u32::MAX } else { SLOW_START_LIMIT * mss };
        self.delivered.min(limit)
    }
}

/// What tells of congestion before a timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// Segments were found lost.
    Loss,
    /// A router marked segments (RFC 3168).
    Ecn,
}

/// What a timeout tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    /// Congestion.
    Congestion,
    /// Congestion that was answered in this window of data already: the threshold stays (RFC 3168 section
    /// 6.1.2).
    Answered,
    /// Nothing new: the same segment had timed out before (RFC 5681 section 3.1).
    Again,
}

/// What every algorithm answers.
///
/// A reduction ([`on_congestion`](Self::on_congestion), or [`on_timeout`](Self::on_timeout) that is not
/// [`Timeout::Again`]) remembers what was before it, so that [`undo`](Self::undo) can take it back until the
/// next one. Who reduces the window for another reason than a recovery calls `Undo::forget` (`send/undo.rs`),
/// too.
pub(super) trait CongestionControl {
    /// The congestion window, bytes. Not asked for during fast recovery, where proportional rate reduction
    /// says what may be sent on the way to [`ssthresh`](Self::ssthresh) (RFC 6937).
    fn cwnd(&self) -> u32;

    /// The slow start threshold, bytes; `u32::MAX` before the first reduction.
    fn ssthresh(&self) -> u32;

    /// Data was acknowledged outside of fast recovery, or while retransmitting after a timeout.
    fn on_ack(&mut self, ack: &Ack);

    /// Congestion was signalled for the first time in this window of data: sets the threshold and the window.
    /// `in_flight`: bytes sent and not acknowledged cumulatively (RFC 5681, `FlightSize`).
    fn on_congestion(&mut self, now: Instant, in_flight: u32, signal: Signal);

    /// Whether marks reduce the window as far as a loss does. If not, a loss in the window of data that had
    /// marks is still to be answered (RFC 8257 section 3.5).
    fn answers_marks_like_loss(&self) -> bool {
        true
    }

    /// The retransmission timer expired: the window is one segment.
    fn on_timeout(&mut self, now: Instant, in_flight: u32, timeout: Timeout);

    /// The last reduction was spurious: the window is what it was before it, but at most `limit` now, and the
    /// threshold such that slow start brings the rest; or more if they have grown since. Without effect when
    /// it was taken back already.
    fn undo(&mut self, now: Instant, limit: u32);

    /// Nothing was sent for `idle`, which is longer than the retransmission timeout.
    fn on_idle(&mut self, now: Instant, idle: Duration);

    /// EMSS is `mss` bytes now; the window stays.
    fn set_mss(&mut self, mss: u32);
}

/// The algorithm of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Congestion {
    /// RFC 5681 and RFC 6582.
    NewReno(NewReno),
    /// RFC 9438.
    Cubic(Cubic),
    /// RFC 8257.
    Dctcp(Dctcp),
}

impl Congestion {
    /// At the start of a connection. After the loss of a SYN the window is one segment (RFC 6928 section 2).
    pub(super) fn new(algorithm: CongestionAlgorithm, mss: u32, syn_lost: bool) -> Self {
        let cwnd = if syn_lost { mss } else { initial_window(mss) };
        match algorithm {
            CongestionAlgorithm::NewReno => Self::NewReno(NewReno::new(mss, cwnd)),
            CongestionAlgorithm::Cubic => Self::Cubic(Cubic::new(mss, cwnd)),
            CongestionAlgorithm::Dctcp => Self::Dctcp(Dctcp::new(mss, cwnd)),
        }
    }
}

/// Hands a call to the algorithm.
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

    fn on_congestion(&mut self, now: Instant, in_flight: u32, signal: Signal) {
        each!(self, it => it.on_congestion(now, in_flight, signal))
    }

    fn answers_marks_like_loss(&self) -> bool {
        each!(self, it => it.answers_marks_like_loss())
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

/// Bytes as the algorithms count them.
pub(super) fn saturated(bytes: u64) -> u32 {
    bytes.min(u64::from(u32::MAX)) as u32
}

/// RFC 6928 section 2.
pub(super) fn initial_window(mss: u32) -> u32 {
    (10 * mss).min(14_600.max(2 * mss))
}

#[cfg(test)]
mod tests;
