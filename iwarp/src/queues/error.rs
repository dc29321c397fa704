//! Errors of calls, and the reasons why a connection ended.

use tcp_lite::CloseReason;

use crate::mpa::StartupFault;

/// Why a call was refused. A refused call changes nothing, unless the documentation of the call says
/// otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The queue is full. Poll completions first, or create a deeper queue.
    #[error("the {0} queue is full: poll completions before posting more")]
    QueueFull(&'static str),
    /// The state of the queue pair does not allow the call.
    #[error(
        "the queue pair is in state {0:?}: a connection needs a new one (Idle), and sending needs an established one (Rts), or QpInit::early_sends"
    )]
    InvalidState(super::QpState),
    /// The request has more than `max_sge` elements, or, if it is an atomic, more than one element.
    #[error("too many scatter/gather elements: {got}, at most {max}")]
    TooManySge {
        /// Number of elements of the request.
        got: usize,
        /// Maximum number of elements.
        max: usize,
    },
    /// The request has more than 2^32 - 1 bytes, an inline request has more bytes than the queue pair allows,
    /// or private data has more bytes than its startup frame can carry.
    #[error("a message of {got} bytes is too long: at most {max}")]
    TooLong {
        /// Number of bytes of the request or of the private data.
        got: u64,
        /// Maximum number of bytes.
        max: u64,
    },
    /// The local buffer of an atomic does not have eight bytes, the length of the returned value.
    #[error("an atomic returns 8 bytes: give it one element of that length, not {got}")]
    AtomicLength {
        /// The length of the buffer.
        got: u64,
    },
    /// A key, range or right of local memory is wrong.
    #[error("local memory: {0}")]
    LocalProtection(String),
    /// A limit of the context or of a request is reached.
    #[error("limit reached: {name} = {limit}")]
    Limit {
        /// The limit's name in [`ContextLimits`](super::ContextLimits), the name of a constant such as
        /// `MAX_SGE`, or the kind of number that is used up.
        name: &'static str,
        /// The value of the limit.
        limit: usize,
    },
    /// The completion queue would be too small for its queues, and its size is checked
    /// ([`CqOptions::strict`](super::CqOptions::strict)).
    #[error(
        "a completion queue of {cqe} entries for queues that may need {needed}: resize it, or make the queues shorter"
    )]
    CqTooSmall {
        /// Number of entries of the completion queue.
        cqe: usize,
        /// Maximum number of entries that the work queues of the completion queue can fill.
        needed: usize,
    },
    /// The completion queue has already lost completions.
    #[error(
        "the completion queue has overflowed: make another one, with an entry for each request (`cqe_for`)"
    )]
    CqOverflowed,
    /// The process itself may not access this memory in the requested way, or the library cannot determine
    /// whether it may.
    #[error("{0}")]
    Inaccessible(String),
    /// A parameter is invalid, or the call is not possible in this situation.
    #[error("{0}")]
    Invalid(String),
    /// Another listener of the context listens on the port.
    #[error("port {0} is being listened on: choose another port, or end its listener")]
    PortInUse(u16),
    /// The context has no running engine for the connection or the listener.
    #[error("the context has no engine: make one before connecting or listening")]
    NoEngine,
    /// A call of the system failed, for example because no memory, descriptor or thread is available.
    #[error("{0}")]
    System(#[from] std::io::Error),
    /// The memory of a region could not be allocated.
    #[error(transparent)]
    Region(#[from] dp::region::RegionError),
}

/// An error of the RDMA stream: layer, type and code of RFC 5040 section 4.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamError {
    /// The layer: 0 is RDMAP, 1 is DDP, 2 is MPA (LLP).
    pub layer: u8,
    /// The error type, whose meaning depends on the layer.
    pub etype: u8,
    /// The error code, whose meaning depends on layer and type.
    pub code: u8,
    /// Whether the peer reported the error in a Terminate. If `false`, this endpoint found the error.
    pub from_peer: bool,
}

impl std::error::Error for StreamError {}

