//! A segment arrives (RFC 9293 section 3.10.7.4, RFC 5961, RFC 7323 section 5).

use dp::Mbuf;

use super::ctx::Ctx;
use super::header::{Flags, TcpHeader};
use super::tcb::{Challenges, Fin, Pending, State, Tcb, payload_of, seconds};
use crate::facade::TcpSeqNumber;
use crate::ip::Ecn;
use crate::{CloseReason, Duration};

/// TS.Recent is not compared with when older than this (RFC 7323 section 5.5).
const TS_RECENT_LIFE: Duration = Duration::from_secs(24 * 24 * 3600);

/// Answers in a second to bare segments (without payload, SYN, FIN) that are out of place, of an old time or with an old
/// acknowledgement. Each is due (RFC 9293 section 3.10.7.4, RFC 7323 section 5.3, RFC 5961 section 5.2), so that probes are
/// answered and a half-open connection is found; but where acknowledgements overtake each other on both ways, the
/// answers would be answered without end.
const BARE_ANSWERS_PER_SECOND: u16 = 8;

/// What became of a segment.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// Taken in or dropped; answers, if any, wait in [`Tcb::next_transmission`].
    Done,
    /// Send this RST; the connection stays.
    Reset(TcpHeader),
    /// TIME-WAIT, and this SYN may start a new connection: forget this block and treat the SYN as one for the
    /// listener (RFC 9293 section 3.10.7.4, RFC 6191). If there is none, keep the block.
    Reopen,
}

impl Tcb {
    /// Whether nothing is missing in front of `seq`, and nothing is there behind it.
    pub(crate) fn is_next(&self, seq: TcpSeqNumber) -> bool {
        self.state == State::Established && self.rcv.is_next(seq)
    }

    /// A segment with a good checksum. Its payload, which may be empty, or a chain, comes with how many segments it came in: more than
    /// one only where they say the same and the first [`is_next`](Self::is_next).
    pub(crate) fn on_segment(
        &mut self,
        ctx: &mut Ctx<'_>,
        header: &TcpHeader,
        ecn: Ecn,
        (payload, segments): (Mbuf, usize),
    ) -> Verdict {
        match self.state {
            // The connection is known to nobody any more, its own RST may be on the way.
            State::Closed => return header.reset(payload.len()).map_or(Verdict::Done, Verdict::Reset),
            State::SynSent => return self.on_segment_in_syn_sent(ctx, header),
            State::SynReceived if self.is_syn_again(header) && header.ack.is_none() => {
                // Our SYN-ACK was lost. (The SYN-ACK of a simultaneous open goes on, as the ACK it contains.)
                // A peer that no longer asks for ECN does not know that we agreed (RFC 3168 section 6.1.1).
                if !self.agrees_on_ecn(ctx.config, header) {
                    self.decline_ecn();
                }
                self.learn_timestamp(ctx, header, 0);
                self.pending |= Pending::SYN;
                return Verdict::Done;
            }
            State::TimeWait if self.may_reopen(ctx.config, header) => return Verdict::Reopen,
            _ => {}
        }
        self.on_segment_synchronized(ctx, header, ecn, (payload, segments))
    }

