//! Work requests: the requests that users post to a queue pair.

use arrayvec::ArrayVec;
use bitflags::bitflags;

use crate::memory::{Access, Base};
use crate::rdmap::{AtomicOp, joined_immediate};

use super::VerbsError;

/// Scatter/gather elements of one work request, at most. Each entry of a send queue has space for this many,
/// so a higher number makes every queue larger.
pub const MAX_SGE: usize = 8;

/// Bytes that [`SendFlags::INLINE`] copies at post time, at most: the size of [`MAX_SGE`] elements, whose
/// space in the entry they take.
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

/// Where a peer's registered memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Tagged offset: the virtual address by default.
    pub addr: u64,
    /// The STag that the peer advertised.
    pub rkey: u32,
}

/// Bytes of a message from which on [`SendFlags::ZERO_COPY`] has an effect. Shorter ones cost less to copy
/// than to describe, and to wait for.
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
        /// `IBV_SEND_INLINE` it has to be registered when it is posted, since only registered memory can be
        /// read safely by its address.
        const INLINE = 1 << 3;
        /// Sends from the registered memory itself, without a copy of it. The memory must not change until
        /// the request has completed: bytes that are sent again are read again, and a peer ends the stream
        /// when the CRC does not fit them. After an error of the stream the memory may change at once.
        /// Deregistering the region is safe at any time: it stays mapped as long as it is needed.
        ///
        /// The request completes when the peer's TCP has acknowledged the bytes, and not when they are handed
        /// to TCP. The last 64 bytes of a message are copied into a segment of their own, so that a receiver
        /// does not delay that acknowledgement.
        ///
        /// All of the payload is copied, and the request completes as others do, where a copy costs less:
        /// where the stream has CRCs, which read each byte here
        /// ([`EngineConfig::crc`](crate::engine::EngineConfig::crc)); where it is short (less than
        /// [`ZERO_COPY_MIN_BYTES`]); and where a TCP segment has less than 8 KiB, as with an MTU of 1500. It
        /// is copied, too, where it is inline, has several elements, or lies in memory of the caller; where
        /// the peer wants markers; and where the port does not send from any memory
        /// (`dp::Offloads::TX_EXTERNAL`) or does not compute checksums.
        /// [`EngineCounters::tx_zero_copy_bytes`](crate::engine::EngineCounters) counts the bytes that were
        /// not copied.
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
    /// Without an element it reads no bytes. A Read Request has one sink (RFC 5040 section 4.4), so there is
    /// one for each element with bytes. Each counts against ORD, and waits for it if need be.
    Read {
        /// The source.
        remote: RemoteAddr,
    },
    /// Send with Immediate (`IBV_WR_SEND_WITH_IMM`): the peer's receive completes as that of a Send, with
    /// these bytes as the first four of [`WorkCompletion::immediate`](super::WorkCompletion::immediate). Only
    /// for ends that have agreed on [`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics).
    SendImmediate {
        /// Four bytes in the order they are sent.
        data: [u8; 4],
    },
    /// Immediate Data (RFC 7306 section 6); with [`SendFlags::SOLICITED`] with Solicited Event. It consumes a
    /// receive request of the peer, whose buffer must hold at least eight bytes, unless both ends have agreed
    /// on [`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics).
    Immediate {
        /// Eight bytes in the order they are sent. With `ib_semantics` the last four are not all 0xFF.
        data: [u8; 8],
    },
    /// RDMA Write followed by Immediate Data, with one completion (`IBV_WR_RDMA_WRITE_WITH_IMM`). The peer
    /// sees it as [`SendOp::Immediate`], after the written bytes are in place.
    WriteImmediate {
        /// The destination.
        remote: RemoteAddr,
        /// As those of [`SendOp::Immediate`].
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
    /// Whether the elements are bytes to send, which may be inline.
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

    /// Whether it is allowed on a connection whose ends have `agreed` on InfiniBand's semantics, or not.
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

/// Which window to bind, to which range of which region, with which rights (`ibv_mw_bind_info`).
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

/// Which part of prepared memory becomes valid, under which STag and with which rights.
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

/// Posts requests until one is refused; the error has the number of requests that were posted.
pub(crate) fn post_each<R>(
    requests: &[R],
    post: impl Fn(&R) -> Result<(), VerbsError>,
) -> Result<(), (usize, VerbsError)> {
    requests
        .iter()
        .enumerate()
        .try_for_each(|(posted, request)| post(request).map_err(|error| (posted, error)))
}
