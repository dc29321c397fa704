//! Chooses the next segment of the sending half (RFC 9293 section 3.8, RFC 5681 section 3).
//!
//! [`SendHalf::next`] chooses the segment. Then the caller builds the frame, which may fail. After that,
//! [`SendHalf::on_sent`] updates the state.

use super::{Pending, SendHalf};
use crate::ip::Ecn;
use crate::tcp::ctx::Ctx;
use crate::tcp::header::Flags;
use crate::tcp::slabs::SearchKey;
use crate::tcp::slabs::SegmentKey;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// A segment of [`SegmentSlab`](crate::tcp::SegmentSlab).
    Segment(SegmentKey),
    /// A path MTU probe of [`SearchSlab`](crate::tcp::SearchSlab).
    MtuProbe(SearchKey),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum SendKind {
    Syn,
    New,
    Retransmission,
    /// A tail loss probe: new bytes, or the last sent bytes again.
    LossProbe,
    Fin,
    /// A segment without payload whose sequence number is below the window.
    WindowProbe,
    MtuProbe,
}

/// The part of a segment that the sending half chooses. The receiving half completes the header.
#[derive(Clone, Copy, Debug)]
pub(in crate::tcp) struct Outgoing {
    pub(in crate::tcp) kind: SendKind,
    /// Position of the segment's sequence number.
    pub(in crate::tcp) pos: u64,
    pub(in crate::tcp) flags: Flags,
    /// ECN codepoint of the IP header.
    pub(in crate::tcp) ecn: Ecn,
    pub(in crate::tcp) payload: Option<Payload>,
    /// Number of bytes that the payload leaves free for further options, such as SACK blocks.
    pub(in crate::tcp) spare_bytes: usize,
}

impl SendHalf {
    /// Whether [`next`](Self::next) may return a segment, or a SYN is due. Even if the result is `true`,
    /// `next` may return `None`.
    #[inline]
    pub(in crate::tcp) fn wants_transmit(&self) -> bool {
        self.pending.intersects(Pending::SYN | Pending::WINDOW_PROBE)
            || self.loss.is_probe_due()
            || self.queue.has_lost() && (self.retransmission_allowed() || self.queue.is_oldest_lost())
            || self.queue.has_unsent() && self.new_allowed() && self.queue.is_window_open()
            || self.queue.is_fin_next()
            || self.is_mtu_probe_next()
    }

    /// Whether the peer's window is open and pacing allows a segment. The congestion window is not checked.
    #[inline]
    pub(in crate::tcp) fn may_send_pushed(&self) -> bool {
        self.rate.is_pace_open() && self.queue.is_window_open()
    }

    #[inline]
    pub(in crate::tcp) fn is_syn_next(&self) -> bool {
        self.pending.contains(Pending::SYN)
    }

    /// The next segment to send, of any kind, once the handshake is over. This is the general path of
    /// [`next_usual`](Self::next_usual). Without a call of [`on_sent`](Self::on_sent), the next call returns
    /// the same segment. This call has side effects: it may cut a segment (to the EMSS, or to the peer's
    /// window after the persist timer), drop acknowledged parts of a segment, and advance the search for lost
    /// segments.
    #[inline]
    pub(in crate::tcp) fn next(&mut self, ctx: &mut Ctx<'_>) -> Option<Outgoing> {
        if self.loss.is_probe_due() && self.queue.outstanding() > 0 {
            return Some(match self.loss_probe(ctx) {
                Some(key) => self.data(ctx, SendKind::LossProbe, key),
                None => self.bare(SendKind::Fin, self.queue.end(), Flags::FIN),
            });
        }
        if let Some(key) = self.retransmittable(ctx) {
            return Some(self.data(ctx, SendKind::Retransmission, key));
        }
        if self.is_mtu_probe_next()
            && let Some((key, pos)) = self.path.probe(ctx)
        {
            let payload = Some(Payload::MtuProbe(key));
            return Some(Outgoing { payload, ..self.bare(SendKind::MtuProbe, pos, Flags::empty()) });
        }
        if let Some(key) = self.sendable(ctx) {
            return Some(self.data(ctx, SendKind::New, key));
        }
        if self.queue.is_fin_next() {
            return Some(self.bare(SendKind::Fin, self.queue.end(), Flags::FIN));
        }
        // A sequence number below the window makes the peer answer. The segment has no payload (section
        // 3.8.4).
        self.pending
            .contains(Pending::WINDOW_PROBE)
            .then(|| self.bare(SendKind::WindowProbe, self.queue.una().saturating_sub(1), Flags::empty()))
    }

