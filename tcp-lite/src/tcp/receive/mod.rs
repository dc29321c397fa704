//! The receiving half of a connection: the frontier (the position of the next expected byte), the ranges
//! beyond it, the window, and acknowledgements (RFC 9293 section 3.10.7.4, "process the segment text", and
//! 3.8.6; RCV.NXT, RCV.WND).
//!
//! | what | where | document |
//! |---|---|---|
//! | payload, in order or beyond a hole | `payload.rs` | RFC 9293 sections 3.4, 3.10.7.4 |
//! | giving up bytes beyond a hole when there are too many | `held.rs`, `slabs/out_of_order.rs` | RFC 2018 section 8 |
//! | the window | `window.rs` | RFC 9293 section 3.8.6, RFC 7323 section 2 |
//! | SACK and D-SACK blocks | `sack.rs` | RFC 2018, RFC 2883 |
//! | when to acknowledge | `delayed_ack.rs` | RFC 9293 section 3.8.6.3, RFC 5681 section 4.2 |
//! | the peer's timestamps, PAWS | `timestamps.rs` | RFC 7323 sections 4.3 and 5 |
//! | acknowledgements that the user withholds | `withheld.rs` | our own addition |
//! | echo of marks | `ecn_echo.rs` | RFC 3168 section 6.1.3, RFC 8257 section 3.2 |
//!
//! Bytes are passed to the user when they arrive, in order or not, and only once: a segment that overlaps
//! received bytes is trimmed to its new parts. Therefore TCP holds no data, only ranges. While there is a
//! hole, the ranges are in a slab of the stack. Bytes that the user gives up under memory pressure count as
//! not received.

mod delayed_ack;
mod ecn_echo;
mod held;
mod invariants;
mod payload;
mod sack;
mod timestamps;
mod window;
mod withheld;

pub(super) use ecn_echo::{SeparateAck, is_ecn_setup};
pub(super) use held::MAX_EVICTED;

use std::num::NonZeroU64;

use dp::Mbuf;

use self::delayed_ack::DelayedAck;
use self::ecn_echo::Echo;
use self::timestamps::PeerTimestamps;
use super::ctx::Ctx;
use super::header::{Flags, TcpHeader};
use super::open_params::{Agreed, OpenParams, payload_of, window_shift};
use super::seq::{SeqSpace, offset_of};
use super::slabs::{OutOfOrderSlab, RangesKey};
use crate::facade::TcpSeqNumber;
use crate::ip::Ecn;
use crate::{Instant, OutOfOrder, TcpConfig};

/// The value of `fin` while the FIN is not known: a position after all other positions.
const NO_FIN: u64 = u64::MAX;

/// The receiving half of one connection. Positions are defined in `seq.rs`.
#[derive(Debug)]
pub(super) struct ReceiveHalf {
    space: SeqSpace,
    /// RCV.NXT: the position of the next expected byte (the frontier).
    nxt: u64,
    /// The right edge of the window, which never moves back.
    edge: u64,
    /// Shift of the windows that we announce.
    scale: u8,
    /// The MSS that we announce.
    mss: u16,
    /// Position of the peer's FIN; [`NO_FIN`] while the position is not known.
    fin: u64,
    /// The ranges that were received beyond the frontier; `None` if there is no hole.
    ranges: Option<RangesKey>,
    /// Bytes that were passed to the user and not released: bytes ahead of the frontier, and bytes in order
    /// that the user holds.
    held: OutOfOrder,
    /// Duplicate bytes that the next SACK reports (RFC 2883); `None` if the next SACK reports none.
    duplicate: Option<(NonZeroU64, u64)>,
    acks: DelayedAck,
    timestamps: PeerTimestamps,
    echo: Echo,
    agreed: Agreed,
    /// The position of the first byte whose acknowledgement the user withholds;
    /// [`NOTHING`](withheld::NOTHING) if the user withholds no acknowledgement.
    withheld: u64,
}

/// Result of processing the payload and the FIN of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PayloadOutcome {
    /// True if no byte was accepted, because memory is short or the event queue is full. In this case, an
    /// acknowledgement would report nothing new.
    pub(super) refused: bool,
    /// True if all bytes of the peer and its FIN have arrived.
    pub(super) finished: bool,
}

