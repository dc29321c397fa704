//! Tagged segments: RDMA Writes, and the answers to our Reads.

use crate::ddp::{self, TaggedHeader};
use crate::rdmap::read_sink::ReadProgress;
use crate::rdmap::{Opcode, ReadSink, TerminateError};

use super::super::outstanding::Outstanding;
use super::{Delivery, Failure, Piece};

/// Why a segment was not taken.
enum TaggedFault {
    /// The peer's mistake.
    Protocol(TerminateError),
    /// It belongs to a Read of ours whose sink is not there any more.
    Sink(TerminateError),
}

impl<E: Into<TerminateError>> From<E> for TaggedFault {
    fn from(error: E) -> Self {
        Self::Protocol(error.into())
    }
}

impl Delivery<'_> {
    pub(super) fn tagged(&mut self, piece: &Piece<'_, '_>, header: &TaggedHeader) -> Result<(), Failure> {
        match self.check_tagged(piece, header) {
            Ok(()) => Ok(()),
            Err(TaggedFault::Sink(error)) if piece.arrival.delivers() => {
                Err(self.lose_sink(piece.terminate(error)))
            }
            Err(TaggedFault::Protocol(error) | TaggedFault::Sink(error)) => Err(piece.fail(error)),
        }
    }

    fn check_tagged(&mut self, piece: &Piece<'_, '_>, header: &TaggedHeader) -> Result<(), TaggedFault> {
        let payload_len = piece.len - TaggedHeader::LEN;
        let opcode = Opcode::check(&(*header).into(), self.common.extensions);
        if opcode == Ok(Opcode::ReadResponse) {
            return self.read_response(piece, header, payload_len);
        }
        let target = if piece.arrival.places() {
            ddp::tagged::check(header, payload_len, self.common.by, self.guard)?
        } else {
            None
        };
        opcode?;
        if let Some(target) = target {
            piece.place(&target, TaggedHeader::LEN, self.counters)?;
        }
        Ok(())
    }

    /// A segment of the answer to our oldest open Read. Ahead of a hole it may belong to a later one.
    fn read_response(
        &mut self,
        piece: &Piece<'_, '_>,
        header: &TaggedHeader,
        payload_len: usize,
    ) -> Result<(), TaggedFault> {
        let pd = self.common.by.pd;
        if !piece.arrival.delivers() {
            let fits = |awaited: &Outstanding| match awaited {
                Outstanding::Read { sink, .. } => sink.check(header, payload_len).is_ok(),
                Outstanding::Atomic { .. } => false,
            };
            if !self.common.outstanding.iter(&self.records.outstanding).any(fits) {
                return Err(TerminateError::DdpBounds.into());
            }
        } else {
            self.oldest_read()?.0.check(header, payload_len)?;
        }
        if payload_len > 0 && piece.arrival.places() {
            let guard = self.guard;
            let target = guard.check_sink(header.stag, header.to, payload_len as u64, pd);
            // The range is the Read's own, as it was when the Read was posted.
            target
                .map_err(ddp::DdpError::from)
                .and_then(|target| piece.place(&target, TaggedHeader::LEN, self.counters))
                .map_err(|error| TaggedFault::Sink(error.into()))?;
        }
        if !piece.arrival.delivers() {
            return Ok(());
        }
        self.common.progress += 1;
        let (sink, is_rtr) = self.oldest_read()?;
        if sink.deliver(header, payload_len)? == ReadProgress::Complete {
            self.common.outstanding.take(&mut self.records.outstanding);
            if !is_rtr {
                self.common.answered();
            }
        }
        Ok(())
    }

    /// The sink of the Read whose answer is due, and whether it is the RTR's. Answers come in the order of
    /// their requests, atomics included (RFC 7306 section 7).
    fn oldest_read(&mut self) -> Result<(&mut ReadSink, bool), TerminateError> {
        match self.common.outstanding.front_mut(&mut self.records.outstanding) {
            Some(Outstanding::Read { sink, is_rtr }) => Ok((sink, *is_rtr)),
            Some(Outstanding::Atomic { .. }) | None => Err(TerminateError::UnexpectedOpcode),
        }
    }
}
