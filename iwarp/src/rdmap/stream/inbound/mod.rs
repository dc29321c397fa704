//! Receiving: FPDUs into memory, receive completions, and what a message asks for.
//!
//! The order of checks is that of the documents (spec/rdmap section 3): DDP's own, then RDMAP version and
//! opcode, then what the opcode asks for. Nothing is placed before all checks on its segment have passed.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use dp::profile::{self, Layer};

use crate::ddp::{self, Arrival, Header, UntaggedHeader, UntaggedQueue};
use crate::memory::{EpochGuard, Fault, Target};
use crate::mpa::Ulpdu;
use crate::mpa::startup::{Rtr, RtrKinds};
use crate::queues::RecvRequest;
use crate::rdmap::{Extensions, ImmediateData, Queue, Terminate, TerminateError};

mod control;
mod send;
mod tagged;

use super::outbound::Outbound;
use super::outstanding::Common;
use super::peer_request::{ByKind, RequestQueue};
use super::records::Records;
use super::{Failure, StreamCounters};

/// Receive requests that are bound to messages behind the one under way, at most: Sends further
/// ahead of a hole wait for it.
const BOUND_AHEAD: usize = 31;

/// What reception remembers between segments.
pub(super) struct Inbound {
    /// Queue 0: the receive queue. Counts the bound buffers only.
    sends: UntaggedQueue,
    /// Queue 1: the peer's Read Requests and Atomic Requests.
    requests: RequestQueue,
    /// Queue 2: the peer's Terminate; one buffer.
    terminates: UntaggedQueue,
    /// The receive request that the Send or Immediate Data under way goes to.
    bound: Option<RecvRequest>,
    /// Those of the messages behind it, in their order, once segments of these were there ahead of a hole.
    ahead: VecDeque<RecvRequest>,
    /// How many these may be: none where nothing is placed ahead, or where a request belongs to whichever
    /// connection needs one first.
    ahead_max: usize,
    /// Immediate Data under way.
    immediate: ImmediateData,
    /// A message of queue 1, 2 or 3 that comes in several segments.
    control: ArrayVec<u8, { control::MAX_LEN }>,
    /// A Send of length 0 may come first as RTR, a form that our Reply has named: it takes no receive
    /// request.
    expects_rtr: bool,
}

impl Inbound {
    /// `knows_ahead` says that a Send ahead of a hole may be placed, and that nobody else takes the requests
    /// of its queue.
    pub(super) fn new(ird: u16, extensions: Extensions, rtr: Rtr, knows_ahead: bool) -> Self {
        let mut terminates = UntaggedQueue::new();
        let posted = terminates.post(1);
        debug_assert!(posted, "one buffer is within the queue's bounds");
        let ahead_max = if knows_ahead { BOUND_AHEAD } else { 0 };
        Self {
            sends: UntaggedQueue::new(),
            requests: RequestQueue::new(ird, extensions),
            terminates,
            bound: None,
            ahead: VecDeque::with_capacity(ahead_max),
            ahead_max,
            immediate: ImmediateData::default(),
            control: ArrayVec::new(),
            expects_rtr: matches!(rtr, Rtr::Expect(kinds) if kinds.contains(RtrKinds::SEND)),
        }
    }

    /// Gives back the receive requests that messages had taken, oldest first.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = RecvRequest> {
        self.bound.take().into_iter().chain(self.ahead.drain(..))
    }

    /// The receive request of this index of queue 0.
    fn request(&self, index: u32) -> Option<&RecvRequest> {
        match index.checked_sub(1) {
            None => self.bound.as_ref(),
            Some(behind) => self.ahead.get(behind as usize),
        }
    }

    /// Requests of the peer have been answered: their buffers are posted again.
    pub(super) fn repost_requests(&mut self, answered: ByKind) {
        self.requests.repost(answered);
    }
}

/// What takes in ULPDUs, one by one.
pub(super) struct Delivery<'a> {
    pub(super) common: &'a mut Common,
    pub(super) inbound: &'a mut Inbound,
    pub(super) outbound: &'a mut Outbound,
    pub(super) guard: &'a EpochGuard,
    pub(super) counters: &'a mut StreamCounters,
    pub(super) records: &'a mut Records,
}

/// A ULPDU as far as it is parsed: its first bytes, its length, and (unless placed before) its bytes.
struct Piece<'a, 'u> {
    head: &'a [u8],
    len: usize,
    ulpdu: Option<&'a Ulpdu<'u>>,
    arrival: Arrival,
}

