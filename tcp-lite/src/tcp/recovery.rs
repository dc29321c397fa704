//! Loss recovery as a process: when it begins, what ends it, and what an acknowledgement says of congestion
//! (RFC 5681, RFC 6582, RFC 8985).
//!
//! With SACK, RACK finds what is lost (`rack.rs`). Without, the oldest segment is lost after three duplicate
//! acknowledgements and after each partial one (NewReno), and each duplicate acknowledgement lets one segment out:
//! of fresh ones before recovery (limited transmit, RFC 3042).

use super::ack::Before;
use super::congestion::{Ack, CongestionControl, Timeout, initial_window};
use super::ctx::Ctx;
use super::flight::Sent;
use super::frto::{Frto, Standing};
use super::header::TcpHeader;
use super::news::News;
use super::prr::Prr;
use super::rack::Circumstances;
use super::scoreboard::{DUP_THRESHOLD, Detected};
use super::tail_probe::TailProbe;
use super::tcb::{Pending, Tcb};
use super::undo::Undo;
use crate::{Duration, Instant};

/// Why segments are being sent again, if they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// They are not.
    #[default]
    Open,
    /// Loss was detected by acknowledgements (fast recovery).
    Fast,
    /// The timer expired.
    Loss,
}

/// Loss recovery of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovery {
    /// What may be sent during [`Phase::Fast`].
    pub(super) prr: Prr,
    pub(super) tail: TailProbe,
    pub(super) undo: Undo,
    pub(super) frto: Frto,
    pub(super) phase: Phase,
    /// What was sent when the last recovery began; it ends when all of that is acknowledged (RFC 6582, `recover`).
    pub(super) high: u64,
    pub(super) dup_acks: u32,
}

impl Tcb {
    /// Works off an acknowledgement with news, or a `duplicate` one.
    pub(super) fn recover(
        &mut self,
        ctx: &mut Ctx<'_>,
        header: &TcpHeader,
        news: &News,
        before: Before,
        duplicate: bool,
    ) {
        ctx.counters.reordering_seen += u64::from(self.rack.on_news(ctx.now, news));
        if let Some(octets) = news.duplicate
            && !self.recovery.tail.is_own(octets)
        {
            // (A probe on suspicion says nothing of reordering.)
            self.rack.on_dsack(self.snd.una, self.snd.nxt);
        }
        let left = self.delivered(news, duplicate);
        self.count_duplicates(news, duplicate);
        let repaired = self.judge_probe(ctx, header, news, duplicate);
        let undone = self.judge_recovery(ctx, news, duplicate);
        let was = self.recovery.phase;
        if was != Phase::Open && news.acked > 0 && self.snd.una >= self.recovery.high {
            self.end_recovery(ctx);
        } else if was == Phase::Fast && news.acked > 0 && !self.agreed.sack {
            // A partial acknowledgement: what is oldest now is lost, too (RFC 6582 section 3.2, step 3).
            self.snd.mark_head_lost(ctx.segments);
        }
        let lost = self.detect_loss(ctx);
        if self.recovery.phase == Phase::Fast {
            self.pace_recovery(left, news.acked > 0 && !lost);
        }
        // What was taken back has its share of the window for this acknowledgement. Duplicates let segments out, but
        // leave the window as it is (RFC 3042 section 2).
        let grows = news.acked > 0 && news.delivered > 0 && !undone && !repaired;
        if grows && was != Phase::Fast && self.recovery.phase != Phase::Fast {
            self.grow_window(ctx, header, before, news);
        }
    }

    /// Without SACK each duplicate acknowledgement says that one segment left the network.
    fn count_duplicates(&mut self, news: &News, duplicate: bool) {
        if duplicate {
            self.recovery.dup_acks += u32::from(self.is_credible());
        } else if news.acked > 0 && self.recovery.phase == Phase::Fast {
            let arrived = (news.acked / u64::from(self.emss)).max(1).min(u64::from(u32::MAX)) as u32;
            self.recovery.dup_acks = self.recovery.dup_acks.saturating_sub(arrived);
        } else if news.acked > 0 {
            self.recovery.dup_acks = 0;
        }
    }

