//! Waiting until no engine uses revoked memory: quiescent-state-based reclamation.
//!
//! Each engine owns a [`Participant`] and accesses memory between [`Participant::enter`] and the drop of the
//! [`EpochGuard`]: an epoch. A participant's count is odd while its epoch is open and even otherwise. An
//! engine without an open epoch, for example one that sleeps, is quiescent.
//!
//! # Proof
//!
//! A thread that revokes (1) makes the slot invalid, (2) executes a sequentially consistent fence, (3) reads
//! every count, and waits for the odd ones to change. An engine (a) makes its count odd, (b) executes a
//! sequentially consistent fence, (c) checks the slot and copies, (d) makes its count even with release
//! ordering. The fences are totally ordered. If (2) is first, (c) sees the slot invalid and copies nothing.
//! If (b) is first, (3) sees the odd count (or a later one, then that epoch has ended), and waits for (d),
//! which follows the copy.
//!
//! # Revoking inside an epoch
//!
//! The thread that revokes may itself have an open epoch, and must not wait for itself. While it waits it
//! copies nothing, so its own epochs are suspended: marked as ended for the time of the wait. So two threads
//! that revoke do not wait for each other. Afterwards its epoch is open again. This is safe, since each copy
//! checks its slot again before it starts ([`Target::place`](crate::memory::Target::place)), on the thread
//! that revoked it.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use super::epoch::{EpochGuard, Participant};

/// The bit of a count that is set while the epoch is open.
const OPEN: u64 = 1;

/// A waiting thread polls this often before it yields its processor. An epoch lasts for a burst of packets,
/// so a short spin may be enough.
const SPINS: u32 = 64;
/// Number of polls, including spins, before the waiting thread sleeps between polls.
const YIELDS: u32 = 256;
/// Sleep between two polls. It trades the delay of a revocation against the CPU time of the wait.
const SLEEP: Duration = Duration::from_micros(50);

/// The epoch of one engine, and a link of the list of all epochs. Links are added and reused, never removed.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    count: AtomicU64,
    /// The thread with the open epoch; meaningful while `count` is odd.
    thread: AtomicUsize,
    /// Whether a participant owns it.
    taken: AtomicBool,
    /// The thread that waits in [`Quiescence::synchronize`] and has suspended this epoch of its own, or 0.
    suspended_by: AtomicUsize,
    next: OnceLock<Arc<Epoch>>,
}

/// The epochs of all engines: a list that is walked without a lock, so that a wait neither allocates nor
/// blocks an engine that joins.
#[derive(Debug, Default)]
pub(super) struct Quiescence {
    head: OnceLock<Arc<Epoch>>,
}

impl Epoch {
    /// The count, if the epoch is neither open nor suspended.
    pub(super) fn idle_count(&self) -> Option<u64> {
        let count = self.count.load(Ordering::Acquire);
        // A thread that sees the count of a suspended epoch also sees the mark, or else a later count.
        let is_suspended = self.suspended_by.load(Ordering::Acquire) != 0;
        let is_idle = count & OPEN == 0 && !is_suspended && self.count.load(Ordering::Relaxed) == count;
        is_idle.then_some(count)
    }

    /// Steps (a) and (b) of the proof.
    pub(super) fn enter(&self, count: u64) {
        self.thread.store(thread_token(), Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Step (d) of the proof.
    pub(super) fn exit(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Whether the epoch is open on this thread.
    fn is_open_on(&self, thread: usize) -> bool {
        // A thread that sees the count of an open epoch also sees its thread.
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
    /// An epoch for a new engine: one that is no longer used, or a new one at the end of the list.
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

    /// Gives an epoch back, unless it is open: others still have to wait for it. An epoch that is dropped
    /// open by mistake is never reused, which leaks a few bytes.
    pub(super) fn leave(epoch: &Epoch) {
        if epoch.idle_count().is_some() {
            epoch.taken.store(false, Ordering::Release);
        }
    }

    /// Waits until every epoch of another thread that is open now has ended. The caller has already made the
    /// slot invalid. Epochs of the calling thread are suspended meanwhile.
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
            // Only this thread stores its own number there. The mark is cleared after the epoch is open
            // again.
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

/// A number that is unique among the running threads: the address of a thread-local variable.
fn thread_token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|token| std::ptr::from_ref(token).addr())
}
