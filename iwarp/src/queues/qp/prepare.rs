//! Checks a posted request against the configuration of its queue pair, and looks up its payload, before the
//! request enters the queue.

use arrayvec::ArrayVec;

use crate::memory::{Access, Fault, Found, Stag, WindowKind};
use crate::queues::{
    MAX_INLINE, PreparedPayload, QpGrants, QpType, SendFlags, SendOp, SendRequest, Sge, VerbsError,
};
use crate::rdmap::{AtomicOp, Extensions, IMMEDIATE_LEN};

use super::attributes::Attributes;
use super::config::QpConfig;

/// Number of bytes that an atomic returns: one 64-bit word (RFC 7306 section 5.2.2).
const ATOMIC_BYTES: u32 = 8;

/// A checked request: its length, its prepared payload, and, if the request is inline, its bytes.
pub(super) type Checked = (u32, PreparedPayload, Option<ArrayVec<u8, MAX_INLINE>>);

impl QpConfig {
    /// The fast path of [`prepare`](Self::prepare), for a Send or Write of one registered element that may
    /// start at once. The fast path refuses the same requests as `prepare`. Returns the length of the element
    /// and the slot in which it is registered, so that the engine need not look up the element again. Returns
    /// `None`, without a check, for any other request, and if the element is empty or not registered.
    ///
    /// If such a request fits into one FPDU, the fast path in `stream/outbound/usual.rs` can send the
    /// request.
    #[inline]
    pub(super) fn find_registered(&self, request: &SendRequest) -> Result<Option<(u32, Found)>, VerbsError> {
        const OTHER: SendFlags = SendFlags::FENCE.union(SendFlags::INLINE).union(SendFlags::ZERO_COPY);
        let starts_at_once = is_one_message(&request.op) && !request.flags.intersects(OTHER);
        match request.sg_list[..] {
            [Sge { addr, length, lkey }] if starts_at_once && self.caps.max_fast_sge() > 0 => {
                let memory = &self.resources().memory;
                let found = memory.find_source(self.pd.id(), lkey, addr, length).map_err(protection)?;
                Ok(found.map(|found| (length, found)))
            }
            _ => Ok(None),
        }
    }

    /// Checks a request of any form. [`find_registered`](Self::find_registered) is the fast path for some
    /// requests. If the request is inline, copies its bytes.
    #[inline(never)]
    pub(super) fn prepare(
        &self,
        request: &SendRequest,
        attributes: &Attributes,
    ) -> Result<Checked, VerbsError> {
        let length = request.length();
        // RFC 5041 section 5.2 (DDP-107): a message is shorter than 2^32 bytes.
        if length > u64::from(u32::MAX) {
            return Err(VerbsError::TooLong { got: length, max: u64::from(u32::MAX) });
        }
        self.check(request, length, attributes)?;
        let inline = match request.flags.contains(SendFlags::INLINE) && request.op.sends_elements() {
            true => Some(self.inline(&request.sg_list, length)?),
            false => None,
        };
        let prepared = if inline.is_some() { inline_payload(request) } else { PreparedPayload::Unprepared };
        Ok((length as u32, prepared, inline))
    }

    /// Decides on a request that failed its check. The request is still accepted if memory is checked late,
    /// and if the fault is invalid local memory or, for an atomic, a wrong length. Otherwise this function
    /// returns the error of the check.
    #[cold]
    pub(super) fn accept_fault(
        &self,
        request: &SendRequest,
        error: VerbsError,
    ) -> Result<Checked, VerbsError> {
        let prepared = match error {
            VerbsError::LocalProtection(_) => PreparedPayload::InvalidMemory,
            VerbsError::AtomicLength { .. } => PreparedPayload::InvalidLength,
            error => return Err(error),
        };
        if !self.resources().late_memory_checks {
            return Err(error);
        }
        Ok((u32::try_from(request.length()).unwrap_or(u32::MAX), prepared, None))
    }