    /// Whether one duplicate acknowledgement more can be of what was in flight when recovery began: else the peer makes
    /// them up, to be sent more than the network takes (RFC 5681 section 3.2, step 4).
    fn is_credible(&self) -> bool {
        let outstanding = self.recovery.high.saturating_sub(self.snd.una);
        self.recovery.phase != Phase::Fast
            || u64::from(self.recovery.dup_acks) * u64::from(self.emss) < outstanding
    }

    /// Octets that left the network: without SACK, a segment by each duplicate acknowledgement, and by one that
    /// advances what those have not counted (RFC 6937 section 2, `DeliveredData`).
    fn delivered(&self, news: &News, duplicate: bool) -> u64 {
        let emss = u64::from(self.emss);
        match duplicate {
            _ if self.agreed.sack => news.delivered,
            true if !self.is_credible() => 0,
            true => emss,
            false => news.acked.saturating_sub(u64::from(self.recovery.dup_acks) * emss),
        }
    }

    /// What may be sent after an acknowledgement in fast recovery.
    fn pace_recovery(&mut self, delivered: u64, safe: bool) {
        let (pipe, ssthresh) = (self.pipe(), self.congestion.ssthresh());
        self.recovery.prr.on_ack(delivered, pipe, ssthresh, self.emss, safe);
    }

    /// The reordering timer: what was overtaken for long enough is lost.
    pub(super) fn on_reorder_timer(&mut self, ctx: &mut Ctx<'_>) {
        if self.detect_loss(ctx) && self.recovery.phase == Phase::Fast {
            self.pace_recovery(0, false);
        }
    }

    /// Whether a tail loss probe repaired a loss that nothing else shows: it is answered as any other
    /// (RFC 8985 section 7.4.2).
    fn judge_probe(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, news: &News, duplicate: bool) -> bool {
        if news.acked > 0 {
            self.pending.remove(Pending::TAIL);
        }
        let plain = duplicate && header.options.sack.is_empty();
        let repaired = self.recovery.tail.on_ack(self.snd.una, news, plain);
        if repaired {
            // (In recovery there is no probe.)
            let (oldest, in_flight) = (self.snd.una - news.acked, self.snd.in_flight() + news.acked);
            if self.answer_loss(ctx, oldest, None, in_flight) {
                self.recovery.undo.forget();
            }
        }
        repaired
    }

    /// Whether the recovery that is under way, or was the last one, turns out to be spurious; then takes it back.
    fn judge_recovery(&mut self, ctx: &mut Ctx<'_>, news: &News, duplicate: bool) -> bool {
        let recovering = self.recovery.phase != Phase::Open;
        let by_order = self.recovery.frto != Frto::Off && self.examine_timeout(ctx, news, duplicate);
        let by_time = recovering && self.recovery.undo.is_original(news);
        let by_report = news.duplicate.is_some_and(|octets| self.recovery.undo.on_dsack(octets));
        let spurious = by_order || by_time || by_report;
        if spurious {
            self.undo_recovery(ctx, news);
        }
        spurious
    }

    fn examine_timeout(&mut self, ctx: &Ctx<'_>, news: &News, duplicate: bool) -> bool {
        let standing = Standing {
            una: self.snd.una,
            high: self.recovery.high,
            sack: self.agreed.sack,
            duplicate,
            fresh: self.is_fresh_sendable(ctx),
        };
        self.recovery.frto.on_ack(news, &standing)
    }

