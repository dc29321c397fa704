//! How large a segment the path carries, where nobody says so: black holes, and the search for more
//! (RFC 8899, on TCP as RFC 4821 section 7 has it).
//!
//! Downwards: the oldest segment has timed out several times in a row, and since the first of them
//! something small has come through: then it is its length. EMSS falls to BASE_PLPMTU, and to the
//! least that every path carries should that not be small enough. (While nothing comes through at
//! all the path is dead, and nothing is cut.) Upwards: probes, first of the largest size that may
//! be, then halving what is left.
//!
//! A probe carries bytes that the peer has acknowledged already, copied while their segments leave
//! the queue. So no FPDU is cut or joined for it, no window has to take it, and its loss loses
//! nothing: every TCP drops such bytes and says so, and its D-SACK (RFC 2883) names exactly the
//! probe. Peers that agreed on no SACK are not probed.
//!
//! What is known of a path belongs to its connection, and to no table of destinations. RFC 8201
//! section 5.2 leaves the choice; routers that spread load send each 4-tuple its own way, and a
//! report that somebody forged or guessed harms one connection. A new connection pays for it with
//! the first segment that is too large.
//!
//! | RFC 8899 | here |
//! |---|---|
//! | DISABLED, SEARCH_COMPLETE | no record; [`PathMtu::due`] is the PMTU_RAISE_TIMER, if there is more to find |
//! | BASE, ERROR | EMSS is that of BASE_PLPMTU, or the least; retransmissions are its probes |
//! | SEARCHING | a [`Search`] in the stack's slab; [`PathMtu::due`] is the PROBE_TIMER |

use std::num::NonZeroU64;

use super::queue::SendQueue;
use crate::invariant::{Check, ensure};
use crate::tcp::birth::{Birth, payload_of};
use crate::tcp::ctx::Ctx;
use crate::tcp::slabs::{Probe, Search, SearchKey, SearchSlab, Stage};
use crate::{Duration, Instant, PathMtuProbing};

/// Reports of routers that lower EMSS one after the other before it falls to the least that every
/// path carries. Each has all that is in flight sent again, so whoever can forge them could ask for
/// that byte by byte; no path has as many ever narrower links.
const MAX_REPORTS: u8 = 4;

/// EMSS, and what a connection knows of its path besides.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    /// Largest payload of a segment.
    emss: u32,
    /// EMSS as the SYNs agreed on it: the most there is to find.
    most: u16,
    /// MSS of our own link, of BASE_PLPMTU, and the least that every path carries.
    link_mss: u16,
    base_mss: u16,
    least_mss: u16,
    /// Bytes of options that every segment has.
    option_bytes: u16,
    /// The configuration and the peer allow probes.
    may_probe: bool,
    search: Option<SearchKey>,
    /// The search has a probe that waits to be sent.
    probe_waits: bool,
    /// When the search goes on or begins, microseconds.
    due_us: Option<NonZeroU64>,
    /// Timeouts of the oldest segment in a row.
    timeouts: u8,
    /// Something came from the peer since the first of them.
    heard: bool,
    /// Reports that have lowered EMSS since the last search.
    reports: u8,
}

/// What a timeout of the oldest segment says of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// Nothing.
    None,
    /// It may be too narrow: something small that the peer has to answer would tell.
    Unclear,
    /// It is: EMSS was lowered.
    BlackHole,
}

impl PathMtu {
    /// Nothing agreed on yet.
    pub(super) fn new(birth: &Birth) -> Self {
        Self {
            emss: u32::from(birth.default_peer_mss.min(birth.mss)),
            most: 0,
            link_mss: birth.mss,
            base_mss: birth.base_mss,
            least_mss: birth.default_peer_mss,
            option_bytes: 0,
            may_probe: false,
            search: None,
            probe_waits: false,
            due_us: None,
            timeouts: 0,
            heard: false,
            reports: 0,
        }
    }

    /// Segments have `option_bytes` bytes of options.
    pub(super) fn set_options(&mut self, option_bytes: u16) {
        self.option_bytes = option_bytes;
    }

    /// The peer's SYN names this MSS, or none.
    pub(super) fn set_peer_mss(&mut self, peer_mss: Option<u16>) {
        self.emss = self.payload_of(peer_mss.unwrap_or(self.least_mss).min(self.link_mss));
    }

    /// Largest payload of a segment.
    #[inline]
    pub(super) fn emss(&self) -> u32 {
        self.emss
    }

