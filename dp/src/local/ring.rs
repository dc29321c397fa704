//! A ring of bytes in shared memory, which carries frames from one process to another.
//!
//! Each frame is one record. A record is a word with the frame's length and marks, followed by the frame's
//! bytes. The record of a lent frame has only the frame's first bytes, after references to the pages in which
//! the other bytes are (`lending.rs`). Records are padded to whole cache lines, so that no line has bytes of
//! two records. A position is a number of bytes since the ring was made, and never decreases. The tail
//! belongs to the writer, and the head belongs to the reader. Each side also has a private copy of its
//! position, and publishes the position once for many records. Each side checks the values that the other
//! side has published: an impossible position or an impossible record is [`Broken`].
//!
//! ```text
//! control: | tail | head, returned | sleeper |   a pair of lines each, since processors fetch lines in pairs
//! data:    | record | record | ...     a power of two
//! ```
//!
//! At first, most rings use only a part of their data area. A full ring that has been used for some laps can
//! grow to four times its size ([`Producer::grow`]): the writer allocates the memory, and writes a record
//! without a frame. After this record both sides use the larger ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::copy_strategy::{CopyStrategy, StrategyChoice};
use super::memory::SharedMemory;
use super::{streaming, wake};
use crate::prefetch;

/// Number of bytes of a cache line.
const LINE: usize = 64;

/// Number of bytes of the control words of one ring.
pub(super) const CONTROL_BYTES: usize = 512;

/// Offsets of the control words: the tail, the head, the number of lent frames that the reader has returned,
/// and the mark of a sleeping reader.
const TAIL: usize = 0;
const HEAD: usize = 128;
const RETURNED: usize = HEAD + 8;
const SLEEPER: usize = 256;

/// Number of bytes of the word in front of a frame. The lower half of the word is the length of the frame, or
/// of the first bytes of a lent frame. The upper half has the marks, and the number of references.
const HEADER_BYTES: usize = 8;

/// Number of bytes of a reference. The lower half of the word is the offset in the pool, and the upper half
/// is the number of bytes.
const REFERENCE_BYTES: usize = 8;

/// The mark of a frame whose TCP checksum field contains only the sum of the pseudo-header.
pub(super) const PARTIAL_CHECKSUM: u32 = 1;

/// The mark of a record without a frame. After this record the ring has [`GROWTH`] times as many bytes.
const GROWN: u32 = 2;

/// The mark of a lent frame. The number of references is in the bits from `REFERENCES_SHIFT` on.
const LENT: u32 = 4;
const REFERENCES_SHIFT: u32 = 8;

/// Maximum number of references of a lent frame.
pub(super) const MAX_REFERENCES: usize = 8;

/// Maximum number of bytes at the start of a lent frame that are in the ring: all headers of a frame, with
/// some bytes of payload.
pub(super) const MAX_HEAD_BYTES: usize = 192;

/// The header word of a record without a frame.
const GROWN_RECORD: u64 = (GROWN as u64) << 32;

/// The factor by which a ring grows. A factor of two would be too small: see [`Place::behind_growth`].
pub(super) const GROWTH: usize = 4;

/// Minimum number of bytes of a ring before it grows. The size is enough for one frame of maximum length.
const MIN_FIRST_BYTES: usize = 128 << 10;

/// Minimum number of laps of a ring before it grows. So a ring that has grown never has more memory than the
/// number of bytes that were sent through it.
const GROWTH_LAPS: u64 = 4;

/// The reader releases space after this number of bytes, so that the writer can write while the reader reads.
const RELEASE_BYTES: u64 = 64 << 10;

/// Number of bytes of the next record that are prefetched, so that the cache lines of a small record are
/// transferred together and not one after another.
const AHEAD_BYTES: u64 = 4 * LINE as u64;

/// Minimum number of bytes of a frame: an Ethernet header.
pub(super) const MIN_FRAME_BYTES: usize = 14;

/// Maximum number of bytes of a frame: an IP packet of 64 KiB after an Ethernet header with a VLAN tag.
pub(super) const MAX_FRAME_BYTES: usize = u16::MAX as usize + 18;

/// The lowest permitted maximum size of a ring in bytes. The size is enough for a few frames of maximum
/// length.
pub(super) const MIN_RING_BYTES: usize = 256 << 10;

/// The highest permitted maximum size of a ring in bytes.
pub(super) const MAX_RING_BYTES: usize = 256 << 20;

/// The other side has published an impossible position or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken;

/// Bytes in the writer's pool of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reference {
    pub(super) offset: u32,
    pub(super) bytes: u32,
}

