//! The sending half of a connection: what is queued, in flight, acknowledged and lost, when it is
//! sent and sent again, and how fast (RFC 9293 section 3.8, data communication, and the
//! acknowledgement checks of 3.10.7.4; SND.UNA, SND.NXT, SND.WND).
//!
//! | what | where | document |
//! |---|---|---|
//! | segments from `push` to acknowledgement | `queue.rs`, `push.rs` | RFC 9293 section 3.10.4 |
//! | the peer's window | `window.rs` | RFC 9293 sections 3.8.6, 3.10.7.4 |
//! | an acknowledgement arrives | `ack.rs`, `ack_sample.rs` | RFC 9293 section 3.10.7.4, RFC 2018, 2883, 7323 |
//! | which segments arrived, which are lost | `scoreboard.rs`, `sacks.rs`, `flight.rs`, `rack.rs` | RFC 2018, 6675, 8985 |
//! | loss recovery | `recovery.rs`, `prr.rs`, `undo.rs`, `frto.rs`, `tail_probe.rs` | RFC 5681, 6582, 6937, 4015, 5682, 8985 |
//! | when the window is reduced | `slow_down.rs`, `reduction.rs` | RFC 3168, 5681 |
//! | round-trip time and timeout | `rtt.rs`, `retransmission.rs`, `timers.rs` | RFC 6298, 7765, 9293 section 3.8.1 |
//! | how large segments are | `path_mtu.rs` | RFC 8899, 1191, 8201 |
//! | what is sent next | `next.rs`, `train.rs`, `pacing.rs` | RFC 9293 section 3.8, RFC 5681 |
//!
//! It knows nothing of the receiving half: header fields that say what we received are added by
//! `connection/output.rs`. Its fields are its own; `connection` asks for them by methods.

mod ack;
mod ack_sample;
mod check;
mod flight;
mod frto;
mod next;
mod pacing;
mod path_mtu;
mod prr;
mod push;
mod queue;
mod rack;
mod recovery;
mod reduction;
mod retransmission;
mod rtt;
mod sacks;
mod scoreboard;
mod slow_down;
mod tail_probe;
#[cfg(test)]
mod test_access;
mod timers;
mod train;
mod undo;
mod window;

pub(super) use ack::{AckInfo, Handshake};
pub(crate) use next::Payload;
pub(super) use next::{Kind, Outgoing};
pub(super) use retransmission::earlier;

use bitflags::bitflags;

use self::frto::Frto;
use self::pacing::Pace;
use self::path_mtu::PathMtu;
use self::prr::Prr;
use self::queue::SendQueue;
use self::rack::Rack;
use self::reduction::Reduction;
use self::rtt::RttEstimator;
use self::tail_probe::TailProbe;
use self::timers::Timers;
use self::undo::Undo;
use self::window::PeerWindow;
use super::birth::{Agreed, Birth};
use super::congestion::{Congestion, CongestionControl};
use super::ctx::Ctx;
use super::seq::SeqSpace;
use crate::facade::TcpSeqNumber;
use crate::{Duration, TcpConfig};

bitflags! {
    /// What waits to be sent besides queued segments and the FIN.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Pending: u8 {
        const SYN = 1;
        /// A segment without payload in front of the window: zero window, keepalive, or to have the
        /// peer answer.
        const PROBE = 2;
        /// A tail loss probe.
        const TAIL = 4;
        /// Not a transmission: the next fresh segment may be cut to the peer's window.
        const CUT = 8;
    }
}

/// Our FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fin {
    /// Not asked for.
    Open,
    /// Follows the queue, for the first time or, after a timeout, again.
    Due,
    Sent,
    Acked,
}

/// Whether the user waits for `Event::Writable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writable {
    NotOwed,
    /// `segment` was refused.
    Owed,
    /// The event waits to be taken, and stands for all refusals until it is.
    Told,
}

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

/// Loss recovery of one connection: the algorithms that tell what a loss, or what seemed one, calls
/// for.
#[derive(Clone, Copy, Debug, Default)]
struct Recovery {
    phase: Phase,
    /// What was sent when the last recovery began; it ends when all of that is acknowledged (RFC
    /// 6582, `recover`).
    high: u64,
    dup_acks: u32,
    /// What may be sent during [`Phase::Fast`].
    prr: Prr,
    tail: TailProbe,
    undo: Undo,
    frto: Frto,
}

