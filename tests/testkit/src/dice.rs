//! Seeded random numbers. Tests have recorded seeds. If a sequence changes, the seeds that were recorded for
//! this sequence are useless.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// A random number generator; the same seed gives the same draws.
#[derive(Clone, Debug)]
pub struct Dice {
    generator: Generator,
    reduction: Reduction,
}

#[derive(Clone, Debug)]
enum Generator {
    ChaCha8(ChaCha8Rng),
    SplitMix64(u64),
    /// A linear congruential generator modulo 2^64, with Knuth's multiplier for MMIX.
    Linear(u64),
    Xorshift64(u64),
}

/// How a number below a limit is computed from a number of 64 bits.
#[derive(Clone, Copy, Debug)]
enum Reduction {
    /// The upper half of the product of the number and the limit.
    Product,
    /// The remainder of the number divided by the limit.
    Remainder,
}

impl Dice {
    /// Returns stream `stream` of the seed, by ChaCha8. Draws from one stream do not change the draws from
    /// another stream.
    pub fn of_stream(seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        Self { generator: Generator::ChaCha8(rng), reduction: Reduction::Product }
    }

    /// Returns a generator by ChaCha8.
    pub fn new(seed: u64) -> Self {
        Self::by_remainder(Generator::ChaCha8(ChaCha8Rng::seed_from_u64(seed)))
    }

    /// Returns a generator by SplitMix64. SplitMix64 is cheaper than ChaCha8, and good enough to draw work or
    /// bytes.
    pub fn split_mix(seed: u64) -> Self {
        Self::by_remainder(Generator::SplitMix64(seed))
    }

    /// Returns a linear congruential generator, which draws numbers of 31 bits.
    pub fn linear(seed: u64) -> Self {
        Self::by_remainder(Generator::Linear(seed))
    }

    /// Returns a generator by xorshift64, which draws numbers of 40 bits.
    pub fn xorshift(seed: u64) -> Self {
        // The state of xorshift must not be 0.
        Self::by_remainder(Generator::Xorshift64(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    fn by_remainder(generator: Generator) -> Self {
        Self { generator, reduction: Reduction::Remainder }
    }

    /// Draws any number.
    pub fn number(&mut self) -> u64 {
        match &mut self.generator {
            Generator::ChaCha8(rng) => rng.next_u64(),
            Generator::SplitMix64(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut mixed = *state;
                mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                mixed ^ (mixed >> 31)
            }
            Generator::Linear(state) => {
                *state =
                    state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                *state >> 33
            }
            Generator::Xorshift64(state) => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                *state >> 24
            }
        }
    }

    /// Draws a number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        let number = self.number();
        match self.reduction {
            Reduction::Product => ((u128::from(number) * u128::from(end)) >> 64) as u64,
            Reduction::Remainder => number % end,
        }
    }

    /// Draws an index below `len`, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// Draws a number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Draws a number from `low` to `high` with a logarithmic distribution. `low` must not be 0.
    pub fn scaled(&mut self, low: u64, high: u64) -> u64 {
        let octaves = (high / low).ilog2();
        let base = low << self.below(u64::from(octaves) + 1);
        self.between(base, (2 * base).min(high))
    }

    /// Draws one of `choices`, which must not be empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Draws one of `choices`, with probabilities proportional to their weights. At least one weight must not
    /// be 0.
    pub fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let mut throw = self.below(choices.iter().map(|(weight, _)| weight).sum());
        for (weight, value) in choices {
            match throw.checked_sub(*weight) {
                Some(rest) => throw = rest,
                None => return *value,
            }
        }
        unreachable!("a throw is below the sum of all weights")
    }

    /// Returns `true` with probability `1 / times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns `true` with a probability of `ppm` parts per million.
    pub fn hits(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        match &mut self.generator {
            Generator::ChaCha8(rng) => rng.fill_bytes(bytes),
            _ => bytes.fill_with(|| self.number() as u8),
        }
    }

    /// Draws `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }

    /// Draws a key of 32 bytes.
    pub fn key(&mut self) -> [u8; 32] {
        let mut key = [0; 32];
        self.fill(&mut key);
        key
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// Moves `count` randomly chosen `items` to the front.
    pub fn draw<T>(&mut self, items: &mut [T], count: usize) {
        for at in 0..count.min(items.len()) {
            let other = at + self.index(items.len() - at);
            items.swap(at, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sequences have not changed since seeds were recorded with them.
    #[test]
    fn the_sequences_are_those_of_the_recorded_seeds() {
        let draws = |mut dice: Dice| {
            let numbers = [dice.number(), dice.number()];
            (numbers, [dice.below(1000), dice.below(1000)], dice.bytes(4))
        };
        for (dice, expected) in [
            (
                Dice::of_stream(7, 2),
                ([5536391431806027785, 6964474494658278128], [249, 315], vec![61, 206, 241, 169]),
            ),
            (Dice::new(7), ([2910824217569608635, 3098856782162503994], [745, 443], vec![136, 219, 55, 18])),
            (
                Dice::split_mix(7),
                ([7191089600892374487, 309689372594955804], [346, 203], vec![218, 17, 246, 254]),
            ),
            (Dice::linear(7), ([1059165278, 2052263231], [753, 673], vec![233, 3, 232, 20])),
            (Dice::xorshift(7), ([1057626598868, 1017083714849], [699, 679], vec![132, 41, 173, 66])),
        ] {
            assert_eq!(draws(dice.clone()), expected, "{dice:?}");
        }
    }

    #[test]
    fn a_draw_keeps_all_and_changes_who_is_in_front() {
        let (mut items, mut dice) = ((0..1000).collect::<Vec<_>>(), Dice::split_mix(7));
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
    fn a_shuffle_keeps_all() {
        let mut items: Vec<u32> = (0..100).collect();
        Dice::split_mix(1).shuffle(&mut items);
        assert!(!items.is_sorted());
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
    }

    #[test]
    fn a_weight_of_nothing_is_never_drawn() {
        let mut dice = Dice::new(1);
        let drawn: Vec<char> = (0..1000).map(|_| dice.weighted(&[(0, 'a'), (3, 'b'), (1, 'c')])).collect();
        let count = |of| drawn.iter().filter(|drawn| **drawn == of).count();
        assert!(count('a') == 0 && count('b') > count('c') && count('c') > 100);
    }
}
