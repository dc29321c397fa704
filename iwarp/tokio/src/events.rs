//! The events of connections, and the task that hands each to its connection or listener.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use iwarp::verbs::{CmEvent, CmEventKind, CmId, ConnectionError, EventChannel};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{mpsc, watch};

use crate::error::{Error, Result};

/// What an established connection was agreed on.
#[derive(Debug)]
pub(crate) struct Established {
    pub(crate) private_data: Box<[u8]>,
    pub(crate) ib_semantics: bool,
    pub(crate) addresses: Option<(SocketAddr, SocketAddr)>,
}

/// Where a connection is in its life.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// Nothing was heard yet.
    Starting,
    Established(Arc<Established>),
    /// The peer has rejected it, with this private data.
    Rejected(Box<[u8]>),
    /// It could not be made, or is over. `None`: it was closed gracefully.
    Ended(Option<ConnectionError>),
}

impl Phase {
    /// The error of a connection that has not been made, or is over.
    pub(crate) fn error(&self) -> Error {
        match self {
            Self::Rejected(private_data) => Error::Rejected { private_data: private_data.clone() },
            Self::Ended(Some(error)) => Error::Connection(*error),
            Self::Starting | Self::Established(_) | Self::Ended(None) => Error::Closed,
        }
    }
}

/// Who waits for the events of an identifier.
pub(crate) enum Route {
    Connection(watch::Sender<Phase>),
    Listener(mpsc::UnboundedSender<CmEvent>),
}

/// The channel of an endpoint, which tokio's reactor watches.
pub(crate) struct Channel(AsyncFd<EventChannel>);

impl Channel {
    #[allow(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
    pub(crate) fn register(events: EventChannel) -> Result<Arc<Self>> {
        // SAFETY: the descriptor is that of an eventfd, which the channel owns until it is dropped, and the
        // `AsyncFd` owns the channel. No call replaces the descriptor.
        let fd = unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) };
        Ok(Arc::new(Self(fd.map_err(io::Error::from)?)))
    }

    pub(crate) fn events(&self) -> &EventChannel {
        self.0.get_ref()
    }
}

#[derive(Default)]
pub(crate) struct Routes(Mutex<HashMap<CmId, Route>>);

impl Routes {
    fn table(&self) -> MutexGuard<'_, HashMap<CmId, Route>> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Hands the events of `id` to `route`.
    pub(crate) fn add(&self, id: &CmId, route: Route) {
        self.table().insert(id.clone(), route);
    }

    pub(crate) fn remove(&self, id: &CmId) {
        let removed = self.table().remove(id);
        // Without the lock: it may be the last handle of the identifier.
        drop(removed);
    }

    fn deliver(&self, event: CmEvent) {
        let mut table = self.table();
        let key = match &event.kind {
            CmEventKind::ConnectRequest { .. } => event.listener.as_ref().unwrap_or(&event.id),
            _ => &event.id,
        };
        // A connection that was dropped wants none. A request without a listener is rejected as it is
        // dropped here.
        match table.get(key) {
            None => {}
            Some(Route::Listener(requests)) => {
                // Fails if the listener is being dropped.
                let _ = requests.send(event.clone());
            }
            Some(Route::Connection(phase)) => {
                let Some(next) = next_phase(&event) else { return };
                let over = matches!(next, Phase::Rejected(_) | Phase::Ended(_));
                phase.send_replace(next);
                let ended = if over { table.remove(key) } else { None };
                drop(table);
                drop(ended);
            }
        }
    }
}

fn next_phase(event: &CmEvent) -> Option<Phase> {
    Some(match &event.kind {
        CmEventKind::Established { private_data, ib_semantics, .. } => {
            Phase::Established(Arc::new(Established {
                private_data: private_data.clone(),
                ib_semantics: *ib_semantics,
                addresses: event.id.addresses(),
            }))
        }
        CmEventKind::Rejected { private_data, .. } => Phase::Rejected(private_data.clone()),
        CmEventKind::ConnectError { error, .. } => Phase::Ended(Some(*error)),
        CmEventKind::Disconnected { error, .. } => Phase::Ended(*error),
        // Of a stream before MPA, which no connection here has.
        _ => return None,
    })
}

/// Hands out events until the task is aborted.
pub(crate) async fn deliver_all(channel: Arc<Channel>, routes: Arc<Routes>) {
    // An error means that the runtime shuts down.
    while let Ok(mut ready) = channel.0.readable().await {
        while let Some(event) = channel.events().poll() {
            routes.deliver(event);
        }
        ready.clear_ready();
    }
}
