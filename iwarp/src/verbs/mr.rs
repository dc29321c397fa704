//! Registered memory.

use std::sync::Arc;

use dp::Region;

use crate::memory::{Access, Base, RegisterError, RegisterOptions, Registration};

use super::{ProtectionDomain, QueuePair, Sge, VerbsError};

/// Options of a registration.
#[derive(Clone, Copy, Default)]
pub struct MrOptions<'a> {
    /// The rights of local requests and of peers. The rights of peers to write and to do atomics need
    /// [`Access::LOCAL_WRITE`]. Default: none.
    pub access: Access,
    /// The tagged offset of the region's first byte. Default: [`Base::VirtualAddress`].
    pub base: Base,
    /// Limits the region to the peer of this queue pair. The peer can invalidate only regions that are
    /// limited to this peer (Send with Invalidate; RFC 5042 section 6.4.5). `None`: every queue pair of the
    /// protection domain can use the region.
    ///
    /// Peers that do not trust each other need separate protection domains, or regions that are limited to
    /// their own queue pair (RFC 5042 sections 6.1.1 and 6.4.5; SEC-089, SEC-157). Default: `None`.
    pub qp: Option<&'a QueuePair>,
    /// The low eight bits of the STag. Default: 0.
    pub key: u8,
    /// Forbids the peer to invalidate the region, even if `qp` limits the region to this peer. Default:
    /// `false`.
    pub keep: bool,
}

impl MrOptions<'_> {
    /// Returns options with the rights `access`, and defaults for the other fields.
    pub fn new(access: Access) -> Self {
        Self { access, ..Self::default() }
    }

    fn register_options(&self, pd: &ProtectionDomain) -> Result<RegisterOptions, VerbsError> {
        let Self { access, base, qp, key, keep } = *self;
        Ok(RegisterOptions { pd: pd.id(), stream: pd.stream(qp)?, access, base, key, keep })
    }
}

/// A registered region. Dropping this value deregisters the region; the drop returns when no engine uses the
/// memory any more.
///
/// Memory may be registered several times, for example with different rights or in different protection
/// domains. Then readers see the data of all writers, and two writers can overwrite each other's data (RFC
/// 5042 section 6.3.6). See [`other_writers`](Self::other_writers).
pub struct MemoryRegion {
    registration: Registration,
    /// Keeps the protection domain and the context alive, so that they stay counted against their limits.
    pd: ProtectionDomain,
}

impl MemoryRegion {
    pub(super) fn allocate(
        pd: &ProtectionDomain,
        bytes: usize,
        options: &MrOptions<'_>,
    ) -> Result<Self, VerbsError> {
        let region = Arc::new(Region::new(bytes)?);
        let registration = pd
            .shared
            .resources
            .memory
            .register(region, &options.register_options(pd)?)
            .map_err(register_error)?;
        Ok(Self { registration, pd: pd.clone() })
    }

    /// Registers memory of the caller.
    ///
    /// # Safety
    /// Until the region is dropped, `addr..addr + bytes` stays mapped, readable and (if `options` allow any
    /// writing) writable. The caller accesses this memory only in ways that allow other threads to read and
    /// change it at any time: through raw pointers or atomics, never through a reference to plain bytes.
    #[allow(unsafe_code, reason = "the promise is the caller's, and is passed on")]
    pub(super) unsafe fn register_user(
        pd: &ProtectionDomain,
        addr: *mut u8,
        bytes: usize,
        options: &MrOptions<'_>,
    ) -> Result<Self, VerbsError> {
        let options = options.register_options(pd)?;
        // SAFETY: the caller promises that the memory is mapped and accessible until the returned
        // `MemoryRegion` is dropped, and is accessed only in ways that allow concurrent accesses. The
        // `MemoryRegion` owns the registration, so both are dropped together.
        let registration = unsafe { pd.shared.resources.memory.register_user(addr, bytes, &options) };
        Ok(Self { registration: registration.map_err(register_error)?, pd: pd.clone() })
    }

    /// Registers a range of addresses of the caller, whose bytes need not be mapped.
    ///
    /// # Safety
    /// Until the returned value is dropped, accesses of the process to mapped bytes of `addr..addr + bytes`
    /// allow other threads to read and change these bytes, unless no peer and no request names the bytes.
    #[allow(unsafe_code, reason = "the promise is the caller's, and is passed on")]
    pub(super) unsafe fn register_on_demand(
        pd: &ProtectionDomain,
        addr: *mut u8,
        bytes: usize,
        options: &MrOptions<'_>,
    ) -> Result<Self, VerbsError> {
        let options = options.register_options(pd)?;
        // SAFETY: the caller promises that accesses to mapped bytes that a peer or a request names allow
        // concurrent accesses until the returned `MemoryRegion` is dropped, which owns the registration.
        let registration = unsafe { pd.shared.resources.memory.register_on_demand(addr, bytes, &options) };
        Ok(Self { registration: registration.map_err(register_error)?, pd: pd.clone() })
    }

    /// Returns the key for local requests.
    pub fn lkey(&self) -> u32 {
        self.registration.stag().0
    }

    /// Returns the STag to advertise to the peer, which is the same value as [`lkey`](Self::lkey).
    pub fn rkey(&self) -> u32 {
        self.registration.stag().0
    }

