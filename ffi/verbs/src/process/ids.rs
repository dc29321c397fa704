//! The identifiers of programs, by those of the engine's context.
//!
//! An event is made with the table locked. A program that destroys an identifier removes it from the table
//! first, so the identifier lives while its event is made.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use iwarp::verbs::CmId;

/// The addresses of identifiers, as programs know them.
#[derive(Default)]
pub(crate) struct Ids {
    known: Mutex<HashMap<CmId, usize>>,
}

impl Ids {
    /// The table, locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<CmId, usize>> {
        self.known.lock().expect("no holder of this lock panics")
    }

    /// Events of `cm` are for the identifier at `address` from now on.
    pub(crate) fn know(&self, cm: &CmId, address: usize) {
        self.lock().insert(cm.clone(), address);
    }

    /// No more events of `cm` reach a program.
    pub(crate) fn forget(&self, cm: &CmId) {
        // The identifier is dropped without the lock: that may end a connection.
        let known = self.lock().remove_entry(cm);
        drop(known);
    }
}
