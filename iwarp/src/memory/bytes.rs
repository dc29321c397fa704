//! The owner's reads and writes of memory that others may change at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use dp::Region;

use crate::memory::copy;
use crate::memory::guard::Unmapped;
use crate::memory::stride::Stride;

/// Why an access of the owner fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// Outside the memory.
    #[error("{len} bytes at offset {offset} are outside a memory of {bytes} bytes")]
    OutOfRange {
        /// Where the access begins.
        offset: usize,
        /// Bytes of the access.
        len: usize,
        /// Bytes of the memory.
        bytes: usize,
    },
    /// Eight bytes at an address that is not a multiple of 8.
    #[error("offset {offset} is not at a multiple of 8")]
    Misaligned {
        /// Where the access begins.
        offset: usize,
    },
    /// Memory of the caller that is no longer mapped, or no longer allows the access. A part may have been
    /// copied.
    #[error("the memory at offset {offset} is not mapped any more")]
    Unmapped {
        /// Where the access begins.
        offset: usize,
    },
    /// A write to memory of the caller that was registered for reading only.
    #[error("the memory was registered for reading only")]
    ReadOnly,
}

/// Address and length of memory that peers may read and write. It is never a slice: the bytes are copied in
/// and out. A read during a write of a peer returns old bytes, new bytes or a mixture.
///
/// Users only get a reference. A region is kept alive by the value, memory of the caller by the caller.
#[derive(Debug)]
pub struct RawBytes {
    /// `ptr..ptr + len` is mapped while the value exists. It may be read and, if `writable`, written by raw
    /// copies and atomics from any thread, and nobody accesses it in another way.
    ptr: *mut u8,
    len: usize,
    writable: bool,
    /// Memory of the caller, accessed under the fault guard.
    guarded: bool,
    /// Keeps the memory alive; `None` for memory of the caller.
    region: Option<Arc<Region>>,
}

impl RawBytes {
    /// Memory of the caller.
    ///
    /// # Safety
    /// While the value exists, `ptr..ptr + len` is mapped, readable and, if `writable`, writable. All threads
    /// access it by raw copies and atomics only.
    pub(super) unsafe fn of_user(ptr: *mut u8, len: usize, writable: bool, guarded: bool) -> Self {
        Self { ptr, len, writable, guarded, region: None }
    }

    /// The bytes of a region. It shows only its address, with which others may do what a region allows: raw
    /// copies and atomics.
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

    /// The region; `None` for memory of the caller.
    pub(super) fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// The address of the first byte. Dereferencing it is unsafe, and the caller's responsibility.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Copies `out.len()` bytes from `offset` on.
    ///
    /// # Errors
    /// [`AccessError`]. Nothing was copied, except perhaps with [`AccessError::Unmapped`].
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        let ptr = self.at(offset, out.len())?;
        // SAFETY: `at` found the range inside the memory, which is mapped and readable while `self` exists,
        // and which other threads access only by raw copies and atomics (the fields' invariant).
        unsafe { copy::fetch_from(ptr, out, Stride::NONE, self.guarded) }
            .map_err(|Unmapped| AccessError::Unmapped { offset })
    }

    /// Copies `bytes` to `offset`. They become visible to other threads by increasing offset.
    ///
    /// # Errors
    /// [`AccessError`]. Nothing was copied, except perhaps with [`AccessError::Unmapped`].
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        let ptr = self.at_writable(offset, bytes.len())?;
        // SAFETY: `at_writable` found the range inside the memory and the memory writable. It is mapped
        // while `self` exists, and other threads access it only through atomics and raw copies (the fields'
        // invariant).
        unsafe { copy::place_to(ptr, bytes, self.guarded) }
            .map_err(|Unmapped| AccessError::Unmapped { offset })
    }

    /// Loads one byte with acquire ordering. All bytes that were written before it are visible to the caller
    /// afterwards. For polling the last byte of a Write that arrives in order.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn load_u8_acquire(&self, offset: usize) -> Result<u8, AccessError> {
        let ptr = self.at(offset, 1)?;
        let mut byte = 0;
        let load = || {
            // SAFETY: `at` found the byte inside the memory, which is mapped and readable while `self`
            // exists, and which other threads access only by raw copies and atomics (the fields' invariant).
            // A byte is always aligned. If a wider store races with the load, the byte is the old or the new
            // byte: LLVM defines racing atomic accesses byte by byte, and nothing depends on which it is.
            byte = unsafe { AtomicU8::from_ptr(ptr) }.load(Ordering::Acquire);
        };
        // SAFETY: `load` accesses the byte at `offset`. It owns nothing, takes no lock and does not panic. If
        // it is abandoned, the byte is unchanged.
        unsafe { self.run(offset, 1, load)? };
        Ok(byte)
    }

    /// Stores one byte with release ordering. A thread that sees it also sees all earlier writes of the
    /// caller.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn store_u8_release(&self, offset: usize, byte: u8) -> Result<(), AccessError> {
        let ptr = self.at_writable(offset, 1)?;
        let store = || {
            // SAFETY: `at_writable` found the byte inside the memory and the memory writable. It is mapped
            // while `self` exists, and other threads access it only through atomics and raw copies (the
            // fields' invariant). A byte is always aligned. If a wider access races with the store, the other
            // access sees or stores the old or the new byte: LLVM defines racing atomic accesses byte by
            // byte.
            unsafe { AtomicU8::from_ptr(ptr) }.store(byte, Ordering::Release);
        };
        // SAFETY: `store` accesses the byte at `offset`. It owns nothing, takes no lock and does not panic.
        // Its one store happens completely or not at all.
        unsafe { self.run(offset, 1, store) }
    }

    /// Loads eight bytes at once with acquire ordering, in the byte order of the machine. Their address must
    /// be a multiple of 8.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn load_u64_acquire(&self, offset: usize) -> Result<u64, AccessError> {
        let ptr = self.at(offset, 8)?.cast::<u64>();
        if !ptr.is_aligned() {
            return Err(AccessError::Misaligned { offset });
        }
        let mut word = 0;
        let load = || {
            // SAFETY: `at` found the eight bytes inside the memory, which is mapped and readable while
            // `self` exists, and which other threads access only by raw copies and atomics (the fields'
            // invariant). They are aligned, as was just checked. If a store of another size races with the
            // load, each byte is the old or the new one: LLVM defines racing atomic accesses byte by byte,
            // and nothing depends on which it is.
            word = unsafe { AtomicU64::from_ptr(ptr) }.load(Ordering::Acquire);
        };
        // SAFETY: `load` accesses the eight bytes at `offset`. It owns nothing, takes no lock and does not
        // panic. If it is abandoned, the word is unchanged.
        unsafe { self.run(offset, 8, load)? };
        Ok(word)
    }

    /// Runs `access`, which accesses the `len` bytes at `offset`, under the guard if the memory is guarded.
    ///
    /// # Safety
    /// `access` may be abandoned at any access to these bytes: it and the functions it calls own nothing
    /// that needs a drop, hold no lock, leave no state half changed on which other code relies, and do not
    /// panic.
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
