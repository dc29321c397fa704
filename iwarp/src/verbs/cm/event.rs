//! Events of identifiers ([`CmId`]), and the channel on which the identifiers report events.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};
use std::{fmt, io, net::SocketAddr};

use crate::mpa::startup::Enhanced;
use crate::queues::Notifier;
use crate::verbs::{ConnectionError, TerminateReport, VerbsError};

use super::CmId;
use super::identifier::CmShared;

/// The kind of an event, with its details.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CmEventKind {
    /// A peer requests a connection. `CmEvent::id` is a new identifier of the listener, or the identifier on
    /// which [`start_responder`](CmId::start_responder) was called. The user calls [`accept`](CmId::accept)
    /// or [`reject`](CmId::reject) on this identifier.
    ConnectRequest {
        /// The peer's private data.
        private_data: Box<[u8]>,
        /// The peer's address.
        remote: SocketAddr,
        /// Maximum number of Reads that the peer can serve at a time; `None`: the Request does not state the
        /// number.
        peer_ird: Option<u16>,
        /// Maximum number of outstanding Reads that the peer wants; `None`: the Request does not state the
        /// number.
        peer_ord: Option<u16>,
        /// MPA revision of the Request, 1 or 2.
        revision: u8,
        /// Whether the peer will send an RTR, after which the responder may send.
        peer_to_peer: bool,
        /// Whether the peer requests markers.
        markers: bool,
        /// Whether the peer offers InfiniBand's semantics
        /// ([`ConnParam::ib_semantics`](super::ConnParam::ib_semantics)).
        ib_semantics: bool,
    },
    /// The connection is established, and the queue pair is in `Rts`.
    Established {
        /// The private data of the peer's Request or Reply.
        private_data: Box<[u8]>,
        /// Maximum number of our outstanding Reads and atomics.
        ord: u16,
        /// Maximum number of the peer's Reads that we serve at a time, and also of its atomics.
        ird: u16,
        /// Depths, model and RTR in the peer's frame; `None`: the frame does not contain them.
        peer: Option<Enhanced>,
        /// MPA revision of the peer's frame.
        revision: u8,
        /// Whether the peer has closed or reset the connection without a Reply to our Request of revision 2,
        /// so that this connection is the second attempt, with revision 1
        /// ([`ConnParam::fallback`](super::ConnParam::fallback)). Then depths and RTR were not negotiated.
        fell_back: bool,
        /// Whether we send markers, and whether we receive them.
        markers: (bool, bool),
        /// Whether both peers have agreed on InfiniBand's semantics
        /// ([`ConnParam::ib_semantics`](super::ConnParam::ib_semantics)).
        ib_semantics: bool,
        /// Whether posted requests are sent at once. By default, a responder to a peer without RTR sends
        /// nothing before the first FPDU of the peer (RFC 5044 section 7.1.2,
        /// [`ConnParam::await_first_fpdu`](super::ConnParam::await_first_fpdu)).
        ready: bool,
    },
    /// The peer rejected the connection. A connection that began in streaming mode returns to streaming mode.
    Rejected {
        /// The private data of the peer's Reply.
        private_data: Box<[u8]>,
        /// The depths of the peer. If the peer has rejected the connection because our IRD is too small, the
        /// ORD is the minimum that the peer needs. `None`: the peer's Reply has no depths.
        peer: Option<Enhanced>,
    },
    /// The connection could not be set up.
    ConnectError {
        /// The reason.
        error: ConnectionError,
        /// Depths, model and RTR of the Reply, if there was one.
        peer: Option<Enhanced>,
    },
    /// A connection that was established, or was in streaming mode, has ended. All open requests are flushed,
    /// unless the queue pair outlives the connection
    /// ([`ConnParam::outlives_peer`](super::ConnParam::outlives_peer)).
    Disconnected {
        /// The reason; `None` for a graceful close.
        error: Option<ConnectionError>,
        /// The Terminate that the peer sent, or that this side generated, with its contents.
        terminate: Option<Arc<TerminateReport>>,
    },
    /// A connection in streaming mode is established. The user opened the connection with
    /// [`connect_stream`](CmId::connect_stream), or a listener (`CmEvent::listener`) accepted it.
    StreamEstablished {
        /// The peer's address.
        remote: SocketAddr,
    },
    /// Bytes wait for [`recv_stream`](CmId::recv_stream), or the peer has closed. The event is not repeated
    /// until all bytes were read.
    StreamReadable,
    /// An earlier call of [`send_stream`](CmId::send_stream) did not accept all bytes, and the next call can
    /// accept more.
    StreamWritable,
}

