//! The requests of our user, and the ready-to-receive message (RTR): each becomes a message.

use crate::memory::Stag;
use crate::mpa::startup::RtrKind;
use crate::queues::{Payload, RemoteAddr, SendEntry, SendFlags, SendOp, Sge, send_opcode};
use crate::rdmap::{AtomicRequest, Opcode, ReadRequest, ReadSink, TerminateError};

use super::super::message::{Message, PayloadSource};
use super::super::outstanding::{Outstanding, Pending};
use super::super::unsent;
use super::{Completes, Current, Failure, Outbound, SendContext};

impl Outbound {
    /// Starts the request at the head of the send queue, unless a fence, ORD or the limit of local requests
    /// holds it back.
    ///
    /// RFC 5040 sections 5.1, 5.2.1, 5.3 and 5.5 (RDMAP-202, RDMAP-213, RDMAP-244, RDMAP-285): messages go to
    /// DDP in the order in which the user posted them.
    pub(super) fn start_request(&mut self, cx: &mut SendContext<'_>) -> Result<bool, Failure> {
        let common = &mut *cx.common;
        // RFC 7306 sections 5.2.1 and 6.3 (EXT-088, EXT-126): requests start in the order in which they were
        // posted. One that is held back stays in front of all others.
        let held_back = self.held_back.take(&mut cx.pool.held_back);
        let Some(entry) = held_back.or_else(|| common.qp.take_send()) else { return Ok(false) };
        let fenced = entry.flags.contains(SendFlags::FENCE) && !common.outstanding.is_empty();
        let has_response = matches!(entry.op, SendOp::Read { .. } | SendOp::Atomic { .. });
        // RFC 5040 section 6.1 (RDMAP-303, RDMAP-305): no more than ORD are outstanding.
        let throttled = has_response && common.outstanding.len() >= common.ord;
        let is_local = matches!(
            entry.op,
            SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) | SendOp::FastRegister(_)
        );
        if fenced || throttled || (is_local && self.local_left == 0) {
            self.held_back.push(&mut cx.pool.held_back, entry);
            return Ok(false);
        }
        let mut pending = pending_of(&entry);
        let SendEntry { op, payload, length, flags, .. } = entry;
        let solicited = flags.contains(SendFlags::SOLICITED);
        let current = match op {
            SendOp::Send => self.send(Opcode::send(solicited, false), 0, length, payload),
            SendOp::SendInvalidate { rkey } => {
                self.send(Opcode::send(solicited, true), rkey, length, payload)
            }
            SendOp::Immediate { data } => {
                // RFC 7306 sections 4.2 and 6.3 (EXT-023, EXT-026, EXT-125): the DDP payload is the eight
                // bytes of Immediate Data, and nothing else.
                Message::of_bytes(Opcode::immediate(solicited), self.next_send_msn(), &data)
            }
            SendOp::Write { remote } => write(remote, length, payload),
            SendOp::WriteImmediate { remote, data } => {
                let immediate = Opcode::immediate(solicited);
                let completes = Completes::Write { pending, immediate, data };
                self.current = Some(Current { message: write(remote, length, payload), completes });
                return Ok(true);
            }
            // RFC 5040 sections 5.2 and 5.2.1 (RDMAP-206, RDMAP-215, RDMAP-216): one Read Request for each
            // Read, which names one remote buffer.
            SendOp::Read { remote } => {
                let request = read_request(&payload, remote, length);
                let sink = ReadSink::new(request.sink_stag, request.sink_to, request.size);
                pending.byte_len = length;
                let response = Outstanding::Read { sink, is_rtr: false };
                common.await_response(&mut cx.pool.outstanding, pending, response);
                let msn = self.next_request_msn();
                return Ok(self.send_request(Message::of_bytes(
                    Opcode::ReadRequest,
                    msn,
                    &request.to_bytes(),
                )));
            }
            SendOp::Atomic { remote: RemoteAddr { addr, rkey }, op } => {
                let id = self.atomic_id;
                self.atomic_id = id.wrapping_add(1);
                // RFC 7306 section 5.2.2 (EXT-192): each Atomic Request has a buffer on queue 3 for its
                // response.
                let posted = common.atomic_responses.post(1);
                debug_assert!(posted, "an ORD of 16 bits is within the queue's bounds");
                pending.byte_len = length;
                let response = Outstanding::Atomic { id, sink: only_element(&payload) };
                common.await_response(&mut cx.pool.outstanding, pending, response);
                let request = AtomicRequest { id, stag: Stag(rkey), to: addr, op };
                // RFC 7306 sections 4.2 and 5.2.1 (EXT-024, EXT-026, EXT-063): the DDP payload is the Atomic
                // Request header, and nothing else.
                let msn = self.next_request_msn();
                return Ok(self.send_request(Message::of_bytes(
                    Opcode::AtomicRequest,
                    msn,
                    &request.to_bytes(),
                )));
            }
            SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) | SendOp::FastRegister(_) => {
                self.local_left -= 1;
                if let Err(status) = unsent::run(&op, common, cx.guard) {
                    pending.fault = Some(status);
                    common.pending.push_back(pending);
                    return Err(Failure::here(TerminateError::LocalCatastrophic));
                }
                common.complete_in_order(pending);
                return Ok(true);
            }
        };
        self.current = Some(Current { message: current, completes: Completes::Request(pending) });
        Ok(true)
    }

    /// A Send of any type.
    ///
    /// RFC 5040 section 4.2 (RDMAP-113): it has no RDMAP header.
    fn send(&mut self, opcode: Opcode, invalidate: u32, length: u32, payload: Payload) -> Message {
        let msn = self.next_send_msn();
        Message::untagged(opcode, Stag(invalidate), msn, length, source(payload))
    }

    /// Makes a Read Request or Atomic Request the current message. Its response completes it.
    fn send_request(&mut self, message: Message) -> bool {
        self.current = Some(Current { message, completes: Completes::Nothing });
        true
    }

    /// RFC 5041 section 4.3 (DDP-089, DDP-091): each message to a queue raises MSN by one, modulo 2^32.
    pub(super) fn next_send_msn(&mut self) -> u32 {
        let msn = self.send_msn;
        self.send_msn = msn.wrapping_add(1);
        msn
    }

    /// As [`next_send_msn`](Self::next_send_msn). Reads and atomics share queue 1 (RFC 7306 section 5.2).
    fn next_request_msn(&mut self) -> u32 {
        let msn = self.request_msn;
        self.request_msn = msn.wrapping_add(1);
        msn
    }

    /// The ready-to-receive message: an empty message of its kind.
    ///
    /// RFC 6581 section 9.2 (MPA2-135): the values of its STags and tagged offsets are free; these are ours.
    pub(super) fn rtr_message(&mut self, kind: RtrKind, cx: &mut SendContext<'_>) -> Current {
        let empty = Payload::Gather(arrayvec::ArrayVec::new());
        let message = match kind {
            RtrKind::Send => self.send(Opcode::Send, 0, 0, empty),
            RtrKind::Write => write(RemoteAddr { addr: 0, rkey: 1 }, 0, empty),
            RtrKind::Read => {
                let request = ReadRequest {
                    sink_stag: Stag(0),
                    sink_to: 0,
                    size: 0,
                    source_stag: Stag(1),
                    source_to: 0,
                };
                let sink = ReadSink::new(Stag(0), 0, 0);
                let response = Outstanding::Read { sink, is_rtr: true };
                cx.common.outstanding.push(&mut cx.pool.outstanding, response);
                Message::of_bytes(Opcode::ReadRequest, self.next_request_msn(), &request.to_bytes())
            }
        };
        Current { message, completes: Completes::Nothing }
    }
}

