//! Decides the faults of the frames that one port sends.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng, SeedableRng};

use super::config::LinkPlan;

/// The faults of one frame. A lost frame has no other fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameFaults {
    pub(crate) lost: bool,
    pub(super) duplicated: bool,
    pub(super) held: bool,
    /// A number that selects the bit to flip, if the frame is corrupted.
    pub(super) corrupted: Option<u32>,
}

/// Decides the faults of one frame after another.
pub(crate) struct FaultGenerator {
    plan: LinkPlan,
    rng: ChaCha8Rng,
    /// Number of frames whose faults were decided so far.
    ordinal: u64,
    /// `true` if any probability is above 0.
    random: bool,
}

impl FaultGenerator {
    /// Makes the generator of one direction and queue. Each generator has its own stream of random numbers
    /// from the same seed. Returns `None` for a plan without faults.
    pub(crate) fn new(plan: &LinkPlan, seed: u64, stream: u64) -> Option<Self> {
        let mut plan = plan.clone();
        plan.drop_exactly.sort_unstable();
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(stream);
        let random = plan.drop_ppm | plan.duplicate_ppm | plan.reorder_ppm | plan.corrupt_ppm != 0;
        let any = random || !plan.drop_exactly.is_empty();
        any.then_some(Self { plan, rng, ordinal: 0, random })
    }

    /// Decides the faults of the next frame.
    pub(crate) fn next(&mut self) -> FrameFaults {
        let ordinal = self.ordinal;
        self.ordinal += 1;
        let mut fate = if self.random { self.draw() } else { FrameFaults::default() };
        if self.plan.drop_exactly.binary_search(&ordinal).is_ok() {
            fate.lost = true;
        }
        if fate.lost { FrameFaults { lost: true, ..FrameFaults::default() } } else { fate }
    }

    /// Decides the random faults of a frame. The function always draws the same number of random numbers, so
    /// that one probability does not change the effect of the other probabilities.
    fn draw(&mut self) -> FrameFaults {
        let lost = self.hits(self.plan.drop_ppm);
        let duplicated = self.hits(self.plan.duplicate_ppm);
        let held = self.hits(self.plan.reorder_ppm);
        let corrupted = self.hits(self.plan.corrupt_ppm);
        let bit = self.rng.next_u32();
        FrameFaults { lost, duplicated, held, corrupted: corrupted.then_some(bit) }
    }

    fn hits(&mut self, ppm: u32) -> bool {
        // `draw` is the upper half of a 64-bit product. The values of `draw` are uniform from 0 to 999,999,
        // with an error of 1/4000.
        let draw = (u64::from(self.rng.next_u32()) * 1_000_000) >> 32;
        draw < u64::from(ppm)
    }
}
