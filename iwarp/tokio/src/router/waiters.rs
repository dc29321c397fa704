//! The tasks that read and write a stream, which may be two different tasks.

use std::task::Waker;

/// A direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// `AsyncRead`.
    Read,
    /// `AsyncWrite`: writes, flushes and shutdowns.
    Write,
}

/// For each direction, the last task that polled it, if the task waits. By the contract of tokio's traits,
/// earlier tasks need not be woken. So the router keeps at most one waker per direction, even if the stream
/// is passed from task to task.
#[derive(Default)]
pub(super) struct Waiters([Option<Waker>; 2]);

impl Waiters {
    /// Whether this waker is registered already.
    pub(super) fn will_wake(&self, direction: Direction, waker: &Waker) -> bool {
        self.0[direction as usize].as_ref().is_some_and(|there| there.will_wake(waker))
    }

    /// Registers this waker, and returns the previous waker.
    pub(super) fn replace(&mut self, direction: Direction, waker: Waker) -> Option<Waker> {
        self.0[direction as usize].replace(waker)
    }

    /// Removes and returns the wakers, which the caller calls.
    pub(super) fn take(&mut self) -> [Option<Waker>; 2] {
        std::mem::take(&mut self.0)
    }
}
