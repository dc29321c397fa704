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
//! | [`CompletionChannel`] | `ibv_comp_channel` |
//! | [`QueuePair`], [`SendRequest`], [`RecvRequest`] | `ibv_qp`, `ibv_send_wr`, `ibv_recv_wr` |
//! | [`CmId`], [`CmEvent`], [`EventChannel`] | `rdma_cm_id`, `rdma_cm_event`, `rdma_event_channel` |
//!
//! Every object may be used from any thread. What moves the data is an [`Engine`](crate::engine::Engine).

use std::sync::atomic;

mod arm;
mod channel;
mod cm;
mod context;
mod cq;
mod error;
mod fast;
mod mr;
mod mw;
mod pd;
mod qp;
mod wr;

pub use channel::CompletionChannel;
pub use cm::{CmEvent, CmEventKind, CmId, ConnParam, EventChannel, MAX_PRIVATE_DATA};
pub use context::{Context, ContextConfig, ContextLimits};
pub use cq::{CompletionQueue, WcOpcode, WcStatus, WorkCompletion};
pub use error::{ConnectionError, StreamError, VerbsError};
pub use fast::{FastOptions, FastRegion};
pub use mr::{BoundRegion, MemoryRegion, MrOptions};
pub use mw::{MemoryWindow, MwOptions};
pub use pd::ProtectionDomain;
pub use qp::{QpGrants, QpInit, QpState, QueuePair};
pub use wr::{
    BindWindow, FastRegister, MAX_INLINE, MAX_SGE, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest,
    Sge,
};

pub use crate::memory::WindowKind;
pub use crate::rdmap::{AtomicOp, Extensions};

pub(crate) use channel::{Notifier, wait_any};
pub(crate) use cm::CmCommand;
pub(crate) use context::{ContextShared, entropy};
pub(crate) use qp::{Payload, QpShared, SendEntry, send_opcode};
