//! A registration as its owner holds it.

use std::fmt;
use std::sync::Arc;

use dp::Region;

use crate::memory::access::Access;
use crate::memory::bytes::RawBytes;
use crate::memory::handle::{Extent, Handle};
use crate::memory::slot::Record;
use crate::memory::stag::Stag;
use crate::memory::table::check_rights;

/// Why memory could not be registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// No bytes.
    #[error("a registration needs at least one byte")]
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
    /// Bits that are no right.
    #[error("the rights contain bits without a meaning")]
    UnknownRights,
    /// The limit is reached.
    #[error("limit reached: max_mw = {max_mw}")]
    WindowLimit {
        /// Memory windows that may exist.
        max_mw: usize,
    },
    /// A memory window is bound to it.
    #[error("memory windows are bound to the region: unbind or invalidate them first")]
    Bound,
    /// Memory of the caller that is not there.
    #[error("no memory is mapped at {at:#x}")]
    NotMapped {
        /// The first byte that is not.
        at: u64,
    },
    /// Memory of the caller that may not be accessed so.
    #[error("the memory at {at:#x} may not be read, or not be written as the rights ask")]
    Protected {
        /// The first byte that may not.
        at: u64,
    },
    /// The system does not say what is mapped.
    #[error(
        "the mappings of this process cannot be read (/proc/self/maps): register memory of the library's own"
    )]
    Unverified,
    /// The system does not allow the fault guard.
    #[error("no handler for faults can be installed: set UserMemory::Trusted to go without")]
    NoGuard,
    /// In a child of the process that made the table.
    #[error("this process was forked from the one that made the context: make a context of its own")]
    Forked,
    /// Peers of another protection domain may write to the same memory, and the table is strict about that.
    #[error(
        "{writers} STags of other protection domains let peers write to this memory: end them first, or allow it \
         (ContextConfig::strict_overlap)"
    )]
    Overlap {
        /// How many.
        writers: usize,
    },
    /// Tagged offsets would pass 2^64.
    #[error("the tagged offsets of the range would wrap")]
    BaseWraps,
}

/// Registered memory. Dropping it deregisters, and the windows that are bound to it end with it.
pub struct Registration {
    /// Goes first: the memory must outlast it.
    handle: Handle,
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
        handle: Handle,
        record: &Record,
        memory: RawBytes,
        region: Option<Arc<Region>>,
    ) -> Self {
        Self { handle, record: *record, memory, region }
    }

    /// Its name: lkey, rkey and STag.
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

    /// Never: a registration has at least one byte.
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

    /// The region behind it, unless it is memory of the caller.
    pub fn region(&self) -> Option<&Arc<Region>> {
        self.region.as_ref()
    }

    /// Whether it may be used: not since it was invalidated, by its owner or by the peer.
    pub fn is_valid(&self) -> bool {
        self.handle.is_valid(self.record.stag)
    }

    /// Makes the STag unusable (`IBV_WR_LOCAL_INV`); its index stays reserved. When this returns, nothing
    /// behind it changes or is read any more, nor behind windows that are bound to it.
    /// [`Registration::revalidate`] makes it usable again, not the windows.
    ///
    /// Waits for the turns that other engines are in. It may be called inside a turn.
    pub fn invalidate(&self) {
        self.handle.revoke();
    }

    /// Makes it usable with new rights and a new key (`ibv_rereg_mr`); what the old STag admitted is over
    /// when this returns. The STag before and after may be equal.
    ///
    /// # Errors
    /// [`RegisterError::RemoteWithoutLocalWrite`], [`RegisterError::ReadOnly`],
    /// [`RegisterError::UnknownRights`], [`RegisterError::Bound`], [`RegisterError::Forked`]; nothing has
    /// changed then. [`RegisterError::Overlap`] leaves it invalid.
    pub fn revalidate(&mut self, key: u8, access: Access) -> Result<Stag, RegisterError> {
        check_rights(access, self.memory.is_writable())?;
        let shared = self.handle.table.shared();
        if !shared.is_here() {
            return Err(RegisterError::Forked);
        }
        if self.revoke_unbound() {
            shared.synchronize();
        } else {
            return Err(RegisterError::Bound);
        }
        let record = Record { access, stag: Stag::new(self.record.stag.index(), key), ..self.record };
        shared.republish(self.handle.slot, &record, Extent::from(&self.memory))?;
        self.record = record;
        Ok(self.record.stag)
    }

    /// Deregisters, and ends windows that are bound to it. When this returns, nothing behind it changes or is
    /// read any more, on any engine.
    pub fn deregister(self) {
        drop(self);
    }

    /// Deregisters (`ibv_dereg_mr`), unless windows are bound to it.
    ///
    /// # Errors
    /// The registration as it was, while a window is bound to it.
    pub fn deregister_unbound(self) -> Result<(), Box<Self>> {
        if self.revoke_unbound() {
            drop(self);
            Ok(())
        } else {
            Err(Box::new(self))
        }
    }

    /// How many STags of other protection domains there are through which a peer may write to these bytes, or
    /// may as soon as a send queue makes it so (a window on the region, a fast registration). It walks the
    /// whole table.
    pub fn other_writers(&self) -> usize {
        let shared = self.handle.table.shared();
        if !shared.is_here() {
            return 0;
        }
        shared.writers(&shared.control(), self.record.pd, Extent::from(&self.memory))
    }

    /// Marks the slot as invalid unless a window is bound to it: from then on none can be. Without waiting.
    fn revoke_unbound(&self) -> bool {
        let shared = self.handle.table.shared();
        if !shared.is_here() {
            return true;
        }
        // Held over both: binding holds it too.
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
