//! Receiving: places FPDUs into memory, completes receives, and handles the requests of the peer.
//!
//! A segment is checked in this order: DDP's checks, then RDMAP version and opcode, then the checks of the
//! opcode (RFC 5040 section 7.2). No payload is placed before these checks of its segment have passed. The
//! STag that a Send invalidates is checked when the Send is delivered.

use arrayvec::ArrayVec;
use dp::invariant::{Check, ensure};
use dp::profile::{self, Layer};

use crate::ddp::{self, Arrival, Header, UntaggedHeader, UntaggedQueue};
use crate::memory::{Access, EpochGuard, Fault, Target};
use crate::mpa::startup::{Rtr, RtrKinds};
use crate::mpa::{Deframed, HEAD_BYTES, Ulpdu};
use crate::queues::QpConsumer;
use crate::rdmap::{Extensions, ImmediateData, Queue, Terminate, TerminateError};

mod ib_profile;
mod rdmap_queues;
mod send;
mod tagged;
mod unreliable;
mod usual;

use super::outbound::Outbound;
use super::peer_request::{ByKind, RequestQueue};
use super::request_pool::RequestPool;
use super::state::StreamState;
use super::{Failure, StreamCounters};
use unreliable::Dropped;

/// Maximum number of receive requests that are bound to messages after the current message. Out-of-order
/// Sends beyond these messages are held until the missing bytes arrive. A higher limit would need more memory
/// for each queue pair; with a lower limit, fewer Sends would be placed out of order.
const BOUND_AHEAD: u8 = 31;

const _: () = assert!(HEAD_BYTES >= Header::MAX_LEN, "a segment that was placed early has its whole header");

/// The state of reception between segments.
pub(super) struct Inbound {
    /// Queue 0, the receive queue. Only the bound requests count as posted.
    queue_0: UntaggedQueue,
    /// Queue 1: the peer's Read Requests and Atomic Requests.
    requests: RequestQueue,
    /// Queue 2, with one buffer for the peer's Terminate.
    terminates: UntaggedQueue,
    /// Maximum number of receive requests that are bound to messages after the current message, if segments
    /// of these messages arrived out of order. The number is 0, for example, with a shared receive queue,
    /// whose requests go to the connection that first needs one.
    ahead_max: u8,
    /// The Immediate Data that is being received.
    immediate: ImmediateData,
    /// The part received so far of a message of queue 1, 2 or 3.
    partial: ArrayVec<u8, { rdmap_queues::MAX_MESSAGE_BYTES }>,
    next_send: NextSend,
}

/// The kind of the next message of queue 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NextSend {
    /// Any message of a user.
    UserMessage,
    /// The Send to which these bytes of Immediate Data belong.
    Joined([u8; 4]),
    /// No message: a message has found no receive request, and the requests after it are dropped.
    Refused,
    /// The first message, which may be an empty Send as RTR if our Reply allowed that. The RTR consumes no
    /// receive request.
    MayBeRtr,
    /// Any message of a user, after the rest of a message that is dropped.
    Dropped(Dropped),
}

impl Inbound {
    /// Creates the state. If `binds_ahead` is set, receive requests may be bound to messages after the
    /// current message, since markers locate out-of-order Sends and no other queue pair removes requests from
    /// the receive queue.
    pub(super) fn new(ird: u16, extensions: Extensions, rtr: Rtr, binds_ahead: bool) -> Self {
        let mut terminates = UntaggedQueue::new();
        // RFC 5040 section 5.4 (RDMAP-255, RDMAP-256): exactly one buffer for a Terminate is always posted.
        let posted = terminates.post(1);
        debug_assert!(posted, "one buffer is within the queue's bounds");
        let ahead_max = if binds_ahead { BOUND_AHEAD } else { 0 };
        Self {
            queue_0: UntaggedQueue::new(),
            requests: RequestQueue::new(ird, extensions),
            terminates,
            ahead_max,
            immediate: ImmediateData::default(),
            partial: ArrayVec::new(),
            next_send: match rtr {
                Rtr::Expect(kinds) if kinds.contains(RtrKinds::SEND) => NextSend::MayBeRtr,
                Rtr::Expect(_) | Rtr::Send(_) | Rtr::None => NextSend::UserMessage,
            },
        }
    }

