//! Path MTU discovery without ICMP: finds black holes, and searches for a larger size (RFC 8899, on TCP as in
//! RFC 4821 section 7).
//!
//! Downwards: if the oldest segment times out several times in a row, while small segments arrive, the
//! segment counts as too long for the path. The EMSS falls to BASE_PLPMTU. If BASE_PLPMTU is still too large,
//! the EMSS falls to MIN_PLPMTU (576 bytes with IPv4, 1280 bytes with IPv6). If no segment arrives at all,
//! the EMSS stays the same.
//!
//! With IPv4, a path that carries less than 576 bytes ends the connection by the user timeout. All of our
//! packets have Don't Fragment, and a report of less than 576 bytes is treated as 576. If smaller reports
//! were accepted, a forged report could make us cut each FPDU into dozens of segments. (After such a report,
//! Linux uses `min_pmtu`, 552, without Don't Fragment. In a black hole, Linux with `tcp_mtu_probing` halves
//! the size down to an MSS of 48.)
//!
//! Upwards: probes search for a larger size. The first probe has the largest possible size. If this probe is
//! lost, the search continues by bisection.
//!
//! A probe carries bytes that the peer has already acknowledged. The bytes are copied when their segments
//! leave the queue. Therefore no FPDU is cut or merged for a probe, a probe needs no space in the window, and
//! the loss of a probe loses no data. The peer drops such bytes and acknowledges them. If the peer supports
//! D-SACK (RFC 2883), its D-SACK names exactly the bytes of the probe. Without SACK, the path is not probed.
//!
//! Each connection has its own state, and there is no table of destinations, as RFC 8201 section 5.2 allows.
//! Routers that balance load may send each 4-tuple over a different path, and a forged report harms only one
//! connection. The cost is that the first oversized segment of each new connection is lost before the
//! connection knows the path MTU.
//!
//! | RFC 8899 | this module |
//! |---|---|
//! | DISABLED, SEARCH_COMPLETE | no record; [`PathMtu::due`] is the PMTU_RAISE_TIMER, if a larger size is possible |
//! | BASE, ERROR | the EMSS belongs to BASE_PLPMTU, or to the minimum; retransmissions serve as probes |
//! | SEARCHING | a [`Search`] in the stack's slab; [`PathMtu::due`] is the PROBE_TIMER |

use std::num::NonZeroU64;

use super::queue::SendQueue;
use crate::invariant::{Check, ensure};
use crate::tcp::ctx::Ctx;
use crate::tcp::open_params::{OpenParams, payload_of};
use crate::tcp::slabs::{Probe, Search, SearchKey, SearchSlab, SearchStage};
use crate::{Duration, Instant, PathMtuProbing};

/// Maximum number of routers' reports that lower the EMSS between two searches. With the last of these
/// reports, the EMSS falls to MIN_PLPMTU. Each report may make us retransmit everything in flight, so an
/// attacker who can forge reports could otherwise lower the EMSS byte by byte. On a real path, the MTU rarely
/// becomes smaller at more than a few links.
const MAX_REPORTS: u8 = 4;

/// The EMSS, and the other facts that a connection knows about its path.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathMtu {
    /// Maximum number of payload bytes in a segment.
    emss: u32,
    /// The EMSS on which the SYNs agreed, which is the upper bound of a search.
    most: u16,
    /// The MSS of our own link, of BASE_PLPMTU, and of MIN_PLPMTU.
    link_mss: u16,
    base_mss: u16,
    least_mss: u16,
    /// Number of bytes of options in every segment.
    option_bytes: u16,
    /// True if the configuration and the peer allow probes.
    may_probe: bool,
    search: Option<SearchKey>,
    /// True if the search has a probe that waits to be sent.
    probe_waits: bool,
    /// The time in microseconds at which the search starts or continues. `None` if no search is planned,
    /// while the search prepares a probe, or while a probe waits to be sent.
    due_us: Option<NonZeroU64>,
    /// Number of consecutive timeouts of the oldest segment.
    timeouts: u8,
    /// True if the peer has sent a segment since the first of the consecutive timeouts.
    heard: bool,
    /// Number of reports that lowered the EMSS since the last search.
    reports: u8,
}

