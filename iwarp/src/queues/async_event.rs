//! Asynchronous events: what happens to queues and is no completion (`ibv_get_async_event`).
//!
//! The queue is bounded (`max_async_events`). Who makes an event never waits and allocates nothing: an event
//! without room is lost, and counted.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;

use super::{Notifier, StreamError, Usage};

/// What happened, after `ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AsyncEventKind {
    /// The stream ended in an error, and work is flushed (`IBV_EVENT_QP_FATAL`).
    QpFatal,
    /// It ended because the peer sent what it may not (`IBV_EVENT_QP_REQ_ERR`).
    QpRequestError,
    /// It ended because the peer went for memory that it may not access (`IBV_EVENT_QP_ACCESS_ERR`).
    QpAccessError,
    /// Everything posted to the send queue is completed, as
    /// [`QueuePair::drain`](crate::verbs::QueuePair::drain) asked to be told
    /// (`IBV_EVENT_SQ_DRAINED`).
    SqDrained,
    /// A queue pair in `Error` has completed all it had taken from its shared receive queue
    /// (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastWqeReached,
    /// A queue pair holds more buffers of its shared receive queue than its mark
    /// ([`QpInit::high_water`](super::QpInit::high_water)).
    QpHighWater,
    /// A completion was lost for want of room, and the queue pairs of the completion queue end
    /// (`IBV_EVENT_CQ_ERR`).
    CqError,
    /// A shared receive queue has fewer buffers than its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached,
    /// The port of an engine has a link again (`IBV_EVENT_PORT_ACTIVE`).
    PortActive,
    /// It has none (`IBV_EVENT_PORT_ERR`). Connections live on, for as long as their peers' silence is borne.
    PortError,
    /// Somebody else uses an address of an engine's port
    /// ([`EngineCounters::stack`](crate::engine::EngineCounters) counts; the nearest in libibverbs is
    /// `IBV_EVENT_GID_CHANGE`). Told once in ten seconds; the address is kept, unless it was still being
    /// probed ([`AddressProbing`](tcp_lite::AddressProbing)).
    AddressConflict,
}

/// An event and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// What happened.
    pub kind: AsyncEventKind,
    /// The number of the queue pair, or (where the kind names one) of the completion queue, shared receive
    /// queue or engine. Engines count from 0 in the order in which they were made for the context.
    pub number: u32,
    /// Layer, type and code, where an error of the stream is the cause.
    pub error: Option<StreamError>,
}

/// The asynchronous events of a context. Readable while events wait. Cheap to clone.
#[derive(Clone)]
pub struct AsyncEvents {
    shared: Arc<Shared>,
}

struct Shared {
    events: ArrayQueue<AsyncEvent>,
    lost: AtomicU64,
    notifier: Notifier,
}

impl AsyncEvents {
    pub(crate) fn new(limit: usize) -> io::Result<Self> {
        let shared = Shared {
            events: ArrayQueue::new(limit.max(1)),
            lost: AtomicU64::new(0),
            notifier: Notifier::new()?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Adds an event, from any thread, or counts it as lost.
    pub(crate) fn push(&self, kind: AsyncEventKind, number: u32, error: Option<StreamError>) {
        if self.shared.events.push(AsyncEvent { kind, number, error }).is_err() {
            // The descriptor is readable: each event in the queue has made it so.
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            self.shared.notifier.notify();
        }
    }

    /// The oldest event, without waiting.
    ///
    /// # Errors
    /// What the system says of the descriptor.
    pub fn poll(&self) -> io::Result<Option<AsyncEvent>> {
        let event = self.shared.events.pop();
        self.shared.notifier.settle(event.is_some(), || self.shared.events.is_empty())?;
        Ok(event)
    }

    /// The oldest event, waiting for it up to `timeout`. Only where an engine thread runs. `None` may come
    /// earlier: after a signal, or when another thread has taken the event.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<AsyncEvent>> {
        if let Some(event) = self.poll()? {
            return Ok(Some(event));
        }
        self.shared.notifier.wait(Some(timeout))?;
        self.poll()
    }

    /// Events that were lost because nobody read: look at every object then.
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
