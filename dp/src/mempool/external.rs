//! External memory: bytes outside of the pools, sent without a copy.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(feature = "dpdk")]
use super::ext_shared::ExtShared;

/// Readable bytes and their owner: the storage of [`Mbuf::external`](crate::Mbuf::external).
///
/// Other code may write the bytes at any time, as in registered memory. So they are never available as a
/// slice, but are copied out; a copy during a write has old bytes, new bytes or a mixture.
///
/// Cheap to clone. The owner is dropped with the last clone and the last view in an [`Mbuf`](crate::Mbuf).
#[derive(Clone)]
pub struct ExtBuf {
    start: NonNull<u8>,
    bytes: usize,
    /// Keeps the memory alive. DPDK counts its views of the memory itself.
    #[cfg(feature = "dpdk")]
    owner: Arc<ExtShared>,
    #[cfg(not(feature = "dpdk"))]
    owner: Arc<dyn Send + Sync>,
}

// SAFETY: the bytes may be read from any thread while the owner lives (`new` has the argument, callers of
// `from_raw` promise it), and are read by raw copies only. The owner is `Send + Sync`, so any thread may drop
// it.
unsafe impl Send for ExtBuf {}
// SAFETY: through `&ExtBuf` the bytes are only read, by raw copies, which any number of threads may do (`new`
// has the argument, callers of `from_raw` promise it). The owner is `Send + Sync`, so it may be cloned from
// any thread.
unsafe impl Sync for ExtBuf {}

impl ExtBuf {
    /// All bytes of `owner`.
    pub fn new<T: AsRef<[u8]> + Send + Sync + 'static>(owner: Arc<T>) -> Self {
        // The pointer outlives this borrow, and stays valid: we hold a clone of the `Arc`, so nobody gets
        // `&mut T` or a `T` by value, and safe code with a `&T` cannot invalidate a `&[u8]` that `T` may
        // have lent out.
        let (start, bytes) = {
            let bytes: &[u8] = (*owner).as_ref();
            (NonNull::from(bytes).cast(), bytes.len())
        };
        // SAFETY: the owner has lent out the bytes as a slice, which is readable from any thread and which
        // nobody writes while it lives.
        unsafe { Self::from_raw(start, bytes, owner) }
    }

    /// `bytes` bytes from `start` on, kept alive by `owner`.
    ///
    /// # Safety
    /// While `owner` lives, the bytes are one allocation, initialised, and may be read by raw copies from any
    /// thread. Other code accesses them only by atomics and raw copies, or does not write them at all.
    pub unsafe fn from_raw(start: NonNull<u8>, bytes: usize, owner: Arc<dyn Send + Sync>) -> Self {
        #[cfg(feature = "dpdk")]
        let owner = Arc::new(ExtShared::new(owner));
        Self { start, bytes, owner }
    }

    /// The bytes of `range`; `None` if `range` reaches past the end.
    #[inline]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        self.clone().into_slice(range)
    }

    /// As [`slice`](Self::slice), without another reference to the owner.
    #[inline]
    pub fn into_slice(self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.bytes {
            return None;
        }
        // SAFETY: `range.start` is at most `range.end`, which is at most `bytes`. So the address lies inside
        // the memory, which is one allocation, or one past its end.
        let start = unsafe { self.start.add(range.start) };
        Some(Self { start, bytes: range.len(), owner: self.owner })
    }

    /// Copies bytes from `offset` on to `out`, as many as exist and fit; returns how many.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        let bytes = self.bytes.saturating_sub(offset).min(out.len());
        let from = self.start.as_ptr().wrapping_add(offset.min(self.bytes));
        // SAFETY: `offset + bytes` is at most the length of the memory, which may be read by raw copies while
        // the owner lives (`new` has the argument, callers of `from_raw` promise it). `self` holds the owner.
        unsafe { copy_raw(from, &mut out[..bytes]) };
        bytes
    }

    /// Address of its first byte.
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

/// Copies `out.len()` bytes from `from`. Written in assembly, which is opaque to the compiler, since other
/// threads may write the bytes meanwhile.
///
/// # Safety
/// The bytes at `from` are mapped and readable, and other code accesses them only by atomics and raw copies.
pub(crate) unsafe fn copy_raw(from: *const u8, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller promises as many readable bytes at `from` as `out` has, which is borrowed mutably.
    // The instruction reads and writes no others, and changes only the registers that are named.
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
        // SAFETY: the caller promises as many readable bytes at `from` as `out` has. `AtomicU8` needs no
        // alignment, and the byte is only loaded.
        let place = unsafe { std::sync::atomic::AtomicU8::from_ptr(from.wrapping_add(i).cast_mut()) };
        *byte = place.load(std::sync::atomic::Ordering::Relaxed);
    }
}

impl fmt::Debug for ExtBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtBuf").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
