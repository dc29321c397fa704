//! Builds segments. The sending half decides on the payload, the sequence number and most flags. The
//! receiving half decides on the acknowledgement, the window and ECE (RFC 9293 sections 3.1, 3.4 and 3.7).
//!
//! [`Tcb::next_transmission`] chooses the segment. Then the stack builds the frame, which may fail. After
//! that, [`Tcb::sent`] updates the state.

use super::Tcb;
use super::open::syn_window;
use crate::ip::Ecn;
use crate::tcp::State;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::{ACK_BIT, Flags, MAX_HEADER_BYTES, MIN_HEADER_BYTES, Options, TcpHeader, sack_room};
use crate::tcp::receive::SeparateAck;
use crate::tcp::send::{Outgoing, Payload, SendKind};
use crate::tcp::slabs::SegmentKey;

/// A segment to send. After sending the segment, the caller calls [`Tcb::sent`].
#[derive(Debug)]
pub(crate) struct Transmission {
    pub(crate) header: TcpHeader,
    pub(crate) payload: Option<Payload>,
    /// Number of queued segments in this transmission: the segment of `payload` and the segments that follow
    /// it (`send/train.rs`).
    pub(crate) segments: usize,
    /// ECN codepoint of the IP header.
    pub(crate) ecn: Ecn,
    kind: TransmissionKind,
}

/// A segment to send whose header has only usual fields. After sending the segment, the caller calls
/// [`Tcb::usual_sent`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsualSegment {
    /// The key of a new segment without external memory; `None` for a pure acknowledgement.
    pub(crate) payload: Option<SegmentKey>,
    /// Number of bytes of payload.
    pub(crate) bytes: usize,
    /// True if the payload is the last segment in the queue.
    pub(crate) is_last: bool,
    pub(crate) seq: u32,
    /// The control bits as in the header.
    pub(crate) control_bits: u8,
}

