//! The requests of our user, and the ready-to-receive message (RTR). A request becomes one or more messages,
//! or is executed locally.

use crate::memory::{Accessor, EpochGuard, Stag};
use crate::mpa::startup::RtrKind;
use crate::queues::{
    Payload, Pending, PreparedPayload, RemoteAddr, SendEntry, SendFlags, SendOp, Sge, WcStatus,
    ZERO_COPY_MIN_BYTES,
};
use crate::rdmap::{AtomicRequest, Opcode, ReadRequest, ReadSink, TerminateError, join_immediate};

use super::super::message::{Message, PayloadSource};
use super::super::outstanding::{Outstanding, ReadPart, pending_of};
use super::super::state::StreamState;
use super::super::unsent;
use super::{Completes, Current, External, Failure, Outbound, SendContext};

impl Outbound {
    /// Starts the request at the head of the send queue, unless the request has to wait. A request may have
    /// to wait for the peer, for a fence, for the response to a Read of the bytes that it writes, for ORD,
    /// for the next call (if the limit of local requests is reached), or for our user, who has stopped the
    /// queue. Returns whether a request was started.
    ///
    /// RFC 5040 sections 5.1, 5.2.1, 5.3 and 5.5 (RDMAP-202, RDMAP-213, RDMAP-244, RDMAP-285): messages go to
    /// DDP in the order in which the user posted them.
    #[inline]
    pub(super) fn start_request(&mut self, cx: &mut SendContext<'_>) -> Result<bool, Failure> {
        let state = &mut *cx.state;
        if !state.rules.let_send() {
            return Ok(false);
        }
        while state.skip_done() {}
        // RFC 7306 sections 5.2.1 and 6.3 (EXT-088, EXT-126): requests start in the order in which they were
        // posted. If a request may not start yet, all later requests wait.
        let Some(request) = state.next_request() else { return Ok(false) };
        let &SendEntry { ref op, ref payload, length, flags, prepared, .. } = request;
        let has_begun = state.unsent > 0;
        // The hold is checked after the request is read, so that a request that was posted after our user
        // stopped the queue is held.
        if state.qp.sends.is_held() && !has_begun {
            if state.pending.is_empty() {
                state.qp.sends.report_held(&state.qp.signals);
            }
            return Ok(false);
        }
        if flags.contains(SendFlags::FENCE) && !state.outstanding.is_empty() && !has_begun {
            return Ok(false);
        }
        if state.has_to_wait(&cx.pool.outstanding, request) {
            return Ok(false);
        }
        // With CRCs the payload is read here anyway, so a copy costs little more. Markers would have to be
        // inserted into the payload.
        if flags.contains(SendFlags::ZERO_COPY)
            && op.sends_elements()
            && !(cx.framer.markers() || cx.framer.crc())
        {
            self.external = external(payload, length, state.by, cx.guard);
        }
        let solicited = flags.contains(SendFlags::SOLICITED);
        if matches!(prepared, PreparedPayload::InvalidMemory) && !state.rules.meet_buffer_late(op) {
            return Err(fail_next(state, WcStatus::LocalProtectionError));
        }
        if matches!(prepared, PreparedPayload::InvalidLength) {
            return Err(fail_next(state, WcStatus::LocalLengthError));
        }
        // Posting makes this check. Only a request that was posted before the connection existed has to be
        // checked here.
        if !state.rules.allow(op) {
            return Err(fail_next(state, WcStatus::LocalQpOperationError));
        }
        let message = match *op {
            SendOp::Write { remote } => write(remote, length),
            SendOp::Send => {
                let limit = state.rules.take_limit();
                self.send(Opcode::send(solicited, false), limit, length)
            }
            SendOp::SendInvalidate { rkey } => self.send(Opcode::send(solicited, true), rkey, length),
            SendOp::SendImmediate { data } => {
                let msn = self.next_send_msn();
                let message = self.own_message(Opcode::immediate(false), msn, &join_immediate(data));
                let completes = Completes::Joined { send: Opcode::send(solicited, false), length };
                self.current = Some(Current { message, completes });
                return Ok(true);
            }
            SendOp::Immediate { data } => {
                // RFC 7306 sections 4.2 and 6.3 (EXT-023, EXT-026, EXT-125): the DDP payload is only the
                // eight bytes of Immediate Data.
                let msn = self.next_send_msn();
                self.own_message(Opcode::immediate(solicited), msn, &data)
            }
            SendOp::WriteImmediate { remote, data } => {
                let completes = Completes::Write { immediate: Opcode::immediate(solicited), data };
                self.current = Some(Current { message: write(remote, length), completes });
                return Ok(true);
            }
            // Posting makes this check, as for Immediate Data above. Only a request that was posted before
            // the connection existed has to be checked here.
            SendOp::Datagram { .. } => {
                debug_assert!(false, "posting refuses a datagram on a queue pair of type RC");
                return Err(fail_next(state, WcStatus::LocalQpOperationError));
            }
            SendOp::Read { .. } | SendOp::Atomic { .. } if state.ord == 0 => {
                return Err(fail_next(state, WcStatus::LocalQpOperationError));
            }
            SendOp::Read { .. } | SendOp::Atomic { .. } => return Ok(self.request_response(cx)),
            SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) | SendOp::FastRegister(_) => {
                return self.run_local(cx);
            }
        };
        self.current = Some(Current { message, completes: Completes::Request });
        Ok(true)
    }

    /// Starts the Read or atomic at the head of the send queue, or continues a Read, unless ORD does not
    /// allow it. Returns whether a message was started. The response completes the request.
    ///
    /// A Read with several scatter/gather elements stays at the head of the send queue until the Read Request
    /// for its last element is generated. With an ORD of 1, the Read Requests are sent one by one.
    fn request_response(&mut self, cx: &mut SendContext<'_>) -> bool {
        let state = &mut *cx.state;
        // RFC 5040 section 6.1 (RDMAP-303, RDMAP-305): at most ORD requests are outstanding.
        if state.outstanding.len() >= state.ord as usize {
            return false;
        }
        let Some(request) = state.next_request() else { return false };
        let pending = Pending { byte_len: request.length, ..pending_of(request) };
        if state.next_element == 0 {
            state.await_response(pending);
        }
        let Some(request) = state.next_request() else { return false };
        let (message, response) = match request.op {
            // RFC 5040 sections 5.2 and 5.2.1 (RDMAP-206, RDMAP-215, RDMAP-216): each sink has one Read
            // Request, which names one remote buffer.
            SendOp::Read { remote } => {
                let (read, next) = read_request(&request.payload, remote, state.next_element);
                let sink = ReadSink::new(read.sink_stag, read.sink_to, read.size);
                let msn = self.next_request_msn();
                let message = self.own_message(Opcode::ReadRequest, msn, &read.to_bytes());
                state.next_element = next.unwrap_or(0);
                let part = if next.is_some() { ReadPart::Earlier } else { ReadPart::Last };
                (message, Outstanding::Read { sink, part, from: read.source_to })
            }
            SendOp::Atomic { remote: RemoteAddr { addr, rkey }, op } => {
                let id = self.atomic_id;
                self.atomic_id = id.wrapping_add(1);
                let sink = only_element(&request.payload);
                // RFC 7306 section 5.2.2 (EXT-192): each Atomic Request has a buffer on queue 3 for its
                // response.
                let posted = state.atomic_responses.post(1);
                debug_assert!(posted, "an ORD of 16 bits is within the queue's bounds");
                let atomic = AtomicRequest { id, stag: Stag(rkey), to: addr, op };
                // RFC 7306 sections 4.2 and 5.2.1 (EXT-024, EXT-026, EXT-063): the DDP payload is only the
                // Atomic Request header.
                let msn = self.next_request_msn();
                let message = self.own_message(Opcode::AtomicRequest, msn, &atomic.to_bytes());
                (message, Outstanding::Atomic { id, sink, word: addr })
            }
            _ => return false,
        };
        if state.next_element == 0 {
            state.finish_request();
        }
        state.outstanding.push(&mut cx.pool.outstanding, response);
        self.current = Some(Current { message, completes: Completes::Nothing });
        true
    }

    /// Executes the local request at the head of the send queue, unless the maximum number of local requests
    /// was executed in this call. Returns whether the request was executed.
    fn run_local(&mut self, cx: &mut SendContext<'_>) -> Result<bool, Failure> {
        let state = &mut *cx.state;
        if self.local_left == 0 {
            return Ok(false);
        }
        self.local_left -= 1;
        let Some(request) = state.next_request() else { return Ok(false) };
        if let Err(status) = unsent::run(&request.op, state.by, cx.guard) {
            return Err(fail_next(state, status));
        }
        state.complete_next();
        Ok(true)
    }

    /// Returns the message of a Send of any type.
    ///
    /// RFC 5040 section 4.2 (RDMAP-113): the message has no RDMAP header.
    pub(super) fn send(&mut self, opcode: Opcode, field: u32, length: u32) -> Message {
        let msn = self.next_send_msn();
        Message::untagged(opcode, field, msn, length, PayloadSource::Posted)
    }

    /// Returns the next MSN of queue 0.
    ///
    /// RFC 5041 section 4.3 (DDP-089, DDP-091): each message to a queue increases the queue's MSN by one,
    /// modulo 2^32.
    pub(super) fn next_send_msn(&mut self) -> u32 {
        let msn = self.send_msn;
        self.send_msn = msn.wrapping_add(1);
        msn
    }

    /// Returns the next MSN of queue 1. Reads and atomics share this queue (RFC 7306 section 5.2).
    fn next_request_msn(&mut self) -> u32 {
        let msn = self.request_msn;
        self.request_msn = msn.wrapping_add(1);
        msn
    }

    /// Returns the ready-to-receive message, which is an empty Send, Write or Read.
    ///
    /// RFC 6581 section 9.2 (MPA2-135): the sender may choose any values for the message's STags and tagged
    /// offsets.
    pub(super) fn rtr_message(&mut self, kind: RtrKind, cx: &mut SendContext<'_>) -> Current {
        let message = match kind {
            RtrKind::Send => {
                let msn = self.next_send_msn();
                self.own_message(Opcode::Send, msn, &[])
            }
            RtrKind::Write => Message::tagged(Opcode::Write, Stag(1), 0, 0, PayloadSource::Own),
            RtrKind::Read => {
                let request = ReadRequest {
                    sink_stag: Stag(0),
                    sink_to: 0,
                    size: 0,
                    source_stag: Stag(1),
                    source_to: 0,
                };
                let sink = ReadSink::new(Stag(0), 0, 0);
                let response = Outstanding::Read { sink, part: ReadPart::Rtr, from: 0 };
                cx.state.outstanding.push(&mut cx.pool.outstanding, response);
                let msn = self.next_request_msn();
                self.own_message(Opcode::ReadRequest, msn, &request.to_bytes())
            }
        };
        Current { message, completes: Completes::Nothing }
    }
}

