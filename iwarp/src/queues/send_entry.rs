//! A posted request in the send queue.

use std::mem::ManuallyDrop;

use arrayvec::ArrayVec;

use crate::memory::Found;
use crate::rdmap::AtomicOp;

use super::{MAX_INLINE, MAX_SGE, SendFlags, SendOp, Sge, WcOpcode};

/// The payload of a posted request.
#[derive(Clone, Debug)]
pub(crate) enum Payload {
    /// Elements of registered memory, which are read when the payload is sent.
    Gather(ArrayVec<Sge, MAX_SGE>),
    /// Bytes that were copied when the request was posted.
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

    /// Sets the payload to a copy of the bytes in `parts`, one part after the other. Together the parts have
    /// at most [`MAX_INLINE`] bytes.
    #[inline]
    pub(crate) fn copy(&mut self, parts: &[&[u8]]) {
        *self = Self::Inline(ArrayVec::new());
        if let Self::Inline(bytes) = self {
            for part in parts {
                let is_copied = bytes.try_extend_from_slice(part).is_ok();
                debug_assert!(is_copied, "the number of bytes was checked");
            }
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct SendEntry {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    /// The payload, which is never dropped, since it owns nothing. So removing an entry from its ring needs
    /// no work for its elements.
    pub(crate) payload: ManuallyDrop<Payload>,
    /// Number of bytes of the payload.
    pub(crate) length: u32,
    pub(crate) flags: SendFlags,
    pub(crate) prepared: PreparedPayload,
}

/// The result of looking up a request's payload when the request was posted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PreparedPayload {
    /// The payload was not looked up yet, and is looked up when the message of the request starts.
    Unprepared,
    /// The payload is one registered element, which was found in this slot of the memory table. The request
    /// is a Send or Write without a fence, so it may start at once.
    Registered(Found),
    /// The payload was copied. The request is a Send or Write without a fence, so it may start at once.
    Inline,
    /// The local memory is invalid: the request fails when it is the oldest request.
    InvalidMemory,
    /// The buffer of an atomic does not have the length of the result: the request fails when it is the
    /// oldest request.
    InvalidLength,
}

impl PreparedPayload {
    /// Whether the request is a Send or Write that may start at once, and whose payload is either inline or
    /// one registered element.
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

/// Returns an empty entry.
impl Default for SendEntry {
    #[inline]
    fn default() -> Self {
        let payload = ManuallyDrop::new(Payload::default());
        let prepared = PreparedPayload::Unprepared;
        Self { wr_id: 0, op: SendOp::Send, payload, length: 0, flags: SendFlags::empty(), prepared }
    }
}

/// Returns the opcode in the completion of a request.
#[inline]
pub(crate) fn send_opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send
        | SendOp::SendInvalidate { .. }
        | SendOp::SendImmediate { .. }
        | SendOp::Datagram { .. } => WcOpcode::Send,
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
