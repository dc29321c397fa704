//! Loss recovery: when it begins and ends, and what an acknowledgement says about congestion (RFC 5681,
//! RFC 6582, RFC 8985).
//!
//! With SACK, RACK detects losses (`rack.rs`). Without SACK, the oldest segment is lost after three
//! duplicate acknowledgements and after each partial acknowledgement (NewReno). Each duplicate
//! acknowledgement then allows one more segment to be sent; before recovery, a new one (limited
//! transmit, RFC 3042).

use super::ack::{AckKind, PriorSendState};
use super::ack_sample::AckSample;
use super::frto::{AckState, Frto};
use super::prr::Prr;
use super::queue::Detected;
use super::rack::{DUP_THRESHOLD, ReorderingInputs};
use super::rate::{Acked, Loss};
use super::{Pending, Phase, Recovery, SendHalf};
use crate::tcp::congestion::{Timeout, initial_window};
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::Sent;
use crate::{Duration, Instant};

/// Result of [`SendHalf::advance_recovery`].
#[derive(Clone, Copy, Debug, Default)]
struct RecoveryNews {
    /// The phase before the acknowledgement ended it, but after an undo.
    was: Phase,
    /// Bytes that left the network.
    delivered: u64,
    /// The last recovery was spurious.
    undone: bool,
    /// A tail loss probe had repaired a loss.
    repaired: bool,
}

impl SendHalf {
    /// Responds to an acknowledgement that says something new, cumulatively or selectively, or is a
    /// duplicate; runs in and outside of a recovery. In this order: what it says about reordering, how much
    /// left the network, whether the last recovery was spurious, whether it is over, what is lost, and by how
    /// much the window grows.
    pub(super) fn respond_to_ack(
        &mut self,
        ctx: &mut Ctx<'_>,
        sample: &AckSample,
        prior: PriorSendState,
        kind: AckKind,
    ) {
        let dup_ack = kind.dup_ack;
        if sample.acked > 0 || sample.delivered > 0 {
            // RFC 8985 section 7.2: no probe once segments are selectively acknowledged, as RACK finds the
            // losses then. The probe, a segment that may have arrived, would tell nothing.
            self.pending.remove(Pending::LOSS_PROBE);
        }
        ctx.counters.reordering_seen += u64::from(self.rack.on_ack(ctx.now, sample));
        if let Some(bytes) = sample.dsack
            && !self.recovery.loss_probe.is_own(bytes)
        {
            // (A duplicate of a tail loss probe is no sign of reordering.)
            self.rack.on_dsack(self.queue.una(), self.queue.nxt());
        }
        let news = if dup_ack || sample.dsack.is_some() || !self.recovery.is_idle() {
            self.advance_recovery(ctx, sample, kind)
        } else {
            RecoveryNews { delivered: self.delivered(sample, false), ..RecoveryNews::default() }
        };
        let RecoveryNews { was, delivered, undone, repaired } = news;
        let lost = self.detect_loss(ctx);
        if self.recovery.phase == Phase::Fast {
            self.update_prr(delivered, sample.acked > 0 && !lost);
        }
        // After an undo the window has already had its share of this acknowledgement. Duplicates allow
        // segments to be sent, but leave the window as it is (RFC 3042 section 2).
        let grows = sample.acked > 0 && sample.delivered > 0 && !undone && !repaired;
        let acked = Acked {
            acked: sample.acked,
            delivered: sample.delivered,
            rtt_us: sample.rtt_us,
            pipe: prior.pipe,
            una: self.queue.una(),
            nxt: self.queue.nxt(),
            ece: kind.ece,
        };
        if grows && was != Phase::Fast && self.recovery.phase != Phase::Fast {
            self.rate.on_ack(ctx.now, ctx.config, self.path.emss(), &acked);
        } else if sample.acked > 0 {
            self.rate.observe_ack(&acked);
        }
    }

