//! Fields of `struct rte_mbuf`, by offsets computed by the C compiler at build time.
//!
//! The field paths differ between releases (flat in 22.11, nested anonymous structs from 24.11 on), and
//! a C accessor would cost a call. Multi-byte fields are in host order. Nothing here follows a pointer
//! other than its arguments.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU16, Ordering};

use crate::bindings::*;

macro_rules! field {
    ($(#[$doc:meta])* $read:ident, $write:ident, $offset:ident, $type:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// `m` points to an mbuf of a live pool, and nobody writes the field at the same time.
        #[inline(always)]
        pub unsafe fn $read(m: *const rte_mbuf) -> $type {
            // SAFETY: by this function's contract `m` is a live mbuf; the offset is inside it and aligned
            // for the field.
            unsafe { m.byte_add($offset as usize).cast::<$type>().read() }
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// `m` points to an mbuf of a live pool that the caller owns.
        #[inline(always)]
        pub unsafe fn $write(m: *mut rte_mbuf, value: $type) {
            // SAFETY: by this function's contract `m` is a live mbuf; the offset is inside it and aligned
            // for the field.
            unsafe { m.byte_add($offset as usize).cast::<$type>().write(value) }
        }
    };
}

field!(/// First byte of the buffer, headroom included.
    buf_addr, set_buf_addr, K_MBUF_BUF_ADDR, *mut u8);
field!(/// Bytes from `buf_addr` to the data.
    data_off, set_data_off, K_MBUF_DATA_OFF, u16);
field!(/// Segments in the chain; only the head's counts.
    nb_segs, set_nb_segs, K_MBUF_NB_SEGS, u16);
field!(/// Offload flags (`K_F_*`); only the head's count, but `K_F_INDIRECT` and `K_F_EXTERNAL` are each segment's.
    ol_flags, set_ol_flags, K_MBUF_OL_FLAGS, u64);
field!(/// Bytes in the chain; only the head's counts.
    pkt_len, set_pkt_len, K_MBUF_PKT_LEN, u32);
field!(/// Bytes in this segment.
    data_len, set_data_len, K_MBUF_DATA_LEN, u16);
field!(/// Bytes of the buffer, headroom and tailroom included.
    buf_len, set_buf_len, K_MBUF_BUF_LEN, u16);
field!(/// The pool it goes back to.
    pool, set_pool, K_MBUF_POOL, *mut rte_mempool);
field!(/// The next segment, null in the last.
    next, set_next, K_MBUF_NEXT, *mut rte_mbuf);
field!(/// Header lengths and segment size for transmit offloads, packed: see [`pack_tx_offload`].
    tx_offload, set_tx_offload, K_MBUF_TX_OFFLOAD, u64);
field!(/// Bytes of the application's private area between the mbuf and its buffer.
    priv_size, set_priv_size, K_MBUF_PRIV_SIZE, u16);

/// The first byte of the segment's data.
///
/// # Safety
/// `m` points to an mbuf of a live pool.
#[inline(always)]
pub unsafe fn data(m: *const rte_mbuf) -> *mut u8 {
    // SAFETY: by this function's contract `m` is a live mbuf, and DPDK keeps data_off inside its buffer.
    unsafe { buf_addr(m).add(data_off(m) as usize) }
}

/// Number of owners of the segment's storage: of the mbuf itself, or of the one that an indirect mbuf is
/// attached to.
///
/// Acquire: reads and writes of former owners happen before a count of 1 is seen.
///
/// # Safety
/// `m` points to an mbuf of a live pool. An external buffer (`K_F_EXTERNAL`) counts as having two.
#[inline]
pub unsafe fn storage_owners(m: *const rte_mbuf) -> u16 {
    // SAFETY: by this function's contract `m` is a live mbuf. An indirect mbuf's buf_addr is that of the
    // direct mbuf it is attached to, which precedes its private area and its buffer
    // (rte_mbuf_from_indirect) and lives as long as it is attached. DPDK itself counts with 16-bit atomics.
    unsafe {
        let flags = ol_flags(m);
        if flags & K_F_EXTERNAL != 0 {
            return 2;
        }
        let direct = if flags & K_F_INDIRECT != 0 {
            buf_addr(m).cast_const().sub(K_MBUF_SIZE as usize + priv_size(m) as usize).cast::<rte_mbuf>()
        } else {
            m
        };
        let count = direct.byte_add(K_MBUF_REFCNT as usize).cast::<u16>().cast_mut();
        AtomicU16::from_ptr(count).load(Ordering::Acquire)
    }
}

/// Packs the lengths for the `tx_offload` field: Ethernet, IP and TCP headers and the TSO segment size,
/// all in bytes.
#[inline]
pub fn pack_tx_offload(l2: u8, l3: u8, l4: u8, segment: u16) -> u64 {
    u64::from(l2) << K_L2_LEN_SHIFT
        | u64::from(l3) << K_L3_LEN_SHIFT
        | u64::from(l4) << K_L4_LEN_SHIFT
        | u64::from(segment) << K_TSO_SEGSZ_SHIFT
}

/// Unpacks to `(l2, l3, l4, segment)`.
#[inline]
pub fn unpack_tx_offload(packed: u64) -> (u8, u8, u8, u16) {
    let field = |low: u64, high: u64| (packed >> low) & ((1 << (high - low)) - 1);
    (
        field(K_L2_LEN_SHIFT, K_L3_LEN_SHIFT) as u8,
        field(K_L3_LEN_SHIFT, K_L4_LEN_SHIFT) as u8,
        field(K_L4_LEN_SHIFT, K_TSO_SEGSZ_SHIFT) as u8,
        (packed >> K_TSO_SEGSZ_SHIFT) as u16,
    )
}

/// The private area of a pool behind DPDK's own, as made by `rte_mempool_create_empty` with space for
/// it.
///
/// # Safety
/// `pool` is a live packet buffer pool with a private area larger than `K_POOL_PRIVATE_SIZE`.
pub unsafe fn pool_private(pool: *mut rte_mempool) -> *mut c_void {
    // SAFETY: by this function's contract the pool is live and has a private area of ours.
    unsafe { uwarp_pool_private(pool) }
}