impl Delivery<'_> {
    /// Takes the next ULPDU in the sender's order: places what was not placed before, and delivers.
    pub(super) fn deliver(&mut self, ulpdu: &Ulpdu<'_>) -> Result<(), Failure> {
        let mut room = [0; Header::MAX_LEN];
        let head = head(ulpdu, &mut room);
        self.in_order(&Piece { head, len: ulpdu.len(), ulpdu: Some(ulpdu), arrival: Arrival::InOrder })
    }

    /// Takes the next ULPDU in the sender's order, of `len` bytes, which was placed before.
    pub(super) fn deliver_placed(&mut self, head: &[u8], len: usize) -> Result<(), Failure> {
        self.in_order(&Piece { head, len, ulpdu: None, arrival: Arrival::Placed })
    }

    /// Places a ULPDU that lies ahead of a hole, if all is well with it; nothing is delivered or
    /// reported.
    pub(super) fn place_early(&mut self, ulpdu: &Ulpdu<'_>) -> bool {
        let mut room = [0; Header::MAX_LEN];
        let head = head(ulpdu, &mut room);
        let piece = Piece { head, len: ulpdu.len(), ulpdu: Some(ulpdu), arrival: Arrival::Early };
        let placed = match Header::parse(piece.head) {
            Ok(Header::Tagged(header)) => self.tagged(&piece, &header).is_ok(),
            Ok(Header::Untagged(header)) if header.qn == Queue::Send.number() => {
                self.early_send(&piece, &header)
            }
            _ => false,
        };
        self.counters.rx_fpdus_early += u64::from(placed);
        placed
    }

    fn in_order(&mut self, piece: &Piece<'_, '_>) -> Result<(), Failure> {
        self.counters.rx_fpdus += 1;
        let result = match Header::parse(piece.head) {
            Ok(Header::Tagged(header)) => self.tagged(piece, &header),
            Ok(Header::Untagged(header)) => self.untagged(piece, &header),
            Err(error) => Err(piece.fail(error)),
        };
        self.inbound.expects_rtr = false;
        result
    }

    /// The answer to a Read or atomic of ours is here, and our user has taken the place for it
    /// away. The request is to blame, and the error is our user's, whichever it was. What the peer
    /// is told is what the segment says:
    ///
    /// - A Read Response names the STag. DDP has to check it in every segment, and has one error for an STag
    ///   that is not valid any more (RFC 5041 section 7.1, RFC 5040 section 7.2): 1/1/00, with the segment's
    ///   header.
    /// - An Atomic Response names no place. It is in order, and delivered, when its value cannot be stored:
    ///   an error that no incoming message has caused (RFC 5040 section 7.1, case 1). 0/0/00, without a
    ///   header.
    fn lose_sink(&mut self, told: Terminate) -> Failure {
        self.common.blame_sink();
        Failure::User(told)
    }

    fn untagged(&mut self, piece: &Piece<'_, '_>, header: &UntaggedHeader) -> Result<(), Failure> {
        match Queue::open(header.qn, self.common.extensions).map_err(|error| piece.fail(error))? {
            Queue::Send => self.send(piece, header),
            Queue::ReadRequest => self.peer_request(piece, header),
            Queue::Terminate => self.peer_terminate(piece, header),
            Queue::AtomicResponse => self.atomic_response(piece, header),
        }
    }
}

impl Piece<'_, '_> {
    fn fail(&self, error: impl Into<TerminateError>) -> Failure {
        Failure::Local(self.terminate(error.into()))
    }

    fn terminate(&self, error: TerminateError) -> Terminate {
        Terminate::of_segment(error, self.head, self.len, None)
    }

    /// Copies the payload to `target`, which is as long. Revoked by now, it is an STag that was never valid.
    fn place(
        &self,
        target: &Target<'_>,
        payload_at: usize,
        counters: &mut StreamCounters,
    ) -> Result<(), ddp::DdpError> {
        let Some(ulpdu) = self.ulpdu else { return Ok(()) };
        profile::within(Layer::Place, || place(ulpdu, payload_at, self.len - payload_at, target))?;
        counters.rx_placed_bytes += (self.len - payload_at) as u64;
        Ok(())
    }
}

/// The first bytes of a ULPDU, as many as a header may have: where they lie in one run, else copied to
/// `room`.
fn head<'a>(ulpdu: &Ulpdu<'a>, room: &'a mut [u8; Header::MAX_LEN]) -> &'a [u8] {
    if let Some(bytes) = ulpdu.front(Header::MAX_LEN) {
        return bytes;
    }
    let copied = ulpdu.copy_to(0, room);
    &room[..copied]
}

/// Copies `len` bytes of a ULPDU from `at` on to the front of `target`, by increasing offset.
fn place(ulpdu: &Ulpdu<'_>, at: usize, len: usize, target: &Target<'_>) -> Result<(), Fault> {
    if let Some(bytes) = ulpdu.whole() {
        return target.place(0, &bytes[at..at + len]);
    }
    let mut offset = 0;
    for piece in ulpdu.pieces(at, len) {
        offset += target.place_runs(offset, piece)?;
    }
    Ok(())
}