impl ReceiveHalf {
    /// The state before the peer's SYN or any other segment has arrived. `agreed` contains the offers of our
    /// SYN.
    pub(super) fn new(config: &TcpConfig, params: &OpenParams, agreed: Agreed) -> Self {
        let window_bytes = config.recv_window_bytes;
        Self {
            space: SeqSpace::new(TcpSeqNumber(0)),
            nxt: 1,
            // The window in our SYN, which is not scaled (RFC 7323 section 2.2).
            edge: 1 + u64::from(window_bytes.min(u32::from(u16::MAX))),
            scale: window_shift(window_bytes),
            mss: params.mss,
            fin: NO_FIN,
            ranges: None,
            held: OutOfOrder::default(),
            duplicate: None,
            acks: DelayedAck::default(),
            timestamps: PeerTimestamps::default(),
            echo: Echo::default(),
            agreed,
            withheld: withheld::NOTHING,
        }
    }

    /// Called when the peer's SYN has arrived: stores the parameters of the SYN. `agreed` is what both SYNs
    /// agree on.
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

    pub(super) fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    pub(super) fn decline_ecn(&mut self) {
        self.agreed.ecn = false;
    }

    /// Whether `seq` is the sequence number of the next expected byte and there is no hole.
    #[inline]
    pub(super) fn is_next(&self, seq: TcpSeqNumber) -> bool {
        self.ranges.is_none() && seq == self.space.seq(self.nxt)
    }

    #[inline]
    pub(super) fn is_syn(&self, seq: TcpSeqNumber) -> bool {
        seq == self.space.seq(0)
    }

