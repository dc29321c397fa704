//! [`Target`] and [`Source`], the results of a passed check: a range to write or to read, within one epoch.
//!
//! Before every copy, both types check that the registration is still in the generation that was checked. A
//! copy that has begun ends within the epoch, and a thread that revokes the registration waits for the end of
//! the epoch.

use dp::Mbuf;

use crate::memory::copy;
use crate::memory::crc32c::{self, Front};
use crate::memory::epoch::EpochGuard;
use crate::memory::fault::Fault;
use crate::memory::guard::Unmapped;
use crate::memory::slot::{Lease, Record, Traits};
use crate::memory::stride::{Runs, Stride};

/// A range that may be written, until the epoch ends or the registration is revoked.
pub struct Target<'t> {
    range: Range<'t>,
}

/// A range that may be read, until the epoch ends or the registration is revoked.
pub struct Source<'t> {
    range: Range<'t>,
}

struct Range<'t> {
    /// Keeps the epoch open, and makes the type `!Send`.
    _guard: &'t EpochGuard<'t>,
    lease: Lease<'t>,
    ptr: *mut u8,
    len: usize,
    /// Whether the memory is accessed under the fault guard. If so, it belongs to the caller, who may unmap
    /// it too early.
    guarded: bool,
}

impl<'t> Target<'t> {
    pub(super) fn new(
        guard: &'t EpochGuard<'t>,
        lease: Lease<'t>,
        record: &Record,
        ptr: *mut u8,
        len: usize,
    ) -> Self {
        Self { range: Range::new(guard, lease, record, ptr, len) }
    }

    /// Number of bytes of the range.
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.len == 0
    }

    /// Runs `access` with the address of the first byte of the range, within the epoch, and under the fault
    /// guard if the memory is guarded.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] if the registration has been revoked, or if the caller's memory is no longer
    /// mapped.
    ///
    /// # Safety
    /// `access` may be abandoned at any access to these bytes. So at each such access, `access` and the
    /// functions that it calls own nothing that needs a drop, and hold no lock. No state on which other code
    /// relies is half changed then. `access` does not panic.
    pub(super) unsafe fn access(&self, mut access: impl FnMut(*mut u8)) -> Result<(), Fault> {
        let Range { len, guarded, .. } = self.range;
        let ptr = self.range.at(0, len)?;
        // SAFETY: the caller promises that `access` may be abandoned at any access to these bytes.
        unsafe { copy::run(ptr, len, guarded, || access(ptr)) }.map_err(|Unmapped| Fault::InvalidStag)
    }

    /// Copies `bytes` to `offset` of the range. The bytes become visible to other threads by increasing
    /// offset, after everything that this thread wrote before.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] if the registration has been revoked, and [`Fault::Bounds`] if the bytes are
    /// not inside the range: in both cases nothing was copied. If the caller's memory is no longer mapped,
    /// the error is [`Fault::InvalidStag`], and some bytes may have been copied.
    #[inline]
    pub fn place(&self, offset: usize, bytes: &[u8]) -> Result<(), Fault> {
        let ptr = self.range.at(offset, bytes.len())?;
        // SAFETY: `at` has just checked that the registration is valid and that the bytes are inside it. The
        // check that made this target checked that the registration is writable. The epoch (`_guard`) is open
        // on this thread, so a thread that has revoked the registration since the check waits for the end of
        // the epoch before the memory may be unmapped (`quiescence` has the proof). Other threads access the
        // bytes only by raw copies and atomics (`RawBytes`).
        unsafe { copy::place_to(ptr, bytes, self.range.guarded) }.map_err(|Unmapped| Fault::InvalidStag)
    }

    /// Does what [`place`](Self::place) does, for the `len` bytes at `at` of a frame, which may be in
    /// external memory. If other code writes the bytes during the copy, the copy has old bytes, new bytes or
    /// a mixture of old and new bytes.
    ///
    /// # Errors
    /// The errors of [`place`](Self::place), and [`Fault::Bounds`] if the frame has fewer bytes.
    pub fn place_frame(&self, offset: usize, frame: &Mbuf, at: usize, len: usize) -> Result<(), Fault> {
        let end = offset.saturating_add(len);
        let mut offset = offset;
        frame.try_each_part(at, len, |part| {
            let ptr = self.range.at(offset, part.len())?;
            // SAFETY: `at` has just checked that the registration is valid and that the bytes are inside it.
            // The check that made this target checked that the registration is writable. The epoch (`_guard`)
            // is open on this thread, so a thread that has revoked the registration since the check waits for
            // the end of the epoch before the memory may be unmapped (`quiescence` has the proof). Other
            // threads access the bytes only by raw copies and atomics (`RawBytes`). The part is readable
            // while the frame is borrowed, and other code accesses the part only by raw copies and atomics
            // (`dp::mbuf::Part`). A packet buffer does not overlap registered memory.
            unsafe { copy::place_raw_to(ptr, part.as_ptr(), part.len(), self.range.guarded) }
                .map_err(|Unmapped| Fault::InvalidStag)?;
            offset += part.len();
            Ok(())
        })?;
        if offset == end { Ok(()) } else { Err(Fault::Bounds) }
    }

    /// Does what [`place`](Self::place) does, for several runs, which become contiguous in memory. Returns
    /// the number of copied bytes.
    ///
    /// # Errors
    /// The errors of [`place`](Self::place).
    #[inline]
    pub fn place_runs(&self, offset: usize, runs: Runs<'_>) -> Result<usize, Fault> {
        let len = runs.len();
        let ptr = self.range.at(offset, len)?;
        // SAFETY: `at` has just checked that the registration is valid and that `len` bytes, the length of
        // all runs, are inside it. The check that made this target checked that the registration is writable.
        // The epoch (`_guard`) is open on this thread, so a thread that has revoked the registration since
        // the check waits for the end of the epoch before the memory may be unmapped (`quiescence` has the
        // proof). Other threads access the bytes only by raw copies and atomics (`RawBytes`).
        unsafe { copy::place_runs_to(ptr, runs, len, self.range.guarded) }
            .map(|()| len)
            .map_err(|Unmapped| Fault::InvalidStag)
    }
}

