//! The contents of test streams. Each byte is a function of its offset, so a receiver can check any part of a
//! stream without the sent bytes.

/// Returns the byte at `offset` of a stream.
pub fn byte(offset: u64) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

#[cfg(test)]
mod tests {
    use super::byte;

    /// Pieces that are exchanged, repeated or moved are noticed, since neighbours differ.
    #[test]
    fn bytes_are_spread_and_the_same_in_each_run() {
        assert_eq!([0, 1, 2, 3].map(byte), [0, 0x9e, 0x3c, 0xda]);
        let mut counts = [0_u32; 256];
        (0..256 * 64).for_each(|offset| counts[usize::from(byte(offset))] += 1);
        assert!(counts.iter().all(|count| (60..=68).contains(count)), "{counts:?}");
    }
}