/// What a timeout of the oldest segment means for the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlackHole {
    No,
    /// The segment may be too large. If the peer answers a small probe but does not acknowledge the segment,
    /// the segment is too large.
    Possible,
    /// The segment was too large, and the EMSS was lowered.
    Found,
}

impl PathMtu {
    /// The state before the SYNs have agreed on anything.
    pub(super) fn new(params: &OpenParams) -> Self {
        Self {
            emss: u32::from(params.default_peer_mss.min(params.mss)),
            most: 0,
            link_mss: params.mss,
            base_mss: params.base_mss,
            least_mss: params.default_peer_mss,
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

    pub(super) fn set_options(&mut self, option_bytes: u16) {
        self.option_bytes = option_bytes;
    }

    /// Sets the EMSS from the MSS option of the peer's SYN. `peer_mss` is `None` if the SYN has no MSS
    /// option.
    pub(super) fn set_peer_mss(&mut self, peer_mss: Option<u16>) {
        self.emss = self.payload_of(peer_mss.unwrap_or(self.least_mss).min(self.link_mss));
    }

    #[inline]
    pub(super) fn emss(&self) -> u32 {
        self.emss
    }

    /// The time at which the search starts or continues; `None` if no timer of the search runs.
    #[inline]
    pub(super) fn due(&self) -> Option<Instant> {
        self.due_us.map(|us| Instant::from_micros(us.get() as i64))
    }

    fn set_due(&mut self, at: Option<Instant>) {
        self.due_us = at.map(|at| NonZeroU64::new(at.total_micros() as u64).unwrap_or(NonZeroU64::MIN));
    }

    /// Called when new bytes were acknowledged: resets the count of timeouts.
    #[inline]
    pub(super) fn on_progress(&mut self) {
        self.timeouts = 0;
    }

    /// Called when the peer has sent an acceptable acknowledgement, or a segment below RCV.NXT. Such a
    /// segment shows that small segments arrive.
    #[inline]
    pub(super) fn on_heard(&mut self) {
        self.heard = true;
    }

    /// Called when the connection is established. If path MTU probing is set to `Always`, lowers the EMSS to
    /// at most BASE_PLPMTU, and plans a search if probes are allowed. `sack` is true if SACK was agreed on,
    /// without which the peer reports no duplicates. Returns whether the EMSS was lowered.
    pub(super) fn start(&mut self, ctx: &mut Ctx<'_>, sack: bool) -> bool {
        // An EMSS is below an MSS, which has 16 bits.
        self.most = self.emss as u16;
        self.may_probe = sack && ctx.config.path_mtu.probing != PathMtuProbing::Never;
        if ctx.config.path_mtu.probing != PathMtuProbing::Always {
            return false;
        }
        let lowered = self.lower(self.payload_of(self.base_mss));
        self.schedule_search(ctx, ctx.now);
        lowered
    }

    /// Called when a router reports that the path carries only segments of `mss` (as [`OpenParams::mss`]). A
    /// report never raises the EMSS. The search for a larger size starts after the raise timer (RFC 8201
    /// section 4). Returns whether the EMSS was lowered.
    pub(super) fn on_report(&mut self, ctx: &mut Ctx<'_>, mss: u16) -> bool {
        let (emss, least) = (self.payload_of(mss), self.payload_of(self.least_mss));
        if emss >= self.emss {
            return false;
        }
        self.reports = self.reports.saturating_add(1);
        let lowered = self.lower(if self.reports < MAX_REPORTS { emss } else { emss.min(least) });
        self.schedule_search(ctx, ctx.now + ctx.config.path_mtu.raise_timer);
        lowered
    }

    /// Called when a router could not forward the probe at `pos` but would forward segments of `mss`: the
    /// next probe has this size (RFC 8899 section 4.6.2). Returns whether a probe that starts at `pos` is in
    /// flight.
    pub(super) fn on_probe_too_big(&mut self, ctx: &mut Ctx<'_>, pos: i64, mss: u16) -> bool {
        let (high, emss) = (self.payload_of(mss), self.emss);
        let Some(search) = self.search.map(|key| ctx.searches.get_mut(key)) else { return false };
        let ours = search.probe.as_ref().is_some_and(|probe| probe.pos as i64 == pos);
        if !ours || search.stage != SearchStage::InFlight {
            return false;
        }
        // A reported size below the size that the path is known to carry is invalid.
        if emss <= high && high < search.size {
            ctx.counters.path_mtu_probes_lost += 1;
            let more = search.set_upper_bound(emss, high);
            search.size = high;
            self.set_due(None);
            self.continue_search(ctx, more);
        }
        true
    }

    /// Called when the oldest segment, of `len` bytes, timed out. If such timeouts repeat while small
    /// segments arrive, the length of the segment is the reason, and the EMSS is lowered.
    pub(super) fn on_timeout(&mut self, ctx: &mut Ctx<'_>, len: u32) -> BlackHole {
        let config = ctx.config.path_mtu;
        if config.probing == PathMtuProbing::Never {
            return BlackHole::No;
        }
        let sizes = [self.base_mss, self.least_mss].map(|mss| self.payload_of(mss));
        let Some(&smaller) = sizes.iter().find(|size| **size < len.min(self.emss)) else {
            return BlackHole::No;
        };
        self.timeouts = self.timeouts.saturating_add(1);
        if self.timeouts == 1 {
            self.heard = false;
        }
        if self.timeouts >= config.black_hole_timeouts && self.heard {
            ctx.counters.path_mtu_black_holes += 1;
            self.timeouts = 0;
            self.lower(smaller);
            self.schedule_search(ctx, ctx.now + config.probe_timer);
            BlackHole::Found
        } else if self.timeouts.saturating_add(1) >= config.black_hole_timeouts {
            BlackHole::Possible
        } else {
            BlackHole::No
        }
    }

    /// Called before the segments up to `ack` leave the queue: copies their bytes into the probe that is
    /// being prepared.
    #[inline]
    pub(super) fn gather(&mut self, ctx: &mut Ctx<'_>, queue: &SendQueue, ack: u64) {
        if let Some(key) = self.search {
            self.gather_for(key, ctx, queue, ack);
        }
    }

    fn gather_for(&mut self, key: SearchKey, ctx: &mut Ctx<'_>, queue: &SendQueue, ack: u64) {
        let search = ctx.searches.get_mut(key);
        if search.stage == SearchStage::Ready && search.drop_outdated_probe(ack) {
            self.probe_waits = false;
        }
        if search.stage != SearchStage::Gathering {
            return;
        }
        let mut cursor = queue.head();
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
            if !ctx.segments.copy_front(key, taken, &mut probe.buf) {
                return;
            }
            if probe.buf.len() == search.size as usize {
                search.stage = SearchStage::Ready;
                self.probe_waits = true;
                return;
            }
        }
    }

    /// Whether a search for a larger EMSS is in progress.
    #[inline]
    pub(super) fn searches(&self) -> bool {
        self.search.is_some()
    }

    #[inline]
    pub(super) fn has_probe(&self) -> bool {
        self.probe_waits
    }

    /// The probe that waits to be sent, with its position; `None` if no probe waits.
    pub(super) fn probe(&self, ctx: &mut Ctx<'_>) -> Option<(SearchKey, u64)> {
        let key = self.search.filter(|_| self.probe_waits)?;
        let search = ctx.searches.get_mut(key);
        search.probe.as_ref().map(|probe| (key, probe.pos))
    }

    /// Called when the probe was sent. `rto` is the retransmission timeout.
    pub(super) fn on_probe_sent(&mut self, ctx: &mut Ctx<'_>, key: SearchKey, rto: Duration) {
        ctx.counters.path_mtu_probes += 1;
        ctx.searches.get_mut(key).stage = SearchStage::InFlight;
        self.probe_waits = false;
        self.set_due(Some(ctx.now + ctx.config.path_mtu.probe_timer.max(rto)));
    }

    /// Called when the peer reports `start..end` as duplicate. If these are the bytes of the probe in flight,
    /// the whole probe has arrived, and its size becomes the EMSS. Returns whether the probe arrived.
    pub(super) fn take_mtu_probe_answer(&mut self, ctx: &mut Ctx<'_>, start: u64, end: u64) -> bool {
        let Some(search) = self.search.map(|key| ctx.searches.get_mut(key)) else { return false };
        let whole = |probe: &Probe| (probe.pos, probe.pos + probe.buf.len() as u64) == (start, end);
        if search.stage != SearchStage::InFlight || !search.probe.as_ref().is_some_and(whole) {
            return false;
        }
        ctx.counters.path_mtu_probes_answered += 1;
        self.emss = search.size;
        let more = search.set_next_size(self.emss);
        self.set_due(None);
        self.continue_search(ctx, more);
        true
    }

    /// Called at the time [`due`](Self::due). If a search is in progress, its probe was lost; otherwise a
    /// search starts, if the user may still send (`may_send`). `una` is SND.UNA.
    pub(super) fn on_timer(&mut self, ctx: &mut Ctx<'_>, una: u64, may_send: bool) {
        let config = ctx.config.path_mtu;
        self.set_due(None);
        let Some(key) = self.search else {
            if may_send {
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
            search.stage = SearchStage::Ready;
            self.probe_waits = !search.drop_outdated_probe(una);
        } else {
            let more = search.set_upper_bound(self.emss, search.size - 1);
            self.continue_search(ctx, more);
        }
    }

    /// Checks the search. Returns whether a search is in progress.
    pub(super) fn check(&self, searches: &SearchSlab) -> Check<bool> {
        match self.search {
            Some(key) => searches.check_search(key, self.probe_waits)?,
            None => ensure!(!self.probe_waits, "a probe without a search"),
        }
        Ok(self.search.is_some())
    }

    /// Ends the search and releases its record.
    pub(super) fn forget_search(&mut self, ctx: &mut Ctx<'_>) {
        self.set_due(None);
        self.probe_waits = false;
        if let Some(key) = self.search.take() {
            ctx.searches.remove(key);
        }
    }

    /// Called after the result of a probe: continues with the next probe if `more` is true, otherwise waits
    /// for the PMTU_RAISE_TIMER.
    fn continue_search(&mut self, ctx: &mut Ctx<'_>, more: bool) {
        if !more {
            self.schedule_search(ctx, ctx.now + ctx.config.path_mtu.raise_timer);
        }
    }

    /// Ends the present search. If a larger size is possible and probes are allowed, plans a search for the
    /// time `at`.
    fn schedule_search(&mut self, ctx: &mut Ctx<'_>, at: Instant) {
        self.forget_search(ctx);
        self.set_due((self.may_probe && self.emss < self.most.into()).then_some(at));
    }

    /// Lowers the EMSS to `emss`. The caller cuts and retransmits larger segments in flight at once. The loss
    /// of these segments is no sign of congestion (RFC 8899 section 4.4, RFC 1191 section 4). Returns whether
    /// the EMSS was larger.
    fn lower(&mut self, emss: u32) -> bool {
        let lowered = emss < self.emss;
        self.emss = self.emss.min(emss);
        lowered
    }

    fn payload_of(&self, mss: u16) -> u32 {
        payload_of(mss, self.option_bytes)
    }
}