    /// When the search goes on or begins.
    #[inline]
    pub(super) fn due(&self) -> Option<Instant> {
        self.due_us.map(|us| Instant::from_micros(us.get() as i64))
    }

    fn set_due(&mut self, at: Option<Instant>) {
        self.due_us = at.map(|at| NonZeroU64::new(at.total_micros() as u64).unwrap_or(NonZeroU64::MIN));
    }

    /// Something was acknowledged.
    #[inline]
    pub(super) fn on_progress(&mut self) {
        self.timeouts = 0;
    }

    /// The peer said something.
    #[inline]
    pub(super) fn on_heard(&mut self) {
        self.heard = true;
    }

    /// The connection is established; `sack`: its peer reports what arrived twice. Returns whether
    /// EMSS was lowered.
    pub(super) fn start(&mut self, ctx: &mut Ctx<'_>, sack: bool) -> bool {
        // An EMSS is below an MSS, which has 16 bits.
        self.most = self.emss as u16;
        self.may_probe = sack && ctx.config.path_mtu.probing != PathMtuProbing::Never;
        if ctx.config.path_mtu.probing != PathMtuProbing::Always {
            return false;
        }
        let lowered = self.lower(self.payload_of(self.base_mss));
        self.search_at(ctx, ctx.now);
        lowered
    }

    /// The path carries only `mss` (as [`Birth::mss`]), a router said: never grows by that. More is
    /// looked for when the report is as old as RFC 8201 section 4 wants it. Returns whether EMSS
    /// was lowered.
    pub(super) fn on_report(&mut self, ctx: &mut Ctx<'_>, mss: u16) -> bool {
        let (emss, least) = (self.payload_of(mss), self.payload_of(self.least_mss));
        if emss >= self.emss {
            return false;
        }
        self.reports = self.reports.saturating_add(1);
        let lowered = self.lower(if self.reports < MAX_REPORTS { emss } else { emss.min(least) });
        self.search_at(ctx, ctx.now + ctx.config.path_mtu.raise_timer);
        lowered
    }

    /// A router could not carry the probe at `pos` but would carry `mss`: that is tried next (RFC
    /// 8899 section 4.6.2). Returns whether a probe from `pos` is under way.
    pub(super) fn on_probe_too_big(&mut self, ctx: &mut Ctx<'_>, pos: i64, mss: u16) -> bool {
        let (high, emss) = (self.payload_of(mss), self.emss);
        let Some(search) = self.search.map(|key| ctx.searches.get_mut(key)) else { return false };
        let ours = search.probe.as_ref().is_some_and(|probe| probe.pos as i64 == pos);
        if !ours || search.stage != Stage::Flying {
            return false;
        }
        // Less than what the path is known to carry is nonsense.
        if emss <= high && high < search.size {
            ctx.counters.path_mtu_probes_lost += 1;
            let more = search.refute(emss, high);
            search.size = high;
            self.set_due(None);
            self.go_on(ctx, more);
        }
        true
    }

    /// The oldest segment, of `len` bytes, timed out. Repeatedly, while small ones pass: then its
    /// length is why.
    pub(super) fn on_timeout(&mut self, ctx: &mut Ctx<'_>, len: u32) -> Suspicion {
        let config = ctx.config.path_mtu;
        if config.probing == PathMtuProbing::Never {
            return Suspicion::None;
        }
        let sizes = [self.base_mss, self.least_mss].map(|mss| self.payload_of(mss));
        let Some(&smaller) = sizes.iter().find(|size| **size < len.min(self.emss)) else {
            return Suspicion::None;
        };
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts == 1 {
            self.heard = false;
        }
        if self.timeouts >= config.black_hole_timeouts && self.heard {
            ctx.counters.path_mtu_black_holes += 1;
            self.timeouts = 0;
            self.lower(smaller);
            self.search_at(ctx, ctx.now + config.probe_timer);
            Suspicion::BlackHole
        } else if self.timeouts.saturating_add(1) >= config.black_hole_timeouts {
            Suspicion::Unclear
        } else {
            Suspicion::None
        }
    }

    /// Bytes up to `ack` are about to leave the queue: a probe may need them.
    #[inline]
    pub(super) fn gather(&mut self, ctx: &mut Ctx<'_>, queue: &SendQueue, ack: u64) {
        if let Some(key) = self.search {
            self.gather_for(key, ctx, queue, ack);
        }
    }

