//! External memory: bytes outside of the pools that are sent without a copy.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(feature = "dpdk")]
use super::ext_shared::ExtShared;

/// Readable bytes and their owner, for [`Mbuf::external`](crate::Mbuf::external).
///
/// Other code may write the bytes at any time, as in registered memory. So the bytes are never available as a
/// slice, but only as a copy. A copy that is made during a write has old bytes, new bytes or a mixture of old
/// and new bytes.
///
/// Cloning is cheap. The owner is dropped when the last clone and the last view in an [`Mbuf`](crate::Mbuf)
/// are dropped.
#[derive(Clone)]
pub struct ExtBuf {
    start: NonNull<u8>,
    bytes: usize,
    /// The owner of the memory, with DPDK's count of its views.
    #[cfg(feature = "dpdk")]
    owner: Arc<ExtShared>,
    #[cfg(not(feature = "dpdk"))]
    owner: Arc<dyn Send + Sync>,
}

// SAFETY: any thread may read the bytes while the owner exists (the contract of `from_raw`, which `new`
// observes). The bytes are read only by raw copies. The owner is `Send + Sync`, so any thread may drop it.
unsafe impl Send for ExtBuf {}
// SAFETY: through `&ExtBuf` the bytes are only read by raw copies. Any number of threads may make such copies
// at the same time (the contract of `from_raw`, which `new` observes). The owner is `Send + Sync`, so any
// thread may clone it.
unsafe impl Sync for ExtBuf {}

impl ExtBuf {
    /// Makes an `ExtBuf` of all bytes of `owner`.
    pub fn new<T: AsRef<[u8]> + Send + Sync + 'static>(owner: Arc<T>) -> Self {
        // The pointer is valid after this borrow. The `ExtBuf` holds a clone of the `Arc`, so nobody gets a
        // `&mut T` or a `T` by value. Safe code with a `&T` cannot invalidate a `&[u8]` that `as_ref` has
        // returned.
        let (start, bytes) = {
            let bytes: &[u8] = (*owner).as_ref();
            (NonNull::from(bytes).cast(), bytes.len())
        };
        // SAFETY: `as_ref` has returned the bytes as a slice of the owner. While the owner exists, any thread
        // may read the slice, and nobody writes it.
        unsafe { Self::from_raw(start, bytes, owner) }
    }

    /// Makes an `ExtBuf` of the `bytes` bytes from `start` on, which belong to `owner`.
    ///
    /// # Safety
    /// While `owner` exists, the bytes are in one allocation and initialised, and any thread may read them by
    /// raw copies. Other code accesses the bytes only by atomics and raw copies, or does not write them at
    /// all.
    pub unsafe fn from_raw(start: NonNull<u8>, bytes: usize, owner: Arc<dyn Send + Sync>) -> Self {
        #[cfg(feature = "dpdk")]
        let owner = Arc::new(ExtShared::new(owner));
        Self { start, bytes, owner }
    }

    /// Returns the bytes in `range`, or `None` if `range` exceeds the bytes.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        self.clone().into_slice(range)
    }

    /// Returns the bytes in `range`, without another reference to the owner. Returns `None` if `range`
    /// exceeds the bytes.
    #[inline]
    pub fn into_slice(self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.bytes {
            return None;
        }
        // SAFETY: `range.start` is at most `range.end`, which is at most `bytes`. So the address is inside
        // the memory or directly behind the memory, which is one allocation.
        let start = unsafe { self.start.add(range.start) };
        Some(Self { start, bytes: range.len(), owner: self.owner })
    }

    /// Copies bytes from `offset` on to `out`, until the bytes end or `out` is full. Returns the number of
    /// copied bytes.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let bytes = self.bytes.saturating_sub(offset).min(out.len());
        let from = self.start.as_ptr().wrapping_add(offset.min(self.bytes));
        // SAFETY: `offset + bytes` is at most the length of the memory. Raw copies may read the memory while
        // the owner exists (the contract of `from_raw`, which `new` observes), and `self` holds the owner.
        unsafe { copy_raw(from, &mut out[..bytes]) };
        bytes
    }

    /// Returns whether no other clone and no view of an [`Mbuf`](crate::Mbuf) keeps the owner alive. The
    /// owner must have been passed only to this value, since without DPDK other references to the owner also
    /// count.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_unique(&self) -> bool {
        // The fence pairs with the Release by which the other values were dropped. So the reads through these
        // values happen before whatever the caller does next.
        let is_unique = Arc::strong_count(&self.owner) == 1;
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        is_unique
    }

    /// The address of the first byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.start
    }

    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    #[cfg(feature = "dpdk")]
    pub(crate) fn shared(&self) -> &ExtShared {
        &self.owner
    }
}

/// Copies `out.len()` bytes from `from`. Other threads may write the bytes during the copy. So the copy is in
/// assembly, and the compiler makes no assumptions about the bytes.
///
/// # Safety
/// The bytes at `from` are mapped and readable, and other code accesses them only by atomics and raw copies.
pub(crate) unsafe fn copy_raw(from: *const u8, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller promises `out.len()` readable bytes at `from`, and `out` is borrowed mutably. The
    // instruction accesses no other bytes, and changes only the registers in its operands.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") out.len() => _,
            inout("rsi") from => _,
            inout("rdi") out.as_mut_ptr() => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(not(target_arch = "x86_64"))]
    for (i, byte) in out.iter_mut().enumerate() {
        // SAFETY: the caller promises `out.len()` readable bytes at `from`. `AtomicU8` needs no alignment,
        // and the byte is only loaded.
        let place = unsafe { std::sync::atomic::AtomicU8::from_ptr(from.wrapping_add(i).cast_mut()) };
        *byte = place.load(std::sync::atomic::Ordering::Relaxed);
    }
}

impl fmt::Debug for ExtBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtBuf").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
