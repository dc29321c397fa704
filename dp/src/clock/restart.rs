//! A counter that continues when the underlying cycle counter restarts.
//!
//! The cycle counter may restart, at zero or at any other value: after the machine was suspended to memory,
//! or after a process or a virtual machine was restored on another machine. If the clock waited until the
//! counter reaches its old value, all timers would stop for the time for which the first machine had run. The
//! time that passed before the restart is unknown, so the clock continues as if no time had passed.
//!
//! A jump of the counter to a larger value is not corrected, since the process cannot know that the time has
//! not passed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// If a counter falls by more than this number of cycles, the counter has restarted. 2^27 cycles are tens of
/// milliseconds, and the counters of two processors differ by fewer cycles. If a thread is interrupted for
/// more than 2^27 cycles after it has read the counter, the thread reads the counter again with the lock
/// held.
const JITTER: u64 = 1 << 27;

/// A reading is recorded when the counter has advanced by at least this number of cycles since the last
/// recorded reading. Readings are recorded so rarely that threads on many processors can share the cache
/// line.
const STEP: u64 = 1 << 26;

/// The offset that is added to a counter, and a recent value of the sum.
///
/// Most readings of a steady counter need no lock and no call of `is_steady`. Any other counter is read
/// through the slow path, which first finds out whether the counter is steady.
pub(super) struct Restarts {
    /// [`STEP`] for a steady counter. 0 for any other counter, and before the first reading.
    step: AtomicU64,
    /// The offset that is added to the raw counter. The offset is 0 until the raw counter restarts. The sum
    /// may wrap.
    ahead: AtomicU64,
    /// A recent value of the sum, at most [`STEP`] below the latest value that was read.
    recent: AtomicU64,
    /// Locked while `ahead` and `recent` are changed after a restart of the raw counter.
    lock: Mutex<()>,
}

impl Restarts {
    pub(super) const fn new() -> Self {
        Self {
            step: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            recent: AtomicU64::new(0),
            lock: Mutex::new(()),
        }
    }

    /// Reads the counter `steady` if `is_steady` returns `true`, and otherwise the counter `other`.
    /// `is_steady` must always return the same value. If the counter restarts, the result continues from the
    /// last recorded value.
    #[inline]
    pub(super) fn read(
        &self,
        steady: impl Fn() -> u64,
        is_steady: impl Fn() -> bool,
        other: impl Fn() -> u64,
    ) -> u64 {
        // `ahead` is loaded first. If the counter restarts before the counter is read, the sum is far below
        // `recent`, so the restart is noticed.
        let ahead = self.ahead.load(Ordering::Acquire);
        let value = steady().wrapping_add(ahead);
        let since = value.wrapping_sub(self.recent.load(Ordering::Relaxed));
        if since < self.step.load(Ordering::Relaxed) {
            return value;
        }
        self.read_any(|| if is_steady() { (steady(), STEP) } else { (other(), 0) })
    }

