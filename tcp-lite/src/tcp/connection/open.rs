//! Opens connections: the SYNs, the parameters on which the SYNs agree, and the two states before ESTABLISHED
//! (RFC 9293 sections 3.5, 3.10.1, 3.10.7.3).

use super::{Reported, Tcb, Verdict};
use crate::facade::TcpSeqNumber;
use crate::tcp::State;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::{Flags, Options, TcpHeader};
use crate::tcp::open_params::{Agreed, OpenParams, window_shift};
use crate::tcp::receive::is_ecn_setup;
use crate::tcp::send::Handshake;
use crate::{CloseReason, EcnMode, TcpConfig};

/// A peer's MSS below this value is replaced by this value. With a smaller MSS, our segments would be mostly
/// headers.
const MIN_PEER_MSS: u16 = 64;

impl Tcb {
    /// Opens a connection actively. The connection starts in SYN-SENT.
    pub(crate) fn connect(ctx: &mut Ctx<'_>, params: OpenParams) -> Self {
        Self::new(ctx, &params, (State::SynSent, Reported::Opened))
    }

    /// Opens a connection passively, by a SYN. The connection starts in SYN-RECEIVED. The caller has checked
    /// that the SYN has neither ACK nor RST.
    pub(crate) fn accept(ctx: &mut Ctx<'_>, params: OpenParams, syn: &TcpHeader) -> Self {
        let mut tcb = Self::new(ctx, &params, (State::SynReceived, Reported::Nothing));
        tcb.learn_syn(ctx, syn);
        tcb
    }

    /// Opens a connection passively, by the ACK of a SYN cookie. The connection starts in SYN-RECEIVED, as if
    /// this control block had sent the SYN-ACK.
    pub(crate) fn accept_remembered(ctx: &mut Ctx<'_>, params: OpenParams, syn: &TcpHeader) -> Self {
        let mut tcb = Self::accept(ctx, params, syn);
        tcb.send.on_syn_sent_before();
        tcb
    }

