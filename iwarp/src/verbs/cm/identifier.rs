//! The state that identifiers ([`CmId`]) share with engines, the commands of users, and the detection of the
//! last user handle.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use arrayvec::ArrayVec;
use dp::Port;
use tcp_lite::{CloseReason, ConnId};

use crate::queues::QpShared;
use crate::verbs::engine_handle::EngineHandle;
use crate::verbs::{ConnectionError, ContextShared, VerbsError};

use super::event::{self, ChannelShared};
use super::listener::ListenerShared;
use super::param::{ConnParam, MAX_PRIVATE_DATA, ResponderOptions};
use super::stream::PlainBytes;
use super::{CmEventKind, CmId};

/// The state that an identifier shares with its engine. Engines hold a `CmShared`. Users hold a [`CmId`],
/// whose [`CmOwner`] detects the drop of the last handle.
pub(crate) struct CmShared {
    pub(super) context: Arc<ContextShared>,
    /// Weak, because the events in the channel hold identifiers.
    pub(super) channel: Weak<ChannelShared>,
    state: Mutex<CmState>,
    times: Times,
}

/// The handles' common owner, which is dropped with the user's last handle. The drop stops a listener,
/// rejects a request that is neither accepted nor rejected yet, and resets a connection that has no queue
/// pair.
pub(crate) struct CmOwner {
    shared: Arc<CmShared>,
}

impl Drop for CmOwner {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

/// Times of the engine in microseconds, and counters.
#[derive(Default)]
struct Times {
    established_us: AtomicU64,
    progress_us: AtomicU64,
    rx_segments: AtomicU64,
    rx_fpdus: AtomicU64,
    rx_placed_bytes: AtomicU64,
}

/// Age, idle time and receive counters of a connection. The counters reveal a peer that causes work without
/// moving data: many segments for few FPDUs, or many FPDUs for few bytes (RFC 5042 section 6.4.4). The user
/// can end such a connection with [`CmId::disconnect`](super::CmId::disconnect) or
/// [`CmId::abort`](super::CmId::abort).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// Time since the connection was established.
    pub age: Duration,
    /// Time since an FPDU, or a byte in streaming mode, was last sent or received.
    pub idle: Duration,
    /// Number of received TCP segments with new bytes in Full Operation, including out-of-order segments.
    /// Segments of one burst that TCP has merged count as one segment.
    pub rx_segments: u64,
    /// FPDUs in these segments.
    pub rx_fpdus: u64,
    /// Number of payload bytes that were placed into registered memory, including the values that our atomics
    /// returned.
    pub rx_placed_bytes: u64,
}

#[derive(Default)]
pub(super) struct CmState {
    pub(super) phase: CmPhase,
    owner: Weak<CmOwner>,
    pub(super) qp: Option<Weak<QpShared>>,
    /// Our address and port, and the peer's. `SocketAddr` has fields that TCP does not use.
    addresses: Option<[(IpAddr, u16); 2]>,
    /// The connection in the engine.
    conn: Option<ConnId>,
    /// Why the connection ended.
    cause: Option<ConnectionError>,
    /// The buffers of a connection that began in streaming mode.
    pub(super) stream: Option<Arc<PlainBytes>>,
}

#[derive(Default)]
pub(super) enum CmPhase {
    /// Not used yet.
    #[default]
    Idle,
    /// Listens on all engines.
    Listening { listener: Arc<ListenerShared> },
    /// Exchanges plain bytes before MPA.
    Streaming { engine: Arc<EngineHandle> },
    /// Waits for the peer's Request, on a connection that began in streaming mode.
    Awaiting { engine: Arc<EngineHandle> },
    /// A connect request that is not accepted or rejected yet.
    Requested { engine: Arc<EngineHandle>, conn: ConnId, private_data_limit: u16 },
    /// A connection that `engine` sets up or carries.
    Connected { engine: Arc<EngineHandle> },
    /// The user has ended the connection that `engine` carries, and `engine` has not reported the end yet.
    Closing { engine: Arc<EngineHandle> },
    /// Ended or failed, for example rejected or disconnected, or no longer listening.
    Over,
}

impl CmPhase {
    /// Returns the engine of the connection; `None` without a connection.
    fn engine(&self) -> Option<&Arc<EngineHandle>> {
        match self {
            Self::Streaming { engine }
            | Self::Awaiting { engine }
            | Self::Requested { engine, .. }
            | Self::Connected { engine }
            | Self::Closing { engine } => Some(engine),
            Self::Idle | Self::Listening { .. } | Self::Over => None,
        }
    }
}

