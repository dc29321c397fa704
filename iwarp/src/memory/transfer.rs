//! The result of a passed check: a range to write or to read, within one epoch.
//!
//! Both check before every copy that the registration is still in the generation that was checked. A copy
//! that has begun ends within the epoch, and a thread that revokes the registration waits for the epoch.

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
    /// Keeps the epoch open and the value on its thread.
    _guard: &'t EpochGuard<'t>,
    lease: Lease<'t>,
    ptr: *mut u8,
    len: usize,
    /// Memory of the caller, which may be unmapped.
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

    /// Bytes of the range.
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.range.len == 0
    }

    /// Runs `access` with the address of the first byte of the range, within the epoch.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when the registration has been revoked, or memory of the caller is no longer
    /// mapped.
    ///
    /// # Safety
    /// `access` may be abandoned at any access to these bytes: `access` and the functions that it calls own
    /// nothing that needs a drop, hold no lock, do not leave state half changed on which other code relies,
    /// and do not panic.
    pub(super) unsafe fn access(&self, mut access: impl FnMut(*mut u8)) -> Result<(), Fault> {
        let Range { len, guarded, .. } = self.range;
        let ptr = self.range.at(0, len)?;
        // SAFETY: the caller promises that `access` may be abandoned at any access to these bytes.
        unsafe { copy::run(ptr, len, guarded, || access(ptr)) }.map_err(|Unmapped| Fault::InvalidStag)
    }

    /// Copies `bytes` to `offset` of the range. They become visible to other threads by increasing offset,
    /// each after everything that was written before. So the last byte becomes visible last when pieces are
    /// placed in order.
    ///
    /// # Errors
    /// [`Fault::InvalidStag`] when the registration has been revoked, [`Fault::Bounds`] outside the range;
    /// nothing is copied then. [`Fault::InvalidStag`] also when memory of the caller is no longer mapped; a
    /// part may have been copied then.
    #[inline]
    pub fn place(&self, offset: usize, bytes: &[u8]) -> Result<(), Fault> {
        let ptr = self.range.at(offset, bytes.len())?;
        // SAFETY: `at` found the registration valid just now and the bytes inside it, and the check that made
        // this target found it writable. The epoch (`_guard`) is open on this thread, so a thread that has
        // revoked the registration since waits for the epoch to end before the memory may go (`quiescence`
        // has the proof). Others access the bytes by raw copies and atomics only (`RawBytes`).
        unsafe { copy::place_to(ptr, bytes, self.range.guarded) }.map_err(|Unmapped| Fault::InvalidStag)
    }

    /// As [`place`](Self::place), for several runs that become contiguous. Returns how many bytes were
    /// copied.
    ///
    /// # Errors
    /// As [`place`](Self::place).
    #[inline]
    pub fn place_runs(&self, offset: usize, runs: Runs<'_>) -> Result<usize, Fault> {
        let len = runs.len();
        let ptr = self.range.at(offset, len)?;
        // SAFETY: `at` found the registration valid just now and `len` bytes, those of all runs, inside it,
        // and the check that made this target found it writable. The epoch (`_guard`) is open on this thread,
        // so a thread that has revoked the registration since waits for the epoch to end before the memory
        // may go (`quiescence` has the proof). Others access the bytes by raw copies and atomics only
        // (`RawBytes`).
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

    /// Bytes of the range.
    pub fn len(&self) -> usize {
        self.range.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.range.len == 0
    }

    /// Copies `out.len()` bytes from `offset` of the range on.
    ///
    /// # Errors
    /// As [`Target::place`].
    pub fn fetch(&self, offset: usize, out: &mut [u8]) -> Result<(), Fault> {
        self.fetch_runs(offset, out, Stride::NONE)
    }

    /// As [`fetch`](Self::fetch), around the gaps of `out`. Any bytes may be written into the gaps.
    ///
    /// # Errors
    /// As [`Target::place`].
    pub fn fetch_runs(&self, offset: usize, out: &mut [u8], stride: Stride) -> Result<(), Fault> {
        let ptr = self.range.at(offset, stride.content(out.len()))?;
        // SAFETY: `at` found the registration valid just now and as many bytes as `out` has of content inside
        // it, and every registration is readable. The epoch (`_guard`) is open on this thread, so a thread
        // that has revoked the registration since waits for the epoch to end before the memory may go
        // (`quiescence` has the proof). Others access the bytes by raw copies and atomics only (`RawBytes`).
        unsafe { copy::fetch_from(ptr, out, stride, self.range.guarded) }
            .map_err(|Unmapped| Fault::InvalidStag)
    }

    /// As [`fetch`](Self::fetch). If `crc` is given, adds the copied bytes to that CRC32c, in the same pass
    /// if the CPU can. Adds nothing on an error.
    ///
    /// # Errors
    /// As [`Target::place`].
    #[inline]
    pub fn fetch_summed(&self, offset: usize, out: &mut [u8], crc: Option<&mut u32>) -> Result<(), Fault> {
        let Some(crc) = crc else { return self.fetch(offset, out) };
        let ptr = self.range.at(offset, out.len())?;
        // SAFETY: `at` found the registration valid just now and the bytes inside it, and every registration
        // is readable. The epoch (`_guard`) is open on this thread, so a thread that has revoked the
        // registration since waits for the epoch to end before the memory may go (`quiescence` has the
        // proof). Others access the bytes by raw copies and atomics only (`RawBytes`).
        *crc = unsafe { crc32c::fetch_with_crc_from(ptr, out, self.range.guarded, *crc) }
            .map_err(|Unmapped| Fault::InvalidStag)?;
        Ok(())
    }

    /// Fills `out` with `front` (the MPA length and the DDP header), `bytes` bytes from `offset` of the range
    /// on, and zeros. Returns the CRC32c of all of it, and, if `tally`, its partial Internet checksum
    /// ([`dp::checksum::partial`]).
    ///
    /// # Errors
    /// As [`Target::place`].
    ///
    /// # Panics
    /// If `out` is too short.
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
        // SAFETY: `at` found the registration valid just now and the bytes inside it, and every registration
        // is readable. The epoch (`_guard`) is open on this thread, so a thread that has revoked the
        // registration since waits for the epoch to end before the memory may go (`quiescence` has the
        // proof). Others access the bytes by raw copies and atomics only (`RawBytes`).
        unsafe { crc32c::fetch_behind_from(front, ptr, bytes, (zeros.len(), tally), self.range.guarded) }
            .map_err(|Unmapped| Fault::InvalidStag)
    }
}

impl<'t> Range<'t> {
    #[inline]
    fn new(guard: &'t EpochGuard<'t>, lease: Lease<'t>, record: &Record, ptr: *mut u8, len: usize) -> Self {
        Self { _guard: guard, lease, ptr, len, guarded: record.traits.contains(Traits::GUARDED) }
    }

    /// The address of `len` bytes at `offset`.
    ///
    /// RFC 5041 section 8.3.1 (DDP-231), RFC 5040 section 8.1.1 (RDMAP-355): the registration is checked
    /// before each copy.
    #[inline]
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, Fault> {
        // RFC 5042 section 6.2.2 (SEC-101): an STag that was revoked since it was checked admits no further
        // copy.
        if !self.lease.is_current() {
            return Err(Fault::InvalidStag);
        }
        match self.len.checked_sub(offset) {
            Some(room) if len <= room => Ok(self.ptr.wrapping_add(offset)),
            _ => Err(Fault::Bounds),
        }
    }
}
