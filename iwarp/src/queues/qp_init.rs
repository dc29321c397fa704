//! How a queue pair is made, and the states that it goes through.

use bitflags::bitflags;

use crate::rdmap::Extensions;

use super::{CompletionQueue, MAX_INLINE, MAX_SGE, SharedReceiveQueue};

/// How a queue pair is made (`ibv_qp_init_attr`).
#[derive(Clone, Copy)]
pub struct QpInit<'a> {
    /// Where send completions go.
    pub send_cq: &'a CompletionQueue,
    /// Where receive completions go; may be the same.
    pub recv_cq: &'a CompletionQueue,
    /// Where receive buffers come from, if not from a queue of its own; of the same protection
    /// domain.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Send requests outstanding: a request counts until its completion is reaped.
    pub max_send_wr: usize,
    /// Receive requests outstanding: a request counts until its completion is reaped. With a shared
    /// receive queue: how many of its buffers this queue pair may hold, each from the beginning of
    /// a message until its completion is reaped. The peer's next message then finds no buffer
    /// (Terminate 1/2/02), as it would in a queue of its own of this depth.
    pub max_recv_wr: usize,
    /// With a shared receive queue: an
    /// [`AsyncEventKind::QpHighWater`](super::AsyncEventKind::QpHighWater) is made, once, when this
    /// queue pair holds more buffers than this; 0: none.
    pub high_water: usize,
    /// Elements of one send request, at most [`MAX_SGE`].
    pub max_send_sge: usize,
    /// Elements of one receive request, at most [`MAX_SGE`].
    pub max_recv_sge: usize,
    /// Bytes of one inline request, at most [`MAX_INLINE`].
    pub max_inline: usize,
    /// Every send request makes a completion, signalled or not.
    pub sq_sig_all: bool,
    /// The messages of RFC 7306 that may be posted and are understood from the peer; all of them by
    /// default. What is left out is refused when posted, and answered as an unexpected opcode when
    /// the peer tries it. Nothing of this goes over the wire: see the crate's front page on finding
    /// out what the peer understands.
    pub extensions: Extensions,
    /// What its send queue may do to STags.
    pub grants: QpGrants,
}

bitflags! {
    /// What a send queue may do to STags, beside invalidating them: nothing, by default (RFC 5042
    /// section 2.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QpGrants: u8 {
        /// Memory windows may be bound.
        const BIND_WINDOWS = 1 << 0;
        /// Memory may be registered fast.
        const FAST_REGISTER = 1 << 1;
    }
}

impl<'a> QpInit<'a> {
    /// 128 requests each way, one completion queue for both, nothing shared, every extension.
    pub fn new(cq: &'a CompletionQueue) -> Self {
        Self {
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: 128,
            max_recv_wr: 128,
            high_water: 0,
            max_send_sge: MAX_SGE,
            max_recv_sge: MAX_SGE,
            max_inline: MAX_INLINE,
            sq_sig_all: false,
            extensions: Extensions::all(),
            grants: QpGrants::empty(),
        }
    }
}

/// States of RFC 5040 section 6 (and of the iWARP verbs).
///
/// | state | `post_send` | `post_recv` | entered by |
/// |---|---|---|---|
/// | `Idle` | refused | waits | creation |
/// | `Rts` | is sent | waits | `connect`, `accept` |
/// | `Closing` | refused | waits | `disconnect`, the peer's FIN, `modify` |
/// | `Terminate` | is flushed | is flushed | an error, `modify` |
/// | `Error` | is flushed | is flushed | the end of the connection, `modify` |
///
/// Once `disconnect` or `modify` to `Closing` is called, `post_send` is refused in every state,
/// also before the engine has entered `Closing` and after it has left it (RFC 5041 section 6.2.1).
/// A receive is no transfer: it may be posted until the end, for messages of the peer that come
/// before our FIN, and is flushed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum QpState {
    /// Not connected. Receives may be posted.
    Idle,
    /// Connected: everything may be posted.
    Rts,
    /// A graceful close is under way: what was posted before is sent, then FIN.
    Closing,
    /// A Terminate was sent or received, or the connection failed: work is being flushed.
    Terminate,
    /// Over. Everything posted is flushed.
    Error,
}
