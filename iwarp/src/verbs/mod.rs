//! The objects of users. Their names follow libibverbs and librdmacm.
//!
//! | here | libibverbs, librdmacm |
//! |---|---|
//! | [`Context`] | `ibv_context` |
//! | [`ProtectionDomain`] | `ibv_pd` |
//! | [`MemoryRegion`] | `ibv_mr` |
//! | [`MemoryWindow`] | `ibv_mw` |
//! | [`FastRegion`] | `ib_alloc_mr`, `IB_WR_REG_MR` of the kernel's verbs |
//! | [`CompletionQueue`], [`WorkCompletion`] | `ibv_cq`, `ibv_wc` |
//! | [`SharedReceiveQueue`] | `ibv_srq` |
//! | [`AsyncEvents`], [`AsyncEvent`] | the asynchronous events of `ibv_context`, `ibv_async_event` |
//! | [`CompletionChannel`] | `ibv_comp_channel` |
//! | [`QueuePair`], [`SendRequest`], [`RecvRequest`] | `ibv_qp`, `ibv_send_wr`, `ibv_recv_wr` |
//! | [`CmId`], [`CmEvent`], [`EventChannel`] | `rdma_cm_id`, `rdma_cm_event`, `rdma_event_channel` |
//!
//! Completion queues, shared receive queues and completion channels are in `crate::queues`, since queue pairs
//! hold references to them.
//!
//! Every object may be used from any thread. An [`Engine`](crate::engine::Engine) moves the data.

mod cm;
mod context;
mod engine_counters;
mod engine_handle;
mod fast;
mod mr;
mod mw;
mod pd;
mod qp;
mod status;

pub use cm::{
    Activity, CmEvent, CmEventKind, CmId, ConnParam, EventChannel, KeepalivePolicy, ListenOptions,
    ListenerStats, MAX_PRIVATE_DATA, RNR_RETRY_FOR_EVER, ResponderOptions, StreamOptions, StreamRead,
};
pub use context::{Context, ContextConfig};
pub use engine_counters::EngineCounters;
pub use fast::{FastOptions, FastRegion};
pub use mr::{BoundRegion, MemoryRegion, MrOptions};
pub use mw::{MemoryWindow, MwOptions};
pub use pd::ProtectionDomain;
pub use qp::{DatagramOptions, QpAttr, QueuePair, SendBatch};
pub use status::{ConnectionPhase, ConnectionStatus, ContextStatus, EngineStatus};

pub use crate::memory::WindowKind;
pub use crate::queues::{
    AddressVector, AsyncEvent, AsyncEventHandler, AsyncEventKind, AsyncEvents, BindWindow, CompletionChannel,
    CompletionQueue, ConnectionError, ContextLimits, ContextUsage, CqAttr, CqEventHandler, CqOptions,
    FastRegister, MAX_INLINE, MAX_SGE, QpGrants, QpInit, QpState, QpStatus, QpType, RecvRequest, RemoteAddr,
    SendFlags, SendOp, SendRequest, Sge, SharedReceiveQueue, SrqAttr, SrqInit, StreamError, TerminateOrigin,
    TerminateReport, Usage, VerbsError, WcOpcode, WcStatus, WorkCompletion, ZERO_COPY_MIN_BYTES, cqe_for,
};
pub use crate::rdmap::{AtomicOp, Extensions};

pub(crate) use cm::{AGREEMENT_BYTES, Admitted, CmCommand, CmShared, ListenerShared, PlainBytes};
pub(crate) use context::{ContextShared, entropy};
pub(crate) use engine_handle::EngineHandle;
pub(crate) use status::StatusRequests;
