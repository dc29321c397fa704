//! Listeners, and the requests that they receive.

use std::net::SocketAddr;
use std::sync::Arc;

use iwarp::verbs::{CmEventKind, CmId, ListenOptions};
use tokio::sync::watch;

use crate::connection::{Connection, Unconnected};
use crate::endpoint::{Endpoint, Shared};
use crate::error::{Error, Result};
use crate::events::{Established, Phase, Requests, Route};
use crate::options::ConnectionOptions;

/// Listens on a port of all addresses of an endpoint, until this value is dropped.
pub struct Listener {
    id: CmId,
    requests: Arc<Requests>,
    endpoint: Arc<Shared>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.endpoint.routes.remove_listener(&self.id, &self.requests);
        self.id.disconnect();
    }
}

impl Listener {
    /// Listens on a port.
    ///
    /// # Errors
    /// [`Error::Verbs`], for instance if the port is in use.
    pub fn bind(endpoint: &Endpoint, port: u16) -> Result<Self> {
        Self::bind_with(endpoint, &ListenOptions::new(port))
    }

    /// As [`bind`](Self::bind), with all options: the backlog, limits for each address, and timeouts.
    ///
    /// # Errors
    /// [`Error::Verbs`] if the port is in use or an option is out of range. [`Error::System`] if the runtime
    /// of the endpoint has shut down.
    pub fn bind_with(endpoint: &Endpoint, options: &ListenOptions) -> Result<Self> {
        let shared = &endpoint.shared;
        let id = shared.context.create_id(shared.event_channel());
        let requests = Arc::<Requests>::default();
        shared.routes.add(&id, Route::Listener(Arc::clone(&requests)))?;
        let listener = Self { id, requests, endpoint: Arc::clone(shared) };
        listener.id.listen_with(options)?;
        Ok(listener)
    }

    /// Accepts the next connection with default options, as [`Request::accept`] does. A request is skipped if
    /// its peer has gone. If the future is dropped, no connection is lost.
    ///
    /// # Errors
    /// [`Error::Connection`] if the engine cannot listen. [`Error::Verbs`] if a limit of the context is
    /// reached. [`Error::System`] if the runtime of the endpoint has shut down.
    pub async fn accept(&self) -> Result<Connection> {
        loop {
            match self.request().await?.accept(&ConnectionOptions::default()).await {
                Err(Error::Connection(_)) => {}
                made => return made,
            }
        }
    }

    /// Waits for the next request for a connection, and returns it.
    ///
    /// # Errors
    /// [`Error::Connection`] if the engine cannot listen. [`Error::System`] if the runtime of the endpoint
    /// has shut down.
    pub async fn request(&self) -> Result<Request> {
        self.endpoint.hand_over();
        let event = self.requests.next().await?;
        match event.kind {
            CmEventKind::ConnectRequest { private_data, remote, ib_semantics, .. } => {
                self.endpoint.routes.remove(&event.id);
                let endpoint = Arc::clone(&self.endpoint);
                Ok(Request { id: event.id, remote, private_data, ib_semantics, endpoint })
            }
            CmEventKind::ConnectError { error, .. } => Err(Error::Connection(error)),
            // The other events belong to streams without MPA, which this listener does not have.
            _ => Err(Error::Closed),
        }
    }
}

#[cfg(test)]
impl Listener {
    pub(crate) fn waiting(&self) -> usize {
        self.requests.len()
    }

    /// Stops accepting requests, as a drop does, but keeps the listener's route.
    pub(crate) fn close_requests(&self) {
        drop(self.requests.close());
    }
}

/// A peer's request for a connection. Dropping the request rejects the peer.
pub struct Request {
    id: CmId,
    remote: SocketAddr,
    private_data: Box<[u8]>,
    ib_semantics: bool,
    endpoint: Arc<Shared>,
}

impl Request {
    /// Returns the peer's address.
    pub fn peer_addr(&self) -> SocketAddr {
        self.remote
    }

    /// Returns the peer's private data.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Accepts the request. This call does not wait for the peer, so a silent peer does not delay a loop that
    /// accepts one peer after another. Requests on the connection wait until the peer is ready. If the peer
    /// uses this crate, the wait is about one round trip. If the peer is not ready within
    /// [`timeout`](ConnectionOptions::timeout), the connection ends ([`Connection::established`]).
    ///
    /// # Errors
    /// [`Error::Connection`] if the peer has gone. [`Error::Verbs`] if a limit of the context is reached or
    /// the private data is too long. [`Error::System`] if the runtime of the endpoint has shut down.
    pub async fn accept(self, options: &ConnectionOptions) -> Result<Connection> {
        let Self { id, endpoint, private_data, ib_semantics, .. } = self;
        let unconnected = Unconnected::new(&endpoint, options)?;
        let (sender, phase) = watch::channel(Phase::Starting);
        endpoint.routes.add(&id, Route::Connection(sender))?;
        if let Err(error) = id.accept(&unconnected.qp, &options.param) {
            endpoint.routes.remove(&id);
            // If the engine has already ended the connection, the error is the cause of the end.
            return Err(id.cause().map_or(error.into(), Error::Connection));
        }
        let ib_semantics = ib_semantics && options.param.ib_semantics;
        let agreed = Established { private_data, ib_semantics, addresses: id.addresses() };
        Ok(unconnected.accepted(&endpoint, id, phase, agreed))
    }

    /// Rejects the request, with at most 508 bytes of private data.
    ///
    /// # Errors
    /// [`Error::Verbs`] if there is more private data.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        Ok(self.id.reject(private_data)?)
    }
}