/// An event of a connection (`rdma_cm_event`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CmEvent {
    /// The identifier of the connection. If the event announces a new connection of a listener, the
    /// identifier is new.
    pub id: CmId,
    /// The listener, if the event announces a new connection of this listener.
    pub listener: Option<CmId>,
    /// The kind of the event, with its details.
    pub kind: CmEventKind,
}

/// An event in a channel's queue. The event does not keep its listener listening.
struct QueuedEvent {
    id: CmId,
    listener: Option<Arc<CmShared>>,
    kind: CmEventKind,
}

/// The channel on which identifiers report events. The channel's descriptor is readable while events are
/// queued. Cheap to clone. Dropping the last clone drops the queued events, which rejects the connect
/// requests that only these events hold. Unlike a
/// [`CompletionChannel`](crate::verbs::CompletionChannel#arm-poll-wait), the channel needs no arming.
///
/// # Limit
///
/// Events of identifiers that the program holds are never lost. These events are queued even beyond
/// [`ContextLimits::max_cm_events`](super::super::ContextLimits::max_cm_events), since each identifier has
/// few events, and a program waits for them. When the queue is longer than this limit, events of identifiers
/// that only events hold may be [lost](Self::lost), so that no engine waits for a reader. Events of new
/// connections are queued only while the queue is shorter than three quarters of the limit. A connect request
/// whose event is lost is rejected.
#[derive(Clone)]
pub struct EventChannel {
    pub(super) shared: Arc<ChannelShared>,
}

pub(super) struct ChannelShared {
    queue: Mutex<EventQueue>,
    /// The length of the queue, readable without the lock.
    waiting: AtomicUsize,
    limit: usize,
    lost: AtomicU64,
    notifier: Notifier,
}

#[derive(Default)]
struct EventQueue {
    events: VecDeque<QueuedEvent>,
    /// The length at which the queue is searched for events of identifiers that only events hold.
    next_search: usize,
}

impl ChannelShared {
    fn queue(&self) -> MutexGuard<'_, EventQueue> {
        self.queue.lock().expect("no holder of this lock panics")
    }

    /// Adds an event. If the event of a connect request is lost, dropping the event drops the request's
    /// identifier, which rejects the request.
    fn push(&self, event: QueuedEvent) {
        let mut lost = Vec::new();
        let mut queue = self.queue();
        let is_added = event.listener.is_none() || queue.events.len() < self.limit - self.limit / 4;
        if is_added {
            queue.events.push_back(event);
            if queue.events.len() > self.limit.max(queue.next_search) {
                lost = queue.take_unheld();
                queue.next_search = 2 * queue.events.len();
            }
        } else {
            lost.push(event);
        }
        self.waiting.store(queue.events.len(), Ordering::SeqCst);
        drop(queue);
        self.lost.fetch_add(lost.len() as u64, Ordering::Relaxed);
        if is_added {
            self.notifier.notify();
        }
        // The lost events are dropped after the lock is released, since the drop of an event may end an
        // identifier.
        drop(lost);
    }

    fn pop(&self) -> Option<QueuedEvent> {
        // This check does not take the lock, whose fence costs time: a shared engine makes this call in each
        // poll.
        if self.is_empty() {
            return None;
        }
        let mut queue = self.queue();
        let event = queue.events.pop_front();
        self.waiting.store(queue.events.len(), Ordering::SeqCst);
        event
    }

    fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0
    }
}

