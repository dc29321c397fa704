//! Posting: the checks of a request before it enters its queue.

use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;

use crate::memory::{Access, Fault, Found, Stag, WindowKind};
use crate::queues::{
    MAX_INLINE, Payload, QpGrants, QpState, RecvRequest, SendFlags, SendOp, SendRequest, Sge, Usual,
    VerbsError,
};
use crate::rdmap::{AtomicOp, Extensions, IMMEDIATE_LEN};

use super::QpShared;

/// Bytes that an atomic returns: one 64-bit word (RFC 7306 section 5.2.2).
const ATOMIC_BYTES: u32 = 8;

/// A request that was checked: its length, its form, and its bytes if it is inline.
type Checked = (u32, Usual, Option<ArrayVec<u8, MAX_INLINE>>);

impl QpShared {
    /// Checks a request and adds it to the send queue. Does not ring the doorbell.
    pub(crate) fn queue_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        if !self.takes_sends() {
            return self.keep_late(request);
        }
        match self.usual(request) {
            Ok(Some((length, found))) => self.add_send(request, length, Usual::Registered(found), None),
            Ok(None) => self.queue_checked(request, self.unusual(request)),
            Err(error) => self.queue_checked(request, Err(error)),
        }
    }

    /// Whether [`queue_send`](Self::queue_send) would accept a request, if there is room.
    pub(crate) fn check_send(&self, request: &SendRequest) -> Result<(), VerbsError> {
        if !self.takes_sends() {
            return self.check_late();
        }
        // Not by `usual`, which has one caller, so that it is a part of it.
        self.unusual(request).or_else(|error| self.faulty(request, error)).map(drop)
    }

    /// Adds a request of any form after its check.
    #[inline(never)]
    fn queue_checked(
        &self,
        request: &SendRequest,
        checked: Result<Checked, VerbsError>,
    ) -> Result<(), VerbsError> {
        let (length, usual, inline) = checked.or_else(|error| self.faulty(request, error))?;
        self.add_send(request, length, usual, inline)
    }

    /// As [`queue_send`](Self::queue_send) for an inline request whose bytes the caller has: `parts`, one
    /// after the other.
    pub(crate) fn queue_inline(&self, request: &SendRequest, parts: &[&[u8]]) -> Result<(), VerbsError> {
        if !self.takes_sends() {
            return self.keep_late(request);
        }
        let length: usize = parts.iter().map(|part| part.len()).sum();
        self.check_bytes(request, length)?;
        let bytes = parts.iter().copied().flatten().copied().collect();
        let is_usual = is_one_message(&request.op) && !request.flags.contains(SendFlags::FENCE);
        let usual = if is_usual { Usual::Inline } else { Usual::No };
        self.add_send(request, length as u32, usual, Some(bytes))
    }

    /// Whether [`queue_inline`](Self::queue_inline) would accept a request with `length` bytes, if there is
    /// room.
    pub(crate) fn check_inline(&self, request: &SendRequest, length: usize) -> Result<(), VerbsError> {
        if !self.takes_sends() {
            return self.check_late();
        }
        self.check_bytes(request, length)
    }

    /// Checks an inline request with `length` bytes of the caller.
    fn check_bytes(&self, request: &SendRequest, length: usize) -> Result<(), VerbsError> {
        let max = self.caps.max_inline();
        if length > max {
            return Err(VerbsError::TooLong { got: length as u64, max: max as u64 });
        }
        if !request.op.sends_elements() || !request.sg_list.is_empty() {
            return Err(VerbsError::Invalid(
                "only a Send or Write without elements takes bytes of the caller".into(),
            ));
        }
        self.check(request, length as u64)
    }

    /// Adds a request that was checked.
    #[inline(always)]
    fn add_send(
        &self,
        request: &SendRequest,
        length: u32,
        usual: Usual,
        inline: Option<ArrayVec<u8, MAX_INLINE>>,
    ) -> Result<(), VerbsError> {
        let mut queue = self.send_queue();
        if !self.send.wqes.take() {
            return Err(VerbsError::QueueFull("send"));
        }
        // The entry is written where it lies.
        let is_added = queue.push_with(|entry| {
            entry.wr_id = request.wr_id;
            entry.op = request.op;
            entry.length = length;
            entry.flags = request.flags;
            entry.usual = usual;
            match inline {
                Some(bytes) => *entry.payload = Payload::Inline(bytes),
                None => entry.payload.gather(&request.sg_list),
            }
        });
        debug_assert!(is_added, "the queue holds as many requests as may be open");
        if is_added { Ok(()) } else { Err(VerbsError::QueueFull("send")) }
    }

    /// Whether the send queue accepts requests. It refuses them before the connection, unless they may wait
    /// for it, and after a graceful close was requested (RFC 5041 section 6.2.1). After an error it accepts
    /// them, and they are flushed.
    #[inline]
    fn takes_sends(&self) -> bool {
        // RFC 5041 section 6.2.1 (DDP-149): after a request for a graceful close a post is refused.
        !self.is_close_asked() && self.send_states & self.state().bit() != 0
    }

    /// Why the send queue refuses requests.
    #[cold]
    pub(super) fn refusal(&self) -> VerbsError {
        VerbsError::InvalidState(match self.state() {
            // The engine has not seen the close yet.
            QpState::Rts => QpState::Closing,
            state => state,
        })
    }

    /// Checks a request of the usual form: a Send or Write of one registered element that may start at once.
    /// Returns its length, and where the element is. `None` if it has another form, and nothing is checked.
    #[inline]
    fn usual(&self, request: &SendRequest) -> Result<Option<(u32, Found)>, VerbsError> {
        const OTHER: SendFlags = SendFlags::FENCE.union(SendFlags::INLINE).union(SendFlags::ZERO_COPY);
        let is_usual = is_one_message(&request.op) && !request.flags.intersects(OTHER);
        match request.sg_list[..] {
            [Sge { addr, length, lkey }] if is_usual && self.caps.max_send_sge() > 0 => {
                let memory = &self.resources().memory;
                let found = memory.find_source(self.pd.id(), lkey, addr, length).map_err(protection)?;
                Ok(found.map(|found| (length, found)))
            }
            _ => Ok(None),
        }
    }

    /// Checks a request of any form. Returns its length, and its bytes if it is inline.
    #[inline(never)]
    fn unusual(&self, request: &SendRequest) -> Result<Checked, VerbsError> {
        let length = request.length();
        // RFC 5041 section 5.2 (DDP-107): a message is shorter than 2^32 bytes.
        if length > u64::from(u32::MAX) {
            return Err(VerbsError::TooLong { got: length, max: u64::from(u32::MAX) });
        }
        self.check(request, length)?;
        let inline = match request.flags.contains(SendFlags::INLINE) && request.op.sends_elements() {
            true => Some(self.inline(&request.sg_list, length)?),
            false => None,
        };
        let is_usual =
            inline.is_some() && is_one_message(&request.op) && !request.flags.contains(SendFlags::FENCE);
        Ok((length as u32, if is_usual { Usual::Inline } else { Usual::No }, inline))
    }

    /// A request failed its check. It is accepted nevertheless if its local memory is at fault, or its length
    /// as an atomic, and memory is checked late.
    #[cold]
    fn faulty(&self, request: &SendRequest, error: VerbsError) -> Result<Checked, VerbsError> {
        match error {
            VerbsError::LocalProtection(_) if self.resources().late_memory_checks => {
                Ok((u32::try_from(request.length()).unwrap_or(u32::MAX), Usual::Faulty, None))
            }
            VerbsError::AtomicLength { .. } if self.resources().late_memory_checks => {
                Ok((u32::try_from(request.length()).unwrap_or(u32::MAX), Usual::WrongLength, None))
            }
            error => Err(error),
        }
    }

    /// Checks the elements of a request, and that the request is allowed.
    fn check(&self, request: &SendRequest, length: u64) -> Result<(), VerbsError> {
        let sg_list = &request.sg_list;
        if sg_list.len() > self.caps.max_send_sge() {
            return Err(VerbsError::TooManySge { got: sg_list.len(), max: self.caps.max_send_sge() });
        }
        self.check_extension(&request.op)?;
        self.check_agreement(&request.op)?;
        match request.op {
            SendOp::Read { .. } => self.check_ord_and_sinks(sg_list)?,
            SendOp::Atomic { .. } => {
                if sg_list.is_empty() || length != u64::from(ATOMIC_BYTES) {
                    return Err(VerbsError::AtomicLength { got: length });
                }
                if sg_list.len() > 1 {
                    return Err(VerbsError::TooManySge { got: sg_list.len(), max: 1 });
                }
                self.check_ord_and_sinks(sg_list)?;
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
            | SendOp::WriteImmediate { .. } => {
                // Copying inline bytes checks the elements too.
                if !request.flags.contains(SendFlags::INLINE) {
                    self.pd.check_local(sg_list, Access::empty())?;
                }
            }
        }
        Ok(())
    }

    /// Checks that the message is enabled on this queue pair.
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

    /// Checks that the ends have agreed to the message. Before they are connected every message passes: the
    /// stream checks it again when it is sent.
    fn check_agreement(&self, op: &SendOp) -> Result<(), VerbsError> {
        match self.ib_semantics() {
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

    /// Checks that a Read or atomic may be sent, and that its responses have buffers.
    fn check_ord_and_sinks(&self, sg_list: &[Sge]) -> Result<(), VerbsError> {
        if self.ord.load(Ordering::Acquire) == 0 {
            return Err(VerbsError::Invalid(
                "this connection allows no Read and no atomic: its ORD was negotiated to 0".into(),
            ));
        }
        self.pd.check_local(sg_list, Access::LOCAL_WRITE)
    }

    /// Refuses a request that binds a window of type 1: only `bind_mw` makes those.
    pub(crate) fn check_window_kind(&self, op: &SendOp) -> Result<(), VerbsError> {
        let SendOp::BindWindow(bind) = op else { return Ok(()) };
        if self.resources().memory.window_kind(Stag(bind.rkey)) == Some(WindowKind::Type1) {
            let text = "a window of type 1 is bound by QueuePair::bind_mw, which chooses its key";
            return Err(VerbsError::Invalid(text.into()));
        }
        Ok(())
    }

    fn check_grant(&self, needed: QpGrants) -> Result<(), VerbsError> {
        // RFC 5041 section 8.3.2 (DDP-234), RFC 5040 section 8.1.2 (RDMAP-364): a queue pair may only change
        // STags if it was granted that.
        if self.grants.contains(needed) {
            return Ok(());
        }
        let text = format!("this queue pair was not granted it: create it with QpInit::grants = {needed:?}");
        Err(VerbsError::Invalid(text))
    }

    /// Copies the bytes of an inline request.
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

    /// Checks a request and adds it to the receive queue.
    pub(crate) fn queue_recv(&self, request: &RecvRequest) -> Result<(), VerbsError> {
        if self.srq.is_some() {
            return Err(VerbsError::Invalid(
                "this queue pair receives through its shared receive queue: post there".into(),
            ));
        }
        self.pd.check_recv(request, self.caps.max_recv_sge())?;
        let mut queue = self.recv_queue();
        if !self.recv.wqes.take() {
            return Err(VerbsError::QueueFull("receive"));
        }
        // The entry is written where it lies.
        let is_added = queue.push_with(|entry| {
            entry.wr_id = request.wr_id;
            entry.sg_list.extend(request.sg_list.iter().copied());
        });
        debug_assert!(is_added, "the queue holds as many requests as may be open");
        if is_added { Ok(()) } else { Err(VerbsError::QueueFull("receive")) }
    }
}

/// Whether a request is a Send or a Write and nothing else.
#[inline]
fn is_one_message(op: &SendOp) -> bool {
    matches!(op, SendOp::Send | SendOp::SendInvalidate { .. } | SendOp::Write { .. })
}

/// Local memory fails a check.
#[cold]
fn protection(fault: Fault) -> VerbsError {
    VerbsError::LocalProtection(fault.to_string())
}
