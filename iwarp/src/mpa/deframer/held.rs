//! Received buffers that wait for missing bytes: for the rest of their FPDU, or for the bytes of a hole
//! before them.
//!
//! If an arriving buffer is adjacent in the stream to a held buffer, the second of the two may be copied to
//! the end of the first. The copy is made if the second is at most half full and fits, the first is not
//! shared, and both are in order or both out of order. A buffer that arrives between two held buffers is
//! joined with at most one of them. So small segments pin about as much memory as long segments, except for
//! the first buffer after each hole.

use std::ops::Range;

use arrayvec::ArrayVec;
use dp::Mbuf;
use dp::invariant::{Check, ensure};

use super::early_fpdu::EarlyFpdu;
use super::ordered::{List, RangeSlots, StreamRange};

/// Maximum number of ranges of one buffer in a call of `may`: `tcp_lite::Stack::evict` accepts no more
/// ranges. Between two ranges there is at least one FPDU that was placed early.
pub(super) const MAX_EVICT_RANGES: usize = 16;

/// Slots for held buffers, and slots for FPDUs that were placed early. All connections of an engine share
/// these slots. [`new`](Self::new) allocates all memory.
///
/// Each slot holds at least one buffer, so as many slots as the packet pool has buffers are always enough. If
/// no slot for early FPDUs is free, an FPDU is not placed early but held.
#[derive(Debug)]
pub struct HeldSlab {
    pub(super) buffers: RangeSlots<HeldBuf>,
    pub(super) early: RangeSlots<EarlyFpdu>,
}

impl HeldSlab {
    /// Returns a slab for at most `buffers` held buffers and at most `early` FPDUs that were placed early.
    pub fn new(buffers: usize, early: usize) -> Self {
        Self { buffers: RangeSlots::new(buffers), early: RangeSlots::new(early) }
    }

    /// Returns the number of buffer slots in use, and the number of all buffer slots.
    pub fn buffers(&self) -> (usize, usize) {
        (self.buffers.used(), self.buffers.capacity())
    }

    /// Returns the number of slots for early FPDUs in use, and the number of all these slots.
    pub fn early_fpdus(&self) -> (usize, usize) {
        (self.early.used(), self.early.capacity())
    }

    /// Checks that the slab has `buffers` buffers and `early` early FPDUs, and that no slot is lost; for
    /// tests. The caller passes the totals of the lists of all connections.
    ///
    /// # Errors
    /// A description of the first invariant that does not hold.
    #[doc(hidden)]
    pub fn check(&self, buffers: usize, early: usize) -> Check {
        self.buffers.check(buffers).map_err(|what| format!("held buffers: {what}"))?;
        self.early.check(early).map_err(|what| format!("early FPDUs: {what}"))
    }
}

/// A buffer that waits for missing bytes.
pub struct HeldBuf {
    /// The stream offset (in a list of the engine) or the position (in a list of a deframer) of the first
    /// byte.
    pub start: u64,
    /// The bytes.
    pub buf: Mbuf,
    /// Whether the buffer is out of order. A buffer that arrived ahead of the next expected byte is out of
    /// order until the deframer sees that all bytes up to the end of the buffer have arrived. An out-of-order
    /// buffer counts in TCP's memory budget.
    pub ahead: bool,
    /// Number of bytes of the buffer that were placed early (and released).
    pub(super) placed: usize,
    /// Size in bytes of this buffer, including its headroom and tailroom, if the buffer is `ahead`. Otherwise
    /// 0.
    pinned: usize,
}

impl std::fmt::Debug for HeldBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeldBuf")
            .field("start", &self.start)
            .field("len", &self.buf.len())
            .field("ahead", &self.ahead)
            .field("placed", &self.placed)
            .finish()
    }
}

impl StreamRange for HeldBuf {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.start + self.buf.len() as u64
    }
}

/// No slot was free. The buffer was dropped, so the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no slot left to hold a received buffer")]
pub struct NoSlot;

/// What [`HeldList::take_at`] has consumed of a buffer.
pub(crate) struct Taken {
    /// The position after the consumed bytes.
    pub(crate) end: u64,
    /// Number of bytes that the caller must release to TCP.
    pub(crate) released: usize,
    /// Whether the whole buffer was consumed.
    pub(crate) whole: bool,
}

/// The held buffers of one connection in stream order, in slots of a [`HeldSlab`].
///
/// Each [`Deframer`](super::Deframer) has a list. During startup a connection has no deframer: the engine
/// keeps a list, and the deframer receives the buffers of this list after startup. The owner must
/// [`clear`](Self::clear) the list before dropping it.
#[derive(Debug, Default)]
pub struct HeldList {
    pub(super) list: List,
    pinned: usize,
}

