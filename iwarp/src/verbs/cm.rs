//! Connection management: identifiers ([`CmId`]) and their events, listeners, and streaming mode before MPA.
//!
//! | file | contents |
//! |---|---|
//! | `cm/param.rs` | parameters of connections, listeners and streams |
//! | `cm/event.rs` | events, and their bounded channel |
//! | `cm/listener.rs` | the limits and counters of a listener |
//! | `cm/stream.rs` | streaming mode before MPA, and the switch to MPA |
//! | `cm/identifier.rs` | the state that identifiers share with engines |

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;

use super::{ConnectionError, ContextShared, QueuePair, VerbsError};

mod event;
mod identifier;
mod listener;
mod param;
mod stream;

pub use event::{CmEvent, CmEventKind, EventChannel};
pub use identifier::Activity;
pub use listener::ListenerStats;
pub use param::{
    ConnParam, KeepalivePolicy, ListenOptions, MAX_PRIVATE_DATA, RNR_RETRY_FOR_EVER, ResponderOptions,
    StreamOptions,
};
pub use stream::StreamRead;

pub(crate) use identifier::{CmCommand, CmShared};
pub(crate) use listener::{Admitted, ListenerShared};
pub(crate) use param::AGREEMENT_BYTES;
pub(crate) use stream::PlainBytes;

use identifier::{CmOwner, CmPhase};
use param::ENHANCED_BYTES;

/// One connection or one listener (`rdma_cm_id`). Cheap to clone. Two handles are equal if they refer to the
/// same identifier.
///
/// Dropping the last clone stops a listener, rejects a connect request, and resets a connection in streaming
/// mode. Requests that a listener has already announced can still be accepted or rejected. A connection with
/// a queue pair lives as long as the queue pair. An event in a channel counts as a clone of the event's own
/// identifier, but not as a clone of its listener.
#[derive(Clone)]
pub struct CmId {
    pub(crate) shared: Arc<CmShared>,
    _owner: Arc<CmOwner>,
}

impl PartialEq for CmId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for CmId {}

impl std::hash::Hash for CmId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.shared).hash(state);
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

fn in_use() -> VerbsError {
    VerbsError::Invalid("this identifier is in use: create another one".into())
}

impl CmId {
    pub(crate) fn new(context: Arc<ContextShared>, channel: &EventChannel) -> Self {
        CmShared::new(context, Arc::downgrade(&channel.shared)).handle()
    }

    /// Connects `qp` to `remote` (`rdma_connect`). An `Established`, `Rejected` or `ConnectError` event
    /// follows.
    ///
    /// # Errors
    /// [`VerbsError`] if the identifier is in use, the queue pair is not idle or of another context, a
    /// parameter is out of range, a limit is reached, or there is no engine.
    pub fn connect(&self, qp: &QueuePair, remote: SocketAddr, param: &ConnParam) -> Result<(), VerbsError> {
        let is_unreliable = param.check_for(qp)?;
        let engine = self.shared.context.engine(param.engine)?;
        let mut state = self.shared.state();
        if !matches!(state.phase, CmPhase::Idle) {
            return Err(in_use());
        }
        // The negotiation with the peer may raise the IRD.
        qp.shared.reserve(
            &self.shared.context.resources,
            engine.doorbells(),
            param.mpa_config(true).max_ird,
        )?;
        qp.shared.attributes.connecting(param.ib_semantics, param.outlives_peer || is_unreliable);
        state.qp = Some(Arc::downgrade(&qp.shared));
        state.phase = CmPhase::Connected { engine: Arc::clone(&engine) };
        drop(state);
        engine.command(CmCommand::Connect {
            id: Arc::clone(&self.shared),
            qp: Arc::clone(&qp.shared),
            remote,
            param: Box::new(param.clone()),
        });
        Ok(())
    }

    /// Listens on `port` (`rdma_listen`). The backlog and the time limit for a peer's MPA Request are the
    /// arguments; all other limits are those of [`ListenOptions::new`].
    ///
    /// # Errors
    /// The errors of [`listen_with`](Self::listen_with).
    pub fn listen(&self, port: u16, backlog: usize, timeout: Duration) -> Result<(), VerbsError> {
        let mut options = ListenOptions { backlog, ..ListenOptions::new(port) };
        options.responder.startup_timeout = timeout;
        self.listen_with(&options)
    }

    /// Listens on every address of every engine, including engines that are created later. A connection is
    /// reported by a `ConnectRequest` event when its Request has arrived, or by a `StreamEstablished` event
    /// if connections begin in streaming mode. An engine that cannot listen reports a `ConnectError` event.
    ///
    /// # Errors
    /// [`VerbsError`] if the identifier is in use, the port has a listener, an option is out of range, or
    /// there is no engine.
    pub fn listen_with(&self, options: &ListenOptions) -> Result<(), VerbsError> {
        options.check()?;
        let mut state = self.shared.state();
        if !matches!(state.phase, CmPhase::Idle) {
            return Err(in_use());
        }
        let listener = Arc::new(ListenerShared::new(options.clone()));
        self.shared.context.listen(&self.shared, &listener)?;
        state.phase = CmPhase::Listening { listener };
        Ok(())
    }

    /// Returns the counters of a listener; `None` if this identifier does not listen.
    pub fn listener_stats(&self) -> Option<ListenerStats> {
        match &self.shared.state().phase {
            CmPhase::Listening { listener } => Some(listener.stats()),
            _ => None,
        }
    }