impl std::fmt::Display for StreamError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let who = if self.from_peer { "the peer terminated" } else { "terminated" };
        let Self { layer, etype, code, .. } = self;
        let known = crate::rdmap::TerminateError::from_codes(*layer, *etype, *code);
        let name = known.map_or("an error without a name", crate::rdmap::TerminateError::text);
        write!(f, "{who} the stream: {name} (layer {layer:#x}, type {etype:#x}, code {code:#04x})")
    }
}

/// Why a connection could not be set up, or why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// TCP closed the connection for this reason.
    #[error("{0}")]
    Tcp(CloseReason),
    /// The peer's address is in no network of the engine, and the engine has no gateway of the same address
    /// family ([`StackConfig::gateways`](tcp_lite::StackConfig::gateways)).
    #[error("its address is in no network of this end: add an address of that network, or a gateway")]
    NoRoute,
    /// The peer rejected the connection. The event has the peer's private data.
    #[error("the peer rejected the connection")]
    Rejected,
    /// The peer did not send its MPA Request, its Reply or the RTR in time.
    #[error("the peer did not complete MPA startup in time")]
    StartupTimeout,
    /// The MPA startup of the peer was invalid or is not accepted here (MPA error code 4).
    #[error("MPA startup failed: {0}")]
    Startup(StartupFault),
    /// The user did not accept or reject the connect request in time, so the request was rejected.
    #[error("the connect request was not decided on in time")]
    DecisionTimeout,
    /// Nothing was sent or received for `ConnParam::idle_timeout`: no FPDU, and in streaming mode no byte.
    #[error("the connection was idle for too long")]
    IdleTimeout,
    /// An error of the RDMA stream.
    #[error("{0}")]
    Stream(#[from] StreamError),
    /// The peer closed the connection before startup was complete, in the middle of an FPDU, or while
    /// requests were outstanding. This is also the [cause](crate::verbs::QueuePair::cause) after a graceful
    /// close by the peer.
    #[error("the peer closed the connection")]
    PeerClosed,
    /// The peer did not complete a graceful close or a Terminate in time. Also the error if, before a close,
    /// the peer did not answer a Read or acknowledge our data in time.
    #[error("the peer did not close the connection, or answer a Read before that, in time")]
    CloseTimeout,
    /// The peer did not post a receive request for our message in time
    /// ([`WcStatus::RnrRetryExceeded`](super::WcStatus::RnrRetryExceeded)).
    #[error("the peer had no receive request for a message in time")]
    ReceiverNotReady,
    /// The requested local port is already in use for a connection to this peer.
    #[error("the local port is in use: choose another one, or let the stack choose")]
    PortInUse,
    /// Resources of the stack or the engine are used up. For example, no connection, no port or no slot for a
    /// received buffer is free, or the stack listens on the maximum number of ports.
    #[error("no resources for the connection: close connections or raise the engine's limits")]
    NoResources,
}

// Each completion contains a value of this type, so a larger type would make every completion larger.
const _: () = assert!(size_of::<Option<ConnectionError>>() == 4);

impl ConnectionError {
    /// Returns layer, type and code if the error is an error of the RDMA stream, and otherwise `None`.
    pub fn stream(&self) -> Option<StreamError> {
        match self {
            Self::Stream(error) => Some(*error),
            _ => None,
        }
    }

    /// Returns the MPA error code (RFC 5044 section 8, RFC 6581 section 8), if the error has an MPA code. A
    /// lost connection has code 1, and an invalid startup has code 4. An error of the stream in layer MPA has
    /// its own code.
    pub fn mpa_code(&self) -> Option<u8> {
        match self {
            Self::Tcp(_) | Self::PeerClosed => Some(1),
            Self::Startup(_) => Some(4),
            Self::Stream(StreamError { layer: 2, etype: 0, code, .. }) => Some(*code),
            Self::NoRoute
            | Self::Rejected
            | Self::StartupTimeout
            | Self::DecisionTimeout
            | Self::IdleTimeout
            | Self::Stream(_)
            | Self::CloseTimeout
            | Self::ReceiverNotReady
            | Self::PortInUse
            | Self::NoResources => None,
        }
    }
}
