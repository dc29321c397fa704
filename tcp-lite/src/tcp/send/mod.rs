//! The sending half of a connection: which segments are queued, in flight, acknowledged and lost, when they
//! are sent and retransmitted, and how fast (RFC 9293 section 3.8, data communication, and the
//! acknowledgement checks of 3.10.7.4; SND.UNA, SND.NXT, SND.WND).
//!
//! Three owners have the state, and none of them accesses another:
//!
//! | owner | what it knows | where | document |
//! |---|---|---|---|
//! | [`SendQueue`] | segments from `push` to acknowledgement, SND.UNA, SND.NXT, SND.WND, the FIN | `queue/` | RFC 9293 sections 3.4, 3.8.6, RFC 2018 |
//! | [`LossRecovery`] | which segments are lost, what a recovery may send, the timer | `loss/` | RFC 5681, 6582, 8985, 6937 (now 9937), 6298 |
//! | [`RateControl`] | congestion window, round-trip time, pace, response to marks | `rate/` | RFC 5681, 6298, 3168 |
//!
//! [`SendHalf`] calls the owners, and passes the result of one to the next:
//!
//! | what | where | document |
//! |---|---|---|
//! | the user queues segments | `push.rs` | RFC 9293 section 3.10.2 |
//! | an acknowledgement arrives | `ack.rs`, `ack_sample.rs` | RFC 9293 section 3.10.7.4, RFC 2018, 2883, 7323 |
//! | the user's events | `user_events.rs` | |
//! | the next segment to send | `next.rs`, `train.rs` | RFC 9293 section 3.8, RFC 5681 |
//! | the timer | `retransmission.rs` | RFC 6298, 9293 section 3.8.1 |
//! | segment size | `path_mtu.rs` | RFC 8899, 1191, 8201 |
//!
//! The sending half knows nothing of the receiving half: `connection/output.rs` adds the header fields for
//! received bytes. Its fields are private; `connection` calls its methods.

mod ack;
mod ack_sample;
mod invariants;
mod loss;
mod next;
mod path_mtu;
mod push;
mod queue;
mod rate;
mod retransmission;
#[cfg(test)]
mod test_access;
mod train;
mod user_events;

pub(super) use ack::{AckInfo, Handshake};
#[cfg(test)]
pub(super) use loss::Phase;
pub(crate) use next::Payload;
pub(super) use next::{Outgoing, SendKind};
pub(super) use retransmission::first_of;

use bitflags::bitflags;

use self::loss::{LossRecovery, SendState};
use self::path_mtu::PathMtu;
use self::queue::{Positions, SendQueue};
use self::rate::RateControl;
use self::user_events::UserEvents;
use super::ctx::Ctx;
use super::open_params::{Agreed, OpenParams};
use super::timestamp_clock::TimestampClock;
use crate::Duration;
use crate::facade::TcpSeqNumber;

bitflags! {
    /// Transmissions that are due besides queued segments, the FIN and tail loss probes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Pending: u8 {
        const SYN = 1;
        /// A segment without payload below the window: for a zero window, a keepalive, or to make the
        /// peer answer.
        const WINDOW_PROBE = 2;
        /// Not a transmission: the next new segment may be cut to the peer's window.
        const CUT = 4;
        /// Not a transmission: new segments may be marked (RFC 3168). ECN was agreed on, and nothing has
        /// disabled it since.
        const ECT = 8;
    }
}

/// The sending half of one connection.
#[derive(Debug)]
pub(super) struct SendHalf {
    queue: SendQueue,
    loss: LossRecovery,
    rate: RateControl,
    path: PathMtu,
    agreed: Agreed,
    pending: Pending,
    events: UserEvents,
    clock: TimestampClock,
    /// Number of retransmissions.
    retransmits: u64,
}

/// Statistics of the sending half, for [`ConnInfo`](super::ConnInfo).
#[derive(Clone, Copy, Debug)]
pub(super) struct SendInfo {
    pub(super) emss: u32,
    /// Position behind the last byte pushed.
    pub(super) end: u64,
    pub(super) queued: u64,
    pub(super) srtt_us: u32,
    pub(super) rto: Duration,
    pub(super) cwnd: u32,
    pub(super) ssthresh: u32,
    pub(super) retransmits: u64,
}

