//! How large a segment the path carries, where nobody says so: black holes, and the search for more
//! (RFC 8899, on TCP as RFC 4821 section 7 has it).
//!
//! Downwards: the oldest segment has timed out several times in a row, and since the first of them something small has
//! come through: then it is its length. EMSS falls to BASE_PLPMTU, and to the least that every path carries should that
//! not be small enough. (While nothing comes through at all the path is dead, and nothing is cut.) Upwards: probes,
//! first of the largest size that may be, then halving what is left.
//!
//! A probe carries octets that the peer has acknowledged already, copied while their segments leave the queue. So no FPDU
//! is cut or joined for it, no window has to take it, and its loss loses nothing: every TCP drops such octets and says
//! so, and its D-SACK (RFC 2883) names exactly the probe. Peers that agreed on no SACK are not probed.
//!
//! What is known of a path belongs to its connection, and to no table of destinations. RFC 8201 section 5.2 leaves the
//! choice; routers that spread load send each 4-tuple its own way, and a report that somebody forged or guessed
//! harms one connection. A new connection pays for it with the first segment that is too large.
//!
//! | RFC 8899 | here |
//! |---|---|
//! | DISABLED, SEARCH_COMPLETE | no record; [`PathMtu::due`] is the PMTU_RAISE_TIMER, if there is more to find |
//! | BASE, ERROR | EMSS is that of BASE_PLPMTU, or the least; retransmissions are its probes |
//! | SEARCHING | a [`Search`] in the stack's slab; [`PathMtu::due`] is the PROBE_TIMER |

use std::num::{NonZeroU16, NonZeroU64};

use dp::Mbuf;
use slab::Slab;

use super::congestion::CongestionControl;
use super::ctx::Ctx;
use super::recovery::Phase;
use super::tcb::{Pending, State, Tcb, payload_of};
use crate::facade::TcpSeqNumber;
use crate::{Instant, PathMtuProbing};

/// A search is over when what may be left to gain is less than this, octets.
const GRANULARITY: u32 = 8;

/// How far behind SND.UNA a probe may begin, octets. Its octets are taken anew before that: at twice as far its sequence
/// numbers come around, and what was sent long ago would be taken for what comes next. (No window is larger than this.)
const REACH: u64 = 1 << 30;

/// Reports of routers that lower EMSS one after the other before it falls to the least that every path carries. Each has
/// all that is in flight sent again, so whoever can forge them could ask for that octet by octet; no path has
/// as many ever narrower links.
const MAX_REPORTS: u8 = 4;

/// What a connection knows of its path besides EMSS.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    /// EMSS as the SYNs agreed on it: the most there is to find.
    most: u16,
    search: Option<SearchKey>,
    /// When the search goes on or begins, microseconds.
    due_us: Option<NonZeroU64>,
    /// Timeouts of the oldest segment in a row.
    timeouts: u8,
    /// Something came from the peer since the first of them.
    heard: bool,
    /// Reports that have lowered EMSS since the last search.
    reports: u8,
}

impl PathMtu {
    /// Nothing agreed on yet.
    pub(super) fn new() -> Self {
        Self { most: 0, search: None, due_us: None, timeouts: 0, heard: false, reports: 0 }
    }

    /// When the search goes on or begins.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due_us.map(|us| Instant::from_micros(us.get() as i64))
    }

    fn set_due(&mut self, at: Option<Instant>) {
        self.due_us = at.map(|at| NonZeroU64::new(at.total_micros() as u64).unwrap_or(NonZeroU64::MIN));
    }

    /// Something was acknowledged.
    pub(super) fn on_progress(&mut self) {
        self.timeouts = 0;
    }

    /// The peer said something.
    pub(super) fn on_heard(&mut self) {
        self.heard = true;
    }
}

/// Names a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SearchKey(NonZeroU16);

