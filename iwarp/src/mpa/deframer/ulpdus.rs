//! The ULPDUs that a received buffer brings, one after the other: a lending iterator.
//!
//! ```text
//! in order:   buffer --+--> Buffer: its FPDUs follow each other, nothing is held ------+--> InOrder, Placed
//!                      +--> Held:   it continues, or ends behind, what was held before -+
//! ahead:      buffer -----> Ahead:  it is held; markers and lengths lead to FPDUs --------> Ahead
//! ```

use dp::Mbuf;

use super::early::{Record, Search};
use super::fpdu::{Extent, Unsound};
use super::held::NoSlot;
use super::ulpdu::{Ulpdu, Wire};
use super::{Deframer, HeldSlab};
use crate::mpa::MpaError;

/// A ULPDU that has been received.
#[derive(Clone, Copy, Debug)]
pub enum Received<'a> {
    /// The next one in the sender's order. Its bytes have not been handed over yet.
    InOrder(Ulpdu<'a>),
    /// The next one in the sender's order. It came as [`Ahead`](Self::Ahead) before, and was placed
    /// then.
    Placed {
        /// Its first bytes: 18, or all if it has fewer.
        header: &'a [u8],
        /// Bytes of the ULPDU.
        ulpdu_len: usize,
    },
    /// One that lies behind a hole. If its bytes are where they belong, say so by
    /// [`Ulpdus::mark_placed`]: they go away, and it comes again as [`Placed`](Self::Placed). Else
    /// it is held and comes as [`InOrder`](Self::InOrder); it may come as `Ahead` before that
    /// again.
    Ahead(Ulpdu<'a>),
}

/// The ULPDUs that a received buffer brings. Those in order come in the sender's order, each
/// exactly once.
///
/// Ask until there is none, then [`finish`](Self::finish). Dropped before that, reception is over
/// for good: what is held goes, and what still comes is dropped. So it is after an error.
#[derive(Debug)]
pub struct Ulpdus<'a> {
    deframer: &'a mut Deframer,
    slab: &'a mut HeldSlab,
    source: Source,
    /// The one that is delivered as [`Received::Placed`].
    placed: Option<Record>,
    exhausted: bool,
}

/// Where the next FPDU is looked for.
#[derive(Debug)]
pub(super) enum Source {
    /// In a buffer that is not held. It begins at this position, at or in front of the next FPDU.
    Buffer { start: u64, buf: Mbuf },
    /// In what is held.
    Held,
    /// Ahead of a hole.
    Ahead(Search),
    /// Nothing has come.
    Nothing,
    /// There was no slot to hold what has come.
    Lost,
}

/// What was found.
enum Found {
    /// A sound FPDU in the buffer.
    InBuffer(Extent),
    /// A sound FPDU, which begins in this slot.
    InSlot(u32, Extent),
    /// The turn of one that was placed early.
    Placed(Record),
}

impl<'a> Ulpdus<'a> {
    #[inline]
    pub(super) fn new(deframer: &'a mut Deframer, slab: &'a mut HeldSlab, source: Source) -> Self {
        Self { deframer, slab, source, placed: None, exhausted: false }
    }