/// The place of a ring in the shared memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Offset of the ring's control words.
    pub(super) control: usize,
    /// Offset of the ring's data.
    pub(super) data: usize,
    /// Present size of the ring's data area in bytes: a power of two, and a multiple of a cache line.
    pub(super) bytes: usize,
    /// Maximum size of the data area in bytes: `bytes` times [`GROWTH`] for each time that the ring may still
    /// grow.
    pub(super) limit: usize,
}

/// Number of bytes with which a ring begins.
pub(super) const fn first_bytes(limit: usize) -> usize {
    let mut bytes = limit;
    while bytes / GROWTH >= MIN_FIRST_BYTES {
        bytes /= GROWTH;
    }
    bytes
}

const _: () = assert!(record_bytes(MAX_FRAME_BYTES) < MIN_FIRST_BYTES as u64);

/// Number of bytes of the record of a frame with `frame_bytes` bytes.
const fn record_bytes(frame_bytes: usize) -> u64 {
    (HEADER_BYTES + frame_bytes).next_multiple_of(LINE) as u64
}

impl Place {
    /// Returns the offset of a position in the shared memory, and the number of bytes from this offset to the
    /// end of the ring.
    #[inline]
    fn at(&self, position: u64) -> (usize, usize) {
        let offset = (position & (self.bytes as u64 - 1)) as usize;
        (self.data + offset, self.bytes - offset)
    }

    fn may_grow(&self) -> bool {
        self.bytes < self.limit
    }

    /// Maximum number of bytes of all records in the ring. While the ring may grow, one line is reserved for
    /// the record that announces the growth.
    fn capacity(&self) -> u64 {
        (self.bytes - if self.may_grow() { LINE } else { 0 }) as u64
    }

    /// Returns the position of the first record in the larger ring, if the record at `position` announces
    /// that the ring grows. Returns `None` if the ring cannot grow at `position`.
    ///
    /// The first record has to be directly behind the old ring in memory, so the ring can grow only in one of
    /// [`GROWTH`] laps.
    ///
    /// The writer never overwrites the oldest record. The proof uses these names: the old ring has B bytes,
    /// and the larger ring has 4 B. The first record in the larger ring is at position N, a multiple of B.
    /// The reader is at position H, which is at most 2 B below N. The records that the reader has not
    /// consumed are in the old ring. The oldest record is at offset H - (N - B), or at offset H - (N - 2 B)
    /// if H is below N - B. The writer reaches the old ring again at position N + 3 B, and writes only below
    /// position H + 4 B.
    fn behind_growth(&self, position: u64) -> Option<u64> {
        let old = self.bytes as u64;
        let next = (position + LINE as u64).next_multiple_of(old);
        (self.may_grow() && next % (GROWTH as u64 * old) == old).then_some(next)
    }
}

/// The writer's side of a ring.
#[derive(Debug)]
pub(super) struct Producer {
    memory: Arc<SharedMemory>,
    place: Place,
    /// The position of the next record.
    tail: u64,
    /// All records below this position are published.
    published: u64,
    /// The reader's position at the last time when the writer read it.
    head: u64,
    /// Maximum number of bytes of records that the reader has not released.
    capacity: u64,
    /// Number of bytes by which the ring has grown.
    grown: usize,
    choice: StrategyChoice,
}

impl Producer {
    pub(super) fn new(memory: Arc<SharedMemory>, place: Place) -> Self {
        debug_assert!(place.bytes.is_power_of_two() && place.data + place.limit <= memory.len());
        let (capacity, choice) = (place.capacity(), StrategyChoice::new(place.bytes));
        Self { memory, place, tail: 0, published: 0, head: 0, capacity, grown: 0, choice }
    }

    /// Grows the ring if the ring may grow in this lap, the ring has been used for some laps, `allowance` has
    /// enough bytes, and the machine has enough memory. Returns whether the ring has grown. The caller calls
    /// this function when the ring is full.
    #[cold]
    pub(super) fn grow(&mut self, allowance: &mut usize) -> bool {
        let Place { data, bytes, .. } = self.place;
        let (start, larger) = (data + bytes, bytes * GROWTH);
        let Some(next) = self.place.behind_growth(self.tail) else { return false };
        if self.tail < GROWTH_LAPS * bytes as u64 || *allowance < larger - bytes {
            return false;
        }
        if self.memory.take(start..data + larger).is_err() {
            // The machine has no memory for the growth. From now on the ring does not grow.
            self.place.limit = bytes;
            self.capacity = self.place.capacity();
            return false;
        }
        *allowance -= larger - bytes;
        self.grown += larger - bytes;
        let (at, _) = self.place.at(self.tail);
        self.memory.word(at).store(GROWN_RECORD, Ordering::Relaxed);
        self.tail = next;
        self.place.bytes = larger;
        self.capacity = self.place.capacity();
        self.choice = StrategyChoice::new(larger);
        true
    }

