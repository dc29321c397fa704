//! What is sent next (RFC 9293 section 3.10.8 and the sending half of 3.7, RFC 5681 section 3).
//!
//! [`Tcb::next_transmission`] looks, [`Tcb::sent`] books: in between the stack builds the frame, and may fail.

use super::ctx::Ctx;
use super::ecn::Earlier;
use super::frto::Frto;
use super::header::{Flags, HEADER_OCTETS, MAX_HEADER_OCTETS, Options, TcpHeader, sack_room};
use super::path_mtu::SearchKey;
use super::recovery::Phase;
use super::send::SegmentKey;
use super::tcb::{Fin, Pending, State, Tcb};
use crate::ip::Ecn;

/// A segment to put on the wire, and to report with [`Tcb::sent`] when it was.
#[derive(Debug)]
pub(crate) struct Transmission {
    /// Header to emit.
    pub(crate) header: TcpHeader,
    pub(crate) payload: Option<Payload>,
    /// Queued segments in it: that of `payload` and those behind it (`train.rs`).
    pub(crate) segments: usize,
    /// What the IP header says of marks.
    pub(crate) ecn: Ecn,
    pub(super) kind: Kind,
}

/// What a segment carries, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// A segment of [`SegmentSlab`](super::SegmentSlab).
    Segment(SegmentKey),
    /// A probe of the path's MTU, of [`SearchSlab`](super::SearchSlab).
    Probe(SearchKey),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Reset,
    Syn,
    Fresh,
    Repair,
    /// A tail loss probe, of fresh octets or of the last ones again.
    Tail,
    Fin,
    Probe,
    /// A probe of the path's MTU.
    Path,
    Ack,
    /// An acknowledgement of less than has arrived, for its mark.
    EarlierAck,
}

impl Tcb {
    /// Whether [`next_transmission`](Self::next_transmission) may have something. May say yes in vain, never no.
    pub(crate) fn wants_transmit(&self) -> bool {
        let now = Pending::SYN | Pending::ACK | Pending::RST | Pending::PROBE | Pending::TAIL;
        self.pending.intersects(now)
            || self.snd.lost_octets > 0 && (self.repair_allowed() || self.snd.repair == self.snd.head)
            || self.snd.unsent.is_some() && self.fresh_allowed() && self.snd.nxt < self.window.edge
            || self.is_fin_next()
            || self.is_probe_next()
    }

    /// What is to be sent next. Asking changes nothing but cuts of an oversized segment, of which acknowledged pieces are
    /// dropped; asking again without [`sent`](Self::sent) gives the same.
    pub(crate) fn next_transmission(&mut self, ctx: &mut Ctx<'_>) -> Option<Transmission> {
        if self.pending.contains(Pending::RST) {
            return Some(self.bare(ctx, Kind::Reset, self.snd.nxt, Flags::RST));
        }
        if matches!(self.state, State::SynSent | State::SynReceived) {
            if self.pending.contains(Pending::SYN) {
                return Some(self.bare(ctx, Kind::Syn, 0, Flags::SYN));
            }
            let answers = self.state == State::SynReceived && self.pending.contains(Pending::ACK);
            return answers.then(|| self.bare(ctx, Kind::Ack, self.snd.nxt, Flags::empty()));
        }
        if let Some(earlier) = self.earlier_ack() {
            return Some(self.acknowledge_earlier(ctx, earlier));
        }
        // SACK blocks may find no room beside data: they go ahead.
        let ack = self.pending.contains(Pending::ACK);
        if ack && self.agreed.sack && self.rcv.has_sack_blocks() {
            return Some(self.bare(ctx, Kind::Ack, self.snd.nxt, Flags::empty()));
        }
        if self.pending.contains(Pending::TAIL) && self.snd.in_flight() > 0 {
            return match self.tail(ctx) {
                Some(key) => Some(self.data(ctx, Kind::Tail, key)),
                None => Some(self.bare(ctx, Kind::Fin, self.snd.end, Flags::FIN)),
            };
        }
        if let Some(key) = self.repairable(ctx) {
            return Some(self.data(ctx, Kind::Repair, key));
        }
        if let Some((key, pos)) = self.ready_probe(ctx) {
            return Some(self.path_probe(ctx, key, pos));
        }
        if let Some(key) = self.sendable(ctx) {
            return Some(self.data(ctx, Kind::Fresh, key));
        }
        if self.is_fin_next() {
            return Some(self.bare(ctx, Kind::Fin, self.snd.end, Flags::FIN));
        }
        if self.pending.contains(Pending::PROBE) {
            // An old sequence number makes the peer answer, and carries nothing (section 3.8.4).
            return Some(self.bare(ctx, Kind::Probe, self.snd.una.saturating_sub(1), Flags::empty()));
        }
        ack.then(|| self.bare(ctx, Kind::Ack, self.snd.nxt, Flags::empty()))
    }

