//! The one's complement sum of the Internet checksum (RFC 1071) over contiguous bytes. The sum can also be
//! computed while the bytes are copied.
//!
//! 32-bit words are summed in 64-bit accumulators. For long runs of bytes, an x86-64 CPU uses AVX-512 or AVX2
//! if it has these instructions, which is detected at run time. If the bytes are in several pieces, the
//! caller adds the sums of the pieces.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod plain;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2Lanes;
use plain::{BLOCK, small};

/// Minimum number of bytes for which adding vectors is faster than adding single words. The detection of the
/// CPU's features counts as a part of adding vectors.
const LONG: usize = 2 * BLOCK;

/// Returns the partial checksum of `bytes`. Modulo 65,535, the result equals the sum of the 16-bit words in
/// memory order. If the number of bytes is odd, the last byte is padded with zero. For any frame the result
/// is below 2^48.
///
/// ```
/// let folded = (dp::checksum::partial(&[1, 2, 3]) % 0xffff) as u16;
/// assert_eq!(folded, u16::from_ne_bytes([1, 2]) + u16::from_ne_bytes([3, 0]));
/// ```
#[inline]
pub fn partial(bytes: &[u8]) -> u64 {
    if bytes.len() < LONG { small(bytes) } else { Instructions::best().partial(bytes) }
}

/// Copies `src` to `dst` and returns its [`partial`] checksum.
///
/// # Panics
/// If `dst` and `src` have different lengths.
#[inline]
pub fn copy_partial(dst: &mut [u8], src: &[u8]) -> u64 {
    assert_eq!(dst.len(), src.len(), "copy between runs of different length");
    Instructions::best().copy(dst, src)
}

/// The instruction set with which a checksum is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Instructions {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// The instructions that every CPU of this architecture has.
    Plain,
}

impl Instructions {
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if std::is_x86_feature_detected!("avx512f") {
                return Self::Avx512;
            }
            if std::is_x86_feature_detected!("avx2") {
                return Self::Avx2;
            }
        }
        Self::Plain
    }

    fn partial(self, bytes: &[u8]) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has AVX-512: only `best` and the tests' `supported` make this value, and both
            // functions check the CPU first.
            Self::Avx512 => unsafe { avx512::partial(bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has AVX2: only `best` and the tests' `supported` make this value, and both
            // functions check the CPU first.
            Self::Avx2 => unsafe { avx2::partial(bytes) },
            Self::Plain => plain::blocks(bytes),
        }
    }

    fn copy(self, dst: &mut [u8], src: &[u8]) -> u64 {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has AVX-512: only `best` and the tests' `supported` make this value, and both
            // functions check the CPU first.
            Self::Avx512 => unsafe { avx512::copy(dst, src) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the CPU has AVX2: only `best` and the tests' `supported` make this value, and both
            // functions check the CPU first.
            Self::Avx2 => unsafe { avx2::copy(dst, src) },
            Self::Plain => plain::copied_blocks(dst, src),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of RFC 1071, computed word by word.
    fn reference(bytes: &[u8]) -> u64 {
        bytes.chunks(2).map(|pair| u64::from(u16::from_ne_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))).sum()
    }

    fn fold(mut sum: u64) -> u64 {
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        sum
    }

    /// Returns the instructions that this CPU has, the best first.
    fn supported() -> impl Iterator<Item = Instructions> {
        let all = [
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx512, std::is_x86_feature_detected!("avx512f")),
            #[cfg(target_arch = "x86_64")]
            (Instructions::Avx2, std::is_x86_feature_detected!("avx2")),
            (Instructions::Plain, true),
        ];
        all.into_iter().filter_map(|(instructions, is_here)| is_here.then_some(instructions))
    }

    #[test]
    fn all_instructions_give_the_sum_of_the_words_at_every_length_and_alignment() {
        // The bytes vary with their position, and many are large, so carries propagate.
        let bytes: Vec<u8> =
            (0..2048 + 64_u32).map(|n| (n * n + n / 7) as u8 | ((n % 3) << 6) as u8).collect();
        assert_eq!(Instructions::best(), supported().next().unwrap());
        for len in 0..=2048 {
            for at in [0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 33, 63] {
                let bytes = &bytes[at..at + len];
                let expected = fold(reference(bytes));
                assert_eq!(fold(partial(bytes)), expected, "{len} at {at}");
                for instructions in supported() {
                    assert_eq!(
                        fold(instructions.partial(bytes)),
                        expected,
                        "{instructions:?}: {len} at {at}"
                    );
                    let mut copy = [0xee; 2048 + 64];
                    let copy = &mut copy[63 - at..63 - at + len];
                    assert_eq!(
                        fold(instructions.copy(copy, bytes)),
                        expected,
                        "{instructions:?}: {len} copied at {at}"
                    );
                    assert_eq!(copy, bytes, "{instructions:?}");
                }
            }
        }
    }

    #[test]
    fn the_largest_frame_does_not_overflow() {
        let bytes = vec![0xff; 1 << 16];
        assert!(partial(&bytes) < 1 << 48);
        assert_eq!(fold(partial(&bytes)), 0xffff);
    }

    #[test]
    #[should_panic(expected = "different length")]
    fn a_copy_has_as_many_bytes() {
        copy_partial(&mut [0; 3], &[0; 4]);
    }
}
