//! The ULPDUs in a received buffer, one after the other: a lending iterator.
//!
//! ```text
//! in order:   buffer --+--> Buffer: its FPDUs follow each other, nothing is held ------+--> InOrder, Placed
//!                      +--> Held:   it continues, or comes after, what is held --------+
//! ahead:      buffer -----> Ahead:  it is held; markers and lengths lead to FPDUs --------> Ahead
//! ```

use dp::Mbuf;

use super::early::Search;
use super::early_fpdu::EarlyFpdu;
use super::fpdu::{Extent, Unsound};
use super::held::NoSlot;
use super::ulpdu::{Ulpdu, Wire};
use super::{Deframer, HeldSlab};
use crate::mpa::MpaError;

/// A ULPDU that has been received.
#[derive(Clone, Copy, Debug)]
pub enum Deframed<'a> {
    /// The next ULPDU in the sender's order, whose bytes are not placed yet.
    InOrder(Ulpdu<'a>),
    /// The next ULPDU in the sender's order, which DDP has already received as [`Ahead`](Self::Ahead), and
    /// has placed.
    Placed {
        /// The first 18 bytes of the ULPDU, or all bytes if it has fewer.
        head: &'a [u8],
        /// Number of bytes of the ULPDU.
        ulpdu_len: usize,
    },
    /// A ULPDU beyond a hole. If the caller places the bytes of the ULPDU, the caller must call
    /// [`Ulpdus::mark_placed`]: the bytes are then freed, and later the ULPDU is returned again as
    /// [`Placed`](Self::Placed). Otherwise the ULPDU is held, and later returned as
    /// [`InOrder`](Self::InOrder). Until then the ULPDU may be returned as `Ahead` again.
    Ahead(Ulpdu<'a>),
}

/// The ULPDUs that a received buffer completes. Each ULPDU in order is returned exactly once, in the sender's
/// order.
///
/// The caller calls [`next`](Self::next) until no ULPDU is left, and then [`finish`](Self::finish). If the
/// value is dropped earlier, or after an error, reception ends for the connection: held bytes and later bytes
/// are dropped.
#[derive(Debug)]
pub struct Ulpdus<'a> {
    deframer: &'a mut Deframer,
    slab: &'a mut HeldSlab,
    source: FpduSource,
    /// The FPDU that is returned as [`Deframed::Placed`].
    placed: Option<EarlyFpdu>,
    settled: bool,
}

/// Where to search for the next FPDU.
#[derive(Debug)]
pub(super) enum FpduSource {
    /// In a buffer that is not held. The buffer begins at position `start`, at or before the next FPDU.
    Buffer { start: u64, buf: Mbuf },
    /// In the held buffers.
    Held,
    /// Beyond a hole.
    Ahead(Search),
    /// Nowhere, since there are no new bytes.
    Nothing,
    /// Nowhere, since no slot was free to hold the new bytes.
    Lost,
}

/// The next FPDU to hand up.
enum NextFpdu {
    /// A valid FPDU in the buffer.
    InBuffer(Extent),
    /// A valid FPDU that begins in this slot.
    InSlot(u32, Extent),
    /// An FPDU that was placed early and is in order now.
    Placed(EarlyFpdu),
}

impl<'a> Ulpdus<'a> {
    #[inline]
    pub(super) fn new(deframer: &'a mut Deframer, slab: &'a mut HeldSlab, source: FpduSource) -> Self {
        Self { deframer, slab, source, placed: None, settled: false }
    }

