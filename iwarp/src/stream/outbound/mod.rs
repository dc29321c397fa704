//! Sending: chooses the next message, writes its FPDUs into TCP segments, and completes sends.
//!
//! Responses to the peer alternate with the requests of our user, message by message. A Send or Write usually
//! completes when its last segment is written to TCP. A Send or Write whose payload is not copied, and each
//! Send or Write with InfiniBand's semantics, completes at the earliest when its bytes are acknowledged. A
//! Read or atomic completes when its response is delivered. All requests complete in post order. A Terminate
//! follows the FPDU that is being written, and is sent before all other messages except those of queue 4.

use dp::ExtBuf;
use dp::invariant::Check;
use dp::profile::{self, Layer};
use tcp_lite::{ConnId, Instant, SegmentBuf, SendError, Stack};

use crate::ddp::Segment;
use crate::memory::{EpochGuard, Source};
use crate::mpa::Framer;
use crate::mpa::startup::{Rtr, RtrKind};
use crate::queues::{SendOp, WcStatus};
use crate::rdmap::{IMMEDIATE_LEN, Opcode, Terminate, TerminateError};

use super::ib_profile::PAYLOAD_BYTES;
use super::message::{FetchError, Message, OwnBytes, PayloadSource, Payloads};
use super::peer_request::{ByKind, PeerRequest};
use super::state::StreamState;
use super::{Failure, StreamCounters};
use super::{request_pool::RequestPool, slot_pool::PoolQueue};

mod requests;
mod responses;
mod usual;

use usual::FillOutcome;

/// Minimum capacity in bytes of TCP segments for payload that is to be sent without a copy. Each segment of
/// such payload needs two more packet buffers, which cost as much as a copy of 4 KiB.
const EXTERNAL_MIN_EMSS: usize = 8 << 10;

/// Minimum number of payload bytes of a ULPDU that is sent without a copy. A shorter ULPDU is copied: the
/// last ULPDU of a message may be short.
const EXTERNAL_MIN_BYTES: u32 = 512;

/// Minimum number of bytes at the end of a message that are copied, even if the other bytes of the message
/// are sent without a copy.
const COPIED_END_BYTES: u32 = 64;

/// Maximum number of local requests (requests without a message) that one queue pair executes before the next
/// queue pair may send. Each local request may wait for the other engines, which delays the connections of
/// this engine, so the number is small.
const MAX_LOCAL: u32 = 4;

/// Why a call of [`Outbound::run`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// Nothing can be sent now, for example until a doorbell rings or the peer sends something.
    Idle,
    /// The budget, or the limit on local requests, is used up.
    More,
    /// TCP's send buffer is full. TCP reports when it has room again.
    Full,
    /// No packet buffer is free, so the caller tries again in the next poll.
    NoMbuf,
    /// TCP has the Terminate. FIN may follow.
    Terminated,
    /// TCP has all messages for the peer, and the stream ends without a Terminate. FIN may follow.
    Ended,
}

/// The arguments of [`Outbound::run`].
pub(super) struct SendContext<'a> {
    pub(super) state: &'a mut StreamState,
    pub(super) framer: &'a mut Framer,
    pub(super) guard: &'a EpochGuard<'a>,
    pub(super) counters: &'a mut StreamCounters,
    pub(super) pool: &'a mut RequestPool,
    /// The registered memory of the current message's payload, after it was looked up.
    pub(super) found: Option<Source<'a>>,
    /// The stream offset of the TCP segment that is being filled.
    pub(super) offset: u64,
}

/// The send direction of a stream.
pub(super) struct Outbound {
    /// The message whose segments are being written. If it is a Send or Write of our user, its request
    /// remains the oldest request of the send queue until the message is complete.
    current: Option<Current>,
    /// The status of the current message's request, if that request is the cause of the stream's end.
    fault: Option<WcStatus>,
    /// The payload of the current message's request, if the payload is sent without a copy.
    external: Option<External>,
    /// The payload of the current message, if RDMAP generates it.
    own: OwnBytes,
    /// Whether the current message answers the oldest request of the peer.
    answering: bool,
    /// Requests of the peer, oldest first: at most IRD Reads and at most IRD atomics. A request stays in this
    /// queue until it is answered completely.
    responses: PoolQueue,
    phase: Phase,
    /// Whether a waiting response is sent before our user's requests, because the last message was our
    /// user's.
    response_next: bool,
    /// Number of local requests that may still be executed in this call. Local requests hand no bytes to TCP,
    /// so the byte budget does not limit them, and some of them wait for the other engines.
    local_left: u32,
    /// Requests of the peer that are answered completely, and whose buffers are to be posted again.
    answered: ByKind,
    /// MSN of the next message of each queue.
    send_msn: u32,
    request_msn: u32,
    atomic_response_msn: u32,
    /// Identifier of our next atomic.
    atomic_id: u32,
    /// A segment capacity, and the maximum length of a ULPDU that was computed from it.
    limit: (usize, u32),
}

