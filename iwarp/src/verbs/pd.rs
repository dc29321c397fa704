//! Protection domains, and the objects that they create.

use std::sync::Arc;

use crate::memory::{Access, PdId, StreamId, WindowKind};
use crate::queues::{PdShared, Resources};

use super::{
    FastOptions, FastRegion, MemoryRegion, MemoryWindow, MrOptions, MwOptions, QpInit, QueuePair,
    SharedReceiveQueue, SrqInit, VerbsError,
};

/// A protection domain. A region and a queue pair can be used together only if they belong to the same
/// protection domain. The memory of receive requests in a shared receive queue belongs to the protection
/// domain of this queue. Cheap to clone.
#[derive(Clone)]
pub struct ProtectionDomain {
    pub(super) shared: Arc<PdShared>,
}

impl ProtectionDomain {
    pub(super) fn new(resources: &Arc<Resources>) -> Result<Self, VerbsError> {
        Ok(Self { shared: PdShared::new(resources)? })
    }

    pub(super) fn id(&self) -> PdId {
        self.shared.id()
    }

    /// Returns the number of the protection domain, which is unique in the context.
    pub fn pd_num(&self) -> u32 {
        self.id().0
    }

    /// Registers `bytes` bytes of new zeroed memory, on hugepages if available. The region's tagged offsets
    /// start at the virtual address of the memory.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the limit on regions is reached. [`VerbsError::Region`] if the memory cannot
    /// be allocated. [`VerbsError::Invalid`] if the rights cannot be combined.
    pub fn reg_mr(&self, bytes: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.reg_mr_with(bytes, &MrOptions::new(access))
    }

    /// As [`reg_mr`](Self::reg_mr), with all options.
    ///
    /// # Errors
    /// The errors of [`reg_mr`](Self::reg_mr), and [`VerbsError::Invalid`] if the queue pair in `options`
    /// belongs to another context.
    pub fn reg_mr_with(&self, bytes: usize, options: &MrOptions<'_>) -> Result<MemoryRegion, VerbsError> {
        MemoryRegion::allocate(self, bytes, options)
    }

    /// Registers memory of the caller (`ibv_reg_mr`; with [`MrOptions::base`] `ibv_reg_mr_iova2`). Local
    /// elements and peers address the memory by its tagged offsets ([`MemoryRegion::addr`]).
    ///
    /// `bytes` may be 0: then the keys cover no memory, and `addr` may be any address. Requests and messages
    /// of length zero need no key, so they succeed with these keys at any address. Longer requests and
    /// messages fail.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the limit on regions is reached. [`VerbsError::Inaccessible`] if the process
    /// itself may not access the memory in this way. [`VerbsError::Invalid`] if an option is invalid, or if
    /// [`ContextConfig::strict_overlap`](super::ContextConfig::strict_overlap) refuses the registration.
    ///
    /// # Safety
    /// Until the region is dropped, `addr..addr + bytes` stays mapped, readable and (if `options` allow any
    /// writing) writable. The caller accesses this memory only in ways that allow other threads to read and
    /// change it at any time: through raw pointers or atomics, never through a reference to plain bytes.
    #[allow(unsafe_code, reason = "the promise is the caller's, and is passed on")]
    pub unsafe fn reg_user_mr(
        &self,
        addr: *mut u8,
        bytes: usize,
        options: &MrOptions<'_>,
    ) -> Result<MemoryRegion, VerbsError> {
        // SAFETY: the caller promises that the memory is mapped and accessible until the region is dropped,
        // and is accessed only in ways that allow concurrent accesses. `register_user` has no other
        // requirement.
        unsafe { MemoryRegion::register_user(self, addr, bytes, options) }
    }

