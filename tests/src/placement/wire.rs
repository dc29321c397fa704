//! One direction of the wire: rate, delay, a queue, and seeded losses. The wire's clock counts nanoseconds,
//! since a frame takes 1.2 microseconds at 10 Gb/s. The simulator's link counts microseconds.

use crate::sim::dice::Part;
use testkit::dice::Dice;

/// Mean length of a burst of losses in frames. Half of the frames of a burst are lost.
const BURST_FRAMES: u32 = 8;

/// How frames are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Each frame is lost with this probability, in parts per million.
    Random(u32),
    /// Frames are lost in bursts (Gilbert-Elliott model). The number is the share of lost frames, in parts
    /// per million.
    Burst(u32),
}

#[derive(Debug)]
pub(crate) struct Wire {
    rate_mbit: u64,
    delay_us: u64,
    /// Maximum length in bytes of the queue in front of the wire.
    queue_bytes: u64,
    loss: Loss,
    dice: Dice,
    /// Whether the wire is in a burst of losses.
    bad: bool,
    busy_until_ns: u64,
    lost: u64,
}

impl Wire {
    /// Returns the direction in which host `side` sends.
    pub(crate) fn new(
        rate_mbit: u64,
        delay_us: u64,
        queue_bytes: u64,
        loss: Loss,
        seed: u64,
        side: usize,
    ) -> Self {
        let dice = Part::Link(side).dice(seed);
        Self { rate_mbit, delay_us, queue_bytes, loss, dice, bad: false, busy_until_ns: 0, lost: 0 }
    }

    /// Sends a frame of `bytes` bytes now. Returns the time at which the frame arrives, or `None` if the
    /// frame is lost.
    pub(crate) fn carry(&mut self, now_us: u64, bytes: usize) -> Option<u64> {
        let now_ns = now_us * 1000;
        let waiting = self.busy_until_ns.saturating_sub(now_ns) * self.rate_mbit / 8000;
        if self.is_unlucky() || waiting + bytes as u64 > self.queue_bytes {
            self.lost += 1;
            return None;
        }
        self.busy_until_ns = self.busy_until_ns.max(now_ns) + (bytes as u64 * 8000).div_ceil(self.rate_mbit);
        Some(self.busy_until_ns.div_ceil(1000) + self.delay_us)
    }

    /// Returns the number of frames lost for any reason.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    fn is_unlucky(&mut self) -> bool {
        match self.loss {
            Loss::Random(ppm) => self.dice.hits(ppm),
            Loss::Burst(ppm) => {
                // The wire spends twice the loss rate in bursts, since half of a burst's frames are lost.
                let (bad, leave_ppm) = (u64::from(2 * ppm), 1_000_000 / BURST_FRAMES);
                let enter_ppm = (u64::from(leave_ppm) * bad / (1_000_000 - bad)) as u32;
                self.bad ^= self.dice.hits(if self.bad { leave_ppm } else { enter_ppm });
                self.bad && self.dice.one_in(2)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Loss, Wire};

    #[test]
    fn frames_take_their_time_and_the_queue_its_limit() {
        let mut wire = Wire::new(10_000, 50, 1 << 20, Loss::Random(0), 1, 0);
        assert_eq!(wire.carry(100, 1250), Some(151));
        assert_eq!([(); 4].map(|()| wire.carry(100, 625)), [152, 152, 153, 153].map(Some));
        let carried = (0..2000).filter(|_| wire.carry(200, 1000).is_some()).count();
        assert_eq!((carried, wire.lost()), (1048, 952));
    }

    #[test]
    fn both_kinds_lose_as_much_and_one_in_bursts() {
        let [random, burst] = [Loss::Random(10_000), Loss::Burst(10_000)].map(|loss| {
            let mut wire = Wire::new(1, 0, 1 << 20, loss, 7, 1);
            let lost: Vec<bool> = (0..200_000).map(|at| wire.carry(at * 10_000, 100).is_none()).collect();
            let twice = lost.windows(2).filter(|pair| pair[0] && pair[1]).count();
            (wire.lost(), twice)
        });
        for (lost, _) in [random, burst] {
            assert!((1600..2400).contains(&lost), "{lost}");
        }
        assert!(random.1 < 60 && burst.1 > 500, "{random:?} {burst:?}");
    }
}