/// What has to be sent before all messages, and whether further messages may follow. (The variants in which
/// nothing has to be sent come first, so that one comparison detects them.)
enum Phase {
    /// Nothing has to be sent before a message.
    Open,
    /// The Terminate is written to TCP.
    Terminated,
    /// As `Silent`, and TCP has all of these messages.
    Ended,
    /// The ready-to-receive message has to be sent first.
    Rtr(RtrKind),
    /// The stream has failed. A Terminate has to be sent.
    Terminate(Box<Terminate>),
    /// The Terminate is the current message.
    Terminating,
    /// The stream has failed. Only messages of queue 4 about the peer's own messages may still be sent. No
    /// Terminate is sent.
    Silent,
}

/// The payload of a request that is sent without a copy.
struct External {
    memory: ExtBuf,
    /// The stream offset after the last FPDU of the payload that was written; `None` before the first such
    /// FPDU.
    end: Option<u64>,
}

#[derive(Clone, Copy)]
struct Current {
    message: Message,
    completes: Completes,
}

/// What completes when the last segment of a message is written to TCP.
#[derive(Clone, Copy)]
enum Completes {
    /// Nothing. The message is the RTR, or it is a Read Request or Atomic Request, whose response completes
    /// the request.
    Nothing,
    /// Our user's request.
    Request,
    /// Nothing. The message is the first half of our user's request, and this Immediate Data is the second
    /// half.
    Write { immediate: Opcode, data: [u8; IMMEDIATE_LEN] },
    /// Nothing. The message is the Immediate Data that belongs to our user's Send, which follows.
    Joined { send: Opcode, length: u32 },
    /// The peer's request, whose buffer on queue 1 is free now.
    Response,
    /// The stream: nothing may be sent after the Terminate.
    Terminate,
    /// Nothing. The message is a message of queue 4.
    Profile,
}

impl Current {
    /// Whether the message belongs to a request of our user.
    fn is_of_request(&self) -> bool {
        match self.completes {
            Completes::Nothing | Completes::Request | Completes::Write { .. } | Completes::Joined { .. } => {
                true
            }
            Completes::Response | Completes::Terminate | Completes::Profile => false,
        }
    }
}

impl Outbound {
    /// Creates a send direction. If this side has to send the RTR, the RTR is the first message.
    pub(super) fn new(rtr: Rtr) -> Self {
        Self {
            current: None,
            fault: None,
            external: None,
            own: OwnBytes::new(),
            answering: false,
            responses: PoolQueue::default(),
            phase: match rtr {
                Rtr::Send(kind) => Phase::Rtr(kind),
                Rtr::None | Rtr::Expect(_) => Phase::Open,
            },
            response_next: true,
            local_left: 0,
            answered: ByKind::default(),
            // RFC 5041 section 4.3 (DDP-090): the first MSN of a queue is 1.
            send_msn: 1,
            request_msn: 1,
            atomic_response_msn: 1,
            atomic_id: 1,
            limit: (0, 0),
        }
    }