    /// Checks an inline request whose `length` bytes the caller provides.
    pub(super) fn check_bytes(
        &self,
        request: &SendRequest,
        length: usize,
        attributes: &Attributes,
    ) -> Result<(), VerbsError> {
        let max = self.caps.max_inline();
        if length > max {
            return Err(VerbsError::TooLong { got: length as u64, max: max as u64 });
        }
        if !request.op.sends_elements() || !request.sg_list.is_empty() {
            return Err(VerbsError::Invalid(
                "only a Send or Write without elements takes bytes of the caller".into(),
            ));
        }
        self.check(request, length as u64, attributes)
    }

    /// Checks that the request is allowed, and checks its elements.
    fn check(&self, request: &SendRequest, length: u64, attributes: &Attributes) -> Result<(), VerbsError> {
        let sg_list = &request.sg_list;
        if sg_list.len() > self.caps.max_send_sge() {
            return Err(VerbsError::TooManySge { got: sg_list.len(), max: self.caps.max_send_sge() });
        }
        self.check_type(&request.op, length)?;
        self.check_extension(&request.op)?;
        check_agreement(&request.op, attributes)?;
        match request.op {
            SendOp::Read { .. } => self.check_ord_and_sinks(sg_list, attributes)?,
            SendOp::Atomic { .. } => {
                if sg_list.is_empty() || length != u64::from(ATOMIC_BYTES) {
                    return Err(VerbsError::AtomicLength { got: length });
                }
                if sg_list.len() > 1 {
                    return Err(VerbsError::TooManySge { got: sg_list.len(), max: 1 });
                }
                self.check_ord_and_sinks(sg_list, attributes)?;
            }
            SendOp::Immediate { .. } if length > 0 => {
                return Err(VerbsError::Invalid(format!(
                    "Immediate Data is its {IMMEDIATE_LEN} bytes alone: post it without elements"
                )));
            }
            SendOp::Immediate { .. } | SendOp::LocalInvalidate { .. } => {}
            SendOp::BindWindow(_) => self.check_grant(QpGrants::BIND_WINDOWS)?,
            SendOp::FastRegister(_) => self.check_grant(QpGrants::FAST_REGISTER)?,
            SendOp::Send
            | SendOp::SendInvalidate { .. }
            | SendOp::SendImmediate { .. }
            | SendOp::Write { .. }
            | SendOp::WriteImmediate { .. }
            | SendOp::Datagram { .. } => {
                // The elements of an inline request are checked when their bytes are copied.
                if !request.flags.contains(SendFlags::INLINE) {
                    self.pd.check_local(sg_list, Access::empty())?;
                }
            }
        }
        Ok(())
    }

    /// Checks that the operation fits the type of the queue pair. A datagram has at most one path MTU.
    fn check_type(&self, op: &SendOp, length: u64) -> Result<(), VerbsError> {
        match (self.qp_type, op) {
            (QpType::Ud { max_message }, SendOp::Datagram { .. }) => match u64::from(max_message) {
                max if length > max => Err(VerbsError::TooLong { got: length, max }),
                _ => Ok(()),
            },
            (QpType::Rc | QpType::Uc, SendOp::Datagram { .. }) => {
                let name = self.qp_type.name();
                Err(VerbsError::Invalid(format!("a queue pair of type {name} sends no datagrams")))
            }
            (QpType::Rc, _) => Ok(()),
            // InfiniBand defines no other messages for the type UC. Immediate Data follows a Write.
            (QpType::Uc, SendOp::Read { .. } | SendOp::Atomic { .. })
            | (QpType::Uc, SendOp::SendInvalidate { .. } | SendOp::Immediate { .. }) => {
                Err(VerbsError::Invalid("a queue pair of type UC has only Sends and Writes".into()))
            }
            (QpType::Uc, _) => Ok(()),
            (QpType::Ud { .. }, _) => {
                Err(VerbsError::Invalid("a queue pair of type UD sends only datagrams".into()))
            }
        }
    }

    /// Checks that the queue pair has enabled the message of this operation.
    fn check_extension(&self, op: &SendOp) -> Result<(), VerbsError> {
        let (understood, name) = match op {
            SendOp::Immediate { .. } | SendOp::WriteImmediate { .. } | SendOp::SendImmediate { .. } => {
                (self.extensions.contains(Extensions::IMMEDIATE), "IMMEDIATE")
            }
            SendOp::Atomic { op: op @ AtomicOp::Swap { .. }, .. } => {
                (op.is_understood(self.extensions), "ATOMICS and SWAP")
            }
            SendOp::Atomic { op, .. } => (op.is_understood(self.extensions), "ATOMICS"),
            _ => return Ok(()),
        };
        if understood {
            return Ok(());
        }
        Err(VerbsError::Invalid(format!(
            "this queue pair was made without this message: add {name} to QpInit::extensions"
        )))
    }

