//! Receiving: finds ULPDUs in TCP's buffers, in order and out of order (RFC 5044 sections 4.3, 6, appendix
//! A.3).
//!
//! The caller passes a buffer to [`Deframer::receive`], and then receives the ULPDUs one after the other from
//! [`Ulpdus`]. A ULPDU is a view of the buffer, or of a chain of held buffers: payload is not copied into a
//! staging buffer. (If a small buffer has to wait, its bytes may be copied to the end of the buffer before
//! it.) If CRCs are in use, the CRC of the whole FPDU is verified before its ULPDU is handed up. If the peer
//! sends markers, FPDUs beyond a hole can be found and handed up before the hole is filled. An FPDU that
//! fails a check is an error only if it is the next FPDU in order.
//!
//! The deframer does not interpret the bytes of a ULPDU.
//!
//! | file | contents |
//! |---|---|
//! | `ulpdus.rs` | the ULPDUs in a received buffer |
//! | `early.rs`, `early_fpdu.rs` | FPDUs beyond a hole, which markers and lengths lead to, and the records of these FPDUs |
//! | `held.rs` | buffers that wait for missing bytes |
//! | `fpdu.rs`, `ulpdu.rs` | the extent and the checks of one FPDU, and views of its bytes |
//! | `ordered.rs` | the ordered lists of many connections in one set of slots |

mod early;
mod early_fpdu;
mod fpdu;
mod held;
mod ordered;
mod ulpdu;
mod ulpdus;

use std::ops::Range;

use arrayvec::ArrayVec;
use dp::Mbuf;
use dp::invariant::{Check, ensure};

pub(crate) use early_fpdu::HEAD_BYTES;
pub(crate) use held::take_runs;
pub use held::{HeldBuf, HeldList, HeldSlab, NoSlot};
pub use ulpdu::Ulpdu;
pub use ulpdus::{Deframed, Ulpdus};

use early::Search;
use fpdu::Framing;
use held::{MAX_EVICT_RANGES, cut_known};
use ordered::List;
use ulpdus::FpduSource;

use crate::mpa::{LENGTH_BYTES, fpdu_bytes};

/// Whether bytes of a received buffer are in the memory of another process, which may change them. Never
/// inlined, so that it does not slow down other buffers.
#[cold]
#[inline(never)]
pub(crate) fn is_borrowed(buf: &Mbuf) -> bool {
    buf.has_external()
}

/// Counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Number of FPDUs that were handed up in order, including FPDUs that were placed early.
    pub fpdus: u64,
    /// Number of FPDUs that were placed early: before a hole in front of them was filled.
    pub early_fpdus: u64,
    /// Number of ULPDU bytes in the early FPDUs.
    pub early_bytes: u64,
    /// Number of failed checks of FPDUs beyond a hole. Each such FPDU is checked again in order.
    pub early_unsound: u64,
    /// Number of buffers that arrived ahead of the next expected byte.
    pub ahead_buffers: u64,
}

/// The receive direction of a connection.
///
/// The owner must [`clear`](Self::clear) a deframer before dropping it: the held buffers are in a slab that
/// other connections share.
#[derive(Debug)]
pub struct Deframer {
    /// Stream offset of position 0.
    origin: u64,
    framing: Framing,
    /// Position of the next FPDU to hand up in order.
    next: u64,
    /// The end of the FPDU at `next`, if this FPDU was found incomplete: until `frontier` reaches this
    /// position, no FPDU can be handed up in order. Otherwise a position that is at most `next`.
    wanted: u64,
    /// Position of the next expected byte: all bytes before this position have arrived.
    frontier: u64,
    held: HeldList,
    /// FPDUs that were placed early and are not handed up in order yet.
    early: List,
    /// A position beyond a hole at which an FPDU begins. The position is known because a valid FPDU ends
    /// there.
    known_start: u64,
    /// Number of bytes that the next [`Ulpdus::finish`] returns.
    released: usize,
    /// Whether an error or the caller has ended reception. If so, received bytes are dropped.
    ended: bool,
    counters: Counters,
}

