//! The constants of `tests/iwprobe/TARGET.md` for our two implementations: [`target`](crate::target) and
//! [`scenes`](crate::scenes). `iwprobe` has its own copy, since it shares no code with these modules.

/// The first word of every text.
pub const MAGIC: &str = "iwp1";
/// Maximum length in bytes of a text.
pub const MAX_TEXT: usize = 192;
/// Index of the pattern that a target sends and writes.
pub const SOURCE: usize = 100;

/// Returns byte `at` of pattern `index`.
pub fn pattern_byte(index: usize, at: usize) -> u8 {
    (at + 7 * (at / 256) + 59 * index + 13) as u8
}

/// Returns the first `length` bytes of pattern `index`.
pub fn pattern(index: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| pattern_byte(index, at)).collect()
}

/// Returns the first `length` bytes of a sequence that differs from pattern `index` in every byte. If the
/// beginning of the sequence is missing, the bytes show how much is missing.
pub fn contrary(index: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| pattern_byte(index, at) ^ (0x80 | (at % 127) as u8)).collect()
}

#[cfg(test)]
mod tests {
    use super::{contrary, pattern, pattern_byte};

    /// The patterns and the CRC are as `TARGET.md` describes them.
    #[test]
    fn bytes_are_as_agreed() {
        assert_eq!(pattern(0, 3), [13, 14, 15]);
        assert_eq!(pattern_byte(1, 256), ((256 + 7 + 59 + 13) % 256) as u8);
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        for index in 0..4 {
            let pairs = pattern(index, 70_000).into_iter().zip(contrary(index, 70_000));
            assert_eq!(pairs.filter(|(byte, other)| byte == other).count(), 0);
        }
    }
}
