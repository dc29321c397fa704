//! The status of a queue pair, as a context reports it.

use super::QpState;

/// The state of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpStatus {
    /// Its number.
    pub qp_num: u32,
    /// Its state.
    pub state: QpState,
    /// The number of its protection domain: the first of the context has 1.
    pub pd: u32,
    /// Whether the queue pair takes its receives from a shared receive queue.
    pub has_srq: bool,
    /// Send requests that are not complete.
    pub open_sends: u64,
    /// Receives that are not complete: those posted, or with a shared receive queue those taken from it.
    pub open_receives: u64,
}

/// A queue pair, as its context knows it.
pub(crate) trait Listed: Send + Sync {
    /// Its state now.
    fn status(&self) -> QpStatus;

    /// Called when a completion was lost. Sends a Terminate, if there is a connection, and flushes both
    /// queues.
    fn fail_for_cq(&self);
}
