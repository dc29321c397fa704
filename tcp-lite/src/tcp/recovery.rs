//! Acknowledgements and what they say of loss: window updates, RTT samples, fast retransmit, NewReno's partial
//! acknowledgements, SACK (RFC 9293 section 3.10.7.4, RFC 5681, RFC 6582, RFC 6675).

use super::congestion::{Ack, CongestionControl, Signal};
use super::ctx::Ctx;
use super::header::TcpHeader;
use super::open::micros_since;
use super::scoreboard::DUP_THRESHOLD;
use super::tcb::{Fin, Tcb};

/// Why segments are being sent again, if they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// They are not.
    #[default]
    Open,
    /// Duplicate or selective acknowledgements.
    Fast,
    /// The timer.
    Loss,
}

/// Loss recovery of one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recovery {
    pub(super) phase: Phase,
    /// What was sent when the last recovery began; it ends when all of that is acknowledged (RFC 6582, `recover`).
    pub(super) high: u64,
    pub(super) dup_acks: u32,
}

/// The queue before an acknowledgement was worked off.
#[derive(Clone, Copy, Debug)]
struct Before {
    in_flight: u64,
    pipe: u64,
    sacked_octets: u64,
}

impl Tcb {
    /// An acceptable acknowledgement up to `ack` (at most SND.NXT), on a segment at `pos` of `len` positions.
    pub(super) fn on_ack(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, ack: u64, pos: i64, len: usize) {
        let before = Before {
            in_flight: self.snd.in_flight(),
            pipe: self.snd.pipe(),
            sacked_octets: self.snd.sacked_octets,
        };
        let una = self.snd.una;
        let window_moved = self.update_window(header, ack, pos);
        let sacked = self.agreed.sack && self.learn_sack(ctx, header);
        if ack > una {
            self.on_new_ack(ctx, header, ack, before);
        } else if before.in_flight > 0 && ack == una && (sacked || len == 0 && !window_moved) {
            self.recovery.dup_acks += 1;
            self.infer_loss(ctx);
        }
        if self.is_blocked_by_window(ctx) {
            // The peer lives, it only has no room: that is not a lack of progress (RFC 9293 section 3.8.6.1).
            self.timers.progress = ctx.now;
        }
        self.check_writable(ctx);
    }

    fn on_new_ack(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, ack: u64, before: Before) {
        let acked = self.snd.acknowledge(ctx.segments, ack);
        let sample_us = match acked.sent_at {
            Some(sent_at) => Some(micros_since(ctx.now, sent_at)),
            None => self.timestamp_rtt_us(ctx, header),
        };
        if let Some(sample_us) = sample_us {
            self.rtt.sample(ctx.now, sample_us);
        }
        self.timers.progress = ctx.now;
        self.timers.persist_backoff = 0;
        self.timers.resend = None;
        let octets = acked.octets.min(u64::from(u32::MAX)) as u32;
        match self.recovery.phase {
            Phase::Open => {
                self.recovery.dup_acks = 0;
                self.grow_window(ctx, header, before, acked.octets, sample_us);
                self.infer_loss(ctx);
            }
            phase if ack >= self.recovery.high => {
                if phase == Phase::Fast {
                    self.congestion.on_recovered(ctx.now);
                }
                self.recovery.phase = Phase::Open;
                self.recovery.dup_acks = 0;
                self.snd.forget_repairs(ctx.segments);
            }
            Phase::Fast => {
                // A partial acknowledgement: what is oldest now is lost, too (RFC 6582 section 3.2, step 3).
                let arrived = (octets / self.emss).max(1);
                self.recovery.dup_acks = self.recovery.dup_acks.saturating_sub(arrived);
                self.snd.mark_head_lost(ctx.segments);
                if self.agreed.sack {
                    self.snd.infer_lost(ctx.segments);
                }
            }
            Phase::Loss => {
                self.recovery.dup_acks = 0;
                self.grow_window(ctx, header, before, acked.octets, sample_us);
            }
        }
        if self.fin != Fin::Acked && self.snd.una > self.snd.end {
            self.on_fin_acked(ctx);
        }
    }

