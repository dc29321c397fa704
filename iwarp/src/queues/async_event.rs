//! Asynchronous events: events of queues and ports that are not completions (`ibv_get_async_event`).
//!
//! The length of the queue of events is limited (`max_async_events`). A thread that adds an event waits only
//! for the lock of the queue, and allocates no memory. If the queue is full, the object keeps the event, as
//! one bit for each kind, and enters a list of objects with kept events (the line). When the reader has
//! removed an event from the queue, one event of the first object in the line enters the queue. So no kept
//! event is lost before its object is destroyed, except that a change of a port's link cancels the kept event
//! of the opposite change.
//!
//! A program may install a handler that replaces the queue ([`AsyncEvents::set_handler`]).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use slab::Slab;

use super::{ConnectionError, Notifier, Usage, VerbsError};

/// The kind of an event, similar to `ibv_event_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AsyncEventKind {
    /// A queue pair, or its stream, ended with an error, and the requests of the queue pair are flushed
    /// (`IBV_EVENT_QP_FATAL`).
    QpFatal,
    /// The stream ended because the peer sent a message that it may not send (`IBV_EVENT_QP_REQ_ERR`).
    QpRequestError,
    /// The stream ended because the peer addressed memory that it may not access (`IBV_EVENT_QP_ACCESS_ERR`).
    QpAccessError,
    /// Every request of the send queue is complete, not counting requests that have not started in a
    /// [held](crate::verbs::QueuePair::hold_sends) queue (`IBV_EVENT_SQ_DRAINED`).
    /// [`QueuePair::drain`](crate::verbs::QueuePair::drain) requests this event.
    SqDrained,
    /// A queue pair in state `Error` has completed every receive request that it had taken from its shared
    /// receive queue (`IBV_EVENT_QP_LAST_WQE_REACHED`).
    LastWqeReached,
    /// A queue pair holds more buffers of its shared receive queue than its high-water mark
    /// ([`QpInit::high_water`](super::QpInit::high_water)).
    QpHighWater,
    /// A completion queue was full and lost a completion (`IBV_EVENT_CQ_ERR`). Every queue pair that uses
    /// this completion queue ends.
    CqError,
    /// A shared receive queue has fewer posted buffers than its limit (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SrqLimitReached,
    /// The port of an engine has a link again (`IBV_EVENT_PORT_ACTIVE`).
    PortActive,
    /// The port of an engine has no link (`IBV_EVENT_PORT_ERR`). The port's connections stay open until the
    /// time [`TcpConfig::link_timeout`](tcp_lite::TcpConfig::link_timeout) has passed, or until their
    /// timeouts for a silent peer expire. A port for a single peer
    /// ([`PortInfo::point_to_point`](dp::PortInfo::point_to_point)) does not generate this event while it
    /// waits for its peer to start.
    PortError,
    /// The device of an engine was removed ([`LinkState::Gone`](dp::LinkState::Gone),
    /// `IBV_EVENT_DEVICE_FATAL`). The port's connections end at once, and the engine makes no further
    /// connection.
    PortGone,
    /// Another host uses an address of an engine's port. The most similar event in libibverbs is
    /// `IBV_EVENT_GID_CHANGE`. The conflicts of an address are reported at most once in ten seconds;
    /// [`EngineCounters::stack`](crate::engine::EngineCounters) counts the reported conflicts. The engine
    /// keeps the address, unless the engine was still probing the address
    /// ([`AddressProbing`](tcp_lite::AddressProbing)).
    AddressConflict,
}

/// An event, and the object to which the event belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AsyncEvent {
    /// The kind of the event, which also determines the kind of the object.
    pub kind: AsyncEventKind,
    /// The number of the object: a queue pair, a completion queue, a shared receive queue or an engine,
    /// depending on the kind. The first engine of a context has number 0, and further engines are numbered in
    /// the order of their creation.
    pub number: u32,
    /// Why the connection ended. Only `QpFatal`, `QpRequestError` and `QpAccessError`, which report the end
    /// of a connection, can have a cause.
    pub cause: Option<ConnectionError>,
}

impl AsyncEventKind {
    /// All kinds, in the order in which an object reports its kept events: an error of the stream is reported
    /// before `LastWqeReached`.
    const ALL: [Self; 12] = [
        Self::QpFatal,
        Self::QpRequestError,
        Self::QpAccessError,
        Self::SqDrained,
        Self::LastWqeReached,
        Self::QpHighWater,
        Self::CqError,
        Self::SrqLimitReached,
        Self::PortActive,
        Self::PortError,
        Self::PortGone,
        Self::AddressConflict,
    ];

    fn bit(self) -> u16 {
        1 << self as u8
    }

    /// Returns `cause` if this kind of event has a cause, and otherwise `None`.
    fn cause(self, cause: Option<ConnectionError>) -> Option<ConnectionError> {
        cause.filter(|_| matches!(self, Self::QpFatal | Self::QpRequestError | Self::QpAccessError))
    }

