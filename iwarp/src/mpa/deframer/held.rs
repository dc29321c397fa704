//! Received buffers that wait: in order for the rest of their FPDU, or ahead of a hole.
//!
//! A buffer that is not half full is copied behind its predecessor, where it fits, rather than held. So of
//! two buffers that touch at least one is half full, or both together fill one: small segments pin about as
//! much memory as long ones, but for the first behind each hole.

use std::ops::Range;

use arrayvec::ArrayVec;
use dp::Mbuf;

use super::early::Record;
use super::ordered::{List, Slots, Stretch};

/// Stretches that are given up at a time: what was placed early lies between them.
pub(super) const MAX_STRETCHES: usize = 16;

/// Slots for held buffers and for records of FPDUs placed early, shared by all connections of an engine. All
/// memory is taken by [`new`](Self::new).
///
/// With as many buffer slots as the packet pool has buffers there is always one: each slot holds one buffer
/// at least. Without a record an FPDU is not placed early but held.
#[derive(Debug)]
pub struct HeldSlab {
    pub(super) buffers: Slots<HeldBuf>,
    pub(super) records: Slots<Record>,
}

impl HeldSlab {
    /// Room for `buffers` held buffers and `records` FPDUs placed early.
    pub fn new(buffers: usize, records: usize) -> Self {
        Self { buffers: Slots::new(buffers), records: Slots::new(records) }
    }

    /// Buffer slots taken, and in all.
    pub fn buffers(&self) -> (usize, usize) {
        (self.buffers.used(), self.buffers.capacity())
    }

    /// Records taken, and in all.
    pub fn records(&self) -> (usize, usize) {
        (self.records.used(), self.records.capacity())
    }
}

/// A buffer that waits.
pub struct HeldBuf {
    /// Where its first byte is: a stream offset in a list of the user's, a position in the deframer's.
    pub start: u64,
    /// The bytes.
    pub buf: Mbuf,
    /// It arrived ahead of the frontier (and a deframer has not seen it pass), so that TCP's budget counts it
    /// until it is released.
    pub ahead: bool,
    /// Bytes that were placed early (and released).
    pub(super) accounted: usize,
    /// Bytes of the packet buffers behind it, while it counts as ahead.
    pinned: usize,
}

impl std::fmt::Debug for HeldBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldBuf")
            .field("start", &self.start)
            .field("len", &self.buf.len())
            .field("ahead", &self.ahead)
            .field("accounted", &self.accounted)
            .finish()
    }
}

impl Stretch for HeldBuf {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.start + self.buf.len() as u64
    }
}

/// No slot was left. The buffer is gone, and with it the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no slot left to hold a received buffer")]
pub struct NoSlot;

/// Buffers of one connection in the order of the stream, in a [`HeldSlab`]'s slots.
///
/// A [`Deframer`](super::Deframer) has one. Before there is a deframer, during startup, an engine keeps in
/// one of its own what arrives ahead, and hands it on afterwards. To be [`clear`](Self::clear)ed before it is
/// dropped.
#[derive(Debug, Default)]
pub struct HeldList {
    pub(super) list: List,
    /// Bytes of the packet buffers of what arrived ahead.
    pinned: usize,
}

impl HeldList {
    /// Nothing held.
    pub const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Bytes of the packet buffers that what arrived ahead of the frontier keeps from being used again.
    pub const fn pinned_bytes(&self) -> usize {
        self.pinned
    }

    /// Holds `buf`, whose first byte is at `start`. Bytes that are held already are cut off: the first ones
    /// stay.
    ///
    /// # Errors
    /// [`NoSlot`].
    pub fn hold(&mut self, slab: &mut HeldSlab, start: u64, buf: Mbuf, ahead: bool) -> Result<(), NoSlot> {
        self.insert(slab, start, buf, ahead).map(|_| ())
    }

    /// Takes the first buffer.
    pub fn pop(&mut self, slab: &mut HeldSlab) -> Option<HeldBuf> {
        self.remove(slab, self.list.head()?)
    }

    /// Takes the first buffer, if it holds `position`.
    pub fn pop_at(&mut self, slab: &mut HeldSlab, position: u64) -> Option<HeldBuf> {
        let head = self.list.head()?;
        let holds = slab.buffers.at(head).is_some_and(|held| (held.start..held.end()).contains(&position));
        if holds { self.remove(slab, head) } else { None }
    }