    /// Tells congestion control what was delivered, outside of fast recovery.
    fn grow_window(
        &mut self,
        ctx: &Ctx<'_>,
        header: &TcpHeader,
        before: Before,
        acked: u64,
        rtt_us: Option<u64>,
    ) {
        let (cwnd, in_flight) = (self.congestion.cwnd(), before.pipe.min(u64::from(u32::MAX)) as u32);
        let ece = self.echoes_marks(header);
        let used = match cwnd < self.congestion.ssthresh() {
            // Slow start doubles the window, so half of it in use is all that could be.
            true => in_flight >= cwnd / 2,
            false => in_flight.saturating_add(self.emss) >= cwnd,
        };
        // What was selectively acknowledged before is no news now, and the other way round.
        let delivered = (acked + self.snd.sacked_octets).saturating_sub(before.sacked_octets);
        self.congestion.on_ack(&Ack {
            now: ctx.now,
            acked: acked.min(u64::from(u32::MAX)) as u32,
            delivered: delivered.min(u64::from(u32::MAX)) as u32,
            una: self.snd.una,
            nxt: self.snd.nxt,
            rtt_us: rtt_us.map(|us| us.min(u64::from(u32::MAX)) as u32),
            // What tells of congestion is no reason to send more.
            cwnd_limited: used && !ece,
            srtt_us: self.rtt.srtt_us(),
            ece,
        });
    }

    /// Marks what must be lost, and starts recovery when that is news.
    fn infer_loss(&mut self, ctx: &mut Ctx<'_>) {
        let mut lost = self.agreed.sack && self.snd.infer_lost(ctx.segments);
        // RFC 6582 section 3.2, step 2: duplicates of what an earlier recovery sent twice prove nothing.
        let fresh = self.snd.una >= self.recovery.high;
        if self.recovery.phase == Phase::Open && self.recovery.dup_acks >= DUP_THRESHOLD && fresh {
            lost |= self.snd.mark_head_lost(ctx.segments);
        }
        if lost && self.recovery.phase == Phase::Open {
            ctx.counters.fast_retransmits += 1;
            self.congestion.on_congestion(ctx.now, self.snd.in_flight() as u32, Signal::Loss);
            self.recovery.phase = Phase::Fast;
            self.recovery.high = self.snd.nxt;
            self.timers.resend = None;
        }
    }

    /// Returns whether the window changed.
    fn update_window(&mut self, header: &TcpHeader, ack: u64, pos: i64) -> bool {
        let window = &mut self.window;
        let newer = window.wl1 < pos || window.wl1 == pos && window.wl2 <= ack;
        if ack < self.snd.una || !newer {
            return false;
        }
        let octets = u64::from(header.window) << self.agreed.window_scale.unwrap_or(0);
        let edge = ack + octets;
        let moved = edge != window.edge;
        window.edge = edge;
        window.max = window.max.max(octets);
        window.wl1 = pos;
        window.wl2 = ack;
        moved
    }

    /// Returns whether a SACK block told something new. Blocks outside of what is in flight (D-SACK, nonsense)
    /// are skipped.
    fn learn_sack(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader) -> bool {
        let mut news = false;
        for &(start, end) in &header.options.sack {
            let (una, nxt) = (self.snd.una as i64, self.snd.nxt as i64);
            let start = self.snd_space.pos(start, self.snd.una);
            let end = self.snd_space.pos(end, self.snd.una);
            if una <= start && start < end && end <= nxt {
                news |= self.snd.sack(ctx.segments, start as u64, end as u64);
            }
        }
        news
    }

    /// The RTT by the echoed timestamp, which is unambiguous also for what was sent twice (RFC 7323 section 4).
    pub(super) fn timestamp_rtt_us(&self, ctx: &Ctx<'_>, header: &TcpHeader) -> Option<u64> {
        let (_, echo) = header.options.timestamps?;
        let (now_ms, _) = self.timestamps(ctx)?;
        let elapsed_ms = now_ms.wrapping_sub(echo);
        // Older than the life of a retransmission, or from the future: not an echo of ours.
        (elapsed_ms as u64 <= ctx.config.rto_max.total_millis()).then(|| u64::from(elapsed_ms.max(1)) * 1000)
    }

    /// Nothing is on its way and the peer's window does not take what is next, or shrank below what is.
    fn is_blocked_by_window(&self, ctx: &Ctx<'_>) -> bool {
        let next = self.snd.head.map(|key| ctx.segments.get(key).end());
        next.is_some_and(|end| end > self.window.edge)
    }
}