    /// Returns the kind whose kept event is cancelled by an event of this kind, if any.
    fn contrary(self) -> Option<Self> {
        match self {
            Self::PortActive => Some(Self::PortError),
            Self::PortError => Some(Self::PortActive),
            _ => None,
        }
    }
}

/// A function that is called with each asynchronous event of a context ([`AsyncEvents::set_handler`]).
///
/// The handler runs on the thread that generates the event (for example a thread that polls an engine or
/// calls a function of a queue), or on the thread that sets the handler. This thread may hold locks of this
/// crate. So the handler must return soon, must not call this crate, and must not panic. The handler may take
/// only locks that no thread holds while calling this crate.
pub type AsyncEventHandler = Box<dyn Fn(&AsyncEvent) + Send + Sync>;

/// The asynchronous events of a context. The descriptor is readable while events wait. This value is cheap to
/// clone.
#[derive(Clone)]
pub struct AsyncEvents {
    shared: Arc<AsyncEventsShared>,
}

struct AsyncEventsShared {
    waiting: Mutex<WaitingEvents>,
    /// Number of events in `WaitingEvents::queue`. A thread changes this number only while it holds the lock.
    count: AtomicUsize,
    limit: usize,
    lost: AtomicU64,
    notifier: Notifier,
    /// A thread sets the handler while it holds the lock.
    handler: OnceLock<AsyncEventHandler>,
}

struct WaitingEvents {
    queue: VecDeque<AsyncEvent>,
    kept: KeptEvents,
}

/// The events that objects keep because the queue is full. While the queue has room, no object keeps an
/// event.
#[derive(Default)]
struct KeptEvents {
    /// One place for each object that may have events.
    places: Slab<Place>,
    /// The indices of the first and the last object of the line.
    line: Option<(u32, u32)>,
}

/// The events that one object keeps.
struct Place {
    number: u32,
    /// The index of the next object in the line. For the last object the index has no meaning.
    next: u32,
    cause: Option<ConnectionError>,
    /// A bit for each kind. The object is in the line if any bit is set.
    kinds: u16,
}

/// An object that may have events: a queue pair, a completion queue, a shared receive queue or an engine.
pub(crate) struct EventSource {
    events: AsyncEvents,
    number: u32,
    /// The place of the object among the [`KeptEvents`].
    place: u32,
}

impl KeptEvents {
    /// Adds an object, and returns the index of its place. Allocates this place, so that the object's events
    /// need no further memory.
    fn enter(&mut self, number: u32) -> u32 {
        if self.places.len() == self.places.capacity() {
            // The memory grows by an eighth, since doubling could leave up to half of the places unused.
            self.places.reserve_exact((self.places.len() / 8).max(8));
        }
        self.places.insert(Place { number, next: 0, cause: None, kinds: 0 }) as u32
    }

    /// Removes an object and its kept events. Returns the number of these events.
    fn leave(&mut self, place: u32) -> u32 {
        let gone = self.places.remove(place as usize);
        if gone.kinds != 0 {
            self.unlink(place, gone.next);
        }
        gone.kinds.count_ones()
    }

    /// Removes the object `gone`, whose successor is `next`, from the line.
    fn unlink(&mut self, gone: u32, next: u32) {
        self.line = match self.line {
            Some((first, last)) if first == gone => (first != last).then_some((next, last)),
            Some((first, last)) => {
                let mut before = first;
                while self.places[before as usize].next != gone {
                    before = self.places[before as usize].next;
                }
                self.places[before as usize].next = next;
                Some((first, if last == gone { before } else { last }))
            }
            None => None,
        };
    }

    #[cold]
    fn keep(&mut self, place: u32, event: &AsyncEvent) {
        let kept = &mut self.places[place as usize];
        let is_first = kept.kinds == 0;
        kept.kinds |= event.kind.bit();
        if let Some(contrary) = event.kind.contrary() {
            kept.kinds &= !contrary.bit();
        }
        kept.cause = event.cause.or(kept.cause);
        if is_first {
            let first = match self.line {
                Some((first, last)) => {
                    self.places[last as usize].next = place;
                    first
                }
                None => place,
            };
            self.line = Some((first, place));
        }
    }

    /// Removes and returns the first event of the first object in the line, if any.
    fn take(&mut self) -> Option<AsyncEvent> {
        let (first, last) = self.line?;
        let kept = &mut self.places[first as usize];
        let kind = AsyncEventKind::ALL.into_iter().find(|kind| kept.kinds & kind.bit() != 0)?;
        kept.kinds &= !kind.bit();
        if kept.kinds == 0 {
            self.line = (first != last).then_some((kept.next, last));
        }
        Some(AsyncEvent { kind, number: kept.number, cause: kind.cause(kept.cause) })
    }
}