    fn gather_for(&mut self, key: SearchKey, ctx: &mut Ctx<'_>, queue: &SendQueue, ack: u64) {
        let search = ctx.searches.get_mut(key);
        if search.stage == Stage::Ready && search.renew(ack) {
            self.probe_waits = false;
        }
        if search.stage != Stage::Gathering {
            return;
        }
        let mut cursor = queue.head;
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
            if !probe.buf.append_slice(&ctx.segments.bytes(key)[..taken]) {
                return;
            }
            if probe.buf.len() == search.size as usize {
                search.stage = Stage::Ready;
                self.probe_waits = true;
                return;
            }
        }
    }

    /// Whether a probe waits to be sent.
    #[inline]
    pub(super) fn has_probe(&self) -> bool {
        self.probe_waits
    }

    /// The probe that waits, with its position.
    pub(super) fn probe(&self, ctx: &mut Ctx<'_>) -> Option<(SearchKey, u64)> {
        let key = self.search.filter(|_| self.probe_waits)?;
        let search = ctx.searches.get_mut(key);
        search.probe.as_ref().map(|probe| (key, probe.pos))
    }

    /// It was sent; `rto`: the timeout of segments.
    pub(super) fn on_probe_sent(&mut self, ctx: &mut Ctx<'_>, key: SearchKey, rto: Duration) {
        ctx.counters.path_mtu_probes += 1;
        ctx.searches.get_mut(key).stage = Stage::Flying;
        self.probe_waits = false;
        self.set_due(Some(ctx.now + ctx.config.path_mtu.probe_timer.max(rto)));
    }

    /// The peer says that `start..end` arrived twice. If that is the probe, it arrived whole, and
    /// EMSS is its size from now on. Returns whether it is.
    pub(super) fn is_probe_answered(&mut self, ctx: &mut Ctx<'_>, start: u64, end: u64) -> bool {
        let Some(search) = self.search.map(|key| ctx.searches.get_mut(key)) else { return false };
        let whole = |probe: &Probe| (probe.pos, probe.pos + probe.buf.len() as u64) == (start, end);
        if search.stage != Stage::Flying || !search.probe.as_ref().is_some_and(whole) {
            return false;
        }
        ctx.counters.path_mtu_probes_answered += 1;
        self.emss = search.size;
        let more = search.aim(self.emss);
        self.set_due(None);
        self.go_on(ctx, more);
        true
    }

    /// [`due`](Self::due): a probe was lost, or it is time to search, if the user is to send more
    /// (`open`). SND.UNA is `una`.
    pub(super) fn on_timer(&mut self, ctx: &mut Ctx<'_>, una: u64, open: bool) {
        let config = ctx.config.path_mtu;
        self.set_due(None);
        let Some(key) = self.search else {
            if open {
                self.reports = 0;
                self.search = ctx.searches.take(Search::new(self.most.into()));
                if self.search.is_none() {
                    ctx.counters.path_mtu_searches_put_off += 1;
                    self.set_due(Some(ctx.now + config.probe_timer));
                }
            }
            return;
        };
        let search = ctx.searches.get_mut(key);
        ctx.counters.path_mtu_probes_lost += 1;
        search.lost += 1;
        if search.lost < config.max_probes {
            search.stage = Stage::Ready;
            self.probe_waits = !search.renew(una);
        } else {
            let more = search.refute(self.emss, search.size - 1);
            self.go_on(ctx, more);
        }
    }

    /// Returns whether the connection searches.
    pub(super) fn check(&self, searches: &SearchSlab) -> Check<bool> {
        match self.search {
            Some(key) => searches.check_search(key, self.probe_waits)?,
            None => ensure!(!self.probe_waits, "a probe without a search"),
        }
        Ok(self.search.is_some())
    }

    /// Gives back what a search holds.
    pub(super) fn forget_search(&mut self, ctx: &mut Ctx<'_>) {
        self.set_due(None);
        self.probe_waits = false;
        if let Some(key) = self.search.take() {
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
        self.set_due((self.may_probe && self.emss < self.most.into()).then_some(at));
    }

    /// What is in flight and does not fit was dropped on the way: the caller cuts it and sends it
    /// again at once, and that is no sign of congestion (RFC 8899 section 4.4, RFC 1191 section 4).
    /// Returns whether EMSS was larger.
    fn lower(&mut self, emss: u32) -> bool {
        let lowered = emss < self.emss;
        self.emss = self.emss.min(emss);
        lowered
    }

    fn payload_of(&self, mss: u16) -> u32 {
        payload_of(mss, self.option_bytes)
    }
}
