//! Work requests: the requests that users post to a queue pair.

use arrayvec::ArrayVec;
use bitflags::bitflags;

use crate::memory::{Access, Base};
use crate::rdmap::{AtomicOp, joined_immediate};

use super::VerbsError;

/// Maximum number of scatter/gather elements of one work request. Each entry of a send queue has space for
/// all of them, so a higher number makes every queue larger.
pub const MAX_SGE: usize = 8;

/// Maximum number of bytes that [`SendFlags::INLINE`] copies at post time: the size of [`MAX_SGE`] elements,
/// whose space in the entry the bytes take.
pub const MAX_INLINE: usize = 128;

/// A piece of registered local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address (with a region's default base: its virtual address).
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// A location in the peer's registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Tagged offset: the virtual address by default.
    pub addr: u64,
    /// The STag that the peer advertised.
    pub rkey: u32,
}

/// Minimum bytes of a message for [`SendFlags::ZERO_COPY`] to have an effect. A shorter message costs less
/// to copy than to send by reference and wait for.
pub const ZERO_COPY_MIN_BYTES: u32 = 256 << 10;

bitflags! {
    /// How a send request starts, takes its payload and reports its end.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Makes a completion also on success (`sq_sig_all` sets this for every request of a queue pair).
        const SIGNALED = 1 << 0;
        /// Waits for all earlier Reads and atomics to complete before it starts.
        const FENCE = 1 << 1;
        /// The peer's receive completion is a solicited event.
        const SOLICITED = 1 << 2;
        /// Copies the payload at post time: its memory may be reused or deregistered at once. Unlike with
        /// `IBV_SEND_INLINE`, this memory has to be registered when the request is posted, since only
        /// registered memory can be read safely by its address.
        const INLINE = 1 << 3;
        /// Sends from the registered memory itself, without a copy of it. The memory must not change until
        /// the request has completed: TCP reads bytes again to retransmit them, and the peer ends the stream
        /// if they do not match the CRC. After an error of the stream the memory may change at once.
        /// Deregistering the region is safe at any time: it stays mapped as long as it is needed.
        ///
        /// The request completes when the peer's TCP has acknowledged the bytes, and not when they are handed
        /// to TCP. The last 64 bytes of a message are copied into a separate segment, so that a receiver
        /// does not delay the acknowledgement.
        ///
        /// The whole payload is copied, and the request completes as usual, if a copy costs less: if the
        /// stream has CRCs, since their computation reads each byte anyway
        /// ([`EngineConfig::crc`](crate::engine::EngineConfig::crc)), if the payload has less than
        /// [`ZERO_COPY_MIN_BYTES`], or if a TCP segment has less than 8 KiB, as with an MTU of 1500. It is
        /// copied, too, if it is inline, has several elements, or lies in memory of the caller; if the peer
        /// wants markers; and if the port cannot send from any memory (`dp::Offloads::TX_EXTERNAL`) or does
        /// not compute checksums. [`EngineCounters::tx_zero_copy_bytes`](crate::engine::EngineCounters)
        /// counts the bytes that were not copied.
        const ZERO_COPY = 1 << 4;
    }
}

/// The operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendOp {
    /// RFC 5040 Send; with [`SendFlags::SOLICITED`] a Send with Solicited Event.
    Send,
    /// Send with Invalidate: the STag of the peer is invalid when its receive completes.
    SendInvalidate {
        /// The peer's STag.
        rkey: u32,
    },
    /// RDMA Write to the peer's memory; needs `REMOTE_WRITE` there.
    Write {
        /// The destination.
        remote: RemoteAddr,
    },
    /// RDMA Read from the peer's memory into the local elements, in order, whose regions need `LOCAL_WRITE`.
    /// Without an element it reads no bytes. A Read Request has one sink (RFC 5040 section 4.4), so each
    /// element with bytes has its own Read Request. Each of them counts against ORD, and waits while ORD is
    /// reached.
    Read {
        /// The source.
        remote: RemoteAddr,
    },
    /// Send with Immediate (`IBV_WR_SEND_WITH_IMM`): the peer's receive completes as with a Send, with these
    /// bytes as the first four of [`WorkCompletion::immediate`](super::WorkCompletion::immediate). Only for
    /// ends that have agreed on [`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics).
    SendImmediate {
        /// Four bytes in the order in which they are sent.
        data: [u8; 4],
    },
    /// Immediate Data (RFC 7306 section 6); with [`SendFlags::SOLICITED`] with Solicited Event. It consumes a
    /// receive request of the peer, whose buffer must hold at least eight bytes, unless both ends have agreed
    /// on [`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics).
    Immediate {
        /// Eight bytes in the order in which they are sent. With `ib_semantics` the last four are not all
        /// 0xFF.
        data: [u8; 8],
    },
    /// RDMA Write followed by Immediate Data, with one completion (`IBV_WR_RDMA_WRITE_WITH_IMM`). The peer
    /// sees it as [`SendOp::Immediate`], after the written bytes are in place.
    WriteImmediate {
        /// The destination.
        remote: RemoteAddr,
        /// The data, as in [`SendOp::Immediate`].
        data: [u8; 8],
    },
    /// An atomic on eight bytes of the peer's memory (RFC 7306 section 5). The original value goes to exactly
    /// one local element of eight bytes, in the byte order of this machine, whose region needs `LOCAL_WRITE`.
    Atomic {
        /// The target: memory aligned to eight bytes. RFC 7306 sections 5.1.1 and 5.1.2 (EXT-177, EXT-181):
        /// the user names an aligned target; only the peer can check it.
        remote: RemoteAddr,
        /// The operation.
        op: AtomicOp,
    },
    /// Invalidates a local STag, in order with the requests around it.
    LocalInvalidate {
        /// The STag.
        rkey: u32,
    },
    /// Binds a memory window (`IBV_WR_BIND_MW`), in order with the requests around it.
    BindWindow(BindWindow),
    /// Makes a region that was allocated for fast registration valid, in order with the requests around it.
    FastRegister(FastRegister),
}

