//! The timer of the sending half, and the times it is computed from (RFC 6298, RFC 8985, RFC 9293 section
//! 3.8.6.1). The computation is in `retransmission.rs`.

use crate::Instant;

/// What the running timer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resend {
    /// Acknowledgement of what is in flight: RTO.
    Ack,
    /// Acknowledgement of overtaken segments (RFC 8985, the reordering timer).
    Reorder,
    /// Acknowledgement of the last segment sent (RFC 8985, PTO).
    LossProbe,
    /// A larger window, while nothing is in flight (persist timer).
    Window,
    /// Transmission of a SYN or FIN that was never sent, or of a segment that timed out and could not be
    /// retransmitted.
    Stuck,
}

/// The timer and its times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    pub(super) resend: Option<(Instant, Resend)>,
    /// When the next overtaken segment will be lost.
    pub(super) reorder: Option<Instant>,
    /// When our SYN or FIN was last sent.
    pub(super) control_sent_at: Instant,
    /// When data was last sent or acknowledged: the PTO counts from here.
    pub(super) pto_from: Instant,
    /// The RTO does not expire before this.
    pub(super) rto_not_before: Instant,
    /// Since when there has been no progress: the user timeout counts from here.
    pub(super) progress: Instant,
    /// When data was last sent, new or again: the idle time counts from here (RFC 5681 section 4.1).
    pub(super) data_sent_at: Instant,
    pub(super) persist_backoff: u32,
    /// Transmissions of our SYN, answers to the peer's repeated SYN included.
    pub(super) syn_sends: u8,
    /// Timeouts of our SYN (RFC 9293 section 3.8.3 counts these, not answers).
    pub(super) syn_timeouts: u8,
}

impl Timers {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            resend: None,
            reorder: None,
            control_sent_at: now,
            pto_from: now,
            rto_not_before: now,
            progress: now,
            data_sent_at: now,
            persist_backoff: 0,
            syn_sends: 0,
            syn_timeouts: 0,
        }
    }

    /// Stops all timers.
    pub(super) fn stop(&mut self) {
        self.resend = None;
        self.reorder = None;
    }
}
