//! The status of a queue pair, as a context reports it.

use super::{QpState, QpType};

/// The status of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpStatus {
    /// The number of the queue pair. For an open queue pair of type UD, this is the number on the wire.
    pub qp_num: u32,
    /// The type of the queue pair.
    pub qp_type: QpType,
    /// The state of the queue pair.
    pub state: QpState,
    /// The number of the queue pair's protection domain. The first protection domain of a context has number
    /// 1.
    pub pd: u32,
    /// Whether the queue pair takes its receives from a shared receive queue.
    pub has_srq: bool,
    /// Number of send requests that are not complete.
    pub open_sends: u64,
    /// Number of receive requests that are not complete. With a shared receive queue, only requests that this
    /// queue pair has taken count.
    pub open_receives: u64,
}

/// A queue pair in the list of its context.
pub(crate) trait Listed: Send + Sync {
    fn status(&self) -> QpStatus;

    /// Ends the queue pair, because a completion was lost. Sends a Terminate, if the queue pair has a
    /// connection, and flushes both queues.
    fn fail_for_cq(&self);
}