    /// What an acknowledgement means for a recovery, or for what may begin or end one, except that it may
    /// reveal a loss. If there is [no such thing](super::Recovery::is_idle), an acknowledgement that is no
    /// duplicate and reports none has nothing to do here.
    #[inline(never)]
    fn advance_recovery(&mut self, ctx: &mut Ctx<'_>, sample: &AckSample, kind: AckKind) -> RecoveryNews {
        let dup_ack = kind.dup_ack;
        // (By the duplicates counted before this acknowledgement.)
        let delivered = self.delivered(sample, dup_ack);
        self.count_dup_acks(sample, dup_ack);
        let repaired = self.reduce_if_probe_repaired(ctx, sample, kind);
        let undone = self.undo_if_spurious(ctx, sample, dup_ack);
        let was = self.recovery.phase;
        if was != Phase::Open && sample.acked > 0 && self.queue.una() >= self.recovery.recovery_point {
            self.end_recovery(ctx);
        } else if was == Phase::Fast && sample.acked > 0 && !self.agreed.sack {
            // A partial acknowledgement: the oldest segment now is lost, too (RFC 6582 section 3.2, step
            // 3).
            self.queue.mark_head_lost(ctx.segments);
        }
        RecoveryNews { was, delivered, undone, repaired }
    }

    /// Bytes that left the network (RFC 6937 section 2, `DeliveredData`). Without SACK: a segment for
    /// each duplicate acknowledgement, and for one that advances, the bytes not counted by those.
    fn delivered(&self, sample: &AckSample, dup_ack: bool) -> u64 {
        let emss = u64::from(self.path.emss());
        match dup_ack {
            _ if self.agreed.sack => sample.delivered,
            true if !self.is_dup_ack_plausible() => 0,
            true => emss,
            false => sample.acked.saturating_sub(u64::from(self.recovery.dup_acks) * emss),
        }
    }

    /// Without SACK each duplicate acknowledgement means that one segment left the network.
    fn count_dup_acks(&mut self, sample: &AckSample, dup_ack: bool) {
        if dup_ack {
            self.recovery.dup_acks += u32::from(self.is_dup_ack_plausible());
        } else if sample.acked > 0 && self.recovery.phase == Phase::Fast {
            let arrived = (sample.acked / u64::from(self.path.emss())).max(1).min(u64::from(u32::MAX)) as u32;
            self.recovery.dup_acks = self.recovery.dup_acks.saturating_sub(arrived);
        } else if sample.acked > 0 {
            self.recovery.dup_acks = 0;
        }
    }

    /// Whether one more duplicate acknowledgement can belong to the segments that were in flight when
    /// recovery began. If not, the peer forges them to make us send more than the network takes (RFC
    /// 5681 section 3.2, step 4).
    fn is_dup_ack_plausible(&self) -> bool {
        let outstanding = self.recovery.recovery_point.saturating_sub(self.queue.una());
        self.recovery.phase != Phase::Fast
            || u64::from(self.recovery.dup_acks) * u64::from(self.path.emss()) < outstanding
    }

    /// Reduces the window, as for any other loss, if a tail loss probe repaired one that nothing else
    /// reveals (RFC 8985 section 7.4.2). Returns whether one did.
    fn reduce_if_probe_repaired(&mut self, ctx: &mut Ctx<'_>, sample: &AckSample, kind: AckKind) -> bool {
        let repaired = self.recovery.loss_probe.on_ack(self.queue.una(), sample, kind.plain);
        if repaired {
            // (There is no probe during recovery.)
            let (oldest, in_flight) =
                (self.queue.una() - sample.acked, self.queue.outstanding() + sample.acked);
            if self.reduce_for_loss(ctx, &Loss { oldest, latest: None, in_flight }).is_some() {
                self.recovery.undo.forget();
            }
        }
        repaired
    }

    /// Undoes the current or last recovery if it turns out to be spurious. Returns whether it did.
    fn undo_if_spurious(&mut self, ctx: &mut Ctx<'_>, sample: &AckSample, dup_ack: bool) -> bool {
        let recovering = self.recovery.phase != Phase::Open;
        let by_order = self.recovery.frto != Frto::Off && self.run_frto(ctx, sample, dup_ack);
        let by_time = recovering && self.recovery.undo.is_original(sample);
        let by_report = sample.dsack.is_some_and(|bytes| self.recovery.undo.on_dsack(bytes));
        (by_order || by_time || by_report) && self.undo_recovery(ctx, sample)
    }

