//! Errors of endpoints, connections and regions.

use std::io;

use iwarp::verbs::{ConnectionError, VerbsError, WcStatus};
use iwarp_wire::OpenError;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The verbs API has refused a call.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A wire could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The connection could not be made, or has ended.
    #[error("the connection has ended: {0}")]
    Connection(#[from] ConnectionError),
    /// The connection was closed gracefully, this side has closed or aborted it, or the endpoint's runtime
    /// has shut down.
    #[error("the connection is closed")]
    Closed,
    /// The peer rejected the connection.
    #[error("the peer rejected the connection ({} bytes of private data)", private_data.len())]
    Rejected {
        /// The peer's private data.
        private_data: Box<[u8]>,
    },
    /// A request, or the receive of a message, has failed with this status.
    #[error("the request failed: {0}")]
    Request(WcStatus),
    /// A range is not within its region.
    #[error("bytes {start} to {end} are not within a region of {len}")]
    OutOfRange {
        /// The position of the first byte.
        start: u64,
        /// The position after the last byte.
        end: u64,
        /// The length of the region.
        len: u64,
    },
    /// Two ranges of one request differ in length.
    #[error("{local} bytes here, and {remote} bytes at the peer: give two ranges of one length")]
    Lengths {
        /// Length of the local range, bytes.
        local: u64,
        /// Length of the peer's range, bytes.
        remote: u64,
    },
    /// The bytes of a call are more than the call allows. For most calls,
    /// [`message_bytes`](crate::ConnectionOptions::message_bytes) is the limit.
    #[error("{got} bytes are more than a buffer of the connection has: raise `message_bytes` above {max}")]
    TooLong {
        /// Number of bytes of the call.
        got: usize,
        /// Maximum number of bytes.
        max: usize,
    },
    /// Bytes from the peer do not encode a remote region.
    #[error("{0} bytes are no remote region, which has 20")]
    NoRegion(usize),
    /// A name could not be resolved to an address that this endpoint can reach.
    #[error("{0}")]
    Name(String),
    /// The peer does not use the protocol of [`Stream`](crate::Stream).
    #[error("the peer sent no valid message of a stream: {0}")]
    Protocol(&'static str),
    /// An error of the operating system.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// The result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        use io::ErrorKind as Kind;
        let kind = match error {
            Error::System(error) => return error,
            Error::Verbs(error) => return error.into(),
            Error::Open(OpenError::Local(error)) => return error.into(),
            Error::Open(OpenError::Packet(error)) => return error.into(),
            Error::Connection(cause) => Self::from(cause).kind(),
            Error::Rejected { .. } => Kind::ConnectionRefused,
            Error::Closed => Kind::BrokenPipe,
            Error::OutOfRange { .. } | Error::Lengths { .. } | Error::TooLong { .. } => Kind::InvalidInput,
            Error::NoRegion(_) | Error::Protocol(_) => Kind::InvalidData,
            Error::Name(_) => Kind::NotFound,
            Error::Open(_) | Error::Request(_) => Kind::Other,
        };
        Self::new(kind, error)
    }
}
