//! With vectors of 256 bits.

use std::arch::x86_64::*;

use super::plain::{BLOCK, small};

/// Sums of even and odd words, 64 bits each.
struct Avx2Lanes {
    even: __m256i,
    odd: __m256i,
}

impl Avx2Lanes {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new() -> Self {
        Self { even: _mm256_setzero_si256(), odd: _mm256_setzero_si256() }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn add(&mut self, words: __m256i) {
        let low = _mm256_set1_epi64x(0xffff_ffff);
        self.even = _mm256_add_epi64(self.even, _mm256_and_si256(words, low));
        self.odd = _mm256_add_epi64(self.odd, _mm256_srli_epi64::<32>(words));
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn sum(self) -> u64 {
        let [a, b, c, d]: [u64; 4] = to_words(_mm256_add_epi64(self.even, self.odd));
        a + b + c + d
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn to_words(vector: __m256i) -> [u64; 4] {
    let mut words = [0; 4];
    // SAFETY: the array has the 32 bytes that are stored, and the instruction needs no alignment.
    unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), vector) };
    words
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(half: &[u8; BLOCK / 2]) -> __m256i {
    // SAFETY: half a block has the 32 bytes that are loaded, and the instruction needs no alignment.
    unsafe { _mm256_loadu_si256(half.as_ptr().cast()) }
}

/// See [`of`](super::of).
#[target_feature(enable = "avx2")]
pub(super) fn of(bytes: &[u8]) -> u64 {
    let (halves, rest) = bytes.as_chunks();
    let mut lanes = Avx2Lanes::new();
    for half in halves {
        lanes.add(load(half));
    }
    lanes.sum() + small(rest)
}

/// Copies half a block and returns it.
#[inline]
#[target_feature(enable = "avx2")]
fn copy_half(dst: &mut [u8; BLOCK / 2], src: &[u8; BLOCK / 2]) -> __m256i {
    let words = load(src);
    // SAFETY: half a block has the 32 bytes that are stored, and the instruction needs no alignment.
    unsafe { _mm256_storeu_si256(dst.as_mut_ptr().cast(), words) };
    words
}

/// See [`copy`](super::copy); the caller checks that the lengths are equal.
#[target_feature(enable = "avx2")]
pub(super) fn copy(dst: &mut [u8], src: &[u8]) -> u64 {
    let (dst_halves, dst_rest) = dst.as_chunks_mut();
    let (halves, rest) = src.as_chunks();
    let (dst_pairs, dst_last) = dst_halves.as_chunks_mut();
    let (pairs, last) = halves.as_chunks();
    let mut lanes = Avx2Lanes::new();
    // Two vectors a step: the compiler makes a loop that stores one into a call of memcpy and a second pass.
    for ([dst_a, dst_b], [a, b]) in dst_pairs.iter_mut().zip(pairs) {
        let words = [copy_half(dst_a, a), copy_half(dst_b, b)];
        lanes.add(words[0]);
        lanes.add(words[1]);
    }
    if let ([dst], [half]) = (dst_last, last) {
        lanes.add(copy_half(dst, half));
    }
    dst_rest.copy_from_slice(rest);
    lanes.sum() + small(rest)
}
