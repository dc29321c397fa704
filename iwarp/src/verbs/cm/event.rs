//! Events of identifiers, and the channel they wait in.

use std::os::fd::{AsFd, BorrowedFd};
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

/// What happened to an identifier.
#[derive(Clone, Debug)]
pub enum CmEventKind {
    /// A peer asks a listener for a connection; `CmEvent::id` is a new identifier to
    /// [`accept`](CmId::accept) or [`reject`](CmId::reject). Or it asks an identifier that
    /// [`start_responder`](CmId::start_responder) was called on.
    ConnectRequest {
        /// The peer's private data.
        private_data: Box<[u8]>,
        /// The peer's address.
        remote: SocketAddr,
        /// Reads the peer can serve; `None`: it did not say.
        peer_ird: Option<u16>,
        /// Reads the peer wants outstanding.
        peer_ord: Option<u16>,
        /// MPA revision of the Request, 1 or 2.
        revision: u8,
        /// The peer will send an RTR, so that we may speak first once that has come.
        peer_to_peer: bool,
        /// The peer asks for markers.
        markers: bool,
    },
    /// The queue pair is in `Rts`.
    Established {
        /// The peer's private data (for the connecting side, of its Reply).
        private_data: Box<[u8]>,
        /// Reads of ours that may be outstanding.
        ord: u16,
        /// Reads of the peer that we serve.
        ird: u16,
        /// The peer's own words on depths, model and RTR; `None`: it did not say.
        peer: Option<Enhanced>,
        /// MPA revision of the peer's frame.
        revision: u8,
        /// The peer took no Request of revision 2, and this is the second try with revision 1
        /// ([`ConnParam::fallback`](super::ConnParam::fallback)): depths and RTR were not negotiated.
        fell_back: bool,
        /// Whether we send markers, and whether we receive them.
        markers: (bool, bool),
        /// Whether work may be posted at once. A responder to a peer without RTR holds back what is posted
        /// until the first FPDU of the peer (RFC 5044 section 7.1.2).
        ready: bool,
    },
    /// The peer rejected. A connection that began in streaming mode is there again.
    Rejected {
        /// Its private data.
        private_data: Box<[u8]>,
        /// Its depths: its ORD is what it would need. `None`: it did not say.
        peer: Option<Enhanced>,
    },
    /// The connection could not be made.
    ConnectError {
        /// Why.
        error: ConnectionError,
        /// What the peer's Reply said, where one came.
        peer: Option<Enhanced>,
    },
    /// An established connection ended. Everything posted has been flushed. `None`: gracefully.
    Disconnected {
        /// Why, when not graceful.
        error: Option<ConnectionError>,
        /// The Terminate that was sent or received, with all it said.
        terminate: Option<Arc<TerminateReport>>,
    },
    /// A connection is there in streaming mode: of ours, or (`CmEvent::listener`) one that a listener
    /// accepted.
    StreamEstablished {
        /// The peer's address.
        remote: SocketAddr,
    },
    /// Bytes wait for [`recv_stream`](CmId::recv_stream), or the peer has closed; not said again until all
    /// was read.
    StreamReadable,
    /// [`send_stream`](CmId::send_stream), which had taken less than all, has room again.
    StreamWritable,
}

/// An event and whose it is.
#[derive(Clone, Debug)]
pub struct CmEvent {
    /// The identifier it is about.
    pub id: CmId,
    /// The listener, for a connection of its.
    pub listener: Option<CmId>,
    /// What happened.
    pub kind: CmEventKind,
}

/// An event that waits. Its listener is not kept listening by it.
struct Waiting {
    id: CmId,
    listener: Option<Arc<CmShared>>,
    kind: CmEventKind,
}

/// Where identifiers announce themselves. Readable while events wait. Cheap to clone; when the last clone is
/// dropped its events go, and connect requests among them are rejected.
///
/// It holds [`ContextLimits::max_cm_events`](super::super::ContextLimits::max_cm_events) events. Beyond that
/// they are [lost](Self::lost): nothing waits for a reader. New connections find room in three quarters of it
/// only, so that they do not drive out what is told of those that are there.
#[derive(Clone)]
pub struct EventChannel {
    pub(super) shared: Arc<ChannelShared>,
}

pub(super) struct ChannelShared {
    events: ArrayQueue<Waiting>,
    lost: AtomicU64,
    notifier: Notifier,
}

impl ChannelShared {
    /// Adds an event, or counts it as lost. A connect request that is lost is rejected: its identifier goes
    /// with it.
    fn push(&self, event: Waiting) {
        let (waiting, room) = (self.events.len(), self.events.capacity());
        let crowded = event.listener.is_some() && waiting >= room - room / 4;
        if crowded || self.events.push(event).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        } else {
            self.notifier.notify();
        }
    }
}

/// Tells `channel`, if anybody still has it.
pub(super) fn announce(
    channel: &Weak<ChannelShared>,
    id: CmId,
    listener: Option<Arc<CmShared>>,
    kind: CmEventKind,
) {
    if let Some(channel) = channel.upgrade() {
        channel.push(Waiting { id, listener, kind });
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

    /// The oldest event, without waiting. With an inline engine, poll the engine and then this.
    pub fn poll(&self) -> Option<CmEvent> {
        let ChannelShared { events, notifier, .. } = &*self.shared;
        let event = events.pop();
        // A private descriptor has nothing else to fail with than "nothing there", which is what is wanted.
        let settled = notifier.settle(event.is_some(), || events.is_empty());
        debug_assert!(settled.is_ok());
        let Waiting { id, listener, kind } = event?;
        Some(CmEvent { id, listener: listener.map(|listener| listener.handle()), kind })
    }

    /// The oldest event, waiting for it up to `timeout`. Only where an engine thread runs. `None` may come
    /// earlier: after a signal, or when another thread has taken the event.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, timeout: Duration) -> io::Result<Option<CmEvent>> {
        if let Some(event) = self.poll() {
            return Ok(Some(event));
        }
        self.shared.notifier.wait(Some(timeout))?;
        Ok(self.poll())
    }

    /// Events that found no room since the channel was made.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Events that wait now, and how many may.
    pub fn usage(&self) -> (usize, usize) {
        (self.shared.events.len(), self.shared.events.capacity())
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.notifier.as_fd()
    }
}

impl fmt::Debug for EventChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").field("usage", &self.usage()).field("lost", &self.lost()).finish()
    }
}