    /// `transmission`, the last that [`next_transmission`](Self::next_transmission) gave, went out.
    /// Counts `tx_segments`, `tx_retransmits`, `tx_acks`, `tx_resets`.
    pub(crate) fn sent(&mut self, ctx: &mut Ctx<'_>, transmission: &Transmission) {
        let Transmission { header, payload, segments, kind, .. } = transmission;
        ctx.counters.tx_segments += *segments as u64;
        match kind {
            Kind::Reset => {
                ctx.counters.tx_resets += 1;
                self.pending = Pending::empty();
                self.timers.stop();
                return;
            }
            Kind::Syn => {
                self.pending.remove(Pending::SYN);
                self.snd.nxt = self.snd.nxt.max(1);
                self.timers.control_sent_at = ctx.now;
                self.timers.syn_sends = self.timers.syn_sends.saturating_add(1);
                if self.timers.syn_sends > 1 {
                    ctx.counters.tx_retransmits += 1;
                    self.retransmits += 1;
                }
            }
            Kind::Fresh => (0..*segments).for_each(|_| self.on_fresh_sent(ctx)),
            Kind::Repair => {
                if let Some(Payload::Segment(key)) = *payload {
                    self.on_resent(ctx, key);
                }
            }
            Kind::Tail => {
                if let Some(Payload::Segment(key)) = *payload {
                    self.on_tail_sent(ctx, key);
                }
            }
            Kind::Fin => {
                if self.snd.nxt > self.snd.end {
                    ctx.counters.tx_retransmits += 1;
                    self.retransmits += 1;
                } else {
                    if self.snd.in_flight() == 0 {
                        self.timers.progress = ctx.now;
                    }
                    self.timers.tail_from = ctx.now;
                }
                if self.pending.contains(Pending::TAIL) {
                    self.on_probe_sent(ctx, self.snd.end + 1, true);
                }
                self.fin = Fin::Sent;
                self.timers.control_sent_at = ctx.now;
                self.snd.nxt = self.snd.end + 1;
            }
            Kind::Probe => self.pending.remove(Pending::PROBE),
            Kind::Path => {
                if let Some(Payload::Probe(key)) = *payload {
                    self.on_path_probe_sent(ctx, key);
                }
            }
            Kind::Ack => ctx.counters.tx_acks += 1,
            Kind::EarlierAck => {
                ctx.counters.tx_acks += 1;
                self.timers.last_sent = ctx.now;
                return self.on_earlier_ack_sent(header.window);
            }
        }
        self.timers.last_sent = ctx.now;
        if header.ack.is_some() {
            self.on_ack_sent(header);
        }
        self.arm_resend(ctx);
    }

    fn on_fresh_sent(&mut self, ctx: &mut Ctx<'_>) {
        if self.snd.in_flight() == 0 {
            self.timers.progress = ctx.now;
        }
        let len = self.snd.on_sent(ctx.segments, ctx.now);
        self.recovery.prr.on_sent(u64::from(len));
        self.pace(ctx, len);
        self.recovery.frto.on_fresh();
        self.on_cwr_sent();
        self.timers.tail_from = ctx.now;
        self.pending.remove(Pending::CUT);
    }

    fn on_resent(&mut self, ctx: &mut Ctx<'_>, key: SegmentKey) {
        ctx.counters.tx_retransmits += 1;
        self.retransmits += 1;
        let recovering = self.recovery.phase != Phase::Open;
        self.snd.on_resent(ctx.segments, key, ctx.now, recovering);
        let len = ctx.segments.get(key).len;
        self.pace(ctx, len);
        if recovering {
            self.recovery.prr.on_sent(u64::from(len));
            self.recovery.undo.on_resent(ctx.now, len);
        }
    }

    fn on_tail_sent(&mut self, ctx: &mut Ctx<'_>, key: SegmentKey) {
        let again = self.snd.unsent != Some(key);
        if again {
            self.on_resent(ctx, key);
        } else {
            self.on_fresh_sent(ctx);
        }
        self.on_probe_sent(ctx, ctx.segments.get(key).end(), again);
    }

