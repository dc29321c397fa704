//! Work completions: what came of a request.

use super::StreamError;

/// Outcome of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// Done.
    Success,
    /// Local memory: wrong key, range or right.
    LocalProtectionError,
    /// A window could not be bound, or memory not be registered fast: wrong key, region, range or right.
    MwBindError,
    /// The incoming message is longer than the receive buffer.
    LocalLengthError,
    /// Flushed: the connection ended before it was done.
    WrFlushError,
    /// The peer refused access to its memory.
    RemoteAccessError,
    /// The peer could not carry the request out, or refused it.
    RemoteOperationError,
}

impl std::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalProtectionError => "local protection error",
            Self::MwBindError => "memory management operation error",
            Self::LocalLengthError => "local length error",
            Self::WrFlushError => "work request flushed",
            Self::RemoteAccessError => "remote access error",
            Self::RemoteOperationError => "remote operation error",
        })
    }
}

/// What completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcOpcode {
    /// A Send of ours.
    Send,
    /// An RDMA Write of ours: TCP has it. It says nothing about the peer's memory.
    Write,
    /// An RDMA Read of ours: the data is in local memory.
    Read,
    /// Immediate Data of ours.
    Immediate,
    /// A fetch-and-add of ours: the value before is in local memory.
    FetchAdd,
    /// A compare-and-swap of ours: the value before is in local memory.
    CmpSwap,
    /// A swap of ours: the value before is in local memory.
    Swap,
    /// A local invalidation.
    LocalInvalidate,
    /// A memory window was bound.
    BindWindow,
    /// A region was made valid.
    FastRegister,
    /// A Send of the peer's, in our receive buffer.
    Recv,
    /// Immediate Data of the peer's: [`WorkCompletion::immediate`] has it, and the receive buffer.
    RecvImmediate,
}

/// One completion.
#[derive(Clone, Copy, Debug)]
pub struct WorkCompletion {
    /// The request's.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received ([`WcOpcode::Recv`], [`WcOpcode::RecvImmediate`]) or brought to local memory
    /// ([`WcOpcode::Read`] and the atomics).
    pub byte_len: u32,
    /// The queue pair's number.
    pub qp_num: u32,
    /// The peer's Immediate Data ([`WcOpcode::RecvImmediate`]).
    pub immediate: Option<[u8; 8]>,
    /// The STag that the peer's Send invalidated.
    pub invalidated: Option<u32>,
    /// Whether the peer asked for a solicited event.
    pub solicited: bool,
    /// Layer, type and code, where an error of the stream is the cause.
    pub error: Option<StreamError>,
}

/// A place for [`CompletionQueue::poll`](super::CompletionQueue::poll) to fill.
impl Default for WorkCompletion {
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            byte_len: 0,
            qp_num: 0,
            immediate: None,
            invalidated: None,
            solicited: false,
            error: None,
        }
    }
}
