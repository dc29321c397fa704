//! The effect of an error on a queue pair. This endpoint finds the error, the peer reports the error in a
//! Terminate, or TCP ends. The table maps an error to the status of the oldest open send request, the
//! asynchronous event, and the state that the queue pair enters at once. (The state `Error` follows when the
//! connection has ended.)
//!
//! | found by | layer/type | error | oldest open send request | event | state |
//! |---|---|---|---|---|---|
//! | this endpoint | 0/0, 1/0, 2/0/05 | local catastrophic: a fault of our user, a completion queue that overflowed, or no slot left to hold a received buffer | [`WrFlushError`][f] | [`QpFatal`][qf] | `Terminate` |
//! | this endpoint | any | memory was revoked while it was in use: the buffer of a receive, the buffer for the response to our Read or atomic, or the memory that the peer reads or changes | [`WrFlushError`][f] | [`QpFatal`][qf] | `Terminate` |
//! | this endpoint | 0/1, 1/1 | the peer addressed memory that it may not access | [`WrFlushError`][f] | [`QpAccessError`][qa] | `Terminate` |
//! | this endpoint | 0/2, 1/2 | the peer sent a message that it may not send | [`WrFlushError`][f] | [`QpRequestError`][qr] | `Terminate` |
//! | this endpoint | 2/0 | MPA: CRC, markers, negotiation | [`WrFlushError`][f] | [`QpFatal`][qf] | `Terminate` |
//! | the peer | 0/1, 1/1 | we addressed memory that we may not access | [`RemoteAccessError`][ra] | [`QpFatal`][qf] | `Terminate` |
//! | the peer | any other | we sent a message that we may not send, or the peer cannot continue | [`RemoteOperationError`][ro] | [`QpFatal`][qf] | `Terminate` |
//! | TCP | 2/0/1 | TCP has ended, so no Terminate can be sent | [`WrFlushError`][f] | [`QpFatal`][qf] | `Error` |
//!
//! A request that is known to be the cause has another status. The status is
//! [`LocalProtectionError`](super::WcStatus::LocalProtectionError) if the local memory is invalid, for
//! example because it was deregistered, or if an STag could not be invalidated. The status is
//! [`LocalQpOperationError`](super::WcStatus::LocalQpOperationError) if the connection does not allow the
//! request. The status is [`LocalLengthError`](super::WcStatus::LocalLengthError) for a receive request whose
//! message is too long, and for an atomic whose buffer has a wrong length. The status is
//! [`MwBindError`](super::WcStatus::MwBindError) if a window could not be bound, or memory could not be
//! registered. All requests other than these and the oldest open send request are flushed.
//!
//! With InfiniBand's semantics there are exceptions. If the peer reports 0/2/06 or 1/2/05, or reports 0/2/07
//! for an atomic, the status is [`RemoteInvalidRequest`](super::WcStatus::RemoteInvalidRequest). If the peer
//! is silent or cannot be reached, or ends the connection of a queue pair that outlives its peer, the oldest
//! request completes with [`RetryExceeded`](super::WcStatus::RetryExceeded). If the peer has no receive
//! request in time, the oldest request that the peer has not accepted completes with
//! [`RnrRetryExceeded`](super::WcStatus::RnrRetryExceeded).
//!
//! The cause in a failed completion contains layer, type and code of the error, unless an earlier reason is
//! known (for example a reset of TCP). An error without a number in the RFCs belongs to the row of its layer
//! and type.
//!
//! [f]: super::WcStatus::WrFlushError
//! [ra]: super::WcStatus::RemoteAccessError
//! [ro]: super::WcStatus::RemoteOperationError
//! [qf]: super::AsyncEventKind::QpFatal
//! [qa]: super::AsyncEventKind::QpAccessError
//! [qr]: super::AsyncEventKind::QpRequestError

use super::{AsyncEventKind, QpState, WcStatus};

/// The side that found the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// This side found the error.
    Here,
    /// This side found the error: the user revoked memory while a message of the peer, or the answer to such
    /// a message, used the memory.
    User,
    /// The peer found the error, and reported it in a Terminate.
    Peer,
    /// TCP has ended.
    Lost,
}

/// The effect of an error on a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// The status of the oldest open send request, unless another status is known for this request.
    pub(crate) oldest: WcStatus,
    /// The asynchronous event.
    pub(crate) event: AsyncEventKind,
    /// The state that the queue pair enters at once.
    pub(crate) state: QpState,
}

impl Outcome {
    /// Returns the row of the table for an error that `origin` found.
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
