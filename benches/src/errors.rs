//! The errors that can end a run. Each error has a message of one line and an exit status.

use std::net::SocketAddr;
use std::time::Duration;

use iwarp::verbs::{ConnectionError, VerbsError, WcStatus};
use tcp_lite::CloseReason;

/// Why a run ended early. `Display` prints the line that users see.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid option or combination of options.
    #[error("{0}")]
    Usage(String),
    /// The port could not be opened, for instance because the device does not exist, its driver is missing,
    /// or memory is short.
    #[error("cannot open the port: {0}")]
    Port(String),
    /// The connection was not established, for example because the peer did not answer, or refused or
    /// rejected the connection.
    #[error("cannot connect to {remote}: {reason}")]
    Connect {
        /// The peer's address.
        remote: SocketAddr,
        /// The cause.
        reason: NotConnected,
    },
    /// A peer has asked for a connection, but the connection was not established.
    #[error("the connection from {remote} was not established: {reason}")]
    Accept {
        /// The peer's address.
        remote: SocketAddr,
        /// The cause, without advice for a client.
        reason: String,
    },
    /// An iwperf server rejected the test, with a reason.
    #[error("{remote} rejected the test: {reason}")]
    Rejected {
        /// The server's address.
        remote: SocketAddr,
        /// The reason for the rejection.
        reason: String,
    },
    /// Nothing arrived from the peer within the time limit.
    #[error("the peer was silent for {} s while {doing}", .after.as_secs_f32())]
    Silent {
        /// What this side was doing at that time.
        doing: &'static str,
        /// The time limit.
        after: Duration,
    },
    /// The connection ended during the test.
    #[error("the connection ended while {doing}: {}", ending(*.error))]
    Disconnected {
        /// What this side was doing at that time.
        doing: &'static str,
        /// The error of the connection, or `None` if the connection ended gracefully.
        error: Option<ConnectionError>,
    },
    /// Ctrl-C or SIGTERM ended the peer during the test, and the peer is another iwperf.
    #[error("the connection ended while {doing}: the peer was interrupted, by Ctrl-C or SIGTERM")]
    PeerInterrupted {
        /// What this side was doing at that time.
        doing: &'static str,
    },
    /// A work request failed.
    #[error("{what} failed: {status}{}", .detail.as_ref().map_or_else(String::new, |d| format!(" ({d})")))]
    Completion {
        /// A description of the request.
        what: &'static str,
        /// The status of the completion.
        status: WcStatus,
        /// The cause in words, if the completion has a cause.
        detail: Option<String>,
    },
    /// The peer sent a message that is not part of perftest's exchange.
    #[error("the peer does not follow perftest's exchange: {0}")]
    Exchange(String),
    /// `--validate` found bytes that differ from the bytes that were sent.
    #[error("validation failed: {0}")]
    Validation(String),
    /// The run was slower than `--limit_bw` or `--limit_msgrate` allows.
    #[error("{0}")]
    Limit(String),
    /// Ctrl-C or SIGTERM ended this process, or another side of this process has failed.
    #[error("interrupted")]
    Interrupted,
    /// A verbs call failed.
    #[error("{0}")]
    Verbs(#[from] VerbsError),
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// What failed.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
}

impl Error {
    /// The exit status: 2 for wrong usage, 130 for an interrupt, 1 for everything else.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Interrupted => 130,
            _ => 1,
        }
    }

    /// Whether the error shows only that a connection has ended, but not why. There are two such errors: a
    /// flushed request, and a verbs call that the queue pair refuses because of its state. The event of the
    /// connection has the reason.
    pub(crate) fn lacks_its_reason(&self) -> bool {
        matches!(
            self,
            Self::Completion { status: WcStatus::WrFlushError, .. }
                | Self::Verbs(VerbsError::InvalidState(_))
        )
    }
}

/// Why a connection was not made. For some causes, `Display` also names the options that help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotConnected {
    /// The error that our stack or the peer's stack reports.
    #[error("{}", advice(*.0))]
    Error(ConnectionError),
    /// The peer has closed the connection before the connection was established.
    #[error("closed by the peer")]
    Closed,
    /// Another reason, in words.
    #[error("{0}")]
    Other(String),
}

impl NotConnected {
    /// The cause in words for the accepting end, without the advice for a client.
    pub(crate) fn of_peer(&self) -> String {
        match self {
            Self::Error(error) => error.to_string(),
            other => other.to_string(),
        }
    }

    /// Whether the peer exists but no process listens at its port.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Error(ConnectionError::Tcp(CloseReason::Refused)))
    }
}

