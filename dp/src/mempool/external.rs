//! External memory, sent from where it is.

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Read-only bytes and their owner: the storage of [`Mbuf::external`](crate::Mbuf::external).
///
/// Cheap to clone; the owner is dropped with the last clone and the last view in an
/// [`Mbuf`](crate::Mbuf).
#[derive(Clone)]
pub struct ExtBuf {
    start: NonNull<u8>,
    bytes: usize,
    owner: Arc<dyn Send + Sync>,
}

// SAFETY: nobody writes the bytes while an `ExtBuf` exists (`new` has the argument, callers of `from_raw`
// promise it), so any thread may read them. The owner is `Send + Sync`, so any thread may drop it.
unsafe impl Send for ExtBuf {}
// SAFETY: through `&ExtBuf` the bytes are only read, and nobody writes them while it exists (`new` has the
// argument, callers of `from_raw` promise it). The owner is `Send + Sync`, so it may be cloned from any
// thread.
unsafe impl Sync for ExtBuf {}

impl ExtBuf {
    /// All bytes of `owner`.
    pub fn new<T: AsRef<[u8]> + Send + Sync + 'static>(owner: Arc<T>) -> Self {
        // The pointer outlives this borrow. It stays good: we hold a clone of the `Arc`, so nobody gets `&mut
        // T` or a `T` by value, and through `&T` safe code cannot invalidate a `&[u8]` it may have lent out.
        let (start, bytes) = {
            let bytes: &[u8] = (*owner).as_ref();
            (NonNull::from(bytes).cast(), bytes.len())
        };
        Self { start, bytes, owner }
    }

    /// `bytes` bytes from `start` on, kept alive by `owner`.
    ///
    /// # Safety
    /// While `owner` lives, the bytes are one allocation, initialised, and may be read from any thread. Until
    /// the last clone and view of them has gone, nobody writes them, neither a peer nor the application: they
    /// are shown as `&[u8]`.
    pub unsafe fn from_raw(start: NonNull<u8>, bytes: usize, owner: Arc<dyn Send + Sync>) -> Self {
        Self { start, bytes, owner }
    }

    /// The part `range` of it; `None` if it reaches past the end.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.bytes {
            return None;
        }
        // SAFETY: `range.start` is at most `range.end`, which is at most `bytes`. So the address lies inside
        // the memory, which is one allocation, or one past its end.
        let start = unsafe { self.start.add(range.start) };
        Some(Self { start, bytes: range.len(), owner: Arc::clone(&self.owner) })
    }

    /// All bytes. Nobody writes them while `self` or another clone exists.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: while the owner lives, the bytes are readable, initialised and not written (`new` has the
        // argument, callers of `from_raw` promise it; `slice` stays inside). The slice is bound to the borrow
        // of `self`, which holds the owner.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
}

impl fmt::Debug for ExtBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExtBuf").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