impl<'t> Source<'t> {
    pub(super) fn new(
        guard: &'t EpochGuard<'t>,
        lease: Lease<'t>,
        record: &Record,
        ptr: *mut u8,
        len: usize,
    ) -> Self {
        Self { range: Range::new(guard, lease, record, ptr, len) }
    }

    /// Number of bytes of the range.
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// Whether the range has no bytes.
    pub fn is_empty(&self) -> bool {
        self.range.len == 0
    }

    /// Copies the `out.len()` bytes at `offset` of the range to `out`.
    ///
    /// # Errors
    /// The errors of [`Target::place`].
    pub fn fetch(&self, offset: usize, out: &mut [u8]) -> Result<(), Fault> {
        self.fetch_runs(offset, out, Stride::NONE)
    }

    /// Copies the bytes at `offset` of the range to the content of `out`, and skips the gaps of `out`. Any
    /// bytes may be written into the gaps.
    ///
    /// # Errors
    /// The errors of [`Target::place`].
    pub fn fetch_runs(&self, offset: usize, out: &mut [u8], stride: Stride) -> Result<(), Fault> {
        let ptr = self.range.at(offset, stride.content(out.len()))?;
        // SAFETY: `at` has just checked that the registration is valid and that the bytes to copy, as many as
        // `out` has bytes of content, are inside it. Every registration is readable. The epoch (`_guard`) is
        // open on this thread, so a thread that has revoked the registration since the check waits for the
        // end of the epoch before the memory may be unmapped (`quiescence` has the proof). Other threads
        // access the bytes only by raw copies and atomics (`RawBytes`).
        unsafe { copy::fetch_from(ptr, out, stride, self.range.guarded) }
            .map_err(|Unmapped| Fault::InvalidStag)
    }

    /// Does what [`fetch`](Self::fetch) does. If `crc` is given, also continues that CRC32c with the copied
    /// bytes, on some CPUs in the same pass. After an error `crc` is unchanged.
    ///
    /// # Errors
    /// The errors of [`Target::place`].
    #[inline]
    pub fn fetch_with_crc(&self, offset: usize, out: &mut [u8], crc: Option<&mut u32>) -> Result<(), Fault> {
        let Some(crc) = crc else { return self.fetch(offset, out) };
        let ptr = self.range.at(offset, out.len())?;
        // SAFETY: `at` has just checked that the registration is valid and that the bytes are inside it.
        // Every registration is readable. The epoch (`_guard`) is open on this thread, so a thread that has
        // revoked the registration since the check waits for the end of the epoch before the memory may be
        // unmapped (`quiescence` has the proof). Other threads access the bytes only by raw copies and
        // atomics (`RawBytes`).
        *crc = unsafe { crc32c::fetch_with_crc_from(ptr, out, self.range.guarded, *crc) }
            .map_err(|Unmapped| Fault::InvalidStag)?;
        Ok(())
    }

    /// Fills `out` with `front` (the MPA length and the DDP header), then the `bytes` bytes at `offset` of
    /// the range, then zeros. Returns the CRC32c of all of `out`. If `tally` is set, also returns the partial
    /// Internet checksum of `out` ([`dp::checksum::partial`]).
    ///
    /// # Errors
    /// The errors of [`Target::place`].
    ///
    /// # Panics
    /// Panics if `out` is too short.
    #[inline(always)]
    pub fn fetch_behind(
        &self,
        front: &Front,
        offset: usize,
        bytes: usize,
        out: &mut [u8],
        tally: bool,
    ) -> Result<(u32, u64), Fault> {
        let (_, behind) = front.store(out);
        let (bytes, zeros) = behind.split_at_mut(bytes);
        if !zeros.is_empty() {
            zeros.fill(0);
        }
        let ptr = self.range.at(offset, bytes.len())?;
        // SAFETY: `at` has just checked that the registration is valid and that the bytes are inside it.
        // Every registration is readable. The epoch (`_guard`) is open on this thread, so a thread that has
        // revoked the registration since the check waits for the end of the epoch before the memory may be
        // unmapped (`quiescence` has the proof). Other threads access the bytes only by raw copies and
        // atomics (`RawBytes`).
        unsafe { crc32c::fetch_behind_from(front, ptr, bytes, (zeros.len(), tally), self.range.guarded) }
            .map_err(|Unmapped| Fault::InvalidStag)
    }
}

impl<'t> Range<'t> {
    #[inline]
    fn new(guard: &'t EpochGuard<'t>, lease: Lease<'t>, record: &Record, ptr: *mut u8, len: usize) -> Self {
        Self { _guard: guard, lease, ptr, len, guarded: record.traits.contains(Traits::GUARDED) }
    }

    /// Returns the address of the `len` bytes at `offset`. Fails if the registration has been revoked, or if
    /// the bytes are not inside the range.
    ///
    /// RFC 5041 section 8.3.1 (DDP-231), RFC 5040 section 8.1.1 (RDMAP-355): the registration is checked
    /// before each copy.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, Fault> {
        // RFC 5042 section 6.2.2 (SEC-101): if an STag was revoked after its check, no further copy is made.
        if !self.lease.is_current() {
            return Err(Fault::InvalidStag);
        }
        match self.len.checked_sub(offset) {
            Some(room) if len <= room => Ok(self.ptr.wrapping_add(offset)),
            _ => Err(Fault::Bounds),
        }
    }
}