    /// For a list that is not a deframer's: gives up buffers that arrived ahead of the frontier, the last
    /// ones first, until that are `bytes` bytes, or `may` says no to a stretch.
    pub fn give_up(&mut self, slab: &mut HeldSlab, bytes: usize, may: impl FnMut(&[Range<u64>]) -> bool) {
        self.evict(slab, List::default(), bytes, may);
    }

    /// Drops all buffers; returns how many bytes of them are to be released.
    pub fn clear(&mut self, slab: &mut HeldSlab) -> usize {
        std::iter::from_fn(|| self.pop(slab)).map(|held| held.unreleased()).sum()
    }

    /// As [`hold`](Self::hold); gives the slot the bytes are in, `None` if all of them were held already.
    pub(super) fn insert(
        &mut self,
        slab: &mut HeldSlab,
        start: u64,
        buf: Mbuf,
        ahead: bool,
    ) -> Result<Option<u32>, NoSlot> {
        let Some((start, buf, before)) = first_new(&slab.buffers, self.list, start, buf) else {
            return Ok(None);
        };
        if let Some(before) = before
            && let Some(held) = slab.buffers.at_mut(before)
            && held.end() == start
            && held.ahead == ahead
            && held.append(&buf)
        {
            return Ok(Some(before));
        }
        let pinned = if ahead { buffer_bytes(&buf) } else { 0 };
        let held = HeldBuf { start, buf, ahead, accounted: 0, pinned };
        let slot = slab.buffers.insert(&mut self.list, before, held).map_err(|_| NoSlot)?;
        self.pinned += pinned;
        Ok(Some(slot))
    }

    fn remove(&mut self, slab: &mut HeldSlab, id: u32) -> Option<HeldBuf> {
        let held = slab.buffers.remove(&mut self.list, id)?;
        self.pinned -= held.pinned;
        Some(held)
    }

    /// What arrived ahead and lies in front of `frontier` by now is in order, and counts as all else there:
    /// not at all. Returns how many bytes are to be released.
    pub(super) fn pass(&mut self, slab: &mut HeldSlab, frontier: u64) -> usize {
        let mut released = 0;
        let mut at = if self.pinned > 0 { self.list.head() } else { None };
        while let Some(id) = at
            && let Some(held) = slab.buffers.at_mut(id).filter(|held| held.end() <= frontier)
        {
            released += held.unreleased();
            self.pinned -= std::mem::take(&mut held.pinned);
            held.ahead = false;
            at = slab.buffers.next(id);
        }
        released
    }

    /// Gives up buffers that arrived ahead of the frontier, the last ones first, until that are `bytes` bytes
    /// of what was not placed (of those in `placed`), or `may` says no: it is asked for the stretches of each
    /// buffer that nobody has yet, by position.
    pub(super) fn evict(
        &mut self,
        slab: &mut HeldSlab,
        placed: List,
        bytes: usize,
        mut may: impl FnMut(&[Range<u64>]) -> bool,
    ) {
        let (mut given_up, mut at) = (0, self.list.tail());
        while given_up < bytes
            && let Some(id) = at
            && let Some(held) = slab.buffers.at(id).filter(|held| held.ahead)
        {
            let Some(stretches) = unplaced(&slab.records, placed, held.start, held.end()) else { return };
            if !may(&stretches) {
                return;
            }
            given_up += held.unreleased();
            at = slab.buffers.prev(id);
            self.remove(slab, id);
        }
    }

    /// The slot that holds `position`, if everything from there to slot `from` is held, too, in a reasonable
    /// number of buffers.
    pub(super) fn back_to(slab: &HeldSlab, from: u32, position: u64) -> Option<u32> {
        /// A longest FPDU in segments of 1024 bytes: what is cut smaller waits for its turn.
        const BUFFERS: usize = 64;
        let mut id = from;
        for _ in 0..BUFFERS {
            let start = slab.buffers.at(id)?.start;
            if start <= position {
                return Some(id);
            }
            id = slab.buffers.prev(id)?;
            if slab.buffers.at(id)?.end() != start {
                return None;
            }
        }
        None
    }

