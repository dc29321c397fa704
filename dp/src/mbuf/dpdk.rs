//! Packet buffers of DPDK: chains of `rte_mbuf`.
//!
//! Rules of access:
//! - Every `rte_mbuf` of a chain is owned by one [`DpdkChain`]. Another view is a separate *indirect* mbuf
//!   that is attached to the mbuf with the storage. The mbuf with the storage counts the owners of the
//!   storage.
//! - Bytes are written only through `&mut DpdkChain`, and only while the storage has one owner. Exception:
//!   bytes that no view covers ([`DpdkChain::room`]).
//! - Bytes are read through `&DpdkChain`, so there is no `&mut` of the same view. Other views also only read
//!   the bytes.
//! - External memory (`K_F_EXTERNAL`) belongs to an [`ExtBuf`]. Only raw copies read this memory.
//!
//! Every chain is well formed. This means: `next` leads from the head through all segments to null. The head
//! has the number of segments (`nb_segs`) and the total number of bytes (`pkt_len`). The data of each segment
//! (`data_off`, `data_len`) are inside the segment's buffer (`buf_len`). The buffer is mapped while the mbuf
//! is in use, and was zeroed when it was mapped. The methods of [`DpdkChain`] and DPDK's functions keep
//! chains well formed.
//!
//! A vhost or memif *peer* shares the memory of its device, and could break these rules by writing at any
//! time. Like DPDK, this crate trusts such a peer, so do not connect an untrusted peer.

mod segment;

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use dpdk_sys as sys;
use dpdk_sys::mbuf as field;

use self::segment::DpdkSegmentMut;
pub(crate) use self::segment::{DpdkSegment, DpdkSegments};
use crate::limits::MAX_SEGMENTS;
use crate::mempool::ExtBuf;
use crate::mempool::dpdk::{DpdkPool, home};
use crate::offload::{Checksum, TxOffload};

/// Maximum number of bytes of external memory in one mbuf, whose length has 16 bits.
const MAX_EXTERNAL_BYTES: usize = u16::MAX as usize;

/// One or more linked segments.
///
/// The type is not `Sync`: if a chain has one owner, DPDK counts the second owner without an atomic
/// read-modify-write. So two threads must not [`share`](Self::share) the same chain at the same time.
pub(crate) struct DpdkChain {
    head: NonNull<sys::rte_mbuf>,
}

// SAFETY: the chain owns its mbufs, and no other thread accesses them. Storage that several chains share is
// only read, except bytes that no view covers. The number of the storage's owners is changed by atomics,
// except while there is only one owner. Any thread may return an mbuf to its mempool.
unsafe impl Send for DpdkChain {}

impl DpdkChain {
    /// Takes over an mbuf chain.
    ///
    /// # Safety
    /// `head` is the head of a well-formed chain. The mbufs of the chain are from pools that
    /// [`DpdkPool::new`] has made, and nobody else owns one of these mbufs.
    pub(crate) unsafe fn from_raw(head: NonNull<sys::rte_mbuf>) -> Self {
        Self { head }
    }

    /// Returns the mbuf chain, which `self` still owns. To take ownership, the caller has to `mem::forget`
    /// the `DpdkChain`.
    pub(crate) fn as_raw(&self) -> *mut sys::rte_mbuf {
        self.head.as_ptr()
    }

    /// Allocates an empty buffer of `pool`. Returns `None` if `pool` is empty.
    pub(crate) fn alloc(pool: &DpdkPool) -> Option<Self> {
        // SAFETY: a new mbuf is a well-formed chain of one segment, and nobody else owns it. `DpdkPool::new`
        // has made the mbuf's pool.
        pool.alloc().map(|head| unsafe { Self::from_raw(head) })
    }

    /// Allocates a buffer of `pool`. The data of the buffer are the last `front` bytes of the headroom and
    /// the `bytes` bytes behind the headroom. Returns `None` if `pool` is empty.
    pub(crate) fn alloc_filled(pool: &DpdkPool, front: usize, bytes: usize) -> Option<Self> {
        let mut chain = Self::alloc(pool)?;
        chain.reveal_front(front);
        chain.grow(bytes);
        Some(chain)
    }

