//! Asynchronous events: changes of queues and ports that are no completions (`ibv_get_async_event`).
//!
//! The queue is bounded (`max_async_events`). A thread that adds an event never waits and allocates nothing.
//! When the queue is full, the event is dropped and counted.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;

use super::{ConnectionError, Notifier, Usage};

/// The kind of an event, after `ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEventKind {
    /// The stream ended in an error, and work is flushed (`IBV_EVENT_QP_FATAL`).
    QpFatal,
    /// The stream ended because the peer sent a message that it may not send (`IBV_EVENT_QP_REQ_ERR`).
    QpRequestError,
    /// The stream ended because the peer addressed memory that it may not access (`IBV_EVENT_QP_ACCESS_ERR`).
    QpAccessError,
    /// Every request of the send queue is completed. [`QueuePair::drain`](crate::verbs::QueuePair::drain)
    /// requests this event (`IBV_EVENT_SQ_DRAINED`).
    SqDrained,
    /// A queue pair in `Error` has completed every buffer that it had taken from its shared receive queue
    /// (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastWqeReached,
    /// A queue pair holds more buffers of its shared receive queue than its mark
    /// ([`QpInit::high_water`](super::QpInit::high_water)).
    QpHighWater,
    /// A completion queue was full and lost a completion. Its queue pairs end (`IBV_EVENT_CQ_ERR`).
    CqError,
    /// A shared receive queue has fewer buffers than its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached,
    /// The port of an engine has a link again (`IBV_EVENT_PORT_ACTIVE`).
    PortActive,
    /// The port of an engine has no link (`IBV_EVENT_PORT_ERR`). Its connections stay open until their
    /// timeouts for a silent peer expire, unless the device was taken away
    /// ([`LinkState::Gone`](dp::LinkState::Gone)), which ends them at once.
    PortError,
    /// Another host uses an address of an engine's port
    /// ([`EngineCounters::stack`](crate::engine::EngineCounters) counts these; the nearest event in
    /// libibverbs is `IBV_EVENT_GID_CHANGE`). Reported at most once in ten seconds. The engine keeps the
    /// address, unless it was still probing it ([`AddressProbing`](tcp_lite::AddressProbing)).
    AddressConflict,
}

/// An event and the object that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened, and to which kind of object.
    pub kind: AsyncEventKind,
    /// The number of the queue pair. Where the kind names another object, the number of that completion
    /// queue, shared receive queue or engine. Engines count from 0, in the order in which the context made
    /// them.
    pub number: u32,
    /// Why the connection ended, with the events that say that it did: `QpFatal`, `QpRequestError` and
    /// `QpAccessError`.
    pub cause: Option<ConnectionError>,
}

/// The asynchronous events of a context. The descriptor is readable while events wait. Cheap to clone.
#[derive(Clone)]
pub struct AsyncEvents {
    shared: Arc<AsyncEventsShared>,
}

struct AsyncEventsShared {
    events: ArrayQueue<AsyncEvent>,
    lost: AtomicU64,
    notifier: Notifier,
}

impl AsyncEvents {
    pub(crate) fn new(limit: usize) -> io::Result<Self> {
        let shared = AsyncEventsShared {
            events: ArrayQueue::new(limit.max(1)),
            lost: AtomicU64::new(0),
            notifier: Notifier::new()?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Adds an event, from any thread. A full queue drops it and counts it as lost.
    pub(crate) fn push(&self, kind: AsyncEventKind, number: u32, cause: Option<ConnectionError>) {
        if self.shared.events.push(AsyncEvent { kind, number, cause }).is_err() {
            // The descriptor is readable already: every event in the queue has notified it.
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared.notifier.notify();
        }
    }

    /// Whether no event waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.shared.events.is_empty()
    }

    /// The oldest event, without waiting.
    ///
    /// # Errors
    /// An error of the system call on the descriptor.
    pub fn poll(&self) -> io::Result<Option<AsyncEvent>> {
        let events = &self.shared.events;
        // As in `EventChannel::poll`: a pop of an empty queue has a fence.
        let event = if events.is_empty() { None } else { events.pop() };
        self.shared.notifier.settle(event.is_some(), || events.is_empty())?;
        Ok(event)
    }

    /// The oldest event; waits for one up to `timeout`. Use it only where an engine runs in a thread. It may
    /// return `None` earlier: after a signal, or when another thread took the event.
    ///
    /// # Errors
    /// An error of the system call.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<AsyncEvent>> {
        if let Some(event) = self.poll()? {
            return Ok(Some(event));
        }
        self.shared.notifier.wait(Some(timeout))?;
        self.poll()
    }

    /// Events that were lost because the queue was full. When this changes, query every object.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            name: "max_async_events",
            limit: self.shared.events.capacity(),
            used: self.shared.events.len(),
            refused: self.lost(),
        }
    }
}

impl AsFd for AsyncEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.notifier.as_fd()
    }
}

impl AsRawFd for AsyncEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
