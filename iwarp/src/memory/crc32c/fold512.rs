//! CRC32c by carry-less multiplication of 512 bits (AVX-512 with VPCLMULQDQ), without a copy or with a copy
//! in the same pass.
//!
//! From 256 bytes on, four values of 64 bytes each represent all bytes so far. Each step folds these values
//! forward by 256 bytes and adds the next 256 bytes (V. Gopal et al., "Fast CRC computation for generic
//! polynomials using PCLMULQDQ instruction", Intel 2009). After the last step, the four values are folded
//! into one value, to which the next values of 64 bytes are added one by one. The CRC instruction, which has
//! no setup cost, is used for short runs of bytes and for the bytes after the last whole value. It is also
//! used for the first bytes of a copy from an address that is not a multiple of 8.

use std::arch::x86_64::{
    __m128i, __m512i, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi32_si128, _mm_cvtsi128_si64,
    _mm_extract_epi64, _mm_set_epi64x, _mm_xor_si128, _mm512_broadcast_i32x4, _mm512_castsi512_si128,
    _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_ternarylogic_epi64, _mm512_xor_si512,
    _mm512_zextsi128_si512,
};

use super::Front;
use super::bytes::{Loader, Nowhere, Sink, To, append_front, append_head, append_tail, append_zeros};
use super::{powers, short};

/// Number of bytes of a value.
const VALUE: usize = size_of::<__m512i>();
/// Number of bytes of a step.
const STEP: usize = 4 * VALUE;

/// Whether this CPU supports the method of this module.
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("avx")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("vpclmulqdq")
}

/// Continues the CRC `state`, which is not complemented, with `bytes`. Returns the new CRC.
#[target_feature(enable = "sse4.2,pclmulqdq,avx,avx512f,vpclmulqdq")]
pub(super) fn append(state: u32, bytes: &[u8]) -> u32 {
    // SAFETY: `bytes` is a slice, so its bytes are readable and no other code writes them. `Nowhere` stores
    // no byte. The offset 0 does not exceed the length.
    unsafe { run(state, bytes.as_ptr(), Nowhere, 0, bytes.len()) }
}

/// Copies the `out.len()` bytes at `from` to `out`. Continues the CRC `state` with the copied bytes, and
/// returns the new CRC.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx,avx512f,vpclmulqdq")]
pub(super) unsafe fn fetch(state: u32, from: *const u8, out: &mut [u8]) -> u32 {
    let (sink, len) = (To(out.as_mut_ptr()), out.len());
    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable. The sink is `out`, which is
    // borrowed mutably.
    let (state, at) = unsafe { append_head(state, from, sink, len) };
    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable. The sink is `out`, which is
    // borrowed mutably. `append_head` consumes at most `len` bytes.
    unsafe { run(state, from, sink, at, len) }
}

/// Does what [`super::fetch_behind`] does. The Internet checksum is computed in a second pass, which is
/// faster with this method than to compute everything in one pass.
///
/// # Safety
/// The requirements of [`fetch`].
#[target_feature(enable = "sse4.2,pclmulqdq,avx,avx512f,vpclmulqdq")]
pub(super) unsafe fn fetch_behind(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    (zeros, tally): (usize, bool),
) -> (u32, u64) {
    let state = append_front(u32::MAX, front);
    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable.
    let state = unsafe { fetch(state, from, out) };
    (!append_zeros(state, zeros), if tally { front.checksum() + dp::checksum::partial(out) } else { 0 })
}

/// Continues the CRC `state` with the bytes of `from` at `at..len`, and stores these bytes to `sink`. Returns
/// the new CRC.
///
/// # Safety
/// `at` is at most `len`. `from..from + len` is mapped and readable, and other threads access it only through
/// atomics and raw copies. `sink` has room for `len` bytes, which no other code accesses during the call.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx,avx512f,vpclmulqdq")]
unsafe fn run(state: u32, from: *const u8, sink: impl Sink, at: usize, len: usize) -> u32 {
    // SAFETY: the caller promises what `new` requires. `at` is at most `len`. The bytes at `from` are mapped
    // and readable, and other threads change them only through atomics and raw copies. `sink` has room for
    // `len` bytes that no other code accesses. The caller's promise is valid during this call, and `bytes`
    // does not exist longer than the call.
    let mut bytes = unsafe { Loader::new(from, sink, at, len) };
    if bytes.left() <= short::MAX_BYTES {
        return append_tail::<false>(state, bytes).0;
    }
    let before = _mm512_zextsi128_si512(_mm_cvtsi32_si128(state.cast_signed()));
    let by_one = const { powers::fold(VALUE) };
    let mut value = before;
    if let Some(mut values) = bytes.next_512::<{ STEP / VALUE }>() {
        let by_step = const { powers::fold(STEP) };
        values[0] = _mm512_xor_si512(values[0], before);
        while let Some(next) = bytes.next_512::<{ STEP / VALUE }>() {
            for (value, next) in values.iter_mut().zip(next) {
                *value = fold(*value, by_step, next);
            }
        }
        let [a, b, c, d] = values;
        let by_two = const { powers::fold(2 * VALUE) };
        value = fold(fold(a, by_one, b), by_two, fold(c, by_one, d));
    } else if let Some([first]) = bytes.next_512() {
        value = _mm512_xor_si512(first, before);
    }
    while let Some([next]) = bytes.next_512() {
        value = fold(value, by_one, next);
    }
    append_tail::<false>(to_state(value), bytes).0
}

/// Folds each of the four parts of `value` forward to the position of the same part of `next`, and adds
/// `next`.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn fold(value: __m512i, by: [u64; 2], next: __m512i) -> __m512i {
    let by = _mm512_broadcast_i32x4(_mm_set_epi64x(by[1].cast_signed(), by[0].cast_signed()));
    let low = _mm512_clmulepi64_epi128::<0x00>(value, by);
    let high = _mm512_clmulepi64_epi128::<0x11>(value, by);
    // 0x96 selects the exclusive or of the three operands.
    _mm512_ternarylogic_epi64::<0x96>(low, high, next)
}

/// Returns the state of the CRC after the bytes that `value` represents.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx,avx512f")]
fn to_state(value: __m512i) -> u32 {
    let first = _mm512_castsi512_si128(value);
    let second = _mm512_extracti32x4_epi32::<1>(value);
    let third = _mm512_extracti32x4_epi32::<2>(value);
    let last = _mm512_extracti32x4_epi32::<3>(value);
    let last = fold_one(third, const { powers::fold(16) }, last);
    let last = fold_one(second, const { powers::fold(32) }, last);
    reduce(fold_one(first, const { powers::fold(48) }, last))
}

/// Folds `value` forward to the position of `next`, and adds `next`.
#[inline]
#[target_feature(enable = "pclmulqdq,avx")]
fn fold_one(value: __m128i, by: [u64; 2], next: __m128i) -> __m128i {
    let by = _mm_set_epi64x(by[1].cast_signed(), by[0].cast_signed());
    let (low, high) = (_mm_clmulepi64_si128::<0x00>(value, by), _mm_clmulepi64_si128::<0x11>(value, by));
    _mm_xor_si128(_mm_xor_si128(low, next), high)
}

/// Returns the state of the CRC after the bytes that `value` represents.
#[inline]
#[target_feature(enable = "sse4.2,avx")]
fn reduce(value: __m128i) -> u32 {
    let (low, high) = (_mm_cvtsi128_si64(value), _mm_extract_epi64::<1>(value));
    _mm_crc32_u64(_mm_crc32_u64(0, low.cast_unsigned()), high.cast_unsigned()) as u32
}