    /// Drops the buffers that lie in front of `position`; returns how many bytes are to be released.
    pub(super) fn drop_before(&mut self, slab: &mut HeldSlab, position: u64) -> usize {
        let mut released = 0;
        while let Some(head) = self.list.head()
            && slab.buffers.at(head).is_some_and(|held| held.end() <= position)
            && let Some(held) = self.remove(slab, head)
        {
            released += held.unreleased();
        }
        released
    }

    /// Accounts for `from..to`, which slot `first` and its successors hold; drops the buffers of which
    /// nothing is left to wait for. Returns the bytes released and the slot that holds `to`, or comes next.
    pub(super) fn account(
        &mut self,
        slab: &mut HeldSlab,
        first: u32,
        from: u64,
        to: u64,
    ) -> (usize, Option<u32>) {
        let mut released = 0;
        let mut at = Some(first);
        while let Some(id) = at
            && let Some(held) = slab.buffers.at_mut(id)
        {
            let bytes = held.end().min(to).saturating_sub(held.start.max(from)) as usize;
            held.accounted += bytes;
            released += if held.ahead { bytes } else { 0 };
            let (done, reached) = (held.accounted == held.buf.len(), held.end() > to);
            at = if reached && !done { Some(id) } else { slab.buffers.next(id) };
            if done {
                self.remove(slab, id);
            }
            if reached {
                break;
            }
        }
        (released, at)
    }
}

impl HeldBuf {
    /// Bytes that TCP's budget still counts.
    fn unreleased(&self) -> usize {
        if self.ahead { self.buf.len() - self.accounted } else { 0 }
    }

    /// Copies a small buffer behind the own bytes, if there is room.
    fn append(&mut self, buf: &Mbuf) -> bool {
        let bytes = buf.len();
        if 2 * bytes > buffer_bytes(buf) || self.buf.is_shared() || self.buf.tailroom() < bytes {
            return false;
        }
        match self.buf.append(bytes) {
            Some(room) => buf.copy_to(0, room) == bytes,
            None => false,
        }
    }
}

/// Bytes of the memory that `buf` keeps.
fn buffer_bytes(buf: &Mbuf) -> usize {
    buf.headroom() + buf.len() + buf.tailroom()
}

/// Cuts off `buf` what `list` covers already, down to its first run of new bytes. Gives that with its start
/// and the slot it belongs behind; `None` if nothing is new.
///
/// TCP never hands up a byte twice. This keeps a duplicate from replacing what was checked (appendix A.3)
/// should it ever do so.
pub(super) fn first_new<T: Stretch>(
    slots: &Slots<T>,
    list: List,
    mut start: u64,
    mut buf: Mbuf,
) -> Option<(u64, Mbuf, Option<u32>)> {
    let mut before = slots.last_at(list, start);
    loop {
        if let Some(covered) = before.and_then(|id| slots.at(id)).map(Stretch::end)
            && covered > start
        {
            let cut = (covered - start).min(buf.len() as u64);
            buf.advance(cut as usize);
            start += cut;
        }
        if buf.is_empty() {
            return None;
        }
        let after = match before {
            Some(id) => slots.next(id),
            None => list.head(),
        };
        match after.and_then(|id| slots.at(id)).map(Stretch::start) {
            Some(next) if next <= start => before = after,
            Some(next) => {
                buf.truncate((next - start).min(buf.len() as u64) as usize);
                return Some((start, buf, before));
            }
            None => return Some((start, buf, before)),
        }
    }
}

/// The parts of `from..to` that no record of `placed` covers; `None` if those are too many.
fn unplaced(
    records: &Slots<Record>,
    placed: List,
    from: u64,
    to: u64,
) -> Option<ArrayVec<Range<u64>, MAX_STRETCHES>> {
    let mut stretches = ArrayVec::new();
    let first = records.last_at(placed, from).or(placed.head());
    let covers = std::iter::successors(first, |id| records.next(*id))
        .map_while(|id| records.at(id))
        .map(|record| (record.start, record.end))
        .take_while(|(start, _)| *start < to);
    let mut at = from;
    for (start, end) in covers.chain([(to, to)]) {
        if at < start {
            stretches.try_push(at..start).ok()?;
        }
        at = at.max(end);
    }
    Some(stretches)
}
