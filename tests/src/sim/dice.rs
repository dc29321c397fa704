//! All random numbers, from one seed. Each part of a run has its own stream of numbers, so that draws of one
//! part do not change those of another.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// The part of a run that draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The parameters that the scenario draws before the run.
    Setup,
    /// The link for the frames that this host sends.
    Link(usize),
    /// Secrets of this host.
    Host(usize),
}

impl Part {
    fn stream(self) -> u64 {
        match self {
            Self::Setup => 0,
            Self::Link(side) => 1 + side as u64,
            Self::Host(side) => 3 + side as u64,
        }
    }
}

/// The random number generator of one part.
#[derive(Clone, Debug)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The generator for `part` in the run of `seed`.
    pub fn new(seed: u64, part: Part) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(part.stream());
        Self(rng)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number from `low` to `high` with a logarithmic distribution; `low` is not 0.
    pub fn scaled(&mut self, low: u64, high: u64) -> u64 {
        let octaves = (high / low).ilog2();
        let base = low << self.below(u64::from(octaves) + 1);
        self.between(base, (2 * base).min(high))
    }

    /// One of `choices`, which is not empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// True with probability `1 / times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// True with a probability of `ppm` parts per million.
    pub fn hits(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }

    /// A key of 32 bytes.
    pub fn key(&mut self) -> [u8; 32] {
        let mut key = [0; 32];
        self.0.fill_bytes(&mut key);
        key
    }
}
