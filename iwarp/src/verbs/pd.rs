//! Protection domains.

use crate::memory::Access;

use super::{MemoryRegion, QpInit, QueuePair, VerbsError};

/// Regions and queue pairs work together only within one protection domain. Cheap to clone.
#[derive(Clone)]
pub struct ProtectionDomain {}

impl ProtectionDomain {
    /// Registers `octets` of fresh zeroed memory, on hugepages where there are any.
    /// Its tagged offsets start at its virtual address.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Region`].
    pub fn reg_mr(&self, octets: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        let _ = (octets, access);
        todo!()
    }

    /// Registers memory of the caller (`ibv_reg_mr`).
    ///
    /// # Safety
    /// `addr..addr + octets` must be readable (and writable, if `access` allows any writing) until the region is
    /// dropped, and accessed meanwhile only in ways that allow a peer to change it at any time.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Invalid`].
    pub unsafe fn reg_user_mr(&self, addr: *mut u8, octets: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        let _ = (addr, octets, access);
        todo!()
    }

    /// A queue pair in state `Idle`: receives may be posted at once (`ibv_create_qp`).
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Invalid`].
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<QueuePair, VerbsError> {
        let _ = init;
        todo!()
    }
}
