//! Converts errors to `std::io::Error`, for programs whose functions return this type. Except for
//! [`VerbsError::System`] and [`VerbsError::Region`], the converted error contains the original error, which
//! [`io::Error::downcast`] returns.

use std::io::{self, ErrorKind};

use super::{ConnectionError, VerbsError};

impl ConnectionError {
    /// The kind of the [`io::Error`] into which this error is converted.
    ///
    /// | kind | errors |
    /// |---|---|
    /// | the kind of the [`CloseReason`](tcp_lite::CloseReason::kind) | `Tcp` |
    /// | `NetworkUnreachable` | `NoRoute` |
    /// | `ConnectionRefused` | `Rejected` |
    /// | `TimedOut` | `StartupTimeout`, `DecisionTimeout`, `IdleTimeout`, `CloseTimeout`, `ReceiverNotReady` |
    /// | `InvalidData` | `Startup` |
    /// | `ConnectionReset` | `Stream`, if the peer has sent the Terminate |
    /// | `ConnectionAborted` | `Stream`, if this endpoint found the error |
    /// | `UnexpectedEof` | `PeerClosed` |
    /// | `AddrInUse` | `PortInUse` |
    /// | `ResourceBusy` | `NoResources` |
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Tcp(reason) => reason.kind(),
            Self::NoRoute => ErrorKind::NetworkUnreachable,
            Self::Rejected => ErrorKind::ConnectionRefused,
            Self::StartupTimeout
            | Self::DecisionTimeout
            | Self::IdleTimeout
            | Self::CloseTimeout
            | Self::ReceiverNotReady => ErrorKind::TimedOut,
            Self::Startup(_) => ErrorKind::InvalidData,
            Self::Stream(error) if error.from_peer => ErrorKind::ConnectionReset,
            Self::Stream(_) => ErrorKind::ConnectionAborted,
            Self::PeerClosed => ErrorKind::UnexpectedEof,
            Self::PortInUse => ErrorKind::AddrInUse,
            Self::NoResources => ErrorKind::ResourceBusy,
        }
    }
}

impl From<ConnectionError> for io::Error {
    fn from(error: ConnectionError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// The kind is `WouldBlock` for a full queue, and `NotConnected` for a queue pair in a state that does not
/// allow the call or a context without an engine. The kind is `AddrInUse` for a port in use, `QuotaExceeded`
/// for a limit, and `InvalidInput` for any other refused argument. For a completion queue that has lost
/// completions, the kind is `Other`. An error of the system is unchanged. A region that could not be
/// allocated has the kind of its own error.
impl From<VerbsError> for io::Error {
    fn from(error: VerbsError) -> Self {
        let kind = match error {
            VerbsError::System(error) => return error,
            VerbsError::Region(error) => return error.into(),
            VerbsError::QueueFull(_) => ErrorKind::WouldBlock,
            VerbsError::InvalidState(_) | VerbsError::NoEngine => ErrorKind::NotConnected,
            VerbsError::PortInUse(_) => ErrorKind::AddrInUse,
            VerbsError::Limit { .. } => ErrorKind::QuotaExceeded,
            VerbsError::TooManySge { .. }
            | VerbsError::TooLong { .. }
            | VerbsError::AtomicLength { .. }
            | VerbsError::LocalProtection(_)
            | VerbsError::CqTooSmall { .. }
            | VerbsError::Inaccessible(_)
            | VerbsError::Invalid(_) => ErrorKind::InvalidInput,
            VerbsError::CqOverflowed => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::StreamError;
    use tcp_lite::CloseReason;

    #[test]
    fn a_cause_keeps_its_kind_and_itself() {
        let stream = StreamError { layer: 0, etype: 1, code: 0, from_peer: true };
        for (error, kind) in [
            (ConnectionError::Tcp(CloseReason::Reset), ErrorKind::ConnectionReset),
            (ConnectionError::Tcp(CloseReason::Refused), ErrorKind::ConnectionRefused),
            (ConnectionError::Tcp(CloseReason::TimedOut), ErrorKind::TimedOut),
            (ConnectionError::Tcp(CloseReason::LinkDown), ErrorKind::NetworkDown),
            (ConnectionError::Tcp(CloseReason::PortGone), ErrorKind::NetworkDown),
            (ConnectionError::Tcp(CloseReason::Unreachable), ErrorKind::HostUnreachable),
            (ConnectionError::NoRoute, ErrorKind::NetworkUnreachable),
            (ConnectionError::Rejected, ErrorKind::ConnectionRefused),
            (ConnectionError::Stream(stream), ErrorKind::ConnectionReset),
            (
                ConnectionError::Stream(StreamError { from_peer: false, ..stream }),
                ErrorKind::ConnectionAborted,
            ),
            (ConnectionError::PeerClosed, ErrorKind::UnexpectedEof),
        ] {
            let converted = io::Error::from(error);
            assert_eq!((converted.kind(), converted.to_string()), (kind, error.to_string()));
            assert_eq!(converted.downcast::<ConnectionError>().unwrap(), error);
        }
    }

    #[test]
    fn an_error_of_the_system_is_not_wrapped() {
        let system = || io::Error::from_raw_os_error(libc::EMFILE);
        assert_eq!(io::Error::from(VerbsError::System(system())).raw_os_error(), Some(libc::EMFILE));
        let region = dp::region::RegionError::NoMemory { bytes: 1, source: system() };
        assert_eq!(io::Error::from(VerbsError::Region(region)).kind(), ErrorKind::OutOfMemory);
        let full = io::Error::from(VerbsError::QueueFull("send"));
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert!(full.to_string().contains("the send queue is full"));
    }
}
