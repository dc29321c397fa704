//! Registered memory.

use std::sync::Arc;

use dp::Region;

use crate::memory::{Access, Base, RegisterError, RegisterOptions, Registration};

use super::{ProtectionDomain, QueuePair, Sge, VerbsError};

/// How memory is registered.
#[derive(Clone, Copy, Default)]
pub struct MrOptions<'a> {
    /// Rights.
    pub access: Access,
    /// Where its tagged offsets start: at its virtual address by default.
    pub base: Base,
    /// The one queue pair whose peer may use it. Only such a region can be invalidated by the peer
    /// (Send with Invalidate; RFC 5042 section 6.4.5). `None`: every queue pair of the protection domain.
    pub qp: Option<&'a QueuePair>,
    /// The low eight bits of the STag.
    pub key: u8,
    /// The peer may not invalidate it, also with `qp`.
    pub keep: bool,
}

impl MrOptions<'_> {
    /// These rights, and defaults.
    pub fn new(access: Access) -> Self {
        Self { access, ..Self::default() }
    }

    fn register_options(&self, pd: &ProtectionDomain) -> Result<RegisterOptions, VerbsError> {
        let Self { access, base, qp, key, keep } = *self;
        Ok(RegisterOptions { pd: pd.id(), stream: pd.stream(qp)?, access, base, key, keep })
    }
}

/// A registered region. Dropping it deregisters: that returns once no engine uses the memory any more.
///
/// Memory may be registered several times, with rights and in domains of its own each time. A reader then
/// sees what the writers write, and two writers can destroy each other's data (RFC 5042 section 6.3.6); see
/// [`other_writers`](Self::other_writers).
pub struct MemoryRegion {
    registration: Registration,
    /// Keeps protection domain and context alive, and counts against their limits.
    pd: ProtectionDomain,
}

impl MemoryRegion {
    pub(super) fn allocate(
        pd: &ProtectionDomain,
        bytes: usize,
        options: &MrOptions<'_>,
    ) -> Result<Self, VerbsError> {
        let region = Arc::new(Region::new(bytes)?);
        let registration =
            pd.shared.resources.memory.register(region, &options.register_options(pd)?).map_err(refused)?;
        Ok(Self { registration, pd: pd.clone() })
    }

    /// Registers memory of the caller.
    ///
    /// # Safety
    /// As [`ProtectionDomain::reg_user_mr`].
    #[allow(unsafe_code, reason = "the promise is the caller's, and is passed on")]
    pub(super) unsafe fn over(
        pd: &ProtectionDomain,
        addr: *mut u8,
        bytes: usize,
        options: &MrOptions<'_>,
    ) -> Result<Self, VerbsError> {
        let options = options.register_options(pd)?;
        // SAFETY: the caller promises what `register_user` asks for, until this value is dropped.
        let registration = unsafe { pd.shared.resources.memory.register_user(addr, bytes, &options) };
        Ok(Self { registration: registration.map_err(refused)?, pd: pd.clone() })
    }

    /// The key for own requests.
    pub fn lkey(&self) -> u32 {
        self.registration.stag().0
    }

    /// The STag to advertise to the peer; the same value as [`lkey`](Self::lkey).
    pub fn rkey(&self) -> u32 {
        self.registration.stag().0
    }

    /// The tagged offset of the first byte: its virtual address, by default.
    pub fn addr(&self) -> u64 {
        self.registration.base_to()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.registration.len()
    }

    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Whether it may be used: not since it was invalidated, here or by the peer.
    pub fn is_valid(&self) -> bool {
        self.registration.is_valid()
    }

    /// `length` bytes from `offset` on as a scatter/gather element (not checked here, but when posted).
    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        // A length beyond 32 bits is beyond every message: what is left of it is refused when posted.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        Sge { addr: self.addr().wrapping_add(offset as u64), length, lkey: self.lkey() }
    }

    /// Copies `bytes` into the region from `offset` on.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] when it does not fit.
    pub fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), VerbsError> {
        self.registration.memory().write_at(offset, bytes).map_err(out_of_range)
    }

    /// Copies `out.len()` bytes from `offset` on out of the region.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] when it does not fit.
    pub fn read_at(&self, offset: usize, out: &mut [u8]) -> Result<(), VerbsError> {
        self.registration.memory().read_at(offset, out).map_err(out_of_range)
    }

    /// One byte, with acquire ordering: for polling the last byte of a Write.
    ///
    /// # Errors
    /// [`VerbsError::LocalProtection`] outside the region.
    pub fn load_u8(&self, offset: usize) -> Result<u8, VerbsError> {
        self.registration.memory().load_u8_acquire(offset).map_err(out_of_range)
    }

    /// The memory itself: raw, because a peer may change it at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.registration.memory().as_ptr()
    }

    /// How many STags of other protection domains let a peer write to this memory: two peers that write to
    /// the same bytes can destroy each other's data, and a peer that may read them sees what another wrote.
    /// Where the peers do not trust one another there should be none (RFC 5042 section 6.3.6). It walks the
    /// whole table: not for the data path.
    pub fn other_writers(&self) -> usize {
        self.registration.other_writers()
    }

    /// Makes the STag unusable at once; when this returns, nothing behind it changes or is read any more, nor
    /// behind windows that are bound to it.
    pub fn invalidate(&self) {
        self.registration.invalidate();
    }

    /// Gives the region other rights and another key (`ibv_rereg_mr`), valid or invalidated before, and
    /// returns the STag it has now. When this returns, the old STag and the old rights are of no use any
    /// more, on any engine.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for rights that the memory cannot bear, or while a window is bound to the
    /// region; nothing has changed then.
    pub fn reregister(&mut self, access: Access, key: u8) -> Result<u32, VerbsError> {
        self.registration.revalidate(key, access).map(|stag| stag.0).map_err(refused)
    }

    /// Deregisters (`ibv_dereg_mr`). When this returns, nothing behind the region changes or is read any
    /// more.
    ///
    /// Dropping a region does the same and does not ask about windows: they end before it does.
    ///
    /// # Errors
    /// The region, as it was, while a window is bound to it.
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
    /// As it was.
    pub region: Box<MemoryRegion>,
}

impl std::fmt::Debug for BoundRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BoundRegion").field("rkey", &self.region.rkey()).finish_non_exhaustive()
    }
}

pub(super) fn refused(error: RegisterError) -> VerbsError {
    match error {
        RegisterError::Limit { max_mr } => VerbsError::Limit { name: "max_mr", limit: max_mr },
        RegisterError::WindowLimit { max_mw } => VerbsError::Limit { name: "max_mw", limit: max_mw },
        _ => VerbsError::Invalid(error.to_string()),
    }
}

fn out_of_range(error: impl std::fmt::Display) -> VerbsError {
    VerbsError::LocalProtection(error.to_string())
}