    /// Number of bytes by which the ring has grown. `grow` has subtracted these bytes from the allowance.
    pub(super) fn grown_bytes(&self) -> usize {
        self.grown
    }

    /// The present size of the data area in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.place.bytes
    }

    /// Writes a record with the bytes of `parts`, which have `bytes` bytes in total, and returns `true`.
    /// Returns `false` if the ring is full.
    ///
    /// # Errors
    /// [`Broken`] if the reader has published an impossible position.
    #[inline]
    pub(super) fn write(
        &mut self,
        bytes: usize,
        marks: u32,
        parts: impl Iterator<Item = impl AsRef<[u8]>>,
    ) -> Result<bool, Broken> {
        debug_assert!((MIN_FRAME_BYTES..=MAX_FRAME_BYTES).contains(&bytes));
        let record = record_bytes(bytes);
        if self.room() < record {
            self.look()?;
            if self.room() < record {
                return Ok(false);
            }
        }
        let (at, _) = self.place.at(self.tail);
        let header = u64::from(marks) << 32 | bytes as u64;
        self.memory.word(at).store(header, Ordering::Relaxed);
        let (memory, place, start) = (&self.memory, self.place, self.tail + HEADER_BYTES as u64);
        let copy = |strategy| {
            let mut position = start;
            for part in parts {
                let part = part.as_ref();
                copy_in(memory, place, position, part, strategy);
                position += part.len() as u64;
            }
            debug_assert_eq!(position, start + bytes as u64);
        };
        if bytes < streaming::MIN_BYTES {
            copy(CopyStrategy::ThroughCaches);
        } else {
            self.choice.copy(bytes, copy);
        }
        self.tail += record;
        Ok(true)
    }

    /// Writes the record of a lent frame that begins with the bytes `head`, and returns `true`. Returns
    /// `false` if the ring is full.
    ///
    /// # Errors
    /// [`Broken`] if the reader has published an impossible position.
    #[inline]
    pub(super) fn write_lent(
        &mut self,
        head: &[u8],
        marks: u32,
        references: &[Reference],
    ) -> Result<bool, Broken> {
        debug_assert!((MIN_FRAME_BYTES..=MAX_HEAD_BYTES).contains(&head.len()));
        debug_assert!((1..=MAX_REFERENCES).contains(&references.len()));
        let front = references.len() * REFERENCE_BYTES;
        let record = record_bytes(front + head.len());
        if self.room() < record {
            self.look()?;
            if self.room() < record {
                return Ok(false);
            }
        }
        let (at, _) = self.place.at(self.tail);
        let marks = marks | LENT | (references.len() as u32) << REFERENCES_SHIFT;
        let header = u64::from(marks) << 32 | head.len() as u64;
        self.memory.word(at).store(header, Ordering::Relaxed);
        for (nr, reference) in references.iter().enumerate() {
            let (at, _) = self.place.at(self.tail + (HEADER_BYTES + nr * REFERENCE_BYTES) as u64);
            let word = u64::from(reference.bytes) << 32 | u64::from(reference.offset);
            self.memory.word(at).store(word, Ordering::Relaxed);
        }
        let start = self.tail + (HEADER_BYTES + front) as u64;
        copy_in(&self.memory, self.place, start, head, CopyStrategy::ThroughCaches);
        self.tail += record;
        Ok(true)
    }

    /// The number of lent frames that the reader has returned since the ring was made. The caller checks this
    /// number. The reader no longer reads the pages of these frames.
    #[inline]
    pub(super) fn returned(&self) -> u64 {
        self.memory.word(self.place.control + RETURNED).load(Ordering::Acquire)
    }

    #[inline]
    fn room(&self) -> u64 {
        self.capacity - (self.tail - self.head)
    }

    fn look(&mut self) -> Result<(), Broken> {
        let head = self.memory.word(self.place.control + HEAD).load(Ordering::Acquire);
        let whole = head.is_multiple_of(LINE as u64);
        if !whole || head < self.head || head > self.published {
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }

    #[inline]
    pub(super) fn unpublished(&self) -> u64 {
        self.tail - self.published
    }

    /// The reader's position at the last time when the writer read it: the number of bytes that the reader
    /// had released since the ring was made.
    pub(super) fn taken(&self) -> u64 {
        self.head
    }

    /// Publishes the records that were written so far. Returns whether the reader has to be woken.
    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        self.published = self.tail;
        let words = self.place.control;
        let wakes =
            wake::publish(self.memory.word(words + TAIL), self.tail, self.memory.word(words + SLEEPER));
        self.claim_ahead();
        wakes
    }

    /// Writes to the first lines behind the tail, where the next record will be. So the processor fetches
    /// these lines from the reader's cache now, and not when the reader waits for the record.
    #[inline]
    fn claim_ahead(&self) {
        if self.room() >= AHEAD_BYTES {
            for ahead in (0..AHEAD_BYTES).step_by(LINE) {
                let (at, _) = self.place.at(self.tail + ahead);
                self.memory.word(at).store(0, Ordering::Relaxed);
            }
        }
    }
}