    fn on_segment_synchronized(
        &mut self,
        ctx: &mut Ctx<'_>,
        header: &TcpHeader,
        ecn: Ecn,
        (payload, segments): (Mbuf, usize),
    ) -> Verdict {
        let flags = header.flags;
        let syn_ack_again = self.state == State::SynReceived && self.is_syn_again(header);
        // The payload of a SYN stands one further; ours acknowledges the SYN alone, so that it comes again.
        let pos = self.rcv.space.pos(header.seq, self.rcv.nxt) + i64::from(syn_ack_again);
        let octets = if syn_ack_again { 0 } else { payload.len() };

        // Whoever answers our SYN with an acknowledgement of something else has another connection in mind, wherever in
        // the sequence it stands: a challenge would begin an exchange of them (RFC 9293 section 3.5.2, group 2).
        let reset = flags.contains(Flags::RST);
        if self.state == State::SynReceived && !reset && !self.acknowledges_our_syn(header) {
            return header.reset(octets).map_or(Verdict::Done, Verdict::Reset);
        }
        if self.is_old_by_timestamp(ctx, header) {
            ctx.counters.rx_old_timestamps += 1;
            self.answer_misplaced(ctx, header, octets);
            return Verdict::Done;
        }
        let len = octets + usize::from(flags.contains(Flags::FIN));
        if !self.is_acceptable(pos, len) {
            self.on_unacceptable(ctx, header, pos, octets);
            return Verdict::Done;
        }
        if reset {
            self.on_reset(ctx, pos);
            return Verdict::Done;
        }
        if flags.contains(Flags::SYN) && !syn_ack_again {
            self.challenge(ctx);
            return Verdict::Done;
        }
        let Some(ack) = header.ack else { return Verdict::Done };
        let ack = self.snd_space.pos(ack, self.snd.una);
        if self.state == State::SynReceived {
            self.establish(ctx, header);
            if syn_ack_again {
                self.pending |= Pending::ACK;
            }
            self.pending.remove(Pending::SYN);
        }
        // RFC 5961 section 5.2: neither what was never sent nor what is too old.
        let oldest = self.snd.una as i64 - self.window.max as i64;
        if ack > self.snd.nxt as i64 || ack < oldest {
            self.answer_misplaced(ctx, header, octets);
            return Verdict::Done;
        }
        // Only now: whoever has but guessed a sequence number must not set the clock that PAWS goes by.
        self.on_alive(ctx);
        self.pace.advance(ctx.now);
        self.path.on_heard();
        self.learn_timestamp(ctx, header, pos);
        let ack = ack.max(0) as u64;
        if self.echoes_marks(header) {
            self.on_ecn_echo(ctx, ack);
        }
        self.on_ack(ctx, header, ack, pos, len);
        if octets > 0 {
            self.on_ecn_data(ctx, header, ecn);
        }

        if matches!(self.state, State::Established | State::FinWait1 | State::FinWait2) {
            self.on_payload(ctx, flags.contains(Flags::FIN), pos, (payload, segments));
        } else if self.state == State::TimeWait && flags.contains(Flags::FIN) {
            self.pending |= Pending::ACK;
        }
        self.arm_resend(ctx);
        Verdict::Done
    }

    /// Hands up what is new, takes the FIN when the frontier reaches it, and decides when to acknowledge.
    fn on_payload(&mut self, ctx: &mut Ctx<'_>, fin: bool, pos: i64, (payload, segments): (Mbuf, usize)) {
        let octets = payload.len();
        if octets > 0 {
            let arrival = self.rcv.take(ctx, pos, payload);
            if arrival.advanced {
                self.unacked_segments = self.unacked_segments.saturating_add(segments as u32);
                self.unacked_octets = self.unacked_octets.saturating_add(octets as u32);
            }
            // Two full segments may have come as one: full is what the options leave of the MSS.
            let full = payload_of(self.birth.mss, self.agreed.timestamps);
            let enough = self.unacked_segments >= 2 || self.unacked_octets >= 2 * full;
            if arrival.refused {
                // It changes nothing that was not said already: an answer for each would be the attacker's to have.
                self.challenge(ctx);
            } else if arrival.urgent || enough {
                self.pending |= Pending::ACK;
            } else if self.timers.delayed_ack.is_none() {
                self.timers.delayed_ack = Some(ctx.now + ctx.config.delayed_ack);
            }
        }
        let end = pos + octets as i64;
        if fin {
            self.pending |= Pending::ACK;
            if end >= self.rcv.nxt as i64 && end <= self.rcv.edge as i64 {
                self.rcv.take_fin(ctx.reorder, end as u64);
            }
        }
        if self.rcv.is_finished() {
            self.on_peer_closed(ctx);
        }
    }

    /// The peer's FIN was reached in order.
    fn on_peer_closed(&mut self, ctx: &mut Ctx<'_>) {
        self.pending |= Pending::ACK;
        ctx.peer_closed();
        match self.state {
            State::Established => self.state = State::CloseWait,
            State::FinWait1 => self.state = State::Closing,
            State::FinWait2 => self.enter_time_wait(ctx),
            _ => {}
        }
    }

