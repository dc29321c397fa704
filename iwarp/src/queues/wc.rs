//! Work completions: the results of work requests.

use super::ConnectionError;

/// The result of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WcStatus {
    /// The request succeeded.
    Success,
    /// The key, the range or the rights of local memory are wrong, or a local STag could not be invalidated.
    LocalProtectionError,
    /// A window could not be bound, or memory could not be registered, because the key, the region, the range
    /// or the rights are wrong.
    MwBindError,
    /// The incoming message is longer than the receive buffer, or the buffer of an atomic does not have the
    /// length of its result.
    LocalLengthError,
    /// The connection does not allow the request, which was posted before the connection was established
    /// ([`QpInit::early_sends`](super::QpInit::early_sends)).
    LocalQpOperationError,
    /// The request was flushed: the connection ended, or the queue pair entered `Error`, before the request
    /// was done.
    WrFlushError,
    /// The peer refused access to its memory.
    RemoteAccessError,
    /// The peer does not support the request or has no room for it, or the target of an atomic is not
    /// aligned. This status is used only if both endpoints have agreed on InfiniBand's semantics
    /// ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)).
    RemoteInvalidRequest,
    /// The peer could not execute the request, or refused it.
    RemoteOperationError,
    /// This queue pair outlives its peer
    /// ([`ConnParam::outlives_peer`](crate::verbs::ConnParam::outlives_peer)), and the peer ended the
    /// connection before the request was done, or no connection could be made. If both endpoints have agreed
    /// on InfiniBand's semantics ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)), the
    /// oldest request also has this status when the peer is silent or can no longer be reached.
    RetryExceeded,
    /// The peer had no receive request for the message, and the maximum number of retries was reached
    /// ([`QueuePair::set_rnr_retry`](crate::verbs::QueuePair::set_rnr_retry)).
    RnrRetryExceeded,
}

impl std::fmt::Display for WcStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalProtectionError => "local protection error",
            Self::MwBindError => "memory management operation error",
            Self::LocalLengthError => "local length error",
            Self::LocalQpOperationError => "local QP operation error",
            Self::WrFlushError => "work request flushed",
            Self::RemoteAccessError => "remote access error",
            Self::RemoteInvalidRequest => "remote invalid request error",
            Self::RemoteOperationError => "remote operation error",
            Self::RetryExceeded => "transport retry counter exceeded",
            Self::RnrRetryExceeded => "RNR retry counter exceeded",
        })
    }
}

/// The operation that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WcOpcode {
    /// Our Send.
    Send,
    /// Our RDMA Write: TCP has accepted all its bytes. The completion does not mean that the bytes are in the
    /// peer's memory, unless both endpoints have agreed on InfiniBand's semantics
    /// ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)).
    Write,
    /// Our RDMA Read: the data is in local memory.
    Read,
    /// Our Immediate Data.
    Immediate,
    /// Our fetch-and-add: the original value is in local memory.
    FetchAdd,
    /// Our compare-and-swap: the original value is in local memory.
    CmpSwap,
    /// Our swap: the original value is in local memory.
    Swap,
    /// A local STag was invalidated.
    LocalInvalidate,
    /// A memory window was bound.
    BindWindow,
    /// A range of a [`FastRegion`](crate::verbs::FastRegion) was registered.
    FastRegister,
    /// A Send of the peer: its bytes are in our receive buffer.
    Recv,
    /// Immediate Data of the peer, which is in [`WorkCompletion::immediate`] and in the receive buffer. With
    /// [`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics) the buffer is unchanged.
    RecvImmediate,
}

/// The result of one work request (`ibv_wc`).
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WorkCompletion {
    /// The `wr_id` that the user has chosen for the request.
    pub wr_id: u64,
    /// Whether the request succeeded, or why it failed.
    pub status: WcStatus,
    /// The operation of the request, even if the request failed. A failed receive has [`WcOpcode::Recv`].
    pub opcode: WcOpcode,
    /// Number of bytes that were received ([`WcOpcode::Recv`], [`WcOpcode::RecvImmediate`]) or placed in
    /// local memory ([`WcOpcode::Read`] and the atomics).
    pub byte_len: u32,
    /// The queue pair's number.
    pub qp_num: u32,
    /// The peer's Immediate Data ([`WcOpcode::RecvImmediate`]). With [`WcOpcode::Recv`], the four bytes of a
    /// [`SendOp::SendImmediate`](super::SendOp::SendImmediate), followed by four zeros.
    pub immediate: Option<[u8; 8]>,
    /// The STag that the Send of the peer invalidated, if any.
    pub invalidated: Option<u32>,
    /// Whether the peer requested a solicited event.
    pub solicited: bool,
    /// Of a received datagram: the number of the sender's queue pair. The first 40 bytes of the receive
    /// buffer are then the Global Routing Header (GRH), and count in `byte_len`. 0 in other completions.
    pub source_qpn: u32,
    /// Whether a received datagram was an IPv6 packet, whose header then fills the GRH. The header of an IPv4
    /// packet is in the last 20 bytes of the GRH.
    pub is_ipv6: bool,
    /// Why the connection ended, if the request failed because of this: the first known reason, as in
    /// [`QueuePair::cause`](crate::verbs::QueuePair::cause). `None` if the request succeeded, or if the
    /// request itself was wrong, which its status shows. Also `None` if the request was flushed because this
    /// side closed, aborted or dropped the connection, or never made a connection.
    pub cause: Option<ConnectionError>,
}

impl WorkCompletion {
    /// Returns the completion of a request, in which the fields that only some requests have are not set.
    #[inline]
    pub(super) fn new(qp_num: u32, wr_id: u64, opcode: WcOpcode, status: WcStatus) -> Self {
        Self { qp_num, wr_id, opcode, status, ..Self::default() }
    }
}

/// Returns an empty entry, which [`CompletionQueue::poll`](super::CompletionQueue::poll) can fill.
impl Default for WorkCompletion {
    fn default() -> Self {
        Self {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            byte_len: 0,
            qp_num: 0,
            immediate: None,
            invalidated: None,
            solicited: false,
            source_qpn: 0,
            is_ipv6: false,
            cause: None,
        }
    }
}
