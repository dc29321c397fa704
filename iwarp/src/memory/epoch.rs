//! The epochs of an engine, during which the engine may access registered memory (`quiescence.rs` has the
//! proof).

use std::marker::PhantomData;
use std::sync::Arc;

use crate::memory::quiescence::{Epoch, Quiescence};
use crate::memory::table::{MemoryTable, TableShared};

impl MemoryTable {
    /// Returns a participant for an engine.
    pub fn join(&self) -> Participant {
        Participant::new(self.clone())
    }
}

/// Opens the epochs of one engine. Only one thread at a time may use a participant.
pub struct Participant {
    table: MemoryTable,
    epoch: Arc<Epoch>,
    /// Makes the type `!Sync`, since two threads must not call `enter` at the same time. The type is `Send`,
    /// since engines move between threads.
    _not_sync: PhantomData<std::cell::Cell<()>>,
}

/// An open epoch of an engine. The engine may access registered memory while the guard exists. The epoch ends
/// when the guard is dropped. An epoch should be short (one burst), because a thread that deregisters memory
/// waits for the end of the epochs that are open on other threads.
pub struct EpochGuard<'p> {
    participant: &'p Participant,
    /// Makes the type `!Send`: the proof relies on the program order of the thread that opened the epoch.
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
    /// Panics if an epoch of this participant is already open.
    pub fn enter(&self) -> EpochGuard<'_> {
        let count = self.epoch.idle_count().expect("an epoch of this participant is open already");
        self.epoch.enter(count);
        EpochGuard { participant: self, _not_send: PhantomData }
    }

    /// The table of the participant.
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

    /// The table whose registered memory may be accessed during the epoch.
    pub fn table(&self) -> &MemoryTable {
        &self.participant.table
    }
}

impl Drop for EpochGuard<'_> {
    fn drop(&mut self) {
        self.participant.epoch.exit();
    }
}
