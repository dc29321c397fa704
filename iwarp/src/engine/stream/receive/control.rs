//! Queues 1 and 2: what RDMAP itself answers, in buffers of its own.

use std::ops::ControlFlow;

use arrayvec::ArrayVec;

use crate::ddp::{self, UntaggedHeader};
use crate::rdmap::{Opcode, Queue, ReadRequest, Terminate, TerminateError};

use super::{EXTENSIONS, Failure, Flow, PeerRead, Piece, Receive, Sink};

impl Sink<'_> {
    pub(super) fn read_request(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> Flow {
        let message = match self.control_message(piece, header, Queue::ReadRequest) {
            Ok(Some(message)) => message,
            Ok(None) => return ControlFlow::Continue(()),
            Err(error) => return ControlFlow::Break(piece.fail(error)),
        };
        let request = match ReadRequest::parse(&message) {
            Ok(request) => request,
            Err(error) => return ControlFlow::Break(piece.fail(error)),
        };
        if request.size > 0 {
            let checked = self.turn.check_read(
                request.source_stag,
                request.source_to,
                u64::from(request.size),
                self.common.by,
            );
            if let Err(fault) = checked {
                let error = TerminateError::of_read_fault(fault);
                return ControlFlow::Break(Failure::Local(Terminate::of_segment(
                    error,
                    piece.head,
                    piece.len,
                    Some(request),
                )));
            }
        }
        let header = piece.head.iter().copied().collect();
        self.transmit.respond(PeerRead { request, header, segment_len: piece.len });
        ControlFlow::Continue(())
    }

    pub(super) fn peer_terminate(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> Flow {
        let message = match self.control_message(piece, header, Queue::Terminate) {
            Ok(Some(message)) => message,
            Ok(None) => return ControlFlow::Continue(()),
            Err(_) => {
                return ControlFlow::Break(Failure::Peer(Terminate::local(
                    TerminateError::LocalCatastrophic,
                )));
            }
        };
        // Never answered, valid or not (RFC 5040 section 7.2): one that cannot be read is a Terminate all the same.
        let terminate = Terminate::parse(&message)
            .unwrap_or_else(|_| Terminate::local(TerminateError::OperationUnspecified));
        ControlFlow::Break(Failure::Peer(terminate))
    }

    /// Collects the payload of a Read Request or Terminate, which may come in pieces; `Some` when it is complete.
    fn control_message(
        &mut self,
        piece: &Piece<'_, '_>,
        header: &UntaggedHeader,
        queue: Queue,
    ) -> Result<Option<ArrayVec<u8, { Terminate::MAX_LEN }>>, TerminateError> {
        let payload_len = piece.len - UntaggedHeader::LEN;
        let Receive { reads, terminates, control, .. } = &mut *self.receive;
        // The buffers of queue 1 are taken until their Read is answered.
        let (state, room, expected) = match queue {
            Queue::ReadRequest => (reads, ReadRequest::LEN, Opcode::ReadRequest),
            _ => (terminates, Terminate::MAX_LEN, Opcode::Terminate),
        };
        state.check(header, payload_len, |_| room as u64)?;
        if Opcode::check(&(*header).into(), EXTENSIONS)? != expected {
            return Err(TerminateError::UnexpectedOpcode);
        }
        if header.mo as usize != control.len() {
            return Err(ddp::DdpError::InvalidMo.into());
        }
        if let Some(ulpdu) = piece.ulpdu {
            for run in ulpdu.runs(UntaggedHeader::LEN, payload_len) {
                control.try_extend_from_slice(run).map_err(|_| ddp::DdpError::TooLong)?;
            }
        }
        let complete = state.deliver(header, payload_len)?.is_some();
        Ok(complete.then(|| std::mem::take(control)))
    }
}
