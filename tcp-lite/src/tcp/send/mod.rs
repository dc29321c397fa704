//! The sending half of a connection. It queues segments, and decides which segments are in flight,
//! acknowledged or lost. It also decides when segments are sent and retransmitted, and at which rate (RFC
//! 9293 section 3.8, data communication, and the acknowledgement checks of section 3.10.7.4; SND.UNA,
//! SND.NXT, SND.WND).
//!
//! The queue, loss recovery and the rate each have an owner. The queue and rate control access no other
//! owner. Steps of loss recovery borrow the queue and rate control:
//!
//! | owner | what it knows | where | document |
//! |---|---|---|---|
//! | [`SendQueue`] | segments from `push` to acknowledgement, SND.UNA, SND.NXT, SND.WND, the FIN | `queue/` | RFC 9293 sections 3.4, 3.8.6, RFC 2018 |
//! | [`LossRecovery`] | which segments are lost, what a recovery may send, the timer | `loss/` | RFC 5681, 6582, 8985, 6937 (now 9937), 6298 |
//! | [`RateControl`] | congestion window, round-trip time, pace, response to marks | `rate/` | RFC 5681, 6298, 3168 |
//!
//! [`SendHalf`] calls the owners, and passes the result of one owner to the next:
//!
//! | what | where | document |
//! |---|---|---|
//! | the user queues segments | `push.rs` | RFC 9293 section 3.10.2 |
//! | an acknowledgement arrives | `ack.rs`, `ack_sample.rs` | RFC 9293 section 3.10.7.4, RFC 2018, 2883, 7323 |
//! | the user's events | `user_events.rs` | |
//! | the next segment to send | `next.rs`, `train.rs` | RFC 9293 section 3.8, RFC 5681 |
//! | effects of the timer outside of loss recovery | `retransmission.rs` | RFC 6298, 9293 section 3.8.1 |
//! | segment size | `path_mtu.rs` | RFC 8899, 1191, 8201 |
//! | questions about sequence numbers and timestamps | `sequence.rs` | RFC 9293 section 3.4, RFC 7323 |
//!
//! `connection/output.rs` adds the header fields of the receiving half.

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
mod sequence;
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
use self::queue::SendQueue;
use self::rate::RateControl;
use self::user_events::UserEvents;
use super::ctx::Ctx;
use super::open_params::{Agreed, OpenParams};
use super::timestamp_clock::TimestampClock;
use crate::facade::TcpSeqNumber;
use crate::{Duration, Event};

bitflags! {
    /// Transmissions that are due in addition to queued segments, the FIN and tail loss probes; and two flags
    /// for new segments.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    struct Pending: u8 {
        const SYN = 1;
        /// A segment without payload whose sequence number is below the window. Such a segment probes a zero
        /// window, is a keepalive, or makes the peer answer.
        const WINDOW_PROBE = 2;
        /// Not a transmission: the next new segment may be cut to the peer's window.
        const CUT = 4;
        /// Not a transmission: routers may mark new segments (RFC 3168), because ECN was agreed on and has
        /// not been disabled since.
        const ECT = 8;
    }
}

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
    retransmits: u64,
}

/// Statistics of the sending half, for [`ConnInfo`](super::ConnInfo).
#[derive(Clone, Copy, Debug)]
pub(super) struct SendInfo {
    pub(super) emss: u32,
    /// Position after the last pushed byte.
    pub(super) end: u64,
    pub(super) queued: u64,
    pub(super) srtt_us: u32,
    pub(super) rto: Duration,
    pub(super) cwnd: u32,
    pub(super) ssthresh: u32,
    pub(super) retransmits: u64,
}

impl SendHalf {
    /// Creates a sending half whose SYN has to be sent. `agreed` contains the offers of the SYN.
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

    #[inline]
    pub(super) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Called when the peer's SYN has arrived. `agreed` is what both SYNs agree on; `peer_mss` and `window`
    /// are the MSS option and the window of the SYN.
    pub(super) fn agree(&mut self, agreed: Agreed, peer_mss: Option<u16>, window: u16) {
        self.agreed = agreed;
        self.pending.set(Pending::ECT, agreed.ecn && self.syn_sends() <= 1);
        self.path.set_options(agreed.option_bytes());
        self.path.set_peer_mss(peer_mss);
        self.queue.window_mut().on_syn(u64::from(window));
    }

    pub(super) fn decline_ecn(&mut self) {
        self.agreed.ecn = false;
        self.pending.remove(Pending::ECT);
    }

