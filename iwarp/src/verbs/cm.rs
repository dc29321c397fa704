//! Connection management: identifiers, events, private data.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;
use std::{fmt, io};

use arrayvec::ArrayVec;
use tcp_lite::{CloseReason, ConnId};

use crate::engine::EngineShared;

use super::qp::QpOwner;
use super::{ConnectionError, ContextShared, Notifier, QpShared, QueuePair, VerbsError};

/// Private data of one MPA startup frame, octets.
pub const MAX_PRIVATE_DATA: usize = 512;

/// Octets of these that revision 2 takes for IRD and ORD.
const ENHANCED_OCTETS: usize = 4;

/// Reads in flight in one direction: what a connection may ask for, well below RFC 6581's 0x3ffe.
const MAX_DEPTH: u16 = 1024;

/// How a connection is asked for or accepted (`rdma_conn_param`).
#[derive(Clone, Debug)]
pub struct ConnParam {
    /// Sent with the MPA Request or Reply: up to 512 octets, 508 with revision 2's enhanced data.
    pub private_data: ArrayVec<u8, MAX_PRIVATE_DATA>,
    /// Reads of the peer that we serve at a time (IRD).
    pub responder_resources: u16,
    /// Reads of ours outstanding at a time (ORD).
    pub initiator_depth: u16,
    /// Ask the peer to send markers (they let out-of-order FPDUs be placed). siw rejects this.
    pub markers: bool,
    /// Ask for CRCs. Without, they are used only if the peer asks.
    pub crc: bool,
    /// MPA revision to ask for: 2 (RFC 6581) or 1.
    pub mpa_revision: u8,
    /// Offer peer-to-peer setup (an RTR frame), revision 2 only.
    pub peer_to_peer: bool,
    /// As the responder to a peer without RTR, send nothing before the peer's first FPDU (RFC 5044 section 7.1.2).
    /// Off only for protocols whose server speaks first, with peers known to bear it: perftest's Write latency on siw.
    pub await_first_fpdu: bool,
    /// Time for TCP and MPA startup together.
    pub timeout: Duration,
    /// The engine to use; `None`: the one with the fewest connections.
    pub engine: Option<usize>,
    /// Our port; `None`: a random one.
    pub local_port: Option<u16>,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: ArrayVec::new(),
            responder_resources: 128,
            initiator_depth: 128,
            markers: false,
            crc: true,
            mpa_revision: 2,
            peer_to_peer: true,
            await_first_fpdu: true,
            timeout: Duration::from_secs(10),
            engine: None,
            local_port: None,
        }
    }
}

impl ConnParam {
    fn check(&self) -> Result<(), VerbsError> {
        let limit =
            if self.mpa_revision == 1 { MAX_PRIVATE_DATA } else { MAX_PRIVATE_DATA - ENHANCED_OCTETS };
        if self.private_data.len() > limit {
            return Err(VerbsError::TooLong { got: self.private_data.len() as u64, max: limit as u64 });
        }
        if !matches!(self.mpa_revision, 1 | 2) {
            return Err(VerbsError::Invalid(format!("MPA revision {}: use 1 or 2", self.mpa_revision)));
        }
        if self.responder_resources > MAX_DEPTH || self.initiator_depth > MAX_DEPTH {
            return Err(VerbsError::Invalid(format!("IRD and ORD are at most {MAX_DEPTH}")));
        }
        Ok(())
    }

    /// The same with private data.
    ///
    /// # Errors
    /// [`VerbsError::TooLong`] above 512 octets.
    pub fn with_private_data(mut self, octets: &[u8]) -> Result<Self, VerbsError> {
        self.private_data.clear();
        self.private_data
            .try_extend_from_slice(octets)
            .map_err(|_| VerbsError::TooLong { got: octets.len() as u64, max: MAX_PRIVATE_DATA as u64 })?;
        Ok(self)
    }
}

