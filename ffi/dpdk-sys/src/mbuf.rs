//! Accessors for the fields of `struct rte_mbuf`. The C compiler computes the offsets of the fields at build
//! time.
//!
//! The field paths differ between releases (flat in 22.11, nested anonymous structs from 24.11 on), and an
//! accessor in C would cost a call. So the accessors use offsets. Multi-byte fields are in host byte order. A
//! function with an mbuf as its argument accesses only this mbuf, except `storage_owners`, which may also
//! access the direct mbuf.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU16, Ordering};

use crate::bindings::*;

macro_rules! field {
    ($(#[$doc:meta])* $read:ident, $write:ident, $offset:ident, $type:ty) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// `m` points to an mbuf whose pool is not freed, and nobody writes the field during the call.
        #[inline(always)]
        pub unsafe fn $read(m: *const rte_mbuf) -> $type {
            let field = m.wrapping_byte_add($offset as usize).cast::<$type>();
            // SAFETY: the caller passes a valid mbuf, and nobody writes the field now. The C compiler has
            // computed the offset of a field of this type, so the field is inside the mbuf and aligned. All
            // fields are numbers or raw pointers, so any bits are valid.
            unsafe { field.read() }
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// `m` points to an mbuf whose pool is not freed, and nobody else accesses the field during the call.
        #[inline(always)]
        pub unsafe fn $write(m: *mut rte_mbuf, value: $type) {
            let field = m.wrapping_byte_add($offset as usize).cast::<$type>();
            // SAFETY: the caller passes a valid mbuf, and nobody else accesses the field now. The C compiler
            // has computed the offset of a field of this type, so the field is inside the mbuf and aligned.
            unsafe { field.write(value) }
        }
    };
}

field!(/// The first byte of the buffer, which is the first byte of the headroom.
    buf_addr, set_buf_addr, K_MBUF_BUF_ADDR, *mut u8);
field!(/// Number of bytes from `buf_addr` to the data.
    data_off, set_data_off, K_MBUF_DATA_OFF, u16);
field!(/// Number of segments in the chain. Valid only in the first segment.
    nb_segs, set_nb_segs, K_MBUF_NB_SEGS, u16);
field!(/// Offload flags (`K_F_*`). Valid only in the first segment, except `K_F_INDIRECT` and `K_F_EXTERNAL`.
    ol_flags, set_ol_flags, K_MBUF_OL_FLAGS, u64);
field!(/// Number of data bytes in the chain. Valid only in the first segment.
    pkt_len, set_pkt_len, K_MBUF_PKT_LEN, u32);
field!(/// Number of data bytes in this segment.
    data_len, set_data_len, K_MBUF_DATA_LEN, u16);
field!(/// Number of bytes of the buffer, including headroom and tailroom.
    buf_len, set_buf_len, K_MBUF_BUF_LEN, u16);
field!(/// The pool to which the mbuf is returned.
    pool, set_pool, K_MBUF_POOL, *mut rte_mempool);
field!(/// The next segment. Null in the last segment.
    next, set_next, K_MBUF_NEXT, *mut rte_mbuf);
field!(/// The packed header lengths and segment size for transmit offloads: see [`pack_tx_offload`].
    tx_offload, set_tx_offload, K_MBUF_TX_OFFLOAD, u64);
field!(/// Number of bytes of the application's private area between the mbuf and its buffer.
    priv_size, set_priv_size, K_MBUF_PRIV_SIZE, u16);

/// The first byte of the segment's data.
///
/// # Safety
/// `m` points to an mbuf whose pool is not freed, and nobody writes `buf_addr` or `data_off` during the call.
#[inline(always)]
pub unsafe fn data(m: *const rte_mbuf) -> *mut u8 {
    // SAFETY: the caller passes a valid mbuf, and nobody writes `buf_addr` now.
    let buffer = unsafe { buf_addr(m) };
    // SAFETY: the caller passes a valid mbuf, and nobody writes `data_off` now.
    let offset = unsafe { data_off(m) };
    buffer.wrapping_add(offset as usize)
}

/// Number of owners of the segment's storage. For an indirect mbuf, the result is the number of owners of the
/// mbuf to which the indirect mbuf is attached. For an external buffer (`K_F_EXTERNAL`), the result is always
/// 2.
///
/// The load has Acquire order: if the result is 1, reads and writes of former owners happen before the
/// following accesses of the caller.
///
/// # Safety
/// `m` points to an mbuf whose pool is not freed. While the mbuf has several owners, its `refcnt` is accessed
/// only by atomics. Nobody writes `ol_flags`, `buf_addr` or `priv_size` during the call.
#[inline]
pub unsafe fn storage_owners(m: *const rte_mbuf) -> u16 {
    // SAFETY: the caller passes a valid mbuf, and nobody writes `ol_flags` now.
    let flags = unsafe { ol_flags(m) };
    if flags & K_F_EXTERNAL != 0 {
        return 2;
    }
    // SAFETY: the flag says that the mbuf is attached to another mbuf. The caller passes a valid mbuf, and
    // nobody writes `buf_addr` and `priv_size` now.
    let direct = if flags & K_F_INDIRECT != 0 { unsafe { attached_to(m) } } else { m };
    let count = direct.wrapping_byte_add(K_MBUF_REFCNT as usize).cast::<u16>().cast_mut();
    // SAFETY: `direct` is the caller's mbuf, or the mbuf to which the caller's mbuf is attached. DPDK frees
    // an mbuf later than the mbufs that are attached to it. The C compiler has computed the offset of
    // `refcnt`, which has 16 bits and is aligned. DPDK changes `refcnt` by 16-bit atomics, unless the mbuf
    // has only one owner. If there is only one owner, it is the caller, who does not change `refcnt` during
    // the call.
    let count = unsafe { AtomicU16::from_ptr(count) };
    count.load(Ordering::Acquire)
}

/// The direct mbuf whose buffer an indirect mbuf uses (`rte_mbuf_from_indirect`).
///
/// # Safety
/// `m` points to an indirect mbuf (`K_F_INDIRECT`) whose pool is not freed, and nobody writes `buf_addr` or
/// `priv_size` during the call.
#[inline(always)]
unsafe fn attached_to(m: *const rte_mbuf) -> *const rte_mbuf {
    // SAFETY: the caller passes a valid mbuf, and nobody writes `buf_addr` now.
    let buffer = unsafe { buf_addr(m) };
    // SAFETY: the caller passes a valid mbuf, and nobody writes `priv_size` now.
    let private_bytes = unsafe { priv_size(m) };
    // In memory, the buffer follows the direct mbuf and the direct mbuf's private area. The indirect mbuf has
    // a copy of the size of this area.
    buffer.cast_const().wrapping_sub(K_MBUF_SIZE as usize + private_bytes as usize).cast()
}

/// Packs the lengths of the Ethernet, IP and TCP headers and the TSO segment size for the field `tx_offload`.
/// All arguments are in bytes.
#[inline]
pub fn pack_tx_offload(l2: u8, l3: u8, l4: u8, segment: u16) -> u64 {
    u64::from(l2) << K_L2_LEN_SHIFT
        | u64::from(l3) << K_L3_LEN_SHIFT
        | u64::from(l4) << K_L4_LEN_SHIFT
        | u64::from(segment) << K_TSO_SEGSZ_SHIFT
}

/// Unpacks the field `tx_offload` into `(l2, l3, l4, segment)`.
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

/// Returns the address of the caller's part of a pool's private area. This part is behind DPDK's part.
/// `rte_mempool_create_empty` has made the area with space for both parts.
///
/// # Safety
/// `pool` is a packet buffer pool that is not freed, with a private area larger than `K_POOL_PRIVATE_SIZE`.
pub unsafe fn pool_private(pool: *mut rte_mempool) -> *mut c_void {
    // SAFETY: the caller passes a valid pool. The function only computes an address. The address is inside
    // the pool's private area, since this area is larger than DPDK's part.
    unsafe { uwarp_pool_private(pool) }
}