    /// Returns the MSN up to which messages of the peer find a receive request: the number of accepted
    /// messages plus the number of receive requests. While a message is refused, only the accepted messages
    /// count. Requests that are still in a shared receive queue do not count, since other queue pairs may
    /// take them.
    pub(super) fn limit(&self, consumer: &QpConsumer) -> u32 {
        let taken = self.queue_0.first_msn().wrapping_sub(1);
        match self.next_send {
            NextSend::Refused => taken,
            _ => taken.wrapping_add(consumer.promised_recvs()),
        }
    }

    /// Forgets the bound receive requests, which the caller completes as flushed. Nothing is received after
    /// this.
    pub(super) fn abandon(&mut self) {
        self.queue_0 = UntaggedQueue::starting_at(self.queue_0.first_msn());
    }

    /// Returns the number of buffers for requests of the peer, which is the maximum number of waiting
    /// requests.
    pub(super) fn request_buffers(&self, extensions: Extensions) -> u32 {
        self.requests.buffers(extensions)
    }

    /// Posts the buffers of answered requests of the peer again.
    pub(super) fn repost_requests(&mut self, answered: ByKind) {
        self.requests.repost(answered);
    }

    /// Checks that each posted buffer of a queue exists, if `bound` receive requests are bound; for tests.
    pub(super) fn check(&self, extensions: Extensions, bound: usize) -> Check {
        let posted = self.queue_0.posted() as usize;
        ensure!(posted == bound, "{posted} buffers posted to queue 0, {bound} receive requests bound");
        let (ahead, most) = (bound.saturating_sub(1), usize::from(self.ahead_max));
        ensure!(ahead <= most, "{ahead} requests are bound ahead, {most} may");
        let awaits_rtr = self.next_send == NextSend::MayBeRtr;
        ensure!(!awaits_rtr || bound == 0, "{bound} requests are bound before the RTR");
        self.requests.check_buffers(extensions)
    }
}

pub(super) use send::bind;

/// Accepts ULPDUs of the peer, one by one.
pub(crate) struct Delivery<'a> {
    pub(super) state: &'a mut StreamState,
    pub(super) inbound: &'a mut Inbound,
    pub(super) outbound: &'a mut Outbound,
    /// `Stream::may_send`. Handling an in-order ULPDU sets this flag; before that, a responder may not send.
    pub(super) may_send: &'a mut bool,
    pub(super) guard: &'a EpochGuard<'a>,
    pub(super) counters: &'a mut StreamCounters,
    pub(super) pool: &'a mut RequestPool,
}

/// A received ULPDU: its first bytes, its length, and its bytes unless they were placed early.
struct ReceivedUlpdu<'a, 'u> {
    head: &'a [u8],
    len: usize,
    /// The ULPDU; `None` if the arrival is [`Arrival::Placed`].
    ulpdu: Option<&'a Ulpdu<'u>>,
    arrival: Arrival,
}

