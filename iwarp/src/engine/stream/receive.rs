//! Receiving: FPDUs into memory, receive completions, and what a message asks for.
//!
//! The order of checks is that of the documents (spec/rdmap section 3): DDP's own, then RDMAP version and opcode,
//! then what the opcode asks for. Nothing is placed before all checks on its segment have passed.

use std::ops::ControlFlow;

use arrayvec::ArrayVec;

use crate::ddp::{self, Arrival, Header, TaggedHeader, UntaggedHeader, UntaggedQueue};
use crate::memory::{Fault, Stag, Target, Turn};
use crate::mpa::startup::{Rtr, RtrKinds};
use crate::mpa::{self, Ulpdu, UlpduSink};
use crate::rdmap::read_sink::ReadProgress;
use crate::rdmap::{Opcode, Queue, ReadRequest, Terminate, TerminateError, control};
use crate::verbs::{RecvRequest, WcOpcode, WcStatus, WorkCompletion};

use super::transmit::Transmit;
use super::{Common, EXTENSIONS, EngineCounters, Failure, Flow};

/// A Read of the peer's that is to be answered, and the header it came with, for a Terminate.
#[derive(Clone, Debug)]
pub(super) struct PeerRead {
    pub(super) request: ReadRequest,
    pub(super) header: ArrayVec<u8, { Header::MAX_LEN }>,
    pub(super) segment_len: usize,
}

/// What reception remembers between segments.
pub(super) struct Receive {
    /// Queue 0: the receive queue. Counts the bound buffer only.
    sends: UntaggedQueue,
    /// Queue 1: the peer's Read Requests; IRD buffers.
    reads: UntaggedQueue,
    /// Queue 2: the peer's Terminate; one buffer.
    terminates: UntaggedQueue,
    /// The receive request that the Send under way goes to.
    bound: Option<RecvRequest>,
    /// The header of a Read Request or Terminate that comes in several segments.
    control: ArrayVec<u8, { Terminate::MAX_LEN }>,
    /// A Send of length 0 may come first as RTR, a form that our Reply has named: it takes no receive request.
    expects_rtr: bool,
}

impl Receive {
    pub(super) fn new(ird: u16, rtr: Rtr) -> Self {
        let mut reads = UntaggedQueue::new();
        let mut terminates = UntaggedQueue::new();
        let posted = reads.post(u32::from(ird)) && terminates.post(1);
        debug_assert!(posted, "an IRD of 16 bits is within the queue's bounds");
        Self {
            sends: UntaggedQueue::new(),
            reads,
            terminates,
            bound: None,
            control: ArrayVec::new(),
            expects_rtr: matches!(rtr, Rtr::Expect(kinds) if kinds.contains(RtrKinds::SEND)),
        }
    }

    /// Gives back the receive request that a Send under way had taken.
    pub(super) fn abandon(&mut self) -> Option<RecvRequest> {
        self.bound.take()
    }

    /// Reads of the peer have been answered: their buffers are posted again.
    pub(super) fn repost_reads(&mut self, count: u32) {
        let posted = self.reads.post(count);
        debug_assert!(posted, "one buffer for each that was taken");
    }
}

/// Takes ULPDUs from the deframer.
pub(super) struct Sink<'a> {
    pub(super) common: &'a mut Common,
    pub(super) receive: &'a mut Receive,
    pub(super) transmit: &'a mut Transmit,
    pub(super) turn: &'a Turn,
    pub(super) counters: &'a mut EngineCounters,
    pub(super) may_send: &'a mut bool,
    pub(super) failure: Option<Failure>,
}

/// A ULPDU as far as it is parsed: its first octets, its length, and (unless placed before) its octets.
struct Piece<'a, 'u> {
    head: &'a [u8],
    len: usize,
    ulpdu: Option<&'a Ulpdu<'u>>,
    arrival: Arrival,
}

