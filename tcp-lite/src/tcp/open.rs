//! Opening: SYNs, what they agree on, and the two states before ESTABLISHED (RFC 9293 sections 3.5, 3.10.7.3).

use super::congestion::Congestion;
use super::ctx::Ctx;
use super::header::{Flags, Options, TcpHeader};
use super::input::Verdict;
use super::news::is_before;
use super::recv::Receiver;
use super::seq::SeqSpace;
use super::tcb::{Agreed, Birth, Fin, Pending, State, Tcb, payload_of, seconds, window_shift};
use crate::CloseReason;

/// The smallest MSS believed of a peer. Below, headers would cost more than they carry; a SYN must not make us
/// send such segments.
const MIN_PEER_MSS: u16 = 64;

impl Tcb {
    /// Active open: SYN-SENT.
    pub(crate) fn connect(ctx: &mut Ctx<'_>, birth: Birth) -> Self {
        let mut tcb = Self::new(ctx, birth, State::SynSent);
        tcb.announced = true;
        tcb.arm_resend(ctx);
        tcb
    }

    /// Passive open by a SYN (no ACK, no RST; the caller checks): SYN-RECEIVED.
    pub(crate) fn accept(ctx: &mut Ctx<'_>, birth: Birth, syn: &TcpHeader) -> Self {
        let mut tcb = Self::new(ctx, birth, State::SynReceived);
        tcb.learn_syn(ctx, syn);
        tcb.arm_resend(ctx);
        tcb
    }

    /// Passive open by the ACK of a SYN-ACK that was not kept: SYN-RECEIVED, with the SYN-ACK sent.
    pub(crate) fn accept_remembered(ctx: &mut Ctx<'_>, birth: Birth, syn: &TcpHeader) -> Self {
        let mut tcb = Self::accept(ctx, birth, syn);
        tcb.pending.remove(Pending::SYN);
        tcb.snd.nxt = 1;
        tcb
    }

    /// A segment in SYN-SENT.
    pub(super) fn on_segment_in_syn_sent(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader) -> Verdict {
        // Only our SYN can be acknowledged, and only once it was sent.
        let acceptable = header.ack.map(|ack| self.snd.nxt == 1 && ack == self.snd_space.seq(1));
        if acceptable == Some(false) {
            return header.reset(0).map_or(Verdict::Done, Verdict::Reset);
        }
        if header.flags.contains(Flags::RST) {
            if acceptable == Some(true) {
                self.terminate(ctx, CloseReason::Refused, false);
            }
            return Verdict::Done;
        }
        if !header.flags.contains(Flags::SYN) {
            return Verdict::Done;
        }
        // Payload or FIN on a SYN is not taken: the peer sends it again.
        self.learn_syn(ctx, header);
        if acceptable == Some(true) {
            self.pending.remove(Pending::SYN);
            self.pending |= Pending::ACK;
            self.establish(ctx, header);
        } else {
            // Simultaneous open: the same SYN once more, with an ACK. Marks take an offer and an answer
            // (RFC 3168 section 6.1.1), and what answers here may be lost unseen.
            self.decline_ecn();
            self.state = State::SynReceived;
            self.pending |= Pending::SYN;
        }
        Verdict::Done
    }

    /// Our SYN is acknowledged and we have the peer's.
    pub(super) fn establish(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader) {
        let syn_lost = self.timers.syn_sends > 1;
        let sample_us = match self.timers.syn_sends {
            // The SYN-ACK was not kept, nor when it was sent.
            0 => None,
            1 => Some(micros_since(ctx.now, self.timers.last_sent)),
            // An echo of an earlier SYN tells nothing: the way may be long, or an answer was lost, and its timer with
            // it. A round trip of that many seconds would be believed for long.
            _ => self
                .echo_ms(header)
                .filter(|echo_ms| !is_before(*echo_ms, self.timers.last_sent.total_millis() as u32))
                .and_then(|echo_ms| self.timestamp_rtt_us(ctx, echo_ms)),
        };
        match sample_us {
            Some(sample_us) => {
                self.rtt.sample(ctx.now, sample_us);
                self.recovery.tail.on_sample();
            }
            None if syn_lost => self.rtt.fall_back(),
            None => {}
        }
        self.rtt.forget_backoff();
        self.snd.una = 1;
        self.congestion = Congestion::new(ctx.config.congestion, self.emss, syn_lost);
        self.start_path_mtu(ctx);
        let shift = if header.flags.contains(Flags::SYN) { 0 } else { self.agreed.window_scale.unwrap_or(0) };
        let octets = u64::from(header.window) << shift;
        self.window.edge = 1 + octets;
        self.window.max = self.window.max.max(octets);
        self.window.wl1 = self.rcv.space.pos(header.seq, self.rcv.nxt);
        self.window.wl2 = 1;
        self.timers.progress = ctx.now;
        self.timers.resend = None;
        self.on_alive(ctx);
        self.state = if self.fin == Fin::Due { State::FinWait1 } else { State::Established };
        self.announced = true;
        ctx.established();
    }

    /// Takes over what the peer's SYN says.
    fn learn_syn(&mut self, ctx: &Ctx<'_>, syn: &TcpHeader) {
        let (config, options) = (ctx.config, &syn.options);
        let scaled = options.window_scale;
        let ecn = self.agrees_on_ecn(config, syn);
        let scale = if scaled.is_some() { window_shift(config.recv_window_octets) } else { 0 };
        let window_octets = config.recv_window_octets.min(u32::from(u16::MAX));
        self.rcv = Receiver::new(SeqSpace::new(syn.seq), scale, window_octets);
        self.agreed = Agreed {
            timestamps: config.timestamps && options.timestamps.is_some(),
            sack: config.sack && options.sack_permitted,
            window_scale: scaled,
            ecn,
            ect: ecn && !self.has_sent_syn_again(),
        };
        let peer_mss = options.mss.unwrap_or(self.birth.default_peer_mss).max(MIN_PEER_MSS);
        self.emss = payload_of(peer_mss.min(self.birth.mss), self.agreed.timestamps);
        if let Some((value, _)) = options.timestamps {
            self.ts_recent = value;
            self.ts_recent_at = seconds(ctx.now);
        }
        self.window.max = u64::from(syn.window);
    }

    /// Options of our SYN (an offer) or SYN-ACK (an answer).
    pub(super) fn syn_options(&self, ctx: &Ctx<'_>) -> Options {
        let shift = self.agreed.window_scale.map(|_| window_shift(ctx.config.recv_window_octets));
        Options {
            mss: Some(self.birth.mss),
            window_scale: shift,
            sack_permitted: self.agreed.sack,
            timestamps: self.timestamps(ctx),
            ..Options::default()
        }
    }
}

/// Microseconds from `then` to `now`.
pub(super) fn micros_since(now: crate::Instant, then: crate::Instant) -> u64 {
    now.total_micros().saturating_sub(then.total_micros()).max(0) as u64
}