    /// The originals arrived: threshold and marks are what they were before, and the window soon is (RFC 4015).
    fn undo_recovery(&mut self, ctx: &mut Ctx<'_>, news: &News) {
        let Some(episode) = self.recovery.undo.take() else { return };
        self.rack.on_spurious(news);
        if episode.timeout {
            ctx.counters.spurious_timeouts += 1;
            // RFC 4015 section 3.2, step 8: the way has become longer than it was thought to be.
            if let Some(rtt_us) = news.rtt_us {
                self.rtt.reseed(rtt_us);
            }
        } else {
            ctx.counters.spurious_recoveries += 1;
            ctx.counters.reordering_seen += u64::from(self.rack.on_reordering());
        }
        if self.recovery.phase != Phase::Open {
            self.recovery.phase = Phase::Open;
            // It sent nothing twice of what is yet to be acknowledged.
            self.recovery.high = self.snd.una.saturating_sub(1);
            self.recovery.dup_acks = 0;
            self.recovery.frto = Frto::Off;
            self.snd.restore_lost(ctx.segments);
            self.snd.forget_repairs(ctx.segments);
        }
        if let Some(before) = episode.reduced {
            // RFC 4015 section 3.2, step 9.
            let burst = news.acked.min(u64::from(initial_window(self.emss)));
            self.congestion.undo(ctx.now, saturated(self.snd.pipe() + burst));
            self.reduction.take_back(before);
        }
    }

    /// All that was in flight when recovery began is acknowledged.
    fn end_recovery(&mut self, ctx: &mut Ctx<'_>) {
        self.recovery.phase = Phase::Open;
        self.recovery.dup_acks = 0;
        self.recovery.frto = Frto::Off;
        self.rack.on_recovered();
        self.snd.forget_repairs(ctx.segments);
    }

    /// Marks what must be lost, and starts recovery when that is news. Returns whether anything was.
    fn detect_loss(&mut self, ctx: &mut Ctx<'_>) -> bool {
        let open = self.recovery.phase == Phase::Open;
        let mut latest = None;
        let lost = if self.agreed.sack {
            let detected = self.detect_overtaken(ctx);
            self.timers.reorder = detected.next;
            ctx.counters.lost_retransmits += u64::from(detected.lost_again);
            latest = detected.latest;
            detected.lost > 0
        } else {
            // RFC 6582 section 3.2, step 2: duplicates of what an earlier recovery sent twice prove nothing, and they
            // come until something beyond that is acknowledged.
            let fresh = self.snd.una > self.recovery.high;
            open && fresh && self.recovery.dup_acks >= DUP_THRESHOLD && self.snd.mark_head_lost(ctx.segments)
        };
        if lost && open {
            self.start_recovery(ctx, latest);
        } else if let Some(latest) = latest {
            self.answer_loss_in_recovery(ctx, latest);
        }
        lost
    }

    /// RFC 8985 section 6.2, steps 4 and 5. Mostly nothing was overtaken: then for how long it might be need not be known.
    fn detect_overtaken(&mut self, ctx: &mut Ctx<'_>) -> Detected {
        if !self.snd.is_overtaken(ctx.segments, &self.rack) {
            return Detected::default();
        }
        let window = self.reordering_window();
        self.snd.detect_lost(ctx.segments, &self.rack, window, ctx.now)
    }

    /// How long RACK lets a segment be overtaken.
    pub(super) fn reordering_window(&self) -> Duration {
        self.rack.reordering_window(&Circumstances {
            recovering: self.recovery.phase != Phase::Open,
            sacked_segments: self.snd.sacked_segments,
            min_rtt_us: self.rtt.min_rtt_us(),
            srtt_us: self.rtt.srtt_us(),
        })
    }

    /// `latest`: the latest transmission that was lost, where it is known.
    fn start_recovery(&mut self, ctx: &mut Ctx<'_>, latest: Option<Sent>) {
        ctx.counters.fast_retransmits += 1;
        let in_flight = self.snd.in_flight();
        // What limited transmit let out beyond the window does not count (RFC 5681 section 3.2, step 2).
        let beyond = in_flight.saturating_sub(u64::from(self.congestion.cwnd()));
        let limited = beyond.min(u64::from((DUP_THRESHOLD - 1) * self.emss));
        let before = self.reduction;
        let reduced = self.answer_loss(ctx, self.snd.una, latest, in_flight - limited).then_some(before);
        self.recovery.phase = Phase::Fast;
        self.recovery.high = self.snd.nxt;
        self.recovery.prr = Prr::new(in_flight);
        self.recovery.undo.start(self.snd.una, self.snd.nxt, false, reduced);
        self.forget_probe();
    }

