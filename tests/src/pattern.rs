//! The contents of test streams. Each byte depends only on a seed and on the byte's offset in the stream.
//! Therefore a receiver can check any part of the stream, in any order, and report the first wrong byte.

/// The contents of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    seed: u64,
}

impl Pattern {
    /// Returns the pattern of a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// Fills `out` with the bytes of the stream from `offset` on.
    pub fn fill(self, offset: u64, out: &mut [u8]) {
        for (byte, at) in out.iter_mut().zip(offset..) {
            *byte = self.byte(at);
        }
    }

    /// Returns the offset in the stream of the first wrong byte of `bytes`, which begin at `offset`, or
    /// `None` if all bytes are right.
    pub fn first_wrong(self, offset: u64, bytes: &[u8]) -> Option<u64> {
        bytes.iter().zip(offset..).find_map(|(&byte, at)| (byte != self.byte(at)).then_some(at))
    }

    /// Returns the byte at offset `at`. Each word of eight bytes is a SplitMix64 value, which depends on the
    /// seed and on the word's number.
    fn byte(self, at: u64) -> u8 {
        let mut z = self.seed.wrapping_add((at / 8).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)).to_le_bytes()[(at % 8) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::Pattern;

    #[test]
    fn pieces_in_any_order_are_the_stream_and_a_wrong_byte_is_named() {
        let pattern = Pattern::new(7);
        let mut whole = [0u8; 1000];
        pattern.fill(0, &mut whole);
        let mut piece = [0u8; 101];
        pattern.fill(333, &mut piece);
        assert_eq!(piece[..], whole[333..434]);
        assert_eq!(pattern.first_wrong(333, &piece), None);
        piece[40] ^= 1;
        assert_eq!(pattern.first_wrong(333, &piece), Some(373));
        assert!(Pattern::new(8).first_wrong(0, &whole).is_some());
    }
}