/// What happened to an identifier.
#[derive(Clone, Debug)]
pub enum CmEventKind {
    /// A peer asks a listener for a connection; `CmEvent::id` is a new identifier to
    /// [`accept`](CmId::accept) or [`reject`](CmId::reject).
    ConnectRequest {
        /// The peer's private data.
        private_data: ArrayVec<u8, MAX_PRIVATE_DATA>,
        /// The peer's address.
        remote: SocketAddr,
        /// Reads the peer can serve; `None`: it did not say.
        peer_ird: Option<u16>,
        /// Reads the peer wants outstanding.
        peer_ord: Option<u16>,
    },
    /// The queue pair is in `Rts`.
    Established {
        /// The peer's private data (for the connecting side, of its Reply).
        private_data: ArrayVec<u8, MAX_PRIVATE_DATA>,
        /// Reads of ours that may be outstanding.
        ord: u16,
        /// Reads of the peer that we serve.
        ird: u16,
        /// Whether CRCs are used.
        crc: bool,
        /// Whether we send markers, and whether we receive them.
        markers: (bool, bool),
        /// Whether work may be posted at once. A responder to a peer without RTR holds back what is posted until
        /// the first FPDU of the peer (RFC 5044 section 7.1.2).
        ready: bool,
    },
    /// The peer rejected.
    Rejected {
        /// Its private data.
        private_data: ArrayVec<u8, MAX_PRIVATE_DATA>,
    },
    /// The connection could not be made.
    ConnectError {
        /// Why.
        error: ConnectionError,
    },
    /// An established connection ended. Everything posted has been flushed. `None`: gracefully.
    Disconnected {
        /// Why, when not graceful.
        error: Option<ConnectionError>,
    },
}

/// An event and whose it is.
#[derive(Clone, Debug)]
pub struct CmEvent {
    /// The identifier it is about.
    pub id: CmId,
    /// The listener, for a [`CmEventKind::ConnectRequest`].
    pub listener: Option<CmId>,
    /// What happened.
    pub kind: CmEventKind,
}

/// Where identifiers announce themselves. Readable while events wait. Cheap to clone.
#[derive(Clone)]
pub struct EventChannel {
    shared: Arc<ChannelShared>,
}

struct ChannelShared {
    events: Mutex<VecDeque<CmEvent>>,
    notifier: Notifier,
}

impl EventChannel {
    pub(crate) fn new() -> io::Result<Self> {
        let shared = ChannelShared { events: Mutex::new(VecDeque::new()), notifier: Notifier::new()? };
        Ok(Self { shared: Arc::new(shared) })
    }

    pub(crate) fn push(&self, event: CmEvent) {
        let mut events = self.shared.events.lock().expect("no holder of this lock panics");
        if events.is_empty() {
            self.shared.notifier.notify();
        }
        events.push_back(event);
    }

    /// The oldest event, without waiting. With an inline engine, poll the engine and then this.
    pub fn poll(&self) -> Option<CmEvent> {
        let mut events = self.shared.events.lock().expect("no holder of this lock panics");
        let event = events.pop_front();
        if event.is_some() && events.is_empty() {
            // Under the lock: the descriptor is readable exactly while events wait. A private descriptor has
            // nothing else to fail with than "nothing there", which is what is wanted.
            let taken = self.shared.notifier.take();
            debug_assert!(taken.is_ok());
        }
        event
    }

    /// The oldest event, waiting for it up to `timeout`. Only where an engine thread runs. `None` may come earlier: after
    /// a signal, or when another thread has taken the event.
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
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.notifier.as_fd()
    }
}

/// One connection or one listener (`rdma_cm_id`). Cheap to clone; equal when the same.
///
/// Dropping it changes nothing: a listener listens until [`disconnect`](Self::disconnect), so keep one of its clones (each
/// of its `ConnectRequest` events has one too); a connect request stays undecided, and counts in its listener's
/// backlog, until it is accepted or rejected or its peer gives up; a connection lives as long as its queue pair.
#[derive(Clone)]
pub struct CmId {
    pub(crate) shared: Arc<CmShared>,
}

/// What an identifier shares with its engine.
pub(crate) struct CmShared {
    context: Arc<ContextShared>,
    channel: EventChannel,
    state: Mutex<CmState>,
}

#[derive(Default)]
struct CmState {
    phase: CmPhase,
    qp: Option<(Weak<QpShared>, Weak<QpOwner>)>,
    addresses: Option<(SocketAddr, SocketAddr)>,
}

#[derive(Default)]
enum CmPhase {
    /// Nothing asked for yet.
    #[default]
    Idle,
    /// Listens, on all engines.
    Listening { port: u16 },
    /// A connect request that waits for its decision.
    Requested { engine: Arc<EngineShared>, conn: ConnId },
    /// A connection that `engine` makes or carries.
    Connected { engine: Arc<EngineShared> },
    /// Rejected, disconnected or stopped listening.
    Over,
}

