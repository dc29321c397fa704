//! CRC32c by the CRC instruction in three lanes at once: any x86-64 with AVX2.
//!
//! The instruction takes 8 bytes in 3 cycles, and a core starts one each cycle. So the bytes are cut in three
//! parts of equal length, which are taken at the same time. Then the CRCs are moved on by carry-less
//! multiplication, and added (V. Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32
//! Instruction", Intel 2011).
//!
//! The lanes read the copy, not the source: a byte of registered memory is loaded once, by the vectors that
//! copy it. Vectors of 32 bytes and the CRC instruction together are half of the instructions that folding by
//! 128 bits needs, and faster from some 256 bytes on. A load just behind the store of its bytes waits for
//! the store, so few bytes are copied word by word.

use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi32_si128,
    _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_xor_si128,
};

use dp::checksum::Avx2Lanes;

use super::bytes::{Loader, To, append_front, append_head, append_zeros};
use super::{BLOCK_BYTES, Front, powers, short};

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
/// Maximum words of a lane.
const MAX_WORDS: usize = 256;
/// The length from which lanes are faster than the CRC instruction one by one.
const MIN_BYTES: usize = short::MAX_BYTES + 1;

/// Multipliers that move a CRC on by as many words as their index.
static BY_WORDS: [u32; 2 * MAX_WORDS + 1] = powers::by_words();

/// Whether this CPU supports it.
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("avx2")
}

/// Continues the CRC `state`, which is not complemented, with `bytes`.
#[target_feature(enable = "sse4.2,pclmulqdq")]
pub(super) fn append(state: u32, bytes: &[u8]) -> u32 {
    let (mut state, mut bytes) = (state, bytes);
    while bytes.len() >= MIN_BYTES {
        let words = (bytes.len() / (3 * WORD)).min(MAX_WORDS);
        let (a, rest) = bytes.split_at(words * WORD);
        let (b, rest) = rest.split_at(words * WORD);
        let (c, rest) = rest.split_at(words * WORD);
        let (a, b, c) = append_lanes(state, a, b, c);
        let a = _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(a.cast_signed()), by_words(2 * words));
        let b = _mm_clmulepi64_si128::<0x00>(_mm_cvtsi64_si128(b.cast_signed()), by_words(words));
        let before = _mm_cvtsi128_si64(_mm_xor_si128(a, b)).cast_unsigned();
        state = (_mm_crc32_u64(0, before) ^ c) as u32;
        bytes = rest;
    }
    append_rest(state, bytes)
}

/// Adds bytes that are too few for lanes.
#[inline]
#[target_feature(enable = "sse4.2")]
fn append_rest(state: u32, bytes: &[u8]) -> u32 {
    let (mut state, mut bytes) = (u64::from(state), bytes);
    while let Some((word, rest)) = bytes.split_first_chunk() {
        (state, bytes) = (_mm_crc32_u64(state, u64::from_le_bytes(*word)), rest);
    }
    let mut state = state as u32;
    if let Some((half, rest)) = bytes.split_first_chunk() {
        (state, bytes) = (_mm_crc32_u32(state, u32::from_le_bytes(*half)), rest);
    }
    bytes.iter().fold(state, |state, byte| _mm_crc32_u8(state, *byte))
}

/// Adds three parts of equal length, whole words each; the first continues `state`.
#[inline]
#[target_feature(enable = "sse4.2")]
fn append_lanes(state: u32, a: &[u8], b: &[u8], c: &[u8]) -> (u64, u64, u64) {
    let [a, b, c] = [a, b, c].map(|lane| lane.as_chunks::<WORD>().0.as_chunks::<8>());
    let mut crcs = (u64::from(state), 0, 0);
    for ((a, b), c) in a.0.iter().zip(b.0).zip(c.0) {
        for ((a, b), c) in a.iter().zip(b).zip(c) {
            crcs = append_words(crcs, [*a, *b, *c]);
        }
    }
    for ((a, b), c) in a.1.iter().zip(b.1).zip(c.1) {
        crcs = append_words(crcs, [*a, *b, *c]);
    }
    crcs
}

