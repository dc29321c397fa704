//! Regions for fast registration.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use dp::Region;

use crate::memory::{Access, Base, FastRegistration, Prepare, RawBytes, Stag};

use super::mr::register_error;
use super::{FastRegister, ProtectionDomain, QueuePair, Sge, VerbsError};

/// Options of a new region for fast registration.
#[derive(Clone, Copy, Default)]
pub struct FastOptions<'a> {
    /// Limits the region to the peer of this queue pair; `None`: every queue pair of the protection domain
    /// can use the region. Default: `None`.
    pub qp: Option<&'a QueuePair>,
    /// Forbids the peer to invalidate the region, even if `qp` limits the region to this peer. Default:
    /// `false`.
    pub keep: bool,
}

impl FastOptions<'_> {
    fn prepare(&self, pd: &ProtectionDomain) -> Result<Prepare, VerbsError> {
        Ok(Prepare { pd: pd.id(), stream: pd.stream(self.qp)?, keep: self.keep })
    }
}

/// Prepared memory with an STag that is initially invalid. A send queue makes the STag valid for a range of
/// the memory ([`SendOp::FastRegister`](super::SendOp::FastRegister)), and can do so again after the STag was
/// invalidated. Dropping the region deregisters it; the drop returns when no engine uses the memory any more.
pub struct FastRegion {
    registration: FastRegistration,
    /// The STag that was last returned to the user.
    rkey: AtomicU32,
    /// Keeps the protection domain and the context alive.
    _pd: ProtectionDomain,
}

impl FastRegion {
    pub(super) fn allocate(
        pd: &ProtectionDomain,
        bytes: usize,
        options: &FastOptions<'_>,
    ) -> Result<Self, VerbsError> {
        let region = Arc::new(Region::new(bytes)?);
        let registration = pd.shared.resources.memory.prepare(region, &options.prepare(pd)?);
        Ok(Self::new(pd, registration.map_err(register_error)?))
    }

    /// Prepares memory of the caller.
    ///
    /// # Safety
    /// Until the region is dropped, whether its STag is valid or not, `addr..addr + bytes` stays mapped,
    /// readable and, if `writable`, writable. The caller accesses this memory only in ways that allow other
    /// threads to read and change it at any time: through raw pointers or atomics, never through a reference
    /// to plain bytes.
    #[allow(unsafe_code, reason = "the promise is the caller's, and is passed on")]
    pub(super) unsafe fn register_user(
        pd: &ProtectionDomain,
        addr: *mut u8,
        bytes: usize,
        writable: bool,
        options: &FastOptions<'_>,
    ) -> Result<Self, VerbsError> {
        let options = options.prepare(pd)?;
        // SAFETY: the caller promises that the memory is mapped and accessible until the returned
        // `FastRegion` is dropped, and is accessed only in ways that allow concurrent accesses. The
        // `FastRegion` owns the registration, so both are dropped together.
        let registration =
            unsafe { pd.shared.resources.memory.prepare_user(addr, bytes, writable, &options) };
        Ok(Self::new(pd, registration.map_err(register_error)?))
    }

    fn new(pd: &ProtectionDomain, registration: FastRegistration) -> Self {
        let rkey = AtomicU32::new(registration.stag(0).0);
        Self { registration, rkey, _pd: pd.clone() }
    }

    /// Returns the STag, which is both lkey and rkey. The STag is valid once the last requested registration
    /// has completed.
    pub fn rkey(&self) -> u32 {
        self.rkey.load(Ordering::Acquire)
    }

    /// Advances to the next key, and returns the STag with this key.
    pub fn next_rkey(&self) -> u32 {
        let next = |rkey: u32| self.registration.stag(Stag(rkey).key().wrapping_add(1)).0;
        let update = self.rkey.fetch_update(Ordering::AcqRel, Ordering::Acquire, |rkey| Some(next(rkey)));
        next(update.unwrap_or_else(|rkey| rkey))
    }

    /// Whether the region is valid under [`rkey`](Self::rkey).
    pub fn is_valid(&self) -> bool {
        self.registration.is_valid(Stag(self.rkey()))
    }

    /// Returns the memory of the region. The owner may use the memory whether the STag is valid or not.
    pub fn memory(&self) -> &RawBytes {
        self.registration.memory()
    }

    /// Returns a request that registers `length` bytes from `offset` of the region's memory. The request uses
    /// the next key. The tagged offsets start at the virtual address of the first byte.
    pub fn register(&self, offset: u64, length: u64, access: Access) -> FastRegister {
        FastRegister { rkey: self.next_rkey(), offset, length, access, base: Base::VirtualAddress }
    }

    /// Returns the virtual address of the byte at `offset` of the region's memory.
    pub fn addr(&self, offset: u64) -> u64 {
        (self.memory().as_ptr().addr() as u64).wrapping_add(offset)
    }

    /// Returns a scatter/gather element with `length` bytes from `offset` of the region's memory. Use the
    /// element in a request that is posted after the request that registers these bytes at their virtual
    /// address.
    pub fn sge(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.addr(offset), length, lkey: self.rkey() }
    }

    /// Makes the STag invalid at once. When this function returns, no engine reads or changes the region's
    /// memory any more.
    pub fn invalidate(&self) {
        self.registration.invalidate();
    }
}
