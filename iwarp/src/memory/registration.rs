//! The owner's handle of a registration.

use std::fmt;
use std::sync::Arc;

use dp::Region;

use crate::memory::access::Access;
use crate::memory::bytes::RawBytes;
use crate::memory::handle::{AddressRange, Handle};
use crate::memory::slot::Record;
use crate::memory::stag::Stag;
use crate::memory::table::check_rights;

/// Why memory could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// No bytes.
    #[error("a registration needs at least one byte")]
    Empty,
    /// The limit of registrations is reached.
    #[error("limit reached: max_mr = {max_mr}")]
    Limit {
        /// Registrations that may exist.
        max_mr: usize,
    },
    /// Remote writing or atomics without local writing, as in verbs.
    #[error("remote write and atomic access need local write access")]
    RemoteWithoutLocalWrite,
    /// A right to write to memory of the caller that was registered for reading only.
    #[error("the memory was registered for reading only")]
    ReadOnly,
    /// Bits that are not a right.
    #[error("the rights contain bits without a meaning")]
    UnknownRights,
    /// The limit of memory windows is reached.
    #[error("limit reached: max_mw = {max_mw}")]
    WindowLimit {
        /// Memory windows that may exist.
        max_mw: usize,
    },
    /// A memory window is bound to it.
    #[error("memory windows are bound to the region: unbind or invalidate them first")]
    Bound,
    /// Memory of the caller that is not mapped.
    #[error("no memory is mapped at {at:#x}")]
    NotMapped {
        /// The first byte that is not mapped.
        at: u64,
    },
    /// Memory of the caller whose mapping does not allow the access.
    #[error("the memory at {at:#x} may not be read, or not be written as the rights ask")]
    Protected {
        /// The first byte that does not.
        at: u64,
    },
    /// The mappings of the process cannot be read.
    #[error(
        "the mappings of this process cannot be read (/proc/self/maps): register memory of the library's own"
    )]
    Unverified,
    /// The system refused the handler of the fault guard.
    #[error("no handler for faults can be installed: set UserMemory::Trusted to go without")]
    NoGuard,
    /// The caller is a child of the process that made the table.
    #[error("this process was forked from the one that made the context: make a context of its own")]
    Forked,
    /// Peers of another protection domain may write to the same memory, and the table forbids such overlap.
    #[error(
        "{writers} STags of other protection domains let peers write to this memory: end them first, or allow it \
         (ContextConfig::strict_overlap)"
    )]
    Overlap {
        /// Number of these STags.
        writers: usize,
    },
    /// The tagged offsets would pass 2^64.
    #[error("the tagged offsets of the range would wrap")]
    BaseWraps,
}

/// Registered memory. Dropping it deregisters the memory and ends the windows that are bound to it.
///
/// RFC 5040 section 8.1.1 (RDMAP-353), RFC 5041 section 8.3.1 (DDP-229): the consumer makes and revokes the
/// binding of a buffer to an STag and a range of tagged offsets.
pub struct Registration {
    /// Dropped first: the memory must outlive it.
    handle: Handle,
    record: Record,
    memory: RawBytes,
}

// SAFETY: `record` and `memory` are kept from being `Send` only by their addresses. `memory` accesses the
// bytes by raw copies and atomics, which may come from any thread, and `record` accesses nothing. Memory of
// the caller is not freed with the value, and a region may be freed on any thread.
unsafe impl Send for Registration {}
// SAFETY: `&self` accesses the bytes by the raw copies and atomics of `RawBytes` only, which may come from
// several threads at once. `handle` is `Sync`: it accesses the table by atomics and under its lock. `record`
// changes through `&mut self` only.
unsafe impl Sync for Registration {}

impl Registration {
    pub(super) fn new(handle: Handle, record: &Record, memory: RawBytes) -> Self {
        Self { handle, record: *record, memory }
    }

    /// Its STag, which is its lkey and rkey.
    pub fn stag(&self) -> Stag {
        self.record.stag
    }