    /// The position of one of the peer's sequence numbers.
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
        self.space.seq(self.acknowledged())
    }

    pub(super) fn mss(&self) -> u16 {
        self.mss
    }

    /// Position of the peer's FIN; `None` while the position is not known.
    pub(super) fn fin(&self) -> Option<u64> {
        (self.fin != NO_FIN).then_some(self.fin)
    }

    /// The stream offset of the frontier.
    pub(super) fn frontier(&self) -> u64 {
        offset_of(self.fin.min(self.nxt))
    }

    pub(super) fn held(&self) -> OutOfOrder {
        self.held
    }

    /// Whether a segment is acceptable: it begins at RCV.NXT or overlaps the window (RFC 9293 table 6). An
    /// empty segment at the right edge is acceptable as well: if a sender has filled our window, its
    /// acknowledgements have that sequence number.
    #[inline]
    pub(super) fn is_acceptable(&self, pos: i64, len: usize) -> bool {
        let (nxt, edge) = (self.nxt as i64, self.edge as i64);
        if pos == nxt {
            // With a zero window, the bytes are refused later, but the acknowledgement of the segment is
            // processed.
            return true;
        }
        match len {
            0 => nxt < pos && pos <= edge,
            len => pos < edge && pos + len as i64 > nxt,
        }
    }

    /// Requests an acknowledgement now.
    #[inline]
    pub(super) fn send_ack(&mut self) {
        self.acks.send_now();
    }

    /// If received bytes are not acknowledged yet, requests an acknowledgement now.
    pub(super) fn acknowledge_early(&mut self) {
        if self.acks.has_unacknowledged() {
            self.acks.send_now();
        }
    }

    /// Whether an acknowledgement has to be sent now. The result is `false` while the user withholds the
    /// acknowledgement of bytes that have arrived.
    #[inline]
    pub(super) fn is_ack_due(&self) -> bool {
        self.acks.is_due() && !self.is_withholding()
    }

    /// The time at which [`on_timer`](Self::on_timer) has to be called; `None` if no acknowledgement is
    /// delayed.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.acks.deadline()
    }

    /// Runs the delayed acknowledgement timer.
    pub(super) fn on_timer(&mut self, now: Instant) {
        self.acks.on_timer(now);
    }

    /// Handles the ECN bits of a segment with payload.
    pub(super) fn on_ecn(&mut self, ctx: &mut Ctx<'_>, flags: Flags, ecn: Ecn) {
        if !self.agreed.ecn {
            return;
        }
        let marked = ecn == Ecn::Ce;
        ctx.counters.rx_congestion_experienced += u64::from(marked);
        if self.echo.on_data(ctx.config, marked, flags, self.nxt, self.acks.has_unacknowledged()) {
            self.acks.send_now();
        }
    }

    /// Whether a segment with this sequence number, payload and timestamp is next in order, new, and within
    /// the window. `false` if ECN is used or the peer's FIN is known.
    #[inline]
    pub(super) fn predicts(&self, seq: TcpSeqNumber, bytes: usize, timestamp: u32) -> bool {
        self.is_next(seq)
            && !self.agreed.ecn
            && self.fin == NO_FIN
            && self.timestamps.is_newest(timestamp)
            && self.nxt + bytes as u64 <= self.edge
    }

    /// Stores the timestamp of a segment that [`predicts`](Self::predicts) accepts, if we have acknowledged
    /// all earlier bytes (RFC 7323 section 4.3).
    #[inline]
    pub(super) fn learn_next_timestamp(&mut self, ctx: &Ctx<'_>, timestamp: u32) {
        if self.nxt <= self.acks.last_ack_sent() {
            self.timestamps.set(ctx, timestamp);
        }
    }

    /// Passes the payload of a segment that [`predicts`](Self::predicts) accepts to the user, and decides
    /// when to acknowledge the payload. The event queue must have room.
    #[inline]
    pub(super) fn on_next_payload(&mut self, ctx: &mut Ctx<'_>, payload: Mbuf) {
        let (start, bytes) = (self.nxt, payload.len());
        self.nxt += bytes as u64;
        ctx.received(offset_of(start), payload, offset_of(self.nxt));
        self.acks.count(1, bytes);
        self.acknowledge_in_time(ctx);
    }

    /// Requests an acknowledgement: now if enough was received, otherwise after the delay.
    #[inline]
    fn acknowledge_in_time(&mut self, ctx: &Ctx<'_>) {
        // Two full segments may have been merged to one. The payload of a full segment has MSS bytes, less
        // the bytes of the options.
        if self.acks.is_enough(payload_of(self.mss, self.agreed.option_bytes())) {
            self.acks.send_now();
        } else {
            self.acks.delay(ctx.now + ctx.config.delayed_ack);
        }
    }

    /// Processes the payload of an acceptable segment at `pos`, which arrived in `segments` segments. Passes
    /// the new bytes to the user, accepts the FIN when the frontier reaches the FIN, and decides when to
    /// acknowledge.
    pub(super) fn on_payload(
        &mut self,
        ctx: &mut Ctx<'_>,
        pos: i64,
        (payload, segments): (Mbuf, usize),
        fin: bool,
    ) -> PayloadOutcome {
        let bytes = payload.len();
        let mut refused = false;
        if bytes > 0 {
            let arrival = self.take(ctx, pos, payload);
            if arrival.advanced {
                self.acks.count(segments, bytes);
            }
            if arrival.refused {
                refused = true;
            } else if arrival.ack_now {
                self.acks.send_now();
            } else {
                self.acknowledge_in_time(ctx);
            }
        }
        if fin {
            self.acks.send_now();
            self.take_fin(ctx.out_of_order, pos + bytes as i64);
        }
        PayloadOutcome { refused, finished: self.is_stream_complete() }
    }

    /// Whether all bytes of the peer and its FIN have arrived.
    pub(super) fn is_stream_complete(&self) -> bool {
        self.nxt > self.fin
    }

    /// Handles the peer's FIN at position `end`. Only the first FIN is stored. When the frontier reaches the
    /// FIN, the frontier moves past it. A FIN outside the window is ignored. A FIN below bytes that have
    /// arrived is also ignored, because no bytes follow a FIN (RFC 9293 section 3.4).
    fn take_fin(&mut self, out_of_order: &OutOfOrderSlab, end: i64) {
        if end < self.nxt as i64 || end > self.edge as i64 {
            return;
        }
        let pos = end as u64;
        if self.ranges.is_some_and(|key| out_of_order.get(key).end() > pos) {
            return;
        }
        if self.fin == NO_FIN {
            self.fin = pos;
        }
        if self.fin == self.nxt {
            self.nxt += 1;
        }
    }

    /// Called when a segment with this header was sent. Every segment with ACK acknowledges received bytes.
    /// But while there are SACK blocks to report, the request for an acknowledgement stays until a segment
    /// with SACK blocks is sent.
    #[inline]
    pub(super) fn on_ack_sent(&mut self, header: &TcpHeader) {
        let ack = self.acknowledged();
        if !header.flags.contains(Flags::SYN) {
            self.on_window_sent(ack, header.window);
        }
        if self.is_withholding() {
            return self.acks.on_separate_sent(ack);
        }
        self.acks.on_sent(ack);
        if !header.options.sack.is_empty() {
            self.on_sack_sent();
        } else if self.agreed.sack && self.has_sack_blocks() {
            return;
        }
        self.acks.clear_due();
    }

    /// Whether the header of a segment that is sent now has only usual fields: ECN is not used, no SACK
    /// blocks have to be sent, and no acknowledgement is withheld.
    #[inline]
    pub(super) fn has_usual_header(&self) -> bool {
        !self.has_sack_blocks() && !self.agreed.ecn && self.withheld == withheld::NOTHING
    }

    /// Called when a segment whose header [is usual](Self::has_usual_header) was sent with this window.
    #[inline]
    pub(super) fn on_usual_sent(&mut self, window: u16) {
        self.on_window_sent(self.nxt, window);
        self.acks.on_sent(self.nxt);
        self.acks.clear_due();
    }

    /// Whether PAWS rejects this segment because of its timestamp (RFC 7323 section 5).
    #[inline]
    pub(super) fn is_old(&self, ctx: &Ctx<'_>, header: &TcpHeader) -> bool {
        self.agreed.timestamps && self.timestamps.is_old(ctx, header)
    }

    /// Updates TS.Recent from an acceptable segment at `pos` (RFC 7323 section 4.3).
    #[inline]
    pub(super) fn learn_timestamp(&mut self, ctx: &Ctx<'_>, header: &TcpHeader, pos: i64) {
        if self.agreed.timestamps {
            self.timestamps.learn(ctx, header, pos, self.acks.last_ack_sent());
        }
    }

    /// TSecr of a segment that is sent now: TS.Recent.
    #[inline]
    pub(super) fn ts_recent(&self) -> u32 {
        self.timestamps.recent()
    }

    #[inline]
    pub(super) fn is_echoing(&self) -> bool {
        self.agreed.ecn && self.echo.is_on()
    }

    /// The separate acknowledgement, which has to be sent before anything else; `None` if no separate
    /// acknowledgement is needed.
    #[inline]
    pub(super) fn separate_ack(&self) -> Option<SeparateAck> {
        self.echo.separate()
    }

    pub(super) fn on_separate_ack_sent(&mut self, window: u16) {
        if let Some(ack) = self.echo.take_separate() {
            self.on_window_sent(ack, window);
            self.acks.on_separate_sent(ack);
        }
    }

    #[inline]
    pub(super) fn seq(&self, pos: u64) -> TcpSeqNumber {
        self.space.seq(pos)
    }

    /// Called when the peer has closed and its whole stream has arrived: requests an acknowledgement of the
    /// whole stream.
    pub(super) fn on_stream_complete(&mut self) {
        // The peer sends no more data, so there is no reason to withhold an acknowledgement.
        self.withheld = withheld::NOTHING;
        self.acks.send_now();
    }

    /// Releases all memory in the slabs and stops the timer.
    pub(super) fn dispose(&mut self, ctx: &mut Ctx<'_>) {
        self.forget_ranges(ctx.out_of_order);
        self.release(ctx, usize::MAX);
        self.pin(ctx, 0);
        self.acks.stop_timer();
    }

    /// Called when the connection has ended: no more acknowledgements are sent.
    pub(super) fn stop(&mut self) {
        self.echo.stop();
        self.acks.stop_timer();
        self.acks.clear_due();
    }

    pub(super) fn forget_ranges(&mut self, slab: &mut OutOfOrderSlab) {
        if let Some(key) = self.ranges.take() {
            slab.remove(key);
        }
    }
}
