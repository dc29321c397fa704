//! The reasons why an RDMA stream ends: an error that this side has found, the peer's Terminate, or the end
//! of the TCP connection (RFC 5040 section 7).

use std::sync::Arc;

use crate::mpa::{Action, MpaError};
use crate::queues::{Origin, StreamError, TerminateOrigin, TerminateReport};
use crate::rdmap::{Terminate, TerminateError};

/// Why a stream ends. The Terminates are boxed so that a `Failure` is small: the functions of the data path
/// return a `Result` that contains it.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// An error that this side has found. The Terminate is sent to the peer, if possible.
    Here(Box<Terminate>),
    /// Memory that a correct message of the peer, or the answer to such a message, uses is not valid, for
    /// example because it was revoked in the meantime. The Terminate is sent to the peer, if possible. The
    /// error counts as a fault of our user. (A peer may also revoke memory, by a Send with Invalidate after
    /// its own Read. The two cases are not distinguished here.)
    User(Box<Terminate>),
    /// The peer's Terminate.
    Peer(Box<Terminate>),
    /// A Terminate of the peer without a readable error: it fails a check of DDP or RDMAP, or is incomplete.
    /// The Terminate ends the stream like any other Terminate, and is not answered (RFC 5040 section 7.2).
    Unreadable,
    /// TCP's receive direction ended inside an FPDU or before an expected response, or MPA cannot continue.
    /// No Terminate can be sent.
    Lost(MpaError),
}

/// How a connection ends whose stream has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// A Terminate is sent as the stream's last message. FIN follows.
    Terminating,
    /// The peer has sent its Terminate. FIN follows.
    Terminated,
    /// No Terminate is sent to the peer, as on InfiniBand. FIN follows.
    Silent,
    /// No Terminate can be sent to the peer. TCP is reset.
    Lost,
}

impl Failure {
    pub(super) fn here(error: TerminateError) -> Self {
        Self::Here(Box::new(Terminate::bare(error)))
    }

    /// Returns the failure for a defect of this crate: the condition `what` does not hold. The failure ends
    /// the stream, because the stream might otherwise lose bytes without notice.
    #[cold]
    pub(super) fn defect(what: &str) -> Self {
        debug_assert!(false, "{what}");
        Self::here(TerminateError::LocalCatastrophic)
    }

    /// Returns where the error was found.
    pub(super) fn origin(&self) -> Origin {
        match self {
            Self::Here(_) => Origin::Here,
            Self::User(_) => Origin::User,
            Self::Peer(_) | Self::Unreadable => Origin::Peer,
            Self::Lost(_) => Origin::Lost,
        }
    }

    /// Whether the peer is known to be the cause, by an invalid message or by its Terminate. A local
    /// catastrophic error of any layer is caused by this side (RFC 5040 section 4.8). MPA also reports such
    /// an error if no slot is left for a received buffer (RFC 6581 section 8). A lost TCP connection may have
    /// any cause.
    pub(crate) fn is_peers(&self) -> bool {
        const OURS: [TerminateError; 3] = [
            TerminateError::LocalCatastrophic,
            TerminateError::DdpLocalCatastrophic,
            TerminateError::MpaStartupCatastrophic,
        ];
        match self {
            Self::Here(terminate) => {
                let Terminate { layer, etype, code, .. } = **terminate;
                !OURS.iter().any(|ours| ours.codes() == (layer, etype, code))
            }
            Self::Peer(_) | Self::Unreadable => true,
            Self::User(_) | Self::Lost(_) => false,
        }
    }

    /// Returns the Terminate for the report to the application; `None` without a Terminate. `may_send` says
    /// whether a Terminate of this side is sent.
    pub(super) fn report(&self, may_send: bool) -> Option<Arc<TerminateReport>> {
        let terminate = self.terminate()?.clone();
        let origin = match self {
            Self::Peer(_) | Self::Unreadable => TerminateOrigin::Received,
            _ if may_send => TerminateOrigin::Sent,
            _ => TerminateOrigin::NotSent,
        };
        Some(Arc::new(TerminateReport { origin, terminate }))
    }

    /// Returns the Terminate that is sent or was received; `None` without a Terminate.
    fn terminate(&self) -> Option<&Terminate> {
        match self {
            Self::Here(terminate) | Self::User(terminate) | Self::Peer(terminate) => Some(terminate),
            Self::Unreadable | Self::Lost(_) => None,
        }
    }

    /// Returns the error for the report to the application. An unreadable Terminate is reported as RDMAP's
    /// unspecified error, since such a Terminate is an RDMAP message that cannot be processed.
    pub(crate) fn stream_error(&self) -> StreamError {
        match self {
            Self::Here(terminate) | Self::User(terminate) => stream_error(terminate, false),
            Self::Peer(terminate) => stream_error(terminate, true),
            Self::Unreadable => {
                let (layer, etype, code) = TerminateError::OperationUnspecified.codes();
                StreamError { layer, etype, code, from_peer: true }
            }
            Self::Lost(error) => {
                let code = error.terminate_code();
                StreamError { layer: code.layer, etype: code.etype, code: code.code, from_peer: false }
            }
        }
    }
}

impl From<MpaError> for Failure {
    fn from(error: MpaError) -> Self {
        match error.action() {
            Action::Terminate => {
                let code = error.terminate_code();
                let known = TerminateError::from_codes(code.layer, code.etype, code.code);
                Self::here(known.unwrap_or(TerminateError::MpaMarker))
            }
            Action::Close | Action::Report => Self::Lost(error),
        }
    }
}

fn stream_error(terminate: &Terminate, from_peer: bool) -> StreamError {
    let Terminate { layer, etype, code, .. } = *terminate;
    StreamError { layer, etype, code, from_peer }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lack of slots for a peer's bytes is not the peer's fault, and does not block its address.
    #[test]
    fn a_lack_of_slots_is_not_the_peers_fault() {
        assert!(!Failure::from(MpaError::NoHeldSlot).is_peers());
        assert!(Failure::from(MpaError::Crc { position: 0 }).is_peers());
        assert!(Failure::from(MpaError::Marker { position: 0 }).is_peers());
    }
}
