//! CRC32c of few bytes by the CRC instruction alone, without a copy or with a copy in the same pass.

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};

use super::Front;
use super::bytes::{Loader, To, append_front, append_head, append_tail, append_zeros};

/// Maximum number of bytes for which this method is the fastest.
pub(super) const MAX_BYTES: usize = 127;

/// Continues the CRC `state`, which is not complemented, with `bytes`. Returns the new CRC.
#[target_feature(enable = "sse4.2")]
pub(super) fn append(state: u32, bytes: &[u8]) -> u32 {
    let mut state = u64::from(state);
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        for word in block.as_chunks().0 {
            state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
        }
    }
    let (words, rest) = rest.as_chunks();
    for word in words {
        state = _mm_crc32_u64(state, u64::from_le_bytes(*word));
    }
    let mut state = state as u32;
    let rest = match rest.split_first_chunk() {
        Some((half, rest)) => {
            state = _mm_crc32_u32(state, u32::from_le_bytes(*half));
            rest
        }
        None => rest,
    };
    for byte in rest {
        state = _mm_crc32_u8(state, *byte);
    }
    state
}

/// Copies the `out.len()` bytes at `from` to `out`. Continues the CRC `state` with the copied bytes, and
/// returns the new CRC. If `TALLY` is set, also returns the partial Internet checksum of `out`.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn fetch<const TALLY: bool>(state: u32, from: *const u8, out: &mut [u8]) -> (u32, u64) {
    let (len, sink) = (out.len(), To(out.as_mut_ptr()));
    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable. The sink is `out`, which is
    // borrowed mutably.
    let (state, head) = unsafe { append_head(state, from, sink, len) };
    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable during this call. The sink is
    // `out`, which is borrowed mutably. `append_head` consumes at most `len` bytes.
    let bytes = unsafe { Loader::new(from, sink, head, len) };
    let (state, checksum) = append_tail::<TALLY>(state, bytes);
    if TALLY && head > 0 { (state, behind(&out[..head], checksum)) } else { (state, checksum) }
}

/// Returns the partial Internet checksum of `head` and of the bytes after it, whose own partial checksum is
/// `checksum`.
pub(super) fn behind(head: &[u8], checksum: u64) -> u64 {
    // After an odd number of bytes, the two bytes of each 16-bit word are swapped.
    let checksum = if head.len() % 2 == 1 { (checksum % 0xffff) << 8 } else { checksum };
    dp::checksum::partial(head) + checksum
}

/// Does what [`super::fetch_behind`] does, with `TALLY` instead of `tally`.
///
/// # Safety
/// The requirements of [`fetch`].
#[target_feature(enable = "sse4.2")]
pub(super) unsafe fn fetch_behind<const TALLY: bool>(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    zeros: usize,
) -> (u32, u64) {
    let state = append_front(u32::MAX, front);
    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable.
    let (state, checksum) = unsafe { fetch::<TALLY>(state, from, out) };
    (!append_zeros(state, zeros), if TALLY { front.checksum() + checksum } else { 0 })
}
