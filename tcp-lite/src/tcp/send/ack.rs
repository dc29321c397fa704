//! Processes acknowledgements: updates the peer's window, the send queue and the round-trip times, and reads
//! SACK blocks (RFC 9293 section 3.10.7.4, RFC 2018, RFC 2883, RFC 7323 section 4). Loss recovery is in
//! `loss/`.
//!
//! These types describe one acknowledgement:
//!
//! | type | contents | made by | used by |
//! |---|---|---|---|
//! | [`AckInfo`] | the fields of the acknowledging segment | `connection/input.rs`, `connection/predicted.rs` | [`SendHalf::on_ack`], `SendHalf::on_usual_ack` |
//! | [`Handshake`] | the fields of the segment that establishes the connection | `connection/open.rs` | [`SendHalf::establish`] |
//! | [`PriorSendState`] | the state before the acknowledgement | `on_ack` | `on_ack` |
//! | [`AckSample`] | what the acknowledgement reveals about the send queue | `on_ack`, `queue/` | [`LossRecovery::on_ack`](super::LossRecovery::on_ack) and its algorithms |
//! | [`AckKind`] | whether the acknowledgement is a duplicate | `on_ack` | [`LossRecovery::on_ack`](super::LossRecovery::on_ack) |
//! | [`RateSample`] | what decides how the window may grow | `on_ack`, `on_usual_ack` | [`RateControl::on_ack`](super::RateControl::on_ack) |

use super::ack_sample::{AckSample, RetransmitFilter, is_before};
use super::loss::AckKind;
use super::rate::{RateSample, micros_since};
use super::{Pending, SendHalf};
use crate::Duration;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::SackBlock;
use crate::tcp::timestamp_clock::rtt_us;

/// The fields of an acceptable segment that concern the sending half.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct AckInfo<'a> {
    /// The position up to which the peer acknowledges, at most SND.NXT.
    pub(in crate::tcp) ack: u64,
    /// The segment's position, and the number of positions that the segment occupies.
    pub(in crate::tcp) pos: i64,
    pub(in crate::tcp) len: usize,
    /// The window field as the header has it. The sending half applies the window scale, because the segment
    /// is no SYN (RFC 7323 section 2.2).
    pub(in crate::tcp) window: u16,
    pub(in crate::tcp) sack: &'a [SackBlock],
    /// TSecr; `None` if the segment has no timestamps.
    pub(in crate::tcp) echo: Option<u32>,
    /// True if the segment echoes marks (ECE).
    pub(in crate::tcp) ece: bool,
}

/// The fields of the segment that establishes a connection, as far as they concern the sending half.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Handshake {
    /// The segment's position.
    pub(in crate::tcp) pos: i64,
    /// The segment's window field, which is not scaled if the segment is a SYN.
    pub(in crate::tcp) window: u16,
    pub(in crate::tcp) is_syn: bool,
    /// TSecr; `None` if the segment has no timestamps.
    pub(in crate::tcp) echo: Option<u32>,
}

/// The state of the sending half before an acknowledgement is processed.
#[derive(Clone, Copy, Debug)]
struct PriorSendState {
    una: u64,
    outstanding: u64,
    pipe: u64,
}