impl SendOp {
    /// Whether the elements contain bytes to send, which may be inline.
    #[inline]
    pub(crate) fn sends_elements(&self) -> bool {
        matches!(
            self,
            Self::Send
                | Self::SendInvalidate { .. }
                | Self::SendImmediate { .. }
                | Self::Write { .. }
                | Self::WriteImmediate { .. }
        )
    }

    /// Whether the operation is allowed on a connection. `agreed`: its ends have agreed on InfiniBand's
    /// semantics.
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

/// A window to bind, with its range of a region and its rights (`ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindWindow {
    /// The new STag of the window: its index, with a key of the consumer's choice.
    pub rkey: u32,
    /// The region behind it, registered with `MW_BIND`.
    pub lkey: u32,
    /// First byte, as an address of the region.
    pub addr: u64,
    /// Bytes; 0 unbinds.
    pub length: u64,
    /// Rights of the peer; writing needs a region with `LOCAL_WRITE`.
    pub access: Access,
    /// Whether tagged offsets start at 0 instead of at `addr`.
    pub zero_based: bool,
}

/// The part of prepared memory that becomes valid, with its STag and its rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegister {
    /// The new STag of the region: its index, with a key of the consumer's choice.
    pub rkey: u32,
    /// First byte, relative to the start of the prepared memory.
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
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation, with the peer's memory that it uses.
    pub op: SendOp,
    /// Local memory, in order; may be empty, for a message of length zero.
    pub sg_list: ArrayVec<Sge, MAX_SGE>,
    /// [`new`](Self::new) and [`empty`](Self::empty) set [`SendFlags::SIGNALED`].
    pub flags: SendFlags,
}

impl SendRequest {
    /// A signaled request with one element.
    pub fn new(wr_id: u64, op: SendOp, sge: Sge) -> Self {
        let mut sg_list = ArrayVec::new();
        sg_list.push(sge);
        Self { wr_id, op, sg_list, flags: SendFlags::SIGNALED }
    }

    /// A signaled request without payload.
    pub fn empty(wr_id: u64, op: SendOp) -> Self {
        Self { wr_id, op, sg_list: ArrayVec::new(), flags: SendFlags::SIGNALED }
    }

    /// The same request with other flags.
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Bytes of all elements.
    pub fn length(&self) -> u64 {
        self.sg_list.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// A request for the receive queue: one incoming Send or Immediate Data consumes it.
#[derive(Clone, Debug, Default)]
pub struct RecvRequest {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Buffers for the message, in order; their regions need `LOCAL_WRITE`.
    pub sg_list: ArrayVec<Sge, MAX_SGE>,
}

impl RecvRequest {
    /// A request with one element.
    pub fn new(wr_id: u64, sge: Sge) -> Self {
        let mut sg_list = ArrayVec::new();
        sg_list.push(sge);
        Self { wr_id, sg_list }
    }

    /// Bytes of all elements.
    pub fn length(&self) -> u64 {
        self.sg_list.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// Posts requests until one is refused. The error has the number of posted requests.
pub(crate) fn post_each<R>(
    requests: &[R],
    post: impl Fn(&R) -> Result<(), VerbsError>,
) -> Result<(), (usize, VerbsError)> {
    requests
        .iter()
        .enumerate()
        .try_for_each(|(posted, request)| post(request).map_err(|error| (posted, error)))
}
