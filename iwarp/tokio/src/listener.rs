//! Listeners, and the requests that they receive.

use std::net::SocketAddr;
use std::sync::Arc;

use iwarp::verbs::{CmEvent, CmEventKind, CmId, ListenOptions};
use tokio::sync::{Mutex, mpsc, watch};

use crate::connection::{Connection, Unconnected};
use crate::endpoint::{Endpoint, Shared};
use crate::error::{Error, Result};
use crate::events::{Phase, Route};
use crate::options::ConnectionOptions;

/// Listens on a port of all addresses of an endpoint, until it is dropped.
pub struct Listener {
    id: CmId,
    requests: Mutex<mpsc::UnboundedReceiver<CmEvent>>,
    endpoint: Arc<Shared>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.endpoint.routes.remove(&self.id);
        self.id.disconnect();
    }
}

impl Listener {
    /// Listens on a port.
    ///
    /// # Errors
    /// [`Error::Verbs`], for instance for a port that is in use.
    pub fn bind(endpoint: &Endpoint, port: u16) -> Result<Self> {
        Self::bind_with(endpoint, &ListenOptions::new(port))
    }

    /// The same, with all options: the backlog, limits for each address, and timeouts.
    ///
    /// # Errors
    /// [`Error::Verbs`].
    pub fn bind_with(endpoint: &Endpoint, options: &ListenOptions) -> Result<Self> {
        let shared = &endpoint.shared;
        let id = shared.context.create_id(shared.event_channel());
        // The backlog of the listener bounds what waits here.
        let (sender, requests) = mpsc::unbounded_channel();
        shared.routes.add(&id, Route::Listener(sender));
        let listener = Self { id, requests: Mutex::new(requests), endpoint: Arc::clone(shared) };
        listener.id.listen_with(options)?;
        Ok(listener)
    }

    /// Accepts the next connection with default options. A request whose connection is not made is passed
    /// over: the peer has gone meanwhile. If the future is dropped, the connection that it was making is
    /// reset; [`request`](Self::request) loses none.
    ///
    /// # Errors
    /// [`Error::Connection`] if the engine cannot listen, [`Error::Verbs`] at a limit of the context.
    pub async fn accept(&self) -> Result<Connection> {
        loop {
            match self.request().await?.accept(&ConnectionOptions::default()).await {
                Err(Error::Connection(_) | Error::Closed) => {}
                made => return made,
            }
        }
    }

    /// The next request for a connection.
    ///
    /// # Errors
    /// [`Error::Connection`] if the engine cannot listen.
    pub async fn request(&self) -> Result<Request> {
        self.endpoint.hand_over();
        let event = self.requests.lock().await.recv().await.ok_or(Error::Closed)?;
        match event.kind {
            CmEventKind::ConnectRequest { private_data, remote, .. } => {
                let endpoint = Arc::clone(&self.endpoint);
                Ok(Request { id: event.id, remote, private_data, endpoint })
            }
            CmEventKind::ConnectError { error, .. } => Err(Error::Connection(error)),
            // Of streams before MPA, which such a listener does not have.
            _ => Err(Error::Closed),
        }
    }
}

/// A peer that wants a connection. Dropping it rejects the peer.
pub struct Request {
    id: CmId,
    remote: SocketAddr,
    private_data: Box<[u8]>,
    endpoint: Arc<Shared>,
}

impl Request {
    /// The peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.remote
    }

    /// The peer's private data.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Accepts it.
    ///
    /// # Errors
    /// [`Error::Connection`] if the peer has gone, [`Error::Verbs`] at a limit of the context or if the
    /// private data is too long.
    pub async fn accept(self, options: &ConnectionOptions) -> Result<Connection> {
        let Self { id, endpoint, .. } = self;
        let unconnected = Unconnected::new(&endpoint, options)?;
        let (sender, phase) = watch::channel(Phase::Starting);
        endpoint.routes.add(&id, Route::Connection(sender));
        if let Err(error) = id.accept(&unconnected.qp, &options.param) {
            endpoint.routes.remove(&id);
            return Err(error.into());
        }
        unconnected.established(&endpoint, id, phase).await
    }

    /// Rejects it, with up to 508 bytes of private data.
    ///
    /// # Errors
    /// [`Error::Verbs`] for more.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        Ok(self.id.reject(private_data)?)
    }
}