    fn on_probe_sent(&mut self, ctx: &mut Ctx<'_>, end: u64, again: bool) {
        ctx.counters.tail_loss_probes += 1;
        self.pending.remove(Pending::TAIL);
        self.recovery.tail.on_sent(end, self.snd.nxt, again);
        self.timers.patience = ctx.now + self.rtt.rto();
    }

    /// Whatever has an ACK acknowledges; but while there are SACK blocks to tell, only what tells them.
    fn on_ack_sent(&mut self, header: &TcpHeader) {
        if !header.flags.contains(Flags::SYN) {
            self.rcv.on_window_sent(self.rcv.nxt, header.window);
        }
        self.last_ack_sent = self.rcv.nxt;
        self.unacked_segments = 0;
        self.unacked_octets = 0;
        self.timers.delayed_ack = None;
        if !header.options.sack.is_empty() {
            self.rcv.on_sack_sent();
        } else if self.agreed.sack && self.rcv.has_sack_blocks() {
            return;
        }
        self.pending.remove(Pending::ACK);
    }

    /// Octets in flight leave room in the congestion window: for a whole segment, since that is the unit.
    fn cwnd_allows(&self) -> bool {
        self.pipe() < self.cwnd()
    }

    /// Whether congestion and pacing let a segment out again that is not the oldest.
    fn repair_allowed(&self) -> bool {
        self.cwnd_allows() && self.pace.is_open()
    }

    /// Whether congestion and pacing, or F-RTO, let a fresh segment out.
    fn fresh_allowed(&self) -> bool {
        match self.recovery.frto {
            Frto::Off => self.cwnd_allows() && self.pace.is_open(),
            Frto::Resent => false,
            Frto::Fresh(left) => left > 0,
        }
    }

    /// Whether there is a fresh segment that the peer's window takes.
    pub(super) fn is_fresh_sendable(&self, ctx: &Ctx<'_>) -> bool {
        self.snd.unsent.is_some_and(|key| ctx.segments.get(key).end() <= self.window.edge)
    }

    /// What a tail loss probe carries: fresh octets, whatever the congestion window, or else the last ones again
    /// (RFC 8985 section 7.3). `None`: only our FIN is in flight.
    fn tail(&mut self, ctx: &mut Ctx<'_>) -> Option<SegmentKey> {
        if self.is_fresh_sendable(ctx)
            && let Some(key) = self.snd.unsent
        {
            self.fit_emss(ctx, key);
            return Some(key);
        }
        self.snd.last_sent(ctx.segments)
    }

    pub(super) fn is_fin_next(&self) -> bool {
        self.fin == Fin::Due
            && self.snd.unsent.is_none()
            && self.snd.lost_octets == 0
            && !matches!(self.state, State::SynReceived | State::SynSent | State::Closed | State::TimeWait)
    }

    /// The next lost segment, when it may be sent again. The oldest always may.
    fn repairable(&mut self, ctx: &mut Ctx<'_>) -> Option<SegmentKey> {
        let mut key = self.snd.next_repair(ctx.segments)?;
        let oldest = self.snd.head == Some(key);
        let withheld = match self.recovery.frto {
            Frto::Off => false,
            Frto::Resent => !oldest,
            Frto::Fresh(_) => true,
        };
        if withheld {
            return None;
        }
        self.fit_emss(ctx, key);
        while self.snd.drop_acknowledged(ctx.segments) {
            key = self.snd.head?;
            self.fit_emss(ctx, key);
        }
        let fits = ctx.segments.get(key).end() <= self.window.edge && self.repair_allowed();
        (oldest || fits).then_some(key)
    }

    /// The next segment never sent, when congestion and the peer's window allow.
    fn sendable(&mut self, ctx: &mut Ctx<'_>) -> Option<SegmentKey> {
        let key = self.snd.unsent.filter(|_| self.fresh_allowed())?;
        self.fit_emss(ctx, key);
        let segment = ctx.segments.get(key);
        if segment.end() <= self.window.edge {
            return Some(key);
        }
        // Silly window avoidance by segment: wait, until the persist timer says that it does not help.
        let room = self.window.edge.saturating_sub(segment.pos) as u32;
        let cut = self.pending.contains(Pending::CUT) && self.snd.split(ctx.segments, key, room);
        ctx.counters.tx_cut_by_persist += u64::from(cut);
        cut.then_some(key)
    }