    /// Our FIN was acknowledged.
    pub(super) fn on_fin_acked(&mut self, ctx: &mut Ctx<'_>) {
        self.fin = Fin::Acked;
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => self.enter_time_wait(ctx),
            State::LastAck => self.terminate(ctx, CloseReason::Graceful, false),
            _ => {}
        }
    }

    /// RFC 9293 table 6, by overlap. A window's right edge itself is acceptable for a segment without length: a
    /// sender that filled our window acknowledges from there.
    fn is_acceptable(&self, pos: i64, len: usize) -> bool {
        let (nxt, edge) = (self.rcv.nxt as i64, self.rcv.edge as i64);
        if pos == nxt {
            // With a zero window the octets are refused, but the acknowledgement counts.
            return true;
        }
        match len {
            0 => nxt < pos && pos <= edge,
            len => pos < edge && pos + len as i64 > nxt,
        }
    }

    fn on_unacceptable(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, pos: i64, octets: usize) {
        if header.flags.contains(Flags::RST) {
            return;
        }
        if pos < self.rcv.nxt as i64 {
            // The peer is there: a duplicate, or a probe of ours or of the window.
            self.on_alive(ctx);
            self.path.on_heard();
            ctx.counters.rx_duplicate_octets += octets as u64;
            if octets > 0 {
                self.rcv.report_duplicate(pos, octets);
            }
        }
        if self.state == State::TimeWait && header.flags.contains(Flags::FIN) {
            self.on_fin_in_time_wait(ctx, pos + octets as i64);
        }
        self.answer_misplaced(ctx, header, octets);
    }

    /// An ACK in answer to a segment whose numbers do not fit, seldom to a bare one.
    fn answer_misplaced(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, octets: usize) {
        if self.is_syn_again(header) {
            self.on_late_syn(header);
        }
        if octets > 0 || header.flags.intersects(Flags::SYN | Flags::FIN) {
            return self.challenge(ctx);
        }
        let challenges = self.challenges_now(ctx);
        challenges.bare = challenges.bare.saturating_add(1);
        if challenges.bare <= BARE_ANSWERS_PER_SECOND {
            self.challenge(ctx);
        } else {
            ctx.counters.challenge_acks_withheld += 1;
        }
    }

    /// An acceptable RST: exactly at the frontier it counts, elsewhere in the window it is questioned
    /// (RFC 5961 section 3.2). TIME-WAIT ignores it.
    fn on_reset(&mut self, ctx: &mut Ctx<'_>, pos: i64) {
        if self.state == State::TimeWait {
            return;
        }
        if pos != self.rcv.nxt as i64 {
            return self.challenge(ctx);
        }
        let reason = match self.state {
            State::SynReceived => CloseReason::Refused,
            _ => CloseReason::Reset,
        };
        self.terminate(ctx, reason, false);
    }

    /// An ACK in answer to what should not be, but not too often (RFC 5961 section 7). Each connection counts for
    /// itself: what all shared would tell one of them about the others (CVE-2016-5696).
    fn challenge(&mut self, ctx: &mut Ctx<'_>) {
        let challenges = self.challenges_now(ctx);
        challenges.all = challenges.all.saturating_add(1);
        if u32::from(challenges.all) <= ctx.config.challenge_acks_per_second {
            ctx.counters.challenge_acks += 1;
            self.pending |= Pending::ACK;
        } else {
            ctx.counters.challenge_acks_withheld += 1;
        }
    }

    /// What is counted in this second.
    fn challenges_now(&mut self, ctx: &Ctx<'_>) -> &mut Challenges {
        let second = seconds(ctx.now);
        if self.challenges.second != second {
            self.challenges = Challenges { second, ..Challenges::default() };
        }
        &mut self.challenges
    }

    /// TS.Recent (RFC 7323 section 4.3), from a segment at `pos` that was found acceptable. An outdated one is replaced by
    /// whatever the peer's clock says now (section 5.5).
    fn learn_timestamp(&mut self, ctx: &Ctx<'_>, header: &TcpHeader, pos: i64) {
        if let Some((value, _)) = header.options.timestamps
            && self.agreed.timestamps
            && pos <= self.last_ack_sent as i64
            && (value.wrapping_sub(self.ts_recent) as i32 >= 0 || self.is_ts_recent_outdated(ctx))
        {
            self.ts_recent = value;
            self.ts_recent_at = seconds(ctx.now);
        }
    }

    fn is_ts_recent_outdated(&self, ctx: &Ctx<'_>) -> bool {
        u64::from(seconds(ctx.now).wrapping_sub(self.ts_recent_at)) >= TS_RECENT_LIFE.secs()
    }

    /// Whether a segment in SYN-RECEIVED that acknowledges anything acknowledges our SYN, which was sent.
    fn acknowledges_our_syn(&self, header: &TcpHeader) -> bool {
        header.ack.is_none_or(|ack| self.snd.nxt > 0 && ack == self.snd_space.seq(1))
    }

    fn is_syn_again(&self, header: &TcpHeader) -> bool {
        header.flags.contains(Flags::SYN)
            && !header.flags.contains(Flags::RST)
            && header.seq == self.rcv.space.seq(0)
    }

    /// PAWS (RFC 7323 section 5.2). A segment without timestamps passes, as with most stacks.
    fn is_old_by_timestamp(&self, ctx: &Ctx<'_>, header: &TcpHeader) -> bool {
        let Some((value, _)) = header.options.timestamps else { return false };
        self.agreed.timestamps
            && !header.flags.contains(Flags::RST)
            && (value.wrapping_sub(self.ts_recent) as i32) < 0
            && !self.is_ts_recent_outdated(ctx)
    }
}