/// A command to an engine, from a user or from another engine.
pub(crate) enum CmCommand {
    /// Start a connection.
    Connect { id: Arc<CmShared>, qp: Arc<QpShared>, remote: SocketAddr, param: Box<ConnParam> },
    /// Start a connection in streaming mode.
    ConnectStream { id: Arc<CmShared>, stream: Arc<PlainBytes>, remote: SocketAddr, param: Box<ConnParam> },
    /// The user has sent or received bytes in streaming mode.
    PlainBytes { id: Arc<CmShared> },
    /// Start MPA as initiator on a connection in streaming mode, after position `after` of the user's stream.
    StartInitiator { id: Arc<CmShared>, qp: Arc<QpShared>, param: Box<ConnParam>, after: u64 },
    /// Start MPA as responder on a connection in streaming mode, after position `after` of the user's stream.
    StartResponder { id: Arc<CmShared>, options: Box<ResponderOptions>, after: u64 },
    /// Accept connections on the listener's port.
    Listen { id: Arc<CmShared>, listener: Arc<ListenerShared> },
    /// Stop accepting connections.
    Unlisten { port: u16 },
    /// Accept a connect request.
    Accept { id: Arc<CmShared>, conn: ConnId, qp: Arc<QpShared>, param: Box<ConnParam> },
    /// Reject a connect request. If `stays_open`, the TCP connection returns to streaming mode.
    Reject { conn: ConnId, private_data: ArrayVec<u8, MAX_PRIVATE_DATA>, stays_open: bool },
    /// Close the connection gracefully.
    Disconnect { id: Arc<CmShared> },
    /// Reset the connection.
    Abort { id: Arc<CmShared> },
    /// Open a queue pair of datagrams, with this number on the wire.
    OpenDatagrams { qp: Arc<QpShared>, number: u32 },
    /// Attach the open queue pair of datagrams with this number to a multicast group, or detach it.
    Group { group: IpAddr, number: u32, attach: bool },
    /// Poll the port queue of an engine that was dropped.
    Adopt { port: Box<dyn Port> },
    /// Report the engine's status.
    Status { engine: Arc<EngineHandle> },
}

impl CmCommand {
    /// Whether the command begins a connection in the engine.
    pub(crate) fn begins_connection(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::ConnectStream { .. })
    }

    /// Handles a command whose engine no longer exists. A connection that the command would begin fails. A
    /// queue pair that the command would bind to an existing connection enters `Error`. A thread that waits
    /// for the engine's status is woken.
    pub(crate) fn refuse(self) {
        match self {
            Self::Connect { id, qp, .. } => {
                id.not_connected(&qp, ConnectionError::Tcp(CloseReason::Aborted));
            }
            Self::ConnectStream { id, .. } => {
                id.not_streaming(ConnectionError::Tcp(CloseReason::Aborted));
            }
            Self::Status { engine } => engine.status().answer(None),
            // The end of the connection generates the event of the identifier.
            Self::Accept { qp, .. } | Self::StartInitiator { qp, .. } | Self::OpenDatagrams { qp, .. } => {
                qp.state.blame(ConnectionError::Tcp(CloseReason::Aborted));
                qp.enter_error();
            }
            Self::Listen { .. }
            | Self::Unlisten { .. }
            | Self::PlainBytes { .. }
            | Self::StartResponder { .. }
            | Self::Reject { .. }
            | Self::Disconnect { .. }
            | Self::Abort { .. }
            | Self::Group { .. }
            | Self::Adopt { .. } => {}
        }
    }
}

impl CmShared {
    pub(super) fn new(context: Arc<ContextShared>, channel: Weak<ChannelShared>) -> Arc<Self> {
        Arc::new(Self { context, channel, state: Mutex::default(), times: Times::default() })
    }

