//! Waiting until every engine has let go: quiescent-state-based reclamation.
//!
//! Each engine owns a [`Participant`] and brackets its work with [`Participant::enter`] and the drop of the
//! [`Turn`]. A participant's epoch is odd inside a turn and even outside; an engine outside a turn, asleep
//! for instance, counts as quiescent.
//!
//! # Why it works
//!
//! A revoker (1) makes the slot invalid, (2) executes a sequentially consistent fence, (3) reads every epoch, and
//! waits for those that are odd to change. An engine (a) makes its epoch odd, (b) executes a sequentially
//! consistent fence, (c) checks the slot and copies, (d) makes its epoch even with release ordering. The fences are
//! totally ordered. If (2) is first, (c) sees the slot invalid and nothing is copied. If (b) is first, (3) sees
//! the odd epoch (or a later one, then that turn is over), and waits for (d), which the copy precedes.
//!
//! # Inside a turn
//!
//! The thread that revokes may itself be inside a turn, and must not wait for itself. While it waits it copies
//! nothing, so for the time of the wait its own turns are marked as over. Two threads that do this wait for
//! nothing in each other. Afterwards it goes on within its turn, and is harmless: each copy checks its slot again
//! before it starts ([`Target::place`](crate::memory::Target::place)), on the thread that revoked it.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::memory::table::{MemoryTable, Shared};

/// Epochs with this bit are inside a turn.
const INSIDE: u64 = 1;

/// Looks before a waiting thread gives up its processor, and before it sleeps.
const SPINS: u32 = 64;
const YIELDS: u32 = 256;
const NAP: Duration = Duration::from_micros(50);

/// The epoch of one engine.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    count: AtomicU64,
    /// The thread inside the turn; meaningful while `count` is odd.
    thread: AtomicUsize,
}

/// All engines that take turns.
#[derive(Debug, Default)]
pub(super) struct Quiescence {
    epochs: Mutex<Vec<Arc<Epoch>>>,
}

/// One engine's part in reclamation. Belongs to one thread at a time.
pub struct Participant {
    table: MemoryTable,
    epoch: Arc<Epoch>,
    /// `Send`, as engines move between threads; not `Sync`, as two must not enter at once.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

/// A stretch of work during which registered memory may be accessed. It ends when dropped, and should be short
/// (a burst): whoever revokes an STag waits for it.
pub struct Turn {
    table: MemoryTable,
    epoch: Arc<Epoch>,
    /// Stays on its thread: what it admits is tied to the order of this thread's actions.
    _not_send: PhantomData<*const ()>,
}

/// The turns of other threads that were open at one moment.
struct Grace {
    open: Vec<(Arc<Epoch>, u64)>,
}

impl Participant {
    pub(super) fn new(table: MemoryTable) -> Self {
        let epoch = table.shared().quiescence.join();
        Self { table, epoch, _not_sync: PhantomData }
    }

    /// Opens a turn.
    ///
    /// # Panics
    /// When a turn of this participant is open: turns do not nest.
    pub fn enter(&self) -> Turn {
        let count = self.epoch.count.load(Ordering::Relaxed);
        assert!(count & INSIDE == 0, "a turn of this engine is open already");
        self.epoch.enter(count);
        Turn { table: self.table.clone(), epoch: Arc::clone(&self.epoch), _not_send: PhantomData }
    }

    /// The table it belongs to.
    pub fn table(&self) -> &MemoryTable {
        &self.table
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.table.shared().quiescence.leave(&self.epoch);
    }
}

impl Turn {
    pub(super) fn shared(&self) -> &Shared {
        self.table.shared()
    }

    /// The table it reads.
    pub fn table(&self) -> &MemoryTable {
        &self.table
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.epoch.exit();
    }
}

impl Grace {
    /// Whether all of them are over.
    fn is_over(&mut self) -> bool {
        self.open.retain(|(epoch, count)| epoch.count.load(Ordering::Acquire) == *count);
        self.open.is_empty()
    }

    /// Waits until they are.
    fn wait(mut self) {
        let mut looks = 0_u32;
        while !self.is_over() {
            looks = looks.saturating_add(1);
            match looks {
                0..SPINS => std::hint::spin_loop(),
                SPINS..YIELDS => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
    }
}

impl Epoch {
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

    fn is_inside(&self, count: u64) -> bool {
        count & INSIDE != 0
    }
}

impl Quiescence {
    fn join(&self) -> Arc<Epoch> {
        let epoch = Arc::new(Epoch::default());
        self.lock().push(Arc::clone(&epoch));
        epoch
    }

    /// Forgets an engine; but not one with an open turn, which others still have to wait for. Such an epoch stays
    /// in the list for good, a few octets for a mistake of its owner.
    fn leave(&self, epoch: &Arc<Epoch>) {
        if epoch.count.load(Ordering::Relaxed) & INSIDE == 0 {
            self.lock().retain(|other| !Arc::ptr_eq(other, epoch));
        }
    }

    /// The turns of other threads that are open now; the caller has made invalid what it revokes. Steps (2) and (3).
    fn grace(&self) -> Grace {
        fence(Ordering::SeqCst);
        let me = thread_token();
        let open = self
            .lock()
            .iter()
            .map(|epoch| (Arc::clone(epoch), epoch.count.load(Ordering::Acquire)))
            .filter(|(epoch, count)| epoch.is_inside(*count) && epoch.thread.load(Ordering::Relaxed) != me)
            .collect();
        Grace { open }
    }

    /// Waits until every turn of another thread that is open now is over. The calling thread's own turns count
    /// as over meanwhile.
    pub(super) fn synchronize(&self) {
        let grace = self.grace();
        let own = self.own_open();
        for epoch in &own {
            epoch.exit();
        }
        grace.wait();
        for epoch in &own {
            epoch.enter(epoch.count.load(Ordering::Relaxed));
        }
    }

    fn own_open(&self) -> Vec<Arc<Epoch>> {
        let me = thread_token();
        let is_own = |epoch: &Epoch| {
            epoch.is_inside(epoch.count.load(Ordering::Relaxed)) && epoch.thread.load(Ordering::Relaxed) == me
        };
        self.lock().iter().filter(|epoch| is_own(epoch)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Epoch>>> {
        // Nothing that runs under the lock leaves the list half changed.
        self.epochs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A number of the calling thread that no other living thread has: the address of a thread-local.
fn thread_token() -> usize {
    thread_local!(static TOKEN: u8 = const { 0 });
    TOKEN.with(|token| std::ptr::from_ref(token).addr())
}