impl EventSource {
    /// Returns the event source of the object that has number `number` among the objects of its kind.
    pub(crate) fn new(events: &AsyncEvents, number: u32) -> Self {
        let place = events.shared.waiting().kept.enter(number);
        Self { events: events.clone(), number, place }
    }

    /// Passes an event to the handler, if a handler is set. Otherwise adds the event to the queue, or keeps
    /// the event if the queue is full. Any thread may call this function.
    pub(crate) fn push(&self, kind: AsyncEventKind, cause: Option<ConnectionError>) {
        let event = AsyncEvent { kind, number: self.number, cause };
        let shared = &*self.events.shared;
        if let Some(handler) = shared.handler.get() {
            return handler(&event);
        }
        {
            let mut waiting = shared.waiting();
            // The handler may have been set before this thread acquired the lock. Once a handler is set, no
            // event may enter the queue.
            if let Some(handler) = shared.handler.get() {
                drop(waiting);
                return handler(&event);
            }
            if waiting.queue.len() < shared.limit {
                waiting.queue.push_back(event);
                shared.count.store(waiting.queue.len(), Ordering::Release);
            } else {
                // The descriptor is already readable, since a notification was added for every event in the
                // queue.
                return waiting.kept.keep(self.place, &event);
            }
        }
        shared.notifier.notify();
    }
}

impl Drop for EventSource {
    /// Drops the events that the object has kept, and counts them as lost.
    fn drop(&mut self) {
        let shared = &*self.events.shared;
        let lost = shared.waiting().kept.leave(self.place);
        if lost != 0 {
            shared.lost.fetch_add(lost.into(), Ordering::Relaxed);
        }
    }
}

impl AsyncEventsShared {
    fn waiting(&self) -> MutexGuard<'_, WaitingEvents> {
        self.waiting.lock().expect("no holder of this lock panics")
    }

    /// Removes and returns the oldest event, if any. If an object keeps an event, one kept event then enters
    /// the queue.
    fn take(&self, waiting: &mut WaitingEvents) -> Option<AsyncEvent> {
        let event = waiting.queue.pop_front()?;
        waiting.queue.extend(waiting.kept.take());
        self.count.store(waiting.queue.len(), Ordering::Release);
        Some(event)
    }
}

impl AsyncEvents {
    pub(crate) fn new(limit: usize) -> io::Result<Self> {
        let limit = limit.max(1);
        let waiting = WaitingEvents { queue: VecDeque::with_capacity(limit), kept: KeptEvents::default() };
        let shared = AsyncEventsShared {
            waiting: Mutex::new(waiting),
            count: AtomicUsize::new(0),
            limit,
            lost: AtomicU64::new(0),
            notifier: Notifier::new()?,
            handler: OnceLock::new(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Passes the waiting events at once, and each later event, to `handler` instead of the queue. The
    /// handler cannot be replaced or removed. Once a handler is set, no event is lost.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if a handler is already set. [`VerbsError::System`] if the system call on the
    /// descriptor fails; the handler is set nevertheless.
    pub fn set_handler(&self, handler: AsyncEventHandler) -> Result<(), VerbsError> {
        let shared = &*self.shared;
        let mut waiting = shared.waiting();
        if shared.handler.get().is_some() {
            return Err(VerbsError::Invalid("asynchronous events have a handler already".into()));
        }
        while let Some(event) = shared.take(&mut waiting) {
            handler(&event);
        }
        // No other thread can have set a handler, because this thread holds the lock.
        let _ = shared.handler.set(handler);
        drop(waiting);
        shared.notifier.take().map(drop).map_err(VerbsError::System)
    }

    /// Whether no event waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.shared.count.load(Ordering::Acquire) == 0
    }

    /// Removes and returns the oldest event, without waiting. Returns `None` if no event waits.
    ///
    /// # Errors
    /// An error of the system call on the descriptor.
    pub fn poll(&self) -> io::Result<Option<AsyncEvent>> {
        let shared = &*self.shared;
        let event = if self.is_empty() { None } else { shared.take(&mut shared.waiting()) };
        shared.notifier.settle(event.is_some(), || self.is_empty())?;
        Ok(event)
    }

    /// Returns the oldest event and removes it from the queue. If no event waits, first waits at most
    /// `timeout` for an event. Use this function only if another thread polls the engine, for example the
    /// engine's own thread. The function may return `None` before `timeout` has passed: after a signal, or if
    /// another thread has removed the event.
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

    /// Number of events that were lost because their object was destroyed while the queue was full. As long
    /// as an object exists, none of its events is lost. But an event that happens several times before it is
    /// reported may be reported only once. And if the link of a port changes twice while the queue is full,
    /// only the second change may be reported.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            name: "max_async_events",
            limit: self.shared.limit,
            used: self.shared.count.load(Ordering::Acquire),
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

#[cfg(test)]
mod tests;