/// What users ask of an engine.
pub(crate) enum CmCommand {
    /// Start a connection.
    Connect { id: CmId, qp: Arc<QpShared>, remote: SocketAddr, param: Box<ConnParam> },
    /// Accept connections.
    Listen { id: CmId, port: u16, backlog: usize, timeout: Duration },
    /// Stop accepting.
    Unlisten { port: u16 },
    /// Accept a connect request.
    Accept { id: CmId, conn: ConnId, qp: Arc<QpShared>, param: Box<ConnParam> },
    /// Reject a connect request.
    Reject { conn: ConnId, private_data: ArrayVec<u8, MAX_PRIVATE_DATA> },
    /// Close gracefully.
    Disconnect { id: CmId },
    /// Reset.
    Abort { id: CmId },
}

impl CmCommand {
    /// The engine is gone: what can only be told by it is told now.
    pub(crate) fn refuse(self) {
        match self {
            Self::Connect { id, qp, .. } => {
                id.not_connected(&qp, ConnectionError::Tcp(CloseReason::Aborted));
            }
            // The end of its connection tells the identifier.
            Self::Accept { qp, .. } => qp.enter_error(),
            Self::Listen { .. }
            | Self::Unlisten { .. }
            | Self::Reject { .. }
            | Self::Disconnect { .. }
            | Self::Abort { .. } => {}
        }
    }
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

impl CmId {
    pub(crate) fn new(context: Arc<ContextShared>, channel: EventChannel) -> Self {
        Self { shared: Arc::new(CmShared { context, channel, state: Mutex::default() }) }
    }

    /// The identifier of a connect request: `conn` of `engine` asks this listener.
    pub(crate) fn requested(
        &self,
        engine: &Arc<EngineShared>,
        conn: ConnId,
        addresses: (SocketAddr, SocketAddr),
    ) -> Self {
        let id = Self::new(Arc::clone(&self.shared.context), self.shared.channel.clone());
        {
            let mut state = id.state();
            state.phase = CmPhase::Requested { engine: Arc::clone(engine), conn };
            state.addresses = Some(addresses);
        }
        id
    }

    pub(crate) fn announce(&self, listener: Option<&Self>, kind: CmEventKind) {
        self.shared.channel.push(CmEvent { id: self.clone(), listener: listener.cloned(), kind });
    }

    pub(crate) fn set_addresses(&self, addresses: (SocketAddr, SocketAddr)) {
        self.state().addresses = Some(addresses);
    }

    /// No connection was made for `qp`, and none will be.
    pub(crate) fn not_connected(&self, qp: &QpShared, error: ConnectionError) {
        qp.enter_error();
        self.set_over();
        self.announce(None, CmEventKind::ConnectError { error });
    }

    /// The connection is over: nothing can be asked of it any more.
    pub(crate) fn set_over(&self) {
        self.state().phase = CmPhase::Over;
    }

    fn state(&self) -> MutexGuard<'_, CmState> {
        self.shared.state.lock().expect("no holder of this lock panics")
    }

    /// Connects `qp` to `remote` (`rdma_connect`). An `Established`, `Rejected` or `ConnectError` event follows.
    ///
    /// # Errors
    /// [`VerbsError`]: the queue pair is not idle, a parameter is out of range, there is no engine.
    pub fn connect(&self, qp: &QueuePair, remote: SocketAddr, param: &ConnParam) -> Result<(), VerbsError> {
        param.check()?;
        let engine = self.shared.context.engine(param.engine)?;
        let mut state = self.state();
        if !matches!(state.phase, CmPhase::Idle) {
            return Err(VerbsError::Invalid("this identifier is in use: create another one".into()));
        }
        qp.shared.bind(&engine, param.responder_resources)?;
        state.qp = Some((Arc::downgrade(&qp.shared), Arc::downgrade(&qp.owner)));
        state.phase = CmPhase::Connected { engine: Arc::clone(&engine) };
        drop(state);
        engine.command(CmCommand::Connect {
            id: self.clone(),
            qp: Arc::clone(&qp.shared),
            remote,
            param: Box::new(param.clone()),
        });
        Ok(())
    }

    /// Listens on `port` of every address of every engine that there is now (`rdma_listen`). `ConnectRequest` events
    /// follow, at most `backlog` of which may be undecided. `timeout` is how long a peer may take for its MPA Request.
    /// An engine that cannot listen says so by a `ConnectError` event.
    ///
    /// # Errors
    /// [`VerbsError`]: the port is taken, there is no engine.
    pub fn listen(&self, port: u16, backlog: usize, timeout: Duration) -> Result<(), VerbsError> {
        let engines = self.shared.context.engines();
        if engines.is_empty() {
            return Err(VerbsError::NoEngine);
        }
        let mut state = self.state();
        if !matches!(state.phase, CmPhase::Idle) {
            return Err(VerbsError::Invalid("this identifier is in use: create another one".into()));
        }
        self.shared.context.claim_port(port)?;
        state.phase = CmPhase::Listening { port };
        drop(state);
        for engine in engines {
            engine.command(CmCommand::Listen { id: self.clone(), port, backlog, timeout });
        }
        Ok(())
    }

