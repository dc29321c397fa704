//! Decides when received data is acknowledged: at once, after every second segment, or after a delay (RFC
//! 9293 section 3.8.6.3, RFC 5681 section 4.2).

use crate::invariant::{Check, ensure};
use crate::{Deadline, Instant};

/// The number of received segments and bytes that are not acknowledged yet, and the time of their
/// acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct DelayedAck {
    /// The position of the latest acknowledgement.
    last_ack_sent: u64,
    /// Number of received segments, and of received bytes, that are not acknowledged.
    segments: u8,
    bytes: u32,
    timer: Deadline,
    due: bool,
}

impl DelayedAck {
    /// Called when bytes arrived in order: counts these bytes as not acknowledged.
    #[inline]
    pub(super) fn count(&mut self, segments: usize, bytes: usize) {
        self.segments = self.segments.saturating_add(segments.min(usize::from(u8::MAX)) as u8);
        self.bytes = self.bytes.saturating_add(bytes as u32);
    }

    /// Whether the received data requires an immediate acknowledgement. A full segment has `full` bytes.
    #[inline]
    pub(super) fn is_enough(&self, full: u32) -> bool {
        self.segments >= 2 || self.bytes >= 2 * full
    }

    /// Requests an acknowledgement now.
    #[inline]
    pub(super) fn send_now(&mut self) {
        self.due = true;
    }

    /// Requests an acknowledgement by `at` at the latest.
    #[inline]
    pub(super) fn delay(&mut self, at: Instant) {
        self.timer.get_or_insert(at);
    }

    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// Whether received bytes, in order or beyond a hole, still have to be acknowledged.
    pub(super) fn has_unacknowledged(&self) -> bool {
        self.segments > 0 || self.due
    }

    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.timer.get()
    }

    /// Requests the acknowledgement if the delay is over.
    pub(super) fn on_timer(&mut self, now: Instant) {
        if self.timer.has_passed(now) {
            self.timer = Deadline::NONE;
            self.due = true;
        }
    }

    #[inline]
    pub(super) fn last_ack_sent(&self) -> u64 {
        self.last_ack_sent
    }

    /// Called when a segment was sent that acknowledges all bytes up to `nxt`.
    #[inline]
    pub(super) fn on_sent(&mut self, nxt: u64) {
        *self = Self { last_ack_sent: nxt, segments: 0, bytes: 0, timer: Deadline::NONE, due: self.due };
    }

    /// Called when a segment was sent that acknowledges only the bytes up to `ack`.
    pub(super) fn on_separate_sent(&mut self, ack: u64) {
        self.last_ack_sent = ack;
    }

    #[inline]
    pub(super) fn clear_due(&mut self) {
        self.due = false;
    }

    pub(super) fn stop_timer(&mut self) {
        self.timer = Deadline::NONE;
    }

    /// Checks that all bytes received in order are acknowledged, or that an acknowledgement is due now or
    /// after the delay.
    pub(super) fn check(&self) -> Check {
        let waits = self.segments > 0 && !self.due;
        ensure!(!waits || self.timer.is_set(), "nothing will acknowledge {} bytes", self.bytes);
        Ok(())
    }
}
