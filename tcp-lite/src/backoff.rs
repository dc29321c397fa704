//! When to try again what nobody announces: that a buffer is back, or that a port's ring has room.

use crate::{Duration, Instant};

/// The first wait: a ring that is full is mostly so for microseconds.
const SHORTEST: Duration = Duration::from_micros(20);

/// The longest wait. A port that takes nothing for a minute costs few turns, and goes on a millisecond late.
const LONGEST: Duration = Duration::from_millis(1);

/// Something that is refused: tried again soon at first, then ever later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    since: Option<Instant>,
}

impl Backoff {
    /// It was refused.
    pub fn refused(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// It was not, or not all of it.
    pub fn succeeded(&mut self) {
        self.since = None;
    }

    /// Whether the last try was refused.
    pub fn is_refused(&self) -> bool {
        self.since.is_some()
    }

    /// When to try again: an eighth of the time later for which it has been refused. `None` when it is not.
    pub fn next_try(&self, now: Instant) -> Option<Instant> {
        self.since.map(|since| now + ((now - since) / 8).clamp(SHORTEST, LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_are_ever_further_apart_up_to_a_millisecond_until_one_succeeds() {
        let mut backoff = Backoff::default();
        let start = Instant::from_secs(5);
        assert_eq!(backoff.next_try(start), None);
        let (mut now, mut waits) = (start, Vec::new());
        while now < start + Duration::from_secs(1) {
            backoff.refused(now);
            let next = backoff.next_try(now).unwrap();
            waits.push((next - now).total_micros());
            now = next;
        }
        assert!(waits.is_sorted(), "{waits:?}");
        assert_eq!((waits[0], waits[waits.len() - 1]), (20, 1000));
        assert!((1000..1100).contains(&waits.len()), "{} tries in a second", waits.len());
        backoff.succeeded();
        assert_eq!(backoff.next_try(now), None);
    }
}