    fn run_frto(&mut self, ctx: &Ctx<'_>, sample: &AckSample, dup_ack: bool) -> bool {
        let standing = AckState {
            una: self.queue.una(),
            recovery_point: self.recovery.recovery_point,
            sack: self.agreed.sack,
            dup_ack,
            new_sendable: self.is_new_sendable(ctx),
        };
        self.recovery.frto.on_ack(sample, &standing)
    }

    /// The originals arrived: restores the threshold and the marks at once, and the window by slow start
    /// (RFC 4015). Returns `false`, and leaves the recovery, if too many of this flight were undone.
    fn undo_recovery(&mut self, ctx: &mut Ctx<'_>, sample: &AckSample) -> bool {
        let (una, nxt) = (self.queue.una(), self.queue.nxt());
        let Recovery { phase, undo, undone, .. } = &mut self.recovery;
        let episode = match *phase {
            Phase::Open => undo.take(),
            Phase::Fast | Phase::Loss => undo.take_in_progress(una, nxt, undone),
        };
        let Some(episode) = episode else { return false };
        self.rack.on_spurious(sample);
        if episode.timeout {
            ctx.counters.spurious_timeouts += 1;
            if let Some(rtt_us) = sample.rtt_us {
                self.rate.reseed_rtt(rtt_us);
            }
        } else {
            ctx.counters.spurious_recoveries += 1;
            ctx.counters.reordering_seen += u64::from(self.rack.on_reordering());
        }
        if self.recovery.phase != Phase::Open {
            self.recovery.phase = Phase::Open;
            // It retransmitted nothing that is still unacknowledged.
            self.recovery.recovery_point = self.queue.una().saturating_sub(1);
            self.recovery.dup_acks = 0;
            self.recovery.frto = Frto::Off;
            self.queue.restore_lost(ctx.segments);
            self.queue.forget_retransmissions(ctx.segments);
        }
        if let Some(before) = episode.reduced {
            let burst = sample.acked.min(u64::from(initial_window(self.path.emss())));
            self.rate.undo_reduction(ctx.now, self.queue.not_sacked_nor_lost() + burst, before);
        }
        true
    }

    /// Everything that was in flight when recovery began is acknowledged.
    fn end_recovery(&mut self, ctx: &mut Ctx<'_>) {
        self.recovery.phase = Phase::Open;
        self.recovery.dup_acks = 0;
        self.recovery.frto = Frto::Off;
        self.rack.on_recovered();
        self.queue.forget_retransmissions(ctx.segments);
    }

    /// Marks lost segments, and starts recovery if there is none yet. Returns whether any segment was
    /// marked.
    #[inline]
    fn detect_loss(&mut self, ctx: &mut Ctx<'_>) -> bool {
        if self.agreed.sack && !self.is_overtaken(ctx) {
            // Mostly: the reordering window is then not computed.
            self.timers.set_reorder(None);
            return false;
        }
        self.detect_likely_loss(ctx)
    }

    /// Whether a segment arrived that was sent later than the one longest in flight.
    #[inline]
    pub(super) fn is_overtaken(&self, ctx: &Ctx<'_>) -> bool {
        self.queue.is_overtaken(ctx.segments, &self.rack)
    }

    #[inline(never)]
    fn detect_likely_loss(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let open = self.recovery.phase == Phase::Open;
        let mut latest = None;
        let lost = if self.agreed.sack {
            let detected = self.detect_overtaken(ctx);
            self.timers.set_reorder(detected.next);
            ctx.counters.lost_retransmits += u64::from(detected.lost_again);
            latest = detected.latest;
            detected.lost > 0
        } else {
            // RFC 6582 section 3.2, step 2: duplicate acknowledgements caused by an earlier recovery's
            // retransmissions prove nothing. They may come until something beyond that recovery is
            // acknowledged.
            let is_beyond = self.queue.una() > self.recovery.recovery_point;
            open && is_beyond
                && self.recovery.dup_acks >= DUP_THRESHOLD
                && self.queue.mark_head_lost(ctx.segments)
        };
        if lost && open {
            self.start_recovery(ctx, latest);
        } else if let Some(latest) = latest {
            self.reduce_for_loss_in_recovery(ctx, latest);
        }
        lost
    }