    /// Makes a view of `memory`. The view needs one descriptor of `pool` per 65,535 bytes. Returns `None` if
    /// `pool` has too few free descriptors, if there are too many views of the memory, or if the chain would
    /// exceed [`MAX_SEGMENTS`].
    pub(crate) fn external(pool: &DpdkPool, memory: ExtBuf) -> Option<Self> {
        let (now, later) = (memory.len().min(MAX_EXTERNAL_BYTES), memory.len());
        let mut chain = Self::attached(pool, memory.slice(0..now)?)?;
        let mut at = now;
        while at < later {
            let end = later.min(at + MAX_EXTERNAL_BYTES);
            chain.chain(Self::attached(pool, memory.slice(at..end)?)?).ok()?;
            at = end;
        }
        Some(chain)
    }

    /// Makes a view of `memory` in one segment. `memory` has at most [`MAX_EXTERNAL_BYTES`] bytes. Returns
    /// `None` as [`external`](Self::external) does.
    fn attached(pool: &DpdkPool, memory: ExtBuf) -> Option<Self> {
        let bytes = memory.len() as u16;
        // SAFETY: a descriptor is an mbuf without room, which is a well-formed chain of one segment, and
        // nobody else owns it. `DpdkPool::new` has made the descriptor's pool.
        let mut chain = unsafe { Self::from_raw(pool.descriptor()?) };
        let shared = memory.shared().add()?;
        // SAFETY: the mbuf is in use, has no other owner, and is not attached to anything. `add` has counted
        // the mbuf as a view, so the memory is not released before DPDK has freed the mbuf and called
        // `release`.
        unsafe {
            sys::rte_pktmbuf_attach_extbuf(
                chain.as_raw(),
                memory.as_ptr().as_ptr().cast(),
                // Ports that would read by this address send a copy (`Offloads::TX_EXTERNAL`).
                sys::K_BAD_IOVA,
                bytes,
                shared,
            );
        }
        let mut head = chain.first_mut();
        head.set_data_len(bytes);
        head.set_pkt_len(u32::from(bytes));
        Some(chain)
    }

    pub(crate) fn len(&self) -> usize {
        self.first().pkt_len() as usize
    }

    pub(crate) fn segment_count(&self) -> usize {
        self.first().nb_segs() as usize
    }