impl SendHalf {
    /// Called when our SYN is acknowledged and the peer's SYN has arrived.
    pub(in crate::tcp) fn establish(&mut self, ctx: &mut Ctx<'_>, segment: &Handshake) {
        let syn_lost = self.syn_sends() > 1;
        let sample_us = match self.loss.syn_sends() {
            // With a SYN cookie, the time of the SYN-ACK is not known.
            0 => None,
            1 => Some(micros_since(ctx.now, self.loss.syn_sent_at())),
            // If our SYN was sent more than once, only an echo of the last SYN counts. An echo of an earlier
            // SYN is ambiguous: either the path is long, or an answer was lost and the sample includes a
            // retransmission timeout. A sample of several seconds would distort the RTT for a long time.
            _ => self
                .echo_ms(segment.echo)
                .filter(|echo_ms| !is_before(*echo_ms, self.loss.syn_sent_at().total_millis() as u32))
                .and_then(|echo_ms| rtt_us(ctx.now, echo_ms, ctx.config.rto_max)),
        };
        self.rate.establish(ctx.now, ctx.config, self.path.emss(), (sample_us, syn_lost));
        if sample_us.is_some() {
            self.loss.on_rtt_sample();
        }
        self.pending.remove(Pending::SYN);
        self.queue.positions_mut().on_syn_acked();
        if self.path.start(ctx, self.agreed.sack) {
            self.on_emss_lowered(ctx);
        }
        let shift = if segment.is_syn { 0 } else { self.agreed.window_scale.unwrap_or(0) };
        self.queue.window_mut().establish(segment.pos, u64::from(segment.window) << shift);
        self.loss.on_established(ctx.now);
    }

    /// Called when the peer sent a segment with a sequence number below RCV.NXT, which is a duplicate or a
    /// probe. (Acceptable segments are passed to [`on_ack`](Self::on_ack).)
    #[inline]
    pub(in crate::tcp) fn on_heard(&mut self) {
        self.path.on_heard();
    }

    /// The fast path of [`on_ack`](Self::on_ack) for the usual acknowledgement, with the same result. In the
    /// usual case, nothing is in flight, or each acknowledged segment was sent once, in order, outside of any
    /// recovery and outside of a path MTU search. The caller passes only acknowledgements without SACK blocks
    /// and without ECE, and only if our FIN was not sent. For any other acknowledgement, the function returns
    /// `false` and changes nothing.
    #[inline]
    pub(in crate::tcp) fn on_usual_ack(&mut self, ctx: &mut Ctx<'_>, segment: &AckInfo<'_>) -> bool {
        let AckInfo { ack, pos, window, .. } = *segment;
        let (una, outstanding) = (self.queue.una(), self.queue.outstanding());
        let bytes = u64::from(window) << self.agreed.window_scale.unwrap_or(0);
        if ack == una && outstanding == 0 {
            self.rate.advance_pace(ctx.now);
            self.path.on_heard();
            self.queue.update_window(pos, ack, bytes);
            self.on_window(ctx);
            return true;
        }
        if !self.loss.is_idle() || !self.queue.is_orderly() || self.path.searches() {
            return false;
        }
        let Some(run) = self.queue.acknowledge_orderly(ctx.segments, ack) else { return false };
        self.rate.advance_pace(ctx.now);
        self.path.on_heard();
        self.queue.update_window(pos, ack, bytes);
        let ((first, first_end), (end, sent)) = (run.first, run.last);
        let rtt_us = micros_since(ctx.now, sent.at);
        self.rate.sample_rtt(ctx.now, rtt_us);
        self.loss.on_rtt_sample();
        self.on_progress(ctx);
        if self.events.on_acknowledged(run.external) {
            ctx.acknowledged();
        }
        ctx.counters.reordering_seen += u64::from(self.loss.on_run(rtt_us, sent, (first_end, end)));
        // All remaining segments were sent later than the acknowledged segments, so no segment is overtaken
        // (see `rack.rs`).
        debug_assert!(
            !self.loss.is_overtaken(&self.queue, ctx.segments),
            "a segment that was sent later has arrived"
        );
        // No segment is known to be lost or to have arrived, so all outstanding bytes were in flight.
        let rate_sample = RateSample {
            acked: ack - una,
            delivered: end - first,
            rtt_us: Some(rtt_us),
            pipe: outstanding,
            una: self.queue.una(),
            nxt: self.queue.nxt(),
            ece: false,
        };
        self.rate.on_ack(ctx.now, ctx.config, self.path.emss(), &rate_sample);
        self.on_window(ctx);
        true
    }

