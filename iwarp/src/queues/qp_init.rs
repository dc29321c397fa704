//! The options of a new queue pair.

use bitflags::bitflags;

use crate::rdmap::Extensions;

use super::{CompletionQueue, MAX_INLINE, MAX_SGE, SharedReceiveQueue};

/// Options of a new queue pair (`ibv_qp_init_attr`).
#[derive(Clone, Copy)]
pub struct QpInit<'a> {
    /// The completion queue of its send queue.
    pub send_cq: &'a CompletionQueue,
    /// The queue for receive completions; may be the same one.
    pub recv_cq: &'a CompletionQueue,
    /// The shared receive queue for receive buffers, of the same protection domain. `None`: the queue pair
    /// has its own receive queue. Default: `None`.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Outstanding send requests. A request counts until its completion is polled. Default: 128.
    pub max_send_wr: usize,
    /// Outstanding receive requests. A request counts until its completion is polled. With a shared receive
    /// queue: the number of its buffers that this queue pair may hold; a buffer counts from the beginning of
    /// its message until its completion is polled. Beyond that the next message of the peer finds no buffer
    /// (Terminate 1/2/02), as in a receive queue of this depth. Default: 128.
    pub max_recv_wr: usize,
    /// With a shared receive queue: one [`AsyncEventKind::QpHighWater`](super::AsyncEventKind::QpHighWater)
    /// event is generated when this queue pair holds more buffers than this; 0: none. Default: 0.
    pub high_water: usize,
    /// Elements of one send request, at most [`MAX_SGE`]. Default: [`MAX_SGE`].
    pub max_send_sge: usize,
    /// Elements of one receive request, at most [`MAX_SGE`]. Default: [`MAX_SGE`].
    pub max_recv_sge: usize,
    /// Bytes of one inline request, at most [`MAX_INLINE`]. Default: [`MAX_INLINE`].
    pub max_inline: usize,
    /// Every send request generates a completion, signaled or not. Default: `false`.
    pub sq_sig_all: bool,
    /// The send queue takes requests before there is a connection, in [`QpState::Idle`](super::QpState).
    /// They wait, and are sent in order once the connection is established; if it fails, or the queue pair
    /// enters `Error`, they are flushed. Whether a Read or an atomic is allowed is known only once the
    /// connection is established: an early request that finds an ORD of 0 ends the stream, and completes with
    /// [`WcStatus::LocalQpOperationError`](super::WcStatus::LocalQpOperationError). Off by default: a post
    /// in `Idle` is refused. Default: `false`.
    pub early_sends: bool,
    /// The messages of RFC 7306 that may be posted and that are accepted from the peer; all of them by
    /// default. A message that is left out is refused when posted, and ends the stream as an unexpected
    /// opcode when it arrives. The extensions are not negotiated on the wire: the front page of the crate
    /// says how to find out which of them the peer supports. Default: all.
    pub extensions: Extensions,
    /// Operations on STags that its send queue may do. Default: none.
    pub grants: QpGrants,
}

bitflags! {
    /// Operations on STags that a send queue may do besides invalidating them: none by default (RFC 5042
    /// section 2.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QpGrants: u8 {
        /// Binding memory windows ([`SendOp::BindWindow`](super::SendOp::BindWindow)).
        const BIND_WINDOWS = 1 << 0;
        /// Fast registration of memory ([`SendOp::FastRegister`](super::SendOp::FastRegister)).
        const FAST_REGISTER = 1 << 1;
    }
}

impl<'a> QpInit<'a> {
    /// 128 requests each way (as perftest posts by default), one completion queue for both, no shared receive
    /// queue, every extension.
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
            early_sends: false,
            extensions: Extensions::all(),
            grants: QpGrants::empty(),
        }
    }
}
