//! Sums by carry-less multiplication of 128 bits, copying on the way.
//!
//! Four values of 16 bytes each stand for all bytes so far; they are moved on by 64 bytes and the next 64 are
//! added (V. Gopal et al., "Fast CRC computation for generic polynomials using PCLMULQDQ instruction", Intel
//! 2009). That takes a multiplication for every 8 bytes, of which a core begins one a cycle; copying fits in
//! beside them. What is shorter or left over goes by the CRC instruction, which takes 8 bytes in 3 cycles but
//! needs nothing to begin or to end.

use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64, _mm_extract_epi64,
    _mm_set_epi64x, _mm_xor_si128,
};

use super::bytes::{Nowhere, Sink, To, fall, load_128, rise};
use super::powers;

/// Bytes taken at once.
const STEP: usize = 64;
/// From here on folding is ahead of the CRC instruction alone.
const PAYS_FROM: usize = 128;

/// Whether this CPU can [`run`].
pub(super) fn is_here() -> bool {
    is_x86_feature_detected!("sse4.2") && is_x86_feature_detected!("pclmulqdq")
}

/// Sums `bytes` behind those that gave `state`: the sum before it is complemented.
///
/// # Safety
/// The CPU [`is_here`].
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) unsafe fn sum(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: a slice is mapped and readable; its bytes go nowhere.
    unsafe { run(state, bytes.as_ptr(), Nowhere, 0, bytes.len()) }
}

/// Copies `out.len()` bytes from `from` on, and sums what it copies behind those that gave `state`.
///
/// # Safety
/// The CPU [`is_here`]; `from` is as for [`super::fetch`].
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) unsafe fn fetch(state: u32, from: *const u8, out: &mut [u8]) -> u32 {
    let sink = To(out.as_mut_ptr());
    // SAFETY: the caller vouches for `from`, and `sink` has as many bytes.
    unsafe {
        let (state, at) = rise(state, from, sink, out.len());
        run(state, from, sink, at, out.len())
    }
}

/// Sums the bytes of `from` at `at..len` behind those that gave `state`, and stores them.
///
/// # Safety
/// The CPU [`is_here`]; `from..from + len` is mapped and readable, others access it at most through atomics
/// and raw copies; `sink` has room for `len` bytes; `at` is at most `len`.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) unsafe fn run(state: u32, from: *const u8, sink: impl Sink, at: usize, len: usize) -> u32 {
    let (mut state, mut at) = (state, at);
    // SAFETY: the caller vouches for `len` bytes on either side. `at` and what is taken there stay within
    // them.
    unsafe {
        if len - at >= PAYS_FROM {
            let by_step = const { powers::fold(STEP) };
            let [mut a, mut b, mut c, mut d] = take(from, sink, at);
            a = _mm_xor_si128(a, _mm_cvtsi32_si128(state.cast_signed()));
            at += STEP;
            while len - at >= STEP {
                let next = take(from, sink, at);
                a = fold(a, by_step, next[0]);
                b = fold(b, by_step, next[1]);
                c = fold(c, by_step, next[2]);
                d = fold(d, by_step, next[3]);
                at += STEP;
            }
            let by_one = const { powers::fold(16) };
            let by_two = const { powers::fold(32) };
            state = reduce(fold(fold(a, by_one, b), by_two, fold(c, by_one, d)));
        }
        fall(state, from, sink, at, len)
    }
}

/// Loads and stores a step.
///
/// # Safety
/// As [`run`], for the step at `at`.
#[inline]
#[target_feature(enable = "sse4.2")]
unsafe fn take(from: *const u8, sink: impl Sink, at: usize) -> [__m128i; 4] {
    // SAFETY: the caller vouches for the bytes at `at`.
    unsafe {
        let from = from.add(at);
        let values = [load_128::<0>(from), load_128::<16>(from), load_128::<32>(from), load_128::<48>(from)];
        for (i, value) in values.into_iter().enumerate() {
            sink.put(at + 16 * i, value);
        }
        values
    }
}

/// Moves `value` on to where `next` stands, and adds that.
#[inline]
#[target_feature(enable = "pclmulqdq")]
pub(super) fn fold(value: __m128i, by: [u64; 2], next: __m128i) -> __m128i {
    let by = _mm_set_epi64x(by[1].cast_signed(), by[0].cast_signed());
    let (low, high) = (_mm_clmulepi64_si128::<0x00>(value, by), _mm_clmulepi64_si128::<0x11>(value, by));
    _mm_xor_si128(_mm_xor_si128(low, next), high)
}

/// The state behind the bytes that `value` stands for.
#[inline]
#[target_feature(enable = "sse4.2")]
pub(super) fn reduce(value: __m128i) -> u32 {
    let (low, high) = (_mm_cvtsi128_si64(value), _mm_extract_epi64::<1>(value));
    _mm_crc32_u64(_mm_crc32_u64(0, low.cast_unsigned()), high.cast_unsigned()) as u32
}
