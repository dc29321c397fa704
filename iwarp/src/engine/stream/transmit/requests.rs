//! The requests of our user, and the RTR: each becomes a message.

use crate::memory::Stag;
use crate::mpa::startup::RtrKind;
use crate::rdmap::{Opcode, ReadRequest, ReadSink, TerminateError};
use crate::verbs::{Payload, RemoteAddr, SendEntry, SendFlags, SendOp, send_opcode};

use super::super::local;
use super::super::message::{Message, Source};
use super::super::outstanding::{Common, OutstandingRead, Pending};
use super::{Completes, Context, Current, Failure, Transmit};

impl Transmit {
    /// Starts the request at the head of the send queue, unless a fence or ORD holds it back.
    pub(super) fn start_request(&mut self, cx: &mut Context<'_>) -> Result<bool, Failure> {
        let common = &mut *cx.common;
        let Some(entry) = self.head.take().or_else(|| common.qp.sq.pop()) else { return Ok(false) };
        let fenced = entry.flags.contains(SendFlags::FENCE) && !common.reads.is_empty();
        let throttled = matches!(entry.op, SendOp::Read { .. }) && common.reads.len() >= common.ord;
        if fenced || throttled {
            self.head = Some(entry);
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
            SendOp::Write { remote: RemoteAddr { addr, rkey } } => {
                Message::tagged(Opcode::Write, Stag(rkey), addr, length, source(payload))
            }
            SendOp::Read { remote } => {
                let request = read_request(&payload, remote, length);
                let message =
                    Message::of_octets(Opcode::ReadRequest, self.next_read_msn(), &request.to_bytes());
                let sink = ReadSink::new(request.sink_stag, request.sink_to, request.size);
                common.reads.push_back(OutstandingRead { sink, is_rtr: false });
                pending.byte_len = length;
                pending.done = false;
                common.pending.push_back(pending);
                self.current = Some(Current { message, completes: Completes::Nothing });
                self.response_next = true;
                return Ok(true);
            }
            SendOp::LocalInvalidate { .. } | SendOp::BindWindow(_) | SendOp::FastRegister(_) => {
                if let Err(status) = local::run(&op, common, cx.turn) {
                    pending.done = false;
                    pending.fault = Some(status);
                    common.pending.push_back(pending);
                    return Err(Failure::local(TerminateError::LocalCatastrophic));
                }
                common.start(pending);
                return Ok(true);
            }
            // Refused when posted.
            SendOp::Immediate { .. } | SendOp::WriteImmediate { .. } | SendOp::Atomic { .. } => {
                return Err(Failure::local(TerminateError::LocalCatastrophic));
            }
        };
        self.current = Some(Current { message: current, completes: Completes::Request(pending) });
        Ok(true)
    }

    fn send(&mut self, opcode: Opcode, invalidate: u32, length: u32, payload: Payload) -> Message {
        let msn = self.send_msn;
        self.send_msn = msn.wrapping_add(1);
        Message::untagged(opcode, Stag(invalidate), msn, length, source(payload))
    }

    fn next_read_msn(&mut self) -> u32 {
        let msn = self.read_msn;
        self.read_msn = msn.wrapping_add(1);
        msn
    }

    /// The ready-to-receive message: an empty one of its kind (RFC 6581 section 5; spec/mpa-v2 for the fields).
    pub(super) fn rtr_message(&mut self, kind: RtrKind, common: &mut Common) -> Current {
        let empty = Payload::Gather(arrayvec::ArrayVec::new());
        let message = match kind {
            RtrKind::Send => self.send(Opcode::Send, 0, 0, empty),
            RtrKind::Write => Message::tagged(Opcode::Write, Stag(1), 0, 0, source(empty)),
            RtrKind::Read => {
                let request = ReadRequest {
                    sink_stag: Stag(0),
                    sink_to: 0,
                    size: 0,
                    source_stag: Stag(1),
                    source_to: 0,
                };
                common.reads.push_back(OutstandingRead { sink: ReadSink::new(Stag(0), 0, 0), is_rtr: true });
                Message::of_octets(Opcode::ReadRequest, self.next_read_msn(), &request.to_bytes())
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
        done: true,
        fault: None,
    }
}

fn source(payload: Payload) -> Source {
    match payload {
        Payload::Gather(sg_list) => Source::Gather(sg_list),
        Payload::Inline(octets) => Source::Octets(octets),
    }
}

fn read_request(payload: &Payload, remote: RemoteAddr, size: u32) -> ReadRequest {
    let sink = match payload {
        Payload::Gather(sg_list) => sg_list.first().copied().unwrap_or_default(),
        Payload::Inline(_) => Default::default(),
    };
    ReadRequest {
        sink_stag: Stag(sink.lkey),
        sink_to: sink.addr,
        size,
        source_stag: Stag(remote.rkey),
        source_to: remote.addr,
    }
}