    /// Processes any acknowledgement. This is the general path of [`on_usual_ack`](Self::on_usual_ack).
    /// Returns whether our FIN has just been acknowledged.
    pub(in crate::tcp) fn on_ack(&mut self, ctx: &mut Ctx<'_>, segment: &AckInfo<'_>) -> bool {
        self.rate.advance_pace(ctx.now);
        self.path.on_heard();
        let AckInfo { ack, pos, len, window, sack, echo, ece } = *segment;
        let ece = ece && self.agreed.ecn;
        if ece {
            let (loss, state) = self.loss_and_state();
            loss.on_ecn_echo(ctx, state, ack);
        }
        let prior = PriorSendState {
            una: self.queue.una(),
            outstanding: self.queue.outstanding(),
            pipe: self.pipe(),
        };
        let bytes = u64::from(window) << self.agreed.window_scale.unwrap_or(0);
        let window_moved = self.queue.update_window(pos, ack, bytes);
        // If nothing is in flight and an acknowledgement acknowledges nothing new, only its window matters.
        if ack == prior.una && prior.outstanding == 0 && sack.is_empty() {
            self.on_window(ctx);
            return false;
        }
        let mut sample = AckSample::new(self.retransmit_filter(ctx, echo));
        let mut mtu_probe_answered = false;
        if self.agreed.sack && !sack.is_empty() {
            mtu_probe_answered = self.learn_sack(ctx, sack, ack, &mut sample);
        }
        if ack > prior.una {
            self.path.gather(ctx, &self.queue, ack);
            self.queue.acknowledge(ctx.segments, ack, &mut sample);
            self.learn_rtt(ctx, &mut sample);
            self.on_progress(ctx);
            if self.events.on_acknowledged(sample.external) {
                ctx.acknowledged();
            }
        }
        let still = ack == prior.una && prior.outstanding > 0 && !mtu_probe_answered;
        let dup_ack = still && (sample.delivered > 0 || len == 0 && !window_moved);
        // An old acknowledgement, which arrives after a later one, does not count as a duplicate, and an
        // answer to a path MTU probe does not either. But segments that such an acknowledgement newly reports
        // in SACK blocks count (RFC 8985 section 6.2).
        if sample.acked > 0 || sample.delivered > 0 || dup_ack || sample.dsack.is_some() {
            let kind = AckKind { dup_ack, plain: dup_ack && sack.is_empty() };
            self.respond_to_ack(ctx, &sample, kind, (prior.pipe, ece));
        }
        let fin_acked = self.queue.positions_mut().take_fin_acked();
        self.on_window(ctx);
        fin_acked
    }

    /// Passes an acknowledgement that reports something new, or is a duplicate, to loss recovery, and then to
    /// rate control. `pipe` is the number of bytes in the network before the acknowledgement arrived.
    fn respond_to_ack(
        &mut self,
        ctx: &mut Ctx<'_>,
        sample: &AckSample,
        kind: AckKind,
        (pipe, ece): (u64, bool),
    ) {
        let (loss, state) = self.loss_and_state();
        let grows = loss.on_ack(ctx, state, sample, kind);
        let rate_sample = RateSample {
            acked: sample.acked,
            delivered: sample.delivered,
            rtt_us: sample.rtt_us,
            pipe,
            una: self.queue.una(),
            nxt: self.queue.nxt(),
            ece,
        };
        if grows {
            self.rate.on_ack(ctx.now, ctx.config, self.path.emss(), &rate_sample);
        } else if sample.acked > 0 {
            self.rate.observe_ack(&rate_sample);
        }
    }

    /// Called when the peer's window, or the room in the queue, may have changed: restarts the user timeout
    /// if the window is too small, and reports `Event::Writable` if necessary.
    #[inline]
    fn on_window(&mut self, ctx: &mut Ctx<'_>) {
        if self.queue.is_blocked_by_window(ctx.segments) {
            // The peer is alive, but its window is too small. A small window is not a lack of progress (RFC
            // 9293 section 3.8.6.1).
            self.loss.restart_user_timeout(ctx.now);
        }
        self.raise_writable(ctx);
    }

