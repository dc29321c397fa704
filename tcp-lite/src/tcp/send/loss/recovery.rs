//! Loss recovery: when it begins and ends, and the meaning of an acknowledgement for congestion (RFC 5681,
//! RFC 6582, RFC 8985).
//!
//! With SACK, RACK detects losses (`rack.rs`). Without SACK, the oldest segment is lost after three
//! duplicate acknowledgements and after each partial acknowledgement (NewReno). Each duplicate
//! acknowledgement then allows one more segment to be sent; before recovery, a new one (limited
//! transmit, RFC 3042).

use super::frto::{AckState, Frto};
use super::prr::Prr;
use super::rack::{DUP_THRESHOLD, ReorderingInputs};
use super::{LossRecovery, Phase, SendState};
use crate::Duration;
use crate::tcp::congestion::initial_window;
use crate::tcp::ctx::Ctx;
use crate::tcp::send::ack_sample::AckSample;
use crate::tcp::send::queue::{Detected, SendQueue};
use crate::tcp::send::rate::{Loss, RateControl, Reduction};
use crate::tcp::slabs::{SegmentSlab, Sent};

/// Kind of an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp::send) struct AckKind {
    /// It is a duplicate (RFC 5681 section 2).
    pub(in crate::tcp::send) dup_ack: bool,
    /// It is a duplicate without SACK blocks.
    pub(in crate::tcp::send) plain: bool,
}

/// Result of [`LossRecovery::advance_recovery`].
#[derive(Clone, Copy, Debug, Default)]
struct RecoveryNews {
    /// The phase before this acknowledgement ended a recovery, but after an undo.
    was: Phase,
    /// Bytes that left the network.
    delivered: u64,
    /// The last recovery was spurious.
    undone: bool,
    /// A tail loss probe had repaired a loss.
    repaired: bool,
}