/// The sending half of one connection.
#[derive(Debug)]
pub(super) struct SendHalf {
    space: SeqSpace,
    queue: SendQueue,
    window: PeerWindow,
    path: PathMtu,
    rtt: RttEstimator,
    congestion: Congestion,
    rack: Rack,
    recovery: Recovery,
    reduction: Reduction,
    pace: Pace,
    timers: Timers,
    agreed: Agreed,
    /// What we send may be marked (RFC 3168): ECN was agreed on, and nothing spoke against it
    /// since.
    ect: bool,
    fin: Fin,
    pending: Pending,
    writable: Writable,
    /// Added to the millisecond clock of our timestamps (RFC 7323 section 7.1).
    timestamp_offset: u32,
    /// Segments sent again.
    retransmits: u64,
}

/// How the sending half stands, for [`ConnInfo`](super::ConnInfo).
#[derive(Clone, Copy, Debug)]
pub(super) struct SendInfo {
    pub(super) emss: u32,
    /// Behind the last byte pushed, as a position.
    pub(super) end: u64,
    pub(super) queued: u64,
    pub(super) srtt_us: u32,
    pub(super) rto: Duration,
    pub(super) cwnd: u32,
    pub(super) ssthresh: u32,
    pub(super) retransmits: u64,
}

impl SendHalf {
    /// Our SYN waits to be sent. `agreed`: what it offers.
    pub(super) fn new(ctx: &Ctx<'_>, birth: &Birth, agreed: Agreed) -> Self {
        let config = ctx.config;
        let mut half = Self {
            space: SeqSpace::new(birth.iss),
            queue: SendQueue::new(),
            window: PeerWindow::new(),
            path: PathMtu::new(birth),
            rtt: RttEstimator::new(config.rto_initial, config.rto_min, config.rto_max),
            congestion: Congestion::new(config.congestion, u32::from(birth.mss), false),
            rack: Rack::new(),
            recovery: Recovery::default(),
            reduction: Reduction::default(),
            pace: Pace::OPEN,
            timers: Timers::new(ctx.now),
            agreed,
            ect: false,
            fin: Fin::Open,
            pending: Pending::SYN,
            writable: Writable::NotOwed,
            timestamp_offset: birth.timestamp_offset,
            retransmits: 0,
        };
        half.path.set_options(agreed.option_bytes());
        half
    }

    /// What the SYNs agreed on.
    #[inline]
    pub(super) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// The peer's SYN has arrived: what was agreed on, the MSS that it names, and the window that
    /// it announces.
    pub(super) fn agree(&mut self, agreed: Agreed, peer_mss: Option<u16>, window: u16) {
        self.agreed = agreed;
        self.ect = agreed.ecn && !self.has_sent_syn_again();
        self.path.set_options(agreed.option_bytes());
        self.path.set_peer_mss(peer_mss);
        self.window.on_syn(u64::from(window));
    }

    /// The connection is not capable of ECN after all.
    pub(super) fn decline_ecn(&mut self) {
        self.agreed.ecn = false;
        self.ect = false;
    }

    /// What we send is not to be marked any more.
    pub(super) fn stop_ect(&mut self) {
        self.ect = false;
    }

    /// Our SYN, or SYN-ACK, is to be sent, perhaps again.
    pub(super) fn send_syn(&mut self) {
        self.pending |= Pending::SYN;
    }

    /// The SYN-ACK was sent by a control block that was forgotten (a SYN cookie).
    pub(super) fn on_syn_sent_before(&mut self) {
        self.pending.remove(Pending::SYN);
        self.queue.nxt = 1;
    }

    /// A segment without payload in front of the window is to be sent, which has the peer answer.
    pub(super) fn send_probe(&mut self) {
        self.pending |= Pending::PROBE;
    }

    /// The user sends no more: a FIN follows the queue (RFC 9293 section 3.10.4).
    pub(super) fn close(&mut self) {
        self.fin = Fin::Due;
    }

    /// Whether the user has closed, and our FIN is not acknowledged.
    #[inline]
    pub(super) fn is_fin_due(&self) -> bool {
        self.fin == Fin::Due
    }

    /// Gives back what is shared, and stops all timers.
    pub(super) fn dispose(&mut self, ctx: &mut Ctx<'_>) {
        self.queue.clear(ctx.segments);
        self.path.forget_search(ctx);
        self.timers.stop();
    }

    /// The connection is over: nothing is sent any more.
    pub(super) fn stop(&mut self) {
        self.pending = Pending::empty();
        self.fin = Fin::Open;
        self.timers.stop();
    }

    /// The sequence number of a position.
    #[inline]
    pub(super) fn seq(&self, pos: u64) -> TcpSeqNumber {
        self.space.seq(pos)
    }

