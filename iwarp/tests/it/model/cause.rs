//! The causes that end a stream, and the codes and statuses that each endpoint may then report. The table of
//! codes and statuses is derived from the RFCs, and not from the engine.

use iwarp::verbs::{StreamError, WcStatus};

/// A reason for the end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The target refuses a Write.
    Write,
    /// The source refuses a Read or an atomic.
    Read,
    /// An atomic targets eight bytes that are not aligned.
    Misaligned,
    /// The peer invalidates an STag without the right to do so.
    Invalidate,
    /// A message arrives, but no receive buffer is posted.
    NoReceive,
    /// A message is longer than its buffer.
    TooLong,
    /// The memory of a request's payload is invalid when the payload is to be sent, or a local request cannot
    /// be executed.
    Local,
    /// A window cannot be bound, or memory cannot be registered, as the request says.
    Bind,
    /// The sink of a Read or atomic is invalid when the answer arrives.
    Sink,
    /// The receive buffer is invalid when the message arrives.
    Receive,
    /// One endpoint closes gracefully.
    Close,
    /// One endpoint drops its queue pair, or aborts its connection.
    Abort,
    /// The wire corrupts bytes.
    Wire,
}

type Codes = &'static [(u8, u8, u8)];
type Statuses = &'static [WcStatus];

/// The visible effects that a [`Cause`] may have. The finder is the endpoint that finds the error, or that
/// ends the stream by itself.
struct Trace {
    /// Allowed layers, types and codes of the error.
    codes: Codes,
    /// Allowed statuses, at the finder, of its oldest request or of the request that causes the error.
    finder_send: Statuses,
    finder_recv: Statuses,
    /// Allowed statuses, at the peer, of its oldest request or of the request that causes the error.
    peer_send: Statuses,
}

impl Cause {
    fn trace(self) -> Trace {
        use WcStatus::{
            LocalLengthError, LocalProtectionError, MwBindError, RemoteAccessError, RemoteOperationError,
        };
        let (codes, finder_send, finder_recv, peer_send): (Codes, Statuses, Statuses, Statuses) = match self {
            Self::Write => (&[(1, 1, 0), (1, 1, 1), (1, 1, 2), (1, 1, 3)], &[], &[], &[RemoteAccessError]),
            Self::Read => {
                (&[(0, 1, 0), (0, 1, 1), (0, 1, 2), (0, 1, 3), (0, 1, 4)], &[], &[], &[RemoteAccessError])
            }
            Self::Misaligned => (&[(0, 2, 7)], &[], &[], &[RemoteOperationError]),
            Self::Invalidate => (&[(0, 1, 0), (0, 1, 9)], &[], &[LocalProtectionError], &[RemoteAccessError]),
            Self::NoReceive => (&[(1, 2, 2)], &[], &[], &[RemoteOperationError]),
            Self::TooLong => (&[(1, 2, 5)], &[], &[LocalLengthError], &[RemoteOperationError]),
            Self::Local => (&[(0, 0, 0)], &[LocalProtectionError], &[], &[RemoteOperationError]),
            Self::Bind => (&[(0, 0, 0)], &[MwBindError], &[], &[RemoteOperationError]),
            // A Read's sink has an STag on the wire; the sink of an atomic has none.
            Self::Sink => {
                let either = &[RemoteAccessError, RemoteOperationError];
                (&[(1, 1, 0), (0, 0, 0)], &[LocalProtectionError], &[], either)
            }
            Self::Receive => (&[(0, 0, 0)], &[], &[LocalProtectionError], &[RemoteOperationError]),
            // A close may cut off Reads of the other endpoint. Only the other endpoint then reports MPA's
            // "connection lost".
            Self::Close | Self::Abort => (&[(2, 0, 1)], &[], &[], &[]),
            Self::Wire => (&[(2, 0, 1), (2, 0, 2), (2, 0, 3)], &[], &[], &[RemoteOperationError]),
        };
        Trace { codes, finder_send, finder_recv, peer_send }
    }
}

/// A cause that may end a stream, and the side that finds the cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PossibleEnd {
    pub(crate) cause: Cause,
    /// The side that finds the cause.
    pub(crate) finder: usize,
    /// Whether the cause must end the stream, unless another cause ends it earlier.
    pub(crate) sure: bool,
}

impl PossibleEnd {
    /// Whether a send request of `side` may complete with `status` because of this cause.
    pub(crate) fn blames_send(&self, side: usize, status: WcStatus) -> bool {
        let Trace { finder_send, peer_send, .. } = self.cause.trace();
        if side == self.finder { finder_send } else { peer_send }.contains(&status)
    }

    /// Whether a receive request of `side` may complete with `status` because of this cause.
    pub(crate) fn blames_recv(&self, side: usize, status: WcStatus) -> bool {
        side == self.finder && self.cause.trace().finder_recv.contains(&status)
    }

    /// Whether `side` may report `error` because of this cause.
    pub(crate) fn explains(&self, side: usize, error: StreamError) -> bool {
        let StreamError { layer, etype, code, from_peer } = error;
        // Each endpoint notices a lost connection or corrupted bytes by itself. Every other error is found by
        // one endpoint and reported to the other endpoint.
        let who = (layer, etype, code) == (2, 0, 1)
            || self.cause == Cause::Wire
            || from_peer == (side != self.finder);
        who && self.cause.trace().codes.contains(&(layer, etype, code))
    }
}