impl SendHalf {
    /// A new half whose SYN has to be sent. `agreed`: what the SYN offers.
    pub(super) fn new(ctx: &Ctx<'_>, params: &OpenParams, agreed: Agreed) -> Self {
        let mut half = Self {
            queue: SendQueue::new(params.iss),
            path: PathMtu::new(params),
            rate: RateControl::new(ctx.config, u32::from(params.mss)),
            loss: LossRecovery::new(ctx.now),
            agreed,
            pending: Pending::SYN,
            events: UserEvents::default(),
            clock: TimestampClock::new(params.timestamp_offset),
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

    /// The peer's SYN has arrived, with this result, its MSS option and its window.
    pub(super) fn agree(&mut self, agreed: Agreed, peer_mss: Option<u16>, window: u16) {
        self.agreed = agreed;
        self.pending.set(Pending::ECT, agreed.ecn && self.syn_sends() <= 1);
        self.path.set_options(agreed.option_bytes());
        self.path.set_peer_mss(peer_mss);
        self.queue.window_mut().on_syn(u64::from(window));
    }

    /// ECN is not used after all.
    pub(super) fn decline_ecn(&mut self) {
        self.agreed.ecn = false;
        self.pending.remove(Pending::ECT);
    }

    /// Our segments must not be marked any more.
    pub(super) fn stop_ect(&mut self) {
        self.pending.remove(Pending::ECT);
    }

    /// Our SYN, or SYN-ACK, has to be sent, perhaps again.
    pub(super) fn send_syn(&mut self) {
        self.pending |= Pending::SYN;
    }

    /// The SYN-ACK was sent by a control block that was dropped (a SYN cookie).
    pub(super) fn on_syn_sent_before(&mut self) {
        self.pending.remove(Pending::SYN);
        self.queue.positions_mut().on_syn_sent();
    }

    /// A segment without payload below the window has to be sent, which makes the peer answer.
    pub(super) fn send_window_probe(&mut self) {
        self.pending |= Pending::WINDOW_PROBE;
    }

    /// The user has closed: a FIN follows the queue (RFC 9293 section 3.10.4).
    pub(super) fn close(&mut self) {
        self.queue.positions_mut().close();
    }

    /// Releases everything shared, and stops all timers.
    pub(super) fn dispose(&mut self, ctx: &mut Ctx<'_>) {
        self.queue.clear(ctx.segments);
        self.path.forget_search(ctx);
        self.loss.stop_timers();
    }

    /// The connection is over: nothing is sent any more.
    pub(super) fn stop(&mut self) {
        self.pending = Pending::empty();
        self.loss.cancel_probe();
        self.queue.positions_mut().forget_fin();
        self.loss.stop_timers();
    }

    /// The events that the user has taken, or wants.
    #[inline]
    pub(super) fn events_mut(&mut self) -> &mut UserEvents {
        &mut self.events
    }

    /// What is pushed, sent and acknowledged.
    #[inline]
    pub(super) fn positions(&self) -> &Positions {
        self.queue.positions()
    }

    /// As [`Positions::is_ack_acceptable`], by the peer's largest window.
    #[inline]
    pub(super) fn is_ack_acceptable(&self, ack: i64) -> bool {
        self.queue.positions().is_ack_acceptable(ack, self.queue.window().max())
    }

    /// The clock of our timestamps.
    #[inline]
    pub(super) fn clock(&self) -> TimestampClock {
        self.clock
    }

    /// Statistics for the user.
    pub(super) fn info(&self) -> SendInfo {
        SendInfo {
            emss: self.path.emss(),
            end: self.queue.positions().end(),
            queued: self.queue.positions().queued(),
            srtt_us: self.rate.srtt_us(),
            rto: self.rate.rto(),
            cwnd: self.rate.cwnd(),
            ssthresh: self.rate.ssthresh(),
            retransmits: self.retransmits,
        }
    }

    /// Bytes believed to be in the network (RFC 6675 section 4, `pipe`).
    #[inline]
    fn pipe(&self) -> u64 {
        self.loss.pipe(&self.queue, self.agreed.sack, self.path.emss())
    }

    /// Limit of [`pipe`](Self::pipe): the congestion window, or what PRR allows in fast recovery.
    #[inline]
    fn send_limit(&self) -> u64 {
        self.loss.send_limit(&self.rate)
    }

    /// A router reports that the path carries only `mss` (as [`OpenParams::mss`]), and not the segment from
    /// `seq` on (RFC 1191, RFC 8201). Returns whether there is such a segment.
    pub(super) fn on_packet_too_big(&mut self, ctx: &mut Ctx<'_>, seq: TcpSeqNumber, mss: u16) -> bool {
        if self.positions().covers_outstanding(seq) {
            self.set_path_mss(ctx, mss);
            return true;
        }
        let pos = self.positions().position(seq);
        self.path.on_probe_too_big(ctx, pos, mss)
    }

    /// The path carries only `mss`.
    pub(super) fn set_path_mss(&mut self, ctx: &mut Ctx<'_>, mss: u16) {
        if self.path.on_report(ctx, mss) {
            self.on_emss_lowered(ctx);
        }
    }

    fn on_emss_lowered(&mut self, ctx: &mut Ctx<'_>) {
        let emss = self.path.emss();
        self.rate.set_emss(emss);
        self.queue.sent().mark_oversized(ctx.segments, emss);
        if self.queue.scoreboard().has_lost() {
            // The lost segments are retransmitted in a size that fits; their acknowledgement replaces the
            // probe's.
            self.loss.cancel_probe();
        }
    }

    /// Loss recovery, and the state besides its own that its steps read and change.
    fn loss_and_state(&mut self) -> (&mut LossRecovery, SendState<'_>) {
        let Self { queue, loss, rate, path, agreed, .. } = self;
        (loss, SendState { queue, rate, agreed: *agreed, emss: path.emss() })
    }
}
