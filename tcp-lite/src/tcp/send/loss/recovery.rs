//! Loss recovery: when it begins and ends, and what an acknowledgement means for congestion (RFC 5681, RFC
//! 6582, RFC 8985).
//!
//! With SACK, RACK detects losses (`rack.rs`). Without SACK, NewReno's rules apply: the oldest segment counts
//! as lost after three duplicate acknowledgements, and after each partial acknowledgement. Each duplicate
//! acknowledgement counts as one segment that left the network, so before a recovery it allows one new
//! segment (limited transmit, RFC 3042).

use super::frto::{AckState, Frto};
use super::prr::Prr;
use super::rack::{DUP_THRESHOLD, ReorderingInputs};
use super::{LossRecovery, Phase, SendState};
use crate::Duration;
use crate::tcp::congestion::initial_window;
use crate::tcp::ctx::Ctx;
use crate::tcp::send::ack_sample::AckSample;
use crate::tcp::send::queue::{Detected, SendQueue, SendRange};
use crate::tcp::send::rate::{Loss, RateControl, Reduction};
use crate::tcp::slabs::{SegmentSlab, Sent};

#[derive(Clone, Copy, Debug)]
pub(in crate::tcp::send) struct AckKind {
    /// True if the acknowledgement is a duplicate (RFC 5681 section 2).
    pub(in crate::tcp::send) dup_ack: bool,
    /// True if the acknowledgement is a duplicate without SACK blocks.
    pub(in crate::tcp::send) plain: bool,
}

/// Result of [`LossRecovery::advance_recovery`].
#[derive(Clone, Copy, Debug, Default)]
struct RecoveryNews {
    /// The phase after a spurious recovery was undone, and before this acknowledgement could end a recovery.
    was: Phase,
    /// Number of bytes that left the network.
    delivered: u64,
    /// True if the last recovery was spurious and was undone.
    undone: bool,
    /// True if a tail loss probe had repaired a loss.
    repaired: bool,
}

impl LossRecovery {
    /// Responds to an acknowledgement that acknowledges something new, cumulatively or selectively, or is a
    /// duplicate. A recovery may or may not be in progress. The steps, in this order: find reordering, count
    /// the bytes that left the network, undo the last recovery if it was spurious, end the recovery if it is
    /// over, and find lost segments. Returns whether the congestion window may grow because of this
    /// acknowledgement.
    pub(in crate::tcp::send) fn on_ack(
        &mut self,
        ctx: &mut Ctx<'_>,
        mut state: SendState<'_>,
        sample: &AckSample,
        kind: AckKind,
    ) -> bool {
        let state = &mut state;
        if sample.acked > 0 || sample.delivered > 0 {
            // A probe that is due waits again, because `deadline.rs` now decides anew whether a probe is
            // needed (RFC 8985 section 7.2).
            self.loss_probe.cancel();
        }
        ctx.counters.reordering_seen += u64::from(self.rack.on_ack(ctx.now, sample));
        if let Some(bytes) = sample.dsack
            && !self.loss_probe.is_own(bytes)
        {
            // (A duplicate of a tail loss probe is no sign of reordering.)
            self.rack.on_dsack(state.range.una, state.range.nxt);
        }
        let news = if kind.dup_ack || sample.dsack.is_some() || !self.is_idle() {
            self.advance_recovery(ctx, state, sample, kind)
        } else {
            let delivered = self.delivered(state, sample, false);
            RecoveryNews { delivered, ..RecoveryNews::default() }
        };
        let RecoveryNews { was, delivered, undone, repaired } = news;
        let lost = self.detect_loss(ctx, state);
        if self.phase == Phase::Fast {
            self.update_prr(state, delivered, sample.acked > 0 && !lost);
        }
        // After an undo, the window already reflects this acknowledgement. Duplicate acknowledgements allow
        // segments to be sent, but do not change the window (RFC 3042 section 2).
        let grows = sample.acked > 0 && sample.delivered > 0 && !undone && !repaired;
        grows && was != Phase::Fast && self.phase != Phase::Fast
    }

