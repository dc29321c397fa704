//! CRC32c by the CRC instruction in three lanes at once, for any x86-64 CPU with AVX2.
//!
//! The instruction adds 8 bytes to a CRC in 3 cycles, and a core can start one instruction per cycle. So the
//! bytes are split into three parts of equal length, whose CRCs are computed at the same time. Then the CRCs
//! of the first two parts are advanced by carry-less multiplication, and the CRCs of all three parts are
//! combined (V. Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel
//! 2011).
//!
//! If the bytes are copied, the lanes read the copy, not the source: a byte of registered memory is loaded
//! once, by the vectors that copy it. This method needs half as many instructions as folding by 128 bits, and
//! is faster than such folding from about 256 bytes on. A load that soon follows a store to the same bytes
//! waits for that store. Therefore `short` copies few bytes word by word, and computes the CRC from
//! registers.

use std::arch::x86_64::{
    __m128i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64, _mm_cvtsi32_si128,
    _mm_cvtsi64_si128, _mm_cvtsi128_si64, _mm_xor_si128,
};

use dp::checksum::Avx2Lanes;

use super::bytes::{Loader, To, append_front, append_head, append_zeros};
use super::{BLOCK_BYTES, Front, powers, short};

/// Number of bytes of a word.
const WORD: usize = size_of::<u64>();
/// Maximum number of words in a lane.
const MAX_WORDS: usize = 256;
/// Minimum number of bytes for which three lanes are faster than a single sequence of CRC instructions.
const MIN_BYTES: usize = short::MAX_BYTES + 1;

/// Multipliers that advance a CRC. From index 1 on, the multiplier at index `i` advances a CRC by `i` words.
static BY_WORDS: [u32; 2 * MAX_WORDS + 1] = powers::by_words();

/// Whether this CPU supports the method of this module.
pub(super) fn is_supported() -> bool {
    is_x86_feature_detected!("sse4.2")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("avx2")
}

/// Continues the CRC `state`, which is not complemented, with `bytes`. Returns the new CRC.
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

/// Continues the CRC `state` with bytes that are too few for lanes, and returns the new CRC.
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

/// Returns the CRCs of three parts of equal length, each of which consists of whole words. The CRC of the
/// first part continues `state`.
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

/// Continues the CRC of each lane with one word.
#[inline]
#[target_feature(enable = "sse4.2")]
fn append_words((a, b, c): (u64, u64, u64), words: [[u8; WORD]; 3]) -> (u64, u64, u64) {
    let [x, y, z] = words.map(u64::from_le_bytes);
    (_mm_crc32_u64(a, x), _mm_crc32_u64(b, y), _mm_crc32_u64(c, z))
}

/// Returns the multiplier that advances a CRC by `words` words.
#[inline]
#[target_feature(enable = "sse2")]
fn by_words(words: usize) -> __m128i {
    _mm_cvtsi32_si128(BY_WORDS[words].cast_signed())
}

/// Copies the `out.len()` bytes at `from` to `out`. Continues the CRC `state` with the copied bytes, and
/// returns the new CRC. If `TALLY` is set, also returns the partial Internet checksum of `out`.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
#[inline]
#[target_feature(enable = "sse4.2,pclmulqdq,avx2")]
pub(super) unsafe fn fetch<const TALLY: bool>(state: u32, from: *const u8, out: &mut [u8]) -> (u32, u64) {
    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable. The sink is `out`, which is
    // borrowed mutably.
    let (mut state, at) = unsafe { append_head(state, from, To(out.as_mut_ptr()), out.len()) };
    let mut from = from.wrapping_add(at);
    let (head, rest) = out.split_at_mut(at);
    let mut checksum = 0;
    // A block is still in the first-level data cache when its CRC is computed.
    for block in rest.chunks_mut(BLOCK_BYTES) {
        // SAFETY: the caller promises that `out.len()` bytes at `from` are readable. The blocks of the source
        // are contiguous and have the same lengths as the blocks of `out`.
        checksum += unsafe { copy::<TALLY>(from, block) };
        from = from.wrapping_add(block.len());
        state = append(state, block);
    }
    if TALLY && !head.is_empty() { (state, short::behind(head, checksum)) } else { (state, checksum) }
}

/// Copies the `out.len()` bytes at `from` to `out`. If `TALLY` is set, returns the partial Internet
/// checksum of these bytes.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn copy<const TALLY: bool>(from: *const u8, out: &mut [u8]) -> u64 {
    let mut tally = Avx2Lanes::new();
    let (sink, len) = (To(out.as_mut_ptr()), out.len());
    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable during this call. The sink is
    // `out`, which is borrowed mutably.
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
    let checksum = copy_tail::<TALLY>(bytes);
    if TALLY { tally.sum() + checksum } else { 0 }
}

/// Copies the bytes that are left, which are too few for a vector. If `TALLY` is set, returns the partial
/// Internet checksum of these bytes.
#[inline]
fn copy_tail<const TALLY: bool>(mut bytes: Loader<To>) -> u64 {
    let mut checksum = 0;
    let mut tally = |value: u64| {
        if TALLY {
            checksum += (value >> 32) + (value & 0xffff_ffff);
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
    checksum
}

/// Does what [`super::fetch_behind`] does, with `TALLY` instead of `tally`.
///
/// # Safety
/// The requirements of [`fetch`].
#[target_feature(enable = "sse4.2,pclmulqdq,avx2")]
pub(super) unsafe fn fetch_behind<const TALLY: bool>(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    zeros: usize,
) -> (u32, u64) {
    let state = append_front(u32::MAX, front);
    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable.
    let (state, checksum) = unsafe { fetch::<TALLY>(state, from, out) };
    (!append_zeros(state, zeros), if TALLY { front.checksum() + checksum } else { 0 })
}
