//! The options of a new queue pair.

use bitflags::bitflags;

use crate::rdmap::Extensions;

use super::{CompletionQueue, MAX_INLINE, MAX_SGE, QpType, SharedReceiveQueue};

/// Options of a new queue pair (`ibv_qp_init_attr`).
#[derive(Clone, Copy)]
pub struct QpInit<'a> {
    /// The completion queue for the send queue.
    pub send_cq: &'a CompletionQueue,
    /// The completion queue for receives, which may be the same queue as `send_cq`.
    pub recv_cq: &'a CompletionQueue,
    /// The shared receive queue, which must be in the same protection domain, unless its option
    /// [`SrqInit::one_pd`](super::SrqInit::one_pd) is `false`. `None`: the queue pair has its own receive
    /// queue. Default: `None`.
    pub srq: Option<&'a SharedReceiveQueue>,
    /// Maximum number of outstanding send requests. A request that generates a completion counts until the
    /// completion is polled. Default: 128.
    pub max_send_wr: usize,
    /// Maximum number of outstanding receive requests. A request counts until its completion is polled. With
    /// a shared receive queue this is the maximum number of shared buffers that this queue pair may hold. A
    /// buffer counts from the beginning of its message until its completion is polled. If the queue pair
    /// holds the maximum, the next message of the peer finds no buffer, and the stream ends with a Terminate
    /// 1/2/02. Default: 128.
    pub max_recv_wr: usize,
    /// With a shared receive queue, one [`AsyncEventKind::QpHighWater`](super::AsyncEventKind::QpHighWater)
    /// event is generated when this queue pair holds more buffers than this number. 0 means no event.
    /// Default: 0.
    pub high_water: usize,
    /// Maximum number of elements of one send request. This limit is at most [`MAX_SGE`].
    /// Default: [`MAX_SGE`].
    pub max_send_sge: usize,
    /// Maximum number of elements of one receive request. This limit is at most [`MAX_SGE`].
    /// Default: [`MAX_SGE`].
    pub max_recv_sge: usize,
    /// Maximum number of bytes of one inline request. This limit is at most [`MAX_INLINE`].
    /// Default: [`MAX_INLINE`].
    pub max_inline: usize,
    /// Whether every send request generates a completion, even if it is unsignaled. Default: `false`.
    pub sq_sig_all: bool,
    /// Whether the send queue accepts requests before the connection is established, in
    /// [`QpState::Idle`](super::QpState). These requests wait until the connection is established, and are
    /// then sent in order. If the connection fails, or the queue pair enters `Error`, the requests are
    /// flushed. (If the queue pair [outlives its peer](crate::verbs::ConnParam::outlives_peer), the first
    /// request fails.) Only an established connection shows whether a Read or an atomic is allowed. If the
    /// ORD is 0, an early Read or atomic ends the stream, and completes with
    /// [`WcStatus::LocalQpOperationError`](super::WcStatus::LocalQpOperationError). If this option is off, a
    /// post in `Idle` is refused. Default: `false`.
    pub early_sends: bool,
    /// The messages of RFC 7306 that the user may post and that are accepted from the peer. Any other message
    /// of RFC 7306 is refused when it is posted. When such a message arrives, it ends the stream as an
    /// unexpected opcode. The extensions are not negotiated on the wire: the front page of the crate says how
    /// a program can find out which extensions the peer supports. Default: all.
    pub extensions: Extensions,
    /// Operations on STags that are allowed in the send queue. Default: none.
    pub grants: QpGrants,
    /// The type of the queue pair. Default: [`QpType::Rc`].
    pub qp_type: QpType,
    /// Whether a queue pair of type UD that is attached to a group receives its own messages to the group.
    /// Default: `true`.
    pub own_multicast: bool,
}

bitflags! {
    /// Operations on STags that are allowed in a send queue, in addition to invalidation. By default no
    /// operation is allowed (RFC 5042 section 2.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct QpGrants: u8 {
        /// Binding memory windows ([`SendOp::BindWindow`](super::SendOp::BindWindow)).
        const BIND_WINDOWS = 1 << 0;
        /// Fast registration of memory ([`SendOp::FastRegister`](super::SendOp::FastRegister)).
        const FAST_REGISTER = 1 << 1;
    }
}

impl<'a> QpInit<'a> {
    /// Returns options with one completion queue for both queues, and with the default of every other option.
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
            qp_type: QpType::Rc,
            own_multicast: true,
        }
    }
}