/// Copies a part of a record to `position`.
#[inline]
fn copy_in(memory: &SharedMemory, place: Place, position: u64, part: &[u8], strategy: CopyStrategy) {
    let (at, to_end) = place.at(position);
    let (first, rest) = part.split_at(part.len().min(to_end));
    memory.copy_in(at, first, strategy);
    if !rest.is_empty() {
        memory.copy_in(place.data, rest, strategy);
    }
}

/// A record that the reader has not consumed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Number of bytes of the frame that are in the ring: all bytes, or the first bytes of a lent frame.
    pub(super) bytes: usize,
    pub(super) marks: u32,
    /// Number of references, which are in front of the bytes. 0 if the frame is not lent.
    pub(super) references: usize,
}

impl Record {
    /// Number of bytes between the header and the bytes of the frame.
    fn front(self) -> usize {
        self.references * REFERENCE_BYTES
    }
}

/// The reader's side of a ring.
#[derive(Debug)]
pub(super) struct Consumer {
    memory: Arc<SharedMemory>,
    place: Place,
    /// The position of the next record.
    head: u64,
    /// The space below this position is released to the writer.
    released: u64,
    /// The writer's position at the last time when the reader read it.
    tail: u64,
}

impl Consumer {
    pub(super) fn new(memory: Arc<SharedMemory>, place: Place) -> Self {
        debug_assert!(place.bytes.is_power_of_two() && place.data + place.limit <= memory.len());
        Self { memory, place, head: 0, released: 0, tail: 0 }
    }

    /// Returns the oldest record, or `None` if there is no record. The record stays in the ring until
    /// [`advance`](Self::advance).
    ///
    /// # Errors
    /// [`Broken`] if the writer has published an impossible position or record.
    #[inline]
    pub(super) fn peek(&mut self) -> Result<Option<Record>, Broken> {
        if self.head == self.tail && !self.look()? {
            return Ok(None);
        }
        let (at, _) = self.place.at(self.head);
        // The header is read only once, since the writer may change it at any time.
        let header = self.memory.word(at).load(Ordering::Relaxed);
        let (bytes, marks) = (header as u32 as usize, (header >> 32) as u32);
        let fits = (MIN_FRAME_BYTES..=MAX_FRAME_BYTES).contains(&bytes)
            && record_bytes(bytes) <= self.tail - self.head;
        if !fits || marks & !PARTIAL_CHECKSUM != 0 {
            return self.peek_unusual(header);
        }
        Ok(Some(Record { bytes, marks, references: 0 }))
    }

    /// Handles an oldest record that is not the record of a whole frame.
    #[inline(never)]
    fn peek_unusual(&mut self, header: u64) -> Result<Option<Record>, Broken> {
        let (bytes, marks) = (header as u32 as usize, (header >> 32) as u32);
        if marks & LENT == 0 {
            return self.peek_behind_growth(header);
        }
        // Only TCP frames are lent, whose checksums were not computed.
        let references = (marks >> REFERENCES_SHIFT) as usize;
        let record = Record { bytes, marks: marks & PARTIAL_CHECKSUM, references };
        let fits = marks == PARTIAL_CHECKSUM | LENT | (references as u32) << REFERENCES_SHIFT
            && (1..=MAX_REFERENCES).contains(&references)
            && (MIN_FRAME_BYTES..=MAX_HEAD_BYTES).contains(&bytes)
            && record_bytes(record.front() + bytes) <= self.tail - self.head;
        if fits { Ok(Some(record)) } else { Err(Broken) }
    }

