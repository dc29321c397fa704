//! Queues 1 to 3: what RDMAP itself takes in, in buffers of its own.

use arrayvec::ArrayVec;

use crate::ddp::{self, UntaggedHeader};
use crate::memory::Stag;
use crate::queues::Sge;
use crate::rdmap::{AtomicRequest, AtomicResponse, Opcode, Queue, ReadRequest, Terminate, TerminateError};

use super::super::outstanding::Outstanding;
use super::super::peer_request::{Asked, PeerRequest};
use super::{Delivery, Failure, Inbound, Piece};

/// Bytes of the longest message of these queues that DDP takes.
pub(super) const MAX_LEN: usize = 64;

/// Bytes of a buffer for an Atomic Request or Atomic Response: more than either has, so that RDMAP finds a
/// wrong length, long or short, and names it in its own way.
const ATOMIC_ROOM: usize = MAX_LEN;

const _: () = assert!(MAX_LEN >= Terminate::MAX_LEN && ATOMIC_ROOM > AtomicRequest::LEN);

impl Delivery<'_> {
    /// Queue 1: checks what the peer asks for and lets it wait for its turn to be answered.
    pub(super) fn peer_request(
        &mut self,
        piece: &Piece<'_, '_>,
        header: &UntaggedHeader,
    ) -> Result<(), Failure> {
        let (opcode, message) = match self.control_message(piece, header, Queue::ReadRequest) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(error) => return Err(piece.fail(error)),
        };
        let asked = if opcode == Opcode::AtomicRequest {
            AtomicRequest::parse(&message).map(Asked::Atomic)
        } else {
            ReadRequest::parse(&message).map(Asked::Read)
        };
        let asked = match asked {
            Ok(asked) => asked,
            Err(error) => return Err(piece.fail(error)),
        };
        let header = piece.head.iter().copied().collect();
        let request = PeerRequest { asked, header, segment_len: piece.len };
        if let Err(error) = self.check_asked(&asked) {
            return Err(request.fail(error, 0));
        }
        self.outbound.respond(self.records, request);
        Ok(())
    }

    /// Whether it can be answered as things are; when its turn comes it is looked at again.
    fn check_asked(&self, asked: &Asked) -> Result<(), TerminateError> {
        let by = self.common.by;
        let checked = match *asked {
            Asked::Read(ReadRequest { size: 0, .. }) => Ok(()),
            Asked::Read(ReadRequest { source_stag, source_to, size, .. }) => {
                self.guard.check_read(source_stag, source_to, u64::from(size), by).map(drop)
            }
            Asked::Atomic(AtomicRequest { op, .. }) if !op.is_understood(self.common.extensions) => {
                return Err(TerminateError::UnexpectedOpcode);
            }
            Asked::Atomic(AtomicRequest { stag, to, .. }) => self.guard.check_atomic(stag, to, by).map(drop),
        };
        checked.map_err(TerminateError::of_read_fault)
    }

    /// Queue 2.
    pub(super) fn peer_terminate(
        &mut self,
        piece: &Piece<'_, '_>,
        header: &UntaggedHeader,
    ) -> Result<(), Failure> {
        let message = match self.control_message(piece, header, Queue::Terminate) {
            Ok(Some((_, message))) => message,
            Ok(None) => return Ok(()),
            // Another message that has lost its way.
            Err(error) if Opcode::of_byte(header.rsvd_ulp[0]) != Some(Opcode::Terminate) => {
                return Err(piece.fail(error));
            }
            Err(_) => {
                return Err(Failure::Peer(Terminate::local(TerminateError::LocalCatastrophic)));
            }
        };
        // Never answered, valid or not (RFC 5040 section 7.2): one that cannot be read is a Terminate all the
        // same.
        let terminate = Terminate::parse(&message)
            .unwrap_or_else(|_| Terminate::local(TerminateError::OperationUnspecified));
        Err(Failure::Peer(terminate))
    }

    /// Queue 3: the answer to our oldest atomic, which has to be what we wait for next.
    pub(super) fn atomic_response(
        &mut self,
        piece: &Piece<'_, '_>,
        header: &UntaggedHeader,
    ) -> Result<(), Failure> {
        let message = match self.control_message(piece, header, Queue::AtomicResponse) {
            Ok(Some((_, message))) => message,
            Ok(None) => return Ok(()),
            Err(error) => return Err(piece.fail(error)),
        };
        let (response, sink) = match self.match_response(&message) {
            Ok(matched) => matched,
            Err(error) => return Err(piece.fail(error)),
        };
        let placed = self
            .guard
            .check_sink(Stag(sink.lkey), sink.addr, u64::from(sink.length), self.common.by.pd)
            .and_then(|target| target.place(0, &response.original.to_ne_bytes()));
        if placed.is_err() {
            return Err(self.lose_sink(Terminate::local(TerminateError::LocalCatastrophic)));
        }
        self.common.progress += 1;
        self.common.outstanding.take(&mut self.records.outstanding);
        self.common.answered();
        Ok(())
    }

    /// Finds the atomic that a response answers: responses come in the order of the requests.
    fn match_response(&self, message: &[u8]) -> Result<(AtomicResponse, Sge), TerminateError> {
        let response = AtomicResponse::parse(message)?;
        match self.common.outstanding.front(&self.records.outstanding) {
            Some(&Outstanding::Atomic { id, sink }) if id == response.id => Ok((response, sink)),
            Some(Outstanding::Atomic { .. }) => Err(TerminateError::OperationUnspecified),
            Some(Outstanding::Read { .. }) | None => Err(TerminateError::UnexpectedOpcode),
        }
    }

    /// Collects a message, which may come in pieces; `Some` when it is complete.
    fn control_message(
        &mut self,
        piece: &Piece<'_, '_>,
        header: &UntaggedHeader,
        queue: Queue,
    ) -> Result<Option<(Opcode, ArrayVec<u8, MAX_LEN>)>, TerminateError> {
        let payload_len = piece.len - UntaggedHeader::LEN;
        let Inbound { requests, terminates, control, .. } = &mut *self.inbound;
        let responses = &mut self.common.atomic_responses;
        let opcode = Opcode::check(&(*header).into(), self.common.extensions);
        match queue {
            Queue::ReadRequest => {
                // Also where atomics are not understood: then it is the opcode that is wrong, not the length.
                let is_atomic = Opcode::of_byte(header.rsvd_ulp[0]) == Some(Opcode::AtomicRequest);
                let room = if is_atomic { ATOMIC_ROOM } else { ReadRequest::LEN };
                requests.check(header, payload_len, room)?;
            }
            Queue::AtomicResponse => drop(responses.check(header, payload_len, |_| ATOMIC_ROOM as u64)?),
            _ => drop(terminates.check(header, payload_len, |_| Terminate::MAX_LEN as u64)?),
        }
        let opcode = opcode?;
        if header.mo as usize != control.len() {
            return Err(ddp::DdpError::InvalidMo.into());
        }
        if let Some(ulpdu) = piece.ulpdu {
            for run in ulpdu.runs(UntaggedHeader::LEN, payload_len) {
                control.try_extend_from_slice(run).map_err(|_| ddp::DdpError::TooLong)?;
            }
        }
        let delivered = match queue {
            Queue::ReadRequest => requests.deliver(header, payload_len, opcode)?,
            Queue::AtomicResponse => responses.deliver(header, payload_len)?,
            _ => terminates.deliver(header, payload_len)?,
        };
        Ok(delivered.map(|_| (opcode, std::mem::take(control))))
    }
}