    /// The fast path of [`next`](Self::next), with fewer comparisons and no side effect. Returns
    /// `Some(Some(segment))` with a new segment that can be sent unchanged, and `Some(None)` if no new
    /// segment may be sent now. Returns `None` in any other case, which `next` handles. The user must not
    /// have closed.
    #[inline(always)]
    pub(in crate::tcp) fn next_usual(&self, ctx: &Ctx<'_>) -> Option<Option<SegmentKey>> {
        let usual = self.pending.is_empty()
            && !self.loss.is_probe_due()
            && !self.queue.has_lost()
            && !self.path.has_probe()
            && self.agreed.timestamps;
        if !usual {
            return None;
        }
        let Some(key) = self.queue.unsent().filter(|_| self.new_allowed()) else {
            return Some(None);
        };
        let segment = ctx.segments.get(key);
        let whole =
            segment.len <= self.path.emss() && self.queue.fits_window(segment) && segment.external.is_none();
        whole.then_some(Some(key))
    }

    /// Called when the segment that [`next`](Self::next) returned, or a SYN, was sent. If a new segment was
    /// extended to a train, the first `segments` segments of the train were sent.
    #[inline]
    pub(in crate::tcp) fn on_sent(
        &mut self,
        ctx: &mut Ctx<'_>,
        kind: SendKind,
        payload: Option<Payload>,
        segments: usize,
    ) {
        match kind {
            SendKind::Syn => {
                self.pending.remove(Pending::SYN);
                self.queue.positions_mut().on_syn_sent();
                if self.loss.on_syn_sent(ctx.now) {
                    self.count_retransmission(ctx);
                }
            }
            SendKind::New => (0..segments).for_each(|_| self.on_new_sent(ctx)),
            SendKind::Retransmission => {
                if let Some(Payload::Segment(key)) = payload {
                    self.on_retransmitted(ctx, key);
                }
            }
            SendKind::LossProbe => {
                if let Some(Payload::Segment(key)) = payload {
                    self.on_loss_probe_data_sent(ctx, key);
                }
            }
            SendKind::Fin => {
                self.on_fin_sent(ctx);
            }
            SendKind::WindowProbe => self.pending.remove(Pending::WINDOW_PROBE),
            SendKind::MtuProbe => {
                if let Some(Payload::MtuProbe(key)) = payload {
                    self.path.on_probe_sent(ctx, key, self.rate.rto());
                }
            }
        }
    }

    /// Called when the segment at the front of the unsent segments has been sent.
    #[inline(always)]
    pub(in crate::tcp) fn on_new_sent(&mut self, ctx: &mut Ctx<'_>) {
        let idle = self.queue.outstanding() == 0;
        let len = self.queue.on_sent(ctx.segments, ctx.now);
        self.loss.on_new_sent(ctx.now, len, idle);
        self.rate.on_new_sent(ctx.now, ctx.config, self.path.emss(), len);
        self.pending.remove(Pending::CUT);
    }

    fn on_retransmitted(&mut self, ctx: &mut Ctx<'_>, key: SegmentKey) {
        self.count_retransmission(ctx);
        self.queue.sent().on_retransmitted(ctx.segments, key, ctx.now, self.loss.is_recovering());
        let len = ctx.segments.get(key).len;
        self.rate.on_sent(ctx.now, ctx.config, self.path.emss(), len);
        self.loss.on_sent_again(ctx.now, len);
    }

    fn on_fin_sent(&mut self, ctx: &mut Ctx<'_>) {
        let (idle, nxt) = (self.queue.outstanding() == 0, self.queue.nxt());
        if self.queue.positions_mut().on_fin_sent() {
            self.count_retransmission(ctx);
            self.loss.on_fin_sent_again(ctx.now);
        } else {
            self.loss.on_fin_sent(ctx.now, idle);
        }
        if self.loss.is_probe_due() {
            self.on_loss_probe_sent(ctx, (self.queue.end() + 1, nxt), true);
        }
    }

    fn count_retransmission(&mut self, ctx: &mut Ctx<'_>) {
        ctx.counters.tx_retransmits += 1;
        self.retransmits += 1;
    }

    fn on_loss_probe_data_sent(&mut self, ctx: &mut Ctx<'_>, key: SegmentKey) {
        let again = self.queue.unsent() != Some(key);
        if again {
            self.on_retransmitted(ctx, key);
        } else {
            self.on_new_sent(ctx);
        }
        self.on_loss_probe_sent(ctx, (ctx.segments.get(key).end(), self.queue.nxt()), again);
    }

    /// Called when a tail loss probe was sent. `end` is the position after the last byte of the probe, and
    /// `nxt` is SND.NXT. `again` is true if the bytes of the probe were sent before.
    fn on_loss_probe_sent(&mut self, ctx: &mut Ctx<'_>, (end, nxt): (u64, u64), again: bool) {
        ctx.counters.tail_loss_probes += 1;
        self.loss.on_probe_sent((end, nxt), again, ctx.now + self.rate.rto());
    }

    /// Whether a path MTU probe may be sent now: only outside of a recovery, and within the congestion
    /// window.
    #[inline]
    fn is_mtu_probe_next(&self) -> bool {
        self.path.has_probe() && !self.loss.is_recovering() && self.cwnd_allows()
    }