    /// The tagged offset of its first byte.
    pub fn base_to(&self) -> u64 {
        self.record.base_to
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Always false: a registration has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Rights.
    pub fn access(&self) -> Access {
        self.record.access
    }

    /// The bytes, for their owner.
    pub fn memory(&self) -> &RawBytes {
        &self.memory
    }

    /// The region behind it; `None` for memory of the caller.
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.memory.region()
    }

    /// Whether its STag is valid. It is not after an invalidation by its owner or by a peer.
    pub fn is_valid(&self) -> bool {
        self.handle.is_valid(self.record.stag)
    }

    /// Invalidates the STag (`IBV_WR_LOCAL_INV`). Its index stays reserved. When this returns, no engine
    /// writes or reads the memory any more, neither through it nor through windows that are bound to it.
    /// [`Registration::revalidate`] makes the STag valid again, but not the windows.
    ///
    /// Waits for the open epochs of other engines. It may be called inside an epoch.
    pub fn invalidate(&self) {
        self.handle.revoke();
    }

    /// Makes it valid with new rights and a new key (`ibv_rereg_mr`). When this returns, accesses that only
    /// the old STag and rights allowed have ended. The old and the new STag may be equal.
    ///
    /// RFC 5040 section 8.1.1 (RDMAP-354), RFC 5041 section 8.3.1 (DDP-230): the consumer grants and
    /// withdraws rights.
    ///
    /// # Errors
    /// [`RegisterError::RemoteWithoutLocalWrite`], [`RegisterError::ReadOnly`],
    /// [`RegisterError::UnknownRights`], [`RegisterError::Bound`], [`RegisterError::Forked`]; nothing has
    /// changed then. [`RegisterError::Overlap`] leaves it invalid.
    pub fn revalidate(&mut self, key: u8, access: Access) -> Result<Stag, RegisterError> {
        check_rights(access, self.memory.is_writable())?;
        let shared = self.handle.table.shared();
        if !shared.is_owner_process() {
            return Err(RegisterError::Forked);
        }
        if self.revoke_unbound() {
            shared.synchronize();
        } else {
            return Err(RegisterError::Bound);
        }
        let record = Record { access, stag: Stag::new(self.record.stag.index(), key), ..self.record };
        shared.republish(self.handle.slot, &record, AddressRange::from(&self.memory))?;
        self.record = record;
        Ok(self.record.stag)
    }

    /// Deregisters the memory and ends windows that are bound to it. When this returns, no engine writes or
    /// reads the memory any more.
    pub fn deregister(self) {
        drop(self);
    }

    /// Deregisters the memory (`ibv_dereg_mr`), unless a window is bound to it.
    ///
    /// # Errors
    /// The unchanged registration, if a window is bound to it.
    pub fn deregister_unbound(self) -> Result<(), Box<Self>> {
        if self.revoke_unbound() {
            drop(self);
            Ok(())
        } else {
            Err(Box::new(self))
        }
    }

    /// The number of STags of other protection domains through which a peer may write to these bytes, now or
    /// once a send queue allows it (by a window on the region or a fast registration). It walks the whole
    /// table.
    pub fn other_writers(&self) -> usize {
        let shared = self.handle.table.shared();
        if !shared.is_owner_process() {
            return 0;
        }
        shared.writers(&shared.control(), self.record.pd, AddressRange::from(&self.memory))
    }

    /// Marks the slot as invalid unless a window is bound to it. No window can be bound afterwards. Does not
    /// wait.
    fn revoke_unbound(&self) -> bool {
        let shared = self.handle.table.shared();
        if !shared.is_owner_process() {
            return true;
        }
        // Held over the check and the revocation. Binding a window holds it too.
        let control = shared.control();
        if self.record.access.contains(Access::MW_BIND) && control.is_bound(shared, self.handle.slot) {
            return false;
        }
        shared.revoke_slot(self.handle.slot);
        true
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