    /// Cuts a segment that EMSS no longer allows.
    fn fit_emss(&mut self, ctx: &mut Ctx<'_>, key: SegmentKey) {
        let cut = self.snd.split(ctx.segments, key, self.emss);
        ctx.counters.tx_cut_by_emss += u64::from(cut);
    }

    fn data(&self, ctx: &Ctx<'_>, kind: Kind, key: SegmentKey) -> Transmission {
        let segment = ctx.segments.get(key);
        let last = segment.next.is_none();
        let flags = if last { Flags::PSH } else { Flags::empty() };
        // EMSS has room for the fixed options; what the payload leaves over may hold SACK blocks.
        let spare = self.emss.saturating_sub(segment.len) as usize;
        let fresh = self.snd.unsent == Some(key);
        let header = self.header(ctx, segment.pos, flags | self.ecn_flags(fresh), spare);
        let payload = Some(Payload::Segment(key));
        Transmission { header, payload, segments: 1, ecn: self.codepoint(fresh), kind }
    }

    fn path_probe(&self, ctx: &Ctx<'_>, key: SearchKey, pos: u64) -> Transmission {
        let header = self.header(ctx, pos, self.ecn_flags(false), 0);
        Transmission {
            header,
            payload: Some(Payload::Probe(key)),
            segments: 1,
            ecn: self.codepoint(false),
            kind: Kind::Path,
        }
    }

    fn bare(&self, ctx: &Ctx<'_>, kind: Kind, pos: u64, flags: Flags) -> Transmission {
        let spare = if kind == Kind::Ack { MAX_HEADER_OCTETS } else { 0 };
        let flags = match kind {
            Kind::Reset => flags,
            Kind::Syn => flags | self.ecn_setup_flags(ctx.config),
            _ => flags | self.ecn_flags(false),
        };
        Transmission {
            header: self.header(ctx, pos, flags, spare),
            payload: None,
            segments: 1,
            ecn: self.codepoint(false),
            kind,
        }
    }

    /// Says nothing that was not said before but that these octets are here, and their mark.
    fn acknowledge_earlier(&self, ctx: &Ctx<'_>, Earlier { ack, on }: Earlier) -> Transmission {
        let flags = if on { Flags::ECE } else { Flags::empty() };
        let mut header = self.header(ctx, self.snd.nxt, flags, 0);
        header.ack = Some(self.rcv.space.seq(ack));
        header.window = self.rcv.window_from(ack);
        Transmission {
            header,
            payload: None,
            segments: 1,
            ecn: self.codepoint(false),
            kind: Kind::EarlierAck,
        }
    }

    fn header(&self, ctx: &Ctx<'_>, pos: u64, flags: Flags, spare_octets: usize) -> TcpHeader {
        let syn = flags.contains(Flags::SYN);
        let options = if syn {
            self.syn_options(ctx)
        } else {
            let fixed = if self.agreed.timestamps { 12 } else { 0 };
            let spare = spare_octets.min(MAX_HEADER_OCTETS - HEADER_OCTETS - fixed);
            let blocks = if self.agreed.sack { sack_room(spare) } else { 0 };
            let sack = self.rcv.sack_blocks(ctx.reorder, blocks);
            Options { timestamps: self.timestamps(ctx), sack, ..Options::default() }
        };
        // The window of a SYN is not scaled (RFC 7323 section 2.2).
        let window = match syn {
            true => ctx.config.recv_window_octets.min(u32::from(u16::MAX)) as u16,
            false => self.rcv_window(ctx),
        };
        TcpHeader {
            src_port: self.birth.local_port,
            dst_port: self.birth.remote_port,
            seq: self.snd_space.seq(pos),
            ack: (!self.is_peer_unknown()).then(|| self.rcv.space.seq(self.rcv.nxt)),
            flags,
            window: if flags.contains(Flags::RST) { 0 } else { window },
            options,
        }
    }

    /// Only while our SYN is the first segment of all there is nothing to acknowledge.
    fn is_peer_unknown(&self) -> bool {
        self.state == State::SynSent
    }

    /// TSval and TSecr of a segment sent now, if they were agreed on. The clock ticks in milliseconds.
    pub(super) fn timestamps(&self, ctx: &Ctx<'_>) -> Option<(u32, u32)> {
        let value = self.birth.timestamp_offset.wrapping_add(ctx.now.total_millis() as u32);
        self.agreed.timestamps.then_some((value, self.ts_recent))
    }
}