impl HeldList {
    /// Whether no buffer is held.
    pub const fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Total size in bytes of the packet buffers that are held out of order ([`HeldBuf::ahead`]), including
    /// their headroom and tailroom.
    pub const fn pinned_bytes(&self) -> usize {
        self.pinned
    }

    /// Holds `buf`, whose first byte is at `start`. Bytes that the list already holds are removed from `buf`:
    /// the bytes that arrived first stay. If held bytes are in the middle of `buf`, the bytes of `buf` after
    /// the held bytes are also dropped.
    ///
    /// # Errors
    /// [`NoSlot`] if no slot is free.
    pub fn hold(&mut self, slab: &mut HeldSlab, start: u64, buf: Mbuf, ahead: bool) -> Result<(), NoSlot> {
        self.insert(slab, start, buf, ahead).map(|_| ())
    }

    /// Removes and returns the first buffer, if any.
    pub fn pop(&mut self, slab: &mut HeldSlab) -> Option<HeldBuf> {
        self.remove(slab, self.list.head()?)
    }

    /// If the first buffer holds `position`, passes the bytes of this buffer to `take`, run by run, until
    /// `take` consumes less than a run. The remaining bytes stay in the same slot. Returns `None` if the
    /// first buffer does not hold `position`.
    pub(crate) fn take_at(
        &mut self,
        slab: &mut HeldSlab,
        position: u64,
        mut take: impl FnMut(u64, &[u8]) -> usize,
    ) -> Option<Taken> {
        let head = self.list.head()?;
        let held = slab.buffers.at_mut(head)?;
        if !(held.start..held.end()).contains(&position) {
            return None;
        }
        let from = held.start;
        held.start += take_runs(&mut held.buf, from, &mut take);
        let (end, whole) = (held.start, held.buf.is_empty());
        let released = if held.ahead { (end - from) as usize } else { 0 };
        let pinned = if held.ahead { buffer_bytes(&held.buf) } else { 0 };
        self.pinned -= std::mem::replace(&mut held.pinned, pinned);
        self.pinned += pinned;
        if whole {
            self.remove(slab, head);
        }
        Some(Taken { end, released, whole })
    }

    /// Drops buffers that arrived ahead of the next expected byte, in a list outside of a deframer. Starts
    /// with the last buffer, and stops when at least `bytes` bytes are dropped or `may` refuses a range.
    pub fn give_up(&mut self, slab: &mut HeldSlab, bytes: usize, may: impl FnMut(&[Range<u64>]) -> bool) {
        self.give_up_unplaced(slab, List::default(), bytes, may);
    }

    /// Drops all buffers. Returns the number of bytes that the caller must release to TCP.
    pub fn clear(&mut self, slab: &mut HeldSlab) -> usize {
        std::iter::from_fn(|| self.pop(slab)).map(|held| held.unreleased()).sum()
    }

    /// Checks the order and the counters of the buffers in the list; for tests. Returns the number of
    /// buffers.
    ///
    /// # Errors
    /// A description of the first invariant that does not hold.
    #[doc(hidden)]
    pub fn check(&self, slab: &HeldSlab) -> Check<usize> {
        let count = slab.buffers.check_list(self.list)?;
        let mut pinned = 0;
        for held in self.iter(slab) {
            ensure!(held.placed < held.buf.len(), "every byte of a held buffer is placed: {held:?}");
            ensure!(held.ahead == (held.pinned > 0), "{} bytes pinned: {held:?}", held.pinned);
            pinned += held.pinned;
        }
        ensure!(self.pinned == pinned, "{} bytes counted as pinned of {pinned}", self.pinned);
        Ok(count)
    }