    /// Writes FPDUs into TCP segments of `conn`, up to about `budget` bytes. A segment contains as many whole
    /// FPDUs as fit, except for FPDUs whose payload is not copied: each of these has its own segment.
    pub(super) fn run(
        &mut self,
        tcp: &mut Stack,
        conn: ConnId,
        now: Instant,
        mut cx: SendContext<'_>,
        budget: usize,
    ) -> Result<SendOutcome, Failure> {
        let _transmit = profile::scope(Layer::Transmit);
        // RFC 5041 section 3 (DDP-039), RFC 5040 section 5.4 (RDMAP-261): nothing is sent after a Terminate.
        if matches!(self.phase, Phase::Terminated | Phase::Ended) {
            return Ok(SendOutcome::Idle);
        }
        self.local_left = MAX_LOCAL;
        // TCP reports the end of the connection by a separate event. The written segments become ready to
        // send when the sender is dropped.
        let Ok(mut sender) = tcp.sender(now, conn) else { return Ok(SendOutcome::Idle) };
        let mut used = 0;
        let mut usual = self.is_usual_next(cx.state);
        let mut more = usual || self.prepare(&mut cx)?;
        while more && used < budget {
            let takes_external = self.external.is_some() && sender.takes_external();
            let following = || self.following(cx.state) as usize;
            let mut segment = match profile::within(Layer::TcpOut, || sender.segment_before(following)) {
                Ok(segment) => segment,
                Err(SendError::BufferFull) => return Ok(SendOutcome::Full),
                Err(SendError::NoMbuf) => return Ok(SendOutcome::NoMbuf),
                Err(SendError::Closed) => return Ok(SendOutcome::Idle),
            };
            cx.offset = segment.offset();
            cx.framer.tally(segment.wants_checksum());
            let filled = match takes_external && self.fill_external(&mut cx, &mut segment)? {
                true => Ok(true),
                false => self.fill(&mut cx, &mut segment, usual),
            };
            usual = false;
            let written = segment.len();
            used += written;
            if let Some(checksum) = cx.framer.take_tally() {
                segment.set_checksum(checksum);
            }
            profile::within(Layer::TcpOut, || segment.push());
            cx.state.rules.set_written(cx.offset + written as u64);
            more = filled?;
        }
        // Nothing may be sent after the end.
        if !matches!(self.phase, Phase::Open)
            && let Some(ended) = self.ended()
        {
            return Ok(ended);
        }
        Ok(if more || self.local_left == 0 { SendOutcome::More } else { SendOutcome::Idle })
    }

    /// Number of payload bytes that are left of the current message, or of the next request if there is no
    /// current message.
    #[inline(never)]
    fn following(&self, state: &StreamState) -> u32 {
        match &self.current {
            Some(current) => current.message.segmenter.bytes_left(),
            None => state.consumer.next_send().map_or(0, |request| request.length),
        }
    }

    /// Fills one TCP segment with whole FPDUs. `usual` says that the next request was found to be usual.
    /// Returns whether there is more to send.
    fn fill(
        &mut self,
        cx: &mut SendContext<'_>,
        segment: &mut SegmentBuf<'_, '_>,
        mut usual: bool,
    ) -> Result<bool, Failure> {
        // RFC 5044 section 4.5 (MPA-111): the maximum ULPDU is computed from the EMSS, not from the free
        // space of the segment. RFC 5041 section 3 (DDP-027): the segment that TCP offers shows the current
        // MULPDU.
        let capacity = segment.capacity();
        if self.limit.0 != capacity || cx.framer.markers() {
            self.limit = (capacity, cx.framer.ulpdu_limit(capacity) as u32);
        }
        let (_, mut limit) = self.limit;
        let (room, used) = segment.room();
        loop {
            if !usual && self.current.is_some() {
                if !self.write_fpdu(cx, room, used, limit)? {
                    return Ok(true);
                }
            } else {
                let outcome = match usual || self.allows_usual(cx.state) {
                    true => self.write_usual(cx, room, used, limit),
                    false => FillOutcome::Other,
                };
                // `write_usual` checks whether the requests after this request are ready.
                usual = false;
                match outcome {
                    FillOutcome::Empty => return Ok(false),
                    FillOutcome::Full => return Ok(true),
                    FillOutcome::Other if !self.prepare(cx)? => return Ok(false),
                    // `Other`: `prepare` has made the next message the current message. `Enough`: further
                    // requests may follow.
                    FillOutcome::Other | FillOutcome::Enough => {}
                }
            }
            if self.external.is_some() {
                // FPDUs whose payload is not copied get separate segments.
                return Ok(true);
            }
            if cx.framer.markers() {
                limit = cx.framer.ulpdu_limit(capacity) as u32;
            }
        }
    }

