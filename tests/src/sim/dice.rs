//! Everything random, from one seed: each part of a run has a stream of its own, so that one part's throws do
//! not change another's.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

/// Which part of a run throws.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What the scenario draws before the run.
    Setup,
    /// The link of the frames that this host sends.
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

/// The dice of one part.
#[derive(Clone, Debug)]
pub struct Dice(ChaCha8Rng);

impl Dice {
    /// The dice of `part` in the run of `seed`.
    pub fn new(seed: u64, part: Part) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(part.stream());
        Self(rng)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// From `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// From `low` to `high`, each order of magnitude as likely as another; `low` is not 0.
    pub fn scaled(&mut self, low: u64, high: u64) -> u64 {
        let octaves = (high / low).ilog2();
        let base = low << self.below(u64::from(octaves) + 1);
        self.between(base, (2 * base).min(high))
    }

    /// One of `choices`, which has some.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Once in `times`.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// With so many parts per million.
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