    /// Returns a handle for the user. If all handles were dropped, makes a new handle: the event that reports
    /// the end needs a handle, although no user waits for this event.
    pub(super) fn handle(self: &Arc<Self>) -> CmId {
        let mut state = self.state();
        let owner = state.owner.upgrade().unwrap_or_else(|| {
            let owner = Arc::new(CmOwner { shared: Arc::clone(self) });
            state.owner = Arc::downgrade(&owner);
            owner
        });
        CmId { shared: Arc::clone(self), _owner: owner }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, CmState> {
        self.state.lock().expect("no holder of this lock panics")
    }

    // ---- for engines ----

    /// Returns the identifier of a new connection `conn` of this listener.
    pub(crate) fn child(self: &Arc<Self>, conn: ConnId, addresses: (SocketAddr, SocketAddr)) -> Arc<Self> {
        let child = Self::new(Arc::clone(&self.context), Weak::clone(&self.channel));
        {
            let mut state = child.state();
            state.conn = Some(conn);
            state.set_addresses(addresses);
        }
        child
    }

    /// Called when `engine` has received a Request on `conn`, and waits for a decision.
    pub(crate) fn set_requested(&self, engine: &Arc<EngineHandle>, conn: ConnId, private_data_limit: usize) {
        let engine = Arc::clone(engine);
        // The limit is at most 512 (RFC 5044 section 7.1.1).
        let private_data_limit = private_data_limit as u16;
        self.state().phase = CmPhase::Requested { engine, conn, private_data_limit };
    }

    /// Called when `engine` has a connection in streaming mode for this identifier: either a new connection,
    /// or a connection whose MPA startup was rejected.
    pub(crate) fn set_streaming(&self, engine: &Arc<EngineHandle>, stream: &Arc<PlainBytes>) {
        let mut state = self.state();
        // If the user has ended the connection, the phase stays `Closing`.
        if !matches!(state.phase, CmPhase::Closing { .. }) {
            state.phase = CmPhase::Streaming { engine: Arc::clone(engine) };
        }
        state.stream = Some(Arc::clone(stream));
        state.qp = None;
    }

    /// Whether the identifier still listens.
    pub(crate) fn is_listening(&self) -> bool {
        matches!(self.state().phase, CmPhase::Listening { .. })
    }

    /// Adds an event for the user. `listener` is the listener at which a new connection arrived.
    pub(crate) fn announce(self: &Arc<Self>, listener: Option<&Arc<Self>>, kind: CmEventKind) {
        event::announce(&self.channel, self.handle(), listener.cloned(), kind);
    }

    pub(crate) fn set_addresses(&self, addresses: (SocketAddr, SocketAddr)) {
        self.state().set_addresses(addresses);
    }

    pub(crate) fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.state().addresses.map(|[local, remote]| (local.into(), remote.into()))
    }

    /// Sets the connection in the engine.
    pub(crate) fn set_conn(&self, conn: ConnId) {
        self.state().conn = Some(conn);
    }

    pub(crate) fn conn(&self) -> Option<ConnId> {
        self.state().conn
    }

    pub(super) fn cause(&self) -> Option<ConnectionError> {
        self.state().cause
    }

    /// Called when no connection was set up for `qp`, and none will be.
    pub(crate) fn not_connected(self: &Arc<Self>, qp: &QpShared, error: ConnectionError) {
        qp.state.blame(error);
        qp.unreached();
        self.not_streaming(error);
    }

    /// Called when the connection had ended before `qp` was bound to it.
    pub(crate) fn ended_before(&self, qp: &QpShared) {
        // Without an error, the peer has closed the connection. If the user had ended the connection, the
        // call that passes `qp` would have failed.
        qp.state.blame(self.state().cause.unwrap_or(ConnectionError::PeerClosed));
        qp.unreached();
    }

    /// Called when no connection was set up, and none will be.
    pub(crate) fn not_streaming(self: &Arc<Self>, error: ConnectionError) {
        self.set_over(Some(error));
        self.announce(None, CmEventKind::ConnectError { error, peer: None });
    }

    /// Called when the connection has ended because of `cause`: the identifier accepts no more calls.
    pub(crate) fn set_over(&self, cause: Option<ConnectionError>) {
        let mut state = self.state();
        state.phase = CmPhase::Over;
        state.cause = cause;
        state.conn = None;
    }

    /// Ends a connect request that is neither accepted nor rejected yet. Returns `false` if the user has
    /// already accepted or rejected the request; the user's command is then in the engine's queue.
    pub(crate) fn expire(&self) -> bool {
        let mut state = self.state();
        let undecided = matches!(state.phase, CmPhase::Requested { .. });
        if undecided {
            state.phase = CmPhase::Over;
            state.conn = None;
            state.cause = Some(ConnectionError::DecisionTimeout);
        }
        undecided
    }

    /// Records that the connection is established, at time `now_us` of the engine.
    pub(crate) fn set_established(&self, now_us: u64) {
        self.times.established_us.store(now_us, Ordering::Relaxed);
        self.set_progress(now_us);
    }

    /// Records that data was sent or received, at time `now_us` of the engine.
    pub(crate) fn set_progress(&self, now_us: u64) {
        self.times.progress_us.store(now_us, Ordering::Relaxed);
    }

    /// Counts a received segment (or several merged segments), its FPDUs, and the placed bytes. Only the
    /// engine writes these counters.
    pub(crate) fn count_segment(&self, fpdus: u64, placed_bytes: u64) {
        let Times { rx_segments, rx_fpdus, rx_placed_bytes, .. } = &self.times;
        for (count, more) in [(rx_segments, 1), (rx_fpdus, fpdus), (rx_placed_bytes, placed_bytes)] {
            count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        }
    }

    /// Returns the engine's time, in microseconds, when data was last sent or received.
    pub(crate) fn progress_us(&self) -> u64 {
        self.times.progress_us.load(Ordering::Relaxed)
    }

