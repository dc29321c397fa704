//! Packet buffers of DPDK: chains of `rte_mbuf`.
//!
//! Rules of access:
//! - Every `rte_mbuf` of a chain is owned by one [`DpdkChain`]. A further view is an *indirect* mbuf of its
//!   own, attached to the one with the storage, which counts its owners.
//! - Bytes are written only through `&mut DpdkChain`, and only while the storage has one owner.
//! - They are read through `&DpdkChain`, which excludes that; other views only read as well.
//!
//! These rules cannot cover a vhost or memif *peer*, which shares the memory of its device and could
//! write at any time. DPDK trusts such a peer, and so do we; do not connect untrusted ones.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;

use dpdk_sys as sys;
use dpdk_sys::mbuf as field;

use crate::limits::MAX_SEGMENTS;
use crate::mempool::ExtBuf;
use crate::mempool::dpdk::{DpdkPool, home};
use crate::offload::{Checksum, TxOffload};

/// One or more linked segments.
pub(crate) struct DpdkChain {
    head: NonNull<sys::rte_mbuf>,
}

// SAFETY: the chain owns its mbufs, and pools take them back from any thread; storage counts its owners
// atomically.
unsafe impl Send for DpdkChain {}
// SAFETY: `&DpdkChain` only reads, except for the owner counts, which are atomic.
unsafe impl Sync for DpdkChain {}

impl DpdkChain {
    /// Takes over an mbuf chain.
    ///
    /// # Safety
    /// `head` is the head of a well-formed chain, of pools made by [`DpdkPool::new`], that nobody else owns.
    pub(crate) unsafe fn from_raw(head: NonNull<sys::rte_mbuf>) -> Self {
        Self { head }
    }

    /// The mbuf chain, still owned by `self`: to take ownership, the caller must `mem::forget` this.
    pub(crate) fn as_raw(&self) -> *mut sys::rte_mbuf {
        self.head.as_ptr()
    }

    /// An empty buffer of `pool`.
    pub(crate) fn alloc(pool: &DpdkPool) -> Option<Self> {
        // SAFETY: a chain of one, which is new and has no other owner.
        pool.alloc().map(|head| unsafe { Self::from_raw(head) })
    }

    /// A copy of `memory` in buffers of `pool`: devices can access only DPDK's memory.
    pub(crate) fn external(pool: &DpdkPool, memory: &ExtBuf) -> Option<Self> {
        let mut copy = Self::alloc(pool)?;
        copy.append_chained(pool, memory.as_slice()).then_some(copy)
    }

    /// Appends `bytes`, chaining further buffers of `pool` as needed. `false` if no buffer is free or
    /// the chain would become too long; part of the bytes are then appended.
    pub(crate) fn append_chained(&mut self, pool: &DpdkPool, mut bytes: &[u8]) -> bool {
        loop {
            let (now, later) = bytes.split_at(bytes.len().min(self.tailroom()));
            if !now.is_empty() {
                match self.append(now.len()) {
                    Some(room) => room.copy_from_slice(now),
                    None => return false,
                }
            }
            if later.is_empty() {
                return true;
            }
            bytes = later;
            let Some(next) = Self::alloc(pool) else { return false };
            if self.chain(next).is_err() {
                return false;
            }
        }
    }

    pub(crate) fn len(&self) -> usize {
        // SAFETY: the chain owns its head.
        unsafe { field::pkt_len(self.as_raw()) as usize }
    }

    pub(crate) fn segment_count(&self) -> usize {
        // SAFETY: the chain owns its head.
        unsafe { field::nb_segs(self.as_raw()) as usize }
    }

