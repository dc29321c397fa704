//! Checksums with vectors of 512 bits (AVX-512).

use std::arch::x86_64::*;

use super::plain::{BLOCK, small};

/// 64-bit sums at each position of a vector. The sum of the even words is `all - (odd << 32)` modulo 2^64, so
/// the even words need no separate sum.
struct Avx512Lanes {
    /// Sums modulo 2^64. Each pair of 32-bit words is added as one 64-bit number.
    all: __m512i,
    /// Sums of the odd words.
    odd: __m512i,
}

impl Avx512Lanes {
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new() -> Self {
        Self { all: _mm512_setzero_si512(), odd: _mm512_setzero_si512() }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn add(&mut self, words: __m512i) {
        self.all = _mm512_add_epi64(self.all, words);
        self.odd = _mm512_add_epi64(self.odd, _mm512_srli_epi64::<32>(words));
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn sum(self) -> u64 {
        let even = _mm512_sub_epi64(self.all, _mm512_slli_epi64::<32>(self.odd));
        _mm512_reduce_add_epi64(_mm512_add_epi64(even, self.odd)) as u64
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(block: &[u8; BLOCK]) -> __m512i {
    // SAFETY: a block has the 64 bytes that are loaded, and the instruction needs no alignment.
    unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
}

/// The AVX-512 variant of [`partial`](super::partial).
#[target_feature(enable = "avx512f")]
pub(super) fn partial(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks();
    let mut lanes = Avx512Lanes::new();
    for block in blocks {
        lanes.add(load(block));
    }
    lanes.sum() + small(rest)
}

/// Copies a block, and returns the copied bytes as a vector.
#[inline]
#[target_feature(enable = "avx512f")]
fn copy_block(dst: &mut [u8; BLOCK], src: &[u8; BLOCK]) -> __m512i {
    let words = load(src);
    // SAFETY: a block has the 64 bytes that are stored, and the instruction needs no alignment.
    unsafe { _mm512_storeu_si512(dst.as_mut_ptr().cast(), words) };
    words
}

/// The AVX-512 variant of [`copy_partial`](super::copy_partial). The caller checks that the lengths are
/// equal.
#[target_feature(enable = "avx512f")]
pub(super) fn copy(dst: &mut [u8], src: &[u8]) -> u64 {
    let (dst_blocks, dst_rest) = dst.as_chunks_mut::<BLOCK>();
    let (blocks, rest) = src.as_chunks::<BLOCK>();
    let (dst_pairs, dst_last) = dst_blocks.as_chunks_mut();
    let (pairs, last) = blocks.as_chunks();
    let mut lanes = Avx512Lanes::new();
    // Each step stores two blocks: the compiler would turn a loop that stores one block into a call of memcpy
    // and a second pass.
    for ([dst_a, dst_b], [a, b]) in dst_pairs.iter_mut().zip(pairs) {
        let words = [copy_block(dst_a, a), copy_block(dst_b, b)];
        lanes.add(words[0]);
        lanes.add(words[1]);
    }
    if let ([dst], [block]) = (dst_last, last) {
        lanes.add(copy_block(dst, block));
    }
    dst_rest.copy_from_slice(rest);
    lanes.sum() + small(rest)
}
