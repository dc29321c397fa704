//! Tagged segments: RDMA Writes, and Read Responses to our Reads.

use crate::ddp::{self, DdpError, TaggedHeader};
use crate::memory::{Access, Fault};
use crate::rdmap::read_sink::ReadProgress;
use crate::rdmap::{Opcode, ReadSink, TerminateError};

use super::super::outstanding::{Outstanding, ReadPart};
use super::{Delivery, Failure, ReceivedUlpdu};

/// Why a segment is refused.
enum TaggedFault {
    /// An error of the peer.
    Protocol(TerminateError),
    /// The peer may not write to the memory that a Write names.
    Access(DdpError),
    /// The segment belongs to one of our Reads, whose sink is not valid.
    Sink(TerminateError),
}

impl<E: Into<TerminateError>> From<E> for TaggedFault {
    fn from(error: E) -> Self {
        Self::Protocol(error.into())
    }
}

impl Delivery<'_> {
    pub(super) fn tagged(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &TaggedHeader,
    ) -> Result<(), Failure> {
        match self.check_tagged(piece, header) {
            Ok(()) => Ok(()),
            Err(TaggedFault::Sink(error)) if piece.arrival.delivers() => {
                Err(self.sink_revoked(piece.terminate(error)))
            }
            Err(TaggedFault::Access(_)) if piece.arrival.delivers() && self.drop_write(header) => Ok(()),
            Err(TaggedFault::Access(error)) => Err(piece.fail(error)),
            Err(TaggedFault::Protocol(error) | TaggedFault::Sink(error)) => Err(piece.fail(error)),
        }
    }

    /// Checks a segment, and places its payload unless the payload was placed before. If the segment is in
    /// order, also delivers it.
    ///
    /// RFC 5041 section 7.1 (DDP-189), RFC 5040 section 5.1 (RDMAP-197): a failed check places nothing. A
    /// Write is only placed, and no completion reports it to the user.
    fn check_tagged(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &TaggedHeader,
    ) -> Result<(), TaggedFault> {
        let payload_len = piece.len - TaggedHeader::LEN;
        let opcode = Opcode::check(&(*header).into(), self.state.extensions);
        if opcode == Ok(Opcode::ReadResponse) {
            return self.read_response(piece, header, payload_len);
        }
        let Some(ulpdu) = piece.ulpdu else { return Ok(opcode.map(drop)?) };
        if payload_len > 0 && !self.admits(Access::REMOTE_WRITE) {
            return Err(TaggedFault::Access(Fault::AccessRights.into()));
        }
        let target = ddp::tagged::check(header, payload_len, self.state.by, self.guard)
            .map_err(TaggedFault::Access)?;
        // An invalid opcode is reported only after DDP's checks.
        opcode?;
        if let Some(target) = target {
            piece.place(ulpdu, &target, TaggedHeader::LEN, self.counters).map_err(TaggedFault::Access)?;
        }
        Ok(())
    }

    /// Handles a segment of the response to our oldest outstanding Read. If the segment is out of order, it
    /// may belong to a later Read.
    ///
    /// RFC 5040 sections 5.2.2 and 5.5 (RDMAP-227, RDMAP-278, RDMAP-294): the delivery of the last segment
    /// completes the Read, in the order of the Reads.
    fn read_response(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &TaggedHeader,
        payload_len: usize,
    ) -> Result<(), TaggedFault> {
        let pd = self.state.by.pd;
        if !piece.arrival.delivers() {
            let fits = |awaited: &Outstanding| match awaited {
                Outstanding::Read { sink, .. } => sink.check(header, payload_len).is_ok(),
                Outstanding::Atomic { .. } => false,
            };
            if !self.state.outstanding.iter(&self.pool.outstanding).any(fits) {
                return Err(TerminateError::DdpBounds.into());
            }
        } else {
            self.oldest_read()?.0.check(header, payload_len)?;
        }
        if payload_len > 0
            && let Some(ulpdu) = piece.ulpdu
        {
            let guard = self.guard;
            let target = guard.check_sink(header.stag, header.to, payload_len as u64, pd);
            // If the sink of the Read is not valid, our user has revoked the STag after posting the Read.
            // With InfiniBand's semantics, the sink may also have been invalid when the Read was posted.
            target
                .map_err(DdpError::from)
                .and_then(|target| piece.place(ulpdu, &target, TaggedHeader::LEN, self.counters))
                .map_err(|error| TaggedFault::Sink(error.into()))?;
        }
        if !piece.arrival.delivers() {
            return Ok(());
        }
        self.state.progress += 1;
        let (sink, part) = self.oldest_read()?;
        if sink.deliver(header, payload_len)? == ReadProgress::Complete {
            self.state.outstanding.take(&mut self.pool.outstanding);
            if part == ReadPart::Last {
                self.state.on_response();
            }
        }
        Ok(())
    }

    /// If the oldest outstanding request is a Read, returns its sink, and the part of our user's request that
    /// this Read covers. Responses arrive in the order of their requests, including those of atomics (RFC
    /// 7306 section 7).
    fn oldest_read(&mut self) -> Result<(&mut ReadSink, ReadPart), TerminateError> {
        match self.state.outstanding.front_mut(&mut self.pool.outstanding) {
            Some(Outstanding::Read { sink, part, .. }) => Ok((sink, *part)),
            Some(Outstanding::Atomic { .. }) | None => Err(TerminateError::UnexpectedOpcode),
        }
    }
}