/// Describes how a connection has ended during a test.
fn ending(error: Option<ConnectionError>) -> String {
    match error {
        None => "closed by the peer".into(),
        // When an error ends iwperf, its connections are reset. When a signal ends another program, that
        // program's connections are also reset.
        Some(error @ ConnectionError::Tcp(CloseReason::Reset)) => {
            format!("{error}, which was interrupted or has failed: see its output")
        }
        Some(error) => error.to_string(),
    }
}

fn advice(error: ConnectionError) -> String {
    match error {
        ConnectionError::NoRoute => {
            "its address is in no network of --ip: give --gateway ADDR, or an --ip of its network".into()
        }
        ConnectionError::Tcp(CloseReason::NoNeighbor) => {
            "nobody answers for its address, or for that of --gateway (ARP, NDP): start the server first, and check both --ip"
                .into()
        }
        ConnectionError::Tcp(CloseReason::Unreachable | CloseReason::Refused | CloseReason::TimedOut) => {
            format!("{error}: start the server first, and check its --ip and port")
        }
        error => error.to_string(),
    }
}

impl From<std::io::Error> for Error {
    fn from(source: std::io::Error) -> Self {
        Self::System { what: "system".into(), source }
    }
}

#[cfg(test)]
mod tests {
    use iwarp::verbs::QpState;

    use super::*;

    #[test]
    fn every_message_is_one_line() {
        let errors = [
            Error::Usage("--size: at least 1".into()),
            Error::Silent { doing: "connecting", after: Duration::from_secs(10) },
            Error::Disconnected { doing: "measuring", error: None },
            Error::PeerInterrupted { doing: "measuring" },
            Error::Completion { what: "Write", status: WcStatus::RemoteAccessError, detail: None },
            Error::Interrupted,
        ];
        for error in errors {
            let text = error.to_string();
            assert!(!text.is_empty() && !text.contains('\n'), "{text:?}");
        }
    }

    #[test]
    fn a_connection_that_is_not_made_says_what_to_do() {
        for (error, says) in [
            (ConnectionError::NoRoute, "give --gateway ADDR"),
            (ConnectionError::Tcp(CloseReason::NoNeighbor), "nobody answers for its address"),
            (ConnectionError::Tcp(CloseReason::Refused), "connection refused: start the server first"),
            (ConnectionError::Tcp(CloseReason::TimedOut), "does not answer: start the server first"),
            (ConnectionError::Rejected, "the peer rejected the connection"),
        ] {
            let told = NotConnected::Error(error).to_string();
            assert!(told.contains(says) && !told.contains('\n'), "{told}");
        }
    }

    /// The message at the accepting end contains no advice about starting a server.
    #[test]
    fn a_connection_that_came_in_is_not_told_as_one_that_goes_out() {
        let remote = "10.0.0.2:4711".parse().unwrap();
        let told = |error| {
            let reason = NotConnected::Error(error).of_peer();
            Error::Accept { remote, reason }.to_string()
        };
        let line = told(ConnectionError::Tcp(CloseReason::TimedOut));
        assert!(line.starts_with("the connection from 10.0.0.2:4711 was not established: "), "{line}");
        for error in [CloseReason::TimedOut, CloseReason::Refused, CloseReason::Unreachable] {
            let line = told(ConnectionError::Tcp(error));
            assert!(!line.contains("start the server") && !line.contains("connect to"), "{line}");
        }
        let closed = Error::Accept { remote, reason: NotConnected::Closed.of_peer() }.to_string();
        assert!(closed.ends_with("closed by the peer"), "{closed}");
    }

    #[test]
    fn a_request_of_an_ended_connection_lacks_the_reason() {
        let completed = |status| Error::Completion { what: "Send", status, detail: None };
        assert!(completed(WcStatus::WrFlushError).lacks_its_reason());
        assert!(!completed(WcStatus::RemoteAccessError).lacks_its_reason());
        assert!(Error::Verbs(VerbsError::InvalidState(QpState::Closing)).lacks_its_reason());
        assert!(!Error::Verbs(VerbsError::QueueFull("send")).lacks_its_reason());
        assert!(!Error::Interrupted.lacks_its_reason());
    }

    #[test]
    fn a_peer_that_was_interrupted_is_not_only_a_reset() {
        let told = |error| Error::Disconnected { doing: "measuring", error }.to_string();
        let reset = told(Some(ConnectionError::Tcp(CloseReason::Reset)));
        assert_eq!(
            reset,
            "the connection ended while measuring: reset by the peer, which was interrupted or has failed: \
             see its output"
        );
        assert_eq!(told(None), "the connection ended while measuring: closed by the peer");
        assert!(!told(Some(ConnectionError::Tcp(CloseReason::TimedOut))).contains("interrupted"));
    }

    #[test]
    fn a_silent_peer_is_named_with_the_time() {
        let error = Error::Silent { doing: "connecting", after: Duration::from_secs(10) };
        assert_eq!(error.to_string(), "the peer was silent for 10 s while connecting");
    }
}
