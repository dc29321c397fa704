//! Retry times for a resource that becomes free without an event: buffers, or slots in a port's ring.

use crate::{Duration, Instant};

/// The first wait: a full ring mostly drains within microseconds.
const MIN_WAIT: Duration = Duration::from_micros(20);

/// The longest wait. A longer one would delay frames after the port takes frames again. A shorter one would
/// cost more polls while the port takes none, perhaps for a minute.
const MAX_WAIT: Duration = Duration::from_millis(1);

/// The times of retries after an attempt was refused: the longer the attempts are refused, the longer the
/// wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    since: Option<Instant>,
}

impl Backoff {
    /// An attempt was refused.
    pub fn refused(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// An attempt succeeded, at least in part.
    pub fn succeeded(&mut self) {
        self.since = None;
    }

    /// True if the last attempt was refused.
    pub fn is_refused(&self) -> bool {
        self.since.is_some()
    }

    /// The time of the next attempt: the wait is an eighth of the time since the first refusal. `None` if the
    /// last attempt succeeded.
    pub fn next_try(&self, now: Instant) -> Option<Instant> {
        self.since.map(|since| now + ((now - since) / 8).clamp(MIN_WAIT, MAX_WAIT))
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