    /// Applies the effects of an acknowledgement on a recovery, or on the counters that begin or end a
    /// recovery. The caller finds lost segments. In the [idle state](Self::is_idle), an acknowledgement has
    /// no such effect if it is no duplicate and reports no duplicate bytes.
    #[inline(never)]
    fn advance_recovery(
        &mut self,
        ctx: &mut Ctx<'_>,
        state: &mut SendState<'_>,
        sample: &AckSample,
        kind: AckKind,
    ) -> RecoveryNews {
        let dup_ack = kind.dup_ack;
        // `delivered` needs the number of duplicate acknowledgements before the present acknowledgement.
        let delivered = self.delivered(state, sample, dup_ack);
        self.count_dup_acks(state, sample, dup_ack);
        let repaired = self.reduce_if_probe_repaired(ctx, state, sample, kind);
        let undone = self.undo_if_spurious(ctx, state, sample, dup_ack);
        let was = self.phase;
        if was != Phase::Open && sample.acked > 0 && state.range.una >= self.recovery_point {
            self.end_recovery(ctx.segments, state.queue);
        } else if was == Phase::Fast && sample.acked > 0 && !state.agreed.sack {
            // After a partial acknowledgement, the new oldest segment is lost as well (RFC 6582 section 3.2,
            // step 3).
            state.queue.sent().mark_head_lost(ctx.segments);
        }
        RecoveryNews { was, delivered, undone, repaired }
    }

    /// Number of bytes that left the network (RFC 6937 section 2, `DeliveredData`). Without SACK, each
    /// duplicate acknowledgement counts as one segment. When an acknowledgement advances SND.UNA, the
    /// acknowledged bytes count, less the bytes that were counted for the duplicate acknowledgements before
    /// it.
    fn delivered(&self, state: &SendState<'_>, sample: &AckSample, dup_ack: bool) -> u64 {
        let emss = u64::from(state.emss);
        match dup_ack {
            _ if state.agreed.sack => sample.delivered,
            true if !self.is_dup_ack_plausible(state) => 0,
            true => emss,
            false => sample.acked.saturating_sub(u64::from(self.dup_acks) * emss),
        }
    }

    /// Counts duplicate acknowledgements. Without SACK, each duplicate acknowledgement means that one segment
    /// left the network.
    fn count_dup_acks(&mut self, state: &SendState<'_>, sample: &AckSample, dup_ack: bool) {
        if dup_ack {
            self.dup_acks += u32::from(self.is_dup_ack_plausible(state));
        } else if sample.acked > 0 && self.phase == Phase::Fast {
            let arrived = (sample.acked / u64::from(state.emss)).max(1).min(u64::from(u32::MAX)) as u32;
            self.dup_acks = self.dup_acks.saturating_sub(arrived);
        } else if sample.acked > 0 {
            self.dup_acks = 0;
        }
    }

    /// In fast recovery: whether one more duplicate acknowledgement can belong to the segments that were in
    /// flight when the recovery began. A peer that forges more of them could make us send more than the
    /// network can carry (RFC 5681 section 3.2, step 4). Outside of fast recovery, the result is `true`.
    fn is_dup_ack_plausible(&self, state: &SendState<'_>) -> bool {
        let outstanding = self.recovery_point.saturating_sub(state.range.una);
        self.phase != Phase::Fast || u64::from(self.dup_acks) * u64::from(state.emss) < outstanding
    }

    /// If a tail loss probe repaired a loss that nothing else reveals, reduces the window as for any other
    /// loss (RFC 8985 section 7.4.2). Returns whether a probe repaired a loss.
    fn reduce_if_probe_repaired(
        &mut self,
        ctx: &Ctx<'_>,
        state: &mut SendState<'_>,
        sample: &AckSample,
        kind: AckKind,
    ) -> bool {
        let repaired = self.loss_probe.on_ack(state.range.una, sample, kind.plain);
        if repaired {
            let (oldest, in_flight) =
                (state.range.una - sample.acked, state.range.outstanding() + sample.acked);
            if state.reduce_for_loss(ctx, &Loss { oldest, latest: None, in_flight }).is_some() {
                self.undo.forget();
            }
        }
        repaired
    }

    /// Undoes the current or last recovery if this acknowledgement shows that the recovery was spurious.
    /// Returns whether the recovery was undone.
    fn undo_if_spurious(
        &mut self,
        ctx: &mut Ctx<'_>,
        state: &mut SendState<'_>,
        sample: &AckSample,
        dup_ack: bool,
    ) -> bool {
        let recovering = self.phase != Phase::Open;
        let by_order = self.frto != Frto::Off && self.run_frto(ctx, state, sample, dup_ack);
        let by_time = recovering && self.undo.is_original(sample);
        let by_report = sample.dsack.is_some_and(|bytes| self.undo.on_dsack(bytes));
        (by_order || by_time || by_report) && self.undo_recovery(ctx, state, sample)
    }

