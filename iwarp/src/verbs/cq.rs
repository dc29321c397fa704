//! Completion queues.

use super::{StreamError, VerbsError};

/// Outcome of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WcStatus {
    /// Done.
    Success,
    /// Local memory: wrong key, range or right.
    LocalProtectionError,
    /// The incoming message is longer than the receive buffer.
    LocalLengthError,
    /// Flushed: the connection ended before it was done.
    WrFlushError,
    /// The peer refused access to its memory.
    RemoteAccessError,
    /// The peer could not carry the request out, or refused it.
    RemoteOperationError,
    /// The connection failed under it.
    FatalError,
}

impl std::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalProtectionError => "local protection error",
            Self::LocalLengthError => "local length error",
            Self::WrFlushError => "work request flushed",
            Self::RemoteAccessError => "remote access error",
            Self::RemoteOperationError => "remote operation error",
            Self::FatalError => "fatal error",
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
    /// A local invalidation.
    LocalInvalidate,
    /// A Send of the peer's, in our receive buffer.
    Recv,
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
    /// Octets received ([`WcOpcode::Recv`]) or read ([`WcOpcode::Read`]).
    pub byte_len: u32,
    /// The queue pair's number.
    pub qp_num: u32,
    /// The STag that the peer's Send invalidated.
    pub invalidated: Option<u32>,
    /// Whether the peer asked for a solicited event.
    pub solicited: bool,
    /// Layer, type and code, where an error of the stream is the cause.
    pub error: Option<StreamError>,
}

/// A completion queue. Cheap to clone. Several queue pairs, of several engines, may share one.
#[derive(Clone)]
pub struct CompletionQueue {}

pub(crate) struct CqShared {}

impl CompletionQueue {
    /// Moves completions into `out`, oldest first; returns how many (`ibv_poll_cq`).
    pub fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        let _ = out;
        todo!()
    }

    /// The oldest completion, if any.
    pub fn poll_one(&self) -> Option<WorkCompletion> {
        todo!()
    }

    /// Asks for one event on the channel when the next completion comes (`ibv_req_notify_cq`); with
    /// `solicited_only` when the next solicited or failed one comes. Completions that are there already make
    /// no event: arm, then poll once more.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] when the queue has no channel.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        let _ = solicited_only;
        todo!()
    }

    /// Whether completions were lost because nobody reaped them.
    pub fn overflowed(&self) -> bool {
        todo!()
    }
}