    /// Returns the buffers in the order of the stream.
    pub(super) fn iter<'a>(&self, slab: &'a HeldSlab) -> impl Iterator<Item = &'a HeldBuf> {
        let ids = std::iter::successors(self.list.head(), |id| slab.buffers.next(*id));
        ids.filter_map(|id| slab.buffers.at(id))
    }

    /// Does what [`hold`](Self::hold) does. Returns the slot of the new bytes, or `None` if the list already
    /// held all bytes of `buf`. Fails if no slot is free.
    pub(super) fn insert(
        &mut self,
        slab: &mut HeldSlab,
        start: u64,
        buf: Mbuf,
        ahead: bool,
    ) -> Result<Option<u32>, NoSlot> {
        let Some((start, mut buf, before)) = cut_known(&slab.buffers, self.list, start, buf) else {
            return Ok(None);
        };
        if let Some(before) = before
            && let Some(held) = slab.buffers.at_mut(before)
            && held.end() == start
            && held.ahead == ahead
            && append(&mut held.buf, &buf)
        {
            slab.buffers.on_end_moved(before);
            return Ok(Some(before));
        }
        let after = match before {
            Some(before) => slab.buffers.next(before),
            None => self.list.head(),
        };
        if let Some(after) = after
            && let Some(held) = slab.buffers.at_mut(after)
            && start + buf.len() as u64 == held.start
            && held.ahead == ahead
            && append(&mut buf, &held.buf)
        {
            let pinned = if ahead { buffer_bytes(&buf) } else { 0 };
            self.pinned = self.pinned - std::mem::replace(&mut held.pinned, pinned) + pinned;
            (held.start, held.buf) = (start, buf);
            slab.buffers.on_start_moved(after);
            return Ok(Some(after));
        }
        let pinned = if ahead { buffer_bytes(&buf) } else { 0 };
        let held = HeldBuf { start, buf, ahead, placed: 0, pinned };
        let slot = slab.buffers.insert(&mut self.list, before, held).map_err(|_| NoSlot)?;
        self.pinned += pinned;
        Ok(Some(slot))
    }

    fn remove(&mut self, slab: &mut HeldSlab, id: u32) -> Option<HeldBuf> {
        let held = slab.buffers.remove(&mut self.list, id)?;
        self.pinned -= held.pinned;
        Some(held)
    }

    /// Marks buffers that arrived ahead as in order if they are now before `frontier`, the next expected
    /// byte. Bytes in order do not count in TCP's memory budget. Returns the number of bytes that the caller
    /// must release to TCP.
    pub(super) fn on_frontier(&mut self, slab: &mut HeldSlab, frontier: u64) -> usize {
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

    /// Drops buffers that arrived ahead of the next expected byte, starting with the last buffer. Stops when
    /// at least `bytes` bytes outside of the FPDUs in `placed` are dropped. Before a buffer is dropped, `may`
    /// receives the positions of those ranges of the buffer that are not placed. If `may` returns `false`, or
    /// if a buffer has too many such ranges, no further buffer is dropped.
    pub(super) fn give_up_unplaced(
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
            let Some(ranges) = unplaced(&slab.early, placed, held.start, held.end()) else { return };
            if !may(&ranges) {
                return;
            }
            given_up += held.unreleased();
            at = slab.buffers.prev(id);
            self.remove(slab, id);
        }
    }

    /// Returns the slot that holds `position`, if at most `BUFFERS` buffers hold all bytes from this position
    /// to slot `from`.
    pub(super) fn back_to(slab: &HeldSlab, from: u32, position: u64) -> Option<u32> {
        /// Maximum number of buffers of an early FPDU: about enough for the longest FPDU in segments of 1024
        /// bytes. An FPDU in more buffers is checked only when it is in order. With a larger limit each
        /// arriving buffer would cause a longer walk backwards.
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

    /// Drops the buffers before `position`. Returns the number of bytes that the caller must release to TCP.
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

    /// Marks the bytes `from..to` as placed. These bytes are in slot `first` and the slots after it. Drops
    /// the buffers whose bytes are all placed. Returns the number of bytes to release, and the slot that
    /// holds `to` or, if no slot holds it, the next slot.
    pub(super) fn mark_placed(
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
            held.placed += bytes;
            released += if held.ahead { bytes } else { 0 };
            let (done, reached) = (held.placed == held.buf.len(), held.end() > to);
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
    /// Number of bytes that still count in TCP's memory budget.
    fn unreleased(&self) -> usize {
        if self.ahead { self.buf.len() - self.placed } else { 0 }
    }
}

/// Appends the bytes of `small` to `buf`, if `small` is at most half full, its bytes fit, and `buf` is not
/// shared. Returns whether the bytes were appended.
fn append(buf: &mut Mbuf, small: &Mbuf) -> bool {
    let bytes = small.len();
    if 2 * bytes > buffer_bytes(small) || buf.is_shared() || buf.tailroom() < bytes {
        return false;
    }
    match buf.append(bytes) {
        Some(room) => small.copy_to(0, room) == bytes,
        None => false,
    }
}

/// Passes the bytes of `buf` to `take`, run by run, until `take` consumes less than a run. The first byte is
/// at `start`. Removes the consumed bytes from `buf`, and returns their number.
pub(crate) fn take_runs(buf: &mut Mbuf, start: u64, take: &mut impl FnMut(u64, &[u8]) -> usize) -> u64 {
    let mut at = start;
    while let Some(run) = buf.segments().find(|run| !run.is_empty()) {
        let (len, taken) = (run.len(), take(at, run));
        buf.advance(taken);
        at += taken as u64;
        if taken < len {
            break;
        }
    }
    at - start
}

/// Size in bytes of `buf`, including its headroom and tailroom.
fn buffer_bytes(buf: &Mbuf) -> usize {
    buf.headroom() + buf.len() + buf.tailroom()
}

/// Reduces `buf` to its first run of bytes that `list` does not cover. Returns the start of the run, the run,
/// and the slot before the run. Returns `None` if `list` covers all bytes. Bytes of `buf` after that run are
/// dropped.
///
/// TCP never delivers a byte twice. If TCP did, this function would prevent a duplicate from replacing bytes
/// that were already checked (RFC 5044 appendix A.3).
pub(super) fn cut_known<T: StreamRange>(
    slots: &RangeSlots<T>,
    list: List,
    mut start: u64,
    mut buf: Mbuf,
) -> Option<(u64, Mbuf, Option<u32>)> {
    let mut before = slots.last_at(list, start);
    loop {
        if let Some(covered) = before.and_then(|id| slots.at(id)).map(StreamRange::end)
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
        match after.and_then(|id| slots.at(id)).map(StreamRange::start) {
            Some(next) if next <= start => before = after,
            Some(next) => {
                buf.truncate((next - start).min(buf.len() as u64) as usize);
                return Some((start, buf, before));
            }
            None => return Some((start, buf, before)),
        }
    }
}

/// Returns the parts of `from..to` that no FPDU of `placed` covers. Returns `None` if these are more than
/// `MAX_EVICT_RANGES` parts.
fn unplaced(
    early: &RangeSlots<EarlyFpdu>,
    placed: List,
    from: u64,
    to: u64,
) -> Option<ArrayVec<Range<u64>, MAX_EVICT_RANGES>> {
    let mut ranges = ArrayVec::new();
    let first = early.last_at(placed, from).or(placed.head());
    let covers = std::iter::successors(first, |id| early.next(*id))
        .map_while(|id| early.at(id))
        .map(|fpdu| (fpdu.start, fpdu.end))
        .take_while(|(start, _)| *start < to);
    let mut at = from;
    for (start, end) in covers.chain([(to, to)]) {
        if at < start {
            ranges.try_push(at..start).ok()?;
        }
        at = at.max(end);
    }
    Some(ranges)
}

#[cfg(test)]
mod tests {
    use dp::Mempool;
    use dp::invariant::assert_found;

    use super::*;

    /// Returns a list of two buffers of ten bytes each that arrived ahead, with a hole between them.
    fn two() -> (HeldSlab, HeldList) {
        let pool = Mempool::heap("held", 4, 2048);
        let (mut slab, mut list) = (HeldSlab::new(4, 4), HeldList::default());
        for start in [100, 200] {
            let mut buf = pool.alloc().unwrap();
            buf.append(10).unwrap().fill(0);
            list.hold(&mut slab, start, buf, true).unwrap();
        }
        (slab, list)
    }

    #[test]
    fn held_buffers_that_count_wrong_are_found() {
        type Break = fn(&mut HeldBuf, &mut HeldList);
        let broken: [(Break, &str); 5] = [
            (|held, _| held.placed = 10, "every byte of a held buffer is placed: "),
            (|held, _| held.ahead = false, "2176 bytes pinned: "),
            (|held, _| held.pinned = 0, "0 bytes pinned: "),
            (|_, list| list.pinned -= 1, "4351 bytes counted as pinned of 4352"),
            (|held, _| held.start = 195, "200..210 behind 205"),
        ];
        let (slab, list) = two();
        assert_eq!(list.check(&slab), Ok(2));
        slab.check(2, 0).unwrap();
        assert_eq!(slab.check(1, 0), Err("held buffers: 2 slots taken, 1 in lists".into()));
        assert_eq!(slab.check(2, 1), Err("early FPDUs: 0 slots taken, 1 in lists".into()));
        for (break_it, found) in broken {
            let (mut slab, mut list) = two();
            let last = list.list.head().unwrap();
            break_it(slab.buffers.at_mut(last).unwrap(), &mut list);
            assert_found(list.check(&slab), found);
        }
    }

    #[test]
    fn a_buffer_that_is_read_in_part_keeps_its_slot() {
        let (mut slab, mut list) = two();
        assert!(list.take_at(&mut slab, 99, |_, _| panic!("it is not there")).is_none());
        let taken = list.take_at(&mut slab, 100, |at, bytes| {
            assert_eq!((at, bytes.len()), (100, 10));
            4
        });
        assert!(matches!(taken, Some(Taken { end: 104, released: 4, whole: false })));
        assert_eq!((list.check(&slab), slab.buffers()), (Ok(2), (2, 4)));
        let taken = list.take_at(&mut slab, 104, |_, bytes| bytes.len());
        assert!(matches!(taken, Some(Taken { end: 110, released: 6, whole: true })));
        assert_eq!((list.check(&slab), slab.buffers()), (Ok(1), (1, 4)));
        assert_eq!(list.clear(&mut slab), 10);
        assert_eq!(list.pinned_bytes(), 0);
    }
}