    /// Returns the next ULPDU, or `None` if no ULPDU is left.
    ///
    /// # Errors
    /// [`MpaError::Crc`] (code 2) or [`MpaError::Marker`] (code 3) if the next FPDU in order is not valid.
    /// [`MpaError::NoHeldSlot`] (code 5) if no slot is free for bytes that have to wait, and
    /// [`MpaError::Defect`] (code 5) if this library has a defect.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Deframed<'_>>, MpaError> {
        // The fast path, whose general path is `next_of_any`.
        if let Some(extent) = self.take_adjacent() {
            return self.view_adjacent(&extent).map(Some);
        }
        if self.is_used_up() {
            self.settle();
            return Ok(None);
        }
        self.next_of_any()
    }

    /// Records that the caller has placed the bytes of the last [`Deframed::Ahead`].
    pub fn mark_placed(&mut self) {
        if let FpduSource::Ahead(search) = &mut self.source {
            search.mark_placed(self.deframer, self.slab);
        }
    }

    /// Returns the number of bytes that the caller passes to `tcp_lite::Stack::release`. A byte counts if TCP
    /// delivered it ahead of the next expected byte. It counts once: when its FPDU is placed early, when all
    /// bytes before it have arrived, or when reception ends. Bytes in order never count, even while they wait
    /// for the rest of their FPDU. If such bytes counted, a window smaller than their FPDU would stay closed,
    /// and the FPDU would never be complete.
    pub fn finish(self) -> usize {
        std::mem::take(&mut self.deframer.released)
    }

    /// Hands up the next FPDU, if it is complete and valid, is in one piece of memory, and directly follows
    /// the last FPDU, and if no early FPDU is recorded.
    #[inline]
    fn take_adjacent(&mut self) -> Option<Extent> {
        let Self { deframer, source: FpduSource::Buffer { start, buf }, .. } = self else { return None };
        let (next, bytes) = (deframer.next, buf.head());
        let done = (next - *start) as usize;
        if !deframer.early.is_empty() {
            return None;
        }
        // If the FPDU has an error, `next_of_any` reports it.
        if done < bytes.len() {
            return deframer.take_front(&bytes[done..]);
        }
        // The next buffer of the chain may begin with an FPDU.
        advance(start, buf, next);
        if buf.is_empty() {
            return None;
        }
        deframer.take_front(buf.head())
    }

    #[inline]
    fn view_adjacent(&self, extent: &Extent) -> Result<Deframed<'_>, MpaError> {
        let FpduSource::Buffer { start, buf } = &self.source else {
            return Err(MpaError::defect("the buffer of an FPDU in a buffer"));
        };
        Ok(Deframed::InOrder(extent.ulpdu(Wire::slice(*start, buf.head()), self.deframer.framing)))
    }

    /// Whether all bytes of the buffer have been returned or are held, and no early FPDU waits.
    #[inline]
    fn is_used_up(&self) -> bool {
        let FpduSource::Buffer { start, buf } = &self.source else {
            return matches!(self.source, FpduSource::Nothing);
        };
        self.deframer.next - *start == buf.len() as u64 && self.deframer.early.is_empty()
    }

    /// The general path of [`next`](Self::next): returns the next ULPDU from any source, or `None` if no
    /// ULPDU is left. An error ends reception.
    #[inline(never)]
    fn next_of_any(&mut self) -> Result<Option<Deframed<'_>>, MpaError> {
        let found = match self.find() {
            Ok(None) => self.hold_rest().map(|()| None),
            found => found,
        };
        if found.is_err() {
            self.source = FpduSource::Nothing;
            // RFC 5044 section 8 (MPA-238): after an error, no further ULPDU is returned.
            self.deframer.end(self.slab);
        }
        match found? {
            Some(found) => self.view(found).map(Some),
            None => Ok(None),
        }
    }

    fn find(&mut self) -> Result<Option<NextFpdu>, MpaError> {
        let Self { deframer, slab, source, .. } = self;
        match source {
            FpduSource::Buffer { start, buf } => deframer.find_in_buffer(start, buf, slab),
            FpduSource::Held => deframer.find_in_held(slab),
            FpduSource::Ahead(search) => {
                let found = search.next(deframer, slab);
                Ok(found.map(|fpdu| NextFpdu::InSlot(fpdu.slot, fpdu.extent)))
            }
            FpduSource::Nothing => Ok(None),
            FpduSource::Lost => Err(MpaError::NoHeldSlot),
        }
    }

    /// Holds the rest of the buffer, which contains no complete FPDU, until more bytes arrive. Fails if no
    /// slot is free.
    ///
    /// RFC 5044 sections 5.1 and A.4 (MPA-123, MPA-280): FPDUs need not begin and end with TCP's segments.
    fn hold_rest(&mut self) -> Result<(), MpaError> {
        if let FpduSource::Buffer { start, buf } = std::mem::replace(&mut self.source, FpduSource::Nothing)
            && !buf.is_empty()
        {
            let Self { deframer, slab, .. } = self;
            deframer.held.hold(slab, start, buf, false).map_err(|NoSlot| MpaError::NoHeldSlot)?;
        }
        self.settle();
        Ok(())
    }

    /// Adds the held bytes that are in order now to the bytes to release, and records that the caller has
    /// received all ULPDUs. Without this record, dropping `Ulpdus` ends reception.
    #[inline]
    fn settle(&mut self) {
        let Self { deframer, slab, .. } = self;
        deframer.released += deframer.held.on_frontier(slab, deframer.frontier);
        self.settled = true;
    }

    /// Returns the ULPDU of the FPDU that was found.
    fn view(&mut self, found: NextFpdu) -> Result<Deframed<'_>, MpaError> {
        let framing = self.deframer.framing;
        // RFC 5041 section 3 (DDP-034): a ULPDU beyond a hole is marked as `Ahead`, and is returned again in
        // the sender's order.
        match (found, &self.source) {
            (NextFpdu::Placed(early), _) => {
                let early = self.placed.insert(early);
                Ok(Deframed::Placed { head: early.ulpdu_head(), ulpdu_len: early.ulpdu_bytes })
            }
            (NextFpdu::InBuffer(extent), FpduSource::Buffer { start, buf }) => {
                Ok(Deframed::InOrder(extent.ulpdu(Wire::buf(*start, buf), framing)))
            }
            (NextFpdu::InSlot(slot, extent), source) => {
                let wire = Wire::held(&self.slab.buffers, slot).ok_or_else(no_such_buffer)?;
                let ulpdu = extent.ulpdu(wire, framing);
                let is_ahead = matches!(source, FpduSource::Ahead(_));
                Ok(if is_ahead { Deframed::Ahead(ulpdu) } else { Deframed::InOrder(ulpdu) })
            }
            // After this error no further ULPDU is returned: `Drop` ends reception, as it does after each
            // error.
            (NextFpdu::InBuffer(_), _) => Err(MpaError::defect("the buffer of an FPDU in a buffer")),
        }
    }
}