    /// Returns the tagged offset of the first byte. The default is the byte's virtual address.
    pub fn addr(&self) -> u64 {
        self.registration.base_to()
    }

    /// Returns the length of the region in bytes.
    pub fn len(&self) -> usize {
        self.registration.len()
    }

    /// Whether the region has no bytes. Only a region with memory of the caller can have no bytes
    /// ([`ProtectionDomain::reg_user_mr`]).
    pub fn is_empty(&self) -> bool {
        self.registration.is_empty()
    }

    /// Returns the rights of the region.
    pub fn access(&self) -> Access {
        self.registration.access()
    }

    /// Whether the region is valid.
    pub fn is_valid(&self) -> bool {
        self.registration.is_valid()
    }

    /// Returns a scatter/gather element with `length` bytes from `offset`. The range is checked when the
    /// request is posted.
    ///
    /// # Panics
    /// If `length` is larger than 2^32 - 1, which is the maximum length of an element.
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        let Ok(length) = u32::try_from(length) else { too_long(length) };
        Sge { addr: self.addr().wrapping_add(offset as u64), length, lkey: self.lkey() }
    }

    /// Copies `bytes` to `offset` of the region.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] if the range is not inside the region, or if memory of the caller is
    /// not writable or no longer mapped.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), VerbsError> {
        self.registration.memory().write_at(offset, bytes).map_err(out_of_range)
    }

    /// Copies `out.len()` bytes from `offset` of the region to `out`.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] if the range is not inside the region, or if memory of the caller is
    /// no longer mapped.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        self.registration.memory().read_at(offset, out).map_err(out_of_range)
    }

    /// Loads one byte with acquire ordering, for a program that polls the last byte of a Write.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] if `offset` is outside the region, or if memory of the caller is no
    /// longer mapped.
    pub fn load_u8(&self, offset: usize) -> Result<u8, VerbsError> {
        self.registration.memory().load_u8_acquire(offset).map_err(out_of_range)
    }

    /// Returns the address of the memory. The result is a raw pointer because a peer may change the memory at
    /// any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.registration.memory().as_ptr()
    }

    /// Returns the number of STags of other protection domains that let a peer write to this memory. If the
    /// peers do not trust each other, there should be no such STag (RFC 5042 section 6.3.6). The call walks
    /// the whole table, so it is too slow for the data path.
    pub fn other_writers(&self) -> usize {
        self.registration.other_writers()
    }

    /// Makes the STag invalid at once. When this function returns, no engine reads or changes the memory of
    /// the region, or of windows bound to the region, any more.
    pub fn invalidate(&self) {
        self.registration.invalidate();
    }

    /// Gives the region new rights and a new key (`ibv_rereg_mr`), whether the region is valid or
    /// invalidated, and returns the new STag. When this function returns, the old STag and the old rights
    /// have no effect on any engine.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the rights are inconsistent, if the memory does not allow them, or if a
    /// window is bound to the region. After these errors, the region is unchanged. Also
    /// [`VerbsError::Invalid`] if [`ContextConfig::strict_overlap`](super::ContextConfig::strict_overlap)
    /// refuses the rights: then the region is invalid.
    pub fn reregister(&mut self, access: Access, key: u8) -> Result<u32, VerbsError> {
        self.registration.revalidate(key, access).map(|stag| stag.0).map_err(register_error)
    }

    /// Deregisters the region (`ibv_dereg_mr`). When this function returns, no engine reads or changes the
    /// memory any more.
    ///
    /// Dropping a region also deregisters it. Where `deregister` would fail because a window is bound to the
    /// region, the drop ends the window.
    ///
    /// # Errors
    /// [`BoundRegion`] with the unchanged region, if a window is bound to it.
    pub fn deregister(self) -> Result<(), BoundRegion> {
        let Self { registration, pd } = self;
        registration.deregister_unbound().map_err(|registration| BoundRegion {
            region: Box::new(Self { registration: *registration, pd }),
        })
    }
}

/// A region that could not be deregistered, because a window is bound to it.
#[derive(thiserror::Error)]
#[error("a memory window is bound to the region: unbind or invalidate it first, or drop the region")]
pub struct BoundRegion {
    /// The region, unchanged.
    pub region: Box<MemoryRegion>,
}

impl std::fmt::Debug for BoundRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundRegion").field("rkey", &self.region.rkey()).finish_non_exhaustive()
    }
}

pub(super) fn register_error(error: RegisterError) -> VerbsError {
    match error {
        RegisterError::Limit { max_mr } => VerbsError::Limit { name: "max_mr", limit: max_mr },
        RegisterError::WindowLimit { max_mw } => VerbsError::Limit { name: "max_mw", limit: max_mw },
        RegisterError::NotMapped { .. } | RegisterError::Protected { .. } | RegisterError::Unverified => {
            VerbsError::Inaccessible(error.to_string())
        }
        _ => VerbsError::Invalid(error.to_string()),
    }
}

#[cold]
fn too_long(length: usize) -> ! {
    panic!("an element has at most 2^32 - 1 bytes, and not {length}")
}

fn out_of_range(error: impl std::fmt::Display) -> VerbsError {
    VerbsError::LocalProtection(error.to_string())
}
