//! How long a dropped stream waits for its peer.

use std::time::Duration;

use super::protocol::Progress;

/// Maximum time for which the peer may accept no bytes.
const STEP: Duration = Duration::from_secs(60);
/// Maximum number of waits, each of the duration [`STEP`], if the peer makes progress in each of them.
const STEPS: u32 = 10;

/// The time limits for a peer to accept the last bytes of a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linger {
    step: Duration,
    steps: u32,
    before: Option<Progress>,
}

impl Default for Linger {
    fn default() -> Self {
        Self::new(STEP)
    }
}

impl Linger {
    pub(super) fn new(step: Duration) -> Self {
        Self { step, steps: STEPS, before: None }
    }

    /// Returns how long to wait for more progress of the peer, which has now accepted `taken`. `None` means
    /// to stop waiting.
    pub(super) fn next(&mut self, taken: Progress) -> Option<Duration> {
        self.steps = self.steps.checked_sub(1)?;
        let is_stuck = self.before.replace(taken) == Some(taken);
        (!is_stuck).then_some(self.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(bytes: u64, writes: u64) -> Progress {
        Progress { bytes, writes }
    }

    #[test]
    fn a_peer_that_takes_something_has_ten_steps() {
        let mut linger = Linger::default();
        for step in 0..10 {
            // A Write without bytes also counts as progress.
            assert_eq!(linger.next(taken(step / 2, step)), Some(Duration::from_secs(60)), "{step}");
        }
        assert_eq!(linger.next(taken(10, 10)), None);
        assert_eq!(linger.next(taken(11, 11)), None);
    }

    #[test]
    fn a_peer_that_takes_nothing_has_one_step() {
        let mut linger = Linger::new(Duration::from_secs(3));
        assert_eq!(linger.next(taken(0, 0)), Some(Duration::from_secs(3)));
        assert_eq!(linger.next(taken(0, 0)), None);
    }
}