    /// The timer expired (RFC 6298 section 5.4 to 5.6, RFC 5681 section 3.1).
    pub(super) fn on_retransmission_timeout(&mut self, ctx: &mut Ctx<'_>) {
        ctx.counters.rto_expired += 1;
        let was = self.recovery.phase;
        let in_flight = self.snd.in_flight();
        let oldest = self.snd.head.map(|key| ctx.segments.get(key).sent);
        let untried = self.snd.mark_timed_out(ctx.segments, self.lost_before(ctx));
        self.timers.reorder = None;
        let timeout = match was {
            Phase::Loss if !untried => Timeout::Again,
            Phase::Open | Phase::Fast if self.reduction.answers(self.snd.una, oldest) => Timeout::Answered,
            _ => Timeout::Congestion,
        };
        self.congestion.on_timeout(ctx.now, saturated(in_flight), timeout);
        if timeout != Timeout::Again {
            self.recovery.undo.start(self.snd.una, self.snd.nxt, true, Some(self.reduction));
        }
        self.on_reduced(true);
        // Timestamps tell sooner, and for each acknowledgement.
        self.recovery.frto.on_timeout(was == Phase::Open && !self.agreed.timestamps);
        self.recovery.phase = Phase::Loss;
        self.recovery.high = self.snd.nxt;
        self.recovery.dup_acks = 0;
        self.forget_probe();
        self.rtt.back_off();
        self.timers.patience = ctx.now + self.rtt.rto();
    }

    /// What was sent by then and not acknowledged at a timeout is lost (RFC 8985 section 6.3).
    fn lost_before(&self, ctx: &Ctx<'_>) -> Instant {
        if !self.agreed.sack {
            return ctx.now;
        }
        ctx.now - (self.rack.lost_at(Instant::ZERO, self.reordering_window()) - Instant::ZERO)
    }

    fn forget_probe(&mut self) {
        self.recovery.tail.forget();
        self.pending.remove(Pending::TAIL);
    }

    /// Tells congestion control what was delivered, outside of fast recovery.
    fn grow_window(&mut self, ctx: &Ctx<'_>, header: &TcpHeader, before: Before, news: &News) {
        let (cwnd, in_flight) = (self.congestion.cwnd(), saturated(before.pipe));
        let ece = self.echoes_marks(header);
        let used = match cwnd < self.congestion.ssthresh() {
            // Slow start doubles the window, so half of it in use is all that could be.
            true => in_flight >= cwnd / 2,
            false => in_flight.saturating_add(self.emss) >= cwnd,
        };
        self.congestion.on_ack(&Ack {
            now: ctx.now,
            acked: saturated(news.acked),
            delivered: saturated(news.delivered),
            una: self.snd.una,
            nxt: self.snd.nxt,
            rtt_us: news.rtt_us.map(saturated),
            // What tells of congestion is no reason to send more.
            cwnd_limited: used && !ece,
            srtt_us: self.rtt.srtt_us(),
            ece,
            paced: self.pacing(ctx).is_some(),
        });
    }

    /// Octets believed to be in the network.
    pub(super) fn pipe(&self) -> u64 {
        let counts = !self.agreed.sack && self.recovery.phase != Phase::Loss;
        let left = if counts { u64::from(self.recovery.dup_acks) * u64::from(self.emss) } else { 0 };
        self.snd.pipe().saturating_sub(left)
    }

    /// What may be in flight.
    pub(super) fn cwnd(&self) -> u64 {
        match self.recovery.phase {
            Phase::Fast => self.recovery.prr.cwnd(),
            Phase::Open | Phase::Loss => u64::from(self.congestion.cwnd()),
        }
    }
}

pub(super) fn saturated(octets: u64) -> u32 {
    octets.min(u64::from(u32::MAX)) as u32
}
