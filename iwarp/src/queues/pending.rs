//! The records of send requests between their start and their completion.
//!
//! A stream starts requests, and keeps the records (`crate::stream`). The memory for the records belongs to
//! the queue pair ([`QpConsumer::take_records`](super::QpConsumer::take_records)), so that the thread that
//! creates or destroys the queue pair allocates or frees this memory. The memory of a deep queue is allocated
//! by `mmap`, and an engine's thread must not change the mappings of the process (`dp::thread`).

use super::{RemoteAddr, SendEntry, SendOp, WcOpcode, WcStatus};

/// A request that was started and is not yet completed.
pub(crate) struct Pending {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
    pub(crate) signaled: bool,
    pub(crate) byte_len: u32,
    /// The event that the request waits for; `None`: it waits only for the completion of earlier requests.
    pub(crate) awaits: Option<Awaited>,
    /// The targets of the request at the peer, once the request is sent.
    pub(crate) sent_to: SentTo,
    /// The status of the request's completion, if the request is the cause of the stream's end.
    pub(crate) fault: Option<WcStatus>,
}

/// The event that a started request waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The write of the request's last segment.
    LastSegment,
    /// The response to a Read or an atomic.
    Response,
    /// TCP's acknowledgement of the bytes below this offset of the stream. A request waits for this
    /// acknowledgement if its bytes are sent without a copy, or if both peers have agreed on InfiniBand's
    /// semantics. In the second case, a message that needs a receive request also waits until the peer has
    /// promised one.
    Acknowledgement(u64),
}

/// The targets of one request: the memory of a Write, and the MSNs of the request's messages to queue 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SentTo {
    pub(crate) memory: Option<RemoteAddr>,
    /// Length in bytes of the memory of a Write.
    pub(crate) length: u32,
    /// The MSN of the request's last message to queue 0, and the number of the request's messages to queue 0.
    pub(crate) sends: (u32, u32),
}

impl Pending {
    /// Whether the request is sent completely, and waits for its acknowledgement.
    pub(crate) fn is_sent(&self) -> bool {
        matches!(self.awaits, Some(Awaited::Acknowledgement(_)))
    }
}

impl SentTo {
    /// Returns the targets of a request. `send_msn` is the MSN of the request's last message to queue 0, if
    /// the request has such a message.
    #[inline]
    pub(crate) fn of(request: &SendEntry, send_msn: u32) -> Self {
        let (memory, sends) = match request.op {
            SendOp::Write { remote } => (Some(remote), 0),
            SendOp::WriteImmediate { remote, .. } => (Some(remote), 1),
            SendOp::Send | SendOp::SendInvalidate { .. } | SendOp::Immediate { .. } => (None, 1),
            SendOp::SendImmediate { .. } => (None, 2),
            _ => (None, 0),
        };
        Self { memory, length: request.length, sends: (send_msn, sends) }
    }

    /// Returns the MSN of the request's last message to queue 0; `None` if the request has no such message.
    #[inline]
    pub(crate) fn last_send(&self) -> Option<u32> {
        (self.sends.1 > 0).then_some(self.sends.0)
    }

    /// Whether the request has the message with this MSN on queue 0.
    pub(crate) fn has_send(&self, msn: u32) -> bool {
        self.sends.0.wrapping_sub(msn) < self.sends.1
    }
}
