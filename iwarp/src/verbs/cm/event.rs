//! Events of identifiers, and their channel.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use std::{fmt, io, net::SocketAddr};

use crossbeam_queue::ArrayQueue;

use crate::mpa::startup::Enhanced;
use crate::queues::Notifier;
use crate::verbs::{ConnectionError, TerminateReport, VerbsError};

use super::CmId;
use super::shared::CmShared;

/// The kind of an event, with its details.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum CmEventKind {
    /// A peer requests a connection. `CmEvent::id` is a new identifier of the listener, to
    /// [`accept`](CmId::accept) or [`reject`](CmId::reject); or it is the identifier on which
    /// [`start_responder`](CmId::start_responder) was called.
    ConnectRequest {
        /// The peer's private data.
        private_data: Box<[u8]>,
        /// The peer's address.
        remote: SocketAddr,
        /// Reads that the peer can serve; `None`: the Request does not say.
        peer_ird: Option<u16>,
        /// Reads that the peer wants outstanding.
        peer_ord: Option<u16>,
        /// MPA revision of the Request, 1 or 2.
        revision: u8,
        /// The peer will send an RTR, after which the responder may send.
        peer_to_peer: bool,
        /// The peer requests markers.
        markers: bool,
        /// The peer offers InfiniBand's semantics
        /// ([`ConnParam::ib_semantics`](super::ConnParam::ib_semantics)).
        ib_semantics: bool,
    },
    /// The queue pair is in `Rts`.
    Established {
        /// The private data of the peer (for the connecting side, that of the Reply).
        private_data: Box<[u8]>,
        /// Reads of ours that may be outstanding.
        ord: u16,
        /// Reads of the peer that we serve.
        ird: u16,
        /// Depths, model and RTR as the peer sent them; `None`: its frame has none.
        peer: Option<Enhanced>,
        /// MPA revision of the peer's frame.
        revision: u8,
        /// The peer accepted no Request of revision 2, and this is the second attempt, with revision 1
        /// ([`ConnParam::fallback`](super::ConnParam::fallback)): depths and RTR were not negotiated.
        fell_back: bool,
        /// Whether we send markers, and whether we receive them.
        markers: (bool, bool),
        /// Whether both ends have agreed on InfiniBand's semantics
        /// ([`ConnParam::ib_semantics`](super::ConnParam::ib_semantics)).
        ib_semantics: bool,
        /// Whether posted requests are sent at once. A responder to a peer without RTR sends nothing before
        /// the first FPDU of the peer (RFC 5044 section 7.1.2).
        ready: bool,
    },
    /// The peer rejected the connection. A connection that began in streaming mode returns to it.
    Rejected {
        /// Its private data.
        private_data: Box<[u8]>,
        /// The depths of the peer; its ORD is the one that it needs. `None`: its Reply has none.
        peer: Option<Enhanced>,
    },
    /// The connection could not be set up.
    ConnectError {
        /// The reason.
        error: ConnectionError,
        /// Depths, model and RTR of the Reply, if there was one.
        peer: Option<Enhanced>,
    },
    /// An established connection ended, and all requests are flushed.
    Disconnected {
        /// The reason; `None` for a graceful close.
        error: Option<ConnectionError>,
        /// The Terminate that was sent or received, with its contents.
        terminate: Option<Arc<TerminateReport>>,
    },
    /// A connection in streaming mode is established: one of ours, or one that a listener accepted
    /// (`CmEvent::listener`).
    StreamEstablished {
        /// The peer's address.
        remote: SocketAddr,
    },
    /// Bytes wait for [`recv_stream`](CmId::recv_stream), or the peer has closed. The event is not repeated
    /// until all bytes were read.
    StreamReadable,
    /// [`send_stream`](CmId::send_stream) did not take all bytes earlier, and can take more now.
    StreamWritable,
}

/// An event of a connection (`rdma_cm_event`).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CmEvent {
    /// The identifier of the connection; a new one for the connect request of a listener.
    pub id: CmId,
    /// The listener, if it accepted the connection.
    pub listener: Option<CmId>,
    /// The kind of the event, with its details.
    pub kind: CmEventKind,
}

/// An event that waits in a channel. It does not keep its listener listening.
struct QueuedEvent {
    id: CmId,
    listener: Option<Arc<CmShared>>,
    kind: CmEventKind,
}

/// The channel on which identifiers report events. The descriptor is readable while events wait. Cheap to
/// clone. Dropping the last clone drops its events, and rejects the connect requests among them. It needs no
/// arming, as a [`CompletionChannel`](crate::verbs::CompletionChannel#arm-poll-wait) does.
///
/// It holds [`ContextLimits::max_cm_events`](super::super::ContextLimits::max_cm_events) events. Further
/// events are [lost](Self::lost): no engine waits for a reader. Events of new connections may fill three
/// quarters of it only, so that they do not displace the events of existing ones.
#[derive(Clone)]
pub struct EventChannel {
    pub(super) shared: Arc<ChannelShared>,
}

pub(super) struct ChannelShared {
    events: ArrayQueue<QueuedEvent>,
    lost: AtomicU64,
    notifier: Notifier,
}

impl ChannelShared {
    /// Adds an event. If there is no space, the event is counted as lost, and a lost connect request is
    /// rejected when its identifier is dropped with it.
    fn push(&self, event: QueuedEvent) {
        let (waiting, room) = (self.events.len(), self.events.capacity());
        let crowded = event.listener.is_some() && waiting >= room - room / 4;
        if crowded || self.events.push(event).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            self.notifier.notify();
        }
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
        let (events, notifier) = (ArrayQueue::new(limit), Notifier::new()?);
        Ok(Self { shared: Arc::new(ChannelShared { events, lost: AtomicU64::new(0), notifier }) })
    }

    /// Whether no event waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.shared.events.is_empty()
    }

    /// The oldest event, without waiting. A program that polls its engine itself polls the engine first.
    pub fn poll(&self) -> Option<CmEvent> {
        let ChannelShared { events, notifier, .. } = &*self.shared;
        // A pop of an empty queue has a fence, and this is called in each poll of a shared engine.
        let event = if events.is_empty() { None } else { events.pop() };
        // Reading this private descriptor can only fail because it is empty, which is no error here.
        let settled = notifier.settle(event.is_some(), || events.is_empty());
        debug_assert!(settled.is_ok());
        let QueuedEvent { id, listener, kind } = event?;
        Some(CmEvent { id, listener: listener.map(|listener| listener.handle()), kind })
    }

    /// The oldest event; waits for one up to `timeout`. Use it only where an engine runs in a thread. It may
    /// return `None` earlier: after a signal, or when another thread took the event.
    ///
    /// # Errors
    /// An error of the system call.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<CmEvent>> {
        if let Some(event) = self.poll() {
            return Ok(Some(event));
        }
        self.shared.notifier.wait(Some(timeout))?;
        Ok(self.poll())
    }

    /// Events lost since the channel was created.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// The number of events that wait, and the maximum.
    pub fn usage(&self) -> (usize, usize) {
        (self.shared.events.len(), self.shared.events.capacity())
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
