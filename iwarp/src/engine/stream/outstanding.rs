//! Requests of ours between their start and their completion, and the answers they wait for.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::memory::Accessor;
use crate::rdmap::ReadSink;
use crate::verbs::{QpShared, WcOpcode, WcStatus};

/// A request that was started and has not been completed, in post order.
pub(super) struct Pending {
    pub(super) wr_id: u64,
    pub(super) opcode: WcOpcode,
    pub(super) signaled: bool,
    pub(super) byte_len: u32,
    pub(super) done: bool,
    /// Why it failed, where it is to blame for the end of the stream.
    pub(super) fault: Option<WcStatus>,
}

/// What sending and receiving share: Reads of ours, and who we are.
pub(super) struct Common {
    pub(super) qp: Arc<QpShared>,
    pub(super) by: Accessor,
    /// Reads of ours that wait for their responses, in the order of their requests.
    pub(super) reads: VecDeque<OutstandingRead>,
    /// Requests started and not completed, in post order.
    pub(super) pending: VecDeque<Pending>,
    /// Reads of ours that may be outstanding.
    pub(super) ord: usize,
    /// FPDUs sent, and segments delivered that answer Reads.
    pub(super) progress: u64,
}

/// A Read of ours on its way. The RTR's own Read is nobody's request.
pub(super) struct OutstandingRead {
    pub(super) sink: ReadSink,
    pub(super) is_rtr: bool,
}

impl Common {
    /// Enters a request as started. `done`: it completes as soon as all before it have.
    pub(super) fn start(&mut self, pending: Pending) {
        if pending.done && self.pending.is_empty() {
            self.complete(&pending);
        } else {
            self.pending.push_back(pending);
        }
    }

    /// The oldest Read has got its response.
    pub(super) fn read_done(&mut self) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| !pending.done) {
            pending.done = true;
        }
        while self.pending.front().is_some_and(|pending| pending.done) {
            if let Some(pending) = self.pending.pop_front() {
                self.complete(&pending);
            }
        }
    }

    /// The oldest Read cannot be completed, by our user's doing.
    pub(super) fn blame_read(&mut self) {
        if let Some(pending) = self.pending.iter_mut().find(|pending| !pending.done) {
            pending.fault = Some(WcStatus::LocalProtectionError);
        }
    }

    pub(super) fn complete(&self, pending: &Pending) {
        let completion = self.qp.succeeded(pending.wr_id, pending.opcode, pending.byte_len);
        self.qp.complete_send(pending.signaled, completion);
    }
}
