//! Protection domains.

use std::sync::Arc;

use crate::memory::{Access, PdId, StreamId, WindowKind};

use super::usage::Permit;
use super::{
    ContextShared, FastOptions, FastRegion, MemoryRegion, MemoryWindow, MrOptions, MwOptions, QpInit,
    QueuePair, RecvRequest, Sge, SharedReceiveQueue, SrqInit, VerbsError,
};

/// Regions and queue pairs work together only within one protection domain. Cheap to clone.
#[derive(Clone)]
pub struct ProtectionDomain {
    pub(crate) shared: Arc<PdShared>,
}

pub(crate) struct PdShared {
    id: PdId,
    pub(crate) context: Arc<ContextShared>,
    _permit: Permit,
}

impl ProtectionDomain {
    pub(crate) fn new(context: &Arc<ContextShared>) -> Result<Self, VerbsError> {
        let permit = context.quotas.pd.take(1)?;
        let id = PdId(context.next_pd_num());
        Ok(Self { shared: Arc::new(PdShared { id, context: Arc::clone(context), _permit: permit }) })
    }

    pub(crate) fn id(&self) -> PdId {
        self.shared.id
    }

    /// Its number, unique in the context.
    pub fn pd_num(&self) -> u32 {
        self.shared.id.0
    }

    /// Registers `octets` of fresh zeroed memory, on hugepages where there are any.
    /// Its tagged offsets start at its virtual address.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Region`].
    pub fn reg_mr(&self, octets: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.reg_mr_with(octets, &MrOptions::new(access))
    }

    /// The same with all options.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Region`], [`VerbsError::Invalid`].
    pub fn reg_mr_with(&self, octets: usize, options: &MrOptions<'_>) -> Result<MemoryRegion, VerbsError> {
        MemoryRegion::allocate(self, octets, options)
    }

    /// Registers memory of the caller (`ibv_reg_mr`).
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Invalid`].
    ///
    /// # Safety
    /// `addr..addr + octets` must be readable (and writable, if `options` allow any writing) until the region is
    /// dropped, and accessed meanwhile only in ways that allow a peer to change it at any time.
    #[allow(unsafe_code, reason = "the promise is the caller's, and is passed on")]
    pub unsafe fn reg_user_mr(
        &self,
        addr: *mut u8,
        octets: usize,
        options: &MrOptions<'_>,
    ) -> Result<MemoryRegion, VerbsError> {
        // SAFETY: the caller promises what `over` asks for, in the same words.
        unsafe { MemoryRegion::over(self, addr, octets, options) }
    }

    /// `octets` of fresh zeroed memory for fast registration: its STag is invalid until a send queue makes it valid.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Region`].
    pub fn alloc_fast_mr(&self, octets: usize, options: &FastOptions<'_>) -> Result<FastRegion, VerbsError> {
        FastRegion::allocate(self, octets, options)
    }

    /// The same over memory of the caller, to be written by peers only if `writable`.
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Invalid`].
    ///
    /// # Safety
    /// As [`reg_user_mr`](Self::reg_user_mr), until the region is dropped, whether its STag is valid or not.
    #[allow(unsafe_code, reason = "the promise is the caller's, and is passed on")]
    pub unsafe fn alloc_fast_user_mr(
        &self,
        addr: *mut u8,
        octets: usize,
        writable: bool,
        options: &FastOptions<'_>,
    ) -> Result<FastRegion, VerbsError> {
        // SAFETY: the caller promises what `over` asks for, in the same words.
        unsafe { FastRegion::over(self, addr, octets, writable, options) }
    }

    /// A memory window, bound to nothing (`ibv_alloc_mw`).
    ///
    /// # Errors
    /// [`VerbsError::Limit`].
    pub fn alloc_mw(&self, kind: WindowKind) -> Result<MemoryWindow, VerbsError> {
        self.alloc_mw_with(MwOptions { kind, keep: false })
    }

    /// The same with all options.
    ///
    /// # Errors
    /// [`VerbsError::Limit`].
    pub fn alloc_mw_with(&self, options: MwOptions) -> Result<MemoryWindow, VerbsError> {
        MemoryWindow::allocate(self, options)
    }

    /// A queue pair in state `Idle`: receives may be posted at once (`ibv_create_qp`).
    ///
    /// # Errors
    /// [`VerbsError::Limit`].
    pub fn create_qp(&self, init: &QpInit<'_>) -> Result<QueuePair, VerbsError> {
        QueuePair::new(self, init)
    }

    /// A shared receive queue (`ibv_create_srq`).
    ///
    /// # Errors
    /// [`VerbsError::Limit`], [`VerbsError::Invalid`] for 0 requests.
    pub fn create_srq(&self, init: &SrqInit) -> Result<SharedReceiveQueue, VerbsError> {
        SharedReceiveQueue::new(self, init)
    }

    /// The stream of a queue pair that a name is to be for.
    pub(crate) fn stream(&self, qp: Option<&QueuePair>) -> Result<Option<StreamId>, VerbsError> {
        let Some(qp) = qp else { return Ok(None) };
        self.shared.context.same(qp.shared.context())?;
        Ok(Some(StreamId(u64::from(qp.qp_num()))))
    }

    /// Checks a receive request with at most `max_sge` elements.
    pub(crate) fn check_recv(&self, request: &RecvRequest, max_sge: usize) -> Result<(), VerbsError> {
        let (got, length) = (request.sg_list.len(), request.length());
        if got > max_sge {
            return Err(VerbsError::TooManySge { got, max: max_sge });
        }
        if length > u64::from(u32::MAX) {
            return Err(VerbsError::TooLong { got: length, max: u64::from(u32::MAX) });
        }
        self.check_local(&request.sg_list, Access::LOCAL_WRITE)
    }

    /// Checks that local memory is there and may be accessed so.
    pub(crate) fn check_local(&self, sg_list: &[Sge], access: Access) -> Result<(), VerbsError> {
        let memory = &self.shared.context.memory;
        sg_list.iter().try_for_each(|sge| {
            memory
                .check_local(self.id(), sge.lkey, sge.addr, sge.length, access)
                .map_err(|fault| VerbsError::LocalProtection(fault.to_string()))
        })
    }
}
