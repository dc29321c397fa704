//! The packet buffer: an owned chain of segments with headroom.
//!
//! All backends use the same concrete type. An [`Mbuf`] is a view (offset and length for each segment) of
//! storage that may have several owners. [`Mbuf::share`] makes another view of the same bytes. While there is
//! more than one view, the bytes are read-only. Views are independent: trimming a view does not change other
//! views.
//!
//! An [`Mbuf`] contains either a buffer of a heap pool (`heap.rs`) or a DPDK `rte_mbuf` (`dpdk.rs`).

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;

#[cfg(feature = "dpdk")]
pub(crate) mod dpdk;
pub(crate) mod heap;
mod view;

use std::fmt;

use self::view::{View, copy_views};
use crate::Mempool;
use crate::mempool::Backend;

pub use crate::limits::{HEADROOM, MAX_SEGMENTS};
pub use crate::mempool::ExtBuf;
pub use crate::offload::{Checksum, TxOffload};
pub use view::Part;

/// An owned packet buffer of at least one segment.
///
/// Dropping an `Mbuf` frees the storage of each segment that has no other view.
///
/// The type is `Send` and not `Sync`: DPDK counts the second view of a buffer without an atomic
/// read-modify-write. So two threads must not [`share`](Self::share) the same `Mbuf` at the same time. Each
/// thread needs its own view.
pub struct Mbuf {
    raw: Raw,
}

/// The chain of one backend. The methods of the two chain types have the same names, so that `each!` works
/// for both.
pub(crate) enum Raw {
    Heap(heap::HeapChain),
    #[cfg(feature = "dpdk")]
    Dpdk(dpdk::DpdkChain),
}

/// Evaluates one expression for the chain of either backend.
macro_rules! each {
    ($raw:expr, $chain:ident => $result:expr) => {
        match $raw {
            Raw::Heap($chain) => $result,
            #[cfg(feature = "dpdk")]
            Raw::Dpdk($chain) => $result,
        }
    };
}

impl Mempool {
    /// Allocates an empty buffer with [`HEADROOM`] bytes in front. If the pool is empty, counts the failure
    /// and returns `None`.
    pub fn alloc(&self) -> Option<Mbuf> {
        match &self.backend {
            Backend::Heap(pool) => Some(Mbuf::from_raw(Raw::Heap(heap::HeapChain::alloc(pool)?))),
            #[cfg(feature = "dpdk")]
            Backend::Dpdk(pool) => Some(Mbuf::from_raw(Raw::Dpdk(dpdk::DpdkChain::alloc(pool)?))),
        }
    }

    /// Allocates a buffer whose data are the last `front` bytes of the headroom and the `bytes` bytes behind
    /// the headroom. The contents of the data are unspecified. If the pool is empty, counts the failure and
    /// returns `None`. This function is for a frame of known length: `front` is the length of the frame's
    /// headers.
    ///
    /// ```
    /// # use dp::Mempool;
    /// let pool = Mempool::heap("frames", 1, 64);
    /// let frame = pool.alloc_filled(14, 64).unwrap();
    /// assert_eq!((frame.len(), frame.headroom(), frame.tailroom()), (78, dp::mbuf::HEADROOM - 14, 0));
    /// ```
    ///
    /// # Panics
    /// If the headroom has fewer than `front` bytes, or if the buffer has fewer than `bytes` bytes.
    #[inline]
    pub fn alloc_filled(&self, front: usize, bytes: usize) -> Option<Mbuf> {
        match &self.backend {
            Backend::Heap(pool) => {
                Some(Mbuf::from_raw(Raw::Heap(heap::HeapChain::alloc_filled(pool, front, bytes)?)))
            }
            #[cfg(feature = "dpdk")]
            Backend::Dpdk(pool) => {
                Some(Mbuf::from_raw(Raw::Dpdk(dpdk::DpdkChain::alloc_filled(pool, front, bytes)?)))
            }
        }
    }
}

impl Mbuf {
    /// Makes a view of the whole `memory`. The view keeps the owner of the memory alive. Returns `None` if
    /// `pool` has no free descriptor. With a DPDK pool, also returns `None` if there are too many views of
    /// the memory, or if the memory needs more than [`MAX_SEGMENTS`] segments (of 65,535 bytes each). The
    /// view is meant to be chained behind a buffer with the headers, and then sent. The bytes of the view can
    /// be [copied](Self::copy_to), but are not available as slices. A port without
    /// [`TX_EXTERNAL`](crate::Offloads::TX_EXTERNAL) sends a copy.
    pub fn external(pool: &Mempool, memory: ExtBuf) -> Option<Self> {
        match &pool.backend {
            Backend::Heap(pool) => Some(Self::from_raw(Raw::Heap(heap::HeapChain::external(pool, memory)?))),
            #[cfg(feature = "dpdk")]
            Backend::Dpdk(pool) => Some(Self::from_raw(Raw::Dpdk(dpdk::DpdkChain::external(pool, memory)?))),
        }
    }

    #[inline]
    pub(crate) fn from_raw(raw: Raw) -> Self {
        Self { raw }
    }