pub(super) fn pending_of(entry: &SendEntry) -> Pending {
    Pending {
        wr_id: entry.wr_id,
        opcode: send_opcode(&entry.op),
        signaled: entry.flags.contains(SendFlags::SIGNALED),
        byte_len: 0,
        done: false,
        fault: None,
    }
}

fn source(payload: Payload) -> PayloadSource {
    match payload {
        Payload::Gather(sg_list) => PayloadSource::Gather(sg_list),
        Payload::Inline(bytes) => PayloadSource::Bytes(bytes),
    }
}

/// An RDMA Write.
///
/// RFC 5040 section 4.2 (RDMAP-110): it has no RDMAP header.
fn write(remote: RemoteAddr, length: u32, payload: Payload) -> Message {
    Message::tagged(Opcode::Write, Stag(remote.rkey), remote.addr, length, source(payload))
}

/// The memory for a response. Posting allows at most one element.
fn only_element(payload: &Payload) -> Sge {
    match payload {
        Payload::Gather(sg_list) => sg_list.first().copied().unwrap_or_default(),
        Payload::Inline(_) => Sge::default(),
    }
}

fn read_request(payload: &Payload, remote: RemoteAddr, size: u32) -> ReadRequest {
    let sink = only_element(payload);
    ReadRequest {
        sink_stag: Stag(sink.lkey),
        sink_to: sink.addr,
        size,
        source_stag: Stag(remote.rkey),
        source_to: remote.addr,
    }
}
