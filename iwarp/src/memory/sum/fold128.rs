//! Sums by carry-less multiplication of 128 bits, with a copy in the same pass.
//!
//! Four values of 16 bytes each represent all bytes so far. Each step folds them forward by 64 bytes and adds
//! the next 64 (V. Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ instruction",
//! Intel 2009). That takes a multiplication for each 8 bytes, and a core starts one each cycle. The copy fits
//! beside them. Short inputs and the rest use the CRC instruction, which takes 3 cycles for 8 bytes but has
//! no setup cost.
//!
//! AVX is for its instructions of three operands: without them, each multiplication needs a copy before it.

use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64, _mm_extract_epi64,
    _mm_set_epi64x, _mm_xor_si128,
};

use super::Front;
use super::bytes::{Loader, Nowhere, Sink, To, sum_front, sum_head, sum_tail, sum_zeros};
use super::powers;

/// Bytes of a step.
const STEP: usize = size_of::<[__m128i; 4]>();
/// The length from which folding is faster than the CRC instruction alone.
pub(super) const FOLD_MIN_BYTES: usize = 128;

/// Whether this CPU supports [`run`].
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("avx")
}

/// Continues the sum `state`, which is not complemented, with `bytes`.
#[target_feature(enable = "sse4.2,pclmulqdq,avx")]
pub(super) fn sum(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: `bytes` is a slice, so its bytes are readable and nobody writes them.
    unsafe { over(state, bytes.as_ptr(), bytes.len()) }
}

/// Continues the sum `state`, which is not complemented, with the `len` bytes at `from`.
///
/// # Safety
/// `from..from + len` is mapped and readable, and others access it at most through atomics and raw copies.
#[target_feature(enable = "sse4.2,pclmulqdq,avx")]
pub(super) unsafe fn over(state: u32, from: *const u8, len: usize) -> u32 {
    // SAFETY: the caller promises the bytes at `from`. Nothing is stored, and 0 is at most any length.
    unsafe { run(state, from, Nowhere, 0, len) }
}

/// Copies `out.len()` bytes from `from` on, and continues the sum `state` with the copied bytes.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and others access it at most through atomics and raw
/// copies.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx")]
pub(super) unsafe fn fetch(state: u32, from: *const u8, out: &mut [u8]) -> u32 {
    let sink = To(out.as_mut_ptr());
    // SAFETY: the caller promises the bytes at `from`. The sink is `out`, which is borrowed mutably.
    let (state, at) = unsafe { sum_head(state, from, sink, out.len()) };
    // SAFETY: the caller promises the bytes at `from`. The sink is `out`, which is borrowed mutably.
    // `sum_head` takes at most the length that it is given.
    unsafe { run(state, from, sink, at, out.len()) }
}

/// As [`super::fetch_behind`]; returns the state of the sum.
///
/// # Safety
/// As [`fetch`].
#[target_feature(enable = "sse4.2,pclmulqdq,avx")]
pub(super) unsafe fn fetch_behind(front: &Front, from: *const u8, out: &mut [u8], zeros: usize) -> u32 {
    let state = sum_front(u32::MAX, front);
    // SAFETY: the caller promises the bytes at `from`.
    sum_zeros(unsafe { fetch(state, from, out) }, zeros)
}

/// Continues the sum `state` with the bytes of `from` at `at..len`, and stores them to `sink`.
///
/// # Safety
/// `at` is at most `len`; `from..from + len` is mapped and readable, and others access it at most through
/// atomics and raw copies; `sink` has room for `len` bytes, which nobody else accesses during the call.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx")]
pub(super) unsafe fn run(state: u32, from: *const u8, sink: impl Sink, at: usize, len: usize) -> u32 {
    let mut state = state;
    // SAFETY: `at` is at most `len`, the bytes at `from` are mapped and readable and changed by others only
    // through atomics and raw copies, and `sink` has room for `len` bytes that nobody else accesses: the
    // caller promises all of this for the time of this call, and the value ends with it.
    let mut bytes = unsafe { Loader::new(from, sink, at, len) };
    if bytes.left() >= FOLD_MIN_BYTES
        && let Some([mut a, mut b, mut c, mut d]) = bytes.next::<[__m128i; 4]>()
    {
        let by_step = const { powers::fold(STEP) };
        a = _mm_xor_si128(a, _mm_cvtsi32_si128(state.cast_signed()));
        while let Some(next) = bytes.next::<[__m128i; 4]>() {
            a = fold(a, by_step, next[0]);
            b = fold(b, by_step, next[1]);
            c = fold(c, by_step, next[2]);
            d = fold(d, by_step, next[3]);
        }
        let by_one = const { powers::fold(16) };
        let by_two = const { powers::fold(32) };
        state = reduce(fold(fold(a, by_one, b), by_two, fold(c, by_one, d)));
    }
    sum_tail(state, bytes)
}

/// Folds `value` forward to the position of `next`, and adds `next`.
#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
pub(super) fn fold(value: __m128i, by: [u64; 2], next: __m128i) -> __m128i {
    let by = _mm_set_epi64x(by[1].cast_signed(), by[0].cast_signed());
    let (low, high) = (_mm_clmulepi64_si128::<0x00>(value, by), _mm_clmulepi64_si128::<0x11>(value, by));
    _mm_xor_si128(_mm_xor_si128(low, next), high)
}

/// The state of the sum after the bytes that `value` represents.
#[inline]
#[target_feature(enable = "sse4.2,avx")]
pub(super) fn reduce(value: __m128i) -> u32 {
    let (low, high) = (_mm_cvtsi128_si64(value), _mm_extract_epi64::<1>(value));
    _mm_crc32_u64(_mm_crc32_u64(0, low.cast_unsigned()), high.cast_unsigned()) as u32
}
