//! The receiving half of a connection: the frontier, what arrived beyond it, the window, and what
//! is to be acknowledged and how (RFC 9293 section 3.10.7.4, "process the segment text", and 3.8.6;
//! RCV.NXT, RCV.WND).
//!
//! | what | where | document |
//! |---|---|---|
//! | payload arrives, in order or not | `payload.rs` | RFC 9293 sections 3.4, 3.10.7.4 |
//! | who gives up what when too much waits ahead of a hole | `held.rs`, `slabs/reorder.rs` | RFC 2018 section 8 |
//! | the window | `window.rs` | RFC 9293 section 3.8.6, RFC 7323 section 2 |
//! | SACK and D-SACK blocks | `sack.rs` | RFC 2018, RFC 2883 |
//! | when to acknowledge | `delayed_ack.rs` | RFC 9293 section 3.8.6.3, RFC 5681 section 4.2 |
//! | the peer's timestamps, PAWS | `timestamps.rs` | RFC 7323 sections 4.3 and 5 |
//! | marks that are echoed | `ecn_echo.rs` | RFC 3168 section 6.1.3, RFC 8257 section 3.2 |
//!
//! Bytes are handed up when they arrive, in order or not, and never again: a segment that overlaps
//! what was handed up is trimmed to its new parts. So TCP holds no data, only ranges, and those
//! live in a slab of the stack while there is a hole. What its user gives up again under pressure
//! counts as not received.
//!
//! It knows nothing of the sending half. Its fields are its own; `connection` asks for them by
//! methods.

mod check;
mod delayed_ack;
mod ecn_echo;
mod held;
mod payload;
mod sack;
mod timestamps;
mod window;

pub(super) use ecn_echo::{Earlier, is_ecn_setup};
pub(super) use held::MAX_EVICTED;

use dp::Mbuf;

use self::delayed_ack::DelayedAck;
use self::ecn_echo::Echo;
use self::timestamps::PeerTimestamps;
use super::birth::{Agreed, Birth, payload_of, window_shift};
use super::ctx::Ctx;
use super::header::{Flags, TcpHeader};
use super::seq::SeqSpace;
use super::slabs::{RangesKey, ReorderSlab};
use crate::facade::TcpSeqNumber;
use crate::ip::Ecn;
use crate::{Instant, OutOfOrder, TcpConfig};

/// The receiving half of one connection. Positions as in `seq.rs`.
#[derive(Debug)]
pub(super) struct ReceiveHalf {
    space: SeqSpace,
    /// RCV.NXT, the frontier.
    nxt: u64,
    /// The right edge of the window, never taken back.
    edge: u64,
    /// Shift of the windows we announce.
    scale: u8,
    /// The MSS we announce.
    mss: u16,
    /// Where the peer's FIN stands, once known.
    fin: Option<u64>,
    /// What arrived beyond the frontier, while there is a hole.
    ranges: Option<RangesKey>,
    /// Bytes handed up and not released: ahead of the frontier, or in order and held all the same.
    held: OutOfOrder,
    /// Bytes that arrived twice, to be reported (RFC 2883).
    duplicate: Option<(u64, u64)>,
    acks: DelayedAck,
    timestamps: PeerTimestamps,
    echo: Echo,
    agreed: Agreed,
}

/// What followed from a segment with payload or a FIN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Nothing of it was taken, for want of room: an acknowledgement would say nothing new.
    pub(super) refused: bool,
    /// All the peer's bytes and its FIN are here.
    pub(super) finished: bool,
}

impl ReceiveHalf {
    /// Nothing has arrived, not even the SYN. `agreed`: what ours offers.
    pub(super) fn new(config: &TcpConfig, birth: &Birth, agreed: Agreed) -> Self {
        let window_bytes = config.recv_window_bytes;
        Self {
            space: SeqSpace::new(TcpSeqNumber(0)),
            nxt: 1,
            // What our SYN announces, which is not scaled (RFC 7323 section 2.2).
            edge: 1 + u64::from(window_bytes.min(u32::from(u16::MAX))),
            scale: window_shift(window_bytes),
            mss: birth.mss,
            fin: None,
            ranges: None,
            held: OutOfOrder::default(),
            duplicate: None,
            acks: DelayedAck::default(),
            timestamps: PeerTimestamps::default(),
            echo: Echo::default(),
            agreed,
        }
    }

