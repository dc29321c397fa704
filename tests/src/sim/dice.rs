//! All random numbers of a run, from one seed. Each part of the run has its own stream of numbers, so that
//! draws of one part do not change the draws of another part.

use testkit::dice::Dice;

/// The part of a run that draws numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The parameters that the scenario draws before the run.
    Setup,
    /// The link in the direction in which this host sends.
    Link(usize),
    /// The secrets of this host.
    Host(usize),
}

impl Part {
    /// Returns the dice of this part in the run of `seed`.
    pub fn dice(self, seed: u64) -> Dice {
        let stream = match self {
            Self::Setup => 0,
            Self::Link(side) => 1 + side as u64,
            Self::Host(side) => 3 + side as u64,
        };
        Dice::of_stream(seed, stream)
    }
}
