//! What an error does to a queue pair: one table from every error, local or told by the peer's Terminate, to
//! the status of the oldest open request, the asynchronous event and the state that is entered at once
//! (`Error` follows when the connection is over).
//!
//! | found | layer/type | what | oldest open send request | event | state |
//! |---|---|---|---|---|---|
//! | here | 0/0, 1/0 | local catastrophic: our user's fault, or an overflown completion queue | [`WrFlushError`][f] | [`QpFatal`][qf] | `Terminate` |
//! | here | any | the answer to a Read or atomic has come, and our user has taken its place away | [`WrFlushError`][f] | [`QpFatal`][qf] | `Terminate` |
//! | here | 0/1, 1/1 | the peer went for memory that it may not access | [`WrFlushError`][f] | [`QpAccessError`][qa] | `Terminate` |
//! | here | 0/2, 1/2 | the peer sent what it may not | [`WrFlushError`][f] | [`QpRequestError`][qr] | `Terminate` |
//! | here | 2/0 | MPA: CRC, markers, negotiation | [`WrFlushError`][f] | [`QpFatal`][qf] | `Terminate` |
//! | by the peer | 0/1, 1/1 | we went for memory that we may not access | [`RemoteAccessError`][ra] | [`QpFatal`][qf] | `Terminate` |
//! | by the peer | any other | we sent what we may not, or it cannot go on | [`RemoteOperationError`][ro] | [`QpFatal`][qf] | `Terminate` |
//! | TCP is gone | 2/0/1 | nobody is left to be told | [`WrFlushError`][f] | [`QpFatal`][qf] | `Error` |
//!
//! Whoever is known to be the cause has a status of its own, whatever the table says of the oldest: a send
//! request whose memory is gone ([`LocalProtectionError`](super::WcStatus::LocalProtectionError)), the
//! receive request of a message that is too long ([`LocalLengthError`](super::WcStatus::LocalLengthError)).
//! All others are flushed. Each completion carries layer, type and code. Errors without a number in the
//! documents count as the row of their layer and type.
//!
//! [f]: super::WcStatus::WrFlushError
//! [ra]: super::WcStatus::RemoteAccessError
//! [ro]: super::WcStatus::RemoteOperationError
//! [qf]: super::AsyncEventKind::QpFatal
//! [qa]: super::AsyncEventKind::QpAccessError
//! [qr]: super::AsyncEventKind::QpRequestError

use super::{AsyncEventKind, QpState, WcStatus};

/// Who found the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// We did: the peer is told by a Terminate.
    Here,
    /// We did, in what the peer has sent, and our own user is the cause.
    User,
    /// The peer did, and told us by a Terminate.
    Peer,
    /// TCP is gone, or cannot go on.
    Lost,
}

/// What an error does to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// How the oldest open send request completes, unless it is known to be the cause or not to be.
    pub(crate) oldest: WcStatus,
    /// The event.
    pub(crate) event: AsyncEventKind,
    /// The state that is entered at once.
    pub(crate) state: QpState,
}

impl Outcome {
    /// The row of the table for an error found by `origin`.
    pub(crate) fn of(origin: Origin, layer: u8, etype: u8) -> Self {
        use AsyncEventKind::{QpAccessError, QpFatal, QpRequestError};
        let (oldest, event, state) = match (origin, layer, etype) {
            (Origin::Here, 0 | 1, 1) => (WcStatus::WrFlushError, QpAccessError, QpState::Terminate),
            (Origin::Here, 0 | 1, 2) => (WcStatus::WrFlushError, QpRequestError, QpState::Terminate),
            (Origin::Here | Origin::User, _, _) => (WcStatus::WrFlushError, QpFatal, QpState::Terminate),
            (Origin::Peer, 0 | 1, 1) => (WcStatus::RemoteAccessError, QpFatal, QpState::Terminate),
            (Origin::Peer, _, _) => (WcStatus::RemoteOperationError, QpFatal, QpState::Terminate),
            (Origin::Lost, _, _) => (WcStatus::WrFlushError, QpFatal, QpState::Error),
        };
        Self { oldest, event, state }
    }
}
