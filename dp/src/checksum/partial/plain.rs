//! Checksums with the instructions that every CPU of the architecture has.

/// Number of bytes of a block. Vector code adds whole blocks.
pub(super) const BLOCK: usize = 64;

/// Sums of the words at each position of a block.
type Lanes = [u64; BLOCK / 4];

/// Returns the sum of `bytes`.
#[inline(always)]
pub(super) fn blocks(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK>();
    let mut lanes = Lanes::default();
    for block in blocks {
        add(&mut lanes, block);
    }
    lanes.iter().sum::<u64>() + small(rest)
}

/// Copies `src` to `dst` and returns the sum. `dst` and `src` have the same length.
#[inline(always)]
pub(super) fn copied_blocks(dst: &mut [u8], src: &[u8]) -> u64 {
    let (dst_blocks, dst_rest) = dst.as_chunks_mut::<BLOCK>();
    let (blocks, rest) = src.as_chunks::<BLOCK>();
    let mut lanes = Lanes::default();
    for (dst, block) in dst_blocks.iter_mut().zip(blocks) {
        *dst = *block;
        add(&mut lanes, block);
    }
    dst_rest.copy_from_slice(rest);
    lanes.iter().sum::<u64>() + small(rest)
}

#[inline(always)]
fn add(lanes: &mut Lanes, block: &[u8; BLOCK]) {
    let (words, _) = block.as_chunks::<4>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        *lane += u64::from(u32::from_ne_bytes(*word));
    }
}

/// Returns the sum of `bytes`, computed word by word. For few bytes this function is faster than [`blocks`].
#[inline(always)]
pub(super) fn small(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut sum = 0;
    for word in words {
        sum += u64::from(u32::from_ne_bytes(*word));
    }
    let (pairs, last) = rest.as_chunks::<2>();
    if let [pair] = pairs {
        sum += u64::from(u16::from_ne_bytes(*pair));
    }
    if let [byte] = last {
        sum += u64::from(u16::from_ne_bytes([*byte, 0]));
    }
    sum
}
