//! Memory that others may change at any time, as its owner reads and writes it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dp::Region;

use crate::memory::copy;
use crate::memory::guard::Unmapped;
use crate::memory::stride::Stride;

/// An access of the owner that cannot be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Outside the memory.
    #[error("{len} octets at offset {offset} are outside a memory of {octets} octets")]
    OutOfRange {
        /// Where the access begins.
        offset: usize,
        /// Its octets.
        len: usize,
        /// Octets there are.
        octets: usize,
    },
    /// Eight octets at an address that is not a multiple of 8.
    #[error("offset {offset} is not at a multiple of 8")]
    Misaligned {
        /// Where the access begins.
        offset: usize,
    },
    /// Memory of the caller that is not there any more, or not as it was registered; a part may have been copied.
    #[error("the memory at offset {offset} is not mapped any more")]
    Unmapped {
        /// Where the access begins.
        offset: usize,
    },
    /// A write to the caller's memory that was registered without any right to write.
    #[error("the memory was registered for reading only")]
    ReadOnly,
}

/// Address and length of memory that peers may read and write: never a slice. The octets are copied in and out;
/// what is read while a peer writes may be old, new or a mixture.
///
/// It is only ever lent: whoever lends it keeps the memory.
#[derive(Debug)]
pub struct RawBytes {
    ptr: *mut u8,
    len: usize,
    writable: bool,
    /// Memory of the caller, accessed under the fault guard.
    guarded: bool,
}

impl RawBytes {
    /// # Safety
    /// While the value exists, `ptr..ptr + len` is mapped, may be read and, if `writable`, written by raw copies and
    /// atomics from any thread.
    pub(super) unsafe fn new(ptr: *mut u8, len: usize, writable: bool, guarded: bool) -> Self {
        Self { ptr, len, writable, guarded }
    }

    /// The octets of a region; whoever keeps the value keeps the region.
    pub(super) fn of_region(region: &Region) -> Self {
        Self { ptr: region.as_ptr().as_ptr(), len: region.len(), writable: true, guarded: false }
    }

    /// Octets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it may be written at all.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn is_guarded(&self) -> bool {
        self.guarded
    }

    /// The first octet's address. Dereferencing it is the caller's unsafe act.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Copies `out.len()` octets from `offset` on.
    ///
    /// # Errors
    /// [`AccessError`]; nothing is copied then, unless it is [`AccessError::Unmapped`].
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        let ptr = self.at(offset, out.len())?;
        // SAFETY: `at` keeps the range inside the memory, which whoever handed out `self` keeps mapped.
        unsafe { copy::fetch_from(ptr, out, Stride::NONE, self.guarded) }
            .map_err(|Unmapped| AccessError::Unmapped { offset })
    }

    /// Copies `octets` to `offset`; they become visible to other threads by increasing offset.
    ///
    /// # Errors
    /// [`AccessError`]; nothing is copied then, unless it is [`AccessError::Unmapped`].
    pub fn write_at(&self, offset: usize, octets: &[u8]) -> Result<(), AccessError> {
        let ptr = self.at_writable(offset, octets.len())?;
        // SAFETY: as in `read_at`, and `at_writable` found it writable.
        unsafe { copy::place_to(ptr, octets, self.guarded) }
            .map_err(|Unmapped| AccessError::Unmapped { offset })
    }

    /// One octet. What was written before it in order is visible to the caller afterwards: for polling the last
    /// octet of a Write that came in order.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn load_u8_acquire(&self, offset: usize) -> Result<u8, AccessError> {
        let ptr = self.at(offset, 1)?;
        let mut octet = 0;
        // SAFETY: as in `read_at`; an octet is always aligned, and others access it by raw copies.
        unsafe { self.run(offset, 1, || octet = AtomicU8::from_ptr(ptr).load(Ordering::Acquire))? };
        Ok(octet)
    }

    /// Stores one octet; what the caller wrote before is visible to whoever sees it.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn store_u8_release(&self, offset: usize, octet: u8) -> Result<(), AccessError> {
        let ptr = self.at_writable(offset, 1)?;
        // SAFETY: as in `load_u8_acquire`, and `at_writable` found it writable.
        unsafe { self.run(offset, 1, || AtomicU8::from_ptr(ptr).store(octet, Ordering::Release)) }
    }

    /// Eight octets at once in the machine's byte order, with acquire ordering; `offset` must be so that the
    /// address is a multiple of 8.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn load_u64_acquire(&self, offset: usize) -> Result<u64, AccessError> {
        let ptr = self.at(offset, 8)?.cast::<u64>();
        if !ptr.is_aligned() {
            return Err(AccessError::Misaligned { offset });
        }
        let mut word = 0;
        // SAFETY: as in `load_u8_acquire`, and aligned.
        unsafe { self.run(offset, 8, || word = AtomicU64::from_ptr(ptr).load(Ordering::Acquire))? };
        Ok(word)
    }

    /// # Safety
    /// As [`copy::run`], for the `len` octets at `offset`, which are inside.
    unsafe fn run(&self, offset: usize, len: usize, access: impl FnMut()) -> Result<(), AccessError> {
        // SAFETY: the caller promises the same.
        unsafe { copy::run(self.ptr.wrapping_add(offset), len, self.guarded, access) }
            .map_err(|Unmapped| AccessError::Unmapped { offset })
    }

    fn at_writable(&self, offset: usize, len: usize) -> Result<*mut u8, AccessError> {
        if self.writable { self.at(offset, len) } else { Err(AccessError::ReadOnly) }
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, AccessError> {
        match self.len.checked_sub(offset) {
            Some(room) if len <= room => Ok(self.ptr.wrapping_add(offset)),
            _ => Err(AccessError::OutOfRange { offset, len, octets: self.len }),
        }
    }
}
