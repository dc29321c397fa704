//! As [`fold128`], with values of 64 bytes: AVX-512 with VPCLMULQDQ. Short inputs are left to `fold128`.

use std::arch::x86_64::{
    __m512i, _mm_cvtsi32_si128, _mm_set_epi64x, _mm512_broadcast_i32x4, _mm512_castsi512_si128,
    _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    _mm512_zextsi128_si512,
};

use super::bytes::{Nowhere, Sink, To, load_512, sum_head, sum_tail};
use super::fold128::{self, reduce};
use super::powers;

/// Bytes of a value.
const VALUE: usize = 64;
/// Bytes of a step.
const STEP: usize = 4 * VALUE;

/// Whether this CPU supports [`fetch`].
pub(super) fn is_supported() -> bool {
    fold128::is_supported() && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq")
}

/// As [`fold128::sum`].
///
/// # Safety
/// The CPU supports it ([`is_supported`]).
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,vpclmulqdq")]
pub(super) unsafe fn sum(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: `bytes` is a slice, so it is readable. Nothing is stored.
    unsafe { run(state, bytes.as_ptr(), Nowhere, 0, bytes.len()) }
}

/// As [`fold128::fetch`].
///
/// # Safety
/// The CPU supports it ([`is_supported`]); `from` is as for [`super::fetch`].
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,vpclmulqdq")]
pub(super) unsafe fn fetch(state: u32, from: *const u8, out: &mut [u8]) -> u32 {
    let (sink, len) = (To(out.as_mut_ptr()), out.len());
    // SAFETY: the caller promises that `len` bytes at `from` are readable, and `sink` has as many bytes.
    unsafe {
        let (state, at) = sum_head(state, from, sink, len);
        run(state, from, sink, at, len)
    }
}

/// As [`fold128::run`].
///
/// # Safety
/// As [`fold128::run`], and the CPU supports it ([`is_supported`]).
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f,vpclmulqdq")]
unsafe fn run(state: u32, from: *const u8, sink: impl Sink, mut at: usize, len: usize) -> u32 {
    // SAFETY: the caller promises `len` bytes at `from` and in `sink`. `at` plus the bytes taken there is at
    // most `len`.
    unsafe {
        if len - at < STEP {
            return fold128::run(state, from, sink, at, len);
        }
        let by_step = const { powers::fold(STEP) };
        let mut values = take(from, sink, at);
        let before = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state.cast_signed()));
        values[0] = _mm512_xor_si512(values[0], before);
        at += STEP;
        while len - at >= STEP {
            let next = take(from, sink, at);
            for (value, next) in values.iter_mut().zip(next) {
                *value = fold(*value, by_step, next);
            }
            at += STEP;
        }
        let [a, b, c, d] = values;
        let by_one = const { powers::fold(VALUE) };
        let by_two = const { powers::fold(2 * VALUE) };
        let mut value = fold(fold(a, by_one, b), by_two, fold(c, by_one, d));
        while len - at >= VALUE {
            value = fold(value, by_one, take_one(from, sink, at));
            at += VALUE;
        }
        sum_tail(to_state(value), from, sink, at, len)
    }
}

/// Loads and stores the bytes of one step.
///
/// # Safety
/// As [`fold128::run`], for the step at `at`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn take(from: *const u8, sink: impl Sink, at: usize) -> [__m512i; 4] {
    // SAFETY: the caller promises that the bytes of the step are readable and that `sink` has room for them.
    unsafe {
        [
            take_one(from, sink, at),
            take_one(from, sink, at + VALUE),
            take_one(from, sink, at + 2 * VALUE),
            take_one(from, sink, at + 3 * VALUE),
        ]
    }
}

/// # Safety
/// As [`fold128::run`], for the value at `at`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn take_one(from: *const u8, sink: impl Sink, at: usize) -> __m512i {
    // SAFETY: the caller promises that the value's bytes are readable and that `sink` has room for them.
    unsafe {
        let value = load_512(from.add(at));
        sink.put(at, value);
        value
    }
}

/// Folds each of the four parts of `value` forward to the position of that of `next`, and adds `next`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(value: __m512i, by: [u64; 2], next: __m512i) -> __m512i {
    let by = _mm512_broadcast_i32x4(_mm_set_epi64x(by[1].cast_signed(), by[0].cast_signed()));
    let low = _mm512_clmulepi64_epi128::<0x00>(value, by);
    let high = _mm512_clmulepi64_epi128::<0x11>(value, by);
    // The exclusive or of all three.
    _mm512_ternarylogic_epi64::<0x96>(low, high, next)
}

/// The state of the sum after the bytes that `value` represents.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx512f")]
fn to_state(value: __m512i) -> u32 {
    let first = _mm512_castsi512_si128(value);
    let second = _mm512_extracti32x4_epi32::<1>(value);
    let third = _mm512_extracti32x4_epi32::<2>(value);
    let last = _mm512_extracti32x4_epi32::<3>(value);
    let last = fold128::fold(third, const { powers::fold(16) }, last);
    let last = fold128::fold(second, const { powers::fold(32) }, last);
    reduce(fold128::fold(first, const { powers::fold(48) }, last))
}
