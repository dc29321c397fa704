//! Waiting until no engine uses revoked memory: quiescent-state-based reclamation.
//!
//! Each engine owns a [`Participant`]. The engine copies from or to registered memory only during an epoch:
//! between [`Participant::enter`] and the drop of the [`EpochGuard`]. A participant's count is odd while its
//! epoch is open and even otherwise. An engine without an open epoch, for example one that sleeps, is
//! quiescent.
//!
//! # Proof
//!
//! A thread that revokes an STag (1) makes the slot invalid, (2) executes a sequentially consistent fence,
//! (3) reads every count, and waits until each odd count has changed. An engine (a) makes its count odd, (b)
//! executes a sequentially consistent fence, (c) checks the slot and copies, (d) makes its count even with
//! release ordering. The fences are totally ordered. If (2) precedes (b), the engine sees in (c) that the
//! slot is invalid, and copies nothing. If (b) precedes (2), the thread sees in (3) the odd count or a later
//! count. A later count means that the epoch has ended. If the thread sees the odd count, it waits for (d),
//! which follows the copy.
//!
//! # Revoking inside an epoch
//!
//! The thread that revokes an STag may itself have an open epoch, and must not wait for itself. A waiting
//! thread copies nothing, so its own epochs are suspended: they are marked as ended until the wait is over.
//! So two threads that revoke STags do not wait for each other. After the wait the thread's epochs are open
//! again. This is safe, since each copy checks its slot again before the copy starts
//! ([`Target::place`](crate::memory::Target::place)), and the same thread has made the slot invalid.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use super::epoch::{EpochGuard, Participant};

/// The bit of a count that is set while the epoch is open.
const OPEN: u64 = 1;

/// Number of polls before a waiting thread yields its processor. An epoch lasts for a burst of packets, so a
/// short spin may be enough.
const SPINS: u32 = 64;
/// Number of polls, including spins, before the waiting thread sleeps between polls.
const YIELDS: u32 = 256;
/// Time to sleep between two polls. A shorter time makes a revocation return sooner, but the wait then uses
/// more CPU time.
const SLEEP: Duration = Duration::from_micros(50);

/// The epoch of one engine, and a link in the list of all epochs. Links are added and reused, but never
/// removed.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    count: AtomicU64,
    /// The thread that opened the epoch. The value is meaningful only while `count` is odd.
    thread: AtomicUsize,
    /// Whether a participant owns this link.
    taken: AtomicBool,
    /// The thread that opened this epoch, if the thread waits in [`Quiescence::synchronize`] and has
    /// suspended the epoch. Otherwise 0.
    suspended_by: AtomicUsize,
    next: OnceLock<Arc<Epoch>>,
}

/// The epochs of all engines, in a linked list. A thread that waits walks this list without a lock, so the
/// wait does not block an engine that joins. The wait allocates no memory.
#[derive(Debug, Default)]
pub(super) struct Quiescence {
    head: OnceLock<Arc<Epoch>>,
}

impl Epoch {
    /// Returns the count if the epoch is not open and not suspended, and `None` otherwise.
    pub(super) fn idle_count(&self) -> Option<u64> {
        let count = self.count.load(Ordering::Acquire);
        // A thread that sees the even count of a suspended epoch also sees `suspended_by` set, or else a
        // later count.
        let is_suspended = self.suspended_by.load(Ordering::Acquire) != 0;
        let is_idle = count & OPEN == 0 && !is_suspended && self.count.load(Ordering::Relaxed) == count;
        is_idle.then_some(count)
    }

    /// Opens the epoch: steps (a) and (b) of the proof.
    pub(super) fn enter(&self, count: u64) {
        self.thread.store(thread_token(), Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Ends the epoch: step (d) of the proof.
    pub(super) fn exit(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Whether the epoch is open on the thread `thread`.
    fn is_open_on(&self, thread: usize) -> bool {
        // A thread that sees the odd count of an open epoch also sees the epoch's `thread`.
        self.count.load(Ordering::Acquire) & OPEN != 0 && self.thread.load(Ordering::Relaxed) == thread
    }

    /// Step (3) of the proof for one engine: waits until the epoch that is open now, if any, has ended.
    fn wait(&self) {
        let count = self.count.load(Ordering::Acquire);
        if count & OPEN == 0 {
            return;
        }
        let mut polls = 0_u32;
        while self.count.load(Ordering::Acquire) == count {
            polls = polls.saturating_add(1);
            match polls {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(SLEEP),
            }
        }
    }
}

impl Quiescence {
    /// Returns a link for a new engine: a link that is no longer used, or a new link at the end of the list.
    pub(super) fn join(&self) -> Arc<Epoch> {
        let mut link = &self.head;
        loop {
            let mut is_fresh = false;
            let epoch = link.get_or_init(|| {
                is_fresh = true;
                Arc::new(Epoch { taken: AtomicBool::new(true), ..Epoch::default() })
            });
            if is_fresh || !epoch.taken.swap(true, Ordering::AcqRel) {
                return Arc::clone(epoch);
            }
            link = &epoch.next;
        }
    }

    /// Makes a link available for reuse, unless its epoch is open: other threads must still wait for an open
    /// epoch. If a program forgets a guard (`mem::forget`), the epoch stays open and its link is never
    /// reused, which leaks a few bytes.
    pub(super) fn leave(epoch: &Epoch) {
        if epoch.idle_count().is_some() {
            epoch.taken.store(false, Ordering::Release);
        }
    }

    /// Waits until each epoch that is now open on another thread has ended or has been suspended. The caller
    /// has already made the slot invalid. During the wait, epochs of the calling thread are suspended.
    pub(super) fn synchronize(&self) {
        fence(Ordering::SeqCst);
        let me = thread_token();
        for own in self.epochs().filter(|epoch| epoch.is_open_on(me)) {
            own.suspended_by.store(me, Ordering::Relaxed);
            own.exit();
        }
        for epoch in self.epochs() {
            epoch.wait();
        }
        for epoch in self.epochs() {
            // No other thread stores `me` in `suspended_by`. The field is cleared only after the epoch is
            // open again.
            if epoch.suspended_by.load(Ordering::Relaxed) == me {
                epoch.enter(epoch.count.load(Ordering::Relaxed));
                epoch.suspended_by.store(0, Ordering::Release);
            }
        }
    }

    fn epochs(&self) -> impl Iterator<Item = &Epoch> {
        std::iter::successors(self.head.get(), |epoch| epoch.next.get()).map(Arc::as_ref)
    }
}

/// Returns a number that is unique among the running threads: the address of a thread-local variable.
fn thread_token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|token| std::ptr::from_ref(token).addr())
}