    /// Accepts a connect request with `qp` (`rdma_accept`). An `Established` or `ConnectError` event follows.
    /// `param.initiator_depth` and `responder_resources` are upper bounds; RFC 6581 settles the values.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn accept(&self, qp: &QueuePair, param: &ConnParam) -> Result<(), VerbsError> {
        param.check()?;
        let mut state = self.state();
        let (engine, conn) = state.requested()?;
        qp.shared.bind(&engine, param.responder_resources)?;
        state.qp = Some((Arc::downgrade(&qp.shared), Arc::downgrade(&qp.owner)));
        state.phase = CmPhase::Connected { engine: Arc::clone(&engine) };
        drop(state);
        engine.command(CmCommand::Accept {
            id: self.clone(),
            conn,
            qp: Arc::clone(&qp.shared),
            param: Box::new(param.clone()),
        });
        Ok(())
    }

    /// Rejects a connect request (`rdma_reject`), with up to 508 octets of private data: what the Reply to any Request
    /// can carry.
    ///
    /// # Errors
    /// [`VerbsError::TooLong`], [`VerbsError::Invalid`] when no request waits for a decision.
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        let max = MAX_PRIVATE_DATA - ENHANCED_OCTETS;
        let too_long = VerbsError::TooLong { got: private_data.len() as u64, max: max as u64 };
        let private_data = ArrayVec::try_from(private_data)
            .ok()
            .filter(|octets: &ArrayVec<u8, MAX_PRIVATE_DATA>| octets.len() <= max)
            .ok_or(too_long)?;
        let mut state = self.state();
        let (engine, conn) = state.requested()?;
        state.phase = CmPhase::Over;
        drop(state);
        engine.command(CmCommand::Reject { conn, private_data });
        Ok(())
    }

    /// Closes gracefully: what was posted is sent, Reads are answered, then FIN (`rdma_disconnect`). What the peer
    /// sends after our FIN is dropped. A `Disconnected` event follows for an established connection; one that is
    /// not established yet is aborted, and a `ConnectError` follows. For a connect request: rejects. For a listener:
    /// stops listening; requests that were announced can still be decided.
    pub fn disconnect(&self) {
        self.end(|id| CmCommand::Disconnect { id });
    }

    /// Ends the connection at once: RST, everything posted is flushed. The event says [`CloseReason::Aborted`]. For
    /// connect requests and listeners the same as [`disconnect`](Self::disconnect).
    pub fn abort(&self) {
        self.end(|id| CmCommand::Abort { id });
    }

    fn end(&self, command: impl FnOnce(Self) -> CmCommand) {
        let mut state = self.state();
        match &state.phase {
            CmPhase::Idle | CmPhase::Over => {}
            CmPhase::Listening { port } => {
                let port = *port;
                state.phase = CmPhase::Over;
                drop(state);
                for engine in self.shared.context.engines() {
                    engine.command(CmCommand::Unlisten { port });
                }
                self.shared.context.release_port(port);
            }
            CmPhase::Requested { engine, conn } => {
                let (engine, conn) = (Arc::clone(engine), *conn);
                state.phase = CmPhase::Over;
                drop(state);
                engine.command(CmCommand::Reject { conn, private_data: ArrayVec::new() });
            }
            CmPhase::Connected { engine } => {
                let engine = Arc::clone(engine);
                drop(state);
                engine.command(command(self.clone()));
            }
        }
    }

    /// The queue pair it carries, once connected or accepted and while it lives.
    pub fn qp(&self) -> Option<QueuePair> {
        let state = self.state();
        let (shared, owner) = state.qp.as_ref()?;
        Some(QueuePair { shared: shared.upgrade()?, owner: owner.upgrade()? })
    }

    /// Our address and the peer's, once there is a connection.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        self.state().addresses
    }
}

impl CmState {
    fn requested(&self) -> Result<(Arc<EngineShared>, ConnId), VerbsError> {
        match &self.phase {
            CmPhase::Requested { engine, conn } => Ok((Arc::clone(engine), *conn)),
            _ => {
                Err(VerbsError::Invalid("no connect request waits for a decision on this identifier".into()))
            }
        }
    }
}
