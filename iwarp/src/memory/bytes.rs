//! Reads and writes by the memory's owner. Other threads and peers may change the memory at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dp::Region;

use crate::memory::copy;
use crate::memory::guard::Unmapped;
use crate::memory::stride::Stride;

/// Why an access of the owner fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The access is not inside the memory.
    #[error("{len} bytes at offset {offset} are outside a memory of {bytes} bytes")]
    OutOfRange {
        /// Offset of the first byte of the access.
        offset: usize,
        /// Number of bytes of the access.
        len: usize,
        /// Number of bytes of the memory.
        bytes: usize,
    },
    /// The address of the eight bytes is not a multiple of 8.
    #[error("offset {offset} is not at a multiple of 8")]
    Misaligned {
        /// Offset of the first byte of the access.
        offset: usize,
    },
    /// The caller's memory is no longer mapped, or its mapping no longer allows the access. Some of the bytes
    /// may have been copied.
    #[error("the memory at offset {offset} is not mapped any more")]
    Unmapped {
        /// Offset of the first byte of the access.
        offset: usize,
    },
    /// The access is a write, and the caller's memory was registered for reading only.
    #[error("the memory was registered for reading only")]
    ReadOnly,
}

/// Address and length of memory that peers may read and write. The memory is never used as a slice: the bytes
/// are copied in and out, or accessed as atomics. A read during a write of a peer returns old bytes, new
/// bytes or a mixture.
///
/// The value keeps its region alive. A caller that registers its own memory has to keep this memory mapped.
#[derive(Debug)]
pub struct RawBytes {
    /// `ptr..ptr + len` is mapped while this value exists, unless `guarded` is true. Any thread may read
    /// these bytes and, if `writable`, write them, but only by raw copies and atomics.
    ptr: *mut u8,
    len: usize,
    writable: bool,
    /// Whether the memory is the caller's, and is accessed under the fault guard.
    guarded: bool,
    /// The region that contains the memory; `None` for the caller's memory.
    region: Option<Arc<Region>>,
}

impl RawBytes {
    /// Returns a `RawBytes` for the caller's memory.
    ///
    /// # Safety
    /// While the value exists, `ptr..ptr + len` is mapped, readable and, if `writable`, writable, or
    /// `guarded` is true and the guard is installed. All threads access these bytes only by raw copies and
    /// atomics.
    pub(super) unsafe fn of_user(ptr: *mut u8, len: usize, writable: bool, guarded: bool) -> Self {
        Self { ptr, len, writable, guarded, region: None }
    }

    /// Returns a `RawBytes` for all bytes of a region. A region gives out only its address, and allows only
    /// raw copies and atomics.
    pub(super) fn of_region(region: Arc<Region>) -> Self {
        let (ptr, len) = (region.as_ptr().as_ptr(), region.len());
        Self { ptr, len, writable: true, guarded: false, region: Some(region) }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the memory may be written.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn is_guarded(&self) -> bool {
        self.guarded
    }

    /// The region that contains the memory; `None` for the caller's memory.
    pub(super) fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// The address of the first byte. Dereferencing this pointer is unsafe, and the caller's responsibility.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Copies the `out.len()` bytes at `offset` to `out`.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`] if the bytes are not inside the memory: no byte was copied.
    /// [`AccessError::Unmapped`] if the caller's memory is no longer mapped: some bytes may have been copied.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        let ptr = self.at(offset, out.len())?;
        // SAFETY: `at` checked that the range is inside the memory. The memory is mapped and readable while
        // `self` exists, and other threads access it only by raw copies and atomics (the fields' invariant).
        unsafe { copy::fetch_from(ptr, out, Stride::NONE, self.guarded) }
            .map_err(|Unmapped| AccessError::Unmapped { offset })
    }

