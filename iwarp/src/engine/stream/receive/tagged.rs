//! Tagged segments: RDMA Writes, and the answers to our Reads.

use std::ops::ControlFlow;

use crate::ddp::{self, TaggedHeader};
use crate::rdmap::read_sink::ReadProgress;
use crate::rdmap::{Opcode, TerminateError};

use super::{EXTENSIONS, Flow, Piece, Sink};

impl Sink<'_> {
    pub(super) fn tagged(&mut self, piece: &Piece<'_, '_>, header: &TaggedHeader) -> Flow {
        match self.check_tagged(piece, header) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(piece.fail(error)),
        }
    }

    fn check_tagged(&mut self, piece: &Piece<'_, '_>, header: &TaggedHeader) -> Result<(), TerminateError> {
        let payload_len = piece.len - TaggedHeader::LEN;
        let opcode = Opcode::check(&(*header).into(), EXTENSIONS);
        if opcode == Ok(Opcode::ReadResponse) {
            return self.read_response(piece, header, payload_len);
        }
        let target = if piece.arrival.places() {
            ddp::tagged::check(header, payload_len, self.common.by, self.turn)?
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
    ) -> Result<(), TerminateError> {
        let pd = self.common.by.pd;
        if !piece.arrival.delivers() {
            let fits = self.common.reads.iter().any(|read| read.sink.check(header, payload_len).is_ok());
            if !fits {
                return Err(TerminateError::DdpBounds);
            }
        } else {
            let read = self.common.reads.front().ok_or(TerminateError::UnexpectedOpcode)?;
            read.sink.check(header, payload_len)?;
        }
        if payload_len > 0 && piece.arrival.places() {
            let target =
                self.turn.check_sink(header.stag, header.to, payload_len as u64, pd).map_err(|fault| {
                    // The range is the Read's own: our user has revoked it since.
                    if piece.arrival.delivers() {
                        self.common.blame_read();
                    }
                    ddp::DdpError::from(fault)
                })?;
            piece.place(&target, TaggedHeader::LEN, self.counters)?;
        }
        if !piece.arrival.delivers() {
            return Ok(());
        }
        self.common.progress += 1;
        let read = self.common.reads.front_mut().ok_or(TerminateError::UnexpectedOpcode)?;
        if read.sink.deliver(header, payload_len)? == ReadProgress::Complete {
            let is_rtr = read.is_rtr;
            self.common.reads.pop_front();
            if !is_rtr {
                self.common.read_done();
            }
        }
        Ok(())
    }
}
