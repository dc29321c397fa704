//! Asynchronous events: changes of queues and ports that are no completions (`ibv_get_async_event`).
//!
//! The queue is bounded (`max_async_events`). A thread that adds an event waits only for other threads that
//! add or take an event, and allocates nothing. When the queue is full, the object keeps the event, as a bit
//! for each kind, and enters a line of such objects, a list of their places. When the reader has taken an
//! event, the first object of the line adds one of its events to the queue. So no event of an object is lost
//! before the object is destroyed, and memory stays bounded.
//!
//! A program may install a handler in place of the queue ([`AsyncEvents::set_handler`]).

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use slab::Slab;

use super::{ConnectionError, Notifier, Usage, VerbsError};

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
    /// ([`LinkState::Gone`](dp::LinkState::Gone)), which ends them at once. A port with one peer
    /// ([`PortInfo::point_to_point`](dp::PortInfo::point_to_point)) that waits for its peer to come has no
    /// such event.
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
    /// Why the connection ended, for the events that report its end: `QpFatal`, `QpRequestError` and
    /// `QpAccessError`.
    pub cause: Option<ConnectionError>,
}

impl AsyncEventKind {
    /// All kinds, in the order in which an object reports the events that it has kept: an error of the
    /// stream comes before its last buffer.
    const ALL: [Self; 11] = [
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
        Self::AddressConflict,
    ];

    fn bit(self) -> u16 {
        1 << self as u8
    }

    /// `cause`, for the kinds that have one.
    fn cause(self, cause: Option<ConnectionError>) -> Option<ConnectionError> {
        cause.filter(|_| matches!(self, Self::QpFatal | Self::QpRequestError | Self::QpAccessError))
    }

    /// The kind whose pending event this kind cancels.
    fn contrary(self) -> Option<Self> {
        match self {
            Self::PortActive => Some(Self::PortError),
            Self::PortError => Some(Self::PortActive),
            _ => None,
        }
    }
}

/// Is called with each asynchronous event of a context ([`AsyncEvents::set_handler`]).
///
/// The handler runs on the thread that generates the event: a thread that polls an engine or calls any
/// function of a queue. The thread may hold locks of this crate. So the handler has to return soon, must take
/// only locks that no thread holds while it calls this crate, and must neither call this crate nor panic.
pub type AsyncEventHandler = Box<dyn Fn(&AsyncEvent) + Send + Sync>;

/// The asynchronous events of a context. The descriptor is readable while events wait. Cheap to clone.
#[derive(Clone)]
pub struct AsyncEvents {
    shared: Arc<AsyncEventsShared>,
}

struct AsyncEventsShared {
    waiting: Mutex<WaitingEvents>,
    /// Events in `WaitingEvents::queue`. Changed with the lock.
    count: AtomicUsize,
    limit: usize,
    lost: AtomicU64,
    notifier: Notifier,
    /// Set with the lock.
    handler: OnceLock<AsyncEventHandler>,
}

struct WaitingEvents {
    queue: VecDeque<AsyncEvent>,
    kept: KeptEvents,
}

/// The events that objects keep because the queue is full. There are none while it has room.
#[derive(Default)]
struct KeptEvents {
    /// A place for each object that may have events.
    places: Slab<Place>,
    /// The indices of the first and the last object of the line.
    line: Option<(u32, u32)>,
}

/// The events that one object keeps.
struct Place {
    number: u32,
    /// The index of the next object in the line, if this is not the last one.
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
    /// Adds an object. Allocates its place, so that nothing is allocated for its events.
    fn enter(&mut self, number: u32) -> u32 {
        if self.places.len() == self.places.capacity() {
            // Growing by an eighth, because doubling would leave half of the places empty.
            self.places.reserve_exact((self.places.len() / 8).max(8));
        }
        self.places.insert(Place { number, next: 0, cause: None, kinds: 0 }) as u32
    }

    /// Removes an object with the events that it has kept. Returns their number.
    fn leave(&mut self, place: u32) -> u32 {
        let gone = self.places.remove(place as usize);
        if gone.kinds != 0 {
            self.unlink(place, gone.next);
        }
        gone.kinds.count_ones()
    }

    /// Removes the object `gone`, with `next` behind it, from the line.
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

    /// Takes the first event of the first object.
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
    /// The object with this number, among those of its kind.
    pub(crate) fn new(events: &AsyncEvents, number: u32) -> Self {
        let place = events.shared.waiting().kept.enter(number);
        Self { events: events.clone(), number, place }
    }

    /// Adds an event, from any thread.
    pub(crate) fn push(&self, kind: AsyncEventKind, cause: Option<ConnectionError>) {
        let event = AsyncEvent { kind, number: self.number, cause };
        let shared = &*self.events.shared;
        if let Some(handler) = shared.handler.get() {
            return handler(&event);
        }
        {
            let mut waiting = shared.waiting();
            // The lock is held, so the handler gets this event before any other event enters the queue.
            if let Some(handler) = shared.handler.get() {
                drop(waiting);
                return handler(&event);
            }
            if waiting.queue.len() < shared.limit {
                waiting.queue.push_back(event);
                shared.count.store(waiting.queue.len(), Ordering::Release);
            } else {
                // The descriptor is readable already: it was notified of every event in the queue.
                return waiting.kept.keep(self.place, &event);
            }
        }
        shared.notifier.notify();
    }
}

impl Drop for EventSource {
    /// Drops the events that the object has kept.
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

    /// Takes the oldest event.
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

    /// Gives events to `handler` in place of the queue, from now on and for good: the handler is called when
    /// an event happens, and first with the events that wait. With a handler no event is kept, so none is
    /// lost.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if a handler is set already.
    pub fn set_handler(&self, handler: AsyncEventHandler) -> Result<(), VerbsError> {
        let shared = &*self.shared;
        let mut waiting = shared.waiting();
        if shared.handler.get().is_some() {
            return Err(VerbsError::Invalid("asynchronous events have a handler already".into()));
        }
        while let Some(event) = shared.take(&mut waiting) {
            handler(&event);
        }
        // There is no handler yet, because the lock is held.
        let _ = shared.handler.set(handler);
        drop(waiting);
        shared.notifier.take().map(drop).map_err(VerbsError::System)
    }

    /// Whether no event waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.shared.count.load(Ordering::Acquire) == 0
    }

    /// The oldest event, without waiting.
    ///
    /// # Errors
    /// An error of the system call on the descriptor.
    pub fn poll(&self) -> io::Result<Option<AsyncEvent>> {
        let shared = &*self.shared;
        let event = if self.is_empty() { None } else { shared.take(&mut shared.waiting()) };
        shared.notifier.settle(event.is_some(), || self.is_empty())?;
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

    /// Number of events that were lost: the queue was full, and their objects were gone before it had room.
    /// No event of a living object is lost, but an event that happens again before it is reported is
    /// reported once.
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
