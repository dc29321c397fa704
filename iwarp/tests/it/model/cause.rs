//! The causes that end a stream, and the codes and statuses that each end may then report: the documents'
//! table, written a second time.

use iwarp::verbs::{StreamError, WcStatus};

/// What ends a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The target refuses a Write.
    Write,
    /// The source refuses a Read or an atomic.
    Read,
    /// An atomic on eight bytes that are not aligned.
    Misaligned,
    /// An invalidation by the peer that is not allowed.
    Invalidate,
    /// A message without receive buffer.
    NoReceive,
    /// A message longer than its buffer.
    TooLong,
    /// The payload of a request is invalid when it is sent, or a local request cannot be carried out.
    Local,
    /// A window or memory cannot be bound or registered as asked.
    Bind,
    /// The sink of a Read or atomic is invalid when the answer comes.
    Sink,
    /// The receive buffer is invalid when the message comes.
    Receive,
    /// One end closes gracefully.
    Close,
    /// One end drops its queue pair, or aborts its connection.
    Abort,
    /// The wire corrupts bytes.
    Wire,
}

type Codes = &'static [(u8, u8, u8)];
type Statuses = &'static [WcStatus];

/// The effects of a [`Cause`] that may be seen. The finder is the end that finds the error, or ends the
/// stream by itself.
struct Trace {
    /// Layer, type and code.
    codes: Codes,
    /// The statuses of the oldest request, or of the one to blame, at the finder.
    finder_send: Statuses,
    finder_recv: Statuses,
    /// And at the peer.
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
            // A Read's sink has an STag on the wire, an atomic's has none.
            Self::Sink => {
                let either = &[RemoteAccessError, RemoteOperationError];
                (&[(1, 1, 0), (0, 0, 0)], &[LocalProtectionError], &[], either)
            }
            Self::Receive => (&[(0, 0, 0)], &[], &[LocalProtectionError], &[RemoteOperationError]),
            // A close may cut off Reads of the other end. Only that end reports MPA's "connection lost".
            Self::Close | Self::Abort => (&[(2, 0, 1)], &[], &[], &[]),
            Self::Wire => (&[(2, 0, 1), (2, 0, 2), (2, 0, 3)], &[], &[], &[RemoteOperationError]),
        };
        Trace { codes, finder_send, finder_recv, peer_send }
    }
}

/// A cause that may end a stream, and the side that finds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PossibleEnd {
    pub(crate) cause: Cause,
    /// Side that finds it.
    pub(crate) finder: usize,
    /// Whether the cause must end the stream, unless another cause was faster.
    pub(crate) sure: bool,
}

impl PossibleEnd {
    /// Whether a send request of `side` may complete with `status` because of it.
    pub(crate) fn blames_send(&self, side: usize, status: WcStatus) -> bool {
        let Trace { finder_send, peer_send, .. } = self.cause.trace();
        if side == self.finder { finder_send } else { peer_send }.contains(&status)
    }

    /// Whether a receive request of `side` may complete with `status` because of it.
    pub(crate) fn blames_recv(&self, side: usize, status: WcStatus) -> bool {
        side == self.finder && self.cause.trace().finder_recv.contains(&status)
    }

    /// Whether `side` may report `error`.
    pub(crate) fn explains(&self, side: usize, error: StreamError) -> bool {
        let StreamError { layer, etype, code, from_peer } = error;
        // Each end notices a lost connection by itself. Every other error is found by one end and reported
        // to the other.
        let who = (layer, etype, code) == (2, 0, 1)
            || self.cause == Cause::Wire
            || from_peer == (side != self.finder);
        who && self.cause.trace().codes.contains(&(layer, etype, code))
    }
}