    /// RFC 8985 section 6.2, steps 4 and 5.
    fn detect_overtaken(&mut self, ctx: &mut Ctx<'_>) -> Detected {
        let window = self.reordering_window();
        self.queue.detect_lost(ctx.segments, &self.rack, window, ctx.now)
    }

    /// How long RACK lets a segment be overtaken.
    pub(super) fn reordering_window(&self) -> Duration {
        self.rack.reordering_window(&ReorderingInputs {
            recovering: self.recovery.phase != Phase::Open,
            sacked_segments: self.queue.sacked_segments(),
            min_rtt_us: self.rate.min_rtt_us(),
            srtt_us: self.rate.srtt_us(),
        })
    }

    /// `latest`: the latest lost transmission, if it is known.
    fn start_recovery(&mut self, ctx: &mut Ctx<'_>, latest: Option<Sent>) {
        ctx.counters.fast_retransmits += 1;
        let in_flight = self.queue.outstanding();
        // Segments sent beyond the window by limited transmit do not count (RFC 5681 section 3.2, step
        // 2).
        let beyond = in_flight.saturating_sub(u64::from(self.rate.cwnd()));
        let limited = beyond.min(u64::from((DUP_THRESHOLD - 1) * self.path.emss()));
        let loss = Loss { oldest: self.queue.una(), latest, in_flight: in_flight - limited };
        let reduced = self.reduce_for_loss(ctx, &loss);
        self.recovery.phase = Phase::Fast;
        self.recovery.recovery_point = self.queue.nxt();
        self.recovery.prr = Prr::new(in_flight);
        self.recovery.undo.start(self.queue.una(), self.queue.nxt(), false, reduced);
        self.forget_loss_probe();
    }

    /// Updates the transmission limit after an acknowledgement in fast recovery.
    fn update_prr(&mut self, delivered: u64, safe_ack: bool) {
        let (pipe, ssthresh) = (self.pipe(), self.rate.ssthresh());
        self.recovery.prr.on_ack(delivered, pipe, ssthresh, self.path.emss(), safe_ack);
    }

    /// The reordering timer: segments overtaken for long enough are lost.
    pub(super) fn on_reorder_timer(&mut self, ctx: &mut Ctx<'_>) {
        if self.detect_loss(ctx) && self.recovery.phase == Phase::Fast {
            self.update_prr(0, false);
        }
    }

    /// The timer expired (RFC 6298 section 5.4 to 5.6, RFC 5681 section 3.1).
    pub(super) fn on_retransmission_timeout(&mut self, ctx: &mut Ctx<'_>) {
        ctx.counters.rto_expired += 1;
        let was = self.recovery.phase;
        let in_flight = self.queue.outstanding();
        let oldest = self.queue.head().map(|key| ctx.segments.get(key).sent);
        let is_first_timeout = self.queue.mark_timed_out(ctx.segments, self.lost_before(ctx));
        self.timers.set_reorder(None);
        let timeout = match was {
            Phase::Loss if !is_first_timeout => Timeout::Again,
            Phase::Open | Phase::Fast if self.rate.answers(self.queue.una(), oldest) => Timeout::Answered,
            _ => Timeout::Congestion,
        };
        let before = self.rate.on_timeout(ctx.now, in_flight, timeout, self.sent_so_far());
        if timeout != Timeout::Again {
            self.recovery.undo.start(self.queue.una(), self.queue.nxt(), true, Some(before));
        }
        // With timestamps, Eifel detects a spurious timeout sooner, on any acknowledgement.
        self.recovery.frto.on_timeout(was == Phase::Open && !self.agreed.timestamps);
        self.recovery.phase = Phase::Loss;
        self.recovery.recovery_point = self.queue.nxt();
        self.recovery.dup_acks = 0;
        self.forget_loss_probe();
        self.timers.delay_rto(ctx.now + self.rate.rto());
    }

    /// Unacknowledged segments sent by this time are lost at a timeout (RFC 8985 section 6.3).
    fn lost_before(&self, ctx: &Ctx<'_>) -> Instant {
        if !self.agreed.sack {
            return ctx.now;
        }
        ctx.now - self.rack.loss_delay(self.reordering_window())
    }

    fn forget_loss_probe(&mut self) {
        self.recovery.loss_probe.forget();
        self.pending.remove(Pending::LOSS_PROBE);
    }
}
