//! Work requests: the requests that users post to a queue pair.

use std::net::IpAddr;

use arrayvec::ArrayVec;
use bitflags::bitflags;

use crate::memory::{Access, Base};
use crate::rdmap::{AtomicOp, joined_immediate};

use super::VerbsError;

/// Maximum number of scatter/gather elements of one work request. Each entry of a queue has space for this
/// number of elements, so a higher number makes every queue larger.
pub const MAX_SGE: usize = 8;

/// Maximum number of bytes that [`SendFlags::INLINE`] copies at post time. The bytes are stored in the entry
/// instead of the elements, so this is the size of [`MAX_SGE`] elements.
pub const MAX_INLINE: usize = 128;

/// A piece of registered local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// The address of the first byte, in the tagged offsets of the region. By default this is the byte's
    /// virtual address.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// A location in the peer's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// The tagged offset of the first byte. By default this is the byte's virtual address.
    pub addr: u64,
    /// The STag that the peer advertised.
    pub rkey: u32,
}

/// The destination of a datagram, and the fields of the IP header that the sender chooses (`ibv_ah_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The address of the host, or of a multicast group.
    pub addr: IpAddr,
    /// The traffic class (IPv6) or the type of service (IPv4).
    pub traffic_class: u8,
    /// The hop limit (IPv6) or the time to live (IPv4).
    pub hop_limit: u8,
    /// The flow label (IPv6), 20 bits. IPv4 has no flow label.
    pub flow_label: u32,
}

impl AddressVector {
    /// Returns an address vector with traffic class 0, hop limit 64 and flow label 0.
    pub fn new(addr: IpAddr) -> Self {
        Self { addr, traffic_class: 0, hop_limit: 64, flow_label: 0 }
    }
}

/// Minimum number of bytes of a message for which [`SendFlags::ZERO_COPY`] has an effect. To copy a shorter
/// message costs less than to send it by reference and to wait for its acknowledgement.
pub const ZERO_COPY_MIN_BYTES: u32 = 256 << 10;