    /// The next ULPDU; `None`: that is all.
    ///
    /// # Errors
    /// Code 2 or 3 of the FPDU at the frontier, or 5 where there is no slot left for the rest of
    /// the buffer.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    #[inline]
    pub fn next(&mut self) -> Result<Option<Received<'_>>, MpaError> {
        // The usual cases come first, and alone: one is met for each FPDU, the other for each
        // buffer.
        if let Some(extent) = self.take_behind() {
            return Ok(self.view_behind(&extent));
        }
        if self.is_used_up() {
            self.exhaust();
            return Ok(None);
        }
        self.next_of_any()
    }

    /// The bytes of the last [`Received::Ahead`] are where they belong.
    pub fn mark_placed(&mut self) {
        if let Source::Ahead(search) = &mut self.source {
            search.mark_placed(self.deframer, self.slab);
        }
    }

    /// For `tcp_lite::Stack::release`: of the bytes that were handed up ahead of the frontier, how
    /// many are no longer held ahead of it, since the last call. Each such byte counts once: when
    /// its FPDU was placed early, when the frontier passed it, or when reception ended. What is in
    /// order never counts, also where it waits for the rest of its FPDU: else a window with less
    /// room than for that would stay closed, and the FPDU would never be whole.
    pub fn finish(self) -> usize {
        std::mem::take(&mut self.deframer.released)
    }

    /// Goes past the next FPDU, if it lies whole and sound in one piece of memory, right behind the
    /// one before.
    #[inline]
    fn take_behind(&mut self) -> Option<Extent> {
        let Self { deframer, source: Source::Buffer { start, buf }, .. } = self else { return None };
        let (next, bytes) = (deframer.next, buf.head());
        let done = (next - *start) as usize;
        if !deframer.records.is_empty() {
            return None;
        }
        // What is wrong with it is for `next_of_any` to say.
        if done < bytes.len() {
            return deframer.take_whole(Wire::slice(next, &bytes[done..]), None).ok()?;
        }
        // The next buffer of the chain may begin with an FPDU as well.
        advance(start, buf, next);
        if buf.is_empty() {
            return None;
        }
        deframer.take_whole(Wire::slice(next, buf.head()), None).ok()?
    }

    #[inline]
    fn view_behind(&self, extent: &Extent) -> Option<Received<'_>> {
        let Source::Buffer { start, buf } = &self.source else { return None };
        Some(Received::InOrder(extent.ulpdu(Wire::slice(*start, buf.head()), self.deframer.framing)))
    }

    /// Whether all of the buffer has been handed up, and nothing else waits.
    #[inline]
    fn is_used_up(&self) -> bool {
        let Source::Buffer { start, buf } = &self.source else { return false };
        self.deframer.next - *start == buf.len() as u64 && self.deframer.records.is_empty()
    }

    /// The next ULPDU, wherever it is.
    #[inline(never)]
    fn next_of_any(&mut self) -> Result<Option<Received<'_>>, MpaError> {
        let found = match self.find() {
            Ok(None) => self.hold_rest().map(|()| None),
            found => found,
        };
        if found.is_err() {
            self.source = Source::Nothing;
            self.deframer.end(self.slab);
        }
        Ok(found?.and_then(|found| self.view(found)))
    }

    fn find(&mut self) -> Result<Option<Found>, MpaError> {
        let Self { deframer, slab, source, .. } = self;
        match source {
            Source::Buffer { start, buf } => deframer.find_in_buffer(start, buf, slab),
            Source::Held => deframer.find_in_held(slab),
            Source::Ahead(search) => {
                let found = search.next(deframer, slab);
                Ok(found.map(|fpdu| Found::InSlot(fpdu.slot, fpdu.extent)))
            }
            Source::Nothing => Ok(None),
            Source::Lost => Err(MpaError::NoHeldSlot),
        }
    }

    /// Nothing more is whole: what is left of the buffer waits for the rest of its FPDU.
    fn hold_rest(&mut self) -> Result<(), MpaError> {
        if let Source::Buffer { start, buf } = std::mem::replace(&mut self.source, Source::Nothing)
            && !buf.is_empty()
        {
            let Self { deframer, slab, .. } = self;
            deframer.held.hold(slab, start, buf, false).map_err(|NoSlot| MpaError::NoHeldSlot)?;
        }
        self.exhaust();
        Ok(())
    }

    /// All has been asked for.
    #[inline]
    fn exhaust(&mut self) {
        let Self { deframer, slab, .. } = self;
        deframer.released += deframer.held.pass(slab, deframer.frontier);
        self.exhausted = true;
    }

    /// What was found, where it lies.
    fn view(&mut self, found: Found) -> Option<Received<'_>> {
        let framing = self.deframer.framing;
        match (found, &self.source) {
            (Found::Placed(record), _) => {
                let record = self.placed.insert(record);
                Some(Received::Placed { header: record.header(), ulpdu_len: record.ulpdu_bytes })
            }
            (Found::InBuffer(extent), Source::Buffer { start, buf }) => {
                Some(Received::InOrder(extent.ulpdu(Wire::buf(*start, buf), framing)))
            }
            (Found::InSlot(slot, extent), source) => {
                let ulpdu = extent.ulpdu(Wire::held(&self.slab.buffers, slot)?, framing);
                let is_ahead = matches!(source, Source::Ahead(_));
                Some(if is_ahead { Received::Ahead(ulpdu) } else { Received::InOrder(ulpdu) })
            }
            (Found::InBuffer(_), _) => None,
        }
    }
}

