//! The objects users hold. Names follow libibverbs and librdmacm.
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
//! Every object may be used from any thread. What moves the data is an [`Engine`](crate::engine::Engine).

use std::sync::atomic;

mod arm;
mod async_event;
mod channel;
mod cm;
mod context;
mod cq;
mod cq_users;
mod error;
mod fast;
mod gate;
mod mr;
mod mw;
mod outcome;
mod pd;
mod places;
mod qp;
mod ring;
mod srq;
mod terminate;
mod usage;
mod wc;
mod wr;

pub use async_event::{AsyncEvent, AsyncEventKind, AsyncEvents};
pub use channel::CompletionChannel;
pub use cm::{
    Activity, CmEvent, CmEventKind, CmId, ConnParam, EventChannel, Keepalive, ListenOptions, ListenerStats,
    MAX_PRIVATE_DATA, ResponderOptions, StreamOptions, StreamRead,
};
pub use context::{Context, ContextConfig, ContextLimits};
pub use cq::{CompletionQueue, CqAttr, CqOptions, cqe_for};
pub use error::{ConnectionError, StreamError, VerbsError};
pub use fast::{FastOptions, FastRegion};
pub use mr::{BoundRegion, MemoryRegion, MrOptions};
pub use mw::{MemoryWindow, MwOptions};
pub use pd::ProtectionDomain;
pub use qp::{QpAttr, QpGrants, QpInit, QpState, QueuePair};
pub use srq::{SharedReceiveQueue, SrqAttr, SrqInit};
pub use terminate::{TerminateOrigin, TerminateReport};
pub use usage::{ContextUsage, Usage};
pub use wc::{WcOpcode, WcStatus, WorkCompletion};
pub use wr::{
    BindWindow, FastRegister, MAX_INLINE, MAX_SGE, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest,
    Sge,
};

pub use crate::memory::WindowKind;
pub use crate::rdmap::{AtomicOp, Extensions};

pub(crate) use channel::{Notifier, wait_any};
pub(crate) use cm::{Admitted, CmCommand, CmShared, ListenerShared, StreamShared};
pub(crate) use context::{ContextShared, entropy};
pub(crate) use outcome::{Origin, Outcome};
pub(crate) use qp::{Ask, Payload, QpShared, SendEntry, post_each, send_opcode};