    // ---- for users ----

    pub(super) fn engine(&self) -> Option<usize> {
        Some(self.state().phase.engine()?.index())
    }

    pub(super) fn activity(&self) -> Option<Activity> {
        let now_us = self.state().phase.engine()?.now_us();
        let since = |at: &AtomicU64| match at.load(Ordering::Relaxed) {
            0 => None,
            at => Some(Duration::from_micros(now_us.saturating_sub(at))),
        };
        let Times { established_us, progress_us, rx_segments, rx_fpdus, rx_placed_bytes } = &self.times;
        let [rx_segments, rx_fpdus, rx_placed_bytes] =
            [rx_segments, rx_fpdus, rx_placed_bytes].map(|count| count.load(Ordering::Relaxed));
        let (age, idle) = (since(established_us)?, since(progress_us)?);
        Some(Activity { age, idle, rx_segments, rx_fpdus, rx_placed_bytes })
    }

    /// Ends the connection gracefully. The queue pair refuses requests before the engine is notified, so the
    /// close sends all requests that were posted before.
    pub(super) fn close(self: &Arc<Self>) {
        let state = self.state();
        let qp = state.qp.as_ref().and_then(Weak::upgrade);
        if let Some(qp) = &qp {
            qp.signals.refuse_sends();
        }
        self.end_with(state, |id| CmCommand::Disconnect { id });
    }

    /// Ends the connection at once.
    pub(super) fn abort(self: &Arc<Self>) {
        self.end_with(self.state(), |id| CmCommand::Abort { id });
    }

    /// Ends the identifier according to its phase. If there is a connection, sends `command` to the engine.
    fn end_with(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, CmState>,
        command: impl FnOnce(Arc<Self>) -> CmCommand,
    ) {
        match &state.phase {
            CmPhase::Idle | CmPhase::Over => {}
            CmPhase::Listening { .. } => {
                state.phase = CmPhase::Over;
                drop(state);
                self.context.unlisten(self);
            }
            CmPhase::Requested { engine, conn, .. } => {
                let (engine, conn) = (Arc::clone(engine), *conn);
                state.phase = CmPhase::Over;
                drop(state);
                let private_data = ArrayVec::new();
                engine.command(CmCommand::Reject { conn, private_data, stays_open: false });
            }
            CmPhase::Streaming { engine }
            | CmPhase::Awaiting { engine }
            | CmPhase::Connected { engine }
            | CmPhase::Closing { engine } => {
                let engine = Arc::clone(engine);
                state.phase = CmPhase::Closing { engine: Arc::clone(&engine) };
                drop(state);
                engine.command(command(Arc::clone(self)));
            }
        }
    }

    /// Called when the user's last handle was dropped. Ends the identifier, unless its connection has a queue
    /// pair: such a connection lives as long as the queue pair.
    fn abandon(self: &Arc<Self>) {
        let has_qp = {
            let state = self.state();
            matches!(state.phase, CmPhase::Connected { .. } | CmPhase::Closing { .. }) && state.qp.is_some()
        };
        if !has_qp {
            self.abort();
        }
    }
}

impl CmState {
    fn set_addresses(&mut self, (local, remote): (SocketAddr, SocketAddr)) {
        self.addresses = Some([local, remote].map(|address| (address.ip(), address.port())));
    }

    pub(super) fn requested(&self) -> Result<(Arc<EngineHandle>, ConnId, usize), VerbsError> {
        match &self.phase {
            CmPhase::Requested { engine, conn, private_data_limit } => {
                Ok((Arc::clone(engine), *conn, usize::from(*private_data_limit)))
            }
            _ => {
                Err(VerbsError::Invalid("no connect request waits for a decision on this identifier".into()))
            }
        }
    }

    /// Returns the engine and the buffers of a connection in streaming mode, even if the user has closed it:
    /// bytes that have arrived can still be read.
    pub(super) fn readable(&self) -> Result<(Arc<EngineHandle>, Arc<PlainBytes>), VerbsError> {
        match (&self.phase, &self.stream, &self.qp) {
            (CmPhase::Closing { engine }, Some(stream), None) => Ok((Arc::clone(engine), Arc::clone(stream))),
            _ => self.streaming(),
        }
    }

    /// Returns the engine and the buffers of an open connection in streaming mode.
    pub(super) fn streaming(&self) -> Result<(Arc<EngineHandle>, Arc<PlainBytes>), VerbsError> {
        match (&self.phase, &self.stream) {
            (CmPhase::Streaming { engine }, Some(stream)) => Ok((Arc::clone(engine), Arc::clone(stream))),
            _ => Err(VerbsError::Invalid("this identifier has no connection in streaming mode".into())),
        }
    }
}
