//! A connection, and its operations.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use iwarp::memory::Access;
use iwarp::verbs::{
    AtomicOp, CmId, ConnectionError, CqEventHandler, CqOptions, MAX_INLINE, QpInit, QueuePair, RemoteAddr,
    SendFlags, SendOp, SendRequest, VerbsError, WcStatus, cqe_for,
};
use tokio::net::ToSocketAddrs;
use tokio::sync::watch;

use crate::endpoint::{Endpoint, Shared};
use crate::error::{Error, Result};
use crate::events::{Established, Phase, Route};
use crate::options::ConnectionOptions;
use crate::receives::Receives;
use crate::region::{Region, RemoteRegion, Slice};
use crate::router::{Pinned, Received, Router};
use crate::served::Served;

/// A connection. Clones refer to the same connection, and any task may use it at any time. Dropping the last
/// clone resets the connection; [`close`](Self::close) ends it gracefully.
///
/// # Order
///
/// Requests take effect at the peer in the order in which they were posted. Once the peer is ready, and while
/// fewer than [`send_depth`](ConnectionOptions::send_depth) requests are in flight, this is the order in
/// which their futures are first polled. To make a request begin only after a Read or an atomic is complete,
/// await the Read or atomic first.
///
/// # Dropped futures
///
/// A future has no effect if it is dropped before its first poll, or while it waits for the peer to be ready
/// or for a place in the send queue. A posted request continues even if its future is dropped. Until the
/// request completes, its memory stays registered and may be read or written. If the request held the last
/// handle of its memory, that memory is deregistered by the next request of the connection, or when the
/// connection is dropped.
#[derive(Clone)]
pub struct Connection {
    shared: Arc<ConnectionShared>,
}

struct ConnectionShared {
    id: CmId,
    qp: Option<QueuePair>,
    router: Arc<Router>,
    phase: watch::Receiver<Phase>,
    is_closed_here: AtomicBool,
    /// Whether the peer is ready for requests.
    is_established: AtomicBool,
    agreed: Arc<Established>,
    receives: Receives,
    stream_bytes: usize,
    /// The index of the connection's engine.
    engine: usize,
    endpoint: Arc<Shared>,
}

impl Drop for ConnectionShared {
    fn drop(&mut self) {
        self.endpoint.routes.remove(&self.id);
        // Dropping the last handle of the queue pair makes the engine end the connection and all requests in
        // flight, unless the connection has ended already. Then `stop` releases the memory of the requests,
        // and waits until no engine uses this memory.
        drop(self.qp.take());
        self.router.stop();
    }
}

/// A queue pair that is not connected yet, with its receives posted.
pub(crate) struct Unconnected {
    pub(crate) qp: QueuePair,
    router: Arc<Router>,
    receives: Receives,
    stream_bytes: usize,
}

impl Unconnected {
    pub(crate) fn new(endpoint: &Shared, options: &ConnectionOptions) -> Result<Self> {
        let ConnectionOptions { send_depth, recv_depth, message_bytes, stream_bytes, .. } = *options;
        // At least one receive is needed, since a flushed receive reports the end of the connection.
        let recv_depth = recv_depth.max(1);
        let router = Router::new(send_depth);
        let to = Arc::clone(&router);
        let handler: CqEventHandler = Arc::new(move |_| to.drain());
        let cq = endpoint.context.create_cq_with(&CqOptions {
            handler: Some(&handler),
            ..CqOptions::new(cqe_for([send_depth, recv_depth]))
        })?;
        router.start(&cq)?;
        let init = QpInit { max_send_wr: send_depth, max_recv_wr: recv_depth, ..QpInit::new(&cq) };
        let qp = endpoint.pd.create_qp(&init)?;
        let receives = Receives::new(&endpoint.pd, router.tag, recv_depth, message_bytes)?;
        for buffer in 0..recv_depth {
            qp.post_recv(&receives.request(buffer))?;
        }
        Ok(Self { qp, router, receives, stream_bytes })
    }

