//! Queue pairs, completion queues and shared receive queues, their rings of requests and completions, and the
//! signals between threads of the user and an engine.
//!
//! [`verbs`](crate::verbs) exports the public types of this module, and contains the calls that create
//! objects. The types are here because the protocol of a stream (`crate::stream`) uses them and does not
//! depend on `verbs`. If users share state with an engine, but no stream needs it, the state is in `verbs`:
//! for example connections in setup (`cm/identifier.rs`), bytes before MPA (`cm/stream.rs`), and the commands
//! to an engine (`engine_handle.rs`). This module copies inline data when a request is posted, and moves no
//! other payload.
//!
//! | file | contents |
//! |---|---|
//! | `wr.rs`, `wc.rs` | work requests and work completions |
//! | `qp_init.rs`, `qp_type.rs`, `qp_state.rs`, `qp_status.rs` | the options, the types, the states and the status of a queue pair |
//! | `qp.rs`, `qp/` | the parts of a queue pair, each in its own file, and the operations on several parts |
//! | `cq.rs`, `cq_users.rs`, `srq.rs` | completion queues, shared receive queues |
//! | `line.rs` | the queue pairs whose messages wait for a request of a shared receive queue |
//! | `send_entry.rs`, `consumer.rs` | a posted request, and the side of both queues that takes and completes requests |
//! | `pending.rs` | the record of a request between its start and its completion |
//! | `completions.rs`, `wqe.rs` | the entries of a completion queue, and the count of used work queue entries |
//! | `doorbells.rs`, `rung.rs`, `work_list.rs` | how users signal work to an engine, and how the engine sleeps without missing work |
//! | `request_ring.rs`, `shared_cell.rs`, `lock.rs` | the ring of a work queue, its entries, and the lock of one side of a ring |
//! | `arm.rs`, `channel.rs`, `async_event.rs` | how users learn of completions and events |
//! | `pd.rs`, `resources.rs`, `usage.rs` | protection domains, and the memory and limits against which requests are checked |
//! | `error.rs`, `io_error.rs`, `outcome.rs`, `terminate.rs` | errors, their conversion to errors of `std::io`, and their effect on a queue pair |

use std::sync::atomic;

mod arm;
mod async_event;
mod channel;
mod completions;
mod consumer;
mod cq;
mod cq_users;
mod doorbells;
mod error;
mod io_error;
mod line;
mod lock;
mod outcome;
mod pd;
mod pending;
mod qp;
mod qp_init;
mod qp_state;
mod qp_status;
mod qp_type;
mod request_ring;
mod resources;
mod rung;
mod send_entry;
mod shared_cell;
mod srq;
mod terminate;
mod usage;
mod wc;
mod work_list;
mod wqe;
mod wr;

pub use async_event::{AsyncEvent, AsyncEventHandler, AsyncEventKind, AsyncEvents};
pub use channel::CompletionChannel;
pub use cq::{CompletionQueue, CqAttr, CqEventHandler, CqOptions, cqe_for};
pub use error::{ConnectionError, StreamError, VerbsError};
pub use qp_init::{QpGrants, QpInit};
pub use qp_state::QpState;
pub use qp_status::QpStatus;
pub use qp_type::QpType;
pub use resources::ContextLimits;
pub use srq::{SharedReceiveQueue, SrqAttr, SrqInit};
pub use terminate::{TerminateOrigin, TerminateReport};
pub use usage::{ContextUsage, Usage};
pub use wc::{WcOpcode, WcStatus, WorkCompletion};
pub use wr::{
    AddressVector, BindWindow, FastRegister, MAX_INLINE, MAX_SGE, RecvRequest, RemoteAddr, SendFlags, SendOp,
    SendRequest, Sge, ZERO_COPY_MIN_BYTES,
};

pub(crate) use async_event::EventSource;
pub(crate) use channel::{Notifier, wait_any};
pub(crate) use consumer::QpConsumer;
pub(crate) use doorbells::Doorbells;
pub(crate) use outcome::{Origin, Outcome};
pub(crate) use pd::PdShared;
pub(crate) use pending::{Awaited, Pending, SentTo};
pub(crate) use qp::{Ask, DATAGRAM_SLOT, QpShared, request_buffers};
pub(crate) use qp_status::Listed;
pub(crate) use resources::Resources;
pub(crate) use send_entry::{Payload, PreparedPayload, SendEntry, Signaled, send_opcode};
pub(crate) use wr::post_each;

/// Returns the shared state of a context, with a protection domain and a completion queue.
#[cfg(test)]
pub(crate) fn test_objects() -> (std::sync::Arc<Resources>, std::sync::Arc<PdShared>, CompletionQueue) {
    use std::sync::Arc;
    let memory = crate::memory::MemoryTable::new(16, [1; 32]);
    let resources = Resources::new(ContextLimits::default(), memory, false, None).unwrap();
    let pd = PdShared::new(&resources).unwrap();
    let cq = CompletionQueue::new(Arc::clone(&resources), &CqOptions::new(16)).unwrap();
    (resources, pd, cq)
}
