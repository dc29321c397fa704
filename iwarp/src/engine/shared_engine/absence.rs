//! How long the thread of a shared engine stays away while callers poll.
//!
//! If a caller stops polling without an announcement, no thread polls until the engine's thread checks again.
//! But if there is only one CPU, each check takes the CPU from the callers: about ten microseconds on a
//! virtual machine. So the longer callers have polled without a pause, the longer the thread stays away. Work
//! then waits for at most an eighth of that polling time, or for the shortest absence if that is longer.

use std::time::Duration;

/// Callers poll without a pause if a turn takes at most this time on average.
const LONGEST_TURN: Duration = Duration::from_micros(10);

/// The time of polling divided by the time for which the thread stays away.
const SHARE: u32 = 8;

#[derive(Debug)]
pub(super) struct Absence {
    shortest: Duration,
    longest: Duration,
    /// How long callers have polled without a pause.
    polled: Duration,
    /// The duration of the last absence.
    last: Duration,
}

impl Absence {
    pub(super) fn new(shortest: Duration, longest: Duration) -> Self {
        Self { shortest, longest, polled: Duration::ZERO, last: Duration::ZERO }
    }

    /// Returns the duration of the next absence. `turns` is the number of turns of callers during the last
    /// absence.
    pub(super) fn next(&mut self, turns: u64) -> Duration {
        let fewest = self.last.as_micros() / LONGEST_TURN.as_micros();
        let without_pause = u128::from(turns) >= fewest;
        self.polled = if without_pause { self.polled.saturating_add(self.last) } else { Duration::ZERO };
        self.last = (self.polled / SHARE).min(self.longest).max(self.shortest);
        self.last
    }

    /// Called when the thread polls again.
    pub(super) fn end(&mut self) {
        (self.polled, self.last) = Default::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the absences while callers make `turns` turns in a millisecond.
    fn absences(absence: &mut Absence, turns: u64) -> Vec<Duration> {
        let next = |_| absence.next(turns * absence.last.as_micros() as u64 / 1000);
        (0..100).map(next).collect()
    }

    #[test]
    fn callers_that_poll_without_a_pause_are_left_alone_for_longer() {
        let mut absence = Absence::new(MS, 8 * MS);
        let absences = absences(&mut absence, 100);
        let mut polled = Duration::ZERO;
        for one in &absences {
            assert!(*one == MS || *one <= polled / 8, "{one:?} after {polled:?}");
            polled += *one;
        }
        assert!(absences.is_sorted());
        assert_eq!((absences[0], absences[8], absences[99]), (MS, MS, 8 * MS));
    }

    #[test]
    fn callers_that_come_seldom_are_looked_after() {
        let mut absence = Absence::new(MS, 8 * MS);
        assert!(absences(&mut absence, 99).iter().all(|one| *one == MS));
        // When the callers make fewer turns, the absence becomes short again.
        absences(&mut absence, 100);
        assert_eq!(absence.next(799), MS);
    }

    #[test]
    fn an_end_is_a_new_beginning() {
        let mut absence = Absence::new(MS, 8 * MS);
        absences(&mut absence, 1000);
        absence.end();
        assert_eq!(absences(&mut absence, 1000)[..9], [MS; 9]);
    }
}