impl Delivery<'_> {
    /// Handles any ULPDU: the general path of [`deliver`](Self::deliver), which describes the result. For the
    /// ULPDUs that the fast path [`deliver_usual`](Self::deliver_usual) accepts, both paths have the same
    /// result.
    #[inline(never)]
    fn deliver_any(&mut self, received: Deframed<'_>) -> Result<bool, Failure> {
        let mut room = [0; Header::MAX_LEN];
        let piece = match &received {
            Deframed::InOrder(ulpdu) => ReceivedUlpdu::of(ulpdu, Arrival::InOrder, &mut room),
            &Deframed::Placed { head, ulpdu_len: len } => {
                ReceivedUlpdu { head, len, ulpdu: None, arrival: Arrival::Placed }
            }
            Deframed::Ahead(ulpdu) => return Ok(self.place_early(ulpdu)),
        };
        self.counters.rx_fpdus += 1;
        *self.may_send = true;
        // RFC 5041 sections 4.1 and 4.2 (DDP-047, DDP-048, DDP-071): the T bit selects the buffer model. At
        // delivery RDMAP receives the whole header including the STag, even for a segment that was placed
        // early.
        let header = Header::parse(piece.head).map_err(|error| piece.fail(error))?;
        if self.state.rules.have_queue_4() && self.take_profile_segment(&piece, &header)? {
            return Ok(false);
        }
        let is_unusual = matches!(self.inbound.next_send, NextSend::MayBeRtr | NextSend::Dropped(_));
        if is_unusual && self.take_unusual_segment(&piece, &header) {
            return Ok(false);
        }
        let result = match header {
            Header::Tagged(header) => self.tagged(&piece, &header),
            Header::Untagged(header) => self.untagged(&piece, &header),
        };
        result.map(|()| false)
    }

    /// Handles a segment that is the RTR, or that belongs to a dropped message. Returns whether the segment
    /// needs no further processing.
    #[cold]
    fn take_unusual_segment(&mut self, piece: &ReceivedUlpdu<'_, '_>, header: &Header) -> bool {
        match self.inbound.next_send {
            NextSend::MayBeRtr => {
                self.inbound.next_send = NextSend::UserMessage;
                matches!(header, Header::Untagged(header) if self.take_rtr(piece, header))
            }
            NextSend::Dropped(dropped) => self.is_dropped(dropped, piece, header),
            NextSend::UserMessage | NextSend::Joined(_) | NextSend::Refused => false,
        }
    }

    /// Places an out-of-order ULPDU of a Write, a Read Response or a Send if all its checks pass. Nothing is
    /// delivered, and no error is reported. Returns whether the ULPDU was placed.
    ///
    /// RFC 5040 section 5.5 (RDMAP-281, RDMAP-289): Read Requests are not processed here, but only when they
    /// are delivered.
    fn place_early(&mut self, ulpdu: &Ulpdu<'_>) -> bool {
        let mut room = [0; Header::MAX_LEN];
        let piece = ReceivedUlpdu::of(ulpdu, Arrival::Ahead, &mut room);
        let placed = match Header::parse(piece.head) {
            Ok(Header::Tagged(header)) => self.tagged(&piece, &header).is_ok(),
            // RFC 7306 section 5.4 (EXT-107): of all untagged messages, only Sends are placed out of order.
            // So no Atomic Request is read before DDP delivers it.
            Ok(Header::Untagged(header)) if header.qn == Queue::Send.number() => {
                self.early_send(&piece, &header, ulpdu)
            }
            _ => false,
        };
        self.counters.rx_fpdus_early += u64::from(placed);
        placed
    }

    /// Whether our user grants this right to the peer's messages.
    #[inline]
    fn admits(&self, need: Access) -> bool {
        self.state.qp.attributes.remote_access().contains(need)
    }

    /// Called when the response to one of our Reads or atomics has arrived, but the memory for the response
    /// is not valid: our user has revoked it, or has posted the request with invalid memory, which
    /// InfiniBand's semantics detect only now. Returns the failure. The request fails, and the error is our
    /// user's fault. The Terminate depends on the response:
    ///
    /// - A Read Response names the STag. DDP has to check the STag in every segment, and has one error for an
    ///   STag that is no longer valid (RFC 5041 section 7.1, RFC 5040 section 7.2): 1/1/00, with the
    ///   segment's header.
    /// - An Atomic Response names no memory. When its value cannot be stored, the response is correct and
    ///   already delivered. The error is then one without a failing message (RFC 5040 section 7.1, case 1):
    ///   0/0/00, without a header.
    #[cold]
    fn sink_revoked(&mut self, terminate: Terminate) -> Failure {
        self.state.fail_oldest();
        Failure::User(Box::new(terminate))
    }

    fn untagged(&mut self, piece: &ReceivedUlpdu<'_, '_>, header: &UntaggedHeader) -> Result<(), Failure> {
        match Queue::open(header.qn, self.state.extensions).map_err(|error| piece.fail(error))? {
            Queue::Send => self.send(piece, header),
            Queue::ReadRequest => self.peer_request(piece, header),
            Queue::Terminate => self.peer_terminate(piece, header),
            Queue::AtomicResponse => self.atomic_response(piece, header),
        }
    }
}