bitflags! {
    /// Options of a send request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Generates a completion even if the request succeeds (`sq_sig_all` has this effect for every
        /// request of a queue pair).
        const SIGNALED = 1 << 0;
        /// The request starts only after all earlier Reads and atomics are complete.
        const FENCE = 1 << 1;
        /// The peer's receive completion is a solicited event.
        const SOLICITED = 1 << 2;
        /// Copies the payload at post time, so that its memory may be reused or deregistered at once. Unlike
        /// with `IBV_SEND_INLINE`, the memory must be registered when the request is posted, since only
        /// registered memory can be read safely by its address.
        const INLINE = 1 << 3;
        /// Sends the bytes directly from the registered memory, without a copy. The memory must not change
        /// until the request has completed: TCP reads the bytes again to retransmit them, so the peer could
        /// receive the changed bytes. After an error of the stream the memory may change at once.
        /// Deregistering the region is safe at any time, since the region stays mapped as long as it is
        /// needed.
        ///
        /// The request completes only when the peer's TCP has acknowledged the bytes, and not when they are
        /// passed to TCP. At least the last 64 bytes of a message are copied into a separate segment, so that
        /// the receiver does not delay its acknowledgement.
        ///
        /// If a copy costs less, the whole payload is copied, and the request completes as usual. A copy
        /// costs less if the stream has CRCs ([`EngineConfig::crc`](crate::engine::EngineConfig::crc)), since
        /// their computation reads each byte anyway. A copy also costs less if the payload has fewer than
        /// [`ZERO_COPY_MIN_BYTES`] bytes, or if a TCP segment has less than 8 KiB, as with an MTU of 1500.
        /// The payload is also copied if it is inline, has several elements, or is in memory of the caller.
        /// Other reasons for a copy are that the peer wants markers, or that the port cannot send from
        /// arbitrary memory (`dp::Offloads::TX_EXTERNAL`) or does not compute checksums.
        /// [`EngineCounters::tx_zero_copy_bytes`](crate::engine::EngineCounters) counts the bytes that were
        /// not copied.
        const ZERO_COPY = 1 << 4;
    }
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// A Send (RFC 5040). With [`SendFlags::SOLICITED`] it is a Send with Solicited Event.
    Send,
    /// A Send with Invalidate: when the peer's receive completes, the peer's STag `rkey` is invalid.
    SendInvalidate {
        /// The peer's STag.
        rkey: u32,
    },
    /// An RDMA Write to the peer's memory, which must have the right `REMOTE_WRITE`.
    Write {
        /// The destination.
        remote: RemoteAddr,
    },
    /// An RDMA Read from the peer's memory into the local elements, in order. The regions of the elements
    /// must have the right `LOCAL_WRITE`. A request without elements reads 0 bytes. A Read Request has one
    /// sink (RFC 5040 section 4.4), so each element with bytes has its own Read Request. Each Read Request
    /// counts towards ORD, and waits while ORD is reached.
    Read {
        /// The source.
        remote: RemoteAddr,
    },
    /// A Send with Immediate (`IBV_WR_SEND_WITH_IMM`): the peer's receive completes as with a Send, and these
    /// bytes are the first four bytes of [`WorkCompletion::immediate`](super::WorkCompletion::immediate).
    /// Allowed only if the endpoints have agreed on
    /// [`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics).
    SendImmediate {
        /// The four bytes, in the order in which they are sent.
        data: [u8; 4],
    },
    /// Immediate Data (RFC 7306 section 6). With [`SendFlags::SOLICITED`] it is Immediate Data with Solicited
    /// Event. The message consumes a receive request of the peer. The request's buffer must have at least
    /// eight bytes, unless both endpoints have agreed on
    /// [`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics).
    Immediate {
        /// The eight bytes, in the order in which they are sent. With `ib_semantics` the last four bytes must
        /// not all be 0xFF.
        data: [u8; 8],
    },
    /// An RDMA Write followed by Immediate Data, with one completion (`IBV_WR_RDMA_WRITE_WITH_IMM`). The peer
    /// receives Immediate Data as with [`SendOp::Immediate`], after the written bytes are in its memory.
    WriteImmediate {
        /// The destination.
        remote: RemoteAddr,
        /// The data, as in [`SendOp::Immediate`].
        data: [u8; 8],
    },
    /// An atomic operation on eight bytes of the peer's memory (RFC 7306 section 5). The request must have
    /// exactly one local element of eight bytes, whose region has the right `LOCAL_WRITE`. The original value
    /// is stored in this element, in the byte order of this machine.
    Atomic {
        /// The target, which must be aligned to eight bytes. RFC 7306 sections 5.1.1 and 5.1.2 (EXT-177,
        /// EXT-181): the user names an aligned target; only the peer can check the alignment.
        remote: RemoteAddr,
        /// The operation.
        op: AtomicOp,
    },
    /// Invalidates a local STag, in order with the requests before and after this request.
    LocalInvalidate {
        /// The STag.
        rkey: u32,
    },
    /// Binds a memory window (`IBV_WR_BIND_MW`), in order with the requests before and after this request.
    BindWindow(BindWindow),
    /// Registers a range of a [`FastRegion`](crate::verbs::FastRegion) (`IB_WR_REG_MR`), in order with the
    /// requests before and after this request.
    FastRegister(FastRegister),
    /// A datagram: the only operation of a queue pair of type [`QpType::Ud`](super::QpType::Ud).
    Datagram {
        /// The destination.
        to: AddressVector,
        /// The number of the destination's queue pair. 0xFF_FFFF: each queue pair that is attached to the
        /// multicast group of the destination.
        remote_qpn: u32,
        /// The Q_Key of the destination's queue pair. If the highest bit is set, the Q_Key of the sending
        /// queue pair is sent instead.
        remote_qkey: u32,
        /// Immediate data, in the order in which they are sent.
        immediate: Option<[u8; 4]>,
    },
}

