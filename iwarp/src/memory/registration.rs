//! A registration as its owner holds it.

use std::fmt;
use std::sync::Arc;

use dp::Region;

use crate::memory::access::Access;
use crate::memory::bytes::RawBytes;
use crate::memory::slot::Record;
use crate::memory::stag::Stag;
use crate::memory::table::{MemoryTable, check_rights};

/// Why memory could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// No octets.
    #[error("a registration needs at least one octet")]
    Empty,
    /// The limit is reached.
    #[error("limit reached: max_mr = {max_mr}")]
    Limit {
        /// Registrations that may exist.
        max_mr: usize,
    },
    /// Remote writing or atomics without local writing, as in verbs.
    #[error("remote write and atomic access need local write access")]
    RemoteWithoutLocalWrite,
    /// A right to write to memory of the caller that was registered without any.
    #[error("the memory was registered for reading only")]
    ReadOnly,
    /// Tagged offsets would pass 2^64.
    #[error("the tagged offsets of the range would wrap")]
    BaseWraps,
}

/// Registered memory. Dropping it deregisters.
pub struct Registration {
    table: MemoryTable,
    slot: u32,
    record: Record,
    memory: RawBytes,
    /// Keeps the memory while the registration exists; `None` for memory of the caller.
    region: Option<Arc<Region>>,
}

// SAFETY: the pointers in it are addresses of memory whose accesses are all raw copies and atomics, safe from
// any thread; everything else in it is `Send`.
unsafe impl Send for Registration {}
// SAFETY: as above; `&self` gives no more than such accesses and the atomics of the table.
unsafe impl Sync for Registration {}

impl Registration {
    pub(super) fn new(
        table: MemoryTable,
        slot: u32,
        record: &Record,
        memory: RawBytes,
        region: Option<Arc<Region>>,
    ) -> Self {
        Self { table, slot, record: *record, memory, region }
    }

    /// Its name: lkey, rkey and STag.
    pub fn stag(&self) -> Stag {
        self.record.stag
    }

    /// The tagged offset of its first octet.
    pub fn base_to(&self) -> u64 {
        self.record.base_to
    }

    /// Octets.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Never: a registration has at least one octet.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Rights.
    pub fn access(&self) -> Access {
        self.record.access
    }

    /// The octets, for their owner.
    pub fn memory(&self) -> &RawBytes {
        &self.memory
    }

    /// The region behind it, unless it is memory of the caller.
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// Whether it may be used: not since it was invalidated, by its owner or by the peer.
    pub fn is_valid(&self) -> bool {
        self.table.shared().lookup(self.record.stag).is_ok()
    }

    /// Makes the STag unusable (`IBV_WR_LOCAL_INV`); its index stays reserved. When this returns, nothing behind it
    /// changes or is read any more. [`Registration::revalidate`] makes it usable again.
    ///
    /// Waits for the turns that other engines are in. It may be called inside a turn.
    pub fn invalidate(&self) {
        self.table.shared().revoke(self.slot);
    }

    /// Makes it usable with new rights and a new key, as a fast register does; what the old STag admitted is
    /// over when this returns. The STag before and after may be equal.
    ///
    /// # Errors
    /// [`RegisterError::RemoteWithoutLocalWrite`], [`RegisterError::ReadOnly`]; nothing has changed then.
    pub fn revalidate(&mut self, key: u8, access: Access) -> Result<Stag, RegisterError> {
        check_rights(&self.memory, access)?;
        self.invalidate();
        self.record.access = access;
        self.record.stag = Stag::new(self.record.stag.index(), key);
        self.table.shared().republish(self.slot, &self.record);
        Ok(self.record.stag)
    }

    /// Deregisters. When this returns, nothing behind it changes or is read any more, on any engine.
    pub fn deregister(self) {
        drop(self);
    }
}

impl Drop for Registration {
    /// Revokes, waits for every engine to let go, then gives the slot back, and last the region.
    fn drop(&mut self) {
        let shared = self.table.shared();
        shared.revoke(self.slot);
        shared.release(self.slot, self.record.stag.index());
    }
}

impl fmt::Debug for Registration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registration")
            .field("stag", &self.record.stag)
            .field("base_to", &self.record.base_to)
            .field("len", &self.len())
            .field("access", &self.record.access)
            .finish_non_exhaustive()
    }
}