    /// The slow path of [`read`](Self::read), for a reading that may be far from `recent`. `counter` returns
    /// a reading and the counter's step.
    #[cold]
    fn read_any(&self, counter: impl Fn() -> (u64, u64)) -> u64 {
        let ahead = self.ahead.load(Ordering::Acquire);
        let (counted, step) = counter();
        self.step.store(step, Ordering::Relaxed);
        let value = counted.wrapping_add(ahead);
        let since = value.wrapping_sub(self.recent.load(Ordering::Relaxed));
        if since < STEP || since.wrapping_neg() <= JITTER {
            return value;
        }
        // A panic with the lock held leaves consistent values, so a poisoned lock is used.
        let _lock = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (ahead, recent) = (self.ahead.load(Ordering::Relaxed), self.recent.load(Ordering::Relaxed));
        let (counted, _) = counter();
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

    /// The first reading of the counter. The value is so large that the counter can fall by more than
    /// `JITTER`.
    const BEGIN: u64 = 1 << 50;

    impl Restarts {
        /// Reads a steady counter. The test fails if `other` is read.
        fn read_steady(&self, counter: impl Fn() -> u64) -> u64 {
            self.read(counter, || true, || unreachable!())
        }
    }

    #[test]
    fn a_counter_that_begins_anew_goes_on_from_where_it_was() {
        for anew in [0, 5, BEGIN / 2, BEGIN - JITTER - STEP] {
            let restarts = Restarts::new();
            let read = |raw| restarts.read_steady(|| raw);
            assert_eq!(read(BEGIN), BEGIN, "the first reading, whatever it is");
            assert_eq!(read(BEGIN + 3 * STEP), BEGIN + 3 * STEP);
            assert_eq!(read(BEGIN + 3 * STEP + 9), BEGIN + 3 * STEP + 9);
            // The last 9 cycles before the restart were not recorded, so the sum continues without them.
            assert_eq!(read(anew), BEGIN + 3 * STEP, "{anew}");
            for passed in [1, STEP, STEP + 1, 40 * STEP, 1 << 40] {
                assert_eq!(read(anew.wrapping_add(passed)), BEGIN + 3 * STEP + passed, "{anew}");
            }
            // The counter restarts again.
            assert_eq!(read(7), BEGIN + 3 * STEP + (1 << 40));
            assert_eq!(read(7 + STEP), BEGIN + 4 * STEP + (1 << 40));
        }
    }

    #[test]
    fn counters_of_two_processors_may_differ() {
        let restarts = Restarts::new();
        let read = |raw| restarts.read_steady(|| raw);
        assert_eq!(read(BEGIN), BEGIN);
        for behind in [1, STEP, JITTER] {
            assert_eq!(read(BEGIN - behind), BEGIN - behind);
            assert_eq!(read(BEGIN), BEGIN);
        }
        assert_eq!(read(BEGIN - JITTER - 1), BEGIN, "it began anew");
    }

    /// The readings of a counter that is not steady are ignored, even if the counter does not advance or is
    /// close to the other counter.
    #[test]
    fn a_counter_that_is_not_steady_is_replaced() {
        for unsteady in [0, 9, BEGIN, BEGIN + 40 * STEP, BEGIN + 50 * STEP] {
            let restarts = Restarts::new();
            let read = |raw| restarts.read(|| unsteady, || false, || raw);
            for passed in [0, 1, STEP, 40 * STEP, 40 * STEP + 7, 50 * STEP] {
                assert_eq!(read(BEGIN + passed), BEGIN + passed, "{unsteady}");
            }
            assert_eq!(read(3), BEGIN + 50 * STEP, "it began anew");
        }
    }

    /// Most readings of a steady counter do not call `is_steady`.
    #[test]
    fn a_counter_is_asked_once_in_a_while_whether_it_is_steady() {
        let (restarts, asked) = (Restarts::new(), std::cell::Cell::new(0));
        let is_steady = || {
            asked.set(asked.get() + 1);
            true
        };
        for reading in 0..1024 {
            let raw = BEGIN + reading * (STEP / 256);
            assert_eq!(restarts.read(|| raw, is_steady, || unreachable!()), raw);
        }
        // `is_steady` is called twice for each recorded step: once before the lock is taken, and once with
        // the lock held.
        assert_eq!(asked.get(), 8);
    }

    /// A thread notices a restart and takes the lock. Before the first thread takes the lock, another thread
    /// has handled the restart, on a processor whose counter is a little ahead. So the first thread does not
    /// handle the restart a second time.
    #[test]
    fn of_two_threads_that_find_a_new_beginning_one_deals_with_it() {
        let restarts = Restarts::new();
        assert_eq!(restarts.read_steady(|| BEGIN), BEGIN);
        let readings = std::cell::Cell::new(0);
        let counter = || {
            readings.set(readings.get() + 1);
            if readings.get() == 2 {
                assert_eq!(restarts.read_steady(|| 1000), BEGIN, "the other thread");
                return 900;
            }
            if readings.get() == 1 { 899 } else { 990 }
        };
        assert_eq!(restarts.read_steady(counter), BEGIN - 10, "as far behind as its counter");
        assert_eq!(readings.get(), 3, "read again under the lock");
        // The counter restarts once more, and the sum continues from the latest of all readings.
        assert_eq!(restarts.read_steady(|| 1000_u64.wrapping_sub(JITTER + 1)), BEGIN);
    }

    #[test]
    fn a_counter_that_jumps_ahead_does_so() {
        let restarts = Restarts::new();
        for raw in [1, BEGIN, BEGIN + 1, 1 << 60] {
            assert_eq!(restarts.read_steady(|| raw), raw);
        }
    }

    /// A counter restarts while threads read it. The sum continues for all threads.
    #[test]
    fn all_threads_go_on_from_one_place() {
        /// Number of cycles by which the counter advances between two restarts. The number is four times
        /// `JITTER`. So an old reading of a thread that was delayed during a restart does not look like a
        /// reading of another processor.
        const RUN: u64 = 4 * JITTER;
        let (restarts, raw, stop) = (Restarts::new(), AtomicU64::new(BEGIN), AtomicBool::new(false));
        let counter = || raw.fetch_add(1 << 12, Ordering::Relaxed);
        // Returns `true` if no reading was far behind the previous reading.
        let reader = || {
            let (mut last, mut goes_on) = (restarts.read_steady(counter), true);
            while !stop.load(Ordering::Relaxed) {
                let value = restarts.read_steady(counter);
                // A reading is at most JITTER behind the latest recorded reading, and the previous reading
                // was at most STEP ahead of the recorded reading.
                goes_on &= value + JITTER + STEP > last;
                last = last.max(value);
            }
            goes_on
        };
        let go_on = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3).map(|_| scope.spawn(reader)).collect();
            let mut go_on = true;
            for anew in 0..20 {
                let until = restarts.read_steady(counter) + RUN;
                while restarts.read_steady(counter) < until {}
                raw.store(anew * 1000, Ordering::Relaxed);
                go_on &= restarts.read_steady(counter) + JITTER + STEP > until;
            }
            stop.store(true, Ordering::Relaxed);
            readers.into_iter().all(|reader| reader.join().is_ok_and(|goes_on| goes_on)) && go_on
        });
        assert!(go_on);
        // After each restart the sum has continued from the latest recorded reading, which was at most STEP
        // behind the sum. The next run began at most JITTER behind that recorded reading.
        assert!(restarts.read_steady(counter) > BEGIN + 20 * (RUN - STEP - JITTER));
    }
}
