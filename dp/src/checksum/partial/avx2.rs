//! Checksums with vectors of 256 bits (AVX2).

use std::arch::x86_64::*;

use super::plain::{BLOCK, small};

/// 64-bit sums at each position of a vector of 32 bytes. Code that has loaded the vectors for another purpose
/// can also use these sums. The sum of the even words is `all - (odd << 32)` modulo 2^64, so the even words
/// need no separate sum.
pub struct Avx2Lanes {
    /// Sums modulo 2^64. Each pair of 32-bit words is added as one 64-bit number.
    all: __m256i,
    /// Sums of the odd words.
    odd: __m256i,
}

impl Avx2Lanes {
    /// Makes sums that are all zero.
    ///
    /// # Safety
    /// The CPU has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn new() -> Self {
        Self { all: _mm256_setzero_si256(), odd: _mm256_setzero_si256() }
    }

    /// Adds the words of a vector to the sums.
    ///
    /// # Safety
    /// The CPU has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn add(&mut self, words: __m256i) {
        self.all = _mm256_add_epi64(self.all, words);
        self.odd = _mm256_add_epi64(self.odd, _mm256_srli_epi64::<32>(words));
    }

    /// Returns the sum of the added vectors, in the form that [`partial`](super::partial) returns. The result
    /// is exact for as many vectors as one frame can have.
    ///
    /// # Safety
    /// The CPU has AVX2.
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn sum(self) -> u64 {
        let even = _mm256_sub_epi64(self.all, _mm256_slli_epi64::<32>(self.odd));
        let [a, b, c, d]: [u64; 4] = to_words(_mm256_add_epi64(even, self.odd));
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

/// The AVX2 variant of [`partial`](super::partial).
#[target_feature(enable = "avx2")]
pub(super) fn partial(bytes: &[u8]) -> u64 {
    let (halves, rest) = bytes.as_chunks();
    let (steps, last) = halves.as_chunks::<4>();
    let mut lanes = Avx2Lanes::new();
    for [a, b, c, d] in steps {
        lanes.add(load(a));
        lanes.add(load(b));
        lanes.add(load(c));
        lanes.add(load(d));
    }
    for half in last {
        lanes.add(load(half));
    }
    match bytes.last_chunk() {
        // With an odd number of bytes, `last_bytes` would put each byte in the wrong half of its word. So it
        // is used only for an even number.
        Some(end) if !rest.is_empty() && bytes.len().is_multiple_of(2) => {
            lanes.add(last_bytes(end, rest.len()))
        }
        _ => return lanes.sum() + small(rest),
    }
    lanes.sum()
}

/// Returns a vector that ends with the last `bytes` bytes of `end`, and has zeros before these bytes.
#[inline]
#[target_feature(enable = "avx2")]
fn last_bytes(end: &[u8; BLOCK / 2], bytes: usize) -> __m256i {
    /// 32 bytes 0x00, followed by 32 bytes 0xff. So in the 32 bytes at index `n`, the last `n` bytes are
    /// 0xff.
    static MASK: [u8; BLOCK] = {
        let mut mask = [0; BLOCK];
        mask.split_at_mut(BLOCK / 2).1.copy_from_slice(&[0xff; BLOCK / 2]);
        mask
    };
    match MASK.get(bytes..).and_then(|mask| mask.first_chunk()) {
        Some(mask) => _mm256_and_si256(load(end), load(mask)),
        None => _mm256_setzero_si256(),
    }
}

/// Copies half a block, and returns the copied bytes as a vector.
#[inline]
#[target_feature(enable = "avx2")]
fn copy_half(dst: &mut [u8; BLOCK / 2], src: &[u8; BLOCK / 2]) -> __m256i {
    let words = load(src);
    // SAFETY: half a block has the 32 bytes that are stored, and the instruction needs no alignment.
    unsafe { _mm256_storeu_si256(dst.as_mut_ptr().cast(), words) };
    words
}

/// The AVX2 variant of [`copy_partial`](super::copy_partial). The caller checks that the lengths are equal.
#[target_feature(enable = "avx2")]
pub(super) fn copy(dst: &mut [u8], src: &[u8]) -> u64 {
    let (dst_halves, dst_rest) = dst.as_chunks_mut();
    let (halves, rest) = src.as_chunks();
    let (dst_pairs, dst_last) = dst_halves.as_chunks_mut();
    let (pairs, last) = halves.as_chunks();
    let mut lanes = Avx2Lanes::new();
    // Each step stores two vectors: the compiler would turn a loop that stores one vector into a call of
    // memcpy and a second pass.
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
