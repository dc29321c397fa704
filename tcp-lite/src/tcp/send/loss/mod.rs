//! Finds lost segments, decides when they are sent again, and limits transmission during a recovery (RFC
//! 5681, RFC 6582, RFC 8985, RFC 6298).
//!
//! | what | where | document |
//! |---|---|---|
//! | what an acknowledgement means for a recovery | `recovery.rs` | RFC 5681, 6582, 8985 |
//! | which segments were overtaken | `rack.rs` | RFC 8985 section 6 |
//! | what a recovery may send | `prr.rs` | RFC 6937 (now 9937) |
//! | whether a recovery was spurious | `undo.rs`, `frto.rs` | RFC 3522, 3708, 4015, 5682 |
//! | tail loss probes | `loss_probe.rs` | RFC 8985 section 7 |
//! | when the timer is due, and the timer's actions in loss recovery | `timers.rs`, `deadline.rs`, `expiry.rs` | RFC 6298, 7765, 9293 section 3.8 |
//!
//! The segments belong to the send queue, and the window belongs to rate control. A step that marks segments
//! or reduces the window borrows the send queue and rate control ([`SendState`]).

mod deadline;
mod expiry;
mod frto;
mod loss_probe;
mod prr;
mod rack;
mod recovery;
#[cfg(test)]
mod tests;
mod timers;
mod undo;

pub(super) use self::expiry::TimerAction;
pub(super) use self::rack::Rack;
pub(super) use self::recovery::AckKind;
pub(super) use self::timers::SendTimer;

use self::frto::Frto;
use self::loss_probe::LossProbe;
use self::prr::Prr;
use self::timers::Timers;
use self::undo::Undo;
use super::queue::{SendQueue, SendRange};
use super::rate::RateControl;
use crate::tcp::open_params::Agreed;
use crate::tcp::slabs::Sent;
use crate::{Duration, Instant};

/// The phase of loss recovery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tcp) enum Phase {
    /// No recovery is in progress.
    #[default]
    Open,
    /// Acknowledgements revealed a loss (fast recovery).
    Fast,
    /// The retransmission timer expired.
    Loss,
}

/// Loss recovery of one connection: its state, its timer, and the algorithms that decide the response to a
/// loss, or to an apparent loss.
#[derive(Debug)]
pub(super) struct LossRecovery {
    phase: Phase,
    /// SND.NXT when the last recovery began, or when the window was last reduced during this recovery. The
    /// recovery ends when all bytes below this position are acknowledged (RFC 6582, `recover`). After the
    /// undo of a recovery in progress, the position is below SND.UNA.
    recovery_point: u64,
    dup_acks: u32,
    /// Limits transmission during [`Phase::Fast`].
    prr: Prr,
    rack: Rack,
    loss_probe: LossProbe,
    undo: Undo,
    /// Number of recoveries of the present flight that were undone while they were in progress.
    undone: u8,
    frto: Frto,
    timers: Timers,
}

/// The state outside of loss recovery that a step of loss recovery reads and changes.
#[derive(Debug)]
pub(super) struct SendState<'a> {
    pub(super) queue: &'a mut SendQueue,
    /// The sent and unacknowledged positions of `queue`. No step of loss recovery changes them.
    pub(super) range: SendRange,
    pub(super) rate: &'a mut RateControl,
    pub(super) agreed: Agreed,
    pub(super) emss: u32,
}

