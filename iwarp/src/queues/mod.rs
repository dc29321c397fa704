//! What users' threads and an engine share: the rings of requests and completions of queue pairs,
//! and the bells that tell one side of the other.
//!
//! It is not the calls of users, which are in [`verbs`](crate::verbs), and nothing here moves data.
//! The types that users name are exported from there.
//!
//! | file | what |
//! |---|---|
//! | `wr.rs`, `wc.rs` | work requests and work completions |
//! | `qp_init.rs`, `qp.rs`, `qp/post.rs` | a queue pair: how it is made, its queues and state, what is checked of a request |
//! | `cq.rs`, `cq_users.rs`, `srq.rs` | completion queues, shared receive queues |
//! | `ring.rs`, `gate.rs`, `places.rs` | a queue that can be resized, and who may enter how much |
//! | `doorbells.rs`, `doze.rs` | how an engine is told of work, and sleeps without missing any |
//! | `arm.rs`, `channel.rs`, `async_event.rs` | how users are told of completions and events |
//! | `pd.rs`, `resources.rs`, `usage.rs` | what queues check against: protection domains, memory, limits |
//! | `error.rs`, `outcome.rs`, `terminate.rs` | what goes wrong, and what it does to a queue pair |

use std::sync::atomic;

mod arm;
mod async_event;
mod channel;
mod cq;
mod cq_users;
mod doorbells;
mod doze;
mod error;
mod gate;
mod outcome;
mod pd;
mod places;
mod qp;
mod qp_init;
mod resources;
mod ring;
mod srq;
mod terminate;
mod usage;
mod wc;
mod wr;

pub use async_event::{AsyncEvent, AsyncEventKind, AsyncEvents};
pub use channel::CompletionChannel;
pub use cq::{CompletionQueue, CqAttr, CqOptions, cqe_for};
pub use error::{ConnectionError, StreamError, VerbsError};
pub use pd::ProtectionDomain;
pub use qp_init::{QpGrants, QpInit, QpState};
pub use resources::ContextLimits;
pub use srq::{SharedReceiveQueue, SrqAttr, SrqInit};
pub use terminate::{TerminateOrigin, TerminateReport};
pub use usage::{ContextUsage, Usage};
pub use wc::{WcOpcode, WcStatus, WorkCompletion};
pub use wr::{
    BindWindow, FastRegister, MAX_INLINE, MAX_SGE, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest,
    Sge,
};

pub(crate) use channel::{Notifier, wait_any};
pub(crate) use doorbells::Doorbells;
pub(crate) use outcome::{Origin, Outcome};
pub(crate) use qp::{Ask, Payload, QpShared, SendEntry, send_opcode};
pub(crate) use resources::Resources;
pub(crate) use wr::post_each;
