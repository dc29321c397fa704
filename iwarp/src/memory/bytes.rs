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
    #[error("{len} bytes at offset {offset} are outside a memory of {bytes} bytes")]
    OutOfRange {
        /// Where the access begins.
        offset: usize,
        /// Its bytes.
        len: usize,
        /// Bytes there are.
        bytes: usize,
    },
    /// Eight bytes at an address that is not a multiple of 8.
    #[error("offset {offset} is not at a multiple of 8")]
    Misaligned {
        /// Where the access begins.
        offset: usize,
    },
    /// Memory of the caller that is not there any more, or not as it was registered; a part may have been
    /// copied.
    #[error("the memory at offset {offset} is not mapped any more")]
    Unmapped {
        /// Where the access begins.
        offset: usize,
    },
    /// A write to the caller's memory that was registered without any right to write.
    #[error("the memory was registered for reading only")]
    ReadOnly,
}

/// Address and length of memory that peers may read and write: never a slice. The bytes are copied in and
/// out; what is read while a peer writes may be old, new or a mixture.
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
    /// While the value exists, `ptr..ptr + len` is mapped, may be read and, if `writable`, written by raw
    /// copies and atomics from any thread.
    pub(super) unsafe fn new(ptr: *mut u8, len: usize, writable: bool, guarded: bool) -> Self {
        Self { ptr, len, writable, guarded }
    }

    /// The bytes of a region; whoever keeps the value keeps the region.
    pub(super) fn of_region(region: &Region) -> Self {
        Self { ptr: region.as_ptr().as_ptr(), len: region.len(), writable: true, guarded: false }
    }

    /// Bytes.
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

    /// The first byte's address. Dereferencing it is the caller's unsafe act.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Copies `out.len()` bytes from `offset` on.
    ///
    /// # Errors
    /// [`AccessError`]; nothing is copied then, unless it is [`AccessError::Unmapped`].
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        let ptr = self.at(offset, out.len())?;
        // SAFETY: `at` keeps the range inside the memory, which whoever handed out `self` keeps mapped.
        unsafe { copy::fetch_from(ptr, out, Stride::NONE, self.guarded) }
            .map_err(|Unmapped| AccessError::Unmapped { offset })
    }

    /// Copies `bytes` to `offset`; they become visible to other threads by increasing offset.
    ///
    /// # Errors
    /// [`AccessError`]; nothing is copied then, unless it is [`AccessError::Unmapped`].
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        let ptr = self.at_writable(offset, bytes.len())?;
        // SAFETY: as in `read_at`, and `at_writable` found it writable.
        unsafe { copy::place_to(ptr, bytes, self.guarded) }
            .map_err(|Unmapped| AccessError::Unmapped { offset })
    }

    /// One byte. What was written before it in order is visible to the caller afterwards: for polling the
    /// last byte of a Write that came in order.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn load_u8_acquire(&self, offset: usize) -> Result<u8, AccessError> {
        let ptr = self.at(offset, 1)?;
        let mut byte = 0;
        // SAFETY: as in `read_at`; a byte is always aligned, and others access it by raw copies.
        unsafe { self.run(offset, 1, || byte = AtomicU8::from_ptr(ptr).load(Ordering::Acquire))? };
        Ok(byte)
    }

    /// Stores one byte; what the caller wrote before is visible to whoever sees it.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn store_u8_release(&self, offset: usize, byte: u8) -> Result<(), AccessError> {
        let ptr = self.at_writable(offset, 1)?;
        // SAFETY: as in `load_u8_acquire`, and `at_writable` found it writable.
        unsafe { self.run(offset, 1, || AtomicU8::from_ptr(ptr).store(byte, Ordering::Release)) }
    }

    /// Eight bytes at once in the machine's byte order, with acquire ordering; `offset` must be so that the
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
    /// As [`copy::run`], for the `len` bytes at `offset`, which are inside.
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
            _ => Err(AccessError::OutOfRange { offset, len, bytes: self.len }),
        }
    }
}
