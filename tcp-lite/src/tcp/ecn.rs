//! Explicit congestion notification (RFC 3168, RFC 8257): routers mark packets instead of dropping them, the receiver
//! echoes the marks, the sender slows down.
//!
//! [`Echo`] is the receiver's half. The sender slows down as for a loss (`reduction.rs`); what that means is congestion
//! control's.

use std::num::NonZeroU64;

use super::ctx::Ctx;
use super::header::{Flags, TcpHeader};
use super::recovery::Phase;
use super::tcb::{Pending, State, Tcb};
use crate::ip::Ecn;
use crate::{CongestionAlgorithm, EcnMode, TcpConfig};

/// What the receiver tells the sender.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Echo {
    /// Acknowledgements carry ECE.
    on: bool,
    /// With DCTCP: up to where is acknowledged ahead of the rest, since that was marked otherwise (RFC 8257
    /// section 3.2); positions begin at 1. And whether with ECE.
    earlier: Option<NonZeroU64>,
    earlier_on: bool,
}

/// An acknowledgement of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Earlier {
    /// Up to this position.
    pub(super) ack: u64,
    /// With ECE.
    pub(super) on: bool,
}

impl Echo {
    /// Nothing will be acknowledged any more.
    pub(super) fn stop(&mut self) {
        self.earlier = None;
    }

    /// A data segment arrived when all up to `frontier` had; `waiting`: something of what came before it is still to be
    /// acknowledged, in order or ahead of a hole. Returns whether the sender should know at once.
    fn on_data(
        &mut self,
        config: &TcpConfig,
        marked: bool,
        flags: Flags,
        frontier: u64,
        waiting: bool,
    ) -> bool {
        let was = self.on;
        if config.congestion == CongestionAlgorithm::Dctcp {
            // Each acknowledgement tells of its own segments: RFC 8257 section 3.2.
            self.on = marked;
            if was != marked && waiting {
                // Of several changes between two turns the marks are kept.
                self.earlier_on = was || self.earlier.is_some() && self.earlier_on;
                self.earlier = NonZeroU64::new(frontier);
            }
            return was != marked;
        }
        // Until the sender says that it has heard, in this order: RFC 3168 section 6.1.3.
        self.on = (was && !flags.contains(Flags::CWR)) || marked;
        false
    }
}

/// Whether a SYN or SYN-ACK sets up ECN (RFC 3168 section 6.1.1).
fn is_ecn_setup(syn: &TcpHeader) -> bool {
    let setup = if syn.ack.is_some() { Flags::ECE } else { Flags::ECE | Flags::CWR };
    syn.flags & (Flags::ECE | Flags::CWR) == setup
}

impl Tcb {
    /// The control bits of our SYN or SYN-ACK (RFC 3168 section 6.1.1). A SYN that had no answer goes without: the
    /// way may swallow them.
    pub(super) fn ecn_setup_flags(&self, config: &TcpConfig) -> Flags {
        match self.state {
            State::SynSent if config.ecn == EcnMode::Request && self.timers.syn_sends == 0 => {
                Flags::ECE | Flags::CWR
            }
            State::SynReceived if self.agreed.ecn => Flags::ECE,
            _ => Flags::empty(),
        }
    }

    /// Whether the peer's SYN or SYN-ACK, together with the first of ours, makes the connection capable. If
    /// we have sent our SYN again since, without asking, this SYN-ACK answers the first: the peer may mark
    /// what it sends until our second SYN arrives, so that its marks have to be echoed; but we may not mark
    /// (RFC 3168 section 6.1.1).
    pub(super) fn agrees_on_ecn(&self, config: &TcpConfig, syn: &TcpHeader) -> bool {
        let willing =
            if syn.ack.is_some() { config.ecn == EcnMode::Request } else { config.ecn != EcnMode::Off };
        willing && is_ecn_setup(syn)
    }

    /// The connection is not capable after all.
    pub(super) fn decline_ecn(&mut self) {
        (self.agreed.ecn, self.agreed.ect) = (false, false);
    }

    /// The peer's SYN or SYN-ACK arrives once more when the connection is established. Whoever has received
    /// one that does not set up ECN should not mark any more (RFC 3168 section 6.1.1); echoes of earlier
    /// marks are still answered.
    pub(super) fn on_late_syn(&mut self, syn: &TcpHeader) {
        self.agreed.ect &= is_ecn_setup(syn);
    }

    /// A segment with new octets and its mark.
    pub(super) fn on_ecn_data(&mut self, ctx: &mut Ctx<'_>, header: &TcpHeader, ecn: Ecn) {
        if !self.agreed.ecn {
            return;
        }
        let marked = ecn == Ecn::Ce;
        ctx.counters.rx_congestion_experienced += u64::from(marked);
        let waiting = self.unacked_segments > 0 || self.pending.contains(Pending::ACK);
        if self.echo.on_data(ctx.config, marked, header.flags, self.rcv.nxt, waiting) {
            self.pending |= Pending::ACK;
        }
    }

    /// What is to be acknowledged ahead of everything else that is sent.
    pub(super) fn earlier_ack(&self) -> Option<Earlier> {
        self.echo.earlier.map(|ack| Earlier { ack: ack.get(), on: self.echo.earlier_on })
    }

    /// That was done.
    pub(super) fn on_earlier_ack_sent(&mut self, window: u16) {
        if let Some(ack) = self.echo.earlier.take() {
            self.rcv.on_window_sent(ack.get(), window);
            self.last_ack_sent = ack.get();
        }
    }

    /// Whether this acknowledgement echoes marks.
    pub(super) fn echoes_marks(&self, header: &TcpHeader) -> bool {
        self.agreed.ecn && header.flags.contains(Flags::ECE) && !header.flags.contains(Flags::SYN)
    }

    /// The peer echoes marks up to `ack`: at most one reduction for each window of data (RFC 3168 section 6.1.2). In a
    /// recovery, too, marks on what was sent since the last reduction are congestion anew; a receiver of RFC 8257
    /// echoes them once only.
    pub(super) fn on_ecn_echo(&mut self, ctx: &mut Ctx<'_>, ack: u64) {
        let recovering = self.recovery.phase != Phase::Open;
        if recovering {
            // Whatever was lost, there was a reason to reduce the window.
            self.recovery.undo.keep_reduction();
        }
        if !self.reduction.is_news(ack) {
            return;
        }
        ctx.counters.ecn_reductions += 1;
        if !recovering {
            self.recovery.undo.forget();
        }
        self.answer_marks(ctx);
        if ack < self.recovery.high {
            self.pace_recovery_anew();
        }
    }

    /// The control bits of a segment: ECE on whatever acknowledges, CWR on the first new octets after a reduction.
    pub(super) fn ecn_flags(&self, fresh: bool) -> Flags {
        let mut flags = Flags::empty();
        flags.set(Flags::ECE, self.agreed.ecn && self.echo.on);
        flags.set(Flags::CWR, fresh && self.reduction.announce);
        flags
    }

    /// New octets went out.
    pub(super) fn on_cwr_sent(&mut self) {
        self.reduction.announce = false;
    }

    /// The codepoint of a segment: only new octets may be marked, since a mark on what comes again, or on what takes
    /// no window, would tell nothing (RFC 3168 sections 6.1.4 to 6.1.6).
    pub(super) fn codepoint(&self, fresh: bool) -> Ecn {
        if self.agreed.ect && fresh { Ecn::Ect0 } else { Ecn::NotEct }
    }
}