impl Drop for Ulpdus<'_> {
    fn drop(&mut self) {
        if !self.exhausted {
            self.deframer.end(self.slab);
        }
    }
}

impl Deframer {
    /// The next FPDU in `buf`, which begins at position `start`. What is in front of it goes from
    /// the buffer's front.
    fn find_in_buffer(
        &mut self,
        start: &mut u64,
        buf: &mut Mbuf,
        slab: &mut HeldSlab,
    ) -> Result<Option<Found>, MpaError> {
        advance(start, buf, self.next);
        if buf.is_empty() && self.records.is_empty() {
            return Ok(None);
        }
        let record = self.first_record(slab);
        if let Some(record) = record.filter(|record| record.start <= self.next) {
            return self.take_placed(record, slab).map(Some);
        }
        Ok(self.take_whole(Wire::buf(*start, buf), record)?.map(Found::InBuffer))
    }

    /// The next FPDU in what is held. What is in front of it is held no longer.
    fn find_in_held(&mut self, slab: &mut HeldSlab) -> Result<Option<Found>, MpaError> {
        self.released += self.held.drop_before(slab, self.next);
        let record = self.first_record(slab);
        if let Some(record) = record.filter(|record| record.start <= self.next) {
            return self.take_placed(record, slab).map(Some);
        }
        let Some(head) = self.held.list.head() else { return Ok(None) };
        let Some(wire) = Wire::held(&slab.buffers, head) else { return Ok(None) };
        Ok(self.take_whole(wire, record)?.map(|extent| Found::InSlot(head, extent)))
    }

    /// The first FPDU that was placed early.
    fn first_record(&self, slab: &HeldSlab) -> Option<Record> {
        self.records.head().and_then(|id| slab.records.at(id)).copied()
    }

    /// Goes past the first FPDU that was placed early, which begins at or in front of the next one.
    fn take_placed(&mut self, record: Record, slab: &mut HeldSlab) -> Result<Found, MpaError> {
        if record.start != self.next {
            // By length an FPDU reached into one that a marker led to.
            return Err(MpaError::Marker { position: self.next });
        }
        if let Some(head) = self.records.head() {
            slab.records.remove(&mut self.records, head);
        }
        self.next = record.end;
        self.counters.fpdus += 1;
        Ok(Found::Placed(record))
    }

    /// Goes past the next FPDU, if it is whole in `wire` and in front of the frontier, and sound.
    #[inline]
    fn take_whole(&mut self, wire: Wire<'_>, record: Option<Record>) -> Result<Option<Extent>, MpaError> {
        let position = self.next;
        let Some(extent) = Extent::read(wire, position, self.framing) else {
            return Ok(None);
        };
        if record.is_some_and(|record| record.start < extent.end) && extent.header < self.frontier {
            // The length chain and a marker disagree. The bytes of the other FPDU are gone, so
            // that no CRC can say which is wrong.
            return Err(MpaError::Marker { position });
        }
        if extent.end > self.frontier || !wire.covers(extent.start, extent.end) {
            return Ok(None);
        }
        extent.check(wire, self.framing).map_err(|unsound| match unsound {
            Unsound::Crc => MpaError::Crc { position },
            Unsound::Marker => MpaError::Marker { position },
        })?;
        self.next = extent.end;
        self.counters.fpdus += 1;
        Ok(Some(extent))
    }
}

/// Takes from the front of `buf`, which begins at `start`, what is in front of `position`.
fn advance(start: &mut u64, buf: &mut Mbuf, position: u64) {
    let done = (position - *start).min(buf.len() as u64);
    buf.advance(done as usize);
    *start += done;
}