    /// From now on, sends no segments that routers may mark.
    pub(super) fn stop_ect(&mut self) {
        self.pending.remove(Pending::ECT);
    }

    /// Requests that our SYN or SYN-ACK is sent, perhaps again.
    pub(super) fn send_syn(&mut self) {
        self.pending |= Pending::SYN;
    }

    /// Called if the SYN-ACK was already sent by an answer with a SYN cookie, before this control block
    /// existed.
    pub(super) fn on_syn_sent_before(&mut self) {
        self.pending.remove(Pending::SYN);
        self.queue.positions_mut().on_syn_sent();
    }

    /// Requests a segment without payload whose sequence number is below the window. Such a segment makes the
    /// peer answer.
    pub(super) fn send_window_probe(&mut self) {
        self.pending |= Pending::WINDOW_PROBE;
    }

    /// Called when the user has closed: a FIN follows the queued segments (RFC 9293 section 3.10.4).
    pub(super) fn close(&mut self) {
        self.queue.positions_mut().close();
    }

    /// Releases all memory in the slabs, and stops all timers.
    pub(super) fn dispose(&mut self, ctx: &mut Ctx<'_>) {
        self.queue.clear(ctx.segments);
        self.path.forget_search(ctx);
        self.loss.stop_timers();
    }

    pub(super) fn stop(&mut self) {
        self.pending = Pending::empty();
        self.loss.cancel_probe();
        self.queue.positions_mut().forget_fin();
        self.loss.stop_timers();
    }

    /// Called when the user has taken this event from the event queue.
    #[inline]
    pub(super) fn on_event_taken(&mut self, event: &Event) {
        self.events.on_taken(event);
    }

    /// Sets whether events report all acknowledgements of the peer.
    pub(super) fn report_acknowledgements(&mut self, on: bool) {
        self.events.report_acknowledgements(on);
    }

    pub(super) fn info(&self) -> SendInfo {
        SendInfo {
            emss: self.path.emss(),
            end: self.queue.end(),
            queued: self.queue.queued(),
            srtt_us: self.rate.srtt_us(),
            rto: self.rate.rto(),
            cwnd: self.rate.cwnd(),
            ssthresh: self.rate.ssthresh(),
            retransmits: self.retransmits,
        }
    }

    /// Number of bytes that are believed to be in the network (RFC 6675 section 4, `pipe`).
    #[inline]
    fn pipe(&self) -> u64 {
        self.loss.pipe(&self.queue, self.agreed.sack, self.path.emss())
    }

    /// The limit of [`pipe`](Self::pipe): the congestion window, or in fast recovery the limit of PRR.
    #[inline]
    fn send_limit(&self) -> u64 {
        self.loss.send_limit(&self.rate)
    }

    /// Called when a router reports that the segment or path MTU probe from `seq` on is too large, because
    /// the path carries only segments of `mss` (as [`OpenParams::mss`]; RFC 1191, RFC 8201). Returns whether
    /// such a segment or probe is in flight.
    pub(super) fn on_packet_too_big(&mut self, ctx: &mut Ctx<'_>, seq: TcpSeqNumber, mss: u16) -> bool {
        if self.covers_outstanding(seq) {
            self.set_path_mss(ctx, mss);
            return true;
        }
        let pos = self.position(seq);
        self.path.on_probe_too_big(ctx, pos, mss)
    }

    /// Notes that the path carries only segments of `mss`, and lowers the EMSS if needed.
    pub(super) fn set_path_mss(&mut self, ctx: &mut Ctx<'_>, mss: u16) {
        if self.path.on_report(ctx, mss) {
            self.on_emss_lowered(ctx);
        }
    }

    fn on_emss_lowered(&mut self, ctx: &mut Ctx<'_>) {
        let emss = self.path.emss();
        self.rate.set_emss(emss);
        self.queue.sent().mark_oversized(ctx.segments, emss);
        if self.queue.has_lost() {
            // The lost segments are retransmitted in a size that fits. Their acknowledgement reveals as much
            // as the tail loss probe would reveal.
            self.loss.cancel_probe();
        }
    }

    /// Loss recovery, and the other state that its steps read and change.
    fn loss_and_state(&mut self) -> (&mut LossRecovery, SendState<'_>) {
        let Self { queue, loss, rate, path, agreed, .. } = self;
        let range = queue.range();
        (loss, SendState { queue, range, rate, agreed: *agreed, emss: path.emss() })
    }
}