    /// SND.NXT, as a position.
    #[inline]
    pub(super) fn nxt(&self) -> u64 {
        self.queue.nxt
    }

    /// The peer has acknowledged something of ours: it knows of the connection.
    #[inline]
    pub(super) fn is_syn_acked(&self) -> bool {
        self.queue.una > 0
    }

    /// Whether this sequence number is in flight, i.e. an ICMP error that quotes it is plausible
    /// (RFC 5927).
    pub(super) fn is_in_flight(&self, seq: TcpSeqNumber) -> bool {
        let pos = self.space.pos(seq, self.queue.una);
        (self.queue.una as i64..self.queue.nxt as i64).contains(&pos)
    }

    /// The position of an acknowledgement number.
    #[inline]
    pub(super) fn ack_position(&self, ack: TcpSeqNumber) -> i64 {
        self.space.pos(ack, self.queue.una)
    }

    /// RFC 5961 section 5.2: neither what was never sent nor what is too old.
    #[inline]
    pub(super) fn is_ack_acceptable(&self, ack: i64) -> bool {
        let oldest = self.queue.una as i64 - self.window.max() as i64;
        ack <= self.queue.nxt as i64 && ack >= oldest
    }

    /// Whether this acknowledges our SYN, which was sent, and nothing else.
    pub(super) fn is_ack_of_syn(&self, ack: TcpSeqNumber) -> bool {
        self.queue.nxt > 0 && ack == self.space.seq(1)
    }

    /// An initial sequence number for the next connection of the same name, which is above all that
    /// this one used, by more than a window without scaling (RFC 9293 section 3.6.1); `iss` if that
    /// is.
    pub(super) fn next_iss(&self, iss: TcpSeqNumber) -> TcpSeqNumber {
        let least = self.queue.nxt + u64::from(u16::MAX) + 2;
        let above = self.space.pos(iss, self.queue.nxt) >= least as i64;
        if above { iss } else { self.space.seq(least) }
    }

    /// The retransmission timeout.
    pub(super) fn rto(&self) -> Duration {
        self.rtt.rto()
    }

    /// TSval of a segment sent now (RFC 7323 section 3.2). The clock ticks in milliseconds.
    #[inline]
    pub(super) fn timestamp(&self, ctx: &Ctx<'_>) -> u32 {
        self.timestamp_offset.wrapping_add(ctx.now.total_millis() as u32)
    }

    /// A look from outside.
    pub(super) fn info(&self) -> SendInfo {
        SendInfo {
            emss: self.path.emss(),
            end: self.queue.end,
            queued: self.queue.queued(),
            srtt_us: self.rtt.srtt_us(),
            rto: self.rtt.rto(),
            cwnd: self.congestion.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            retransmits: self.retransmits,
        }
    }

    /// Bytes believed to be in the network.
    #[inline]
    fn pipe(&self) -> u64 {
        let counts = !self.agreed.sack && self.recovery.phase != Phase::Loss;
        let left = if counts { u64::from(self.recovery.dup_acks) * u64::from(self.path.emss()) } else { 0 };
        self.queue.pipe().saturating_sub(left)
    }

    /// What may be in flight.
    #[inline]
    fn cwnd(&self) -> u64 {
        match self.recovery.phase {
            Phase::Fast => self.recovery.prr.cwnd(),
            Phase::Open | Phase::Loss => u64::from(self.congestion.cwnd()),
        }
    }

    /// A router says that the path carries only `mss` (as [`Birth::mss`]), and not the segment from
    /// `seq` on (RFC 1191, RFC 8201). Returns whether there is one.
    pub(super) fn on_packet_too_big(&mut self, ctx: &mut Ctx<'_>, seq: TcpSeqNumber, mss: u16) -> bool {
        if self.is_in_flight(seq) {
            self.set_path_mss(ctx, mss);
            return true;
        }
        self.path.on_probe_too_big(ctx, self.space.pos(seq, self.queue.una), mss)
    }

    /// The path carries only `mss`.
    pub(super) fn set_path_mss(&mut self, ctx: &mut Ctx<'_>, mss: u16) {
        if self.path.on_report(ctx, mss) {
            self.on_emss_lowered(ctx);
        }
    }

    fn on_emss_lowered(&mut self, ctx: &mut Ctx<'_>) {
        let emss = self.path.emss();
        self.congestion.set_mss(emss);
        self.queue.mark_oversized(ctx.segments, emss);
    }

    /// How segments are spread, if they are.
    #[inline]
    fn pacing(&self, config: &TcpConfig) -> Option<crate::Pacing> {
        pacing::pacing(config, self.rtt.srtt_us())
    }
}
