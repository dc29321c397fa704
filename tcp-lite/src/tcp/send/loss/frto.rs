//! F-RTO: detects spurious timeouts without timestamps (RFC 5682 sections 2.1 and 3.1).
//!
//! After the timeout, only the oldest segment is retransmitted. When this segment is acknowledged, up to two
//! new segments are sent instead of further retransmissions. If the next acknowledgement covers bytes that
//! were in flight at the timeout and were not retransmitted, these bytes were not lost, so the timeout was
//! spurious.

use crate::tcp::send::ack_sample::AckSample;

/// Number of new segments that are sent in step 2b (RFC 5682 section 2.1: at most two).
const NEW_SEGMENTS: u8 = 2;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Frto {
    /// The algorithm does not run, or has already decided whether the timeout was spurious.
    #[default]
    Off,
    /// The oldest segment is being retransmitted (step 1).
    Retransmitted,
    /// The oldest segment was acknowledged, and this many new segments may be sent (step 2b).
    New(u8),
}

/// State of the connection after an acknowledgement that arrived while F-RTO runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckState {
    pub(super) una: u64,
    /// SND.NXT at the timeout (`RecoveryPoint`).
    pub(super) recovery_point: u64,
    pub(super) sack: bool,
    pub(super) dup_ack: bool,
    /// True if there is a new segment that fits the peer's window.
    pub(super) new_sendable: bool,
}

impl Frto {
    /// Called after a timeout. `first` is true if no recovery was in progress and timestamps are not used.
    pub(super) fn on_timeout(&mut self, first: bool) {
        *self = if first { Self::Retransmitted } else { Self::Off };
    }

    #[inline]
    pub(super) fn on_new_sent(&mut self) {
        if let Self::New(left) = self {
            *left = left.saturating_sub(1);
        }
    }

    /// The number of new segments that may be sent, or `None` if the algorithm does not run.
    #[inline]
    pub(super) fn allowance(&self) -> Option<u8> {
        match *self {
            Self::Off => None,
            Self::Retransmitted => Some(0),
            Self::New(left) => Some(left),
        }
    }

    /// Whether F-RTO holds back a lost segment. `is_oldest` is true for the oldest segment.
    #[inline]
    pub(super) fn withholds(&self, is_oldest: bool) -> bool {
        match self {
            Self::Off => false,
            Self::Retransmitted => !is_oldest,
            Self::New(_) => true,
        }
    }

    /// Called after an acknowledgement. Returns whether this acknowledgement shows that the timeout was
    /// spurious.
    pub(super) fn on_ack(&mut self, sample: &AckSample, state: &AckState) -> bool {
        if sample.acked == 0 && !state.dup_ack {
            return false;
        }
        match *self {
            Self::Off => false,
            // With SACK, duplicate acknowledgements are not conclusive. Without SACK, duplicate
            // acknowledgements mean that the peer has a hole.
            Self::Retransmitted if sample.acked == 0 => {
                if !state.sack {
                    *self = Self::Off;
                }
                false
            }
            Self::Retransmitted => {
                let goes_on = sample.retransmitted && state.una < state.recovery_point && state.new_sendable;
                *self = if goes_on { Self::New(NEW_SEGMENTS) } else { Self::Off };
                false
            }
            Self::New(_) => {
                *self = Self::Off;
                sample.delivered > 0 && sample.highest <= state.recovery_point
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::slabs::Sent;

    const AT: AckState =
        AckState { una: 200, recovery_point: 900, sack: true, dup_ack: false, new_sendable: true };

    /// An acknowledgement of one segment that ends at `end`.
    fn acked(end: u64, retransmitted: bool) -> AckSample {
        let mut sample = AckSample { acked: 100, retransmitted, ..AckSample::default() };
        sample.deliver(Sent::NEVER, end, 100, retransmitted);
        sample
    }

    fn sacked(end: u64) -> AckSample {
        AckSample { acked: 0, ..acked(end, false) }
    }

    fn resent() -> Frto {
        let mut frto = Frto::default();
        frto.on_timeout(true);
        frto
    }

    fn fresh() -> Frto {
        let mut frto = resent();
        assert!(!frto.on_ack(&acked(200, true), &AT));
        assert_eq!(frto, Frto::New(2));
        frto.on_new_sent();
        frto
    }

    #[test]
    fn bytes_from_before_the_timeout_make_it_spurious() {
        let mut frto = fresh();
        assert!(frto.on_ack(&acked(300, false), &AckState { una: 300, ..AT }));
        assert_eq!(frto, Frto::Off);
        assert!(fresh().on_ack(&sacked(400), &AckState { dup_ack: true, ..AT }));
    }

    #[test]
    fn bytes_from_after_it_or_nothing_new_make_it_genuine() {
        let dup_ack = AckState { dup_ack: true, ..AT };
        for sample in [sacked(1000), AckSample::default()] {
            let mut frto = fresh();
            assert!(!frto.on_ack(&sample, &dup_ack));
            assert_eq!(frto, Frto::Off);
        }
    }

    #[test]
    fn the_first_acknowledgement_decides_whether_there_is_anything_to_find_out() {
        let after = |sample: &AckSample, state: AckState| {
            let mut frto = resent();
            assert!(!frto.on_ack(sample, &state));
            frto
        };
        let dup_ack = AckState { dup_ack: true, ..AT };
        assert_eq!(after(&sacked(500), dup_ack), Frto::Retransmitted);
        assert_eq!(after(&AckSample::default(), AckState { sack: false, ..dup_ack }), Frto::Off);
        assert_eq!(after(&acked(900, true), AckState { una: 900, ..AT }), Frto::Off, "all arrived");
        assert_eq!(after(&acked(200, true), AckState { new_sendable: false, ..AT }), Frto::Off);
        assert_eq!(after(&acked(200, false), AT), Frto::Off, "not all of what was sent again");
        let mut again = Frto::default();
        again.on_timeout(false);
        assert_eq!(again, Frto::Off);
    }
}
