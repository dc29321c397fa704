//! Completion queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;

use super::arm::Arm;
use super::{CompletionChannel, ContextShared, StreamError, VerbsError};

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
    /// The connection failed under it.
    FatalError,
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
    /// Octets received ([`WcOpcode::Recv`], [`WcOpcode::RecvImmediate`]) or brought to local memory ([`WcOpcode::Read`]
    /// and the atomics).
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

/// A completion queue. Cheap to clone. Several queue pairs, of several engines, may share one.
#[derive(Clone)]
pub struct CompletionQueue {
    pub(crate) shared: Arc<CqShared>,
}

/// A completion, and the send queue whose place it gives back when it is reaped.
struct Entry {
    completion: WorkCompletion,
    sq_outstanding: Option<Arc<AtomicUsize>>,
}

impl Entry {
    fn reap(self) -> WorkCompletion {
        if let Some(outstanding) = self.sq_outstanding {
            outstanding.fetch_sub(1, Ordering::AcqRel);
        }
        self.completion
    }
}

pub(crate) struct CqShared {
    entries: ArrayQueue<Entry>,
    channel: Option<CompletionChannel>,
    arm: Arm,
    overflowed: AtomicBool,
    context: Arc<ContextShared>,
}

impl CqShared {
    /// Adds a completion, from any thread. Without room it is lost and the queue is marked. `sq_outstanding` counts
    /// one less when it is reaped, or lost.
    pub(crate) fn push(&self, completion: WorkCompletion, sq_outstanding: Option<Arc<AtomicUsize>>) {
        let solicited = completion.solicited || completion.status != WcStatus::Success;
        if let Err(lost) = self.entries.push(Entry { completion, sq_outstanding }) {
            lost.reap();
            self.overflowed.store(true, Ordering::Release);
        }
        if self.arm.fires(solicited)
            && let Some(channel) = &self.channel
        {
            channel.notifier.notify();
        }
    }
}

impl Drop for CqShared {
    fn drop(&mut self) {
        self.context.counts.cq.release();
    }
}

impl CompletionQueue {
    pub(crate) fn new(context: Arc<ContextShared>, cqe: usize, channel: Option<&CompletionChannel>) -> Self {
        Self {
            shared: Arc::new(CqShared {
                entries: ArrayQueue::new(cqe),
                channel: channel.cloned(),
                arm: Arm::new(),
                overflowed: AtomicBool::new(false),
                context,
            }),
        }
    }

    /// Moves completions into `out`, oldest first; returns how many (`ibv_poll_cq`).
    pub fn poll(&self, out: &mut [WorkCompletion]) -> usize {
        let mut count = 0;
        for place in out.iter_mut() {
            match self.shared.entries.pop() {
                Some(entry) => *place = entry.reap(),
                None => break,
            }
            count += 1;
        }
        count
    }

    /// The oldest completion, if any.
    pub fn poll_one(&self) -> Option<WorkCompletion> {
        self.shared.entries.pop().map(Entry::reap)
    }

    /// Asks for one event on the channel when the next completion comes (`ibv_req_notify_cq`); with
    /// `solicited_only` when the next solicited or failed one comes. Completions that are there already make
    /// no event: arm, then poll once more.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] when the queue has no channel.
    pub fn req_notify(&self, solicited_only: bool) -> Result<(), VerbsError> {
        if self.shared.channel.is_none() {
            return Err(VerbsError::Invalid("this completion queue was made without a channel".into()));
        }
        self.shared.arm.arm(solicited_only);
        Ok(())
    }

    /// Whether completions were lost because nobody reaped them.
    pub fn overflowed(&self) -> bool {
        self.shared.overflowed.load(Ordering::Acquire)
    }
}