    /// Returns reference `nr` of the oldest record, which [`peek`](Self::peek) has returned. The reference
    /// may have any contents.
    #[inline]
    pub(super) fn reference(&self, nr: usize) -> Reference {
        let (at, _) = self.place.at(self.head + (HEADER_BYTES + nr * REFERENCE_BYTES) as u64);
        // The word is read only once, since the writer may change it at any time.
        let word = self.memory.word(at).load(Ordering::Relaxed);
        Reference { offset: word as u32, bytes: (word >> 32) as u32 }
    }

    /// Publishes the number of lent frames that were returned since the ring was made.
    #[inline]
    pub(super) fn publish_returned(&self, returned: u64) {
        // The store has Release order, so that the reads of the pages happen before the writer uses the pages
        // again.
        self.memory.word(self.place.control + RETURNED).store(returned, Ordering::Release);
    }

    /// Handles an oldest record that has no frame. If the record announces that the ring grows, continues
    /// with the next record, like [`peek`](Self::peek). Any other record is [`Broken`].
    #[cold]
    fn peek_behind_growth(&mut self, header: u64) -> Result<Option<Record>, Broken> {
        match self.place.behind_growth(self.head) {
            Some(next) if header == GROWN_RECORD && next <= self.tail => {
                self.head = next;
                self.place.bytes *= GROWTH;
                self.peek()
            }
            _ => Err(Broken),
        }
    }

    /// The present size of the data area in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.place.bytes
    }

    /// Reads the writer's position. Returns whether there is a record to consume.
    #[inline]
    fn look(&mut self) -> Result<bool, Broken> {
        let tail = self.memory.word(self.place.control + TAIL).load(Ordering::Acquire);
        if tail == self.tail {
            return Ok(false);
        }
        let whole = tail.is_multiple_of(LINE as u64);
        if !whole || tail < self.tail || tail - self.head > self.place.limit as u64 {
            return Err(Broken);
        }
        self.tail = tail;
        self.fetch_ahead();
        Ok(true)
    }

    /// Prefetches the lines of the oldest record.
    #[inline]
    fn fetch_ahead(&self) {
        for ahead in (0..(self.tail - self.head).min(AHEAD_BYTES)).step_by(LINE) {
            let (at, _) = self.place.at(self.head + ahead);
            prefetch(self.memory.word(at));
        }
    }

    /// Copies bytes of the frame in the oldest record, which [`peek`](Self::peek) has returned, from `offset`
    /// on. If `out` exceeds the record, the copy continues with any bytes of the ring.
    #[inline]
    pub(super) fn copy(&self, record: Record, offset: usize, out: &mut [u8]) {
        let (at, to_end) = self.place.at(self.head + (HEADER_BYTES + record.front() + offset) as u64);
        let first = out.len().min(to_end);
        let (first, rest) = out.split_at_mut(first);
        self.memory.copy_out(at, first);
        if !rest.is_empty() {
            self.memory.copy_out(self.place.data, rest);
        }
    }

    /// Consumes the oldest record, which [`peek`](Self::peek) has returned. The space is released to the
    /// writer after each 64 KiB. [`release`](Self::release) releases the rest.
    #[inline]
    pub(super) fn advance(&mut self, record: Record) {
        self.head += record_bytes(record.front() + record.bytes);
        debug_assert!(self.head <= self.tail);
        if self.unreleased() >= RELEASE_BYTES {
            self.release();
        }
    }

    /// Number of bytes that were consumed and are not released to the writer.
    #[inline]
    pub(super) fn unreleased(&self) -> u64 {
        self.head - self.released
    }

    /// Releases the space of all consumed records to the writer.
    #[inline]
    pub(super) fn release(&mut self) {
        self.released = self.head;
        // The store has Release order, so that the copies happen before the writer uses the space again.
        self.memory.word(self.place.control + HEAD).store(self.head, Ordering::Release);
    }

    /// Announces that the reader is going to sleep: see [`wake`].
    pub(super) fn mark_sleeping(&self) {
        wake::mark_sleeping(self.memory.word(self.place.control + SLEEPER));
    }

    /// Announces that the reader polls again.
    pub(super) fn mark_awake(&self) {
        wake::mark_awake(self.memory.word(self.place.control + SLEEPER));
    }

    /// Whether the reader has something to read: a known record that the reader has not consumed, or a new
    /// position of the writer. The new position may be invalid.
    pub(super) fn has_news(&self) -> bool {
        self.head != self.tail
            || self.memory.word(self.place.control + TAIL).load(Ordering::Acquire) != self.tail
    }
}