    fn run_frto(&mut self, ctx: &Ctx<'_>, state: &SendState<'_>, sample: &AckSample, dup_ack: bool) -> bool {
        let standing = AckState {
            una: state.range.una,
            recovery_point: self.recovery_point,
            sack: state.agreed.sack,
            dup_ack,
            new_sendable: state.queue.is_new_sendable(ctx.segments),
        };
        self.frto.on_ack(sample, &standing)
    }

    /// Called when an acknowledgement shows that the original segments have arrived: restores the threshold
    /// and the marks at once, and the window by slow start (RFC 4015). Returns `false` and changes no mark
    /// and no window if there is no recovery to undo, or if too many recoveries of this flight were undone.
    fn undo_recovery(&mut self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>, sample: &AckSample) -> bool {
        let SendRange { una, nxt } = state.range;
        let episode = match self.phase {
            Phase::Open => self.undo.take(),
            Phase::Fast | Phase::Loss => self.undo.take_in_progress(una, nxt, &mut self.undone),
        };
        let Some(episode) = episode else { return false };
        self.rack.on_spurious(sample);
        if episode.timeout {
            ctx.counters.spurious_timeouts += 1;
            if let Some(rtt_us) = sample.rtt_us {
                state.rate.reseed_rtt(rtt_us);
            }
        } else {
            ctx.counters.spurious_recoveries += 1;
            ctx.counters.reordering_seen += u64::from(self.rack.on_reordering());
        }
        if self.phase != Phase::Open {
            self.phase = Phase::Open;
            // Below SND.UNA, so that duplicate acknowledgements may start another recovery at once.
            self.recovery_point = state.range.una.saturating_sub(1);
            self.dup_acks = 0;
            self.frto = Frto::Off;
            state.queue.sent().restore_lost(ctx.segments);
            state.queue.sent().forget_retransmissions(ctx.segments);
        }
        if let Some(before) = episode.reduced {
            let burst = sample.acked.min(u64::from(initial_window(state.emss)));
            state.rate.undo_reduction(ctx.now, state.queue.not_sacked_nor_lost() + burst, before);
        }
        true
    }

    /// Called when all bytes up to the recovery point are acknowledged: ends the recovery.
    fn end_recovery(&mut self, segments: &mut SegmentSlab, queue: &mut SendQueue) {
        self.phase = Phase::Open;
        self.dup_acks = 0;
        self.frto = Frto::Off;
        self.rack.on_recovered();
        queue.sent().forget_retransmissions(segments);
    }

    /// Marks lost segments, and starts a recovery if no recovery is in progress. Returns whether any segment
    /// was marked.
    #[inline]
    pub(super) fn detect_loss(&mut self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>) -> bool {
        if state.agreed.sack && !self.is_overtaken(state.queue, ctx.segments) {
            self.timers.set_reorder(None);
            return false;
        }
        self.detect_likely_loss(ctx, state)
    }

    /// Whether a segment has arrived that was sent later than the segment that has been in flight longest.
    #[inline]
    pub(in crate::tcp::send) fn is_overtaken(&self, queue: &SendQueue, segments: &SegmentSlab) -> bool {
        queue.is_overtaken(segments, &self.rack)
    }

    #[inline(never)]
    fn detect_likely_loss(&mut self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>) -> bool {
        let open = self.phase == Phase::Open;
        let mut latest = None;
        let lost = if state.agreed.sack {
            let detected = self.detect_overtaken(ctx, state);
            self.timers.set_reorder(detected.next);
            ctx.counters.lost_retransmits += u64::from(detected.lost_again);
            latest = detected.latest;
            detected.lost > 0
        } else {
            // RFC 6582 section 3.2, step 2: retransmissions of an earlier recovery cause duplicate
            // acknowledgements that prove no loss. Such duplicates may arrive until a byte beyond that
            // recovery is acknowledged.
            let is_beyond = state.range.una > self.recovery_point;
            open && is_beyond
                && self.dup_acks >= DUP_THRESHOLD
                && state.queue.sent().mark_head_lost(ctx.segments)
        };
        if lost && open {
            self.start_recovery(ctx, state, latest);
        } else if let Some(latest) = latest {
            self.reduce_in_recovery(ctx, state, latest);
        }
        lost
    }