/// Makes the next request fail with `status`. Returns the failure that ends the stream.
#[cold]
fn fail_next(state: &mut StreamState, status: WcStatus) -> Failure {
    state.fail_next(status);
    Failure::here(TerminateError::LocalCatastrophic)
}

/// Returns the payload as external memory, if it may be sent without a copy.
#[cold]
fn external(payload: &Payload, length: u32, by: Accessor, guard: &EpochGuard<'_>) -> Option<External> {
    let Payload::Gather(sg_list) = payload else { return None };
    let [Sge { addr, lkey, .. }] = sg_list[..] else { return None };
    if length < ZERO_COPY_MIN_BYTES {
        return None;
    }
    let memory = guard.external(Stag(lkey), addr, u64::from(length), by.pd)?;
    Some(External { memory, end: None })
}

/// Returns the message of an RDMA Write.
///
/// RFC 5040 section 4.2 (RDMAP-110): the message has no RDMAP header.
fn write(remote: RemoteAddr, length: u32) -> Message {
    Message::tagged(Opcode::Write, Stag(remote.rkey), remote.addr, length, PayloadSource::Posted)
}

/// Returns the scatter/gather elements into which the response to a Read or atomic is written.
fn elements(payload: &Payload) -> &[Sge] {
    match payload {
        Payload::Gather(sg_list) => sg_list,
        Payload::Inline(_) => &[],
    }
}

/// Returns the memory for the response to an atomic. Posting allows only one element.
fn only_element(payload: &Payload) -> Sge {
    elements(payload).first().copied().unwrap_or_default()
}

/// Returns the Read Request for the first scatter/gather element that has bytes, beginning with element `at`,
/// and the next element that has bytes. A Read of zero bytes has one Read Request.
fn read_request(payload: &Payload, remote: RemoteAddr, at: u8) -> (ReadRequest, Option<u8>) {
    let elements = elements(payload);
    let mut filled = (usize::from(at)..elements.len()).filter(|&index| elements[index].length > 0);
    let first = filled.next().unwrap_or(0);
    let sink = elements.get(first).copied().unwrap_or_default();
    // In the peer's memory as well, the bytes of the earlier elements come first.
    let offset: u64 = elements.iter().take(first).map(|sge| u64::from(sge.length)).sum();
    let request = ReadRequest {
        sink_stag: Stag(sink.lkey),
        sink_to: sink.addr,
        size: sink.length,
        source_stag: Stag(remote.rkey),
        source_to: remote.addr.wrapping_add(offset),
    };
    (request, filled.next().map(|index| index as u8))
}