/// Continues each lane with a word.
#[inline]
#[target_feature(enable = "sse4.2")]
fn append_words((a, b, c): (u64, u64, u64), words: [[u8; WORD]; 3]) -> (u64, u64, u64) {
    let [x, y, z] = words.map(u64::from_le_bytes);
    (_mm_crc32_u64(a, x), _mm_crc32_u64(b, y), _mm_crc32_u64(c, z))
}

/// The multiplier that moves a CRC on by as many words.
#[inline]
#[target_feature(enable = "sse2")]
fn by_words(words: usize) -> __m128i {
    _mm_cvtsi32_si128(BY_WORDS[words].cast_signed())
}

/// Copies `out.len()` bytes from `from` on, and continues the CRC `state` with the copied bytes. If `TALLY`,
/// also returns the partial Internet checksum of `out`.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2")]
pub(super) unsafe fn fetch<const TALLY: bool>(state: u32, from: *const u8, out: &mut [u8]) -> (u32, u64) {
    // SAFETY: the caller promises the bytes at `from`. The sink is `out`, which is borrowed mutably.
    let (mut state, at) = unsafe { append_head(state, from, To(out.as_mut_ptr()), out.len()) };
    let mut from = from.wrapping_add(at);
    let (head, rest) = out.split_at_mut(at);
    let mut sum = 0;
    // A block is still in the first-level data cache when the CRC reads it.
    for block in rest.chunks_mut(BLOCK_BYTES) {
        // SAFETY: the caller promises the bytes at `from` for the whole of `out`, and the blocks follow each
        // other there as they do in `out`.
        sum += unsafe { copy::<TALLY>(from, block) };
        from = from.wrapping_add(block.len());
        state = append(state, block);
    }
    if TALLY && !head.is_empty() { (state, short::behind(head, sum)) } else { (state, sum) }
}

/// Copies `out.len()` bytes from `from` on. If `TALLY`, returns their sum for the Internet checksum.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn copy<const TALLY: bool>(from: *const u8, out: &mut [u8]) -> u64 {
    let mut tally = Avx2Lanes::new();
    let (sink, len) = (To(out.as_mut_ptr()), out.len());
    // SAFETY: the caller promises the bytes at `from`, for as long as this call. The sink is `out`, which is
    // borrowed mutably.
    let mut bytes = unsafe { Loader::new(from, sink, 0, len) };
    while let Some(vectors) = bytes.next_256::<4>() {
        if TALLY {
            vectors.into_iter().for_each(|vector| tally.add(vector));
        }
    }
    while let Some([vector]) = bytes.next_256() {
        if TALLY {
            tally.add(vector);
        }
    }
    let sum = copy_tail::<TALLY>(bytes);
    if TALLY { tally.sum() + sum } else { 0 }
}

/// Copies the bytes that are left, less than a vector. If `TALLY`, returns their sum for the Internet
/// checksum.
#[inline]
fn copy_tail<const TALLY: bool>(mut bytes: Loader<To>) -> u64 {
    let mut sum = 0;
    let mut tally = |value: u64| {
        if TALLY {
            sum += (value >> 32) + (value & 0xffff_ffff);
        }
    };
    while let Some(word) = bytes.next::<u64>() {
        tally(word);
    }
    if let Some(value) = bytes.next::<u32>() {
        tally(u64::from(value));
    }
    if let Some(value) = bytes.next::<u16>() {
        tally(u64::from(value));
    }
    if let Some(value) = bytes.next::<u8>() {
        tally(u64::from(value));
    }
    sum
}

/// As [`super::fetch_behind`]; if `TALLY`, with the sum for the Internet checksum.
///
/// # Safety
/// As [`fetch`].
#[target_feature(enable = "sse4.2,pclmulqdq,avx2")]
pub(super) unsafe fn fetch_behind<const TALLY: bool>(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    zeros: usize,
) -> (u32, u64) {
    let state = append_front(u32::MAX, front);
    // SAFETY: the caller promises the bytes at `from`.
    let (state, sum) = unsafe { fetch::<TALLY>(state, from, out) };
    (!append_zeros(state, zeros), if TALLY { front.sum() + sum } else { 0 })
}