    /// Marks the overtaken segments that are lost (RFC 8985 section 6.2, steps 4 and 5).
    fn detect_overtaken(&self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>) -> Detected {
        let window = self.reordering_window(state.queue, state.rate);
        state.queue.sent().detect_lost(ctx.segments, &self.rack, window, ctx.now)
    }

    /// RACK's reordering window: the time, in addition to a round trip, after which an overtaken segment
    /// counts as lost.
    pub(in crate::tcp::send) fn reordering_window(&self, queue: &SendQueue, rate: &RateControl) -> Duration {
        self.rack.reordering_window(&ReorderingInputs {
            recovering: self.phase != Phase::Open,
            sacked_segments: queue.sacked_segments(),
            min_rtt_us: rate.min_rtt_us(),
            srtt_us: rate.srtt_us(),
        })
    }

    /// Starts a fast recovery. `latest` is the latest lost transmission, if it is known.
    fn start_recovery(&mut self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>, latest: Option<Sent>) {
        ctx.counters.fast_retransmits += 1;
        let in_flight = state.range.outstanding();
        // Segments that limited transmit sent beyond the window do not count (RFC 5681 section 3.2, step 2).
        let beyond = in_flight.saturating_sub(u64::from(state.rate.cwnd()));
        let limited = beyond.min(u64::from((DUP_THRESHOLD - 1) * state.emss));
        let loss = Loss { oldest: state.range.una, latest, in_flight: in_flight - limited };
        let reduced = state.reduce_for_loss(ctx, &loss);
        self.phase = Phase::Fast;
        self.recovery_point = state.range.nxt;
        self.prr = Prr::new(in_flight);
        self.undo.start(state.range.una, state.range.nxt, false, reduced);
        self.loss_probe.forget();
    }

    /// Updates the transmission limit after an acknowledgement in fast recovery.
    pub(super) fn update_prr(&mut self, state: &SendState<'_>, delivered: u64, safe_ack: bool) {
        let (pipe, ssthresh) = (self.pipe_of(state), state.rate.ssthresh());
        self.prr.on_ack(delivered, pipe, ssthresh, state.emss, safe_ack);
    }

    /// Called when RACK found a loss during recovery: reduces the window again, unless an earlier reduction
    /// covers the loss. `latest` is the latest lost transmission.
    fn reduce_in_recovery(&mut self, ctx: &Ctx<'_>, state: &mut SendState<'_>, latest: Sent) {
        let (oldest, in_flight) = (state.range.una, state.range.outstanding());
        if state.reduce_for_loss(ctx, &Loss { oldest, latest: Some(latest), in_flight }).is_some() {
            self.restart_prr(state);
        }
    }

    /// Called when the window was reduced again. If a fast recovery is in progress, restarts PRR with the
    /// bytes that are in flight now and the new threshold. The recovery then ends when all bytes sent so far
    /// are acknowledged.
    fn restart_prr(&mut self, state: &SendState<'_>) {
        if self.phase == Phase::Fast {
            self.recovery_point = state.range.nxt;
            self.prr = Prr::new(self.pipe_of(state));
        }
    }

    /// Called when the peer echoes marks in an acknowledgement up to `ack`: reduces the window, unless an
    /// earlier reduction covers these marks.
    pub(in crate::tcp::send) fn on_ecn_echo(&mut self, ctx: &mut Ctx<'_>, state: SendState<'_>, ack: u64) {
        let recovering = self.is_recovering();
        if recovering {
            // The reduction was justified, even if the recovery is spurious.
            self.undo.keep_reduction();
        }
        let (in_flight, sent) = (state.range.outstanding(), state.queue.sent_so_far());
        if !state.rate.reduce_for_marks(ctx.now, (ack, recovering), in_flight, sent) {
            return;
        }
        ctx.counters.ecn_reductions += 1;
        if !recovering {
            self.undo.forget();
        }
        if ack < self.recovery_point {
            self.restart_prr(&state);
        }
    }

    fn pipe_of(&self, state: &SendState<'_>) -> u64 {
        self.pipe(state.queue, state.agreed.sack, state.emss)
    }
}

impl SendState<'_> {
    /// Reduces the window for a loss, unless an earlier reduction covers the loss. Returns the previous
    /// reduction if the window was reduced, otherwise `None`.
    fn reduce_for_loss(&mut self, ctx: &Ctx<'_>, loss: &Loss) -> Option<Reduction> {
        self.rate.reduce_for_loss(ctx.now, loss, self.queue.sent_so_far())
    }
}