    /// Marks the segments in SACK blocks. A first block below the acknowledgement, or inside the second
    /// block, is a D-SACK, which reports duplicate bytes (RFC 2883 section 4). Blocks that are not within the
    /// sent and unacknowledged bytes are skipped. Returns whether the D-SACK answers a path MTU probe; such a
    /// D-SACK has no other meaning.
    fn learn_sack(
        &mut self,
        ctx: &mut Ctx<'_>,
        sack: &[SackBlock],
        ack: u64,
        sample: &mut AckSample,
    ) -> bool {
        let mut mtu_probe_answered = false;
        let positions = *self.queue.positions();
        let (una, nxt) = (positions.una(), positions.nxt());
        let span = |(start, end)| (positions.position(start), positions.position(end));
        let mut blocks = sack.iter().map(|block| span(*block)).peekable();
        if let Some(&(start, end)) = blocks.peek() {
            let second = sack.get(1).map(|block| span(*block));
            let inside = second.is_some_and(|(from, to)| from <= start && end <= to);
            if start < end && (start < ack as i64 || inside) {
                blocks.next();
                // The SYN is not payload, and bytes that were never sent cannot be duplicates.
                if start > 0 && end <= nxt as i64 {
                    ctx.counters.dsack_received += 1;
                    let (start, end) = (start as u64, end as u64);
                    mtu_probe_answered = self.path.take_mtu_probe_answer(ctx, start, end);
                    if mtu_probe_answered {
                        self.rate.set_emss(self.path.emss());
                    }
                    sample.dsack = Some((start, end)).filter(|_| !mtu_probe_answered);
                }
            }
        }
        // The blocks are handled from the last to the first. Usually the last blocks repeat the last blocks
        // of the previous acknowledgement. Then only the last block has to be searched for, and each other
        // block except the newest is found at once (see `queue/index.rs`).
        for (start, end) in blocks.rev() {
            if (una as i64) <= start && start < end && end <= nxt as i64 {
                self.queue.sent().sack(ctx.segments, (start as u64, end as u64), sample);
            }
        }
        mtu_probe_answered
    }

    /// Returns the filter that distinguishes the transmissions of a retransmitted segment.
    #[inline]
    fn retransmit_filter(&self, ctx: &Ctx<'_>, echo: Option<u32>) -> RetransmitFilter {
        let lowest = Duration::from_micros(u64::from(self.rate.min_rtt_us()));
        RetransmitFilter { echo_ms: self.echo_ms(echo), horizon: ctx.now - lowest }
    }

    /// The echoed timestamp as a time of our clock in milliseconds; `None` if there is no echo, or if
    /// timestamps are not used.
    #[inline]
    fn echo_ms(&self, echo: Option<u32>) -> Option<u32> {
        let echo = echo.filter(|_| self.agreed.timestamps)?;
        Some(self.clock.sent_ms(echo))
    }

    /// Measures the round-trip time. By Karn's rule, our clock is used only if no acknowledged segment was
    /// sent more than once and the last of them was not SACKed before. Otherwise the echoed timestamp is
    /// used, if there is one.
    fn learn_rtt(&mut self, ctx: &Ctx<'_>, sample: &mut AckSample) {
        sample.rtt_us = match sample.sampled {
            Some(sent_at) => Some(micros_since(ctx.now, sent_at)),
            None => sample.echo_ms().and_then(|echo_ms| rtt_us(ctx.now, echo_ms, ctx.config.rto_max)),
        };
        if let Some(rtt_us) = sample.rtt_us {
            self.rate.sample_rtt(ctx.now, rtt_us);
            self.loss.on_rtt_sample();
        }
    }

    fn on_progress(&mut self, ctx: &Ctx<'_>) {
        self.path.on_progress();
        let silly = self.queue.is_window_silly(ctx.segments);
        self.loss.on_progress(ctx.now, self.rate.srtt(), silly);
    }
}
