//! Chooses the cheaper of two strategies for copying long frames into a ring.
//!
//! A copy that bypasses the caches ([`streaming`](super::streaming)) runs at the speed of the memory. If the
//! writer and the reader share a cache, a copy through the caches is faster. If the cache lines come from
//! another chip of the processor, a copy through the caches is several times slower than a copy that bypasses
//! them. The scheduler or a hypervisor may move the processes at any time. So the writer sometimes tries the
//! other strategy, and then uses the faster strategy.
//!
//! The cost of a copy depends on how the same lines were written one lap of the ring earlier. So a trial has
//! two laps, and only the second lap is timed.

use crate::Clock;

/// The strategy by which a frame is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyStrategy {
    ThroughCaches,
    PastCaches,
}

impl CopyStrategy {
    fn other(self) -> Self {
        match self {
            Self::ThroughCaches => Self::PastCaches,
            Self::PastCaches => Self::ThroughCaches,
        }
    }
}

/// Number of laps of the ring in a trial.
const TRIAL: u64 = 2;

/// Number of laps between two trials.
const SETTLED: u64 = 64;

/// The choice of the strategy for one ring. Only long frames are counted.
#[derive(Debug)]
pub(super) struct StrategyChoice {
    /// Number of bytes of a lap, which is the size of the ring.
    lap: u64,
    strategy: CopyStrategy,
    is_trial: bool,
    /// Number of bytes until the trial ends, or until the next trial begins. The last lap before this point
    /// is timed.
    left: u64,
    cycles: u64,
    /// Number of cycles of the last lap before the trial.
    settled_cycles: u64,
}

impl StrategyChoice {
    pub(super) fn new(ring_bytes: usize) -> Self {
        let lap = ring_bytes as u64;
        let strategy = CopyStrategy::ThroughCaches;
        Self { lap, strategy, is_trial: false, left: TRIAL * lap, cycles: 0, settled_cycles: 0 }
    }

    /// Copies a long frame of `bytes` bytes by `copy`, which receives the chosen strategy.
    #[inline]
    pub(super) fn copy(&mut self, bytes: usize, copy: impl FnOnce(CopyStrategy)) {
        if self.left > self.lap {
            copy(self.strategy);
            self.copied(bytes, 0);
        } else {
            let begun = Clock::cycles();
            copy(self.strategy);
            self.copied(bytes, Clock::cycles().saturating_sub(begun));
        }
    }

    fn copied(&mut self, bytes: usize, cycles: u64) {
        self.cycles += cycles;
        self.left = self.left.saturating_sub(bytes as u64);
        if self.left == 0 {
            self.begin_next();
        }
    }

    fn begin_next(&mut self) {
        let cycles = std::mem::take(&mut self.cycles);
        if !self.is_trial {
            self.settled_cycles = cycles;
            self.strategy = self.strategy.other();
        } else if cycles >= self.settled_cycles {
            self.strategy = self.strategy.other();
        }
        self.is_trial = !self.is_trial;
        self.left = self.lap * if self.is_trial { TRIAL } else { SETTLED };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 1 << 16;
    const RING: usize = 32 * FRAME;

    /// A model of the caches. A frame costs `fresh` if the previous lap was copied by the same strategy, and
    /// otherwise 1000 cycles.
    struct Machine {
        lap_before: CopyStrategy,
        fresh: [u64; 2],
    }

    impl Machine {
        /// Copies one lap of frames. Returns the number of frames that were copied through the caches.
        fn lap(&mut self, choice: &mut StrategyChoice) -> usize {
            let (mut through, before) = (0, self.lap_before);
            for _ in 0..RING / FRAME {
                let strategy = choice.strategy;
                through += usize::from(strategy == CopyStrategy::ThroughCaches);
                let cycles = if before == strategy { self.fresh[strategy as usize] } else { 1000 };
                choice.copied(FRAME, if choice.left > choice.lap { 0 } else { cycles });
                self.lap_before = strategy;
            }
            through
        }
    }

    const NEAR: [u64; 2] = [90, 210];
    const FAR: [u64; 2] = [800, 210];

    #[test]
    fn the_cheaper_way_is_found_and_found_again() {
        let mut choice = StrategyChoice::new(RING);
        let mut machine = Machine { lap_before: CopyStrategy::ThroughCaches, fresh: NEAR };
        for fresh in [NEAR, FAR, NEAR, NEAR, FAR] {
            machine.fresh = fresh;
            // The loop continues until the next trial has ended.
            for _ in 0..SETTLED + TRIAL {
                machine.lap(&mut choice);
            }
            let through: usize = (0..SETTLED + TRIAL).map(|_| machine.lap(&mut choice)).sum();
            let all = RING / FRAME * (SETTLED + TRIAL) as usize;
            let trial = RING / FRAME * TRIAL as usize;
            let expected = if fresh == NEAR { all - trial } else { trial };
            assert_eq!(through, expected, "{fresh:?}");
        }
    }

    /// The cost of a trial's first lap depends on the strategy that has written the same lines in the
    /// previous lap.
    #[test]
    fn the_last_lap_alone_is_timed() {
        let mut choice = StrategyChoice::new(RING);
        for trial in [false, true] {
            for _ in 0..RING / FRAME {
                choice.copy(FRAME, |_| ());
            }
            assert_eq!((choice.is_trial, choice.cycles, choice.left), (trial, 0, RING as u64));
            for _ in 0..RING / FRAME - 1 {
                choice.copy(FRAME, |_| std::thread::sleep(std::time::Duration::from_micros(1)));
            }
            assert!(choice.cycles > 0, "trial: {trial}");
            choice.copy(FRAME, |_| ());
        }
    }

    #[test]
    fn the_first_trial_comes_after_two_laps() {
        let mut choice = StrategyChoice::new(RING);
        let mut ways = Vec::new();
        for _ in 0..4 * RING / FRAME {
            choice.copy(FRAME, |strategy| ways.push(strategy));
        }
        let (settled, trial) = ways.split_at(2 * RING / FRAME);
        assert!(settled.iter().all(|strategy| *strategy == CopyStrategy::ThroughCaches));
        assert!(trial.iter().all(|strategy| *strategy == CopyStrategy::PastCaches));
    }
}
