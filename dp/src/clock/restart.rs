//! A counter that may begin anew, made one that goes on.
//!
//! The cycle counter begins at zero again, or at any other value, where a machine was suspended to memory,
//! and where a process or a virtual machine is restored on another one. A clock that waited until the counter
//! had caught up would stop all timers for as long as the first machine ran. How much time has passed
//! meanwhile is unknown: the clock goes on as if none had.
//!
//! A counter that jumps ahead is no case for this: that time has passed, as far as can be known.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that falls by more than this began anew. The counters of two processors differ by less, and so
/// do two readings of threads that are interrupted on their way: 2^27 cycles are tens of milliseconds.
const JITTER: u64 = 1 << 27;

/// How far the counter goes on before its latest reading is kept: rarely enough that threads on many
/// processors share the line of the cache.
const STEP: u64 = 1 << 26;

/// What is added to a counter, and how far it has come.
pub(super) struct Restarts {
    /// What the counter is ahead of the one that it is made of: 0 until that begins anew. Sums wrap.
    ahead: AtomicU64,
    /// A recent value, older by less than [`STEP`].
    recent: AtomicU64,
    /// Held while the two are changed for a counter that began anew.
    lock: Mutex<()>,
}

impl Restarts {
    pub(super) const fn new() -> Self {
        Self { ahead: AtomicU64::new(0), recent: AtomicU64::new(0), lock: Mutex::new(()) }
    }

    /// Reads `counter`. The result goes on where `counter` begins anew.
    #[inline]
    pub(super) fn read(&self, counter: impl Fn() -> u64) -> u64 {
        // In this order: a counter that is read after it began anew is not added to an older `ahead`
        // unnoticed, since the sum is then far below `recent`.
        let ahead = self.ahead.load(Ordering::Acquire);
        let value = counter().wrapping_add(ahead);
        let since = value.wrapping_sub(self.recent.load(Ordering::Relaxed));
        if since < STEP { value } else { self.on_far(value, since, counter) }
    }

    /// `value` is `since` ahead of a recent one, or behind it.
    #[cold]
    fn on_far(&self, value: u64, since: u64, counter: impl Fn() -> u64) -> u64 {
        let behind = since.wrapping_neg();
        if behind <= JITTER {
            return value;
        }
        // Panics of other holders leave nothing half done.
        let _lock = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (ahead, recent) = (self.ahead.load(Ordering::Relaxed), self.recent.load(Ordering::Relaxed));
        let counted = counter();
        let value = counted.wrapping_add(ahead);
        let since = value.wrapping_sub(recent);
        if since as i64 >= 0 || since.wrapping_neg() <= JITTER {
            if since as i64 > 0 {
                self.recent.store(value, Ordering::Relaxed);
            }
            return value;
        }
        self.ahead.store(recent.wrapping_sub(counted), Ordering::Release);
        recent
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Where the counter begins: far enough from zero to fall far.
    const BEGIN: u64 = 1 << 50;

    #[test]
    fn a_counter_that_begins_anew_goes_on_from_where_it_was() {
        for anew in [0, 5, BEGIN / 2, BEGIN - JITTER - STEP] {
            let restarts = Restarts::new();
            let read = |raw| restarts.read(|| raw);
            assert_eq!(read(BEGIN), BEGIN, "the first reading, whatever it is");
            assert_eq!(read(BEGIN + 3 * STEP), BEGIN + 3 * STEP);
            assert_eq!(read(BEGIN + 3 * STEP + 9), BEGIN + 3 * STEP + 9);
            // Nobody has noted the last 9.
            assert_eq!(read(anew), BEGIN + 3 * STEP, "{anew}");
            for passed in [1, STEP, STEP + 1, 40 * STEP, 1 << 40] {
                assert_eq!(read(anew.wrapping_add(passed)), BEGIN + 3 * STEP + passed, "{anew}");
            }
            // And again.
            assert_eq!(read(7), BEGIN + 3 * STEP + (1 << 40));
            assert_eq!(read(7 + STEP), BEGIN + 4 * STEP + (1 << 40));
        }
    }

    #[test]
    fn counters_of_two_processors_may_differ() {
        let restarts = Restarts::new();
        let read = |raw| restarts.read(|| raw);
        assert_eq!(read(BEGIN), BEGIN);
        for behind in [1, STEP, JITTER] {
            assert_eq!(read(BEGIN - behind), BEGIN - behind);
            assert_eq!(read(BEGIN), BEGIN);
        }
        assert_eq!(read(BEGIN - JITTER - 1), BEGIN, "it began anew");
    }

    /// A thread that finds a counter that began anew may find, when it has the lock, that another one has
    /// dealt with it, from a processor whose counter is a little ahead.
    #[test]
    fn of_two_threads_that_find_a_new_beginning_one_deals_with_it() {
        let restarts = Restarts::new();
        assert_eq!(restarts.read(|| BEGIN), BEGIN);
        let readings = std::cell::Cell::new(0);
        let counter = || {
            readings.set(readings.get() + 1);
            if readings.get() == 1 {
                assert_eq!(restarts.read(|| 1000), BEGIN, "the other thread");
                return 900;
            }
            990
        };
        assert_eq!(restarts.read(counter), BEGIN - 10, "as far behind as its counter");
        assert_eq!(readings.get(), 2, "read again under the lock");
        // It begins anew once more, and goes on from the latest of all readings.
        assert_eq!(restarts.read(|| 1000_u64.wrapping_sub(JITTER + 1)), BEGIN);
    }

    #[test]
    fn a_counter_that_jumps_ahead_does_so() {
        let restarts = Restarts::new();
        for raw in [1, BEGIN, BEGIN + 1, 1 << 60] {
            assert_eq!(restarts.read(|| raw), raw);
        }
    }

    /// A counter begins anew while threads read it: all of them go on from where it was.
    #[test]
    fn all_threads_go_on_from_one_place() {
        /// How far the counter goes between two new beginnings: so far that a thread that has waited since
        /// before one of them is told from one on another processor.
        const RUN: u64 = 4 * JITTER;
        let (restarts, raw, stop) = (Restarts::new(), AtomicU64::new(BEGIN), AtomicBool::new(false));
        let counter = || raw.fetch_add(1 << 12, Ordering::Relaxed);
        // Returns whether none of its readings was far behind the one before.
        let reader = || {
            let (mut last, mut goes_on) = (restarts.read(counter), true);
            while !stop.load(Ordering::Relaxed) {
                let value = restarts.read(counter);
                // A reading is up to JITTER behind the latest one that was kept, and the one before was up to
                // STEP ahead of that.
                goes_on &= value + JITTER + STEP > last;
                last = last.max(value);
            }
            goes_on
        };
        let go_on = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3).map(|_| scope.spawn(reader)).collect();
            let mut go_on = true;
            for anew in 0..20 {
                let until = restarts.read(counter) + RUN;
                while restarts.read(counter) < until {}
                raw.store(anew * 1000, Ordering::Relaxed);
                go_on &= restarts.read(counter) + JITTER + STEP > until;
            }
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().all(|reader| reader.join().is_ok_and(|goes_on| goes_on)) && go_on
        });
        assert!(go_on);
        // Each time it went on from the latest reading that was kept, which was less than STEP old, and the
        // next run began up to JITTER behind it.
        assert!(restarts.read(counter) > BEGIN + 20 * (RUN - STEP - JITTER));
    }
}
