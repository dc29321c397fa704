//! Registered memory.

use super::{Sge, VerbsError};

/// A registered region. Dropping it deregisters: that returns once no engine uses the memory any more.
pub struct MemoryRegion {}

impl MemoryRegion {
    /// The key for own requests.
    pub fn lkey(&self) -> u32 {
        todo!()
    }

    /// The STag to advertise to the peer; the same value as [`lkey`](Self::lkey).
    pub fn rkey(&self) -> u32 {
        todo!()
    }

    /// The tagged offset of the first octet: its virtual address.
    pub fn addr(&self) -> u64 {
        todo!()
    }

    /// Octets.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Never: a region has at least one octet.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// `length` octets from `offset` on as a scatter/gather element (not checked here, but when posted).
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge { addr: self.addr() + offset as u64, length: length as u32, lkey: self.lkey() }
    }

    /// Copies `octets` into the region from `offset` on.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] when it does not fit.
    pub fn write_at(&self, offset: usize, octets: &[u8]) -> Result<(), VerbsError> {
        let _ = (offset, octets);
        todo!()
    }

    /// Copies `out.len()` octets from `offset` on out of the region.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] when it does not fit.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        let _ = (offset, out);
        todo!()
    }

    /// One octet, with acquire ordering: for polling the last octet of a Write.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] outside the region.
    pub fn load_u8(&self, offset: usize) -> Result<u8, VerbsError> {
        let _ = offset;
        todo!()
    }

    /// The memory itself: raw, because a peer may change it at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        todo!()
    }

    /// Deregisters, reporting what dropping would ignore (`ibv_dereg_mr`).
    pub fn deregister(self) {
        drop(self);
    }
}