impl Deframer {
    /// Returns a deframer whose position 0 is at stream offset `start`
    /// ([`Negotiated::rx_start`](super::Negotiated::rx_start)). `markers` says whether the stream has
    /// markers, and `crc` says whether CRCs are checked.
    pub fn new(start: u64, markers: bool, crc: bool) -> Self {
        Self {
            origin: start,
            framing: Framing { markers, crc },
            next: 0,
            wanted: 0,
            frontier: 0,
            held: HeldList::default(),
            early: List::default(),
            known_start: 0,
            released: 0,
            ended: false,
            counters: Counters::default(),
        }
    }

    /// Returns whether a buffer is the next in order, ends at or before `frontier`, and can be deframed in
    /// place: the stream has no markers, reception goes on, and the deframer holds no bytes.
    #[inline(always)]
    fn is_usual(&self, offset: u64, buf: &Mbuf, frontier: u64) -> bool {
        let end = offset + buf.len() as u64;
        !self.framing.markers
            && !self.ended
            && self.held.is_empty()
            && offset == self.origin + self.next
            && end <= frontier
    }

    /// The fast path of [`receive`](Self::receive): consumes FPDUs at the front of a buffer from TCP, as long
    /// as each FPDU is complete, valid and in one segment of the buffer. Calls `each` for each ULPDU, with
    /// the position of its length field. Returns the number of bytes of these FPDUs. The caller must pass the
    /// rest of the buffer to `receive`, since only `receive` reports errors.
    ///
    /// The function consumes nothing if the stream has markers, if reception is over, if the deframer holds
    /// any bytes, if the buffer is not the next in order, or if the buffer ends after `frontier`.
    ///
    /// # Errors
    /// The first error that `each` returns. The error ends reception.
    #[inline]
    pub fn receive_whole<E>(
        &mut self,
        offset: u64,
        buf: &Mbuf,
        frontier: u64,
        slab: &mut HeldSlab,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        if !self.is_usual(offset, buf, frontier) {
            return Ok(0);
        }
        self.frontier = self.frontier.max(frontier - self.origin);
        let (mut taken, mut is_private) = (0, false);
        for bytes in buf.segments() {
            let mut rest = bytes;
            while let Some((ulpdu, behind)) = fpdu::split_valid(rest, self.framing.crc) {
                let (position, fpdu_bytes) = (self.next, rest.len() - behind.len());
                self.next += fpdu_bytes as u64;
                self.counters.fpdus += 1;
                taken += fpdu_bytes;
                rest = behind;
                if let Err(error) = each(position, ulpdu) {
                    // RFC 5044 section 8 (MPA-238): after an error, nothing more is handed up.
                    self.end(slab);
                    return Err(error);
                }
            }
            // Borrowed memory can only be copied, so its FPDUs are left to `receive_borrowed`.
            if !rest.is_empty() || taken == buf.len() || !is_private && is_borrowed(buf) {
                break;
            }
            is_private = true;
        }
        Ok(taken)
    }