    /// Waits until the connection of `id` is established. `phase` receives the connection's events.
    async fn connected(
        self,
        endpoint: &Arc<Shared>,
        id: CmId,
        phase: watch::Receiver<Phase>,
    ) -> Result<Connection> {
        // The connection is created first, so that dropping the future ends the connection.
        let mut shared = self.connection(endpoint, id, phase, Arc::default());
        shared.agreed = shared.established().await?;
        shared.engine = shared.id.engine().unwrap_or_default();
        Ok(Connection { shared: Arc::new(shared) })
    }

    /// Returns the connection of `id`, which was accepted. `phase` receives the connection's events.
    pub(crate) fn accepted(
        self,
        endpoint: &Arc<Shared>,
        id: CmId,
        phase: watch::Receiver<Phase>,
        agreed: Established,
    ) -> Connection {
        let mut shared = self.connection(endpoint, id, phase, Arc::new(agreed));
        shared.engine = shared.id.engine().unwrap_or_default();
        endpoint.hand_over();
        Connection { shared: Arc::new(shared) }
    }

    fn connection(
        self,
        endpoint: &Arc<Shared>,
        id: CmId,
        phase: watch::Receiver<Phase>,
        agreed: Arc<Established>,
    ) -> ConnectionShared {
        ConnectionShared {
            id,
            qp: Some(self.qp),
            router: self.router,
            phase,
            is_closed_here: AtomicBool::new(false),
            is_established: AtomicBool::new(false),
            agreed,
            receives: self.receives,
            stream_bytes: self.stream_bytes,
            engine: 0,
            endpoint: Arc::clone(endpoint),
        }
    }
}

/// A message of the peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The bytes of the message.
    pub data: Vec<u8>,
    /// Immediate Data of the peer ([`Connection::write_immediate`]). A message with Immediate Data has no
    /// bytes.
    pub immediate: Option<[u8; 8]>,
    /// The STag that the message has invalidated.
    pub invalidated: Option<u32>,
}

impl Connection {
    /// Connects to a listener: an address with a port, or a name that the system resolves
    /// (`"server:7471"`).
    ///
    /// # Errors
    /// [`Error::Name`] if the name has no address that the endpoint can reach. [`Error::Rejected`] if the
    /// peer rejects the connection. [`Error::Connection`] if the connection cannot be made for another
    /// reason. [`Error::Verbs`] if a limit of the endpoint is reached. [`Error::System`] for an error of the
    /// system.
    pub async fn connect(endpoint: &Endpoint, to: impl ToSocketAddrs) -> Result<Self> {
        Self::connect_with(endpoint, to, &ConnectionOptions::default()).await
    }

