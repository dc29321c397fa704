//! Queue 0: Sends and Immediate Data into the receive requests of our user.

use crate::ddp::{DdpError, UntaggedHeader, UntaggedQueue};
use crate::memory::{Fault, Stag};
use crate::mpa::Ulpdu;
use crate::queues::{RecvRequest, WcOpcode, WcStatus, WorkCompletion};
use crate::rdmap::{Opcode, TerminateError, control};

use super::{BOUND_AHEAD, Delivery, Failure, Inbound, Piece, place};

/// Why a segment was not taken.
enum SendFault {
    /// The peer's mistake.
    Protocol(TerminateError),
    /// Our user's buffer is not there any more.
    Local,
}

impl From<TerminateError> for SendFault {
    fn from(error: TerminateError) -> Self {
        Self::Protocol(error)
    }
}

impl Delivery<'_> {
    /// Binds a receive request to the message under way, if there is none.
    fn bind(&mut self) {
        let Inbound { bound, ahead, .. } = &mut *self.inbound;
        if bound.is_none() {
            *bound = ahead.pop_front();
        }
        if bound.is_none() {
            self.inbound.bound = self.take();
        }
    }

    /// As [`bind`](Self::bind), and to the messages behind it up to `msn`: a queue pair's own requests go to
    /// messages in their order, so that they are known before those messages begin.
    fn bind_ahead(&mut self, msn: u32) {
        self.bind();
        let ahead = msn.wrapping_sub(self.inbound.sends.first_msn()) as usize;
        if self.inbound.bound.is_none() || ahead > self.inbound.ahead_max {
            return;
        }
        while self.inbound.ahead.len() < ahead
            && let Some(request) = self.take()
        {
            self.inbound.ahead.push_back(request);
        }
    }

    /// Takes the next receive request from the queue.
    fn take(&mut self) -> Option<RecvRequest> {
        let request = self.common.qp.take_recv()?;
        let posted = self.inbound.sends.post(1);
        debug_assert!(posted, "{BOUND_AHEAD} and one buffers are within the queue's bounds");
        Some(request)
    }

    /// Immediate Data waits for its turn: eight bytes are not worth remembering.
    pub(super) fn early_send(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> bool {
        let is_send = self.check_opcode(header).is_ok_and(Opcode::is_send);
        if !is_send || self.inbound.expects_rtr {
            return false;
        }
        self.bind_ahead(header.msn);
        self.place_send(piece, header).is_ok()
    }

    pub(super) fn send(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> Result<(), Failure> {
        let payload_len = piece.len - UntaggedHeader::LEN;
        if self.inbound.expects_rtr
            && payload_len == 0
            && header.msn == 1
            && header.last
            && self.check_opcode(header) == Ok(Opcode::Send)
        {
            // The RTR: nobody's message (spec/mpa-v2 section 3).
            self.inbound.sends = UntaggedQueue::starting_at(2);
            return Ok(());
        }
        self.bind();
        let placed = match self.check_turn(header) {
            Err(error) => Err(SendFault::Protocol(error)),
            Ok(()) if piece.arrival.places() => self.place_send(piece, header),
            Ok(()) => self.check_opcode(header).map_err(SendFault::Protocol),
        };
        let delivered = placed.and_then(|opcode| {
            let done = self.inbound.sends.deliver(header, payload_len).map_err(TerminateError::from);
            done.map(|done| (opcode, done)).map_err(SendFault::Protocol)
        });
        match delivered {
            Ok((_, None)) => Ok(()),
            Ok((opcode, Some(done))) => self.deliver_send(piece, header, opcode, done.len),
            Err(SendFault::Protocol(error)) => {
                if error == TerminateError::DdpTooLong {
                    self.fail_bound(WcStatus::LocalLengthError);
                }
                Err(piece.fail(error))
            }
            Err(SendFault::Local) => {
                self.fail_bound(WcStatus::LocalProtectionError);
                Err(Failure::local(TerminateError::LocalCatastrophic))
            }
        }
    }

    /// A message that is not the oldest has no buffer yet in order, whatever was bound ahead. A segment of
    /// the oldest begins where the one before it ended.
    fn check_turn(&self, header: &UntaggedHeader) -> Result<(), TerminateError> {
        let Inbound { sends, ahead, .. } = &*self.inbound;
        let behind = !ahead.is_empty() && sends.index_of(header.msn).is_ok_and(|index| index > 0);
        if behind { Err(DdpError::NoBuffer.into()) } else { Ok(sends.check_next(header)?) }
    }

    fn check_opcode(&self, header: &UntaggedHeader) -> Result<Opcode, TerminateError> {
        Opcode::check(&(*header).into(), self.common.extensions)
    }

    /// Checks a segment against its bound buffer and places it.
    fn place_send(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> Result<Opcode, SendFault> {
        let payload_len = piece.len - UntaggedHeader::LEN;
        let Inbound { sends, immediate, .. } = &*self.inbound;
        let room = |index| self.inbound.request(index).map_or(0, RecvRequest::length);
        let slot = sends.check(header, payload_len, room).map_err(TerminateError::from)?;
        let opcode = self.check_opcode(header)?;
        if opcode.is_immediate() {
            immediate.check(header, payload_len)?;
        }
        if let (Some(request), Some(ulpdu)) = (self.inbound.request(slot.index), piece.ulpdu) {
            self.scatter(request, slot.offset, ulpdu, payload_len).map_err(|_| SendFault::Local)?;
            self.counters.rx_placed_bytes += payload_len as u64;
            if opcode.is_immediate() {
                ulpdu
                    .runs(UntaggedHeader::LEN, payload_len)
                    .for_each(|run| self.inbound.immediate.extend(run));
            }
        }
        Ok(opcode)
    }

    /// Places a ULPDU's payload into the elements of a receive request, from `offset` on.
    fn scatter(
        &self,
        request: &RecvRequest,
        offset: u32,
        ulpdu: &Ulpdu<'_>,
        payload_len: usize,
    ) -> Result<(), Fault> {
        let mut skip = u64::from(offset);
        let mut at = UntaggedHeader::LEN;
        let end = at + payload_len;
        for sge in &request.sg_list {
            let length = u64::from(sge.length);
            if at == end {
                break;
            }
            if skip >= length {
                skip -= length;
                continue;
            }
            let take = ((length - skip) as usize).min(end - at);
            let pd = self.common.by.pd;
            let target = self.guard.check_sink(Stag(sge.lkey), sge.addr + skip, take as u64, pd)?;
            place(ulpdu, at, take, &target)?;
            at += take;
            skip = 0;
        }
        Ok(())
    }

    fn deliver_send(
        &mut self,
        piece: &Piece<'_, '_>,
        header: &UntaggedHeader,
        opcode: Opcode,
        len: u32,
    ) -> Result<(), Failure> {
        let mut invalidated = None;
        if opcode.invalidates() {
            let stag = control::invalidate_stag(header);
            if let Err(fault) = self.guard.invalidate_remote(stag, self.common.by) {
                self.fail_bound(WcStatus::LocalProtectionError);
                return Err(piece.fail(TerminateError::of_invalidate_fault(fault)));
            }
            invalidated = Some(stag.0);
        }
        let immediate = self.inbound.immediate.take().filter(|_| opcode.is_immediate());
        let completed = if immediate.is_some() { WcOpcode::RecvImmediate } else { WcOpcode::Recv };
        if let Some(request) = self.inbound.bound.take() {
            let qp = &self.common.qp;
            let completion = qp.succeeded(request.wr_id, completed, len);
            let solicited = opcode.is_solicited();
            qp.complete_recv(WorkCompletion { immediate, invalidated, solicited, ..completion });
        }
        Ok(())
    }

    /// Completes the bound receive request in error.
    fn fail_bound(&mut self, status: WcStatus) {
        if let Some(request) = self.inbound.bound.take() {
            let qp = &self.common.qp;
            qp.complete_recv(WorkCompletion { status, ..qp.flushed(request.wr_id, WcOpcode::Recv, None) });
        }
    }
}