    pub(crate) fn segments(&self) -> DpdkSegments<'_> {
        DpdkSegments { next: self.as_raw(), chain: PhantomData }
    }

    pub(crate) fn head(&self) -> &[u8] {
        // SAFETY: the chain owns its head.
        unsafe { bytes(self.as_raw()) }
    }

    pub(crate) fn head_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: the chain owns its head, borrowed mutably.
        unsafe { bytes_mut(self.as_raw()) }
    }

    pub(crate) fn headroom(&self) -> usize {
        // SAFETY: the chain owns its head.
        unsafe { field::data_off(self.as_raw()) as usize }
    }

    pub(crate) fn tailroom(&self) -> usize {
        let last = self.last();
        // SAFETY: a segment of the chain; DPDK keeps data_off + data_len <= buf_len.
        unsafe { (field::buf_len(last) - field::data_off(last) - field::data_len(last)) as usize }
    }

    pub(crate) fn prepend(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let head = self.as_raw();
        // SAFETY: the chain owns its head; the new start lies in the headroom. buf_len is 16 bits, so are the
        // sums.
        unsafe {
            if bytes > self.headroom() || field::storage_owners(head) != 1 {
                return None;
            }
            field::set_data_off(head, field::data_off(head) - bytes as u16);
            field::set_data_len(head, field::data_len(head) + bytes as u16);
            field::set_pkt_len(head, field::pkt_len(head) + bytes as u32);
            Some(&mut bytes_mut(head)?[..bytes])
        }
    }

    pub(crate) fn append(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let (head, last) = (self.as_raw(), self.last());
        // SAFETY: segments of the chain; the new end lies in the tailroom.
        unsafe {
            if bytes > self.tailroom() || field::storage_owners(last) != 1 {
                return None;
            }
            let before = field::data_len(last);
            field::set_data_len(last, before + bytes as u16);
            field::set_pkt_len(head, field::pkt_len(head) + bytes as u32);
            Some(&mut bytes_mut(last)?[before as usize..])
        }
    }

    /// The tailroom of a chain of one segment, even if the storage is shared.
    ///
    /// # Safety
    /// No other view covers bytes behind the segment's data.
    pub(crate) unsafe fn room(&mut self) -> &mut [u8] {
        let head = self.as_raw();
        let bytes = self.tailroom();
        // SAFETY: the tailroom of a segment that the chain owns is inside the buffer, which is mapped and was
        // zeroed then. By this function's contract no other view covers it.
        unsafe {
            std::slice::from_raw_parts_mut(field::data(head).add(field::data_len(head) as usize), bytes)
        }
    }

    /// Makes the first bytes of the tailroom of a chain of one segment data, even if the storage is
    /// shared.
    pub(crate) fn grow(&mut self, bytes: usize) {
        assert!(bytes <= self.tailroom(), "data stay inside the buffer");
        let head = self.as_raw();
        // SAFETY: the chain owns its head; the new end lies in the tailroom.
        unsafe {
            field::set_data_len(head, field::data_len(head) + bytes as u16);
            field::set_pkt_len(head, field::pkt_len(head) + bytes as u32);
        }
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "advance by {bytes} of {} bytes", self.len());
        let mut left = bytes;
        // SAFETY: segments of the chain. A segment is unlinked before it is freed, and the head's metadata
        // move to the next one.
        unsafe {
            let all = field::pkt_len(self.as_raw());
            loop {
                let head = self.as_raw();
                let length = field::data_len(head) as usize;
                let Some(next) = NonNull::new(field::next(head)) else { break };
                if left < length {
                    break;
                }
                left -= length;
                move_metadata(head, next.as_ptr());
                field::set_nb_segs(next.as_ptr(), field::nb_segs(head) - 1);
                self.head = next;
                field::set_next(head, std::ptr::null_mut());
                field::set_nb_segs(head, 1);
                sys::rte_pktmbuf_free_seg(head);
            }
            let head = self.as_raw();
            field::set_data_off(head, field::data_off(head) + left as u16);
            field::set_data_len(head, field::data_len(head) - left as u16);
            field::set_pkt_len(head, all - bytes as u32);
        }
    }

    pub(crate) fn truncate(&mut self, bytes: usize) {
        if bytes >= self.len() {
            return;
        }
        let head = self.as_raw();
        let mut left = bytes;
        let mut kept = 1;
        // SAFETY: segments of the chain, which has more than `bytes` bytes, so the walk ends inside it. What
        // is cut off is a chain of its own for rte_pktmbuf_free, which follows `next`.
        unsafe {
            let mut segment = head;
            while left > field::data_len(segment) as usize {
                left -= field::data_len(segment) as usize;
                kept += 1;
                segment = field::next(segment);
            }
            let rest = field::next(segment);
            field::set_data_len(segment, left as u16);
            field::set_next(segment, std::ptr::null_mut());
            field::set_nb_segs(head, kept);
            field::set_pkt_len(head, bytes as u32);
            if !rest.is_null() {
                sys::rte_pktmbuf_free(rest);
            }
        }
    }

    pub(crate) fn chain(&mut self, tail: Self) -> Result<(), Self> {
        if self.segment_count() + tail.segment_count() > MAX_SEGMENTS {
            return Err(tail);
        }
        let (head, last, added) = (self.as_raw(), self.last(), tail.as_raw());
        // SAFETY: both chains are owned; `tail` is given up, its segments are now of this chain.
        unsafe {
            field::set_next(last, added);
            field::set_nb_segs(head, field::nb_segs(head) + field::nb_segs(added));
            field::set_pkt_len(head, field::pkt_len(head) + field::pkt_len(added));
        }
        std::mem::forget(tail);
        Ok(())
    }

    pub(crate) fn share(&self) -> Option<Self> {
        // SAFETY: the chain owns its head, so its pool lives. rte_pktmbuf_clone reads the chain and counts up
        // the owners of its storage; the clone is ours.
        unsafe {
            let home = home(field::pool(self.as_raw()));
            let view = NonNull::new(sys::rte_pktmbuf_clone(self.as_raw(), home.descriptors));
            if view.is_none() {
                home.exhausted.fetch_add(1, Ordering::Relaxed);
            }
            view.map(|head| Self::from_raw(head))
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        // SAFETY: segments of the chain.
        self.raw_segments().any(|segment| unsafe { field::storage_owners(segment) != 1 })
    }

    /// Whether the first segment's storage is shared: a driver may not write headers into it then.
    pub(crate) fn is_head_shared(&self) -> bool {
        // SAFETY: the chain owns its head.
        unsafe { field::storage_owners(self.as_raw()) != 1 }
    }

    pub(crate) fn rx_checksum(&self) -> Checksum {
        // SAFETY: the chain owns its head.
        match unsafe { field::ol_flags(self.as_raw()) } & sys::K_F_RX_L4_CKSUM_MASK {
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
        // SAFETY: the chain owns its head.
        let (flags, packed) = unsafe { (field::ol_flags(self.as_raw()), field::tx_offload(self.as_raw())) };
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
        // DPDK: TSO implies the TCP checksum, but some drivers test for both flags.
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
        // SAFETY: the chain owns its head.
        unsafe { field::set_tx_offload(self.as_raw(), packed) };
    }

    /// Whether any offload is requested.
    pub(crate) fn wants_offload(&self) -> bool {
        // SAFETY: the chain owns its head.
        unsafe { field::ol_flags(self.as_raw()) & TX_FLAGS != 0 }
    }

    fn replace_flags(&mut self, mask: u64, flags: u64) {
        // SAFETY: the chain owns its head.
        unsafe { field::set_ol_flags(self.as_raw(), field::ol_flags(self.as_raw()) & !mask | flags) };
    }

    fn raw_segments(&self) -> impl Iterator<Item = *mut sys::rte_mbuf> {
        std::iter::successors(Some(self.as_raw()), |&segment| {
            // SAFETY: a segment of the chain; `next` is the following one or null.
            let next = unsafe { field::next(segment) };
            (!next.is_null()).then_some(next)
        })
    }

    fn last(&self) -> *mut sys::rte_mbuf {
        self.raw_segments().last().unwrap_or(self.as_raw())
    }
}

/// The flags that [`DpdkChain::set_tx_offload`] sets.
const TX_FLAGS: u64 =
    sys::K_F_TX_IP_CKSUM | sys::K_F_TX_L4_MASK | sys::K_F_TX_TCP_SEG | sys::K_F_TX_IPV4 | sys::K_F_TX_IPV6;

/// Flags that describe a segment's storage; they stay with the segment.
const STORAGE_FLAGS: u64 = sys::K_F_INDIRECT | sys::K_F_EXTERNAL;

/// Copies the chain's metadata, except the counts, from the old head `from` to the new head `to`.
///
/// # Safety
/// Both are segments of a chain that the caller owns.
unsafe fn move_metadata(from: *mut sys::rte_mbuf, to: *mut sys::rte_mbuf) {
    // SAFETY: by this function's contract the caller owns both segments.
    unsafe {
        let kept = field::ol_flags(to) & STORAGE_FLAGS;
        field::set_ol_flags(to, field::ol_flags(from) & !STORAGE_FLAGS | kept);
        field::set_tx_offload(to, field::tx_offload(from));
    }
}

/// # Safety
/// `segment` belongs to a chain that is borrowed for `'a`.
unsafe fn bytes<'a>(segment: *mut sys::rte_mbuf) -> &'a [u8] {
    // SAFETY: DPDK keeps the data inside the buffer, which is mapped and was zeroed when it was; nobody
    // writes it during the borrow (the module's rules).
    unsafe { std::slice::from_raw_parts(field::data(segment), field::data_len(segment) as usize) }
}

/// The bytes for writing; `None` if the storage is shared.
///
/// # Safety
/// `segment` belongs to a chain that is borrowed mutably for `'a`.
unsafe fn bytes_mut<'a>(segment: *mut sys::rte_mbuf) -> Option<&'a mut [u8]> {
    // SAFETY: the data are inside the buffer, mapped and initialised, as in `bytes`. With one owner of the
    // storage no other view of these bytes exists, or can be made during the borrow.
    unsafe {
        if field::storage_owners(segment) != 1 {
            return None;
        }
        Some(std::slice::from_raw_parts_mut(field::data(segment), field::data_len(segment) as usize))
    }
}

impl Drop for DpdkChain {
    fn drop(&mut self) {
        // In a forked child the memory is shared with the parent, or a copy of it: do not touch it.
        if crate::eal::is_forked() {
            return;
        }
        // SAFETY: the chain owns its mbufs, and is dropped.
        unsafe { sys::rte_pktmbuf_free(self.as_raw()) };
    }
}

/// The bytes of each segment, in order.
#[derive(Clone)]
pub(crate) struct DpdkSegments<'a> {
    next: *mut sys::rte_mbuf,
    chain: PhantomData<&'a DpdkChain>,
}

impl<'a> Iterator for DpdkSegments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.next.is_null() {
            return None;
        }
        // SAFETY: a segment of the chain, which is borrowed for 'a.
        unsafe {
            let segment = bytes(self.next);
            self.next = field::next(self.next);
            Some(segment)
        }
    }
}