    /// Accepts a connect request with `qp` (`rdma_accept`). An `Established` or `ConnectError` event follows.
    /// `param.initiator_depth` and `responder_resources` are upper bounds; the rules of RFC 6581 determine
    /// the values.
    ///
    /// # Errors
    /// [`VerbsError`] if no request waits for a decision, the private data is too long, a parameter is out of
    /// range, the queue pair is not idle or of another context, or a limit is reached. After an error, the
    /// connect request can still be accepted or rejected, unless it has ended.
    pub fn accept(&self, qp: &QueuePair, param: &ConnParam) -> Result<(), VerbsError> {
        let is_unreliable = param.check_for(qp)?;
        let mut state = self.shared.state();
        let (engine, conn, max) = state.requested()?;
        let got = param.private_data.len();
        if got > max {
            return Err(VerbsError::TooLong { got: got as u64, max: max as u64 });
        }
        qp.shared.reserve(&self.shared.context.resources, engine.doorbells(), param.responder_resources)?;
        qp.shared.attributes.connecting(param.ib_semantics, param.outlives_peer || is_unreliable);
        state.qp = Some(Arc::downgrade(&qp.shared));
        state.phase = CmPhase::Connected { engine: Arc::clone(&engine) };
        drop(state);
        engine.command(CmCommand::Accept {
            id: Arc::clone(&self.shared),
            conn,
            qp: Arc::clone(&qp.shared),
            param: Box::new(param.clone()),
        });
        Ok(())
    }

    /// Rejects a connect request (`rdma_reject`), with at most 508 bytes of private data, which the Reply to
    /// any Request can carry. A connection that began in streaming mode returns to streaming mode, and can be
    /// used further.
    ///
    /// # Errors
    /// [`VerbsError::TooLong`] if there are more bytes. [`VerbsError::Invalid`] if no request waits for a
    /// decision.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        let max = MAX_PRIVATE_DATA - ENHANCED_BYTES;
        let too_long = VerbsError::TooLong { got: private_data.len() as u64, max: max as u64 };
        let private_data = ArrayVec::try_from(private_data)
            .ok()
            .filter(|bytes: &ArrayVec<u8, MAX_PRIVATE_DATA>| bytes.len() <= max)
            .ok_or(too_long)?;
        let mut state = self.shared.state();
        let (engine, conn, _) = state.requested()?;
        let stays_open = state.stream.is_some();
        state.phase =
            if stays_open { CmPhase::Streaming { engine: Arc::clone(&engine) } } else { CmPhase::Over };
        drop(state);
        engine.command(CmCommand::Reject { conn, private_data, stays_open });
        Ok(())
    }

    /// Closes gracefully: sends the posted requests, waits for the responses to our Reads and atomics,
    /// responds to the Reads and atomics of the peer, then sends FIN (`rdma_disconnect`). From this call on,
    /// [`QueuePair::post_send`] refuses requests, unless [`QueuePair::take_late_sends`] was called. In
    /// streaming mode, sends the bytes of the user that are not sent yet, then FIN. Messages that the peer
    /// sends after our FIN are dropped; with [`ConnParam::ib_semantics`] they reset the connection. A
    /// `Disconnected` event follows for a connection that is established or in streaming mode. A connection
    /// that is still being set up is aborted, and a `ConnectError` event follows. A connect request is
    /// rejected. A listener stops listening, but requests that it has already announced can still be accepted
    /// or rejected.
    pub fn disconnect(&self) {
        self.shared.close();
    }

    /// Ends the connection at once: sends RST and flushes all requests. The event has the reason
    /// [`CloseReason::Aborted`](tcp_lite::CloseReason::Aborted), unless an error has occurred before. For
    /// connect requests and listeners, this function does the same as [`disconnect`](Self::disconnect).
    pub fn abort(&self) {
        self.shared.abort();
    }

    /// Returns the queue pair with which the identifier connects, accepts or starts MPA. Returns `None`
    /// before such a call, after a rejected connection has returned to streaming mode, and after the queue
    /// pair is destroyed.
    pub fn qp(&self) -> Option<QueuePair> {
        // The reference is upgraded without the lock. If no user has a handle, the upgraded reference may be
        // the last reference. Its drop runs code of the user (the drop of a completion queue's handler).
        let shared = self.shared.state().qp.clone()?;
        QueuePair::again(shared.upgrade()?)
    }

    /// Returns the local and the remote address; `None` before there is a connection.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.shared.addresses()
    }

    /// Returns the index of the engine that sets up or carries the connection; `None` without a connection.
    pub fn engine(&self) -> Option<usize> {
        self.shared.engine()
    }

    /// Returns the reason why the connection ended or could not be made. Returns `None` before the end, after
    /// a graceful close, and after a reject by the user.
    pub fn cause(&self) -> Option<ConnectionError> {
        self.shared.cause()
    }

    /// Returns the number of handles of the identifier, including the handles in queued events.
    fn handles(&self) -> usize {
        Arc::strong_count(&self._owner)
    }

    /// Returns age, idle time and counters of the connection; `None` before the connection is established,
    /// and after it has ended.
    pub fn activity(&self) -> Option<Activity> {
        self.shared.activity()
    }
}
