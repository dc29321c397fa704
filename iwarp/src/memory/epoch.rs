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

/// The participation of one engine in reclamation. It belongs to one thread at a time.
pub struct Participant {
    table: MemoryTable,
    epoch: Arc<Epoch>,
    /// `Send`, since engines move between threads. Not `Sync`, since two threads must not enter at once.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

/// An open epoch of an engine. Registered memory may be accessed while it exists. It ends when dropped, and
/// should be short (a burst), because revoking an STag waits for it.
pub struct EpochGuard<'p> {
    participant: &'p Participant,
    /// It stays on its thread: the proof relies on the program order of this thread.
    _not_send: PhantomData<*const ()>,
}

impl Participant {
    pub(super) fn new(table: MemoryTable) -> Self {
        let epoch = table.shared().quiescence.join();
        Self { table, epoch, _not_sync: PhantomData }
    }

    /// Opens an epoch.
    ///
    /// # Panics
    /// When an epoch of this participant is open, on this thread or another: epochs do not nest.
    pub fn enter(&self) -> EpochGuard<'_> {
        let count = self.epoch.idle_count().expect("an epoch of this participant is open already");
        self.epoch.enter(count);
        EpochGuard { participant: self, _not_send: PhantomData }
    }

    /// The table that it belongs to.
    pub fn table(&self) -> &MemoryTable {
        &self.table
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        Quiescence::leave(&self.epoch);
    }
}

impl EpochGuard<'_> {
    pub(super) fn shared(&self) -> &TableShared {
        self.participant.table.shared()
    }

    /// The table that it gives access to.
    pub fn table(&self) -> &MemoryTable {
        &self.participant.table
    }
}

impl Drop for EpochGuard<'_> {
    fn drop(&mut self) {
        self.participant.epoch.exit();
    }
}
