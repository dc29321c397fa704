//! Sums of few bytes by the CRC instruction alone, in little code.

use std::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};

/// Most bytes for which this is the fastest method.
pub(super) const MAX_BYTES: usize = 127;

/// Continues the sum `state`, which is not complemented, with `bytes`.
#[target_feature(enable = "sse4.2")]
pub(super) fn sum(state: u32, bytes: &[u8]) -> u32 {
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