    /// Copies `bytes` to `offset`. The bytes become visible to other threads by increasing offset.
    ///
    /// # Errors
    /// [`AccessError::ReadOnly`] if the memory is not writable, and [`AccessError::OutOfRange`] if the bytes
    /// are not inside the memory: no byte was copied. [`AccessError::Unmapped`] if the caller's memory is no
    /// longer mapped: some bytes may have been copied.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        let ptr = self.at_writable(offset, bytes.len())?;
        // SAFETY: `at_writable` checked that the range is inside the memory and that the memory is writable.
        // The memory is mapped while `self` exists, and other threads access it only by raw copies and
        // atomics (the fields' invariant).
        unsafe { copy::place_to(ptr, bytes, self.guarded) }
            .map_err(|Unmapped| AccessError::Unmapped { offset })
    }

    /// Loads one byte with acquire ordering. A caller that sees a new byte also sees all bytes that were
    /// written before this byte. A program can use this function to poll the last byte of a Write that
    /// arrives in order.
    ///
    /// # Errors
    /// [`AccessError`] if the byte is not inside the memory, or if the memory is no longer mapped.
    pub fn load_u8_acquire(&self, offset: usize) -> Result<u8, AccessError> {
        let ptr = self.at(offset, 1)?;
        let mut byte = 0;
        let load = || {
            // SAFETY: `at` checked that the byte is inside the memory. The memory is mapped and readable
            // while `self` exists, and other threads access it only by raw copies and atomics (the fields'
            // invariant). A byte is always aligned. If a wider store races with the load, the loaded byte is
            // the old or the new byte: LLVM defines racing atomic accesses byte by byte. Both are valid
            // results.
            byte = unsafe { AtomicU8::from_ptr(ptr) }.load(Ordering::Acquire);
        };
        // SAFETY: `load` accesses only the byte at `offset`. The closure owns nothing, takes no lock and does
        // not panic. If the closure is abandoned, `byte` is unchanged.
        unsafe { self.run(offset, 1, load)? };
        Ok(byte)
    }

    /// Stores one byte with release ordering. A thread that sees the stored byte also sees all earlier writes
    /// of the caller.
    ///
    /// # Errors
    /// [`AccessError`] if the byte is not inside the memory, or if the memory is not writable or no longer
    /// mapped.
    pub fn store_u8_release(&self, offset: usize, byte: u8) -> Result<(), AccessError> {
        let ptr = self.at_writable(offset, 1)?;
        let store = || {
            // SAFETY: `at_writable` checked that the byte is inside the memory and that the memory is
            // writable. The memory is mapped while `self` exists, and other threads access it only by raw
            // copies and atomics (the fields' invariant). A byte is always aligned. If a wider access races
            // with the store, the other access sees or stores the old or the new byte: LLVM defines racing
            // atomic accesses byte by byte.
            unsafe { AtomicU8::from_ptr(ptr) }.store(byte, Ordering::Release);
        };
        // SAFETY: `store` accesses only the byte at `offset`. The closure owns nothing, takes no lock and
        // does not panic. Its one store happens completely or not at all.
        unsafe { self.run(offset, 1, store) }
    }

    /// Loads eight bytes in a single access with acquire ordering, and returns them in the byte order of the
    /// machine. The address of the eight bytes must be a multiple of 8.
    ///
    /// # Errors
    /// [`AccessError`] if the bytes are misaligned or not inside the memory, or if the memory is no longer
    /// mapped.
    pub fn load_u64_acquire(&self, offset: usize) -> Result<u64, AccessError> {
        let ptr = self.at(offset, 8)?.cast::<u64>();
        if !ptr.is_aligned() {
            return Err(AccessError::Misaligned { offset });
        }
        let mut word = 0;
        let load = || {
            // SAFETY: `at` checked that the eight bytes are inside the memory. The memory is mapped and
            // readable while `self` exists, and other threads access it only by raw copies and atomics (the
            // fields' invariant). The address was just checked to be aligned. If a store of another size
            // races with the load, each loaded byte is the old or the new byte: LLVM defines racing atomic
            // accesses byte by byte. Both are valid results.
            word = unsafe { AtomicU64::from_ptr(ptr) }.load(Ordering::Acquire);
        };
        // SAFETY: `load` accesses only the eight bytes at `offset`. The closure owns nothing, takes no lock
        // and does not panic. If the closure is abandoned, `word` is unchanged.
        unsafe { self.run(offset, 8, load)? };
        Ok(word)
    }

    /// Runs `access`, which accesses the `len` bytes at `offset`, under the fault guard if the memory is
    /// guarded. Returns [`AccessError::Unmapped`] if a fault has ended `access`.
    ///
    /// # Safety
    /// `access` may be abandoned at any access to these bytes. So at each such access, `access` and the
    /// functions that it calls own nothing that needs a drop, and hold no lock. No state on which other code
    /// relies is half changed then. `access` does not panic.
    unsafe fn run(&self, offset: usize, len: usize, access: impl FnMut()) -> Result<(), AccessError> {
        // SAFETY: the caller promises that `access` may be abandoned at any access to these bytes.
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
