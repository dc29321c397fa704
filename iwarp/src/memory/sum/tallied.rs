//! Copies, sums for the CRC as [`fold128`], and sums for the Internet checksum, in one pass: for frames whose
//! checksum the port does not make. Vectors of 32 bytes are copied and summed, and their halves folded.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_crc32_u8, _mm_crc32_u16, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi32_si128,
    _mm_xor_si128, _mm256_castsi256_si128, _mm256_extracti128_si256,
};

use dp::sum::Avx2Lanes;

use super::Front;
use super::bytes::{Loader, Sink, To, sum_front, sum_head, sum_zeros};
use super::fold128::{self, FOLD_MIN_BYTES, fold, reduce};
use super::powers;

/// Bytes of a step.
const STEP: usize = size_of::<[__m256i; 2]>();

/// Whether this CPU supports [`fetch_behind`].
pub(super) fn is_supported() -> bool {
    fold128::is_supported() && is_x86_feature_detected!("avx2")
}

/// As [`super::fetch_behind`]; returns the state of the CRC, and the Internet checksum's sum of `out`.
///
/// # Safety
/// As [`fold128::fetch`].
#[target_feature(enable = "sse4.2,pclmulqdq,avx2")]
pub(super) unsafe fn fetch_behind(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    zeros: usize,
) -> (u32, u64) {
    let (len, sink) = (out.len(), To(out.as_mut_ptr()));
    let state = sum_front(u32::MAX, front);
    // SAFETY: the caller promises the bytes at `from`. The sink is `out`, which is borrowed mutably.
    let (mut state, head) = unsafe { sum_head(state, from, sink, len) };
    // SAFETY: the caller promises the bytes at `from`, for as long as this call. The sink is `out`, which is
    // borrowed mutably. `sum_head` takes at most the length that it is given.
    let mut bytes = unsafe { Loader::new(from, sink, head, len) };
    let mut lanes = Avx2Lanes::new();
    if bytes.left() >= FOLD_MIN_BYTES
        && let Some(first) = bytes.next_256_twice()
    {
        let by_step = const { powers::fold(STEP) };
        let [mut a, mut b, mut c, mut d] = taken(&mut lanes, first);
        a = _mm_xor_si128(a, _mm_cvtsi32_si128(state.cast_signed()));
        while let Some(next) = bytes.next_256_twice() {
            let next = taken(&mut lanes, next);
            a = fold(a, by_step, next[0]);
            b = fold(b, by_step, next[1]);
            c = fold(c, by_step, next[2]);
            d = fold(d, by_step, next[3]);
        }
        let by_one = const { powers::fold(16) };
        let by_two = const { powers::fold(32) };
        state = reduce(fold(fold(a, by_one, b), by_two, fold(c, by_one, d)));
    }
    let (state, tail) = sum_tail(state, bytes);
    let mut sum = lanes.sum() + tail;
    if head > 0 {
        // Behind an odd number of bytes, the bytes of each word change places.
        sum = if head % 2 == 1 { (sum % 0xffff) << 8 } else { sum };
        sum += dp::sum::of(&out[..head]);
    }
    (sum_zeros(state, zeros), sum)
}

/// As [`super::bytes::sum_tail`], and sums the bytes for the Internet checksum.
#[inline]
#[target_feature(enable = "sse4.2")]
fn sum_tail(state: u32, mut bytes: Loader<impl Sink>) -> (u32, u64) {
    let (mut state, mut sum) = (u64::from(state), 0);
    while let Some(word) = bytes.next::<u64>() {
        state = _mm_crc32_u64(state, word);
        sum += (word >> 32) + (word & 0xffff_ffff);
    }
    let mut state = state as u32;
    if let Some(value) = bytes.next() {
        state = _mm_crc32_u32(state, value);
        sum += u64::from(value);
    }
    if let Some(value) = bytes.next() {
        state = _mm_crc32_u16(state, value);
        sum += u64::from(value);
    }
    if let Some(value) = bytes.next() {
        state = _mm_crc32_u8(state, value);
        sum += u64::from(value);
    }
    (state, sum)
}

/// Sums vectors; returns their halves.
#[inline]
#[target_feature(enable = "avx2")]
fn taken(lanes: &mut Avx2Lanes, [first, second]: [__m256i; 2]) -> [__m128i; 4] {
    lanes.add(first);
    lanes.add(second);
    [
        _mm256_castsi256_si128(first),
        _mm256_extracti128_si256::<1>(first),
        _mm256_castsi256_si128(second),
        _mm256_extracti128_si256::<1>(second),
    ]
}