/// The header fields that are the same for all usual segments that a connection sends in one call of
/// [`Stack::transmit`](crate::Stack::transmit).
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsualHeader {
    pub(crate) ack: u32,
    pub(crate) window: u16,
    pub(crate) timestamps: (u32, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransmissionKind {
    Reset,
    Send(SendKind),
    Ack,
    /// An acknowledgement of only a part of the received bytes, sent to report the ECN mark of that part.
    SeparateAck,
}

impl Tcb {
    /// Whether [`next_transmission`](Self::next_transmission) may return a transmission. Even if the result
    /// is `true`, `next_transmission` may return `None`.
    #[inline]
    pub(crate) fn wants_transmit(&self) -> bool {
        self.rst_due || self.receive.is_ack_due() || self.send.wants_transmit()
    }

    /// Whether the peer's window is open and pacing allows a segment.
    /// [`wants_transmit`](Self::wants_transmit) also checks the congestion window, and segments of other
    /// kinds.
    #[inline]
    pub(crate) fn may_send_pushed(&self) -> bool {
        self.send.may_send_pushed()
    }

    /// The next segment to send, of any kind. This is the general path of [`next_usual`](Self::next_usual).
    /// Without a call of [`sent`](Self::sent), the next call returns the same segment. This call has side
    /// effects: it may cut a segment (to the EMSS, or to the peer's window if the persist timer has expired),
    /// drop acknowledged parts of a segment, and advance the search for lost segments.
    pub(crate) fn next_transmission(&mut self, ctx: &mut Ctx<'_>) -> Option<Transmission> {
        if self.rst_due {
            return Some(self.bare(ctx, TransmissionKind::Reset, self.send.nxt(), Flags::RST));
        }
        if matches!(self.state, State::SynSent | State::SynReceived) {
            if self.send.is_syn_next() {
                let flags = Flags::SYN | self.ecn_setup_flags(ctx.config);
                return Some(self.bare(ctx, TransmissionKind::Send(SendKind::Syn), 0, flags));
            }
            let answers = self.state == State::SynReceived && self.receive.is_ack_due();
            return answers.then(|| self.acknowledge(ctx));
        }
        if let Some(separate) = self.receive.separate_ack() {
            return Some(self.acknowledge_separately(ctx, separate));
        }
        // SACK blocks may not fit into a segment with data. So if an acknowledgement is due and there are
        // blocks, an acknowledgement without data is sent first.
        let ack = self.receive.is_ack_due();
        let has_blocks = self.send.agreed().sack && self.receive.has_sack_blocks();
        if ack && has_blocks {
            return Some(self.acknowledge(ctx));
        }
        match self.send.next(ctx) {
            Some(outgoing) => Some(self.complete(ctx, outgoing)),
            None => ack.then(|| self.acknowledge(ctx)),
        }
    }

    /// The header fields that are the same for all usual segments that are sent now. `None` if the header is
    /// not usual: in the usual case, the connection is established, ECN is not used, no SACK blocks have to
    /// be sent, and no acknowledgement is withheld. ([`next_usual`](Self::next_usual) checks that timestamps
    /// are used.)
    #[inline(always)]
    pub(crate) fn usual_header(&self, ctx: &Ctx<'_>) -> Option<UsualHeader> {
        if self.state != State::Established || !self.receive.has_usual_header() {
            return None;
        }
        Some(UsualHeader {
            ack: self.receive.seq(self.receive.nxt()).0 as u32,
            window: self.receive.window_field(ctx),
            timestamps: (self.send.timestamp(ctx.now), self.receive.ts_recent()),
        })
    }

    /// The fast path of [`next_transmission`](Self::next_transmission) for a new segment or a pure
    /// acknowledgement whose header is [usual](Self::usual_header). The fast path chooses the same segment.
    /// Returns `None` if another kind of segment, or no segment, has to be sent. In this case
    /// `next_transmission` decides.
    #[inline(always)]
    pub(crate) fn next_usual(&self, ctx: &Ctx<'_>) -> Option<UsualSegment> {
        let payload = self.send.next_usual(ctx)?;
        let (pos, bytes, is_last) = match payload {
            Some(key) => {
                let segment = ctx.segments.get(key);
                (segment.pos, segment.len as usize, segment.next.is_none())
            }
            None if self.receive.is_ack_due() => (self.send.nxt(), 0, false),
            None => return None,
        };
        let control_bits = if is_last { ACK_BIT | Flags::PSH.bits() } else { ACK_BIT };
        Some(UsualSegment { payload, bytes, is_last, seq: self.send.seq(pos).0 as u32, control_bits })
    }

    /// The fast path of [`sent`](Self::sent), with the same result. `segment` is the segment that
    /// [`next_usual`](Self::next_usual) returned last, and was sent with `header`. Returns `true` if nothing
    /// else may be sent now.
    #[inline(always)]
    pub(crate) fn usual_sent(
        &mut self,
        ctx: &mut Ctx<'_>,
        header: &UsualHeader,
        segment: &UsualSegment,
    ) -> bool {
        ctx.counters.tx_segments += 1;
        match segment.payload {
            Some(_) => self.send.on_new_sent(ctx),
            None => ctx.counters.tx_acks += 1,
        }
        self.receive.on_usual_sent(header.window);
        // A pure acknowledgement was sent only because no new segment may be sent now.
        segment.payload.is_none() || segment.is_last
    }

    /// Extends `transmission` to a train of up to `most` segments that are in at most `views` contiguous
    /// ranges of memory. Does not change the connection.
    pub(crate) fn extend_train(
        &self,
        ctx: &Ctx<'_>,
        transmission: &mut Transmission,
        (most, views): (usize, usize),
    ) {
        let Some(Payload::Segment(first)) = transmission.payload else { return };
        // Only one segment may have CWR, and a segment with PSH is the last segment of the queue, so neither
        // is extended.
        let is_new = transmission.kind == TransmissionKind::Send(SendKind::New);
        if !is_new || transmission.header.flags.intersects(Flags::CWR | Flags::PSH) {
            return;
        }
        let (segments, is_last) = self.send.train(ctx, first, (most, views));
        transmission.segments = segments;
        if is_last {
            transmission.header.flags |= Flags::PSH;
        }
    }

    /// Called when `transmission`, which [`next_transmission`](Self::next_transmission) returned last, was
    /// sent. This is the general path of [`usual_sent`](Self::usual_sent). Counts `tx_segments`,
    /// `tx_retransmits`, `tx_acks` and `tx_resets`.
    pub(crate) fn sent(&mut self, ctx: &mut Ctx<'_>, transmission: &Transmission) {
        let Transmission { header, payload, segments, kind, .. } = transmission;
        ctx.counters.tx_segments += *segments as u64;
        match kind {
            TransmissionKind::Reset => {
                ctx.counters.tx_resets += 1;
                self.rst_due = false;
                self.timer = None;
                return;
            }
            TransmissionKind::Send(kind) => self.send.on_sent(ctx, *kind, *payload, *segments),
            TransmissionKind::Ack => ctx.counters.tx_acks += 1,
            TransmissionKind::SeparateAck => {
                ctx.counters.tx_acks += 1;
                return self.receive.on_separate_ack_sent(header.window);
            }
        }
        if header.ack.is_some() {
            self.receive.on_ack_sent(header);
        }
    }

    /// Completes a segment of the sending half with the fields of the receiving half.
    #[inline]
    fn complete(&self, ctx: &Ctx<'_>, outgoing: Outgoing) -> Transmission {
        let Outgoing { kind, pos, flags, ecn, payload, spare_bytes } = outgoing;
        let header = self.header(ctx, pos, flags | self.echo_flags(), spare_bytes);
        Transmission { header, payload, segments: 1, ecn, kind: TransmissionKind::Send(kind) }
    }

    /// A pure acknowledgement.
    #[inline]
    fn acknowledge(&self, ctx: &Ctx<'_>) -> Transmission {
        let header = self.header(ctx, self.send.nxt(), self.echo_flags(), MAX_HEADER_BYTES);
        Transmission { header, payload: None, segments: 1, ecn: Ecn::NotEct, kind: TransmissionKind::Ack }
    }

    fn bare(&self, ctx: &Ctx<'_>, kind: TransmissionKind, pos: u64, flags: Flags) -> Transmission {
        let header = self.header(ctx, pos, flags, 0);
        Transmission { header, payload: None, segments: 1, ecn: Ecn::NotEct, kind }
    }

    /// A segment without payload that acknowledges the bytes up to `ack`, and reports the ECN mark of these
    /// bytes.
    fn acknowledge_separately(&self, ctx: &Ctx<'_>, SeparateAck { ack, on }: SeparateAck) -> Transmission {
        let flags = if on { Flags::ECE } else { Flags::empty() };
        let mut header = self.header(ctx, self.send.nxt(), flags, 0);
        // The segment acknowledges no bytes whose acknowledgement the user withholds.
        let ack = ack.min(self.receive.acknowledged());
        header.ack = Some(self.receive.seq(ack));
        header.window = self.receive.window_from(ack);
        Transmission {
            header,
            payload: None,
            segments: 1,
            ecn: Ecn::NotEct,
            kind: TransmissionKind::SeparateAck,
        }
    }

    /// The flag ECE while received marks are echoed, otherwise no flag.
    #[inline]
    fn echo_flags(&self) -> Flags {
        let mut flags = Flags::empty();
        flags.set(Flags::ECE, self.receive.is_echoing());
        flags
    }

    fn header(&self, ctx: &Ctx<'_>, pos: u64, flags: Flags, spare_bytes: usize) -> TcpHeader {
        let syn = flags.contains(Flags::SYN);
        let options = if syn {
            self.syn_options(ctx)
        } else {
            let agreed = self.send.agreed();
            let spare =
                spare_bytes.min(MAX_HEADER_BYTES - MIN_HEADER_BYTES - usize::from(agreed.option_bytes()));
            let blocks = if agreed.sack { sack_room(spare) } else { 0 };
            let sack = self.receive.sack_blocks(ctx.out_of_order, blocks);
            Options { timestamps: self.timestamps(ctx), sack, ..Options::default() }
        };
        let window = match syn {
            true => syn_window(ctx.config),
            false if self.receive.is_withholding() => self.receive.withheld_window(),
            false => self.receive.window_field(ctx),
        };
        TcpHeader {
            src_port: self.local_port,
            dst_port: self.remote_port,
            seq: self.send.seq(pos),
            ack: (!self.is_peer_unknown()).then(|| self.receive.ack()),
            flags,
            window: if flags.contains(Flags::RST) { 0 } else { window },
            options,
        }
    }

    /// Whether we have received nothing from the peer that we could acknowledge.
    fn is_peer_unknown(&self) -> bool {
        self.state == State::SynSent
    }

    /// TSval and TSecr of a segment that is sent now; `None` if timestamps were not agreed on.
    #[inline]
    pub(super) fn timestamps(&self, ctx: &Ctx<'_>) -> Option<(u32, u32)> {
        let agreed = self.send.agreed().timestamps;
        agreed.then(|| (self.send.timestamp(ctx.now), self.receive.ts_recent()))
    }
}