    /// Whether the congestion window allows another segment. One free byte in the window is enough, since
    /// segments are sent whole.
    #[inline]
    fn cwnd_allows(&self) -> bool {
        self.pipe() < self.send_limit()
    }

    /// Whether the congestion window and pacing allow a retransmission of a segment other than the oldest
    /// segment.
    #[inline]
    fn retransmission_allowed(&self) -> bool {
        self.cwnd_allows() && self.rate.is_pace_open()
    }

    /// Whether congestion window and pacing, or F-RTO, allow a new segment.
    #[inline]
    fn new_allowed(&self) -> bool {
        match self.loss.frto_allowance() {
            None => self.cwnd_allows() && self.rate.is_pace_open(),
            Some(left) => left > 0,
        }
    }

    /// The payload of a tail loss probe: a new segment, regardless of the congestion window, or else the last
    /// of the sent segments in the queue (RFC 8985 section 7.3). `None` if only our FIN is in flight.
    fn loss_probe(&mut self, ctx: &mut Ctx<'_>) -> Option<SegmentKey> {
        if self.queue.is_new_sendable(ctx.segments)
            && let Some(key) = self.queue.unsent()
        {
            self.fit_emss(ctx, key);
            return Some(key);
        }
        self.queue.last_sent()
    }

    /// The next lost segment; `None` if there is no lost segment, if F-RTO holds the segment back, or if it
    /// may not be retransmitted now. For the oldest segment, only F-RTO matters: neither the windows nor
    /// pacing prevent its retransmission.
    #[inline]
    fn retransmittable(&mut self, ctx: &mut Ctx<'_>) -> Option<SegmentKey> {
        let mut key = self.queue.next_to_retransmit()?;
        let oldest = self.queue.head() == Some(key);
        if self.loss.withholds(oldest) {
            return None;
        }
        self.fit_emss(ctx, key);
        while self.queue.drop_acknowledged(ctx.segments) {
            key = self.queue.head()?;
            self.fit_emss(ctx, key);
        }
        let fits = self.queue.fits_window(ctx.segments.get(key)) && self.retransmission_allowed();
        (oldest || fits).then_some(key)
    }

    /// The next new segment; `None` if there is no new segment, or if the congestion window, pacing, F-RTO or
    /// the peer's window does not allow it.
    #[inline]
    fn sendable(&mut self, ctx: &mut Ctx<'_>) -> Option<SegmentKey> {
        let key = self.queue.unsent().filter(|_| self.new_allowed())?;
        self.fit_emss(ctx, key);
        let segment = ctx.segments.get(key);
        if self.queue.fits_window(segment) {
            return Some(key);
        }
        // To avoid silly windows, the sender waits until a whole segment fits, or until the persist timer
        // expires.
        let room = self.queue.window_from(segment.pos);
        let cut = self.pending.contains(Pending::CUT) && self.queue.split(ctx.segments, key, room);
        ctx.counters.tx_cut_by_persist += u64::from(cut);
        cut.then_some(key)
    }

    /// Cuts a segment that is longer than the EMSS.
    #[inline]
    fn fit_emss(&mut self, ctx: &mut Ctx<'_>, key: SegmentKey) {
        let cut = self.queue.split(ctx.segments, key, self.path.emss());
        ctx.counters.tx_cut_by_emss += u64::from(cut);
    }

    #[inline]
    fn data(&self, ctx: &Ctx<'_>, kind: SendKind, key: SegmentKey) -> Outgoing {
        let segment = ctx.segments.get(key);
        let new = self.queue.unsent() == Some(key);
        let mut flags = Flags::empty();
        flags.set(Flags::PSH, segment.next.is_none());
        flags.set(Flags::CWR, new && self.agreed.ecn && self.rate.is_cwr_next());
        Outgoing {
            kind,
            pos: segment.pos,
            flags,
            ecn: self.codepoint(new),
            payload: Some(Payload::Segment(key)),
            // The EMSS leaves space for the options that every segment has. SACK blocks may use the space
            // between the payload and the EMSS.
            spare_bytes: self.path.emss().saturating_sub(segment.len) as usize,
        }
    }

    #[inline]
    fn bare(&self, kind: SendKind, pos: u64, flags: Flags) -> Outgoing {
        // The segment needs no room for SACK blocks, because a pure acknowledgement has carried the blocks
        // before.
        Outgoing { kind, pos, flags, ecn: Ecn::NotEct, payload: None, spare_bytes: 0 }
    }

    /// The ECN codepoint of a segment. Routers may mark only new bytes: a mark on a retransmission, or on a
    /// segment outside the window, would mean nothing (RFC 3168 sections 6.1.4 to 6.1.6).
    #[inline]
    fn codepoint(&self, new: bool) -> Ecn {
        if new && self.pending.contains(Pending::ECT) { Ecn::Ect0 } else { Ecn::NotEct }
    }
}
