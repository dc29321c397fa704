//! A barrier for cores that begin a run together.

use std::sync::atomic::{AtomicU64, Ordering};

/// A barrier at which several cores wait for each other before each run.
#[derive(Debug)]
pub struct Rendezvous {
    parties: u64,
    arrived: AtomicU64,
}

impl Rendezvous {
    /// Makes a barrier for `parties` threads.
    pub fn new(parties: usize) -> Self {
        Self { parties: parties as u64, arrived: Default::default() }
    }

    /// Waits until all parties have called this function. Calls `poll` during the wait. An error of `poll`
    /// ends the wait.
    ///
    /// # Errors
    /// Returns the errors of `poll`.
    pub fn meet<E>(&self, mut poll: impl FnMut() -> Result<(), E>) -> Result<(), E> {
        // A party enters the next round only when the present round is over. So the round is over when
        // `arrived` reaches a multiple of `parties`.
        let ticket = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (ticket / self.parties + 1) * self.parties;
        while self.arrived.load(Ordering::Acquire) < all {
            poll()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_party_passes_before_all_have_arrived() {
        let (rendezvous, through) = (Rendezvous::new(3), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for meeting in 0..100 {
                        // This thread has counted the previous meeting. The other two threads have arrived at
                        // the previous meeting, so they have counted all meetings before it.
                        let left = through.load(Ordering::SeqCst);
                        assert!(left >= meeting * 3 - meeting.min(1) * 2, "{left} at {meeting}");
                        rendezvous
                            .meet(|| {
                                std::thread::yield_now();
                                Ok::<(), ()>(())
                            })
                            .unwrap();
                        assert!(rendezvous.arrived.load(Ordering::SeqCst) >= (meeting + 1) * 3);
                        through.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(Rendezvous::new(2).meet(|| Err(())), Err(()));
    }
}