impl SearchKey {
    fn record(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// Searches of the connections that probe now.
pub(crate) struct SearchSlab {
    records: Slab<Search>,
    limit: usize,
}

impl SearchSlab {
    /// Room for `limit` searches, 65,535 at most, taken now.
    pub(crate) fn new(limit: usize) -> Self {
        let limit = limit.min(usize::from(u16::MAX));
        Self { records: Slab::with_capacity(limit), limit }
    }

    /// Searches under way.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// A probe's payload, to be sent as a segment's is.
    pub(crate) fn buf(&self, key: SearchKey) -> Option<&Mbuf> {
        self.records[key.record()].probe.as_ref().map(|probe| &probe.buf)
    }

    fn take(&mut self, search: Search) -> Option<SearchKey> {
        let room = self.records.len() < self.limit;
        room.then(|| SearchKey(NonZeroU16::MIN.saturating_add(self.records.insert(search) as u16)))
    }

    fn get_mut(&mut self, key: SearchKey) -> &mut Search {
        &mut self.records[key.record()]
    }

    fn remove(&mut self, key: SearchKey) {
        self.records.remove(key.record());
    }
}

/// Octets that are acknowledged, to be sent once more.
struct Probe {
    buf: Mbuf,
    /// Position of the first (`seq.rs`).
    pos: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Octets are taken over as they are acknowledged.
    Gathering,
    /// There are enough; they wait for their turn.
    Ready,
    /// Sent.
    Flying,
}

/// A search for a larger EMSS. All sizes are octets of payload.
struct Search {
    stage: Stage,
    /// Of the probe (PROBED_SIZE).
    size: u32,
    /// The largest that may still be carried.
    high: u32,
    /// Probes of this size lost in a row (PROBE_COUNT).
    lost: u8,
    probe: Option<Probe>,
}

impl Search {
    /// From `emss` to `most`, which is tried first: most paths that narrowed are wide again.
    fn new(most: u32) -> Self {
        Self { stage: Stage::Gathering, size: most, high: most, lost: 0, probe: None }
    }

    /// What is tried next between `emss`, which the path carries, and `high`. `false`: nothing, the search is over.
    fn aim(&mut self, emss: u32) -> bool {
        self.size = (emss + self.high).div_ceil(2);
        self.stage = Stage::Gathering;
        self.lost = 0;
        self.probe = None;
        self.high >= emss + GRANULARITY
    }

    /// Forgets octets that are out of [`REACH`] of `una`; others of the same size are to be gathered. Returns whether they
    /// were.
    fn renew(&mut self, una: u64) -> bool {
        let far = self.probe.as_ref().is_some_and(|probe| una - probe.pos > REACH);
        if far {
            self.stage = Stage::Gathering;
            self.probe = None;
        }
        far
    }

    /// The path does not carry more than `high`.
    fn refute(&mut self, emss: u32, high: u32) -> bool {
        self.high = high;
        self.aim(emss)
    }
}

impl Tcb {
    /// The SYNs agreed on EMSS.
    pub(super) fn start_path_mtu(&mut self, ctx: &mut Ctx<'_>) {
        // An EMSS is below an MSS, which has 16 bits.
        self.path.most = self.emss as u16;
        if ctx.config.path_mtu.probing == PathMtuProbing::Always {
            self.lower_emss(ctx, self.payload_of(self.birth.base_mss));
            self.search_at(ctx, ctx.now);
        }
    }

    /// The path carries only `mss` (as [`Birth::mss`](super::Birth::mss)), a router said: never grows by that. More is looked for when the
    /// report is as old as RFC 8201 section 4 wants it.
    pub(crate) fn set_path_mss(&mut self, ctx: &mut Ctx<'_>, mss: u16) {
        let (emss, least) = (self.payload_of(mss), self.payload_of(self.birth.default_peer_mss));
        if emss < self.emss {
            self.path.reports = self.path.reports.saturating_add(1);
            self.lower_emss(ctx, if self.path.reports < MAX_REPORTS { emss } else { emss.min(least) });
            self.search_at(ctx, ctx.now + ctx.config.path_mtu.raise_timer);
        }
    }

    /// A router says that it carries `mss`, and not the segment from `seq` on. Returns whether there is one.
    pub(crate) fn on_packet_too_big(&mut self, ctx: &mut Ctx<'_>, seq: TcpSeqNumber, mss: u16) -> bool {
        if self.in_flight(seq) {
            self.set_path_mss(ctx, mss);
            return true;
        }
        self.on_probe_too_big(ctx, self.snd_space.pos(seq, self.snd.una), mss)
    }

    /// A router could not carry the probe at `pos` but would carry `mss`: that is tried next (RFC 8899 section 4.6.2). Returns whether
    /// a probe from `pos` is under way.
    fn on_probe_too_big(&mut self, ctx: &mut Ctx<'_>, pos: i64, mss: u16) -> bool {
        let (high, emss) = (self.payload_of(mss), self.emss);
        let Some(search) = self.path.search.map(|key| ctx.searches.get_mut(key)) else { return false };
        let ours = search.probe.as_ref().is_some_and(|probe| probe.pos as i64 == pos);
        if !ours || search.stage != Stage::Flying {
            return false;
        }
        // Less than what the path is known to carry is nonsense.
        if emss <= high && high < search.size {
            ctx.counters.path_mtu_probes_lost += 1;
            let more = search.refute(emss, high);
            search.size = high;
            self.path.set_due(None);
            self.go_on(ctx, more);
        }
        true
    }

    /// The oldest segment timed out. Repeatedly, while small ones pass: then its length is why.
    pub(super) fn suspect_path(&mut self, ctx: &mut Ctx<'_>) {
        let config = ctx.config.path_mtu;
        let Some(key) = self.snd.head.filter(|_| config.probing != PathMtuProbing::Never) else { return };
        let sizes = [self.birth.base_mss, self.birth.default_peer_mss].map(|mss| self.payload_of(mss));
        let len = ctx.segments.get(key).len;
        let Some(&smaller) = sizes.iter().find(|size| **size < len.min(self.emss)) else { return };
        self.path.timeouts = self.path.timeouts.saturating_add(1);
        if self.path.timeouts == 1 {
            self.path.heard = false;
        }
        if self.path.timeouts >= config.black_hole_timeouts && self.path.heard {
            ctx.counters.path_mtu_black_holes += 1;
            self.path.timeouts = 0;
            self.lower_emss(ctx, smaller);
            self.search_at(ctx, ctx.now + config.probe_timer);
        } else if self.path.timeouts.saturating_add(1) >= config.black_hole_timeouts {
            // Something small that the peer has to answer.
            self.pending |= Pending::PROBE;
        }
    }

    /// Octets up to `ack` are about to leave the queue: a probe may need them.
    pub(super) fn gather(&mut self, ctx: &mut Ctx<'_>, ack: u64) {
        let Some(key) = self.path.search else { return };
        let search = ctx.searches.get_mut(key);
        if search.stage == Stage::Ready && search.renew(ack) {
            self.pending.remove(Pending::PATH);
        }
        if search.stage != Stage::Gathering {
            return;
        }
        let mut cursor = self.snd.head;
        while let Some(key) = cursor {
            let segment = ctx.segments.get(key);
            if segment.end() > ack {
                break;
            }
            cursor = segment.next;
            if search.probe.is_none() {
                let Some(buf) = ctx.pool.alloc() else { return };
                search.probe = Some(Probe { buf, pos: segment.pos });
            }
            let Some(probe) = &mut search.probe else { return };
            let left = search.size as usize - probe.buf.len();
            let taken = left.min(segment.len as usize);
            if !probe.buf.append_slice(&ctx.segments.octets(key)[..taken]) {
                return;
            }
            if probe.buf.len() == search.size as usize {
                search.stage = Stage::Ready;
                self.pending |= Pending::PATH;
                return;
            }
        }
    }

    /// Whether a probe may be sent now: not while losses are repaired, and within the congestion window.
    pub(super) fn is_probe_next(&self) -> bool {
        self.pending.contains(Pending::PATH)
            && self.recovery.phase == Phase::Open
            && self.pipe() < self.cwnd()
    }

    /// The probe that waits, with its position.
    pub(super) fn ready_probe(&self, ctx: &mut Ctx<'_>) -> Option<(SearchKey, u64)> {
        let key = self.path.search.filter(|_| self.is_probe_next())?;
        let search = ctx.searches.get_mut(key);
        search.probe.as_ref().map(|probe| (key, probe.pos))
    }

    /// It was sent.
    pub(super) fn on_path_probe_sent(&mut self, ctx: &mut Ctx<'_>, key: SearchKey) {
        ctx.counters.path_mtu_probes += 1;
        ctx.searches.get_mut(key).stage = Stage::Flying;
        self.pending.remove(Pending::PATH);
        self.path.set_due(Some(ctx.now + ctx.config.path_mtu.probe_timer.max(self.rtt.rto())));
    }

    /// The peer says that `start..end` arrived twice. If that is the probe, it arrived whole: the path carries it.
    /// Returns whether it is.
    pub(super) fn is_probe_answered(&mut self, ctx: &mut Ctx<'_>, start: u64, end: u64) -> bool {
        let Some(search) = self.path.search.map(|key| ctx.searches.get_mut(key)) else { return false };
        let whole = |probe: &Probe| (probe.pos, probe.pos + probe.buf.len() as u64) == (start, end);
        if search.stage != Stage::Flying || !search.probe.as_ref().is_some_and(whole) {
            return false;
        }
        ctx.counters.path_mtu_probes_answered += 1;
        let emss = search.size;
        let more = search.aim(emss);
        self.emss = emss;
        self.congestion.set_mss(emss);
        self.path.set_due(None);
        self.go_on(ctx, more);
        true
    }

    /// [`PathMtu::due`]: a probe was lost, or it is time to search.
    pub(super) fn on_path_timer(&mut self, ctx: &mut Ctx<'_>) {
        let config = ctx.config.path_mtu;
        self.path.set_due(None);
        let Some(key) = self.path.search else {
            if matches!(self.state, State::Established | State::CloseWait) {
                self.path.reports = 0;
                self.path.search = ctx.searches.take(Search::new(self.path.most.into()));
                if self.path.search.is_none() {
                    ctx.counters.path_mtu_searches_put_off += 1;
                    self.path.set_due(Some(ctx.now + config.probe_timer));
                }
            }
            return;
        };
        let emss = self.emss;
        let search = ctx.searches.get_mut(key);
        ctx.counters.path_mtu_probes_lost += 1;
        search.lost += 1;
        if search.lost < config.max_probes {
            search.stage = Stage::Ready;
            self.pending.set(Pending::PATH, !search.renew(self.snd.una));
        } else {
            let more = search.refute(emss, search.size - 1);
            self.go_on(ctx, more);
        }
    }

    /// Gives back what a search holds.
    pub(super) fn forget_search(&mut self, ctx: &mut Ctx<'_>) {
        self.path.set_due(None);
        self.pending.remove(Pending::PATH);
        if let Some(key) = self.path.search.take() {
            ctx.searches.remove(key);
        }
    }

    /// After the outcome of a probe: the next one, or rest until the PMTU_RAISE_TIMER.
    fn go_on(&mut self, ctx: &mut Ctx<'_>, more: bool) {
        if !more {
            self.search_at(ctx, ctx.now + ctx.config.path_mtu.raise_timer);
        }
    }

    /// Searches anew at `at`, if there may be more to find, and a way to find it.
    fn search_at(&mut self, ctx: &mut Ctx<'_>, at: Instant) {
        self.forget_search(ctx);
        let probes = ctx.config.path_mtu.probing != PathMtuProbing::Never && self.agreed.sack;
        self.path.set_due((probes && self.emss < self.path.most.into()).then_some(at));
    }

    /// What is in flight and does not fit was dropped on the way: it is cut and sent again at once, and that is no
    /// sign of congestion (RFC 8899 section 4.4, RFC 1191 section 4).
    fn lower_emss(&mut self, ctx: &mut Ctx<'_>, emss: u32) {
        if emss < self.emss {
            self.emss = emss;
            self.congestion.set_mss(emss);
            self.snd.mark_oversized(ctx.segments, emss);
        }
    }

    fn payload_of(&self, mss: u16) -> u32 {
        payload_of(mss, self.agreed.timestamps)
    }
}