impl Drop for Ulpdus<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.deframer.end(self.slab);
        }
    }
}

impl Deframer {
    /// Returns the next FPDU: the FPDU at the front of `buf`, which begins at position `start`, or an FPDU
    /// that was placed early. Removes the bytes before the next FPDU from `buf`. Returns `None` if the FPDU
    /// is incomplete, and an error if it is not valid.
    fn find_in_buffer(
        &mut self,
        start: &mut u64,
        buf: &mut Mbuf,
        slab: &mut HeldSlab,
    ) -> Result<Option<NextFpdu>, MpaError> {
        advance(start, buf, self.next);
        if buf.is_empty() && self.early.is_empty() {
            return Ok(None);
        }
        let early = self.first_early(slab);
        if let Some(early) = early.filter(|early| early.start <= self.next) {
            return self.take_placed(early, slab).map(Some);
        }
        Ok(self.take_whole(Wire::buf(*start, buf), early)?.map(NextFpdu::InBuffer))
    }

    /// Returns the next FPDU: the FPDU in the held buffers, or an FPDU that was placed early. Drops the
    /// buffers before the next FPDU. Returns `None` if the FPDU is incomplete, and an error if it is not
    /// valid.
    fn find_in_held(&mut self, slab: &mut HeldSlab) -> Result<Option<NextFpdu>, MpaError> {
        self.released += self.held.drop_before(slab, self.next);
        let early = self.first_early(slab);
        if let Some(early) = early.filter(|early| early.start <= self.next) {
            return self.take_placed(early, slab).map(Some);
        }
        let Some(head) = self.held.list.head() else { return Ok(None) };
        let wire = Wire::held(&slab.buffers, head).ok_or_else(no_such_buffer)?;
        Ok(self.take_whole(wire, early)?.map(|extent| NextFpdu::InSlot(head, extent)))
    }

