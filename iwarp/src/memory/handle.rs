//! The owner's grip on a slot of the table and on the index that names it.

use crate::memory::bytes::RawBytes;
use crate::memory::slot::SlotNumber;
use crate::memory::stag::Stag;
use crate::memory::table::MemoryTable;

/// A slot and an index in use. Dropping it revokes the STag, waits for every engine to let go, and gives both
/// back.
pub(super) struct Handle {
    pub(super) table: MemoryTable,
    pub(super) slot: SlotNumber,
    pub(super) index: u32,
}

impl Handle {
    /// Whether `stag` may be used now: not since it was invalidated, nor when it is another generation's.
    pub(super) fn is_valid(&self, stag: Stag) -> bool {
        self.table.shared().lookup(stag).is_ok()
    }

    /// Makes the STag unusable. When this returns, nothing behind it changes or is read any more.
    pub(super) fn revoke(&self) {
        self.table.shared().revoke(self.slot);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.table.shared().retire(self.slot, self.index);
    }
}

/// Address and length of memory, for keeping: who accesses it through them answers for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) ptr: *mut u8,
    pub(super) len: usize,
    pub(super) writable: bool,
    pub(super) guarded: bool,
}

// SAFETY: an address and a length; nothing is accessed through the value itself.
unsafe impl Send for Extent {}
// SAFETY: as above.
unsafe impl Sync for Extent {}

impl From<&RawBytes> for Extent {
    fn from(memory: &RawBytes) -> Self {
        Self {
            ptr: memory.as_ptr(),
            len: memory.len(),
            writable: memory.is_writable(),
            guarded: memory.is_guarded(),
        }
    }
}
