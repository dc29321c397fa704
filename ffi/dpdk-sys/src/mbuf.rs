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
        /// `m` points to an mbuf of a live pool, and nobody writes the field during the call.
        #[inline(always)]
        pub unsafe fn $read(m: *const rte_mbuf) -> $type {
            let field = m.wrapping_byte_add($offset as usize).cast::<$type>();
            // SAFETY: the caller passes a live mbuf whose field nobody writes now. The C compiler computed
            // the offset of a field of this type, so the field is inside the mbuf, aligned, and any bits in
            // it are a value: numbers and raw pointers only.
            unsafe { field.read() }
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// `m` points to an mbuf of a live pool, and nobody else accesses the field during the call.
        #[inline(always)]
        pub unsafe fn $write(m: *mut rte_mbuf, value: $type) {
            let field = m.wrapping_byte_add($offset as usize).cast::<$type>();
            // SAFETY: the caller passes a live mbuf whose field nobody else accesses now. The C compiler
            // computed the offset of a field of this type, so the field is inside the mbuf and aligned.
            unsafe { field.write(value) }
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
/// `m` points to an mbuf of a live pool, and nobody writes `buf_addr` or `data_off` during the call.
#[inline(always)]
pub unsafe fn data(m: *const rte_mbuf) -> *mut u8 {
    // SAFETY: the caller passes a live mbuf whose `buf_addr` nobody writes now.
    let buffer = unsafe { buf_addr(m) };
    // SAFETY: the caller passes a live mbuf whose `data_off` nobody writes now.
    let offset = unsafe { data_off(m) };
    buffer.wrapping_add(offset as usize)
}

/// Number of owners of the segment's storage: of the mbuf itself, or of the one that an indirect mbuf is
/// attached to. An external buffer (`K_F_EXTERNAL`) counts as having two.
///
/// Acquire: reads and writes of former owners happen before a count of 1 is seen.
///
/// # Safety
/// `m` points to an mbuf of a live pool, whose `refcnt` is accessed by atomics only as long as it has several
/// owners. Nobody writes `ol_flags`, `buf_addr` or `priv_size` during the call.
#[inline]
pub unsafe fn storage_owners(m: *const rte_mbuf) -> u16 {
    // SAFETY: the caller passes a live mbuf whose `ol_flags` nobody writes now.
    let flags = unsafe { ol_flags(m) };
    if flags & K_F_EXTERNAL != 0 {
        return 2;
    }
    // SAFETY: the flag says that the mbuf is attached to another one; the caller passes a live mbuf whose
    // `buf_addr` and `priv_size` nobody writes now.
    let direct = if flags & K_F_INDIRECT != 0 { unsafe { attached_to(m) } } else { m };
    let count = direct.wrapping_byte_add(K_MBUF_REFCNT as usize).cast::<u16>().cast_mut();
    // SAFETY: `direct` is the caller's live mbuf, or the one it is attached to, which lives at least as long.
    // The C compiler computed the offset of `refcnt`, 16 bits and aligned. DPDK changes it by 16-bit atomics,
    // except as the only owner; that owner is the caller then, who does not do so during the call.
    let count = unsafe { AtomicU16::from_ptr(count) };
    count.load(Ordering::Acquire)
}

/// The direct mbuf whose buffer an indirect one uses (`rte_mbuf_from_indirect`).
///
/// # Safety
/// `m` points to an indirect mbuf (`K_F_INDIRECT`) of a live pool, and nobody writes `buf_addr` or
/// `priv_size` during the call.
#[inline(always)]
unsafe fn attached_to(m: *const rte_mbuf) -> *const rte_mbuf {
    // SAFETY: the caller passes a live mbuf whose `buf_addr` nobody writes now.
    let buffer = unsafe { buf_addr(m) };
    // SAFETY: the caller passes a live mbuf whose `priv_size` nobody writes now.
    let private_bytes = unsafe { priv_size(m) };
    // The buffer follows the direct mbuf and its private area, whose size attaching has copied.
    buffer.cast_const().wrapping_sub(K_MBUF_SIZE as usize + private_bytes as usize).cast()
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
    // SAFETY: the caller passes a live pool. The function only computes an address, which is inside the
    // pool's private area since the caller's area is larger than DPDK's part of it.
    unsafe { uwarp_pool_private(pool) }
}