impl EventQueue {
    /// Removes the events of identifiers that only queued events hold. Events of new connections stay: their
    /// number has its own limit. So the queue is at most twice as long as the limit and the number of events
    /// of held identifiers together.
    fn take_unheld(&mut self) -> Vec<QueuedEvent> {
        let mut waiting: HashMap<*const CmShared, usize> = HashMap::new();
        for event in &self.events {
            *waiting.entry(Arc::as_ptr(&event.id.shared)).or_default() += 1;
        }
        let mut unheld = Vec::new();
        for event in std::mem::take(&mut self.events) {
            let is_unheld = event.id.handles() == waiting[&Arc::as_ptr(&event.id.shared)];
            if is_unheld && event.listener.is_none() {
                unheld.push(event);
            } else {
                self.events.push_back(event);
            }
        }
        unheld
    }
}

/// Adds an event to `channel`, if the channel still exists.
pub(super) fn announce(
    channel: &Weak<ChannelShared>,
    id: CmId,
    listener: Option<Arc<CmShared>>,
    kind: CmEventKind,
) {
    if let Some(channel) = channel.upgrade() {
        channel.push(QueuedEvent { id, listener, kind });
    }
}

impl EventChannel {
    pub(crate) fn new(limit: usize) -> Result<Self, VerbsError> {
        if limit == 0 {
            return Err(VerbsError::Limit { name: "max_cm_events", limit });
        }
        let queue = EventQueue { events: VecDeque::with_capacity(limit), next_search: 0 };
        let shared = ChannelShared {
            queue: Mutex::new(queue),
            waiting: AtomicUsize::new(0),
            limit,
            lost: AtomicU64::new(0),
            notifier: Notifier::new()?,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Whether the queue has no event.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.shared.is_empty()
    }

    /// Removes and returns the oldest event, without waiting. A program that polls its engine itself has to
    /// poll the engine before this call.
    pub fn poll(&self) -> Option<CmEvent> {
        let event = self.shared.pop();
        // Reading this private descriptor fails only when it is empty, which is no error here.
        let settled = self.shared.notifier.settle(event.is_some(), || self.shared.is_empty());
        debug_assert!(settled.is_ok());
        let QueuedEvent { id, listener, kind } = event?;
        Some(CmEvent { id, listener: listener.map(|listener| listener.handle()), kind })
    }

    /// Waits until there is an event, for at most `timeout`, and then removes and returns the oldest event.
    /// Returns `None` if there was no event in this time. Use this function only if a thread runs the engine.
    /// After a signal the call may return `None` before the timeout.
    ///
    /// # Errors
    /// An error of the system call.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<CmEvent>> {
        // `None`: the deadline is later than the clock can represent.
        let deadline = Instant::now().checked_add(timeout);
        loop {
            if let Some(event) = self.poll() {
                return Ok(Some(event));
            }
            let left =
                deadline.map_or(timeout, |deadline| deadline.saturating_duration_since(Instant::now()));
            // The descriptor may be readable without an event: a thread may remove an event before its
            // notification arrives, and another thread may have removed the event.
            if !self.shared.notifier.wait(Some(left))? || left.is_zero() {
                return Ok(self.poll());
            }
        }
    }

    /// Returns the number of events that were lost since the channel was created. The lost events are those
    /// of identifiers that the program does not hold, and those of new connections, which were then rejected
    /// or, in streaming mode, reset.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Returns the number of queued events, and the limit. Events of identifiers that the program holds may
    /// exceed the limit.
    pub fn usage(&self) -> (usize, usize) {
        (self.shared.waiting.load(Ordering::SeqCst), self.shared.limit)
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.notifier.as_fd()
    }
}

impl AsRawFd for EventChannel {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").field("usage", &self.usage()).field("lost", &self.lost()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The descriptor may be readable for an event that another thread has removed already. The wait then
    /// continues until its timeout.
    #[test]
    fn notices_without_an_event_do_not_end_a_wait() {
        let channel = EventChannel::new(4).unwrap();
        let (time, over) = (Duration::from_millis(300), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while over.load(Ordering::Relaxed) == 0 {
                    channel.shared.notifier.notify();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let begun = Instant::now();
            let event = channel.wait(time);
            let waited = begun.elapsed();
            over.store(1, Ordering::Relaxed);
            assert!(event.unwrap().is_none() && waited >= time, "{waited:?}");
        });
    }
}