impl LossRecovery {
    /// Responds to an acknowledgement that acknowledges something new, cumulatively or selectively, or is a
    /// duplicate; inside or outside of a recovery. The order of the steps: reordering, bytes that left the
    /// network, whether the last recovery was spurious, whether it is over, and lost segments. Returns
    /// whether the congestion window may grow by it.
    pub(in crate::tcp::send) fn on_ack(
        &mut self,
        ctx: &mut Ctx<'_>,
        mut state: SendState<'_>,
        sample: &AckSample,
        kind: AckKind,
    ) -> bool {
        let state = &mut state;
        if sample.acked > 0 || sample.delivered > 0 {
            // RFC 8985 section 7.2: no probe once segments are selectively acknowledged, as RACK finds the
            // losses then. The probe, a segment that may have arrived, would tell nothing.
            self.loss_probe.cancel();
        }
        ctx.counters.reordering_seen += u64::from(self.rack.on_ack(ctx.now, sample));
        if let Some(bytes) = sample.dsack
            && !self.loss_probe.is_own(bytes)
        {
            // (A duplicate of a tail loss probe is no sign of reordering.)
            self.rack.on_dsack(state.queue.positions().una(), state.queue.positions().nxt());
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
        // After an undo the window has already had its share of this acknowledgement. Duplicates allow
        // segments to be sent, but leave the window as it is (RFC 3042 section 2).
        let grows = sample.acked > 0 && sample.delivered > 0 && !undone && !repaired;
        grows && was != Phase::Fast && self.phase != Phase::Fast
    }

    /// The effect of an acknowledgement on a recovery, or on the counters that begin or end one, except that
    /// it may reveal a loss. In the [idle state](Self::is_idle), an acknowledgement that is no duplicate and
    /// reports no duplicate bytes has no effect here.
    #[inline(never)]
    fn advance_recovery(
        &mut self,
        ctx: &mut Ctx<'_>,
        state: &mut SendState<'_>,
        sample: &AckSample,
        kind: AckKind,
    ) -> RecoveryNews {
        let dup_ack = kind.dup_ack;
        // (By the duplicates counted before this acknowledgement.)
        let delivered = self.delivered(state, sample, dup_ack);
        self.count_dup_acks(state, sample, dup_ack);
        let repaired = self.reduce_if_probe_repaired(ctx, state, sample, kind);
        let undone = self.undo_if_spurious(ctx, state, sample, dup_ack);
        let was = self.phase;
        if was != Phase::Open && sample.acked > 0 && state.queue.positions().una() >= self.recovery_point {
            self.end_recovery(ctx.segments, state.queue);
        } else if was == Phase::Fast && sample.acked > 0 && !state.agreed.sack {
            // A partial acknowledgement: the oldest segment now is lost, too (RFC 6582 section 3.2, step
            // 3).
            state.queue.sent().mark_head_lost(ctx.segments);
        }
        RecoveryNews { was, delivered, undone, repaired }
    }

    /// Bytes that left the network (RFC 6937 section 2, `DeliveredData`). Without SACK: a segment for
    /// each duplicate acknowledgement, and for one that advances, the bytes not counted by those.
    fn delivered(&self, state: &SendState<'_>, sample: &AckSample, dup_ack: bool) -> u64 {
        let emss = u64::from(state.emss);
        match dup_ack {
            _ if state.agreed.sack => sample.delivered,
            true if !self.is_dup_ack_plausible(state) => 0,
            true => emss,
            false => sample.acked.saturating_sub(u64::from(self.dup_acks) * emss),
        }
    }

    /// Without SACK each duplicate acknowledgement means that one segment left the network.
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

    /// Whether one more duplicate acknowledgement can belong to the segments that were in flight when
    /// recovery began. If not, the peer forges them to make us send more than the network takes (RFC
    /// 5681 section 3.2, step 4).
    fn is_dup_ack_plausible(&self, state: &SendState<'_>) -> bool {
        let outstanding = self.recovery_point.saturating_sub(state.queue.positions().una());
        self.phase != Phase::Fast || u64::from(self.dup_acks) * u64::from(state.emss) < outstanding
    }

    /// Reduces the window, as for any other loss, if a tail loss probe repaired one that nothing else
    /// reveals (RFC 8985 section 7.4.2). Returns whether one did.
    fn reduce_if_probe_repaired(
        &mut self,
        ctx: &Ctx<'_>,
        state: &mut SendState<'_>,
        sample: &AckSample,
        kind: AckKind,
    ) -> bool {
        let repaired = self.loss_probe.on_ack(state.queue.positions().una(), sample, kind.plain);
        if repaired {
            // (There is no probe during recovery.)
            let (oldest, in_flight) = (
                state.queue.positions().una() - sample.acked,
                state.queue.positions().outstanding() + sample.acked,
            );
            if state.reduce_for_loss(ctx, &Loss { oldest, latest: None, in_flight }).is_some() {
                self.undo.forget();
            }
        }
        repaired
    }

    /// Undoes the current or last recovery if it turns out to be spurious. Returns whether it did.
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
            una: state.queue.positions().una(),
            recovery_point: self.recovery_point,
            sack: state.agreed.sack,
            dup_ack,
            new_sendable: state.queue.is_new_sendable(ctx.segments),
        };
        self.frto.on_ack(sample, &standing)
    }

    /// The originals arrived: restores the threshold and the marks at once, and the window by slow start
    /// (RFC 4015). Returns `false`, and leaves the recovery, if too many of this flight were undone.
    fn undo_recovery(&mut self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>, sample: &AckSample) -> bool {
        let (una, nxt) = (state.queue.positions().una(), state.queue.positions().nxt());
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
            // The recovery has retransmitted nothing that is still unacknowledged.
            self.recovery_point = state.queue.positions().una().saturating_sub(1);
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

    /// Everything that was in flight when recovery began is acknowledged.
    fn end_recovery(&mut self, segments: &mut SegmentSlab, queue: &mut SendQueue) {
        self.phase = Phase::Open;
        self.dup_acks = 0;
        self.frto = Frto::Off;
        self.rack.on_recovered();
        queue.sent().forget_retransmissions(segments);
    }

    /// Marks lost segments, and starts recovery if there is none yet. Returns whether any segment was
    /// marked.
    #[inline]
    pub(super) fn detect_loss(&mut self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>) -> bool {
        if state.agreed.sack && !self.is_overtaken(state.queue, ctx.segments) {
            // The common case, in which the reordering window need not be computed.
            self.timers.set_reorder(None);
            return false;
        }
        self.detect_likely_loss(ctx, state)
    }

    /// Whether a segment arrived that was sent later than the one longest in flight.
    #[inline]
    pub(in crate::tcp::send) fn is_overtaken(&self, queue: &SendQueue, segments: &SegmentSlab) -> bool {
        queue.scoreboard().is_overtaken(segments, &self.rack)
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
            // RFC 6582 section 3.2, step 2: duplicate acknowledgements caused by an earlier recovery's
            // retransmissions prove nothing. They may come until something beyond that recovery is
            // acknowledged.
            let is_beyond = state.queue.positions().una() > self.recovery_point;
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

    /// RFC 8985 section 6.2, steps 4 and 5.
    fn detect_overtaken(&self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>) -> Detected {
        let window = self.reordering_window(state.queue, state.rate);
        state.queue.sent().detect_lost(ctx.segments, &self.rack, window, ctx.now)
    }

    /// RACK's reordering window: how long a segment may be overtaken before it counts as lost.
    pub(in crate::tcp::send) fn reordering_window(&self, queue: &SendQueue, rate: &RateControl) -> Duration {
        self.rack.reordering_window(&ReorderingInputs {
            recovering: self.phase != Phase::Open,
            sacked_segments: queue.scoreboard().sacked_segments(),
            min_rtt_us: rate.min_rtt_us(),
            srtt_us: rate.srtt_us(),
        })
    }

    /// `latest`: the latest lost transmission, if it is known.
    fn start_recovery(&mut self, ctx: &mut Ctx<'_>, state: &mut SendState<'_>, latest: Option<Sent>) {
        ctx.counters.fast_retransmits += 1;
        let in_flight = state.queue.positions().outstanding();
        // Segments sent beyond the window by limited transmit do not count (RFC 5681 section 3.2, step
        // 2).
        let beyond = in_flight.saturating_sub(u64::from(state.rate.cwnd()));
        let limited = beyond.min(u64::from((DUP_THRESHOLD - 1) * state.emss));
        let loss = Loss { oldest: state.queue.positions().una(), latest, in_flight: in_flight - limited };
        let reduced = state.reduce_for_loss(ctx, &loss);
        self.phase = Phase::Fast;
        self.recovery_point = state.queue.positions().nxt();
        self.prr = Prr::new(in_flight);
        self.undo.start(state.queue.positions().una(), state.queue.positions().nxt(), false, reduced);
        self.loss_probe.forget();
    }

    /// Updates the transmission limit after an acknowledgement in fast recovery.
    pub(super) fn update_prr(&mut self, state: &SendState<'_>, delivered: u64, safe_ack: bool) {
        let (pipe, ssthresh) = (self.pipe_of(state), state.rate.ssthresh());
        self.prr.on_ack(delivered, pipe, ssthresh, state.emss, safe_ack);
    }

    /// RACK found a loss during recovery; `latest` is the latest lost transmission.
    fn reduce_in_recovery(&mut self, ctx: &Ctx<'_>, state: &mut SendState<'_>, latest: Sent) {
        let (oldest, in_flight) = (state.queue.positions().una(), state.queue.positions().outstanding());
        if state.reduce_for_loss(ctx, &Loss { oldest, latest: Some(latest), in_flight }).is_some() {
            self.restart_prr(state);
        }
    }

    /// The window was reduced again: fast recovery, if in progress, restarts from what is in flight now
    /// with the new threshold.
    fn restart_prr(&mut self, state: &SendState<'_>) {
        if self.phase == Phase::Fast {
            self.recovery_point = state.queue.positions().nxt();
            self.prr = Prr::new(self.pipe_of(state));
        }
    }

    /// The peer echoes marks up to `ack`.
    pub(in crate::tcp::send) fn on_ecn_echo(&mut self, ctx: &mut Ctx<'_>, state: SendState<'_>, ack: u64) {
        let recovering = self.is_recovering();
        if recovering {
            // Even if the recovery is spurious, the reduction was justified.
            self.undo.keep_reduction();
        }
        let (in_flight, sent) = (state.queue.positions().outstanding(), state.queue.sent_so_far());
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
    /// Reduces the window for a loss, unless an earlier reduction covers it. Returns the reduction before,
    /// if it did.
    fn reduce_for_loss(&mut self, ctx: &Ctx<'_>, loss: &Loss) -> Option<Reduction> {
        self.rate.reduce_for_loss(ctx.now, loss, self.queue.sent_so_far())
    }
}