    /// Registers a range of addresses of the caller, of which any byte may or may not be mapped at any time
    /// (on-demand paging, `IBV_ACCESS_ON_DEMAND`). The range may be all addresses of a process, which are
    /// those from 0 to [`ADDRESS_SPACE`](crate::memory::ADDRESS_SPACE). A request that uses a byte that is
    /// not mapped fails as if the region were invalid.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the limit on regions is reached. [`VerbsError::Inaccessible`] if the range
    /// exceeds the addresses of a process. [`VerbsError::Invalid`] if an option is invalid, or if there is no
    /// fault guard ([`UserMemory::Guarded`](crate::memory::UserMemory::Guarded)).
    ///
    /// # Safety
    /// Until the region is dropped, all code of the process accesses those mapped bytes of the range that a
    /// peer or a request names only in ways that allow other threads to read and change these bytes: through
    /// raw pointers or atomics, never through a reference to plain bytes.
    #[allow(unsafe_code, reason = "the promise is the caller's, and is passed on")]
    pub unsafe fn reg_on_demand_mr(
        &self,
        addr: *mut u8,
        bytes: usize,
        options: &MrOptions<'_>,
    ) -> Result<MemoryRegion, VerbsError> {
        // SAFETY: the caller promises that accesses to mapped bytes that a peer or a request names allow
        // concurrent accesses. `register_on_demand` has no other requirement.
        unsafe { MemoryRegion::register_on_demand(self, addr, bytes, options) }
    }

    /// Allocates `bytes` bytes of new zeroed memory for fast registration. The region's STag is invalid until
    /// a send queue makes it valid.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the limit on regions is reached. [`VerbsError::Region`] if the memory cannot
    /// be allocated. [`VerbsError::Invalid`] if the queue pair in `options` belongs to another context.
    pub fn alloc_fast_mr(&self, bytes: usize, options: &FastOptions<'_>) -> Result<FastRegion, VerbsError> {
        FastRegion::allocate(self, bytes, options)
    }

    /// As [`alloc_fast_mr`](Self::alloc_fast_mr), for memory of the caller. Peers may write to the memory
    /// only if `writable` is set.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the limit on regions is reached. [`VerbsError::Inaccessible`] if the process
    /// itself may not access the memory in this way. [`VerbsError::Invalid`] if `bytes` is 0 or an option is
    /// invalid.
    ///
    /// # Safety
    /// Until the region is dropped, whether its STag is valid or not, `addr..addr + bytes` stays mapped,
    /// readable and, if `writable`, writable. The caller accesses this memory only in ways that allow other
    /// threads to read and change it at any time: through raw pointers or atomics, never through a reference
    /// to plain bytes.
    #[allow(unsafe_code, reason = "the promise is the caller's, and is passed on")]
    pub unsafe fn alloc_fast_user_mr(
        &self,
        addr: *mut u8,
        bytes: usize,
        writable: bool,
        options: &FastOptions<'_>,
    ) -> Result<FastRegion, VerbsError> {
        // SAFETY: the caller promises that the memory is mapped and accessible until the region is dropped,
        // and is accessed only in ways that allow concurrent accesses. `register_user` has no other
        // requirement.
        unsafe { FastRegion::register_user(self, addr, bytes, writable, options) }
    }

    /// Allocates an unbound memory window (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the limit on memory windows is reached.
    pub fn alloc_mw(&self, kind: WindowKind) -> Result<MemoryWindow, VerbsError> {
        self.alloc_mw_with(MwOptions { kind, keep: false })
    }

    /// As [`alloc_mw`](Self::alloc_mw), with all options.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if the limit on memory windows is reached.
    pub fn alloc_mw_with(&self, options: MwOptions) -> Result<MemoryWindow, VerbsError> {
        MemoryWindow::allocate(self, options)
    }

    /// Creates a queue pair in state `Idle` (`ibv_create_qp`). Receives may be posted at once.
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if an option exceeds a limit, or the limit on queue pairs is reached.
    /// [`VerbsError::Invalid`] if the objects in `init` cannot be used together. [`VerbsError::CqTooSmall`]
    /// or [`VerbsError::CqOverflowed`] if a completion queue cannot serve the queue pair.
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<QueuePair, VerbsError> {
        QueuePair::new(self, init)
    }

    /// Creates a shared receive queue (`ibv_create_srq`).
    ///
    /// # Errors
    /// [`VerbsError::Limit`] if an option exceeds a limit, or the limit on shared receive queues is reached.
    /// [`VerbsError::Invalid`] for 0 requests.
    pub fn create_srq(&self, init: &SrqInit) -> Result<SharedReceiveQueue, VerbsError> {
        SharedReceiveQueue::new(&self.shared, init)
    }

    /// Returns the stream to which a registration for `qp` is limited; `None` without a queue pair.
    pub(crate) fn stream(&self, qp: Option<&QueuePair>) -> Result<Option<StreamId>, VerbsError> {
        let Some(qp) = qp else { return Ok(None) };
        self.shared.resources.same(qp.shared.config.resources())?;
        Ok(Some(qp.shared.config.stream))
    }
}
