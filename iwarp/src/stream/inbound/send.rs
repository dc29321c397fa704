//! Queue 0: places Sends and Immediate Data into the memory of our user's receive requests.

use std::convert::Infallible;

use crate::ddp::{DdpError, UntaggedHeader, UntaggedQueue};
use crate::memory::{EpochGuard, Fault, PdId, Stag};
use crate::mpa::Ulpdu;
use crate::queues::{RecvRequest, WcOpcode, WcStatus, WorkCompletion};
use crate::rdmap::{IMMEDIATE_LEN, Opcode, Queue, Terminate, TerminateError, joined_immediate, opcode};

use super::super::state::StreamState;
use super::{BOUND_AHEAD, Delivery, Failure, Inbound, NextSend, ReceivedUlpdu, place};

/// Why a segment is refused.
enum SendFault {
    /// An error of the peer.
    Protocol(TerminateError),
    /// The memory of the receive request is not valid.
    OwnMemory,
    /// No receive request is bound for a posted buffer, which is a defect of this crate.
    Unbound,
}

impl From<TerminateError> for SendFault {
    fn from(error: TerminateError) -> Self {
        Self::Protocol(error)
    }
}

impl Delivery<'_> {
    /// Binds a receive request to the current message if no receive request is bound.
    ///
    /// RFC 5040 section 5.3 (RDMAP-235, RDMAP-246): a Send of any size, even 0, consumes one buffer.
    #[inline(always)]
    pub(super) fn bind(&mut self) {
        bind(self.state, self.inbound);
    }

    /// As [`bind`](Self::bind), but also binds receive requests to the messages after the current message, up
    /// to `msn`, unless `msn` is too far ahead. Requests of a queue pair's own receive queue go to messages
    /// in order, so the request of a message is known before the message begins.
    fn bind_ahead(&mut self, msn: u32) {
        self.bind();
        let ahead = msn.wrapping_sub(self.inbound.queue_0.first_msn()) as usize;
        if self.state.consumer.taken_recvs() == 0 || ahead > usize::from(self.inbound.ahead_max) {
            return;
        }
        while self.state.consumer.taken_recvs() <= ahead && bind_next_recv(self.state, self.inbound) {}
    }

    /// Places an out-of-order segment of a Send. Returns whether the segment was placed. Immediate Data is
    /// held until it is in order, since placing eight bytes early saves nothing.
    pub(super) fn early_send(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &UntaggedHeader,
        ulpdu: &Ulpdu<'_>,
    ) -> bool {
        let is_send = self.check_opcode(header).is_ok_and(Opcode::is_send);
        let is_unusual =
            matches!(self.inbound.next_send, NextSend::MayBeRtr | NextSend::Refused | NextSend::Dropped(_));
        if !is_send || is_unusual {
            return false;
        }
        self.bind_ahead(header.msn);
        self.place_send(piece, header, ulpdu).is_ok()
    }

    /// If the first message may be an RTR, checks whether this segment is the RTR, an empty Send. Returns
    /// whether it is.
    pub(super) fn take_rtr(&mut self, piece: &ReceivedUlpdu<'_, '_>, header: &UntaggedHeader) -> bool {
        let is_rtr = header.qn == Queue::Send.number()
            && piece.len == UntaggedHeader::LEN
            && header.msn == 1
            && header.last
            && self.check_opcode(header) == Ok(Opcode::Send);
        if is_rtr {
            // RFC 6581 section 9.2 (MPA2-136): no user sent the RTR, so it consumes no receive request.
            self.inbound.queue_0 = UntaggedQueue::starting_at(2);
        }
        is_rtr
    }

    pub(super) fn send(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &UntaggedHeader,
    ) -> Result<(), Failure> {
        let payload_len = piece.len - UntaggedHeader::LEN;
        self.bind();
        if self.state.rules.refuse_without_recv() && self.lacks_recv(header) {
            self.refuse(piece, header);
            return Ok(());
        }
        let placed = match (self.check_in_order(header), piece.ulpdu) {
            (Err(error), _) => Err(SendFault::Protocol(error)),
            (Ok(()), Some(ulpdu)) => self.place_send(piece, header, ulpdu),
            (Ok(()), None) => self.check_opcode(header).map_err(SendFault::Protocol),
        };
        let delivered = placed.and_then(|opcode| {
            let done = self.inbound.queue_0.deliver(header, payload_len).map_err(TerminateError::from);
            done.map(|done| (opcode, done)).map_err(SendFault::Protocol)
        });
        match delivered {
            Ok((_, None)) => Ok(()),
            Ok((opcode, Some(done))) => {
                self.on_taken(header.msn);
                self.deliver_send(piece, header, opcode, done.len)
            }
            Err(SendFault::Protocol(error)) => {
                if error == TerminateError::DdpTooLong && self.state.rules.drop_messages() {
                    self.counters.rx_uc_too_long += 1;
                    self.drop_message(piece, header);
                    return Ok(());
                }
                if error == TerminateError::DdpTooLong {
                    self.fail_bound(WcStatus::LocalLengthError);
                }
                Err(piece.fail(error))
            }
            Err(SendFault::OwnMemory) => {
                self.fail_bound(WcStatus::LocalProtectionError);
                Err(Failure::User(Box::new(Terminate::bare(TerminateError::LocalCatastrophic))))
            }
            Err(SendFault::Unbound) => Err(Failure::defect("a receive request for each posted buffer")),
        }
    }

    /// Whether the first segment of a message finds no receive request. Returns `false` for an invalid
    /// segment, for which another error is reported. Also returns `false` if the queue pair already has as
    /// many buffers of the shared receive queue as it may, unless the stream drops messages.
    fn lacks_recv(&self, header: &UntaggedHeader) -> bool {
        self.state.consumer.taken_recvs() == 0
            && (self.state.qp.receives.may_take_shared() || self.state.rules.drop_messages())
            && header.msn == self.inbound.queue_0.first_msn()
            && header.mo == 0
            && self.check_opcode(header).is_ok()
    }

    /// Drops a message that finds no receive request, and all later requests. Between queue pairs of type UC,
    /// only the message is dropped.
    #[cold]
    fn refuse(&mut self, piece: &ReceivedUlpdu<'_, '_>, header: &UntaggedHeader) {
        if self.state.rules.drop_messages() {
            self.counters.rx_uc_not_ready += 1;
            return self.drop_message(piece, header);
        }
        self.counters.rx_not_ready += 1;
        self.inbound.next_send = NextSend::Refused;
        let terminate = piece.terminate(DdpError::NoBuffer.into());
        let msn = self.inbound.queue_0.first_msn();
        self.state.rules.refuse(msn, terminate);
    }

    /// Checks that a segment is in order: it has to belong to the oldest message and begin where the previous
    /// segment ended. A later message has no buffer yet, even if a request is already bound to it.
    fn check_in_order(&self, header: &UntaggedHeader) -> Result<(), TerminateError> {
        let queue_0 = &self.inbound.queue_0;
        // RFC 7306 section 6.3 (EXT-123): Immediate Data is delivered in the order sent, as Sends are.
        let behind = self.state.consumer.taken_recvs() > 1
            && queue_0.index_of(header.msn).is_ok_and(|index| index > 0);
        if behind { Err(DdpError::NoBuffer.into()) } else { Ok(queue_0.check_next(header)?) }
    }

    fn check_opcode(&self, header: &UntaggedHeader) -> Result<Opcode, TerminateError> {
        Opcode::check(&(*header).into(), self.state.extensions)
    }

    /// Checks a segment against its bound buffer and places it. Returns the opcode of the segment.
    ///
    /// RFC 5041 section 7.1 (DDP-163), RFC 5040 section 7.2 (RDMAP-332): DDP's checks pass before any byte is
    /// placed.
    fn place_send(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &UntaggedHeader,
        ulpdu: &Ulpdu<'_>,
    ) -> Result<Opcode, SendFault> {
        let payload_len = piece.len - UntaggedHeader::LEN;
        let Inbound { queue_0, immediate, .. } = &*self.inbound;
        let ahead;
        let request = match queue_0.index_of(header.msn).map_err(TerminateError::from)? {
            0 => self.state.consumer.recv(),
            behind => {
                ahead = self.state.consumer.recv_behind(behind as usize);
                ahead.as_ref()
            }
        };
        let request = request.ok_or(SendFault::Unbound)?;
        let is_apart = self.state.rules.keep_immediate_apart()
            && Opcode::of_byte(header.rsvd_ulp[0]).is_some_and(Opcode::is_immediate);
        let room = request.length().max(if is_apart { IMMEDIATE_LEN as u64 } else { 0 });
        // RFC 7306 section 8.2 (EXT-149): DDP checks MSN, offset and length of Immediate Data as those of a
        // Send.
        let destination = queue_0.check(header, payload_len, |_| room).map_err(TerminateError::from)?;
        let opcode = self.check_opcode(header)?;
        if opcode.is_immediate() {
            immediate.check(header, payload_len)?;
        }
        if !is_apart {
            let pd = self.state.recv_pd;
            scatter((self.guard, pd), request, destination.offset, ulpdu, payload_len)
                .map_err(|_| SendFault::OwnMemory)?;
            self.counters.rx_placed_bytes += payload_len as u64;
        }
        if opcode.is_immediate() {
            let immediate = &mut self.inbound.immediate;
            let Ok(()) = ulpdu.try_each_run(UntaggedHeader::LEN, payload_len, |run| {
                immediate.extend(run);
                Ok::<_, Infallible>(())
            });
        }
        Ok(opcode)
    }

    /// Completes the receive request of a whole message, unless the message is Immediate Data that belongs to
    /// the next Send. The reported opcode is that of the last segment: a sink need not compare the segments
    /// of a message, and may report the header of any segment (RFC 5041 section 4.3, DDP-083, DDP-084). Each
    /// segment was checked according to its own opcode.
    ///
    /// RFC 5040 sections 5.3 and 5.5 (RDMAP-239, RDMAP-275, RDMAP-276, RDMAP-288): this function is called
    /// when DDP delivers the message, so completions are in sending order.
    fn deliver_send(
        &mut self,
        piece: &ReceivedUlpdu<'_, '_>,
        header: &UntaggedHeader,
        opcode: Opcode,
        len: u32,
    ) -> Result<(), Failure> {
        let mut invalidated = None;
        // RFC 5040 sections 4.1 and 5.3 (RDMAP-099, RDMAP-250): an invalidating Send names the STag to
        // invalidate. The field is ignored in other messages.
        if opcode.invalidates() {
            let stag = opcode::invalidate_stag(header);
            if let Err(fault) = self.guard.invalidate_remote(stag, self.state.by) {
                self.fail_bound(WcStatus::LocalProtectionError);
                return Err(piece.fail(TerminateError::of_invalidate_fault(fault)));
            }
            invalidated = Some(stag.0);
        }
        let mut immediate = self.inbound.immediate.take().filter(|_| opcode.is_immediate());
        // RFC 7306 section 6.3 (EXT-121): Immediate Data consumes a receive request of queue 0, as a Send
        // does.
        let completed = if immediate.is_some() { WcOpcode::RecvImmediate } else { WcOpcode::Recv };
        let mut len = len;
        if self.state.rules.keep_immediate_apart() {
            match (self.inbound.next_send, &immediate) {
                (NextSend::Joined(_), Some(_)) => {
                    return Err(piece.fail(TerminateError::OperationUnspecified));
                }
                (NextSend::Joined([a, b, c, d]), None) => {
                    immediate = Some([a, b, c, d, 0, 0, 0, 0]);
                    self.inbound.next_send = NextSend::UserMessage;
                }
                (_, Some(data)) => {
                    if let Some(data) = joined_immediate(data) {
                        self.inbound.next_send = NextSend::Joined(data);
                        return self.keep_bound();
                    }
                    // No byte of the Immediate Data is in the buffer.
                    len = 0;
                }
                (_, None) => {}
            }
        }
        let Some(wr_id) = self.state.consumer.recv().map(|request| request.wr_id) else {
            return Err(Failure::defect("a receive request for the message that is complete"));
        };
        let completion = self.state.qp.receives.succeeded(wr_id, completed, len);
        let solicited = opcode.is_solicited();
        self.state.complete_recv(WorkCompletion { immediate, invalidated, solicited, ..completion });
        Ok(())
    }

    /// Called when Immediate Data has arrived before the Send to which it belongs. The receive request stays
    /// bound for that Send.
    fn keep_bound(&mut self) -> Result<(), Failure> {
        if self.inbound.queue_0.post(1) {
            return Ok(());
        }
        Err(Failure::defect("a buffer posted again is within the queue's bounds"))
    }

    /// Completes the receive request of the current message in error, with status `status`.
    fn fail_bound(&mut self, status: WcStatus) {
        if let Some(wr_id) = self.state.consumer.recv().map(|request| request.wr_id) {
            let completion = self.state.qp.receives.failed(wr_id, status, None);
            self.state.complete_recv(completion);
        }
    }
}

