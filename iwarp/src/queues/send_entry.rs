//! A posted request in the send queue.

use std::mem::ManuallyDrop;

use arrayvec::ArrayVec;

use crate::memory::Found;
use crate::rdmap::AtomicOp;

use super::{MAX_INLINE, MAX_SGE, SendFlags, SendOp, Sge, WcOpcode};

/// The payload of a posted request.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// Read from registered memory when it is sent.
    Gather(ArrayVec<Sge, MAX_SGE>),
    /// Copied when the request was posted.
    Inline(ArrayVec<u8, MAX_INLINE>),
}

impl Default for Payload {
    fn default() -> Self {
        Self::Gather(ArrayVec::new())
    }
}

impl Payload {
    /// Sets the payload to these elements. Copies only `sg_list.len()` elements.
    #[inline]
    pub(crate) fn gather(&mut self, sg_list: &[Sge]) {
        if !matches!(self, Self::Gather(_)) {
            *self = Self::default();
        }
        if let Self::Gather(elements) = self {
            elements.clear();
            elements.extend(sg_list.iter().copied().take(MAX_SGE));
        }
    }
}

/// A request in the send queue.
#[derive(Clone, Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    /// Never dropped, since it owns nothing: an entry leaves its ring without work for its elements.
    pub(crate) payload: ManuallyDrop<Payload>,
    /// Bytes of the payload.
    pub(crate) length: u32,
    pub(crate) flags: SendFlags,
    pub(crate) prepared: PreparedPayload,
}

/// The payload of a request as the post has found it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PreparedPayload {
    /// Not looked up: the message of the request looks it up.
    Unprepared,
    /// One registered element at this place, of a Send or Write that may start at once, as it has no fence.
    Registered(Found),
    /// Copied, of a Send or Write that may start at once, as with `Registered`.
    Inline,
    /// Invalid local memory: the request fails when its turn comes.
    InvalidMemory,
    /// As `InvalidMemory`, for an atomic whose buffer does not have the length of its result.
    InvalidLength,
}

impl PreparedPayload {
    /// Whether the request is a Send or Write that may start at once, and whose payload is copied from one
    /// place.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self, Self::Registered(_) | Self::Inline)
    }
}

/// A sent request that generates a completion.
pub(crate) struct Signaled {
    pub(crate) wr_id: u64,
    pub(crate) opcode: WcOpcode,
}

/// An empty entry.
impl Default for SendEntry {
    #[inline]
    fn default() -> Self {
        let payload = ManuallyDrop::new(Payload::default());
        let prepared = PreparedPayload::Unprepared;
        Self { wr_id: 0, op: SendOp::Send, payload, length: 0, flags: SendFlags::empty(), prepared }
    }
}

/// The opcode in the completion of a request.
#[inline]
pub(crate) fn send_opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendInvalidate { .. } | SendOp::SendImmediate { .. } => WcOpcode::Send,
        SendOp::Write { .. } => WcOpcode::Write,
        SendOp::Read { .. } => WcOpcode::Read,
        SendOp::Immediate { .. } => WcOpcode::Immediate,
        SendOp::WriteImmediate { .. } => WcOpcode::Write,
        SendOp::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => WcOpcode::FetchAdd,
        SendOp::Atomic { op: AtomicOp::CmpSwap { .. }, .. } => WcOpcode::CmpSwap,
        SendOp::Atomic { op: AtomicOp::Swap { .. }, .. } => WcOpcode::Swap,
        SendOp::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
        SendOp::BindWindow(_) => WcOpcode::BindWindow,
        SendOp::FastRegister(_) => WcOpcode::FastRegister,
    }
}
