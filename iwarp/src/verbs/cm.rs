//! Connection management: identifiers, events, private data.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use arrayvec::ArrayVec;

use super::{ConnectionError, QueuePair, VerbsError};

/// Private data of one MPA startup frame, octets.
pub const MAX_PRIVATE_DATA: usize = 512;

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
            timeout: Duration::from_secs(10),
            engine: None,
            local_port: None,
        }
    }
}

impl ConnParam {
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
#[derive(Clone)]
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
pub struct EventChannel {}

impl EventChannel {
    /// The oldest event, without waiting. With an inline engine, poll the engine and then this.
    pub fn poll(&self) -> Option<CmEvent> {
        todo!()
    }

    /// The oldest event, waiting for it up to `timeout`. Only where an engine thread runs.
    ///
    /// # Errors
    /// What the system says.
    pub fn wait(&self, timeout: Duration) -> std::io::Result<Option<CmEvent>> {
        let _ = timeout;
        todo!()
    }
}

impl AsFd for EventChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        todo!()
    }
}

/// One connection or one listener (`rdma_cm_id`). Cheap to clone; equal when the same.
#[derive(Clone)]
pub struct CmId {}

pub(crate) struct CmShared {}
pub(crate) struct CmCommand {}

impl PartialEq for CmId {
    fn eq(&self, other: &Self) -> bool {
        let _ = other;
        todo!()
    }
}

impl Eq for CmId {}

impl CmId {
    /// Connects `qp` to `remote` (`rdma_connect`). An `Established`, `Rejected` or `ConnectError` event follows.
    ///
    /// # Errors
    /// [`VerbsError`]: the queue pair is not idle, a parameter is out of range, there is no engine.
    pub fn connect(&self, qp: &QueuePair, remote: SocketAddr, param: &ConnParam) -> Result<(), VerbsError> {
        let _ = (qp, remote, param);
        todo!()
    }

    /// Listens on `port` of every address of every engine (`rdma_listen`). `ConnectRequest` events follow, at most
    /// `backlog` of which may be undecided. `timeout` is how long a peer may take for its MPA Request.
    ///
    /// # Errors
    /// [`VerbsError`]: the port is taken, there is no engine.
    pub fn listen(&self, port: u16, backlog: usize, timeout: Duration) -> Result<(), VerbsError> {
        let _ = (port, backlog, timeout);
        todo!()
    }

    /// Accepts a connect request with `qp` (`rdma_accept`). An `Established` or `ConnectError` event follows.
    /// `param.initiator_depth` and `responder_resources` are upper bounds; RFC 6581 settles the values.
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn accept(&self, qp: &QueuePair, param: &ConnParam) -> Result<(), VerbsError> {
        let _ = (qp, param);
        todo!()
    }

    /// Rejects a connect request (`rdma_reject`).
    ///
    /// # Errors
    /// [`VerbsError`].
    pub fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        let _ = private_data;
        todo!()
    }

    /// Closes gracefully: what was posted is sent, then FIN (`rdma_disconnect`). For a listener: stops listening.
    /// A `Disconnected` event follows for a connection.
    pub fn disconnect(&self) {
        todo!()
    }

    /// Ends the connection at once: RST, everything posted is flushed.
    pub fn abort(&self) {
        todo!()
    }

    /// The queue pair it carries, once connected or accepted.
    pub fn qp(&self) -> Option<QueuePair> {
        todo!()
    }

    /// Our address and the peer's, once there is a connection.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        todo!()
    }
}