    pub(crate) fn into_raw(self) -> Raw {
        self.raw
    }

    /// Returns the chain if it is in DPDK's memory.
    #[cfg(feature = "dpdk")]
    #[inline]
    pub(crate) fn as_dpdk(&self) -> Option<&dpdk::DpdkChain> {
        match &self.raw {
            Raw::Dpdk(chain) => Some(chain),
            Raw::Heap(_) => None,
        }
    }

    /// Total number of bytes of all segments.
    #[inline]
    pub fn len(&self) -> usize {
        each!(&self.raw, chain => chain.len())
    }

    /// Whether the segments have no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of segments in the chain, at least 1.
    #[inline]
    pub fn segment_count(&self) -> usize {
        each!(&self.raw, chain => chain.segment_count())
    }

    /// The bytes of each segment, in order. Some segments may be empty.
    ///
    /// The iterator panics at a segment of external memory. Only frames that [`LocalPort`](crate::local) has
    /// received may have such segments: see [`into_private`](Self::into_private).
    #[inline]
    pub fn segments(&self) -> Segments<'_> {
        Segments(match &self.raw {
            Raw::Heap(chain) => RawSegments::Heap(chain.segments()),
            #[cfg(feature = "dpdk")]
            Raw::Dpdk(chain) => RawSegments::Dpdk(chain.segments()),
        })
    }

    /// The first segment's bytes.
    ///
    /// # Panics
    /// If the first segment is a view of external memory.
    #[inline]
    pub fn head(&self) -> &[u8] {
        each!(&self.raw, chain => chain.head())
    }

    /// The first segment's bytes, for writing. `None` while the storage is shared.
    #[inline]
    pub fn head_mut(&mut self) -> Option<&mut [u8]> {
        each!(&mut self.raw, chain => chain.head_mut())
    }

    /// Number of free bytes in front of the first segment's data. 0 for external memory.
    #[inline]
    pub fn headroom(&self) -> usize {
        each!(&self.raw, chain => chain.headroom())
    }

    /// Number of free bytes behind the last segment's data. 0 for external memory.
    #[inline]
    pub fn tailroom(&self) -> usize {
        each!(&self.raw, chain => chain.tailroom())
    }

    /// Adds `bytes` bytes at the front of the first segment, and returns these bytes, whose contents are
    /// unspecified. Returns `None` if the headroom is too small or the storage is shared.
    #[inline]
    pub fn prepend(&mut self, bytes: usize) -> Option<&mut [u8]> {
        each!(&mut self.raw, chain => chain.prepend(bytes))
    }

    /// Adds `bytes` bytes at the end of the last segment, and returns these bytes, whose contents are
    /// unspecified. Returns `None` if the tailroom is too small or the storage is shared.
    #[inline]
    pub fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        each!(&mut self.raw, chain => chain.append(bytes))
    }

    /// Removes `bytes` bytes from the front, and frees segments that become empty, except the last segment.
    /// The call works with shared storage, since only the view changes.
    ///
    /// # Panics
    /// If the chain has fewer than `bytes` bytes.
    #[inline]
    pub fn advance(&mut self, bytes: usize) {
        each!(&mut self.raw, chain => chain.advance(bytes));
    }

    /// Keeps only the first `bytes` bytes. The call has no effect if there are fewer bytes.
    #[inline]
    pub fn truncate(&mut self, bytes: usize) {
        each!(&mut self.raw, chain => chain.truncate(bytes));
    }

    /// Appends the segments of `tail`, which must be of the same backend (both heap or both DPDK). The chain
    /// keeps the metadata of its head.
    ///
    /// # Errors
    /// Returns `tail` if the chain would exceed [`MAX_SEGMENTS`] or if the backends differ.
    pub fn chain(&mut self, tail: Self) -> Result<(), Self> {
        match (&mut self.raw, tail.raw) {
            (Raw::Heap(chain), Raw::Heap(tail)) => {
                chain.chain(tail).map_err(|tail| Self { raw: Raw::Heap(tail) })
            }
            #[cfg(feature = "dpdk")]
            (Raw::Dpdk(chain), Raw::Dpdk(tail)) => {
                chain.chain(tail).map_err(|tail| Self { raw: Raw::Dpdk(tail) })
            }
            #[cfg(feature = "dpdk")]
            (Raw::Heap(_) | Raw::Dpdk(_), tail) => Err(Self { raw: tail }),
        }
    }

    /// Makes another view of the same bytes and metadata. Returns `None` if a pool has no free descriptor.
    pub fn share(&self) -> Option<Self> {
        match &self.raw {
            Raw::Heap(chain) => Some(Self { raw: Raw::Heap(chain.share()?) }),
            #[cfg(feature = "dpdk")]
            Raw::Dpdk(chain) => Some(Self { raw: Raw::Dpdk(chain.share()?) }),
        }
    }

    /// Whether any segment is a view of external memory.
    #[inline]
    pub fn has_external(&self) -> bool {
        each!(&self.raw, chain => chain.views().any(|view| view.is_external()))
    }

    /// Calls `take` with the parts of at most `len` bytes from `offset` on, in order. A part has bytes of one
    /// segment, which may be in external memory. No part is empty.
    ///
    /// # Errors
    /// The first error that `take` returns.
    #[inline]
    pub fn try_each_part<'a, E>(
        &'a self,
        offset: usize,
        len: usize,
        take: impl FnMut(Part<'a>) -> Result<(), E>,
    ) -> Result<(), E> {
        each!(&self.raw, chain => view::try_each_part(chain.views(), (offset, len), take))
    }

    /// Returns a frame whose bytes no other process can change: the frame itself, or a copy if the frame has
    /// external memory. The copy is made in the pool of which the first view of external memory is. Returns
    /// `None` if this pool has too few buffers, or if the external memory is in a chain of DPDK's.
    pub fn into_private(self) -> Option<Self> {
        if !self.has_external() {
            return Some(self);
        }
        match &self.raw {
            Raw::Heap(chain) => {
                let pool = Mempool { backend: Backend::Heap(chain.pool_of_external()?) };
                self.deep_copy(&pool)
            }
            #[cfg(feature = "dpdk")]
            Raw::Dpdk(_) => None,
        }
    }

    /// Whether any segment's storage has another owner. External memory always has another owner.
    #[inline]
    pub fn is_shared(&self) -> bool {
        each!(&self.raw, chain => chain.is_shared())
    }

    /// Copies at most `out.len()` bytes from `offset` on. Returns the number of copied bytes.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) -> usize {
        each!(&self.raw, chain => copy_views(chain.views(), offset, out))
    }

    /// Calls `take` with the address and length of each segment that is not empty, in order. While the frame
    /// exists, raw copies may read the memory, for instance the copies of a system call.
    #[cfg(target_os = "linux")]
    #[inline]
    pub(crate) fn for_each_part(&self, mut take: impl FnMut(*const u8, usize)) {
        each!(&self.raw, chain => chain.views().filter(|view| view.len() > 0).for_each(|view| take(view.start(), view.len())));
    }

    /// Copies the bytes and metadata into as few buffers of `pool` as possible. Returns `None` if the pool
    /// has too few buffers, or if the copy would exceed [`MAX_SEGMENTS`].
    pub fn deep_copy(&self, pool: &Mempool) -> Option<Self> {
        self.copy_to_buffers(pool, pool.data_bytes())
    }

    /// Makes a copy like [`Mbuf::deep_copy`], with at most `most` bytes of data in each buffer. Returns
    /// `None` as [`Mbuf::deep_copy`] does.
    pub(crate) fn copy_to_buffers(&self, pool: &Mempool, most: usize) -> Option<Self> {
        let mut copy: Option<Self> = None;
        let mut done = 0;
        while copy.is_none() || done < self.len() {
            let mut part = pool.alloc()?;
            let room = part.append((self.len() - done).min(most))?;
            let copied = self.copy_to(done, room);
            if copied == 0 && !self.is_empty() {
                return None;
            }
            done += copied;
            match &mut copy {
                Some(chain) => chain.chain(part).ok()?,
                None => copy = Some(part),
            }
        }
        let mut copy = copy?;
        copy.set_rx_checksum(self.rx_checksum());
        copy.set_tx_offload(self.tx_offload());
        Some(copy)
    }

    /// Appends `bytes` to the last segment and returns `true`. Returns `false` and appends nothing if
    /// [`Mbuf::append`] returns `None`.
    #[must_use]
    pub fn append_slice(&mut self, bytes: &[u8]) -> bool {
        match self.append(bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                true
            }
            None => false,
        }
    }

    /// The state of a received frame's TCP checksum.
    #[inline]
    pub fn rx_checksum(&self) -> Checksum {
        each!(&self.raw, chain => chain.rx_checksum())
    }

    /// Sets the state that [`Mbuf::rx_checksum`] returns.
    #[inline]
    pub fn set_rx_checksum(&mut self, state: Checksum) {
        each!(&mut self.raw, chain => chain.set_rx_checksum(state));
    }

    /// The offloads that this frame requests from the port that sends it. Default: none.
    #[inline]
    pub fn tx_offload(&self) -> TxOffload {
        each!(&self.raw, chain => chain.tx_offload())
    }

    /// Sets the offloads that this frame requests from the port that sends it.
    #[inline]
    pub fn set_tx_offload(&mut self, offload: TxOffload) {
        each!(&mut self.raw, chain => chain.set_tx_offload(offload));
    }
}

impl fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbuf")
            .field("bytes", &self.len())
            .field("segments", &self.segment_count())
            .finish_non_exhaustive()
    }
}

/// The bytes of an [`Mbuf`]'s segments, in order.
#[derive(Clone)]
pub struct Segments<'a>(RawSegments<'a>);

#[derive(Clone)]
enum RawSegments<'a> {
    Heap(heap::HeapSegments<'a>),
    #[cfg(feature = "dpdk")]
    Dpdk(dpdk::DpdkSegments<'a>),
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        match &mut self.0 {
            RawSegments::Heap(segments) => segments.next(),
            #[cfg(feature = "dpdk")]
            RawSegments::Dpdk(segments) => segments.next(),
        }
    }
}