impl<'a, 'u> ReceivedUlpdu<'a, 'u> {
    /// Returns a ULPDU that was not placed before. Its first bytes are copied to `room` if they are not
    /// contiguous.
    fn of(ulpdu: &'a Ulpdu<'u>, arrival: Arrival, room: &'a mut [u8; Header::MAX_LEN]) -> Self {
        let head = match ulpdu.front(Header::MAX_LEN) {
            Some(bytes) => bytes,
            None => {
                let copied = ulpdu.copy_to(0, room);
                &room[..copied]
            }
        };
        Self { head, len: ulpdu.len(), ulpdu: Some(ulpdu), arrival }
    }

    /// Returns the failure for an error of this segment. Cold, so that this code is not part of the path of
    /// each FPDU.
    #[cold]
    fn fail(&self, error: impl Into<TerminateError>) -> Failure {
        Failure::Here(Box::new(self.terminate(error.into())))
    }

    #[cold]
    fn terminate(&self, error: TerminateError) -> Terminate {
        Terminate::of_segment(error, self.head, self.len, None)
    }

    /// Copies the payload of the ULPDU to `target`, which has the same length. If the target was revoked
    /// after its check, the error is an invalid STag.
    ///
    /// RFC 5041 section 5.2 (DDP-109): all payload of a valid segment is placed.
    fn place(
        &self,
        ulpdu: &Ulpdu<'_>,
        target: &Target<'_>,
        payload_at: usize,
        counters: &mut StreamCounters,
    ) -> Result<(), ddp::DdpError> {
        profile::within(Layer::Place, || place(ulpdu, payload_at, self.len - payload_at, target))?;
        counters.rx_placed_bytes += (self.len - payload_at) as u64;
        Ok(())
    }
}

/// Copies `len` bytes of a ULPDU, beginning at offset `at`, to the front of `target`, in the order of their
/// offsets.
fn place(ulpdu: &Ulpdu<'_>, at: usize, len: usize, target: &Target<'_>) -> Result<(), Fault> {
    if let Some(bytes) = ulpdu.whole() {
        return target.place(0, &bytes[at..at + len]);
    }
    if let Some((frame, start)) = ulpdu.in_frame() {
        return target.place_frame(0, frame, start + at, len);
    }
    if let Some(runs) = ulpdu.piece(at, len) {
        return target.place_runs(0, runs).map(drop);
    }
    let mut offset = 0;
    for piece in ulpdu.pieces(at, len) {
        offset += target.place_runs(offset, piece)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_are_counted_and_not_there_are_found() {
        let whole = || {
            let mut inbound = Inbound::new(4, Extensions::ATOMICS, Rtr::None, true);
            assert!(inbound.queue_0.post(2));
            (inbound, 2)
        };
        let (inbound, bound) = whole();
        inbound.check(Extensions::ATOMICS, bound).unwrap();
        type Break = fn(&mut Inbound, &mut usize);
        let broken: [(Break, &str); 5] = [
            (|_, bound| *bound = 1, "2 buffers posted to queue 0, 1 receive requests bound"),
            (
                |inbound, _| assert!(inbound.queue_0.post(1)),
                "3 buffers posted to queue 0, 2 receive requests bound",
            ),
            (|inbound, _| inbound.ahead_max = 0, "1 requests are bound ahead, 0 may"),
            (|inbound, _| inbound.next_send = NextSend::MayBeRtr, "2 requests are bound before the RTR"),
            (
                |inbound, _| inbound.requests.lose_buffer(),
                "8 buffers for requests posted, 1 and 0 taken of 8",
            ),
        ];
        for (break_it, found) in broken {
            let (mut inbound, mut bound) = whole();
            break_it(&mut inbound, &mut bound);
            assert_eq!(inbound.check(Extensions::ATOMICS, bound), Err(found.into()));
        }
        // After `abandon`, no receive request is bound.
        let (mut inbound, _) = whole();
        inbound.abandon();
        inbound.check(Extensions::ATOMICS, 0).unwrap();
    }
}
