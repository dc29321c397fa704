//! Queues 1 to 3: messages for RDMAP itself, in RDMAP's own buffers.

use arrayvec::ArrayVec;

use crate::ddp::{self, UntaggedHeader};
use crate::memory::{Access, Fault, Stag};
use crate::queues::Sge;
use crate::rdmap::{AtomicRequest, AtomicResponse, Opcode, Queue, ReadRequest, Terminate, TerminateError};

use super::super::outstanding::Outstanding;
use super::super::peer_request::{PeerOp, PeerRequest};
use super::{Delivery, Failure, Inbound, ReceivedUlpdu};

/// Length in bytes of the longest message of these queues that DDP accepts.
pub(super) const MAX_MESSAGE_BYTES: usize = 64;

/// Size in bytes of a buffer for an Atomic Request or Atomic Response. The buffer is longer than both
/// messages. Therefore RDMAP, not DDP, detects a wrong length, and reports it with a code of RDMAP.
const ATOMIC_ROOM: usize = MAX_MESSAGE_BYTES;

const _: () = assert!(MAX_MESSAGE_BYTES >= Terminate::MAX_LEN && ATOMIC_ROOM > AtomicRequest::LEN);

impl Delivery<'_> {
    /// Checks a request of the peer on queue 1, and queues it.
    ///
    /// RFC 5040 section 5.2.1 (RDMAP-209, RDMAP-210): RDMAP processes Read Requests, and does not pass them
    /// to the user.
    pub(super) fn peer_request(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &UntaggedHeader,
    ) -> Result<(), Failure> {
        let (opcode, message) = match self.collect(piece, header, Queue::ReadRequest) {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(()),
            Err(error) => return Err(piece.fail(error)),
        };
        // RFC 7306 section 5.4 (EXT-107, EXT-109): a request is read only after DDP has delivered it and all
        // messages before it.
        let op = if opcode == Opcode::AtomicRequest {
            AtomicRequest::parse(&message).map(PeerOp::Atomic)
        } else {
            ReadRequest::parse(&message).map(PeerOp::Read)
        };
        let op = match op {
            Ok(op) => op,
            Err(error) => return Err(piece.fail(error)),
        };
        let header = piece.head.iter().copied().collect();
        let request = PeerRequest { op, header, segment_len: piece.len };
        if let Err(error) = self.check_peer_op(&op) {
            return Err(Failure::Here(Box::new(request.terminate(error, 0))));
        }
        // RFC 7306 section 5.2.1 (EXT-084, EXT-085): RDMAP itself answers the request, and our user receives
        // no completion.
        self.outbound.respond(self.pool, request);
        Ok(())
    }

    /// Checks that the request can be answered now. The check is repeated when the response is sent.
    ///
    /// RFC 5040 section 5.2.1 (RDMAP-220, RDMAP-221): source STag and TO are validated, unless the size is 0.
    fn check_peer_op(&self, op: &PeerOp) -> Result<(), TerminateError> {
        let by = self.state.by;
        let need = match op {
            PeerOp::Read(_) => Access::REMOTE_READ,
            PeerOp::Atomic(_) => Access::REMOTE_ATOMIC,
        };
        let checked = match *op {
            PeerOp::Read(ReadRequest { size: 0, .. }) => Ok(()),
            // RFC 7306 section 5.2.1 (EXT-190): an operation that this stream does not support is an error.
            PeerOp::Atomic(AtomicRequest { op, .. }) if !op.is_understood(self.state.extensions) => {
                return Err(TerminateError::UnexpectedOpcode);
            }
            // With InfiniBand's semantics, the alignment is checked before the rights.
            PeerOp::Atomic(AtomicRequest { to, .. })
                if self.state.rules.check_alignment_first() && to % 8 != 0 =>
            {
                Err(Fault::Misaligned)
            }
            _ if !self.admits(need) => Err(Fault::AccessRights),
            PeerOp::Read(ReadRequest { source_stag, source_to, size, .. }) => {
                self.guard.check_read(source_stag, source_to, u64::from(size), by).map(drop)
            }
            PeerOp::Atomic(AtomicRequest { stag, to, .. }) => {
                self.state.rules.check_atomic(self.guard, (stag, to), by).map(drop)
            }
        };
        checked.map_err(TerminateError::of_read_fault)
    }

    /// Handles the peer's Terminate on queue 2, which ends the stream.
    ///
    /// RFC 5040 section 5.4 (RDMAP-257): RDMAP receives the message, and the failure passes it to the user.
    pub(super) fn peer_terminate(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &UntaggedHeader,
    ) -> Result<(), Failure> {
        let message = match self.collect(piece, header, Queue::Terminate) {
            Ok(Some((_, message))) => message,
            Ok(None) => return Ok(()),
            // The message on queue 2 is no Terminate.
            Err(error) if Opcode::of_byte(header.rsvd_ulp[0]) != Some(Opcode::Terminate) => {
                return Err(piece.fail(error));
            }
            // A Terminate is never answered, even if it is invalid (RFC 5040 section 7.2). A Terminate that
            // fails a check, or that cannot be parsed, still ends the stream.
            Err(_) => return Err(Failure::Unreadable),
        };
        Err(Terminate::parse(&message)
            .map_or(Failure::Unreadable, |terminate| Failure::Peer(Box::new(terminate))))
    }

    /// Handles a response on queue 3. Our oldest outstanding request has to be an atomic, and the response
    /// answers it.
    pub(super) fn atomic_response(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &UntaggedHeader,
    ) -> Result<(), Failure> {
        let message = match self.collect(piece, header, Queue::AtomicResponse) {
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
            .check_sink(Stag(sink.lkey), sink.addr, u64::from(sink.length), self.state.by.pd)
            .and_then(|target| target.place(0, &response.original.to_ne_bytes()));
        if placed.is_err() {
            return Err(self.sink_revoked(Terminate::bare(TerminateError::LocalCatastrophic)));
        }
        self.counters.rx_placed_bytes += u64::from(sink.length);
        self.state.progress += 1;
        // RFC 7306 sections 5.2.2 and 5.4 (EXT-100, EXT-111, EXT-195): the atomic completes only when its
        // response is delivered and its value is stored.
        self.state.outstanding.take(&mut self.pool.outstanding);
        self.state.on_response();
        Ok(())
    }

    /// Returns the response, and the sink of the atomic that it answers. Responses arrive in the order of the
    /// requests.
    fn match_response(&self, message: &[u8]) -> Result<(AtomicResponse, Sge), TerminateError> {
        let response = AtomicResponse::parse(message)?;
        match self.state.outstanding.front(&self.pool.outstanding) {
            Some(&Outstanding::Atomic { id, sink, .. }) if id == response.id => Ok((response, sink)),
            Some(Outstanding::Atomic { .. }) => Err(TerminateError::OperationUnspecified),
            Some(Outstanding::Read { .. }) | None => Err(TerminateError::UnexpectedOpcode),
        }
    }

    /// Collects a message, which may arrive in several segments. Returns the message when it is complete.
    ///
    /// RFC 5040 section 7.2 (RDMAP-337): DDP's checks of a segment come first.
    fn collect(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &UntaggedHeader,
        queue: Queue,
    ) -> Result<Option<(Opcode, ArrayVec<u8, MAX_MESSAGE_BYTES>)>, TerminateError> {
        let payload_len = piece.len - UntaggedHeader::LEN;
        let Inbound { requests, terminates, partial, .. } = &mut *self.inbound;
        let responses = &mut self.state.atomic_responses;
        // RFC 7306 section 8.2 (EXT-149): DDP checks queue, MSN, offset and length of each segment first.
        match queue {
            Queue::ReadRequest => {
                // An Atomic Request has the longer buffer even on a stream without atomics, so that the
                // reported error is the opcode, not the length.
                let is_atomic = Opcode::of_byte(header.rsvd_ulp[0]) == Some(Opcode::AtomicRequest);
                let room = if is_atomic { ATOMIC_ROOM } else { ReadRequest::LEN };
                requests.check(header, payload_len, room)?;
            }
            Queue::AtomicResponse => {
                responses.check(header, payload_len, |_| ATOMIC_ROOM as u64)?;
            }
            // Queue 0 uses the buffers of our user, and its messages do not reach this function.
            Queue::Terminate | Queue::Send => {
                terminates.check(header, payload_len, |_| Terminate::MAX_LEN as u64)?;
            }
        }
        let opcode = Opcode::check(&(*header).into(), self.state.extensions)?;
        // A peer that fails may send its Terminate in the middle of another message, after a segment of this
        // message. The rest of this message will not arrive.
        if queue == Queue::Terminate && header.mo == 0 {
            partial.clear();
        }
        if header.mo as usize != partial.len() {
            return Err(ddp::DdpError::InvalidMo.into());
        }
        let Some(ulpdu) = piece.ulpdu else {
            debug_assert!(false, "a message of {queue:?} was placed early");
            return Err(TerminateError::LocalCatastrophic);
        };
        ulpdu.try_each_run(UntaggedHeader::LEN, payload_len, |run| {
            partial.try_extend_from_slice(run).map_err(|_| ddp::DdpError::TooLong)
        })?;
        let delivered = match queue {
            Queue::ReadRequest => requests.deliver(header, payload_len, opcode)?,
            Queue::AtomicResponse => responses.deliver(header, payload_len)?,
            Queue::Terminate | Queue::Send => terminates.deliver(header, payload_len)?,
        };
        Ok(delivered.map(|_| (opcode, std::mem::take(partial))))
    }
}