impl UlpduSink for Sink<'_> {
    fn place_early(&mut self, ulpdu: &Ulpdu<'_>) -> bool {
        let mut head = [0; Header::MAX_LEN];
        let copied = ulpdu.copy_to(0, &mut head);
        let piece =
            Piece { head: &head[..copied], len: ulpdu.len(), ulpdu: Some(ulpdu), arrival: Arrival::Early };
        let placed = self.early(&piece);
        self.counters.rx_fpdus_early += u64::from(placed);
        placed
    }

    fn arrive(&mut self, arrival: mpa::Arrival<'_>) -> ControlFlow<()> {
        self.counters.rx_fpdus += 1;
        *self.may_send = true;
        let mut head = [0; Header::MAX_LEN];
        let flow = match arrival {
            mpa::Arrival::Whole(ulpdu) => {
                let copied = ulpdu.copy_to(0, &mut head);
                let piece = Piece {
                    head: &head[..copied],
                    len: ulpdu.len(),
                    ulpdu: Some(&ulpdu),
                    arrival: Arrival::InOrder,
                };
                self.in_order(&piece)
            }
            mpa::Arrival::Placed { header, ulpdu_len } => {
                let piece = Piece { head: header, len: ulpdu_len, ulpdu: None, arrival: Arrival::Placed };
                self.in_order(&piece)
            }
        };
        self.receive.expects_rtr = false;
        match flow {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(failure) => {
                self.failure = Some(failure);
                ControlFlow::Break(())
            }
        }
    }
}

impl Piece<'_, '_> {
    fn fail(&self, error: impl Into<TerminateError>) -> Failure {
        Failure::Local(Terminate::of_segment(error.into(), self.head, self.len, None))
    }

    /// Copies the payload to `target`, which is as long. Revoked by now, it is an STag that was never valid.
    fn place(
        &self,
        target: &Target<'_>,
        payload_at: usize,
        counters: &mut EngineCounters,
    ) -> Result<(), ddp::DdpError> {
        let Some(ulpdu) = self.ulpdu else { return Ok(()) };
        place_runs(ulpdu, payload_at, self.len - payload_at, target)?;
        counters.rx_placed_octets += (self.len - payload_at) as u64;
        Ok(())
    }
}

/// Copies `len` octets of a ULPDU from `at` on to the front of `target`, by increasing offset.
fn place_runs(ulpdu: &Ulpdu<'_>, at: usize, len: usize, target: &Target<'_>) -> Result<(), Fault> {
    let mut offset = 0;
    for run in ulpdu.runs(at, len) {
        target.place(offset, run)?;
        offset += run.len();
    }
    Ok(())
}