/// Binds a receive request to the current message if no receive request is bound. Returns whether a receive
/// request is bound now.
///
/// RFC 5040 section 5.3 (RDMAP-235, RDMAP-246): a Send of any size, even 0, consumes one buffer.
#[inline(always)]
pub(in crate::stream) fn bind(state: &mut StreamState, inbound: &mut Inbound) -> bool {
    state.consumer.taken_recvs() > 0 || bind_next_recv(state, inbound)
}

/// Removes the next receive request from the receive queue, and posts it to queue 0. Returns `false` if no
/// receive request is available.
#[inline(always)]
fn bind_next_recv(state: &mut StreamState, inbound: &mut Inbound) -> bool {
    let is_taken = state.take_recv();
    if is_taken {
        let posted = inbound.queue_0.post(1);
        debug_assert!(posted, "{BOUND_AHEAD} and one buffers are within the queue's bounds");
    }
    is_taken
}

/// Places the payload of a ULPDU into the scatter/gather elements of a receive request, beginning at
/// `offset`.
fn scatter(
    (guard, pd): (&EpochGuard<'_>, PdId),
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
        let target = guard.check_sink(Stag(sge.lkey), sge.addr + skip, take as u64, pd)?;
        place(ulpdu, at, take, &target)?;
        at += take;
        skip = 0;
    }
    Ok(())
}