impl LossRecovery {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Open,
            recovery_point: 0,
            dup_acks: 0,
            prr: Prr::default(),
            rack: Rack::new(),
            loss_probe: LossProbe::default(),
            undo: Undo::default(),
            undone: 0,
            frto: Frto::default(),
            timers: Timers::new(now),
        }
    }

    /// Whether no recovery is in progress, no duplicate acknowledgement is counted, and no tail loss probe is
    /// in flight.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        let idle = self.phase == Phase::Open && self.dup_acks == 0 && !self.loss_probe.is_in_flight();
        debug_assert!(!idle || self.frto == Frto::Off, "F-RTO runs outside of a recovery");
        idle
    }

    #[inline]
    pub(super) fn is_recovering(&self) -> bool {
        self.phase != Phase::Open
    }

    /// Number of bytes that are believed to be in the network (RFC 6675 section 4, `pipe`). Without SACK,
    /// each duplicate acknowledgement counts as one segment that left the network, except after a timeout.
    #[inline]
    pub(super) fn pipe(&self, queue: &SendQueue, sack: bool, emss: u32) -> u64 {
        let pipe = queue.not_sacked_nor_lost();
        if sack || self.phase == Phase::Loss {
            return pipe;
        }
        pipe.saturating_sub(u64::from(self.dup_acks) * u64::from(emss))
    }

    /// The limit of [`pipe`](Self::pipe): the congestion window, or in fast recovery the limit of PRR.
    #[inline]
    pub(super) fn send_limit(&self, rate: &RateControl) -> u64 {
        match self.phase {
            Phase::Fast => self.prr.cwnd(),
            Phase::Open | Phase::Loss => u64::from(rate.cwnd()),
        }
    }

    /// The number of new segments that F-RTO allows, whatever the congestion window is. Returns `None` if
    /// F-RTO does not run, so that the congestion window decides.
    #[inline]
    pub(super) fn frto_allowance(&self) -> Option<u8> {
        self.frto.allowance()
    }

    /// Whether F-RTO holds back a lost segment. `is_oldest` is true for the oldest segment.
    #[inline]
    pub(super) fn withholds(&self, is_oldest: bool) -> bool {
        self.frto.withholds(is_oldest)
    }

    #[inline]
    pub(super) fn is_probe_due(&self) -> bool {
        self.loss_probe.is_due()
    }

    /// Cancels a tail loss probe that has to be sent.
    #[inline]
    pub(super) fn cancel_probe(&mut self) {
        self.loss_probe.cancel();
    }

    #[inline]
    pub(super) fn on_rtt_sample(&mut self) {
        self.loss_probe.on_sample();
    }

    /// Called when SND.UNA advanced. `silly` is true if the peer's window is still too small.
    #[inline]
    pub(super) fn on_progress(&mut self, now: Instant, srtt: Duration, silly: bool) {
        if !silly {
            self.timers.forget_persist_backoff();
        }
        self.timers.on_acked(now, srtt);
    }

    /// Called outside of a recovery when consecutive segments arrived that were each sent once. `sent` is the
    /// transmission of the last of these segments, which was sent `rtt_us` microseconds ago. `ends` has the
    /// end positions of the first and of the last of these segments. All other segments in flight were sent
    /// later. Returns whether reordering was seen for the first time.
    #[inline]
    pub(super) fn on_run(&mut self, rtt_us: u64, sent: Sent, ends: (u64, u64)) -> bool {
        self.loss_probe.cancel();
        self.timers.set_reorder(None);
        self.rack.on_run(rtt_us, sent, ends)
    }

    /// Called when a new segment of `len` bytes was sent. `idle` is true if nothing was outstanding before.
    #[inline]
    pub(super) fn on_new_sent(&mut self, now: Instant, len: u32, idle: bool) {
        self.timers.on_data_sent(now, idle);
        self.prr.on_sent(u64::from(len));
        self.frto.on_new_sent();
    }

    pub(super) fn on_sent_again(&mut self, now: Instant, len: u32) {
        self.timers.on_data_sent_again(now);
        if self.is_recovering() {
            self.prr.on_sent(u64::from(len));
            self.undo.on_retransmitted(now, len);
        }
    }

    /// Called when a tail loss probe was sent. `end` is the position after the last byte of the probe, and
    /// `nxt` is SND.NXT. `again` is true if the bytes of the probe were sent before.
    pub(super) fn on_probe_sent(&mut self, (end, nxt): (u64, u64), again: bool, rto_at: Instant) {
        self.loss_probe.on_sent(end, nxt, again);
        self.timers.delay_rto(rto_at);
    }

    /// Called when our SYN or SYN-ACK was sent. Returns whether our SYN or SYN-ACK had been sent before.
    pub(super) fn on_syn_sent(&mut self, now: Instant) -> bool {
        self.timers.on_syn_sent(now);
        self.timers.syn_sends() > 1
    }

    /// Number of transmissions of our SYN or SYN-ACK, including answers to repeated SYNs of the peer.
    pub(super) fn syn_sends(&self) -> u8 {
        self.timers.syn_sends()
    }

    /// The time at which our SYN or SYN-ACK was last sent.
    pub(super) fn syn_sent_at(&self) -> Instant {
        self.timers.control_sent_at()
    }

    pub(super) fn on_established(&mut self, now: Instant) {
        self.timers.on_established(now);
    }

    /// Called when our FIN was sent for the first time. `idle` is true if nothing was outstanding before.
    pub(super) fn on_fin_sent(&mut self, now: Instant, idle: bool) {
        self.timers.on_fin_sent(now, idle);
    }

    pub(super) fn on_fin_sent_again(&mut self, now: Instant) {
        self.timers.on_fin_sent_again(now);
    }

    /// Restarts the user timeout, because there is something new to wait for, or because the peer is known to
    /// be alive.
    #[inline]
    pub(super) fn restart_user_timeout(&mut self, now: Instant) {
        self.timers.restart_user_timeout(now);
    }

    /// The time since data was last sent.
    pub(super) fn idle_time(&self, now: Instant) -> Duration {
        self.timers.idle_time(now)
    }

    pub(super) fn back_off_persist(&mut self) {
        self.timers.back_off_persist();
    }

    /// Resets the backoff of the persist timer. Called when the link is up again, since the peer may have
    /// opened its window while the link was down.
    pub(super) fn forget_persist_backoff(&mut self) {
        self.timers.forget_persist_backoff();
    }

    pub(super) fn stop_timers(&mut self) {
        self.timers.stop();
    }
}

#[cfg(test)]
impl LossRecovery {
    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
    }

    pub(super) fn recovery_point(&self) -> u64 {
        self.recovery_point
    }
}