    /// Checks that a Read or atomic may be sent, and that its elements are valid buffers for the responses.
    fn check_ord_and_sinks(&self, sg_list: &[Sge], attributes: &Attributes) -> Result<(), VerbsError> {
        if !attributes.allows_reads() {
            return Err(VerbsError::Invalid(
                "this connection allows no Read and no atomic: its ORD was negotiated to 0".into(),
            ));
        }
        self.pd.check_local(sg_list, Access::LOCAL_WRITE)
    }

    /// Refuses a request that binds a window of type 1, since only `bind_mw` may make such requests.
    pub(crate) fn check_window_kind(&self, op: &SendOp) -> Result<(), VerbsError> {
        let SendOp::BindWindow(bind) = op else { return Ok(()) };
        if self.resources().memory.window_kind(Stag(bind.rkey)) == Some(WindowKind::Type1) {
            let text = "a window of type 1 is bound by QueuePair::bind_mw, which chooses its key";
            return Err(VerbsError::Invalid(text.into()));
        }
        Ok(())
    }

    fn check_grant(&self, needed: QpGrants) -> Result<(), VerbsError> {
        // RFC 5041 section 8.3.2 (DDP-234), RFC 5040 section 8.1.2 (RDMAP-364): a queue pair may bind windows
        // or register memory only if it was granted this right.
        if self.grants.contains(needed) {
            return Ok(());
        }
        let text = format!("this queue pair was not granted it: create it with QpInit::grants = {needed:?}");
        Err(VerbsError::Invalid(text))
    }

    /// Returns a copy of the bytes of an inline request. Fails if the bytes are too many, or if a check of
    /// their memory fails.
    fn inline(&self, sg_list: &[Sge], length: u64) -> Result<ArrayVec<u8, MAX_INLINE>, VerbsError> {
        let max = self.caps.max_inline() as u64;
        if length > max {
            return Err(VerbsError::TooLong { got: length, max });
        }
        let mut bytes = ArrayVec::from([0; MAX_INLINE]);
        bytes.truncate(length as usize);
        let mut offset = 0;
        for sge in sg_list {
            let end = offset + sge.length as usize;
            self.resources()
                .memory
                .fetch_local(self.pd.id(), sge.lkey, sge.addr, &mut bytes[offset..end])
                .map_err(protection)?;
            offset = end;
        }
        Ok(bytes)
    }
}

/// Checks that the endpoints have agreed on the message of this operation. Before the connection is
/// established every message passes, since the stream checks the message again when it is sent.
fn check_agreement(op: &SendOp, attributes: &Attributes) -> Result<(), VerbsError> {
    match attributes.ib_semantics() {
        Some(agreed) if !op.is_allowed(agreed) => {}
        Some(_) | None => return Ok(()),
    }
    let text = match op {
        SendOp::SendImmediate { .. } => {
            "Send with Immediate is for ends that have agreed on it (ConnParam::ib_semantics)"
        }
        _ => "with ConnParam::ib_semantics the last four bytes of Immediate Data are not all 0xFF",
    };
    Err(VerbsError::Invalid(text.into()))
}

/// Returns the prepared payload of a request whose bytes were copied.
pub(super) fn inline_payload(request: &SendRequest) -> PreparedPayload {
    match is_one_message(&request.op) && !request.flags.contains(SendFlags::FENCE) {
        true => PreparedPayload::Inline,
        false => PreparedPayload::Unprepared,
    }
}

/// Whether a request consists of exactly one message, a Send or a Write.
#[inline]
fn is_one_message(op: &SendOp) -> bool {
    matches!(op, SendOp::Send | SendOp::SendInvalidate { .. } | SendOp::Write { .. })
}

/// Returns the error for local memory that fails a check.
#[cold]
fn protection(fault: Fault) -> VerbsError {
    VerbsError::LocalProtection(fault.to_string())
}

#[cfg(test)]
mod tests;
