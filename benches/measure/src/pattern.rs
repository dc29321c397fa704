//! Distinguishable bytes, and pseudorandom numbers: the same from the same seed.

/// A sequence of numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of `0..bound`; `bound` is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Moves a random choice of `count` of `items` to the front.
    pub(crate) fn draw<T>(&mut self, items: &mut [T], count: usize) {
        for at in 0..count.min(items.len()) {
            let other = at + self.below(items.len() - at);
            items.swap(at, other);
        }
    }
}

/// Bytes that differ for each seed and place.
pub(crate) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut dice = SplitMix::new(seed);
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        bytes.extend(dice.next().to_le_bytes());
    }
    bytes.truncate(count);
    bytes
}

/// The place where `got` first differs from `expected`.
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
    fn a_draw_keeps_all_and_changes_who_is_in_front() {
        let (mut items, mut dice) = ((0..1000).collect::<Vec<_>>(), SplitMix::new(7));
        dice.draw(&mut items, 64);
        let first: Vec<i32> = items[..64].to_vec();
        dice.draw(&mut items, 64);
        assert_ne!(items[..64], first[..]);
        items.sort_unstable();
        assert!(items.iter().copied().eq(0..1000));
        let mut few = [1, 2];
        dice.draw(&mut few, 64);
        assert!(few.contains(&1) && few.contains(&2));
    }

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