    /// As [`connect`](Self::connect), with all options.
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect), and [`Error::Verbs`] if an option is out of range.
    pub async fn connect_with(
        endpoint: &Endpoint,
        to: impl ToSocketAddrs,
        options: &ConnectionOptions,
    ) -> Result<Self> {
        let remote = endpoint.resolve(to).await?;
        let shared = &endpoint.shared;
        let unconnected = Unconnected::new(shared, options)?;
        let id = shared.context.create_id(shared.event_channel());
        let (sender, phase) = watch::channel(Phase::Starting);
        shared.routes.add(&id, Route::Connection(sender))?;
        if let Err(error) = id.connect(&unconnected.qp, remote, &options.param) {
            shared.routes.remove(&id);
            return Err(error.into());
        }
        unconnected.connected(shared, id, phase).await
    }

    /// Returns the private data of the peer.
    pub fn private_data(&self) -> &[u8] {
        &self.shared.agreed.private_data
    }

    /// Returns our address.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        Some(self.shared.agreed.addresses?.0)
    }

    /// Returns the peer's address.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        Some(self.shared.agreed.addresses?.1)
    }

    /// Whether a Send waits for a buffer of the peer, and completes when the message is in that buffer
    /// ([`ConnParam::ib_semantics`](iwarp::verbs::ConnParam::ib_semantics)). If not, a Send completes when
    /// TCP has accepted the message, and a Send that finds no buffer at the peer ends the connection.
    pub fn ib_semantics(&self) -> bool {
        self.shared.agreed.ib_semantics
    }

    /// Waits until the peer is ready for requests. A connection from [`connect`](Self::connect) is already
    /// established. A connection from [`accept`](crate::Request::accept) is established once the peer has
    /// confirmed it. A program need not call this function before a request, since requests wait until the
    /// peer is ready.
    ///
    /// # Errors
    /// [`Error::Connection`] with the cause if the connection has ended. If the peer stayed silent, the cause
    /// is [`StartupTimeout`](ConnectionError::StartupTimeout). [`Error::Closed`] if the connection was closed
    /// gracefully, or the runtime of the endpoint has shut down.
    pub async fn established(&self) -> Result<()> {
        if self.shared.is_established.load(Ordering::Acquire) {
            return Ok(());
        }
        self.shared.established().await.map(drop)
    }

    /// Returns the connection's queue pair, for calls that this crate does not wrap. A program may post its
    /// own requests on the queue pair, with any `wr_id`. No future receives the completions of these
    /// requests. These requests use places of the send queue. While the queue is full, requests of this crate
    /// are refused ([`Error::Verbs`]), so make the queue deeper with
    /// [`send_depth`](ConnectionOptions::send_depth).
    pub fn queue_pair(&self) -> &QueuePair {
        self.shared.qp()
    }

    // ---- one-sided ----

    /// Writes `local` to the peer's memory `remote`, which must have the same length. With
    /// [`ib_semantics`](Self::ib_semantics), the call completes when the bytes are in that memory; otherwise
    /// it completes when TCP has accepted them.
    ///
    /// # Errors
    /// [`Error::Lengths`] if the lengths differ. [`Error::Connection`] if the connection has ended, for
    /// example because the peer refuses the request. [`Error::Closed`] if this side has closed or aborted the
    /// connection.
    pub async fn write(&self, remote: &RemoteRegion, local: impl Into<Slice>) -> Result<()> {
        let local = same_length(remote, local.into())?;
        let op = SendOp::Write { remote: remote.address() };
        self.transfer(op, local).await.map(drop)
    }

    /// Writes as [`write`](Self::write) does. Then the write completes a [`recv`](Self::recv) of the peer,
    /// which returns `immediate`.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub async fn write_immediate(
        &self,
        remote: &RemoteRegion,
        local: impl Into<Slice>,
        immediate: [u8; 8],
    ) -> Result<()> {
        let local = same_length(remote, local.into())?;
        let op = SendOp::WriteImmediate { remote: remote.address(), data: immediate };
        self.transfer(op, local).await.map(drop)
    }

    /// Reads memory of the peer into `local`, which must have the same length.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
    pub async fn read(&self, remote: &RemoteRegion, local: impl Into<Slice>) -> Result<()> {
        let local = same_length(remote, local.into())?;
        let op = SendOp::Read { remote: remote.address() };
        self.transfer(op, local).await.map(drop)
    }

    /// Writes bytes that need not be registered: this function copies the bytes.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write), and [`Error::TooLong`] if there are more bytes than
    /// [`message_bytes`](ConnectionOptions::message_bytes).
    pub async fn write_bytes(&self, remote: &RemoteRegion, bytes: &[u8]) -> Result<()> {
        lengths(remote.len, bytes.len() as u64)?;
        self.send_copy(SendOp::Write { remote: remote.address() }, bytes).await
    }

    /// Reads memory of the peer into a vector, through a buffer of the connection.
    ///
    /// # Errors
    /// The errors of [`write_bytes`](Self::write_bytes), except [`Error::Lengths`].
    pub async fn read_bytes(&self, remote: &RemoteRegion) -> Result<Vec<u8>> {
        let len = usize::try_from(remote.len).unwrap_or(usize::MAX);
        let mut bytes = vec![0; self.shared.check_length(len)?];
        self.fetch(SendOp::Read { remote: remote.address() }, &mut bytes).await?;
        Ok(bytes)
    }

    /// Adds `add` to an aligned 64-bit word of the peer, which is the first word of `remote`. Returns the
    /// previous value.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `remote` has fewer than eight bytes. [`Error::Connection`] if the connection
    /// has ended, for example because the peer refuses the request. [`Error::Closed`] if this side has closed
    /// or aborted the connection.
    pub async fn fetch_add(&self, remote: &RemoteRegion, add: u64) -> Result<u64> {
        self.atomic(remote, AtomicOp::FetchAdd { add, mask: 0 }).await
    }

    /// Sets an aligned 64-bit word of the peer to `swap` if its value is `compare`. Returns the previous
    /// value.
    ///
    /// # Errors
    /// The errors of [`fetch_add`](Self::fetch_add).
    pub async fn compare_swap(&self, remote: &RemoteRegion, compare: u64, swap: u64) -> Result<u64> {
        let (compare_mask, swap_mask) = (u64::MAX, u64::MAX);
        self.atomic(remote, AtomicOp::CmpSwap { compare, swap, compare_mask, swap_mask }).await
    }

    async fn atomic(&self, remote: &RemoteRegion, op: AtomicOp) -> Result<u64> {
        if remote.len < 8 {
            return Err(Error::OutOfRange { start: 0, end: 8, len: remote.len });
        }
        let RemoteAddr { addr, rkey } = remote.address();
        let mut word = [0; 8];
        self.fetch(SendOp::Atomic { remote: RemoteAddr { addr, rkey }, op }, &mut word).await?;
        Ok(u64::from_ne_bytes(word))
    }

    // ---- messages ----

    /// Sends a message. The maximum length of a message is the smaller of both peers'
    /// [`message_bytes`](ConnectionOptions::message_bytes). The bytes are copied.
    ///
    /// # Errors
    /// [`Error::TooLong`] if there are more bytes than this side's
    /// [`message_bytes`](ConnectionOptions::message_bytes). [`Error::Connection`] if the connection has
    /// ended, for example because the message is too long for the peer. [`Error::Closed`] if this side has
    /// closed or aborted the connection.
    pub async fn send(&self, bytes: &[u8]) -> Result<()> {
        self.send_copy(SendOp::Send, bytes).await
    }

    /// Sends registered bytes, which this crate does not copy.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send), except [`Error::TooLong`].
    pub async fn send_slice(&self, local: impl Into<Slice>) -> Result<()> {
        self.transfer(SendOp::Send, local.into()).await.map(drop)
    }

    /// Waits for the next message of the peer, and returns it.
    ///
    /// # Errors
    /// [`Error::Connection`] with the cause if the connection has ended and all messages were returned. After
    /// a graceful close by the peer, the cause is [`PeerClosed`](iwarp::verbs::ConnectionError::PeerClosed).
    /// [`Error::Closed`] if this side has closed or aborted the connection. [`Error::Request`] if a receive
    /// failed, for instance because the peer's message did not fit into the buffer.
    pub async fn recv(&self) -> Result<Message> {
        let received = self.shared.router.received(self.engine()).await?;
        self.message(&received)
    }

    /// Copies the message of a completed receive, and posts the receive's buffer again.
    pub(crate) fn message(&self, (buffer, completion): &Received) -> Result<Message> {
        let (shared, buffer) = (&self.shared, *buffer);
        // Immediate Data is returned separately. Without InfiniBand's semantics, the buffer contains it as
        // well.
        let len = if completion.immediate.is_some() { 0 } else { completion.byte_len as usize };
        let mut data = vec![0; len];
        shared.receives.read(buffer, &mut data)?;
        shared.qp().post_recv(&shared.receives.request(buffer))?;
        Ok(Message { data, immediate: completion.immediate, invalidated: completion.invalidated })
    }

    // ---- the end ----

    /// Closes gracefully: sends all posted requests, and waits for the peer's close. Like each request, this
    /// call first waits until the peer is ready.
    ///
    /// # Errors
    /// [`Error::Connection`] if the connection did not end gracefully.
    pub async fn close(&self) -> Result<()> {
        // If the connection has ended, `closed` returns the cause.
        let _ = self.established().await;
        self.shared.is_closed_here.store(true, Ordering::Relaxed);
        self.shared.id.disconnect();
        match self.closed().await {
            Error::Closed => Ok(()),
            error => Err(error),
        }
    }

    /// Ends the connection at once.
    pub fn abort(&self) {
        self.shared.id.abort();
    }

    /// Waits for the end of the connection, and returns its cause. [`Error::Closed`] means a graceful end, or
    /// that the endpoint's runtime has shut down.
    pub async fn closed(&self) -> Error {
        let mut phase = self.shared.phase.clone();
        self.engine().hand_over();
        match phase.wait_for(|phase| matches!(phase, Phase::Ended(_))).await {
            Ok(phase) => phase.error(),
            Err(_) => Error::Closed,
        }
    }

    // ---- requests ----

    pub(crate) fn router(&self) -> &Arc<Router> {
        &self.shared.router
    }

    pub(crate) fn receives(&self) -> &Receives {
        &self.shared.receives
    }

    /// Returns the maximum number of bytes that may be in flight to this side of a stream.
    pub(crate) fn stream_bytes(&self) -> usize {
        self.shared.stream_bytes
    }

    /// Registers memory at the endpoint of the connection ([`Endpoint::register`]).
    ///
    /// # Errors
    /// [`Error::Verbs`] if the limit on regions is reached, the memory cannot be allocated, or the rights
    /// cannot be combined.
    pub fn register(&self, bytes: usize, access: Access) -> Result<Region> {
        Ok(Region::new(self.shared.endpoint.pd.reg_mr(bytes, access)?))
    }

    /// Posts a request with registered memory, and returns its `wr_id`. The caller has reserved a place in
    /// the send queue.
    pub(crate) fn post_slice(&self, op: SendOp, local: Slice) -> Result<u64> {
        let sge = local.sge().inspect_err(|_| self.shared.router.free_places(1))?;
        let wr_id = self.shared.router.open(Pinned::Memory { _slice: local });
        self.post(wr_id, |qp| qp.post_send(&SendRequest::new(wr_id, op, sge)))?;
        Ok(wr_id)
    }

    /// Posts a request with registered memory, and waits for its completion.
    async fn transfer(&self, op: SendOp, local: Slice) -> Result<Pinned> {
        self.place().await?;
        let wr_id = self.post_slice(op, local)?;
        self.completed(wr_id).await
    }

    /// Posts a request with a copy of bytes, and waits for its completion.
    async fn send_copy(&self, op: SendOp, bytes: &[u8]) -> Result<()> {
        self.shared.check_length(bytes.len())?;
        self.place().await?;
        let wr_id = self.post_copy(op, &[bytes])?;
        let pinned = self.completed(wr_id).await?;
        self.shared.router.release(pinned);
        Ok(())
    }

    /// Posts a request with a copy of bytes, and returns its `wr_id`. The caller has reserved a place in the
    /// send queue.
    pub(crate) fn post_copy(&self, op: SendOp, parts: &[&[u8]]) -> Result<u64> {
        let router = &self.shared.router;
        let len = parts.iter().map(|part| part.len()).sum();
        if len <= MAX_INLINE {
            let wr_id = router.open(Pinned::Nothing);
            let request = SendRequest::empty(wr_id, op).flags(SendFlags::SIGNALED | SendFlags::INLINE);
            self.post(wr_id, |qp| qp.send_batch().push_inline(&request, parts))?;
            return Ok(wr_id);
        }
        let buffer = self.buffer()?;
        let mut offset = 0;
        for part in parts {
            buffer.write_at(offset, part)?;
            offset += part.len();
        }
        let sge = buffer.memory_region().sge(0, len);
        let wr_id = router.open(Pinned::Buffer(buffer));
        self.post(wr_id, |qp| qp.post_send(&SendRequest::new(wr_id, op, sge)))?;
        Ok(wr_id)
    }

    /// Posts a Read or an atomic into a buffer of the connection, and copies its result to `out`.
    async fn fetch(&self, op: SendOp, out: &mut [u8]) -> Result<()> {
        self.place().await?;
        let buffer = self.buffer()?;
        let sge = buffer.memory_region().sge(0, out.len());
        let wr_id = self.shared.router.open(Pinned::Buffer(buffer));
        self.post(wr_id, |qp| qp.post_send(&SendRequest::new(wr_id, op, sge)))?;
        let pinned = self.completed(wr_id).await?;
        let read = match &pinned {
            Pinned::Buffer(buffer) => buffer.read_at(0, out),
            _ => unreachable!("the request has a buffer"),
        };
        self.shared.router.release(pinned);
        read
    }

    pub(crate) fn engine(&self) -> &Served {
        &self.shared.endpoint.engines[self.shared.engine]
    }

    /// Waits until the peer is ready for requests, and then until there is a place in the send queue.
    async fn place(&self) -> Result<()> {
        self.established().await?;
        if self.shared.router.take_place() {
            return Ok(());
        }
        self.engine().hand_over();
        self.shared.router.place().await
    }

    /// Returns a buffer of the connection that no request uses. On failure, frees the place in the send
    /// queue.
    fn buffer(&self) -> Result<Region> {
        let router = &self.shared.router;
        if let Some(buffer) = router.free_buffer() {
            return Ok(buffer);
        }
        let bytes = self.shared.receives.message_bytes.max(size_of::<u64>());
        self.register(bytes, Access::LOCAL_WRITE).inspect_err(|_| router.free_places(1))
    }

    /// Posts a request. If no other request is open, calls the engine so that the request is sent at once.
    fn post(&self, wr_id: u64, post: impl FnOnce(&QueuePair) -> Result<(), VerbsError>) -> Result<()> {
        let qp = self.shared.qp();
        let is_first = !qp.has_open_sends();
        if is_first {
            self.engine().before_post();
        }
        post(qp).map_err(|error| {
            self.shared.router.cancel(wr_id);
            let is_closed_here = self.shared.is_closed_here.load(Ordering::Relaxed);
            refusal(&self.shared.phase.borrow(), is_closed_here, error)
        })?;
        if is_first {
            self.engine().send_posted();
        }
        Ok(())
    }

    async fn completed(&self, wr_id: u64) -> Result<Pinned> {
        let (completion, pinned) = self.shared.router.wait(wr_id, self.engine()).await;
        let error = match (completion.status, completion.cause) {
            (WcStatus::Success, _) => return Ok(pinned),
            (_, Some(cause)) => Error::Connection(cause),
            (WcStatus::WrFlushError, None) => Error::Closed,
            (status, None) => Error::Request(status),
        };
        self.shared.router.release(pinned);
        Err(error)
    }
}

