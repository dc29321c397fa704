//! When the window is reduced: once for each window of data, whatever tells of congestion first, and once more for
//! what was sent since and is lost, too (RFC 3168 section 6.1.2, RFC 5681 section 4.3).
//!
//! That includes retransmissions: the loss of one is congestion anew, and there the window is lowered although Linux
//! does not (it only withholds the slow start bound of PRR). RFC 8985 leaves the answer to congestion control, and
//! names RFC 5681's (section 3.4). How far it is lowered is congestion control's affair. A timeout leaves one segment of
//! the window in any case, but lowers the threshold by the same rule, as Linux does (`recovery.rs`).

use super::congestion::{CongestionControl, Signal};
use super::ctx::Ctx;
use super::flight::Sent;
use super::prr::Prr;
use super::recovery::{Phase, saturated};
use super::tcb::Tcb;

/// The last reduction of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reduction {
    /// The next new segment says so, where ECN was agreed on (CWR).
    pub(super) announce: bool,
    /// The number of the last transmission before it.
    nr: u32,
    /// SND.NXT then: marks on what was sent before are the same congestion.
    until: u64,
    /// It was as deep as that for a loss: so are losses.
    deep: bool,
}

impl Reduction {
    /// Whether marks that were echoed up to `ack` are still to be answered.
    pub(super) fn is_news(&self, ack: u64) -> bool {
        ack > self.until
    }

    /// Whether it was made for congestion of which the loss of what starts at `oldest` tells no more; `latest`: the latest
    /// transmission that was lost, if it is known.
    pub(super) fn answers(&self, oldest: u64, latest: Option<Sent>) -> bool {
        self.covers(oldest) && !latest.is_some_and(|latest| latest.follows(self.nr))
    }

    fn covers(&self, oldest: u64) -> bool {
        self.deep && oldest < self.until
    }

    /// The last reduction was for nothing, and was taken back: `before` was the one before it. That one is announced
    /// still, unless a new segment has said so since.
    pub(super) fn take_back(&mut self, before: Self) {
        *self = Self { announce: self.announce && before.announce, ..before };
    }
}

impl Tcb {
    /// Slows down for the loss of octets that start at or above `oldest`; `latest`: the latest transmission that was
    /// lost, if it is known; `in_flight`: RFC 5681's `FlightSize`. Returns whether that was news.
    pub(super) fn answer_loss(
        &mut self,
        ctx: &Ctx<'_>,
        oldest: u64,
        latest: Option<Sent>,
        in_flight: u64,
    ) -> bool {
        if self.reduction.answers(oldest, latest) {
            return false;
        }
        // What is in flight in a recovery is not what the window allowed when it was lost.
        let window = if self.reduction.covers(oldest) { self.congestion.cwnd() } else { u32::MAX };
        self.congestion.on_congestion(ctx.now, saturated(in_flight).min(window), Signal::Loss);
        self.on_reduced(true);
        true
    }

    /// Slows down for marks.
    pub(super) fn answer_marks(&mut self, ctx: &Ctx<'_>) {
        let recovering = self.recovery.phase != Phase::Open;
        let window = if recovering { self.congestion.cwnd() } else { u32::MAX };
        self.congestion.on_congestion(ctx.now, saturated(self.snd.in_flight()).min(window), Signal::Ecn);
        self.on_reduced(self.congestion.answers_marks_like_loss());
    }

    /// The window was reduced; `deep`: as for a loss.
    pub(super) fn on_reduced(&mut self, deep: bool) {
        let (announce, nr, until) = (self.agreed.ecn, self.snd.flight.count, self.snd.nxt);
        self.reduction = Reduction { announce, nr, until, deep };
    }

    /// RACK has found something lost that was sent last as `latest`, while recovery is under way.
    pub(super) fn answer_loss_in_recovery(&mut self, ctx: &Ctx<'_>, latest: Sent) {
        if self.answer_loss(ctx, self.snd.una, Some(latest), self.snd.in_flight()) {
            self.pace_recovery_anew();
        }
    }

    /// The window was reduced again: fast recovery, if it is under way, goes from what is in flight now to the new threshold.
    pub(super) fn pace_recovery_anew(&mut self) {
        if self.recovery.phase == Phase::Fast {
            self.recovery.high = self.snd.nxt;
            self.recovery.prr = Prr::new(self.pipe());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_after_a_reduction_is_not_answered_by_it() {
        let reduction = Reduction { announce: false, nr: 5, until: 1000, deep: true };
        assert_eq!([999, 1000].map(|oldest| reduction.answers(oldest, None)), [true, false]);
        assert_eq!([1000, 1001].map(|ack| reduction.is_news(ack)), [false, true]);
    }
}