    pub(crate) fn segments(&self) -> DpdkSegments<'_> {
        DpdkSegments { next: Some(self.first()) }
    }

    pub(crate) fn views(&self) -> impl Iterator<Item = DpdkSegment<'_>> {
        std::iter::successors(Some(self.first()), |segment| segment.next())
    }

    pub(crate) fn longest_segment(&self) -> usize {
        self.views().map(|segment| usize::from(segment.data_len())).max().unwrap_or(0)
    }

    pub(crate) fn head(&self) -> &[u8] {
        self.first().bytes()
    }

    pub(crate) fn head_mut(&mut self) -> Option<&mut [u8]> {
        self.first_mut().bytes_mut()
    }

    pub(crate) fn headroom(&self) -> usize {
        self.first().data_off() as usize
    }

    pub(crate) fn tailroom(&self) -> usize {
        self.last().tailroom()
    }

    pub(crate) fn prepend(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let head = self.first();
        if bytes > self.headroom() || head.storage_owners() != 1 {
            return None;
        }
        // The new start is in the headroom. The length of a buffer has 16 bits, so these sums do not
        // overflow.
        let (offset, length) = (head.data_off() - bytes as u16, head.data_len() + bytes as u16);
        let all = head.pkt_len() + bytes as u32;
        let mut head = self.first_mut();
        head.set_data_off(offset);
        head.set_data_len(length);
        head.set_pkt_len(all);
        Some(&mut head.bytes_mut()?[..bytes])
    }

    pub(crate) fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let last = self.last();
        if bytes > last.tailroom() || last.storage_owners() != 1 {
            return None;
        }
        let before = last.data_len();
        let all = self.first().pkt_len() + bytes as u32;
        self.first_mut().set_pkt_len(all);
        let mut last = self.last_mut();
        last.set_data_len(before + bytes as u16);
        Some(&mut last.bytes_mut()?[before as usize..])
    }

    /// Returns the tailroom of a chain of one segment, even if the storage is shared.
    ///
    /// # Safety
    /// During the borrow, no other view covers bytes behind the segment's data.
    pub(crate) unsafe fn room(&mut self) -> &mut [u8] {
        let head = self.first();
        let start = head.data().wrapping_add(head.data_len() as usize);
        // SAFETY: the tailroom is behind the data inside the buffer, which is mapped and initialised, since
        // the chain is well formed. The caller promises that no other view covers the tailroom, and `&mut
        // self` is borrowed while the slice is used.
        unsafe { std::slice::from_raw_parts_mut(start, head.tailroom()) }
    }

    /// Adds the first `bytes` bytes of the tailroom of a chain of one segment to the chain's data, even if
    /// the storage is shared. Returns the previous length of the data.
    pub(crate) fn grow(&mut self, bytes: usize) -> usize {
        let head = self.first();
        assert!(bytes <= head.tailroom(), "data stay inside the buffer");
        let before = head.data_len();
        let (length, all) = (before + bytes as u16, head.pkt_len() + bytes as u32);
        let mut head = self.first_mut();
        head.set_data_len(length);
        head.set_pkt_len(all);
        before as usize
    }

    /// Returns the last `bytes` bytes of the headroom, for writing. Returns `None` if the headroom has fewer
    /// bytes, or if the storage is shared.
    pub(crate) fn front(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let head = self.first();
        if bytes > self.headroom() || head.storage_owners() != 1 {
            return None;
        }
        let start = head.data().wrapping_sub(bytes);
        // SAFETY: the headroom is before the data inside the buffer, which is mapped and initialised, since
        // the chain is well formed. The headroom has at least `bytes` bytes. The only owner of the storage is
        // `self`, which is borrowed mutably while the slice is used.
        Some(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
    }

    /// Makes another view of the first `bytes` bytes of a chain of one segment, and of `front` bytes before
    /// these bytes. Returns `None` if the pool has no free descriptor.
    pub(crate) fn share_from(&self, front: usize, bytes: usize) -> Option<Self> {
        let mut view = self.share()?;
        view.truncate(bytes);
        view.reveal_front(front);
        Some(view)
    }

    /// Adds the last `bytes` bytes of the headroom to the data, even if the storage is shared.
    fn reveal_front(&mut self, bytes: usize) {
        assert!(bytes <= self.headroom(), "data stay inside the buffer");
        let head = self.first();
        // The length of a buffer has 16 bits, so these sums do not overflow.
        let (offset, length) = (head.data_off() - bytes as u16, head.data_len() + bytes as u16);
        let all = head.pkt_len() + bytes as u32;
        let mut head = self.first_mut();
        head.set_data_off(offset);
        head.set_data_len(length);
        head.set_pkt_len(all);
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "advance by {bytes} of {} bytes", self.len());
        let all = self.first().pkt_len();
        let mut left = bytes;
        loop {
            let head = self.first();
            let length = head.data_len() as usize;
            let Some(next) = head.next() else { break };
            if left < length {
                break;
            }
            left -= length;
            let next = next.raw;
            self.free_first(next);
        }
        let head = self.first();
        let (offset, length) = (head.data_off() + left as u16, head.data_len() - left as u16);
        let mut head = self.first_mut();
        head.set_data_off(offset);
        head.set_data_len(length);
        head.set_pkt_len(all - bytes as u32);
    }

    /// Frees the first segment, and makes `next`, the next segment, the head. The new head receives the
    /// chain's metadata. The caller has to set the `pkt_len` of the new head.
    fn free_first(&mut self, next: NonNull<sys::rte_mbuf>) {
        let head = self.first();
        let flags = head.ol_flags() & !STORAGE_FLAGS;
        let (offload, count) = (head.tx_offload(), head.nb_segs());
        let mut head = self.first_mut();
        head.set_next(std::ptr::null_mut());
        head.set_nb_segs(1);
        let old = std::mem::replace(&mut self.head, next);
        let kept = self.first().ol_flags() & STORAGE_FLAGS;
        let mut head = self.first_mut();
        head.set_ol_flags(flags | kept);
        head.set_tx_offload(offload);
        head.set_nb_segs(count - 1);
        // SAFETY: `old` was a segment of the chain, and is now unlinked from the chain. `old` has no next
        // segment, and nobody else owns it.
        unsafe { sys::rte_pktmbuf_free_seg(old.as_ptr()) };
    }

    /// Empties a chain of one segment and returns `true`. If the storage is shared, returns `false`.
    #[inline]
    pub(crate) fn rewind(&mut self) -> bool {
        if self.is_head_shared() {
            return false;
        }
        let mut head = self.first_mut();
        head.set_data_len(0);
        head.set_pkt_len(0);
        true
    }

    pub(crate) fn truncate(&mut self, bytes: usize) {
        if bytes >= self.len() {
            return;
        }
        let mut left = bytes;
        let mut kept = 1;
        let mut segment = self.first_mut();
        while left > segment.get().data_len() as usize {
            left -= segment.get().data_len() as usize;
            kept += 1;
            segment = segment.into_next().expect("the chain has more than `bytes`");
        }
        segment.set_data_len(left as u16);
        let rest = segment.get().next().map(|rest| rest.raw);
        segment.set_next(std::ptr::null_mut());
        let mut head = self.first_mut();
        head.set_nb_segs(kept);
        head.set_pkt_len(bytes as u32);
        if let Some(rest) = rest {
            // SAFETY: `rest` was a part of the chain, and is now unlinked from the chain. rte_pktmbuf_free
            // follows `next` to the last segment, and no segment has another owner.
            unsafe { sys::rte_pktmbuf_free(rest.as_ptr()) };
        }
    }

    pub(crate) fn chain(&mut self, tail: Self) -> Result<(), Self> {
        if self.segment_count() + tail.segment_count() > MAX_SEGMENTS {
            return Err(tail);
        }
        let (head, added) = (self.first(), tail.first());
        let (count, all) = (head.nb_segs() + added.nb_segs(), head.pkt_len() + added.pkt_len());
        self.last_mut().set_next(tail.as_raw());
        let mut head = self.first_mut();
        head.set_nb_segs(count);
        head.set_pkt_len(all);
        // The segments of `tail` belong to this chain now.
        std::mem::forget(tail);
        Ok(())
    }

    pub(crate) fn share(&self) -> Option<Self> {
        // SAFETY: the head is in use, and `DpdkPool::new` has made the head's pool. So the pool's memory and
        // its `Home` are not freed during the borrow of `self`.
        let home = unsafe { home(self.first().pool()) };
        // SAFETY: the chain is well formed and belongs to `self`, and the pool of descriptors in `home` is
        // not freed. rte_pktmbuf_clone reads the chain, and increments the number of the storage's owners. If
        // `self` is the only owner, rte_pktmbuf_clone increments the number without an atomic
        // read-modify-write, but only in this thread, since `DpdkChain` is not `Sync`.
        let view = unsafe { sys::rte_pktmbuf_clone(self.as_raw(), home.descriptors) };
        let Some(view) = NonNull::new(view) else {
            home.exhausted.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        // SAFETY: the clone is a well-formed chain of new mbufs from `home.descriptors`, which
        // `DpdkPool::new` has made.
        Some(unsafe { Self::from_raw(view) })
    }

    pub(crate) fn is_shared(&self) -> bool {
        self.views().any(|segment| segment.storage_owners() != 1)
    }

    /// Whether the first segment's storage is shared. A driver must not write headers into shared storage.
    pub(crate) fn is_head_shared(&self) -> bool {
        self.first().storage_owners() != 1
    }

    pub(crate) fn rx_checksum(&self) -> Checksum {
        match self.first().ol_flags() & sys::K_F_RX_L4_CKSUM_MASK {
            sys::K_F_RX_L4_CKSUM_GOOD => Checksum::Good,
            sys::K_F_RX_L4_CKSUM_BAD => Checksum::Bad,
            sys::K_F_RX_L4_CKSUM_NONE => Checksum::Partial,
            _ => Checksum::Unknown,
        }
    }

    pub(crate) fn set_rx_checksum(&mut self, state: Checksum) {
        let flags = match state {
            Checksum::Unknown => 0,
            Checksum::Good => sys::K_F_RX_L4_CKSUM_GOOD,
            Checksum::Bad => sys::K_F_RX_L4_CKSUM_BAD,
            Checksum::Partial => sys::K_F_RX_L4_CKSUM_NONE,
        };
        self.replace_flags(sys::K_F_RX_L4_CKSUM_MASK, flags);
    }

    pub(crate) fn tx_offload(&self) -> TxOffload {
        let (flags, packed) = (self.first().ol_flags(), self.first().tx_offload());
        let (l2_bytes, l3_bytes, l4_bytes, segment) = field::unpack_tx_offload(packed);
        let cuts = flags & sys::K_F_TX_TCP_SEG != 0;
        TxOffload {
            ipv4_checksum: flags & sys::K_F_TX_IP_CKSUM != 0,
            tcp_checksum: flags & sys::K_F_TX_L4_MASK == sys::K_F_TX_TCP_CKSUM,
            ipv6: flags & sys::K_F_TX_IPV6 != 0,
            tso_segment_bytes: if cuts { segment } else { 0 },
            l2_bytes,
            l3_bytes,
            l4_bytes,
        }
    }

    pub(crate) fn set_tx_offload(&mut self, offload: TxOffload) {
        let TxOffload { ipv4_checksum, tcp_checksum, ipv6, tso_segment_bytes, l2_bytes, l3_bytes, l4_bytes } =
            offload;
        let cuts = tso_segment_bytes != 0;
        let mut flags = 0;
        if ipv4_checksum {
            flags |= sys::K_F_TX_IP_CKSUM;
        }
        // In DPDK, TSO implies the TCP checksum, but some drivers check both flags.
        if tcp_checksum || cuts {
            flags |= sys::K_F_TX_TCP_CKSUM;
        }
        if cuts {
            flags |= sys::K_F_TX_TCP_SEG;
        }
        if ipv6 {
            flags |= sys::K_F_TX_IPV6;
        } else if flags != 0 {
            flags |= sys::K_F_TX_IPV4;
        }
        self.replace_flags(TX_FLAGS, flags);
        let packed = field::pack_tx_offload(l2_bytes, l3_bytes, l4_bytes, tso_segment_bytes);
        self.first_mut().set_tx_offload(packed);
    }

    /// Whether the chain requests any offload.
    pub(crate) fn wants_offload(&self) -> bool {
        self.first().ol_flags() & TX_FLAGS != 0
    }

    fn replace_flags(&mut self, mask: u64, flags: u64) {
        let flags = self.first().ol_flags() & !mask | flags;
        self.first_mut().set_ol_flags(flags);
    }

    fn first(&self) -> DpdkSegment<'_> {
        DpdkSegment { raw: self.head, chain: PhantomData }
    }

    fn first_mut(&mut self) -> DpdkSegmentMut<'_> {
        DpdkSegmentMut { raw: self.head, chain: PhantomData }
    }

    fn last(&self) -> DpdkSegment<'_> {
        self.views().last().unwrap_or(self.first())
    }

    fn last_mut(&mut self) -> DpdkSegmentMut<'_> {
        DpdkSegmentMut { raw: self.last().raw, chain: PhantomData }
    }
}

/// The flags that [`DpdkChain::set_tx_offload`] sets.
const TX_FLAGS: u64 =
    sys::K_F_TX_IP_CKSUM | sys::K_F_TX_L4_MASK | sys::K_F_TX_TCP_SEG | sys::K_F_TX_IPV4 | sys::K_F_TX_IPV6;

/// Flags that describe a segment's storage. A change of the metadata does not change these flags.
const STORAGE_FLAGS: u64 = sys::K_F_INDIRECT | sys::K_F_EXTERNAL;

impl Drop for DpdkChain {
    fn drop(&mut self) {
        // In a forked child the memory is shared with the parent, or is a copy, so nothing is freed.
        if crate::eal::is_forked() {
            return;
        }
        // SAFETY: the chain is well formed, nobody else owns its mbufs, and nobody uses it any more.
        unsafe { sys::rte_pktmbuf_free(self.as_raw()) };
    }
}
