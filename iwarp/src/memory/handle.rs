//! The owner's handle of a slot of the table and of the index that names the slot.

use crate::memory::slot::SlotNumber;
use crate::memory::stag::Stag;
use crate::memory::table::MemoryTable;

/// A slot and an index in use. Dropping this value revokes the STag, waits for all engines that may be using
/// the STag, and frees slot and index.
pub(super) struct Handle {
    pub(super) table: MemoryTable,
    pub(super) slot: SlotNumber,
    pub(super) index: u32,
}

impl Handle {
    /// Whether `stag` is valid now.
    pub(super) fn is_valid(&self, stag: Stag) -> bool {
        self.table.shared().lookup(stag).is_ok()
    }

    /// Invalidates the STag. When this function returns, no engine writes the memory of the STag or copies
    /// bytes from it any more.
    ///
    /// RFC 5041 section 8.3 (DDP-219): the consumer may revoke an STag at any time.
    pub(super) fn revoke(&self) {
        self.table.shared().revoke(self.slot);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.table.shared().retire(self.slot, self.index);
    }
}
