//! Work requests: what is posted to a queue pair.

use arrayvec::ArrayVec;
use bitflags::bitflags;

/// Scatter/gather elements of one work request.
pub const MAX_SGE: usize = 8;

/// Octets that [`SendFlags::INLINE`] copies at post time, at most.
pub const MAX_INLINE: usize = 128;

/// A piece of registered local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address (with a region's default base: its virtual address).
    pub addr: u64,
    /// Octets.
    pub length: u32,
    /// The region's local key.
    pub lkey: u32,
}

/// Where a peer's registered memory is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAddr {
    /// Tagged offset (its virtual address, by default).
    pub addr: u64,
    /// The STag it advertised.
    pub rkey: u32,
}

bitflags! {
    /// How a send request is treated.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u8 {
        /// Makes a completion also on success (queue pairs with `sq_sig_all` always do).
        const SIGNALED = 1 << 0;
        /// Waits for all earlier Reads to complete before it starts.
        const FENCE = 1 << 1;
        /// The peer's receive completion is a solicited event.
        const SOLICITED = 1 << 2;
        /// Copies the payload at post time; its memory may be reused at once and needs no registration check.
        const INLINE = 1 << 3;
    }
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// RFC 5040 Send; with [`SendFlags::SOLICITED`] a Send with Solicited Event.
    Send,
    /// Send with Invalidate: the peer's STag is invalid when its receive completes.
    SendInvalidate {
        /// The peer's STag.
        rkey: u32,
    },
    /// RDMA Write to the peer's memory; needs `REMOTE_WRITE` there.
    Write {
        /// Where to.
        remote: RemoteAddr,
    },
    /// RDMA Read from the peer's memory into exactly one local element, whose region needs `LOCAL_WRITE`.
    Read {
        /// Where from.
        remote: RemoteAddr,
    },
    /// Invalidates a local STag, in order with the requests around it.
    LocalInvalidate {
        /// The STag.
        rkey: u32,
    },
}

/// A request for the send queue.
#[derive(Clone, Debug)]
pub struct SendRequest {
    /// Given back in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Local memory, in order; may be empty (a zero-length message).
    pub sg_list: ArrayVec<Sge, MAX_SGE>,
    /// How.
    pub flags: SendFlags,
}

impl SendRequest {
    /// A signalled request with one element.
    pub fn new(wr_id: u64, op: SendOp, sge: Sge) -> Self {
        let mut sg_list = ArrayVec::new();
        sg_list.push(sge);
        Self { wr_id, op, sg_list, flags: SendFlags::SIGNALED }
    }

    /// A signalled request without payload.
    pub fn empty(wr_id: u64, op: SendOp) -> Self {
        Self { wr_id, op, sg_list: ArrayVec::new(), flags: SendFlags::SIGNALED }
    }

    /// The same with other flags.
    pub fn flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Octets of all elements.
    pub fn length(&self) -> u64 {
        self.sg_list.iter().map(|sge| u64::from(sge.length)).sum()
    }
}

/// A request for the receive queue: one incoming Send consumes it.
#[derive(Clone, Debug)]
pub struct RecvRequest {
    /// Given back in the completion.
    pub wr_id: u64,
    /// Where the message goes, in order; its regions need `LOCAL_WRITE`.
    pub sg_list: ArrayVec<Sge, MAX_SGE>,
}

impl RecvRequest {
    /// A request with one element.
    pub fn new(wr_id: u64, sge: Sge) -> Self {
        let mut sg_list = ArrayVec::new();
        sg_list.push(sge);
        Self { wr_id, sg_list }
    }

    /// Octets of all elements.
    pub fn length(&self) -> u64 {
        self.sg_list.iter().map(|sge| u64::from(sge.length)).sum()
    }
}
