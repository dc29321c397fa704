//! The events of connections, and the task that passes each event to its connection or listener.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use iwarp::verbs::{CmEvent, CmEventKind, CmId, ConnectionError, EventChannel};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{Notify, watch};
use tokio::task::yield_now;

use crate::error::{Error, Result};

/// The parameters of a connection that is established, or that this side has accepted.
#[derive(Debug, Default)]
pub(crate) struct Established {
    pub(crate) private_data: Box<[u8]>,
    pub(crate) ib_semantics: bool,
    pub(crate) addresses: Option<(SocketAddr, SocketAddr)>,
}

/// The phase of a connection's life.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    /// No event has arrived yet.
    Starting,
    Established(Arc<Established>),
    /// The peer has rejected the connection, with this private data.
    Rejected(Box<[u8]>),
    /// The connection was not established, or has ended. `None` means that it was closed gracefully.
    Ended(Option<ConnectionError>),
}

impl Phase {
    /// Returns the error of a connection that was not established, or has ended.
    pub(crate) fn error(&self) -> Error {
        match self {
            Self::Rejected(private_data) => Error::Rejected { private_data: private_data.clone() },
            Self::Ended(Some(error)) => Error::Connection(*error),
            Self::Starting | Self::Established(_) | Self::Ended(None) => Error::Closed,
        }
    }
}

/// The receiver of an identifier's events.
#[derive(Clone)]
pub(crate) enum Route {
    Connection(watch::Sender<Phase>),
    Listener(Arc<Requests>),
    /// The identifier is a request that waits at this listener.
    Request(Arc<Requests>),
}

/// The requests that wait at a listener, and errors of the listener. If a peer has gone, its request is
/// removed, so the backlog bounds the number of requests.
#[derive(Default)]
pub(crate) struct Requests {
    waiting: Mutex<Waiting>,
    arrived: Notify,
}

#[derive(Default)]
struct Waiting {
    events: VecDeque<CmEvent>,
    is_closed: bool,
}

impl Requests {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().expect("no holder of this lock panics")
    }

    /// Adds a request, or an error of the listener. Returns `false` if the listener was dropped.
    fn push(&self, event: CmEvent) -> bool {
        let mut waiting = self.waiting();
        if waiting.is_closed {
            return false;
        }
        waiting.events.push_back(event);
        drop(waiting);
        self.arrived.notify_one();
        true
    }

    fn remove(&self, id: &CmId) {
        let mut waiting = self.waiting();
        let at = waiting.events.iter().position(|event| event.id == *id);
        let removed = at.and_then(|at| waiting.events.remove(at));
        drop(waiting);
        drop(removed);
    }

    /// Removes and returns the oldest event. Returns an error if there is no event and the task that delivers
    /// events has ended, and `None` if the caller has to wait.
    fn take(&self) -> Option<Result<CmEvent>> {
        let mut waiting = self.waiting();
        let event = waiting.events.pop_front();
        let is_closed = waiting.is_closed;
        if is_closed || !waiting.events.is_empty() {
            // Another task may wait as well. Several calls of `notify_one` may have left only one permit.
            self.arrived.notify_one();
        }
        event.map(Ok).or_else(|| is_closed.then(|| Err(shut_down())))
    }

    /// Called when the task that delivers events ends: waiting calls of [`next`](Self::next) return.
    fn end(&self) {
        self.waiting().is_closed = true;
        self.arrived.notify_one();
    }

    /// Stops accepting requests. Returns the waiting requests.
    pub(crate) fn close(&self) -> VecDeque<CmEvent> {
        let mut waiting = self.waiting();
        waiting.is_closed = true;
        std::mem::take(&mut waiting.events)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.waiting().events.len()
    }

    /// Waits until there is a request or an error, and returns the oldest one.
    ///
    /// # Errors
    /// [`Error::System`] if the task that delivers events has ended.
    pub(crate) async fn next(&self) -> Result<CmEvent> {
        loop {
            if let Some(taken) = self.take() {
                return taken;
            }
            self.arrived.notified().await;
        }
    }
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

/// Lets tokio's reactor watch a descriptor.
#[allow(unsafe_code, reason = "tokio asks for a promise about the descriptor")]
pub(crate) fn register(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the `OwnedFd` keeps its descriptor open until it is dropped, and the `AsyncFd` owns it. No call
    // replaces the descriptor.
    let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    fd.map_err(io::Error::from)
}