    /// Fills one TCP segment with the next FPDU of the current message, whose payload is not copied. Returns
    /// `false` if [`fill`](Self::fill) has to copy the payload instead, for example because the segment is
    /// too small or only the end of the message is left. In both cases there is more to send.
    #[inline(never)]
    fn fill_external(
        &mut self,
        cx: &mut SendContext<'_>,
        segment: &mut SegmentBuf<'_, '_>,
    ) -> Result<bool, Failure> {
        let (capacity, offset) = (segment.capacity(), segment.offset());
        if capacity < EXTERNAL_MIN_EMSS {
            return Ok(false);
        }
        // RFC 5044 section 4.5 (MPA-111), RFC 5041 section 3 (DDP-027): as in `fill`.
        let limit = cx.framer.ulpdu_limit(capacity) as u32;
        let (Some(Current { message, .. }), Some(External { memory, end })) =
            (&mut self.current, &mut self.external)
        else {
            return Ok(false);
        };
        let Some(next) = message.segmenter.peek(limit) else {
            return Err(Failure::here(TerminateError::DdpLocalCatastrophic));
        };
        let next = match next {
            // The copied end of the message is a second segment. Therefore a receiver does not delay its
            // acknowledgement (RFC 9293 section 3.8.6.3), for which the request waits.
            Segment { last: true, len: EXTERNAL_MIN_BYTES.., .. } => {
                let most = message.header_len() as u32 + next.len - COPIED_END_BYTES;
                message.segmenter.peek(most).unwrap_or(next)
            }
            next => next,
        };
        let plan = cx.framer.plan(message.header_len() + next.len as usize);
        let part = memory.slice(next.offset as usize..(next.offset + next.len) as usize);
        let Some(part) = part.filter(|_| next.len >= EXTERNAL_MIN_BYTES && plan.wire_len() <= capacity)
        else {
            return Ok(false);
        };
        let posted = cx.state.next_request();
        let around = profile::within(Layer::Fetch, || {
            message.write_around(&next, posted, (cx.framer, plan), (cx.guard, cx.state.by))
        });
        let around = match around {
            Ok(around) => around,
            Err(error) => return Err(self.fetch_failure(cx.pool, error)),
        };
        if !(segment.append_slice(&around.before)
            && segment.attach(part).is_ok()
            && segment.append_slice(&around.behind))
        {
            // The segment accepts the memory: `takes_external` was checked before.
            debug_assert!(false, "external memory was refused");
            segment.clear();
            return Ok(false);
        }
        cx.framer.advance(&plan);
        *end = Some(offset + plan.wire_len() as u64);
        message.segmenter.cut(&next);
        cx.counters.tx_fpdus += 1;
        cx.state.progress += 1;
        cx.counters.tx_fetched_bytes += u64::from(next.len);
        cx.counters.tx_zero_copy_bytes += u64::from(next.len);
        debug_assert!(!next.last, "the end is copied");
        Ok(true)
    }

