//! Connection management: identifiers, events, private data.
//!
//! | file | what |
//! |---|---|
//! | `cm/param.rs` | what users bring: parameters of connections, listeners, streams |
//! | `cm/event.rs` | events, and the bounded channel they wait in |
//! | `cm/listener.rs` | what a listener admits and counts |
//! | `cm/stream.rs` | streaming mode in front of MPA, and the switch |
//! | `cm/shared.rs` | what identifiers share with engines |

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;

use super::{ContextShared, QueuePair, VerbsError};

mod event;
mod listener;
mod param;
mod shared;
mod stream;

pub use event::{CmEvent, CmEventKind, EventChannel};
pub use listener::ListenerStats;
pub use param::{ConnParam, Keepalive, ListenOptions, MAX_PRIVATE_DATA, ResponderOptions, StreamOptions};
pub use shared::Activity;
pub use stream::StreamRead;

pub(crate) use listener::{Admitted, ListenerShared};
pub(crate) use shared::{CmCommand, CmShared};
pub(crate) use stream::StreamShared;

use param::ENHANCED_BYTES;
use shared::{CmOwner, CmPhase};

/// One connection or one listener (`rdma_cm_id`). Cheap to clone; equal when the same.
///
/// When the last clone is dropped, what only it could go on with ends: a listener stops listening (requests
/// that were announced can still be decided), a connect request is rejected, a connection in streaming mode
/// is reset. A connection that has a queue pair lives as long as that. An event that waits in its channel
/// counts as a clone of its own identifier, but not of the listener's.
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
    /// [`VerbsError`]: the queue pair is not idle, a parameter is out of range, there is no engine.
    pub fn connect(&self, qp: &QueuePair, remote: SocketAddr, param: &ConnParam) -> Result<(), VerbsError> {
        param.check()?;
        let engine = self.shared.context.engine(param.engine)?;
        let mut state = self.shared.state();
        if !matches!(state.phase, CmPhase::Idle) {
            return Err(in_use());
        }
        // The peer may have the IRD raised.
        qp.shared.bind(&self.shared.context.resources, engine.doorbells(), param.mpa_config(true).max_ird)?;
        state.qp = Some((Arc::downgrade(&qp.shared), Arc::downgrade(&qp.owner)));
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

    /// Listens on `port` with the bounds of [`ListenOptions::new`] but for the backlog and the time a peer
    /// may take for its MPA Request (`rdma_listen`).
    ///
    /// # Errors
    /// As [`listen_with`](Self::listen_with).
    pub fn listen(&self, port: u16, backlog: usize, timeout: Duration) -> Result<(), VerbsError> {
        let mut options = ListenOptions { backlog, ..ListenOptions::new(port) };
        options.responder.startup_timeout = timeout;
        self.listen_with(&options)
    }

    /// Listens on every address of every engine, those that are made later as well. `ConnectRequest` events
    /// follow, or `StreamEstablished` where connections begin in streaming mode. An engine that cannot listen
    /// says so by a `ConnectError` event.
    ///
    /// # Errors
    /// [`VerbsError`]: the port is taken, an option is out of range, there is no engine.
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

    /// What a listener has now and has refused; `None` where this does not listen.
    pub fn listener_stats(&self) -> Option<ListenerStats> {
        match &self.shared.state().phase {
            CmPhase::Listening { listener } => Some(listener.stats()),
            _ => None,
        }
    }

    /// Accepts a connect request with `qp` (`rdma_accept`). An `Established` or `ConnectError` event follows.
    /// `param.initiator_depth` and `responder_resources` are upper bounds; RFC 6581 settles the values.
    ///
    /// # Errors
    /// [`VerbsError`]; the request still waits.
    pub fn accept(&self, qp: &QueuePair, param: &ConnParam) -> Result<(), VerbsError> {
        param.check()?;
        let mut state = self.shared.state();
        let (engine, conn, max) = state.requested()?;
        let got = param.private_data.len();
        if got > max {
            return Err(VerbsError::TooLong { got: got as u64, max: max as u64 });
        }
        qp.shared.bind(&self.shared.context.resources, engine.doorbells(), param.responder_resources)?;
        state.qp = Some((Arc::downgrade(&qp.shared), Arc::downgrade(&qp.owner)));
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

    /// Rejects a connect request (`rdma_reject`), with up to 508 bytes of private data: what the Reply to any
    /// Request can carry. A connection that began in streaming mode is in it again, for other uses.
    ///
    /// # Errors
    /// [`VerbsError::TooLong`], [`VerbsError::Invalid`] when no request waits for a decision.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        let max = MAX_PRIVATE_DATA - ENHANCED_BYTES;
        let too_long = VerbsError::TooLong { got: private_data.len() as u64, max: max as u64 };
        let private_data = ArrayVec::try_from(private_data)
            .ok()
            .filter(|bytes: &ArrayVec<u8, MAX_PRIVATE_DATA>| bytes.len() <= max)
            .ok_or(too_long)?;
        let mut state = self.shared.state();
        let (engine, conn, _) = state.requested()?;
        state.phase = if state.stream.is_some() {
            CmPhase::Streaming { engine: Arc::clone(&engine) }
        } else {
            CmPhase::Over
        };
        drop(state);
        engine.command(CmCommand::Reject { conn, private_data });
        Ok(())
    }

    /// Closes gracefully: what was posted is sent, Reads are answered, then FIN (`rdma_disconnect`). From
    /// here on [`QueuePair::post_send`] is refused. What the peer sends after our FIN is dropped. A
    /// `Disconnected` event follows for an established connection; one that is not established yet is
    /// aborted, and a `ConnectError` follows. For a connect request: rejects. For a listener: stops
    /// listening; requests that were announced can still be decided.
    pub fn disconnect(&self) {
        self.shared.close();
    }

    /// Ends the connection at once: RST, everything posted is flushed. The event says
    /// [`CloseReason::Aborted`](tcp_lite::CloseReason::Aborted). For connect requests and listeners the same
    /// as [`disconnect`](Self::disconnect).
    pub fn abort(&self) {
        self.shared.abort();
    }

    /// The queue pair it carries, once connected or accepted and while it lives.
    pub fn qp(&self) -> Option<QueuePair> {
        let state = self.shared.state();
        let (shared, owner) = state.qp.as_ref()?;
        Some(QueuePair { shared: shared.upgrade()?, owner: owner.upgrade()? })
    }

    /// Our address and the peer's, once there is a connection.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.shared.addresses()
    }

    /// How old the connection is and how long it has been idle; `None` while it is not established.
    pub fn activity(&self) -> Option<Activity> {
        self.shared.activity()
    }
}
