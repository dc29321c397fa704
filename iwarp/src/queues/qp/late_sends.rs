//! Sends that are posted after the end of sending: after the user has requested a graceful close, or after
//! the peer's FIN.
//!
//! RFC 5041 section 6.2.1 has them refused. The verbs of RDMA devices accept them, and programs post one that
//! tells them by its flushed completion that all others are done. So they are kept apart from the send queue,
//! where the engine would find and send them, and are flushed behind it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use super::QpShared;
use crate::queues::{QpState, SendRequest, VerbsError, WcOpcode, send_opcode};

/// What the flushed completion of a request needs.
pub(crate) struct LateSend {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
}

/// The requests, oldest first. They have entries of the send queue, so there are no more of them than it is
/// deep.
#[derive(Default)]
pub(super) struct LateSends(Mutex<VecDeque<LateSend>>);

impl LateSends {
    fn kept(&self) -> MutexGuard<'_, VecDeque<LateSend>> {
        self.0.lock().expect("no holder of this lock panics")
    }
}

impl QpShared {
    /// Late sends are kept from now on.
    pub(crate) fn take_late_sends(&self) {
        self.late_sends.get_or_init(Box::default);
    }

    /// Where a request is kept that is posted now, while the send queue takes none.
    fn late(&self) -> Result<&LateSends, VerbsError> {
        let is_late = self.is_close_asked() || self.state() == QpState::Closing;
        let kept = self.late_sends.get().filter(|_| is_late);
        kept.map(|late| &**late).ok_or_else(|| self.refusal())
    }

    /// The send queue takes no requests now: whether [`keep_late`](Self::keep_late) would keep one, if there
    /// is room.
    #[cold]
    pub(super) fn check_late(&self) -> Result<(), VerbsError> {
        self.late().map(drop)
    }

    /// The send queue takes no requests now: keeps this one until the queue is flushed, or refuses it.
    #[cold]
    pub(super) fn keep_late(&self, request: &SendRequest) -> Result<(), VerbsError> {
        let late = self.late()?;
        // As for a request that enters the queue: either a thread that flushes finds it, or the thread that
        // posts sees the new state afterwards, and flushes.
        let _posting = self.send_queue();
        if !self.send.wqes.take() {
            return Err(VerbsError::QueueFull("send"));
        }
        late.kept().push_back(LateSend { wr_id: request.wr_id, opcode: send_opcode(&request.op) });
        Ok(())
    }

    /// Takes the oldest late send, to complete it. Called by the holder of the consumer and of the send
    /// queue.
    pub(crate) fn next_late_send(&self) -> Option<LateSend> {
        self.late_sends.get()?.kept().pop_front()
    }
}
