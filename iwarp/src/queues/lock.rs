//! The lock of the head or the tail of a ring.
//!
//! A thread holds the lock for a few dozen instructions, and seldom longer. So a thread that finds the lock
//! held spins at first and does not sleep. On x86-64, taking the lock costs one locked instruction, and
//! releasing it costs none. A `Mutex` needs a locked instruction for each of the two.
//!
//! A thread that waits longer yields its processor, and later sleeps between its tries. So a preempted holder
//! of the lock can continue even if the waiting thread has a higher real-time priority on the same CPU.

use std::time::Duration;

use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Number of tries before a waiting thread yields its processor. The holder usually releases the lock sooner.
const SPINS: u32 = 64;
/// Number of tries, including the first `SPINS`, before a waiting thread sleeps between its tries.
const YIELDS: u32 = 256;
/// Time to sleep between two tries.
const SLEEP: Duration = Duration::from_micros(50);

pub(super) struct Lock<T>(SpinMutex<T>);

pub(super) type LockGuard<'a, T> = SpinMutexGuard<'a, T>;

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self(SpinMutex::new(value))
    }

    #[inline]
    pub(super) fn lock(&self) -> LockGuard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    #[cold]
    fn wait(&self) -> LockGuard<'_, T> {
        let mut tries = 0_u32;
        loop {
            match tries {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(SLEEP),
            }
            tries = tries.saturating_add(1);
            // `is_locked` only loads the flag first, so that the cache line stays with the holder of the
            // lock.
            if !self.0.is_locked()
                && let Some(guard) = self.0.try_lock()
            {
                return guard;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The holder sleeps while other threads wait. So these threads spin, yield and sleep, and every thread
    /// acquires the lock for each of its steps.
    #[test]
    fn waiting_threads_get_the_lock_in_turn() {
        let lock = Lock::new(0_u32);
        let held = lock.lock();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut count = lock.lock();
                        *count += 1;
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            drop(held);
        });
        assert_eq!(*lock.lock(), 4000);
    }
}