    /// Makes sure that there is a current message. Returns `false` if nothing can be sent now. This function
    /// and [`write_fpdu`](Self::write_fpdu) are the general path; [`write_usual`](Self::write_usual) is the
    /// fast path.
    fn prepare(&mut self, cx: &mut SendContext<'_>) -> Result<bool, Failure> {
        if matches!(self.phase, Phase::Terminated | Phase::Ended) {
            return Ok(false);
        }
        if self.start_profile_message(cx) {
            return Ok(true);
        }
        match &self.phase {
            Phase::Terminate(terminate) => {
                let bytes = terminate.to_bytes();
                self.phase = Phase::Terminating;
                self.current = Some(Current {
                    message: self.own_message(Opcode::Terminate, 1, &bytes),
                    completes: Completes::Terminate,
                });
            }
            Phase::Silent => {
                self.phase = Phase::Ended;
                return Ok(false);
            }
            // RFC 6581 sections 5 and 9.2 (MPA2-017, MPA2-086): the RTR is sent before every other FPDU.
            &Phase::Rtr(kind) => {
                self.phase = Phase::Open;
                self.current = Some(self.rtr_message(kind, cx));
            }
            Phase::Open | Phase::Terminating | Phase::Terminated | Phase::Ended => {}
        }
        // RFC 5041 section 5.3 (DDP-124): a message is sent completely before the next message begins.
        while self.current.is_none() {
            let has_response = !self.responses.is_empty();
            let started = (has_response && self.response_next && self.start_response(cx)?)
                || self.start_request(cx)?
                || (has_response && self.start_response(cx)?);
            if !started {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// If no message is being written and a message of queue 4 has to be sent before all other messages,
    /// makes the message of queue 4 the current message. Returns whether the current message is a message of
    /// queue 4.
    fn start_profile_message(&mut self, cx: &mut SendContext<'_>) -> bool {
        if self.current.is_some() || matches!(self.phase, Phase::Rtr(_)) {
            return matches!(self.current, Some(Current { completes: Completes::Profile, .. }));
        }
        // A Send contains the limit. Before any other message, a message of queue 4 has to report the limit
        // if the peer waits for it.
        let next = cx.state.next_request();
        let tells = next.map_or(!self.responses.is_empty(), |next| !matches!(next.op, SendOp::Send));
        let msns = (self.send_msn, self.request_msn);
        let Some((message, msn)) = cx.state.rules.next_message(tells, msns) else { return false };
        let (header, payload) = message.to_segment(msn);
        self.own.clear();
        self.own.extend(payload);
        let message = Message::profile(header, PAYLOAD_BYTES as u32);
        self.current = Some(Current { message, completes: Completes::Profile });
        true
    }

    /// Called when the peer has dropped the requests that it has not accepted. If the current message belongs
    /// to a dropped request, no more of it is sent.
    pub(super) fn go_back(&mut self, state: &mut StreamState, pool: &mut RequestPool, msn: u32) {
        if self.current.is_some_and(|current| current.is_of_request()) {
            self.current = None;
            self.external = None;
            state.rules.on_message_cut_off();
        }
        state.go_back(&mut pool.outstanding, msn);
    }

    /// Writes the next FPDU of the current message after the first `used` bytes of a TCP segment, with a
    /// ULPDU of at most `limit` bytes. Returns `false` if the FPDU does not fit the rest of the TCP segment.
    ///
    /// RFC 5040 sections 3.1 and 6.1 (RDMAP-052, RDMAP-298): everything that RDMAP sends is a DDP segment in
    /// an FPDU.
    #[inline]
    fn write_fpdu(
        &mut self,
        cx: &mut SendContext<'_>,
        room: &mut [u8],
        used: &mut usize,
        limit: u32,
    ) -> Result<bool, Failure> {
        let Self { current, own, answering, responses, .. } = self;
        let Some(Current { message, .. }) = current else { return Ok(false) };
        let Some(next) = message.segmenter.peek(limit) else {
            return Err(Failure::here(TerminateError::DdpLocalCatastrophic));
        };
        let plan = cx.framer.plan(message.header_len() + next.len as usize);
        let end = *used + plan.wire_len();
        let Some(out) = room.get_mut(*used..end) else { return Ok(false) };
        let fetched = profile::within(Layer::Fetch, || {
            let source = match &cx.found {
                Some(source) => source,
                None => {
                    let posted = cx.state.next_request();
                    let answering = if *answering { responses.front(&cx.pool.peer_requests) } else { None };
                    let payloads = Payloads { posted, own, answering };
                    let by = (cx.guard, cx.state.by);
                    match message.look_up(&payloads, by)? {
                        Some(source) => cx.found.insert(source),
                        None => return message.write_other(&next, &payloads, cx.framer, (plan, out), by),
                    }
                }
            };
            message.write(&next, source, cx.framer, (plan, out))
        });
        if let Err(error) = fetched {
            return Err(self.fetch_failure(cx.pool, error));
        }
        *used = end;
        // The DDP segment is written, so the message advances past this segment now.
        message.segmenter.cut(&next);
        cx.counters.tx_fpdus += 1;
        cx.state.progress += 1;
        cx.counters.tx_fetched_bytes += u64::from(next.len);
        if next.last {
            cx.found = None;
            self.finish_message(cx.state, cx.pool, cx.offset + *used as u64);
        }
        Ok(true)
    }

    /// Called when the last segment of the current message is written to TCP. The segment ends at the stream
    /// offset `end`.
    ///
    /// RFC 5040 section 5.5 (RDMAP-286): a Send or Write completes now at the earliest.
    #[inline]
    fn finish_message(&mut self, state: &mut StreamState, pool: &mut RequestPool, end: u64) {
        let Some(current) = self.current.take() else { return };
        match current.completes {
            Completes::Nothing => self.response_next = true,
            Completes::Request => {
                self.response_next = true;
                let external = self.external.take().and_then(|external| external.end);
                match if state.rules.complete_by_acknowledgement() { Some(end) } else { external } {
                    None => state.complete_next(),
                    Some(offset) => {
                        state.complete_next_acknowledged(offset, self.send_msn.wrapping_sub(1));
                    }
                }
            }
            Completes::Write { immediate, data } => {
                let msn = self.next_send_msn();
                let message = self.own_message(immediate, msn, &data);
                self.current = Some(Current { message, completes: Completes::Request });
            }
            Completes::Joined { send, length } => {
                let limit = state.rules.take_limit();
                let message = self.send(send, limit, length);
                self.current = Some(Current { message, completes: Completes::Request });
            }
            Completes::Response => {
                self.response_next = false;
                self.answering = false;
                if let Some(request) = self.responses.take(&mut pool.peer_requests) {
                    self.answered.count(&request.op);
                }
            }
            Completes::Terminate => self.phase = Phase::Terminated,
            Completes::Profile => state.rules.on_message_sent(end),
        }
    }

    fn fetch_failure(&mut self, pool: &RequestPool, error: FetchError) -> Failure {
        let answering = if self.answering { self.responses.front(&pool.peer_requests) } else { None };
        match (error, &self.current, answering) {
            (
                FetchError::OwnMemory,
                Some(Current {
                    completes: Completes::Request | Completes::Write { .. } | Completes::Joined { .. },
                    ..
                }),
                _,
            ) => {
                self.fault = Some(WcStatus::LocalProtectionError);
                Failure::here(TerminateError::LocalCatastrophic)
            }
            (
                FetchError::PeerMemory(fault),
                Some(Current { message, completes: Completes::Response }),
                Some(request),
            ) => {
                let error = TerminateError::of_read_fault(fault);
                Failure::User(Box::new(request.terminate(error, message.segmenter.cut_bytes())))
            }
            _ => Failure::here(TerminateError::LocalCatastrophic),
        }
    }

    /// Returns an untagged message with these bytes.
    fn own_message(&mut self, opcode: Opcode, msn: u32, bytes: &[u8]) -> Message {
        self.own.clear();
        self.own.extend(bytes.iter().copied());
        Message::untagged(opcode, 0, msn, bytes.len() as u32, PayloadSource::Own)
    }

    /// Queues a checked request of the peer.
    ///
    /// RFC 5040 section 5.2.1 (RDMAP-214): requests are processed in the order in which they arrive.
    pub(super) fn respond(&mut self, pool: &mut RequestPool, request: PeerRequest) {
        self.responses.push(&mut pool.peer_requests, request);
    }

    /// Checks the queue of the peer's requests; for tests. Returns their number.
    pub(super) fn check(&self, pool: &RequestPool) -> Check<usize> {
        self.responses.check(&pool.peer_requests)
    }

    /// Removes and returns the requests of the peer that were answered completely since the last call; `None`
    /// if there were none.
    #[inline]
    pub(super) fn take_answered(&mut self) -> Option<ByKind> {
        (!self.answered.is_empty()).then(|| std::mem::take(&mut self.answered))
    }

    /// Makes a Terminate the last message, after the messages of queue 4 about the peer's own messages.
    pub(super) fn terminate(&mut self, terminate: &Terminate) {
        self.phase = Phase::Terminate(Box::new(terminate.clone()));
    }

    /// Makes sure that nothing is sent after the messages of queue 4 about the peer's own messages.
    pub(super) fn end_silently(&mut self) {
        self.phase = Phase::Silent;
    }

    /// Whether nothing is being sent or waits to be sent, not counting the send queue and queue 4.
    pub(super) fn is_idle(&self) -> bool {
        self.current.is_none()
            && self.responses.is_empty()
            && matches!(self.phase, Phase::Open | Phase::Terminated | Phase::Ended)
    }

    /// Returns the result for the connection if nothing more may be sent.
    #[cold]
    fn ended(&self) -> Option<SendOutcome> {
        match self.phase {
            Phase::Terminated => Some(SendOutcome::Terminated),
            Phase::Ended => Some(SendOutcome::Ended),
            Phase::Open | Phase::Rtr(_) | Phase::Terminate(_) | Phase::Terminating | Phase::Silent => None,
        }
    }

    /// Drops what was to be sent, except a Terminate that has not begun and a message of queue 4 that has
    /// begun. If a request's message was being written, the request counts as started.
    pub(super) fn abandon(&mut self, pool: &mut RequestPool, state: &mut StreamState) {
        self.responses.clear(&mut pool.peer_requests);
        self.external = None;
        if matches!(self.phase, Phase::Rtr(_)) {
            self.phase = Phase::Open;
        }
        self.answering = false;
        let Some(current) = self.current.take() else { return };
        match current.completes {
            Completes::Request | Completes::Write { .. } | Completes::Joined { .. } => {
                state.abandon_next(self.send_msn.wrapping_sub(1), self.fault.take());
            }
            Completes::Profile => self.current = Some(current),
            Completes::Nothing | Completes::Response | Completes::Terminate => {}
        }
    }
}