    fn first_early(&self, slab: &HeldSlab) -> Option<EarlyFpdu> {
        self.early.head().and_then(|id| slab.early.at(id)).copied()
    }

    /// Hands up the first FPDU that was placed early, which begins at or before the position of the next
    /// FPDU. Fails if it begins before this position.
    fn take_placed(&mut self, early: EarlyFpdu, slab: &mut HeldSlab) -> Result<NextFpdu, MpaError> {
        if early.start != self.next {
            // A marker led to the early FPDU. According to the length fields, this FPDU overlaps the FPDU
            // before it.
            return Err(MpaError::Marker { position: self.next });
        }
        if let Some(head) = self.early.head() {
            slab.early.remove(&mut self.early, head);
        }
        // RFC 5044 section 2.2 (MPA-020): an FPDU that was placed early is returned again in the sender's
        // order, when all bytes before it have arrived.
        self.next = early.end;
        self.counters.fpdus += 1;
        Ok(NextFpdu::Placed(early))
    }

    /// Hands up the next FPDU, if it is at the front of `bytes`, complete and valid. The caller has checked
    /// that no early FPDU is recorded.
    #[inline]
    fn take_front(&mut self, bytes: &[u8]) -> Option<Extent> {
        self.take_whole(Wire::slice(self.next, bytes), None).ok()?
    }

    /// Hands up the next FPDU, if all its bytes are in `wire` and in order. Returns `None` if a byte is
    /// missing, and an error if the FPDU is not valid or reaches into the FPDU `early`.
    #[inline]
    fn take_whole(&mut self, wire: Wire<'_>, early: Option<EarlyFpdu>) -> Result<Option<Extent>, MpaError> {
        // RFC 5044 sections 5.2 and 6 (MPA-124, MPA-127, MPA-129): in order, the length of the last valid
        // FPDU gives the start of the next FPDU.
        let position = self.next;
        let Some(extent) = Extent::read(wire, position, self.framing) else {
            return Ok(None);
        };
        if early.is_some_and(|early| early.start < extent.end) && extent.length_at < self.frontier {
            // The lengths and a marker disagree. The bytes of the early FPDU are freed, so its CRC can no
            // longer show whether a length or the marker is wrong.
            return Err(MpaError::Marker { position });
        }
        // RFC 5044 section 6 (MPA-133): the length shows whether the whole FPDU has arrived.
        if extent.end > self.frontier || !wire.covers(extent.start, extent.end) {
            self.wanted = extent.end;
            return Ok(None);
        }
        // RFC 5044 section 6 (MPA-126): only a valid FPDU is returned.
        extent.check(wire, self.framing).map_err(|unsound| match unsound {
            Unsound::Crc => MpaError::Crc { position },
            Unsound::Marker => MpaError::Marker { position },
        })?;
        self.next = extent.end;
        self.counters.fpdus += 1;
        Ok(Some(extent))
    }
}

/// Returns the error for a slot of a list that does not hold a buffer.
#[cold]
fn no_such_buffer() -> MpaError {
    MpaError::defect("a held buffer in each slot of a list")
}

/// Removes the bytes before `position` from `buf`, which begins at `start`.
fn advance(start: &mut u64, buf: &mut Mbuf, position: u64) {
    let done = (position - *start).min(buf.len() as u64);
    buf.advance(done as usize);
    *start += done;
}
