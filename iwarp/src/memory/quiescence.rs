//! Waiting until every engine has let go: quiescent-state-based reclamation.
//!
//! Each engine owns a [`Participant`] and brackets its work with [`Participant::enter`] and the
//! drop of the [`EpochGuard`]. A participant's epoch is odd inside a turn and even outside; an
//! engine outside a turn, asleep for instance, counts as quiescent.
//!
//! # Why it works
//!
//! A revoker (1) makes the slot invalid, (2) executes a sequentially consistent fence, (3) reads every epoch,
//! and waits for those that are odd to change. An engine (a) makes its epoch odd, (b) executes a sequentially
//! consistent fence, (c) checks the slot and copies, (d) makes its epoch even with release ordering. The
//! fences are totally ordered. If (2) is first, (c) sees the slot invalid and nothing is copied. If (b) is
//! first, (3) sees the odd epoch (or a later one, then that turn is over), and waits for (d), which the copy
//! precedes.
//!
//! # Inside a turn
//!
//! The thread that revokes may itself be inside a turn, and must not wait for itself. While it waits it
//! copies nothing, so for the time of the wait its own turns are marked as over. Two threads that do this
//! wait for nothing in each other. Afterwards it goes on within its turn, and is harmless: each copy checks
//! its slot again before it starts ([`Target::place`](crate::memory::Target::place)), on the thread that
//! revoked it.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::memory::table::{MemoryTable, Shared};

/// Epochs with this bit are inside a turn.
const INSIDE: u64 = 1;

/// Looks before a waiting thread gives up its processor, and before it sleeps.
const SPINS: u32 = 64;
const YIELDS: u32 = 256;
const NAP: Duration = Duration::from_micros(50);

/// The epoch of one engine, and a link of the list of all. Links are added and used again, never taken out.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    count: AtomicU64,
    /// The thread inside the turn; meaningful while `count` is odd.
    thread: AtomicUsize,
    /// Whether a participant owns it.
    taken: AtomicBool,
    /// The thread that waits in [`Quiescence::synchronize`] and has marked its own turn as over meanwhile, or
    /// 0.
    suspended_by: AtomicUsize,
    next: OnceLock<Arc<Epoch>>,
}

/// All engines that take turns: a list that is walked without a lock, so that waiting neither allocates nor
/// blocks whoever joins.
#[derive(Debug, Default)]
pub(super) struct Quiescence {
    head: OnceLock<Arc<Epoch>>,
}

/// What a participant and its turn hold together: a turn counts one reference.
struct Membership {
    table: MemoryTable,
    epoch: Arc<Epoch>,
}

/// One engine's part in reclamation. Belongs to one thread at a time.
pub struct Participant {
    membership: Arc<Membership>,
    /// `Send`, as engines move between threads; not `Sync`, as two must not enter at once.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

/// An open epoch of an engine, its turn: registered memory may be accessed while there is one. It
/// ends when dropped, and should be short (a burst): whoever revokes an STag waits for it.
pub struct EpochGuard {
    membership: Arc<Membership>,
    /// Stays on its thread: what it admits is tied to the order of this thread's actions.
    _not_send: PhantomData<*const ()>,
}

impl Participant {
    pub(super) fn new(table: MemoryTable) -> Self {
        let epoch = table.shared().quiescence.join();
        Self { membership: Arc::new(Membership { table, epoch }), _not_sync: PhantomData }
    }

    /// Opens a turn.
    ///
    /// # Panics
    /// When a turn of this participant is open, on this thread or another: turns do not nest.
    pub fn enter(&self) -> EpochGuard {
        let epoch = &self.membership.epoch;
        let count = epoch.idle_count().expect("a turn of this engine is open already");
        epoch.enter(count);
        EpochGuard { membership: Arc::clone(&self.membership), _not_send: PhantomData }
    }

    /// The table it belongs to.
    pub fn table(&self) -> &MemoryTable {
        &self.membership.table
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        Quiescence::leave(&self.membership.epoch);
    }
}

impl EpochGuard {
    pub(super) fn shared(&self) -> &Shared {
        self.membership.table.shared()
    }

    /// The table it reads.
    pub fn table(&self) -> &MemoryTable {
        &self.membership.table
    }
}

impl Drop for EpochGuard {
    fn drop(&mut self) {
        self.membership.epoch.exit();
    }
}

impl Epoch {
    /// The count while no turn is open; none is while the thread of one waits in [`Quiescence::synchronize`].
    fn idle_count(&self) -> Option<u64> {
        let count = self.count.load(Ordering::Acquire);
        // Who sees the count of a turn that is marked as over sees the mark, or a count that has moved on.
        let is_marked = self.suspended_by.load(Ordering::Acquire) != 0;
        let is_idle = count & INSIDE == 0 && !is_marked && self.count.load(Ordering::Relaxed) == count;
        is_idle.then_some(count)
    }

    /// Steps (a) and (b) of the argument.
    fn enter(&self, count: u64) {
        self.thread.store(thread_token(), Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
    }

    /// Step (d).
    fn exit(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count.wrapping_add(1), Ordering::Release);
    }

    /// Whether a turn of that thread is open.
    fn is_open_on(&self, thread: usize) -> bool {
        // Whoever sees the count of a turn sees its thread.
        self.count.load(Ordering::Acquire) & INSIDE != 0 && self.thread.load(Ordering::Relaxed) == thread
    }

    /// Step (3) for one engine: waits until the turn that is open now, if any, is over.
    fn wait(&self) {
        let count = self.count.load(Ordering::Acquire);
        if count & INSIDE == 0 {
            return;
        }
        let mut looks = 0_u32;
        while self.count.load(Ordering::Acquire) == count {
            looks = looks.saturating_add(1);
            match looks {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
    }
}

impl Quiescence {
    /// An epoch for a new engine: one that was left, or one more at the end of the list.
    fn join(&self) -> Arc<Epoch> {
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

    /// Gives an epoch back; but not one with an open turn, which others still have to wait for. Such an epoch
    /// is never used again, a few bytes for a mistake of its owner.
    fn leave(epoch: &Epoch) {
        if epoch.idle_count().is_some() {
            epoch.taken.store(false, Ordering::Release);
        }
    }

    /// Waits until every turn of another thread that is open now is over; the caller has made invalid what it
    /// revokes. The calling thread's own turns count as over meanwhile.
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
            // Nobody but this thread has ever put its own number there. The mark goes when the turn is open
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

/// A number of the calling thread that no other living thread has: the address of a thread-local.
fn thread_token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|token| std::ptr::from_ref(token).addr())
}