    /// The peer's SYN has arrived, and this was agreed on.
    pub(super) fn agree(&mut self, ctx: &Ctx<'_>, agreed: Agreed, syn: &TcpHeader) {
        self.agreed = agreed;
        self.space = SeqSpace::new(syn.seq);
        if agreed.window_scale.is_none() {
            self.scale = 0;
        }
        if let Some((value, _)) = syn.options.timestamps {
            self.timestamps.set(ctx, value);
        }
    }

    /// The connection is not capable of ECN after all.
    pub(super) fn decline_ecn(&mut self) {
        self.agreed.ecn = false;
    }

    /// Whether `seq` is at the frontier, with nothing beyond it.
    #[inline]
    pub(super) fn is_next(&self, seq: TcpSeqNumber) -> bool {
        self.ranges.is_none() && seq == self.space.seq(self.nxt)
    }

    /// Whether this is the sequence number of the peer's SYN.
    #[inline]
    pub(super) fn is_syn(&self, seq: TcpSeqNumber) -> bool {
        seq == self.space.seq(0)
    }

    /// The position of a sequence number of the peer's.
    #[inline]
    pub(super) fn position(&self, seq: TcpSeqNumber) -> i64 {
        self.space.pos(seq, self.nxt)
    }

    /// RCV.NXT, as a position.
    #[inline]
    pub(super) fn nxt(&self) -> u64 {
        self.nxt
    }

    /// The acknowledgement number to send.
    #[inline]
    pub(super) fn ack(&self) -> TcpSeqNumber {
        self.space.seq(self.nxt)
    }

    /// The MSS we announce.
    pub(super) fn mss(&self) -> u16 {
        self.mss
    }

    /// Where the peer's FIN stands, once known.
    pub(super) fn fin(&self) -> Option<u64> {
        self.fin
    }

    /// The stream offset of the frontier.
    pub(super) fn frontier(&self) -> u64 {
        self.fin.unwrap_or(self.nxt).min(self.nxt) - 1
    }

    /// What waits ahead of the frontier.
    pub(super) fn held(&self) -> OutOfOrder {
        self.held
    }

    /// RFC 9293 table 6, by overlap. A window's right edge itself is acceptable for a segment
    /// without length: a sender that filled our window acknowledges from there.
    #[inline]
    pub(super) fn is_acceptable(&self, pos: i64, len: usize) -> bool {
        let (nxt, edge) = (self.nxt as i64, self.edge as i64);
        if pos == nxt {
            // With a zero window the bytes are refused, but the acknowledgement counts.
            return true;
        }
        match len {
            0 => nxt < pos && pos <= edge,
            len => pos < edge && pos + len as i64 > nxt,
        }
    }

    /// An acknowledgement is to be sent now.
    #[inline]
    pub(super) fn send_ack(&mut self) {
        self.acks.send_now();
    }

    /// Whether an acknowledgement is to be sent now.
    #[inline]
    pub(super) fn is_ack_due(&self) -> bool {
        self.acks.is_due()
    }