    /// Consumes complete FPDUs at the front of a buffer with borrowed memory, as
    /// [`receive_whole`](Self::receive_whole) does, and calls `each` for each ULPDU. Returns the number of
    /// bytes of these FPDUs. The caller must pass a private copy of the rest of the buffer to `receive`
    /// ([`Mbuf::into_private`]).
    ///
    /// The function consumes nothing if CRCs are in use, since the bytes could change between the check and
    /// their placement, or if one of the conditions of `receive_whole` is not met. Each header is copied
    /// before it is parsed. The payload may change until it is placed. A process that changes it changes its
    /// own message, as if it had sent other bytes.
    ///
    /// # Errors
    /// The first error that `each` returns. The error ends reception.
    pub fn receive_borrowed<E>(
        &mut self,
        offset: u64,
        buf: &Mbuf,
        frontier: u64,
        slab: &mut HeldSlab,
        mut each: impl FnMut(Ulpdu<'_>) -> Result<(), E>,
    ) -> Result<usize, E> {
        if self.framing.crc || !self.is_usual(offset, buf, frontier) {
            return Ok(0);
        }
        self.frontier = self.frontier.max(frontier - self.origin);
        let mut taken = 0;
        loop {
            let mut length = [0; LENGTH_BYTES];
            if buf.copy_to(taken, &mut length) < LENGTH_BYTES {
                return Ok(taken);
            }
            let ulpdu_bytes = usize::from(u16::from_be_bytes(length));
            // RFC 5044 section 6 (MPA-133): the length shows whether the whole FPDU has arrived.
            let fpdu_bytes = fpdu_bytes(ulpdu_bytes);
            if fpdu_bytes > buf.len() - taken {
                return Ok(taken);
            }
            let ulpdu = Ulpdu::borrowed(self.next, buf, taken + LENGTH_BYTES, ulpdu_bytes);
            self.next += fpdu_bytes as u64;
            self.counters.fpdus += 1;
            taken += fpdu_bytes;
            if let Err(error) = each(ulpdu) {
                // RFC 5044 section 8 (MPA-238): after an error, nothing more is handed up.
                self.end(slab);
                return Err(error);
            }
        }
    }

    /// Consumes a buffer from TCP. [`receive_whole`](Self::receive_whole) is the fast path for some buffers;
    /// this function accepts every buffer. `buf` begins at stream offset `offset`. Including this buffer, TCP
    /// has handed up all bytes before stream offset `frontier`. The returned value hands up, one by one, the
    /// ULPDUs that the buffer completes.
    #[inline]
    pub fn receive<'a>(
        &'a mut self,
        offset: u64,
        buf: Mbuf,
        frontier: u64,
        slab: &'a mut HeldSlab,
    ) -> Ulpdus<'a> {
        let ahead = offset >= frontier;
        self.counters.ahead_buffers += u64::from(ahead);
        let before = buf.len();
        let new = if self.ended { None } else { self.cut_known(offset, buf, slab) };
        if ahead {
            self.released += before - new.as_ref().map_or(0, |(_, buf)| buf.len());
        }
        self.frontier = self.frontier.max(frontier.saturating_sub(self.origin));
        match new {
            // The usual case: the deframer holds nothing, and the next FPDU begins at the front of the
            // buffer.
            Some((start, buf)) if !ahead && self.held.is_empty() && start == self.next => {
                Ulpdus::new(self, slab, FpduSource::Buffer { start, buf })
            }
            Some((start, buf)) => {
                let source = self.hold(start, buf, ahead, slab);
                Ulpdus::new(self, slab, source)
            }
            None => Ulpdus::new(self, slab, FpduSource::Nothing),
        }
    }

    /// Frees memory: drops held buffers ahead of the next expected byte, starting with the last buffer, until
    /// at least `bytes` bytes are dropped that were not placed. Before a buffer is dropped, `may` receives
    /// the stream offsets of the buffer's ranges that were not placed, and says whether TCP can treat these
    /// ranges as not received (`tcp_lite::Stack::evict`). If `may` returns `false`, or if a buffer has too
    /// many such ranges, no further buffer is dropped. The peer may send the dropped bytes again. The caller
    /// must not release the dropped bytes to TCP.
    pub fn give_up(&mut self, bytes: usize, slab: &mut HeldSlab, mut may: impl FnMut(&[Range<u64>]) -> bool) {
        let origin = self.origin;
        self.held.give_up_unplaced(slab, self.early, bytes, |positions| {
            let mut ranges: ArrayVec<_, MAX_EVICT_RANGES> = ArrayVec::new();
            ranges.extend(positions.iter().map(|range| range.start + origin..range.end + origin));
            may(&ranges)
        });
    }

    /// Whether the next expected byte is the first byte of an FPDU, so that a FIN at this byte does not cut
    /// an FPDU. Otherwise a FIN is the error [`MpaError::Closed`](super::MpaError::Closed), code 1.
    pub const fn at_boundary(&self) -> bool {
        self.next == self.frontier
    }

    /// Ends reception, drops the held buffers, and makes the deframer drop all later bytes. Returns the
    /// number of bytes for `tcp_lite::Stack::release`, like [`Ulpdus::finish`].
    pub fn clear(&mut self, slab: &mut HeldSlab) -> usize {
        self.end(slab);
        std::mem::take(&mut self.released)
    }

    /// Returns the stream offset of the peer's first byte that counts as not accepted if the stream ends now:
    /// the end of the last FPDU that was handed up in order. After the end of reception, the offset is inside
    /// that FPDU, since the caller may have refused it.
    pub const fn accepted_end(&self) -> u64 {
        self.origin + if self.ended { self.next.saturating_sub(1) } else { self.next }
    }

    /// Whether an error, an [`Ulpdus`] that was dropped early, or [`clear`](Self::clear) has ended reception.
    pub const fn is_over(&self) -> bool {
        self.ended
    }

    /// Total size in bytes of the packet buffers that are held out of order ([`HeldBuf::ahead`]), including
    /// their headroom and tailroom.
    pub const fn pinned_bytes(&self) -> usize {
        self.held.pinned_bytes()
    }

    /// The counters since the start of the connection.
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Checks the invariants; for tests. Returns the numbers of slots that the deframer uses: for held
    /// buffers, and for early FPDUs.
    ///
    /// # Errors
    /// A description of the first invariant that does not hold.
    #[doc(hidden)]
    pub fn check(&self, slab: &HeldSlab) -> Check<(usize, usize)> {
        let buffers = self.held.check(slab)?;
        let early = slab.early.check_list(self.early)?;
        let Self { next, frontier, ended, .. } = *self;
        ensure!(!ended || buffers + early == 0, "ended, with {buffers} buffers and {early} early FPDUs");
        ensure!(next <= frontier, "handed up to {next}, arrived up to {frontier}");
        let mut was_ahead = false;
        for held in self.held.iter(slab) {
            ensure!(held.ahead || !was_ahead, "behind one that counts as held, and does not: {held:?}");
            was_ahead = held.ahead;
            let end = held.start + held.buf.len() as u64;
            ensure!(next < end, "handed up to {next}, and held: {held:?}");
            ensure!(held.ahead || end <= frontier, "arrived up to {frontier}, and in order: {held:?}");
        }
        let first = self.early.head().and_then(|id| slab.early.at(id));
        ensure!(
            first.is_none_or(|first| next <= first.start),
            "handed up to {next}, and recorded: {first:?}"
        );
        Ok((buffers, early))
    }

    /// Returns the first run of new bytes in `buf`, with its position, or `None` if no byte is new. The rest
    /// of `buf` is dropped.
    fn cut_known(&self, offset: u64, mut buf: Mbuf, slab: &HeldSlab) -> Option<(u64, Mbuf)> {
        // RFC 5041 section 3 (DDP-043): bytes of FPDUs that were handed up in order are dropped.
        let past = (self.origin + self.next).saturating_sub(offset);
        buf.advance(past.min(buf.len() as u64) as usize);
        if buf.is_empty() {
            return None;
        }
        let start = offset + past - self.origin;
        cut_known(&slab.early, self.early, start, buf).map(|(start, buf, _)| (start, buf))
    }

    /// Holds a buffer that is out of order, or that follows held bytes. Returns where to search for the FPDUs
    /// that the buffer completes.
    fn hold(&mut self, start: u64, buf: Mbuf, ahead: bool, slab: &mut HeldSlab) -> FpduSource {
        let before = buf.len();
        // TCP does not hand up a byte twice, so `insert` removes nothing from `buf`: all bytes of
        // `start..start + before` are new.
        match self.held.insert(slab, start, buf, ahead) {
            // While the FPDU is incomplete, no search is needed, so that bytes that arrive one by one cost
            // little.
            Ok(_) if !ahead && self.frontier < self.wanted && self.early.is_empty() => FpduSource::Nothing,
            Ok(_) if !ahead => FpduSource::Held,
            Ok(Some(slot)) if self.framing.markers => {
                FpduSource::Ahead(Search::new(self, slab, slot, start, start + before as u64))
            }
            Ok(_) => FpduSource::Nothing,
            Err(NoSlot) => {
                self.released += if ahead { before } else { 0 };
                FpduSource::Lost
            }
        }
    }

    /// Ends reception and drops the held buffers.
    fn end(&mut self, slab: &mut HeldSlab) {
        self.ended = true;
        self.released += self.held.clear(slab);
        while let Some(head) = self.early.head() {
            slab.early.remove(&mut self.early, head);
        }
    }
}

#[cfg(test)]
mod broken;
#[cfg(test)]
mod tests;
