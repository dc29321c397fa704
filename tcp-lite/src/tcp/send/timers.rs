//! What the timers of the sending half count from, and the one that runs. Which one that is, is
//! decided in `retransmission.rs`.

use crate::Instant;

/// What the first timer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resend {
    /// An acknowledgement of what is in flight: RTO.
    Ack,
    /// An acknowledgement of what was overtaken (RFC 8985, the reordering timer).
    Reorder,
    /// An acknowledgement of the last that was sent (RFC 8985, PTO).
    Probe,
    /// A window for what is not.
    Window,
    /// A way out: for a SYN or FIN that was never sent, or for what timed out and was not sent
    /// again since.
    WayOut,
}

/// When what is due.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    pub(super) resend: Option<(Instant, Resend)>,
    /// When the next segment that was overtaken will be lost.
    pub(super) reorder: Option<Instant>,
    /// When our SYN or FIN was sent last.
    pub(super) control_sent_at: Instant,
    /// When data was sent or acknowledged last: the PTO counts from here.
    pub(super) tail_from: Instant,
    /// The RTO does not expire before this.
    pub(super) patience: Instant,
    /// Since when whatever waits has waited: the user timeout counts from here.
    pub(super) progress: Instant,
    /// When any segment was sent last.
    pub(super) last_sent: Instant,
    pub(super) persist_backoff: u32,
    pub(super) syn_sends: u8,
}

impl Timers {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            resend: None,
            reorder: None,
            control_sent_at: now,
            tail_from: now,
            patience: now,
            progress: now,
            last_sent: now,
            persist_backoff: 0,
            syn_sends: 0,
        }
    }

    /// Nothing is waited for any more.
    pub(super) fn stop(&mut self) {
        self.resend = None;
        self.reorder = None;
    }
}
