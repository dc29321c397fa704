//! Times at which a stack tries again to get packet buffers or slots in a port's ring, because no event
//! reports that they are free again.

use crate::{Duration, Instant};

/// The first wait. The wait is short, because a full ring usually drains within microseconds.
const MIN_WAIT: Duration = Duration::from_micros(20);

/// The longest wait. With a longer wait, frames would be sent late after the port accepts frames again. With
/// a shorter wait, the engine would poll more often while the port refuses frames.
const MAX_WAIT: Duration = Duration::from_millis(1);

/// The times at which a refused attempt is repeated. The longer attempts have been refused, the longer is the
/// wait for the next attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    since: Option<Instant>,
}

impl Backoff {
    /// Notes that an attempt was refused.
    pub fn refused(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Notes that an attempt succeeded, at least in part.
    pub fn succeeded(&mut self) {
        self.since = None;
    }

    /// True if the last attempt was refused.
    pub fn is_refused(&self) -> bool {
        self.since.is_some()
    }

    /// The time of the next attempt; `None` if the last attempt succeeded. The wait is an eighth of the time
    /// since the first refusal, but at least 20 us and at most 1 ms.
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