    pub(super) fn on_segment_in_syn_sent(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader) -> Verdict {
        // Only our SYN can be acknowledged, and only after it was sent.
        let acceptable = header.ack.map(|ack| self.send.is_ack_of_syn(ack));
        if acceptable == Some(false) {
            return header.rst_reply(0).map_or(Verdict::Done, Verdict::Reset);
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
        // A payload or FIN on a SYN is dropped, and the peer sends it again.
        self.learn_syn(ctx, header);
        if acceptable == Some(true) {
            self.receive.send_ack();
            self.establish(ctx, header);
        } else {
            // Simultaneous open: we send our SYN again, with an ACK. ECN needs an offer and an answer (RFC
            // 3168 section 6.1.1). If our answer were lost, we would not notice the loss, so ECN is not used.
            self.decline_ecn();
            self.state = State::SynReceived;
            self.send.send_syn();
        }
        Verdict::Done
    }

    /// Called when our SYN is acknowledged and the peer's SYN has arrived.
    pub(super) fn establish(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader) {
        let handshake = Handshake {
            pos: self.receive.position(header.seq),
            window: header.window,
            is_syn: header.flags.contains(Flags::SYN),
            echo: header.options.timestamps.map(|(_, echo)| echo),
        };
        self.send.establish(ctx, &handshake);
        self.restart_keepalive(ctx);
        self.state = if self.send.is_fin_due() { State::FinWait1 } else { State::Established };
        self.reported = Reported::Opened;
        ctx.established();
    }

    fn learn_syn(&mut self, ctx: &Ctx<'_>, syn: &TcpHeader) {
        let config = ctx.config;
        let ecn = self.agrees_on_ecn(config, syn);
        let agreed = agreed(config, syn, ecn);
        let peer_mss = syn.options.mss.map(|mss| mss.max(MIN_PEER_MSS));
        self.send.agree(agreed, peer_mss, syn.window);
        self.receive.agree(ctx, agreed, syn);
    }

    /// Options of our SYN (an offer) or SYN-ACK (an answer).
    pub(super) fn syn_options(&self, ctx: &Ctx<'_>) -> Options {
        syn_options(ctx.config, self.send.agreed(), self.receive.mss(), self.timestamps(ctx))
    }

    /// ECN setup bits of our SYN or SYN-ACK (RFC 3168 section 6.1.1). A retransmitted SYN has no such bits,
    /// because the path may drop SYNs with them.
    pub(super) fn ecn_setup_flags(&self, config: &TcpConfig) -> Flags {
        match self.state {
            State::SynSent if config.ecn == EcnMode::Request && self.send.syn_sends() == 0 => {
                Flags::ECE | Flags::CWR
            }
            State::SynReceived if self.send.agreed().ecn => Flags::ECE,
            _ => Flags::empty(),
        }
    }

    /// Whether the peer's SYN or SYN-ACK, together with our first SYN, negotiates ECN. If we have sent our
    /// SYN again without ECN setup, a SYN-ACK may still answer our first SYN. Then the peer may send
    /// ECN-capable packets until our second SYN arrives, so we have to echo their marks. But we must not send
    /// ECN-capable packets (RFC 3168 section 6.1.1).
    pub(super) fn agrees_on_ecn(&self, config: &TcpConfig, syn: &TcpHeader) -> bool {
        ecn_agreed(config, syn)
    }

    /// Turns ECN off for this connection.
    pub(super) fn decline_ecn(&mut self) {
        self.send.decline_ecn();
        self.receive.decline_ecn();
    }

    /// Whether a segment in SYN-RECEIVED acknowledges the SYN that we sent, or has no acknowledgement.
    pub(crate) fn acknowledges_our_syn(&self, header: &TcpHeader) -> bool {
        header.ack.is_none_or(|ack| self.send.is_ack_of_syn(ack))
    }

    /// Whether this segment is the peer's SYN or SYN-ACK, which was received before.
    pub(super) fn is_syn_again(&self, header: &TcpHeader) -> bool {
        header.flags.contains(Flags::SYN)
            && !header.flags.contains(Flags::RST)
            && self.receive.is_syn(header.seq)
    }
}

/// The first SYN-ACK of a connection that [`Tcb::accept`] creates for `syn`. This function needs no control
/// block, so SYN cookies use it. `mss` is our MSS. `clock` returns our timestamp, and is called only if
/// timestamps are agreed on.
pub(crate) fn syn_ack(
    config: &TcpConfig,
    syn: &TcpHeader,
    (iss, mss): (TcpSeqNumber, u16),
    clock: impl FnOnce() -> u32,
) -> TcpHeader {
    let agreed = agreed(config, syn, ecn_agreed(config, syn));
    let echo = syn.options.timestamps.filter(|_| agreed.timestamps).map(|(value, _)| value);
    let mut flags = Flags::SYN;
    flags.set(Flags::ECE, agreed.ecn);
    TcpHeader {
        src_port: syn.dst_port,
        dst_port: syn.src_port,
        seq: iss,
        ack: Some(syn.seq + 1),
        flags,
        window: syn_window(config),
        options: syn_options(config, &agreed, mss, echo.map(|echo| (clock(), echo))),
    }
}

/// The parameters on which the peer's SYN or SYN-ACK and our configuration agree.
fn agreed(config: &TcpConfig, syn: &TcpHeader, ecn: bool) -> Agreed {
    Agreed {
        timestamps: config.timestamps && syn.options.timestamps.is_some(),
        sack: config.sack && syn.options.sack_permitted,
        window_scale: syn.options.window_scale,
        ecn,
    }
}

/// Whether the peer's SYN or SYN-ACK, together with our first SYN, negotiates ECN ([`Tcb::agrees_on_ecn`]).
fn ecn_agreed(config: &TcpConfig, syn: &TcpHeader) -> bool {
    let willing = if syn.ack.is_some() { config.ecn == EcnMode::Request } else { config.ecn != EcnMode::Off };
    willing && is_ecn_setup(syn)
}

fn syn_options(config: &TcpConfig, agreed: &Agreed, mss: u16, timestamps: Option<(u32, u32)>) -> Options {
    Options {
        mss: Some(mss),
        window_scale: agreed.window_scale.map(|_| window_shift(config.recv_window_bytes)),
        sack_permitted: agreed.sack,
        timestamps,
        ..Options::default()
    }
}

/// The window of a SYN, which is not scaled (RFC 7323 section 2.2).
pub(super) fn syn_window(config: &TcpConfig) -> u16 {
    config.recv_window_bytes.min(u32::from(u16::MAX)) as u16
}
