//! An acknowledgement arrives: the peer's window, SACK blocks, the send queue, round-trip times
//! (RFC 9293 section 3.10.7.4, RFC 2018, RFC 2883, RFC 7323 section 4). What follows from it is in `recovery.rs`.

use super::ctx::Ctx;
use super::header::TcpHeader;
use super::news::{Judge, News};
use super::open::micros_since;
use super::tcb::{Fin, Tcb};
use crate::Duration;

/// The connection as an acknowledgement found it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before {
    pub(super) una: u64,
    pub(super) in_flight: u64,
    pub(super) pipe: u64,
}

impl Tcb {
    /// An acceptable acknowledgement up to `ack` (at most SND.NXT), on a segment at `pos` of `len` positions.
    pub(super) fn on_ack(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, ack: u64, pos: i64, len: usize) {
        let before = Before { una: self.snd.una, in_flight: self.snd.in_flight(), pipe: self.pipe() };
        let window_moved = self.update_window(header, ack, pos);
        let mut news = News::new(self.judge(ctx, header));
        let mut probe_answered = false;
        if self.agreed.sack && !header.options.sack.is_empty() {
            probe_answered = self.learn_sack(ctx, header, ack, &mut news);
        }
        if ack > before.una {
            self.gather(ctx, ack);
            self.snd.acknowledge(ctx.segments, ack, &mut news);
            self.learn_rtt(ctx, &mut news);
            self.on_progress(ctx);
        }
        let still = ack == before.una && before.in_flight > 0 && !probe_answered;
        let duplicate = still && (news.delivered > 0 || len == 0 && !window_moved);
        if news.acked > 0 || duplicate || news.duplicate.is_some() {
            self.recover(ctx, header, &news, before, duplicate);
        }
        if self.fin != Fin::Acked && self.snd.una > self.snd.end {
            self.on_fin_acked(ctx);
        }
        if self.is_blocked_by_window(ctx) {
            // The peer lives, it only has no room: that is not a lack of progress (RFC 9293 section 3.8.6.1).
            self.timers.progress = ctx.now;
        }
        self.check_writable(ctx);
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

    /// Marks what SACK blocks name. A first block below the acknowledgement, or inside of the second, names what
    /// arrived twice (RFC 2883 section 4). Blocks outside of what is in flight are nonsense and skipped.
    /// Returns whether what arrived twice is a probe of the path's MTU, which is no news of anything else.
    fn learn_sack(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, ack: u64, news: &mut News) -> bool {
        let mut probe_answered = false;
        let (una, nxt, space) = (self.snd.una, self.snd.nxt, self.snd_space);
        let span = |(start, end)| (space.pos(start, una), space.pos(end, una));
        let mut blocks = header.options.sack.iter().map(|block| span(*block)).peekable();
        if let Some(&(start, end)) = blocks.peek() {
            let second = header.options.sack.get(1).map(|block| span(*block));
            let inside = second.is_some_and(|(from, to)| from <= start && end <= to);
            if start < end && (start < ack as i64 || inside) {
                blocks.next();
                // The SYN is no payload; what was never sent did not arrive twice.
                if start > 0 && end <= nxt as i64 {
                    ctx.counters.dsack_received += 1;
                    let (start, end) = (start as u64, end as u64);
                    probe_answered = self.is_probe_answered(ctx, start, end);
                    news.duplicate = Some((start, end)).filter(|_| !probe_answered);
                }
            }
        }
        for (start, end) in blocks {
            if (una as i64) <= start && start < end && end <= nxt as i64 {
                self.snd.sack(ctx.segments, start as u64, end as u64, news);
            }
        }
        probe_answered
    }

    /// What tells transmissions of one segment apart.
    fn judge(&self, ctx: &Ctx<'_>, header: &TcpHeader) -> Judge {
        let lowest = Duration::from_micros(u64::from(self.rtt.min_rtt_us()));
        Judge { echo_ms: self.echo_ms(header), horizon: ctx.now - lowest }
    }

    /// The echoed timestamp, as a time of our clock in milliseconds.
    pub(super) fn echo_ms(&self, header: &TcpHeader) -> Option<u32> {
        let (_, echo) = header.options.timestamps.filter(|_| self.agreed.timestamps)?;
        Some(echo.wrapping_sub(self.birth.timestamp_offset))
    }

    /// Karn's rule: by the clock when what was acknowledged was sent once, else by the echoed timestamp.
    fn learn_rtt(&mut self, ctx: &Ctx<'_>, news: &mut News) {
        news.rtt_us = match news.sampled {
            Some(sent_at) => Some(micros_since(ctx.now, sent_at)),
            None => news.echo_ms().and_then(|echo_ms| self.timestamp_rtt_us(ctx, echo_ms)),
        };
        if let Some(rtt_us) = news.rtt_us {
            self.rtt.sample(ctx.now, rtt_us);
            self.recovery.tail.on_sample();
        }
    }

    /// The RTT by the echoed timestamp, which is unambiguous also for what was sent twice (RFC 7323 section 4).
    pub(super) fn timestamp_rtt_us(&self, ctx: &Ctx<'_>, echo_ms: u32) -> Option<u64> {
        let elapsed_ms = (ctx.now.total_millis() as u32).wrapping_sub(echo_ms);
        // Older than the life of a retransmission, or from the future: not an echo of ours.
        (elapsed_ms as u64 <= ctx.config.rto_max.total_millis()).then(|| u64::from(elapsed_ms.max(1)) * 1000)
    }

    /// Nothing is on its way and the peer's window does not take what is next, or shrank below what is.
    pub(super) fn is_blocked_by_window(&self, ctx: &Ctx<'_>) -> bool {
        let next = self.snd.head.map(|key| ctx.segments.get(key).end());
        next.is_some_and(|end| end > self.window.edge)
    }
}
