//! All random choices of a run, from one number.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A generator; the same seed gives the same draws.
pub(crate) struct Dice(ChaCha8Rng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(crate) fn seed(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// From 0 to `bound - 1`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.0.next_u64() % bound as u64) as usize
    }

    /// True once in `n` draws.
    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// One of `of`, each as often as its weight says.
    pub(crate) fn weighted<T: Copy>(&mut self, of: &[(usize, T)]) -> T {
        let mut throw = self.below(of.iter().map(|(weight, _)| weight).sum());
        for (weight, value) in of {
            match throw.checked_sub(*weight) {
                Some(rest) => throw = rest,
                None => return *value,
            }
        }
        unreachable!("a throw is below the sum of all weights")
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// The length of a message: around the limits of segments, small, and sometimes long.
    pub(crate) fn length(&mut self) -> usize {
        match self.below(20) {
            0 => 0,
            1..=3 => self.pick(&[1, 4, 7, 8, 9]),
            4..=6 => self.pick(&[1400, 1424, 1428, 1430, 1440, 1446, 2856]),
            7 => 4000 + self.below(16_000),
            8..=11 => 1500 + self.below(4000),
            _ => 1 + self.below(600),
        }
    }
}