impl SendOp {
    /// Whether the operation sends the bytes of its elements, which may be inline.
    #[inline]
    pub(crate) fn sends_elements(&self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendInvalidate { .. }
                | Self::SendImmediate { .. }
                | Self::Write { .. }
                | Self::WriteImmediate { .. }
                | Self::Datagram { .. }
        )
    }

    /// Whether the operation is allowed on a connection. `agreed` says whether the endpoints have agreed on
    /// InfiniBand's semantics.
    pub(crate) fn is_allowed(&self, agreed: bool) -> bool {
        match self {
            Self::SendImmediate { .. } => agreed,
            Self::Immediate { data } | Self::WriteImmediate { data, .. } => {
                !agreed || joined_immediate(data).is_none()
            }
            _ => true,
        }
    }
}

/// A window to bind, the range of a region, and the window's rights (`ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindWindow {
    /// The new STag of the window: the index of the window, with a key that the consumer chooses.
    pub rkey: u32,
    /// The local key of the region, which was registered with `MW_BIND`.
    pub lkey: u32,
    /// The address of the first byte, in the tagged offsets of the region.
    pub addr: u64,
    /// Number of bytes. For a window of type 1, 0 unbinds the window.
    pub length: u64,
    /// Rights of the peer. Rights to write or to perform atomics require that the region has `LOCAL_WRITE`.
    pub access: Access,
    /// Whether the window's tagged offsets start at 0 instead of `addr`.
    pub zero_based: bool,
}

/// A fast registration (`IB_WR_REG_MR` of the kernel's verbs): the range of a
/// [`FastRegion`](crate::verbs::FastRegion) that becomes valid, with its new STag, its rights and the start
/// of its tagged offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegister {
    /// The new STag: the index of the `FastRegion`'s STag, with a key that the consumer chooses.
    pub rkey: u32,
    /// Offset of the first byte from the start of the `FastRegion`.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub length: u64,
    /// The rights of local requests and of peers.
    pub access: Access,
    /// The start of the tagged offsets.
    pub base: Base,
}

/// A request for the send queue (`ibv_send_wr`).
#[derive(Clone, Debug)]
pub struct SendRequest {
    /// A number that the completion contains.
    pub wr_id: u64,
    /// The operation, including the peer's memory that the operation uses.
    pub op: SendOp,
    /// The elements of local memory, in order. The list may be empty, for a message of length 0 or an
    /// operation without payload.
    pub sg_list: ArrayVec<Sge, MAX_SGE>,
    /// The options of the request. [`new`](Self::new) and [`empty`](Self::empty) set [`SendFlags::SIGNALED`].
    pub flags: SendFlags,
}

impl SendRequest {
    /// Returns a signaled request with one element.
    pub fn new(wr_id: u64, op: SendOp, sge: Sge) -> Self {
        let mut sg_list = ArrayVec::new();
        sg_list.push(sge);
        Self { wr_id, op, sg_list, flags: SendFlags::SIGNALED }
    }

    /// Returns a signaled request without payload.
    pub fn empty(wr_id: u64, op: SendOp) -> Self {
        Self { wr_id, op, sg_list: ArrayVec::new(), flags: SendFlags::SIGNALED }
    }

    /// Returns the request with `flags` in place of its flags.
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Returns the total number of bytes of all elements.
    pub fn length(&self) -> u64 {
        self.sg_list.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// A request for the receive queue. One incoming Send or Immediate Data consumes the request.
#[derive(Clone, Debug, Default)]
pub struct RecvRequest {
    /// A number that the completion contains.
    pub wr_id: u64,
    /// The buffers for the message, in order. The regions of the buffers must have the right `LOCAL_WRITE`.
    pub sg_list: ArrayVec<Sge, MAX_SGE>,
}

impl RecvRequest {
    /// Returns a request with one element.
    pub fn new(wr_id: u64, sge: Sge) -> Self {
        let mut sg_list = ArrayVec::new();
        sg_list.push(sge);
        Self { wr_id, sg_list }
    }

    /// Returns the total number of bytes of all elements.
    pub fn length(&self) -> u64 {
        self.sg_list.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// Posts requests until a request is refused. The error contains the number of posted requests.
pub(crate) fn post_each<R>(
    requests: &[R],
    post: impl Fn(&R) -> Result<(), VerbsError>,
) -> Result<(), (usize, VerbsError)> {
    requests
        .iter()
        .enumerate()
        .try_for_each(|(posted, request)| post(request).map_err(|error| (posted, error)))
}