    /// When [`on_timer`](Self::on_timer) wants to be called.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.acks.deadline()
    }

    /// The delayed acknowledgement, if it is due.
    pub(super) fn on_timer(&mut self, now: Instant) {
        self.acks.on_timer(now);
    }

    /// A segment with new bytes and its mark.
    pub(super) fn on_ecn(&mut self, ctx: &mut Ctx<'_>, flags: Flags, ecn: Ecn) {
        if !self.agreed.ecn {
            return;
        }
        let marked = ecn == Ecn::Ce;
        ctx.counters.rx_congestion_experienced += u64::from(marked);
        if self.echo.on_data(ctx.config, marked, flags, self.nxt, self.acks.is_owed()) {
            self.acks.send_now();
        }
    }

    /// Takes what an acceptable segment at `pos` carries, in so many segments: hands up what is
    /// new, takes the FIN when the frontier reaches it, and decides when to acknowledge.
    pub(super) fn on_payload(
        &mut self,
        ctx: &mut Ctx<'_>,
        pos: i64,
        (payload, segments): (Mbuf, usize),
        fin: bool,
    ) -> Outcome {
        let bytes = payload.len();
        let mut refused = false;
        if bytes > 0 {
            let arrival = self.take(ctx, pos, payload);
            if arrival.advanced {
                self.acks.count(segments, bytes);
            }
            // Two full segments may have come as one: full is what the options leave of the MSS.
            let full = payload_of(self.mss, self.agreed.option_bytes());
            if arrival.refused {
                refused = true;
            } else if arrival.urgent || self.acks.is_enough(full) {
                self.acks.send_now();
            } else {
                self.acks.delay(ctx.now + ctx.config.delayed_ack);
            }
        }
        if fin {
            self.acks.send_now();
            self.take_fin(ctx.reorder, pos + bytes as i64);
        }
        Outcome { refused, finished: self.is_finished() }
    }

    /// Whether all the peer's bytes and its FIN are here.
    pub(super) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.nxt > fin)
    }

    /// The peer's FIN stands at `end`; the first one counts, and the frontier passes it when it is
    /// there. One below bytes that have arrived is none: nothing follows a FIN (RFC 9293 section
    /// 3.4).
    fn take_fin(&mut self, reorder: &ReorderSlab, end: i64) {
        if end < self.nxt as i64 || end > self.edge as i64 {
            return;
        }
        let pos = end as u64;
        if self.ranges.is_some_and(|key| reorder.get(key).end() > pos) {
            return;
        }
        if *self.fin.get_or_insert(pos) == self.nxt {
            self.nxt += 1;
        }
    }

    /// A segment with this header was sent. Whatever has an ACK acknowledges; but while there are
    /// SACK blocks to tell, only what tells them.
    #[inline]
    pub(super) fn on_ack_sent(&mut self, header: &TcpHeader) {
        if !header.flags.contains(Flags::SYN) {
            self.on_window_sent(self.nxt, header.window);
        }
        self.acks.on_sent(self.nxt);
        if !header.options.sack.is_empty() {
            self.on_sack_sent();
        } else if self.agreed.sack && self.has_sack_blocks() {
            return;
        }
        self.acks.clear_due();
    }

    /// Whether this segment is older than the newest, by its timestamp (PAWS).
    #[inline]
    pub(super) fn is_old(&self, ctx: &Ctx<'_>, header: &TcpHeader) -> bool {
        self.agreed.timestamps && self.timestamps.is_old(ctx, header)
    }

    /// Takes the timestamp of a segment at `pos` that was found acceptable.
    #[inline]
    pub(super) fn learn_timestamp(&mut self, ctx: &Ctx<'_>, header: &TcpHeader, pos: i64) {
        if self.agreed.timestamps {
            self.timestamps.learn(ctx, header, pos, self.acks.last_sent());
        }
    }

    /// TSecr of a segment sent now; what the peer said last.
    #[inline]
    pub(super) fn ts_recent(&self) -> u32 {
        self.timestamps.recent()
    }

    /// Whether acknowledgements echo marks now (ECE).
    #[inline]
    pub(super) fn is_echoing(&self) -> bool {
        self.agreed.ecn && self.echo.is_on()
    }

    /// What is to be acknowledged ahead of everything else that is sent.
    #[inline]
    pub(super) fn earlier_ack(&self) -> Option<Earlier> {
        self.echo.earlier()
    }

    /// That was done.
    pub(super) fn on_earlier_ack_sent(&mut self, window: u16) {
        if let Some(ack) = self.echo.take_earlier() {
            self.on_window_sent(ack, window);
            self.acks.on_earlier_sent(ack);
        }
    }

    /// The acknowledgement number of an earlier acknowledgement.
    pub(super) fn seq(&self, pos: u64) -> TcpSeqNumber {
        self.space.seq(pos)
    }

    /// The peer has closed, and all of its stream is here.
    pub(super) fn on_finished(&mut self) {
        self.acks.send_now();
    }

    /// Gives back what is shared, and stops the timer: nothing of it is counted any more.
    pub(super) fn dispose(&mut self, ctx: &mut Ctx<'_>) {
        self.forget_ranges(ctx.reorder);
        self.release(ctx, usize::MAX);
        self.pin(ctx, 0);
        self.acks.stop_timer();
    }

    /// The connection is over: nothing is acknowledged any more.
    pub(super) fn stop(&mut self) {
        self.echo.stop();
        self.acks.stop_timer();
        self.acks.clear_due();
    }

    /// Gives the range set back.
    pub(super) fn forget_ranges(&mut self, slab: &mut ReorderSlab) {
        if let Some(key) = self.ranges.take() {
            slab.remove(key);
        }
    }
}