impl ConnectionShared {
    fn qp(&self) -> &QueuePair {
        self.qp.as_ref().expect("taken by the drop alone")
    }

    /// Waits until the peer is ready for requests.
    async fn established(&self) -> Result<Arc<Established>> {
        let mut phase = self.phase.clone();
        self.endpoint.hand_over();
        let next = phase.wait_for(|phase| !matches!(phase, Phase::Starting)).await;
        let next = next.map_err(|_| Error::Closed)?.clone();
        let Phase::Established(established) = next else { return Err(next.error()) };
        self.is_established.store(true, Ordering::Release);
        Ok(established)
    }

    fn check_length(&self, got: usize) -> Result<usize> {
        let max = self.receives.message_bytes;
        if got > max { Err(Error::TooLong { got, max }) } else { Ok(got) }
    }
}

/// Returns the error for a request that the queue pair refuses in this phase of the connection.
fn refusal(phase: &Phase, is_closed_here: bool, error: VerbsError) -> Error {
    match (phase, error) {
        (Phase::Ended(_), _) => phase.error(),
        // A FIN was sent or received, but the disconnect event has not arrived yet.
        (_, VerbsError::InvalidState(_)) if is_closed_here => Error::Closed,
        (_, VerbsError::InvalidState(_)) => Error::Connection(ConnectionError::PeerClosed),
        (_, error) => error.into(),
    }
}

fn same_length(remote: &RemoteRegion, local: Slice) -> Result<Slice> {
    lengths(remote.len, local.len() as u64)?;
    Ok(local)
}

fn lengths(remote: u64, local: u64) -> Result<()> {
    if remote == local { Ok(()) } else { Err(Error::Lengths { local, remote }) }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let agreed = &self.shared.agreed;
        f.debug_struct("Connection").field("addresses", &agreed.addresses).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
