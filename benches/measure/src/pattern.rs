//! Distinguishable bytes. Equal seeds give equal bytes.

use testkit::dice::Dice;

/// Returns `count` bytes, each of which depends on the seed and on the position of the byte.
pub(crate) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut dice = Dice::split_mix(seed);
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        bytes.extend(dice.number().to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// Returns the index of the first byte of `got` that differs from `expected`, or `None` if no byte differs.
/// If the lengths differ, returns the smaller length.
pub(crate) fn difference(expected: &[u8], got: &[u8]) -> Option<usize> {
    if expected.len() != got.len() {
        return Some(expected.len().min(got.len()));
    }
    expected.iter().zip(got).position(|(expected, got)| expected != got)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_changed_byte_is_found() {
        let (a, mut b) = (bytes(1, 1001), bytes(1, 1001));
        assert_eq!((a.len(), difference(&a, &b)), (1001, None));
        b[777] ^= 1;
        assert_eq!(difference(&a, &b), Some(777));
        assert_eq!(difference(&a, &a[..1000]), Some(1000));
        assert!(difference(&a, &bytes(2, 1001)).is_some());
    }
}