/// The receivers of events. Wakers are called without the lock, since a waker runs code of an async runtime.
pub(crate) struct Routes(Mutex<Table>);

/// The receivers by identifier; `None` once the task that delivers events has ended.
type Table = Option<HashMap<CmId, Route>>;

impl Default for Routes {
    fn default() -> Self {
        Self(Mutex::new(Some(HashMap::new())))
    }
}

impl Routes {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().expect("no holder of this lock panics")
    }

    /// Makes `route` receive the events of `id`.
    ///
    /// # Errors
    /// [`Error::System`] if the task that delivers events has ended.
    pub(crate) fn add(&self, id: &CmId, route: Route) -> Result<()> {
        let mut table = self.table();
        let Some(routes) = &mut *table else { return Err(shut_down()) };
        let before = routes.insert(id.clone(), route);
        drop(table);
        drop(before);
        Ok(())
    }

    pub(crate) fn remove(&self, id: &CmId) {
        let removed = self.table().as_mut().and_then(|routes| routes.remove(id));
        // The value is dropped without the lock, since it may be the last handle of the identifier.
        drop(removed);
    }

    /// Removes a listener, and the requests that wait at the listener. These requests are rejected.
    pub(crate) fn remove_listener(&self, id: &CmId, requests: &Requests) {
        self.remove(id);
        for event in requests.close() {
            self.remove(&event.id);
        }
    }

    fn deliver(&self, event: CmEvent) {
        let key = match &event.kind {
            CmEventKind::ConnectRequest { .. } => event.listener.as_ref().unwrap_or(&event.id),
            _ => &event.id,
        };
        // A dropped connection receives no events. A request without a listener is dropped here, which
        // rejects it.
        let Some(route) = self.table().as_ref().and_then(|routes| routes.get(key).cloned()) else { return };
        match route {
            Route::Listener(requests) => {
                let id = event.id.clone();
                let is_request = matches!(event.kind, CmEventKind::ConnectRequest { .. });
                let is_added = !is_request || self.add(&id, Route::Request(Arc::clone(&requests))).is_ok();
                if is_added && !requests.push(event) {
                    self.remove(&id);
                }
            }
            // The connection has ended before a task received the request.
            Route::Request(requests) => {
                requests.remove(&event.id);
                self.remove(&event.id);
            }
            Route::Connection(phase) => {
                let Some(next) = next_phase(&event) else { return };
                let is_over = matches!(next, Phase::Rejected(_) | Phase::Ended(_));
                phase.send_replace(next);
                if is_over {
                    self.remove(&event.id);
                }
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table().as_ref().map_or(0, HashMap::len)
    }

    #[cfg(test)]
    pub(crate) fn is_locked(&self) -> bool {
        self.0.try_lock().is_err()
    }

    /// Called when the task that delivers events ends. Calls that wait for an event then return an error. For
    /// a connection this happens because its sender is dropped.
    fn close(&self) {
        let routes = self.table().take();
        for route in routes.into_iter().flat_map(HashMap::into_values) {
            if let Route::Listener(requests) = route {
                requests.end();
            }
        }
    }
}

/// The error of calls after the end of the task that delivers events.
fn shut_down() -> Error {
    io::Error::other("the runtime in which the endpoint was made has shut down").into()
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
        // The other events belong to streams without MPA, which this crate does not use.
        _ => return None,
    })
}

/// Maximum number of events that are delivered before other tasks run.
const BATCH: usize = 256;

/// Delivers events until the task is aborted, or its runtime shuts down.
pub(crate) async fn deliver_all(channel: Arc<Channel>, routes: Arc<Routes>) {
    struct Closing(Arc<Routes>);

    impl Drop for Closing {
        fn drop(&mut self) {
            self.0.close();
        }
    }

    let Closing(routes) = &Closing(routes);
    // An error means that the runtime shuts down.
    while let Ok(mut ready) = channel.0.readable().await {
        let mut count = 0;
        while let Some(event) = channel.events().poll() {
            routes.deliver(event);
            count += 1;
            if count % BATCH == 0 {
                yield_now().await;
            }
        }
        ready.clear_ready();
    }
}
