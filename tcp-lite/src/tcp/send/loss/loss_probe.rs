//! Tail loss probes. If acknowledgements do not arrive, one more segment is sent long before the RTO. The
//! acknowledgement of this segment reveals whether the earlier segments have arrived (RFC 8985 section 7).
//!
//! This module has the state of a connection's probe. `deadline.rs` decides when a probe is due, and
//! `send/next.rs` chooses the payload of the probe.

use crate::tcp::send::ack_sample::AckSample;

/// The payload of a probe in flight (`TLP.is_retrans`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    New,
    /// Bytes that had been sent before.
    Again,
}

/// The tail loss probe of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LossProbe {
    /// SND.NXT after the last probe (`TLP.end_seq`).
    nxt: u64,
    /// Position after the last byte of the last probe.
    end: u64,
    /// The payload of the probe in flight; `None` if no probe is in flight.
    in_flight: Option<Content>,
    /// True if the round-trip time was measured since the last probe.
    sampled: bool,
    /// True if a probe has to be sent.
    due: bool,
}

impl LossProbe {
    /// Whether another probe may be sent: no probe is due or in flight, and the round-trip time was measured
    /// since the last probe (section 7.3).
    pub(super) fn may_send(&self) -> bool {
        self.in_flight.is_none() && self.sampled && !self.due
    }

    /// Called when the timer expired: a probe has to be sent.
    pub(super) fn make_due(&mut self) {
        self.due = true;
    }

    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due
    }

    /// Cancels a probe that has to be sent. Has no effect on a probe in flight.
    #[inline]
    pub(super) fn cancel(&mut self) {
        self.due = false;
    }

    #[inline]
    pub(super) fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Called when a round-trip time was measured.
    #[inline]
    pub(super) fn on_sample(&mut self) {
        self.sampled = true;
    }

    /// Called when a probe was sent. `end` is the position after the last byte of the probe, and `nxt` is
    /// SND.NXT. `again` is true if the bytes of the probe were sent before.
    pub(super) fn on_sent(&mut self, end: u64, nxt: u64, again: bool) {
        let content = if again { Content::Again } else { Content::New };
        *self = Self { nxt, end, in_flight: Some(content), sampled: false, due: false };
    }

    /// Called when a recovery begins: forgets the probe, because a recovery detects losses without a probe
    /// (section 7.1).
    pub(super) fn forget(&mut self) {
        (self.in_flight, self.due) = (None, false);
    }

    /// Whether a D-SACK reports that the last byte of a probe in flight, whose bytes had been sent before, is
    /// a duplicate.
    pub(super) fn is_own(&self, dsack: (u64, u64)) -> bool {
        self.in_flight == Some(Content::Again) && dsack.0 < self.end && self.end <= dsack.1
    }

    /// Called for an acknowledgement up to `una`. `plain` is true for a duplicate acknowledgement without
    /// SACK blocks. Returns whether the probe repaired a loss. Such a loss, which nothing else reveals, is a
    /// sign of congestion (section 7.4.2).
    pub(super) fn on_ack(&mut self, una: u64, sample: &AckSample, plain: bool) -> bool {
        let Some(content) = self.in_flight.filter(|_| una >= self.nxt) else { return false };
        let again = content == Content::Again;
        let twice = sample.dsack.is_some_and(|bytes| self.is_own(bytes));
        if !again || twice || una > self.nxt || plain {
            self.in_flight = None;
        }
        again && !twice && una > self.nxt
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn duplicate(start: u64, end: u64) -> AckSample {
        AckSample { dsack: Some((start, end)), ..AckSample::default() }
    }

    fn sent(again: bool) -> LossProbe {
        let mut probe = LossProbe::default();
        probe.on_sample();
        assert!(probe.may_send());
        probe.on_sent(1000, 1000, again);
        assert!(!probe.may_send());
        probe
    }

    #[test]
    fn one_probe_at_a_time_and_none_without_a_measurement_since() {
        let mut probe = sent(false);
        assert!(!probe.on_ack(1000, &AckSample::default(), false));
        assert!(!probe.may_send(), "the round-trip time may have grown");
        probe.on_sample();
        assert!(probe.may_send());
    }

    #[test]
    fn a_probe_that_filled_a_hole_tells_of_a_loss() {
        let mut probe = sent(true);
        assert!(!probe.on_ack(999, &AckSample::default(), false));
        assert!(!probe.on_ack(1000, &AckSample::default(), false), "it may have arrived twice");
        assert!(probe.on_ack(1001, &AckSample::default(), false));
        assert!(!probe.on_ack(1002, &AckSample::default(), false), "once");
    }

    #[test]
    fn a_probe_that_arrived_twice_tells_of_none() {
        let mut probe = sent(true);
        assert!(!probe.on_ack(1000, &duplicate(500, 1000), false));
        assert!(!probe.on_ack(2000, &AckSample::default(), false));
        let mut probe = sent(true);
        assert!(!probe.on_ack(1000, &AckSample::default(), true), "a peer without D-SACK");
        assert!(!probe.on_ack(2000, &AckSample::default(), false));
        let mut probe = sent(true);
        assert!(!probe.on_ack(1000, &duplicate(0, 500), false), "another segment's");
        assert!(probe.on_ack(2000, &AckSample::default(), false));
    }

    #[test]
    fn a_probe_with_fresh_bytes_repairs_nothing() {
        let mut probe = sent(false);
        assert!(!probe.on_ack(2000, &AckSample::default(), false));
    }
}