impl Sink<'_> {
    /// Places what lies ahead of a hole, if all is well with it; nothing is delivered or reported.
    fn early(&mut self, piece: &Piece<'_, '_>) -> bool {
        match Header::parse(piece.head) {
            Ok(Header::Tagged(header)) => self.tagged(piece, &header).is_continue(),
            Ok(Header::Untagged(header)) if header.qn == Queue::Send.number() => {
                self.early_send(piece, &header)
            }
            _ => false,
        }
    }

    fn in_order(&mut self, piece: &Piece<'_, '_>) -> Flow {
        match Header::parse(piece.head) {
            Ok(Header::Tagged(header)) => self.tagged(piece, &header),
            Ok(Header::Untagged(header)) => self.untagged(piece, &header),
            Err(error) => ControlFlow::Break(piece.fail(error)),
        }
    }

    // ---- tagged ----

    fn tagged(&mut self, piece: &Piece<'_, '_>, header: &TaggedHeader) -> Flow {
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

    // ---- untagged ----

    fn untagged(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> Flow {
        let queue = match Queue::open(header.qn, EXTENSIONS) {
            Ok(queue) => queue,
            Err(error) => return ControlFlow::Break(piece.fail(error)),
        };
        match queue {
            Queue::Send => self.send(piece, header),
            Queue::ReadRequest => self.read_request(piece, header),
            Queue::Terminate => self.peer_terminate(piece, header),
            Queue::AtomicResponse => ControlFlow::Break(piece.fail(ddp::DdpError::InvalidQn)),
        }
    }

    /// Takes the next receive request from the queue, if none is bound.
    fn bind(&mut self) {
        let Receive { sends, bound, .. } = &mut *self.receive;
        if bound.is_none() {
            *bound = self.common.qp.take_recv();
            let posted = bound.is_none() || sends.post(1);
            debug_assert!(posted, "one buffer is within the queue's bounds");
        }
    }

    fn early_send(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> bool {
        let is_send = Opcode::check(&(*header).into(), EXTENSIONS).is_ok_and(Opcode::is_send);
        if !is_send || self.receive.expects_rtr {
            return false;
        }
        self.bind();
        self.place_send(piece, header).is_ok()
    }

    fn send(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> Flow {
        let payload_len = piece.len - UntaggedHeader::LEN;
        if self.receive.expects_rtr
            && payload_len == 0
            && header.msn == 1
            && header.last
            && self.is_plain_send(header)
        {
            // The RTR: nobody's message (spec/mpa-v2 section 3).
            self.receive.sends = UntaggedQueue::starting_at(2);
            return ControlFlow::Continue(());
        }
        self.bind();
        let placed = if piece.arrival.places() {
            self.place_send(piece, header)
        } else {
            Opcode::check(&(*header).into(), EXTENSIONS).map_err(SendFault::Protocol)
        };
        let delivered = placed.and_then(|opcode| {
            let done = self.receive.sends.deliver(header, payload_len).map_err(TerminateError::from);
            done.map(|done| (opcode, done)).map_err(SendFault::Protocol)
        });
        match delivered {
            Ok((_, None)) => ControlFlow::Continue(()),
            Ok((opcode, Some(done))) => self.deliver_send(piece, header, opcode, done.len),
            Err(SendFault::Protocol(error)) => {
                if error == TerminateError::DdpTooLong {
                    self.fail_bound(WcStatus::LocalLengthError);
                }
                ControlFlow::Break(piece.fail(error))
            }
            Err(SendFault::Local) => {
                self.fail_bound(WcStatus::LocalProtectionError);
                ControlFlow::Break(Failure::local(TerminateError::LocalCatastrophic))
            }
        }
    }

    fn is_plain_send(&self, header: &UntaggedHeader) -> bool {
        Opcode::check(&(*header).into(), EXTENSIONS) == Ok(Opcode::Send)
    }

    /// Checks a segment of a Send against the bound buffer and places it.
    fn place_send(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> Result<Opcode, SendFault> {
        let payload_len = piece.len - UntaggedHeader::LEN;
        let Receive { sends, bound, .. } = &*self.receive;
        let room = bound.as_ref().map_or(0, RecvRequest::length);
        let slot = sends.check(header, payload_len, |_| room).map_err(TerminateError::from)?;
        let opcode = Opcode::check(&(*header).into(), EXTENSIONS)?;
        if !opcode.is_send() {
            return Err(TerminateError::UnexpectedOpcode.into());
        }
        if let (Some(request), Some(ulpdu)) = (bound, piece.ulpdu) {
            self.scatter(request, slot.offset, ulpdu, payload_len).map_err(|_| SendFault::Local)?;
            self.counters.rx_placed_octets += payload_len as u64;
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
            let target = self.turn.check_sink(Stag(sge.lkey), sge.addr + skip, take as u64, pd)?;
            place_runs(ulpdu, at, take, &target)?;
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
    ) -> Flow {
        let mut invalidated = None;
        if opcode.invalidates() {
            let stag = control::invalidate_stag(header);
            if let Err(fault) = self.turn.invalidate_remote(stag, self.common.by) {
                self.fail_bound(WcStatus::LocalProtectionError);
                return ControlFlow::Break(piece.fail(TerminateError::of_invalidate_fault(fault)));
            }
            invalidated = Some(stag.0);
        }
        if let Some(request) = self.receive.bound.take() {
            let qp = &self.common.qp;
            let completion = qp.succeeded(request.wr_id, WcOpcode::Recv, len);
            qp.complete_recv(WorkCompletion { invalidated, solicited: opcode.is_solicited(), ..completion });
        }
        ControlFlow::Continue(())
    }

    /// Completes the bound receive request in error.
    fn fail_bound(&mut self, status: WcStatus) {
        if let Some(request) = self.receive.bound.take() {
            let qp = &self.common.qp;
            qp.complete_recv(WorkCompletion { status, ..qp.flushed(request.wr_id, WcOpcode::Recv, None) });
        }
    }

    fn read_request(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> Flow {
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

    fn peer_terminate(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> Flow {
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

/// Why a segment of a Send was not taken.
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
