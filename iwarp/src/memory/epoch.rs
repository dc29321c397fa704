//! The participation of an engine in reclamation, and its epochs.

use std::marker::PhantomData;
use std::sync::Arc;

use crate::memory::quiescence::{Epoch, Quiescence};
use crate::memory::table::{MemoryTable, TableShared};

impl MemoryTable {
    /// A participant for an engine, which opens the epochs in which the engine accesses memory.
    pub fn join(&self) -> Participant {
        Participant::new(self.clone())
    }
}

/// The state that a participant and its open epoch share. An open epoch counts one reference.
struct Membership {
    table: MemoryTable,
    epoch: Arc<Epoch>,
}

/// The participation of one engine in reclamation. It belongs to one thread at a time.
pub struct Participant {
    membership: Arc<Membership>,
    /// `Send`, since engines move between threads. Not `Sync`, since two threads must not enter at once.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

/// An open epoch of an engine. Registered memory may be accessed while it exists. It ends when dropped, and
/// should be short (a burst), because revoking an STag waits for it.
pub struct EpochGuard {
    membership: Arc<Membership>,
    /// It stays on its thread: the proof relies on the program order of this thread.
    _not_send: PhantomData<*const ()>,
}

impl Participant {
    pub(super) fn new(table: MemoryTable) -> Self {
        let epoch = table.shared().quiescence.join();
        Self { membership: Arc::new(Membership { table, epoch }), _not_sync: PhantomData }
    }

    /// Opens an epoch.
    ///
    /// # Panics
    /// When an epoch of this participant is open, on this thread or another: epochs do not nest.
    pub fn enter(&self) -> EpochGuard {
        let epoch = &self.membership.epoch;
        let count = epoch.idle_count().expect("an epoch of this participant is open already");
        epoch.enter(count);
        EpochGuard { membership: Arc::clone(&self.membership), _not_send: PhantomData }
    }

    /// The table that it belongs to.
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
    pub(super) fn shared(&self) -> &TableShared {
        self.membership.table.shared()
    }

    /// The table that it gives access to.
    pub fn table(&self) -> &MemoryTable {
        &self.membership.table
    }
}

impl Drop for EpochGuard {
    fn drop(&mut self) {
        self.membership.epoch.exit();
    }
}
