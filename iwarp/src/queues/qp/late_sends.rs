//! Sends that are posted after the end of sending: after the user has requested a graceful close, or after
//! the peer's FIN.
//!
//! RFC 5041 section 6.2.1 has them refused. The verbs of RDMA devices accept them, and programs post one that
//! tells them by its flushed completion that all others are done. So they are kept apart from the send queue,
//! where the engine would find and send them, and are flushed behind it.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::queues::{SendRequest, WcOpcode, send_opcode};

/// What the flushed completion of a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LateSend {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
}

/// The requests, oldest first. They have entries of the send queue, so there are no more of them than it is
/// deep.
#[derive(Default)]
pub(super) struct LateSends(Mutex<VecDeque<LateSend>>);

impl LateSends {
    pub(super) fn push(&self, request: &SendRequest) {
        let late = LateSend { wr_id: request.wr_id, opcode: send_opcode(&request.op) };
        self.0.lock().expect("no holder of this lock panics").push_back(late);
    }

    pub(super) fn pop(&self) -> Option<LateSend> {
        self.0.lock().expect("no holder of this lock panics").pop_front()
    }
}
