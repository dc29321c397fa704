//! One RDMA stream: RDMAP on DDP on MPA for one queue pair (RFC 5040 sections 5 to 7).
//!
//! | file | what |
//! |---|---|
//! | `inbound/` | places ULPDUs into memory, completes receives, handles requests of the peer |
//! | `outbound/` | chooses the next message, writes FPDUs into TCP segments, completes sends |
//! | `state.rs` | `StreamState`: the state that both directions share, with the queue pair |
//! | `outstanding.rs` | our requests between their start and their completion |
//! | `peer_request.rs` | the peer's Reads and atomics, until they are answered |
//! | `request_pool.rs`, `slot_pool.rs` | the queues of our and the peers' requests, for all streams of an engine |
//! | `message.rs` | a message that is being sent: the headers of its segments, and the source of its payload |
//! | `sent_to.rs` | the targets of a request, by which a Terminate names the request |
//! | `unsent.rs` | requests that send nothing |
//! | `ib_profile/` | InfiniBand's semantics, where both peers have agreed on them |
//! | `failure.rs` | why a stream ends |
//! | `counters.rs` | counters of all streams |
//!
//! A stream does not handle TCP's handshake, MPA's startup, or the end of a connection. The engine's
//! connection drives the stream: the connection passes the ULPDUs that MPA has found, and receives a
//! [`Failure`] when the stream ends.

use std::sync::Arc;

use dp::invariant::{Check, ensure};

use crate::memory::{Accessor, EpochGuard};
use crate::mpa::{Framer, Negotiated};
use crate::queues::{Awaited, QpShared, QpState, TerminateReport, WcStatus};
use crate::rdmap::Terminate;

mod counters;
mod failure;
pub(crate) mod ib_profile;
mod inbound;
mod message;
mod outbound;
mod outstanding;
mod peer_request;
mod request_pool;
mod sent_to;
mod slot_pool;
mod state;
#[cfg(test)]
mod test_stream;
mod unsent;

pub(crate) use counters::StreamCounters;
pub(crate) use failure::{Ending, Failure};
pub(crate) use inbound::Delivery;
pub(crate) use outbound::SendOutcome;
pub(crate) use request_pool::{RequestPool, Waiting};

use ib_profile::{News, Rules};
use inbound::Inbound;
use outbound::Outbound;
use state::StreamState;

/// The part of the engine's state that a stream uses during a call.
pub(crate) struct StreamContext<'a> {
    pub(crate) guard: &'a EpochGuard<'a>,
    pub(crate) counters: &'a mut StreamCounters,
    pub(crate) pool: &'a mut RequestPool,
}

/// One RDMA stream. The owner has to call [`end`](Self::end) or [`end_unfinished`](Self::end_unfinished)
/// instead of dropping the stream.
pub(crate) struct Stream {
    state: StreamState,
    framer: Framer,
    outbound: Outbound,
    inbound: Inbound,
    /// Whether the stream may send. A responder sends nothing before the initiator's first FPDU (RFC 5044
    /// section 7.1.2).
    may_send: bool,
}

impl Stream {
    /// Creates a stream, and reserves slots for its depths in `pool`. `ib_semantics` says whether both peers
    /// have agreed on InfiniBand's semantics. If so, both queue pairs have the same type.
    pub(crate) fn new(
        qp: Arc<QpShared>,
        by: Accessor,
        negotiated: &Negotiated,
        (may_send, ib_semantics): (bool, bool),
        pool: &mut RequestPool,
    ) -> Self {
        let Negotiated { tx_markers, rx_markers, crc, ird, ord, .. } = *negotiated;
        let rtr = negotiated.rtr;
        let rules = match qp.config.is_unreliable() {
            true => Rules::unreliable(),
            false => Rules::new(ib_semantics),
        };
        // With markers, FPDUs can be found beyond missing bytes. With a shared receive queue, the buffer of a
        // later message is not known in advance.
        let binds_ahead = rx_markers && !qp.receives.are_shared() && rules.bind_ahead();
        let state = StreamState::new(qp, by, ord, rules);
        let stream = Self {
            framer: Framer::new(tx_markers, crc),
            outbound: Outbound::new(rtr),
            inbound: Inbound::new(ird, state.extensions, rtr, binds_ahead),
            state,
            may_send,
        };
        let (inbound, outstanding) = stream.reserved();
        pool.peer_requests.reserve(inbound);
        pool.outstanding.reserve(outstanding);
        stream
    }

    /// Returns the numbers of slots that the stream reserves in [`RequestPool`] until it ends: for the peer's
    /// requests, and for ours.
    fn reserved(&self) -> (usize, usize) {
        let inbound = self.inbound.request_buffers(self.state.extensions);
        // A Read that is used as the ready-to-receive message needs a slot even if ORD is 0.
        (inbound as usize, self.state.ord.max(1) as usize)
    }

    /// Whether requests of either peer complete when the other side acknowledges their bytes. If so, a
    /// graceful close may have to wait for the peer although no response to a Read or atomic is missing.
    #[inline]
    pub(crate) fn completes_by_acknowledgement(&self) -> bool {
        self.state.rules.complete_by_acknowledgement()
    }

    /// Whether the oldest request fails as out of retries when the peer vanishes.
    pub(crate) fn fails_when_peer_vanishes(&self) -> bool {
        self.state.rules.fail_when_peer_vanishes()
    }

    /// Whether messages may be lost, as between queue pairs of type UC.
    pub(crate) fn is_unreliable(&self) -> bool {
        self.state.rules.drop_messages()
    }

    pub(crate) fn qp(&self) -> &Arc<QpShared> {
        &self.state.qp
    }

    /// Whether the stream may send. A responder may send after the peer's first FPDU has arrived.
    pub(crate) fn may_send(&self) -> bool {
        self.may_send
    }

    /// Returns the [`Delivery`] that accepts ULPDUs of the peer.
    pub(crate) fn delivery<'a>(&'a mut self, context: StreamContext<'a>) -> Delivery<'a> {
        let StreamContext { guard, counters, pool } = context;
        let Self { state, inbound, outbound, may_send, .. } = self;
        Delivery { state, inbound, outbound, may_send, guard, counters, pool }
    }

    /// Hands FPDUs to TCP, and returns why the call ended ([`SendOutcome`]).
    ///
    /// Never inlined, since inlining into the caller would leave fewer registers for the code of each FPDU.
    #[inline(never)]
    pub(crate) fn give_to_tcp(
        &mut self,
        tcp: &mut tcp_lite::Stack,
        conn: tcp_lite::ConnId,
        now: tcp_lite::Instant,
        budget: usize,
        context: StreamContext<'_>,
    ) -> Result<SendOutcome, Failure> {
        let StreamContext { guard, counters, pool } = context;
        let Self { state, framer, outbound, inbound, may_send, .. } = self;
        // RFC 5044 section 7.1.2 (MPA-193): a responder sends no FPDU before the peer's first FPDU.
        if !*may_send {
            return Ok(SendOutcome::Idle);
        }
        state.rules.set_limit(|| inbound.limit(&state.consumer));
        let context = outbound::SendContext { state, framer, guard, counters, pool, found: None, offset: 0 };
        let outcome = outbound.run(tcp, conn, now, context, budget);
        // The buffers of the answered requests are posted in time for the peer's next request, since TCP has
        // not sent the end of the responses yet.
        if let Some(answered) = outbound.take_answered() {
            inbound.repost_requests(answered);
        }
        outcome
    }

    /// Whether a call of [`give_to_tcp`](Self::give_to_tcp) may have something to send.
    pub(crate) fn wants_to_send(&self) -> bool {
        let state = &self.state;
        self.may_send && (!self.outbound.is_idle() || state.has_requests() || state.rules.have_messages())
    }

    /// Whether FIN may follow: the stream has nothing left to send, and waits for nothing.
    pub(crate) fn is_drained(&self) -> bool {
        let may_be_taken = self.state.rules.is_peer_there();
        let is_sent = !may_be_taken || !self.state.has_requests() || self.is_held();
        let awaits_peer = self.awaits_answers() || (may_be_taken && self.state.awaits_acknowledgement());
        !awaits_peer && is_sent && self.outbound.is_idle() && !self.state.rules.have_messages()
    }

    /// Whether the requests of the send queue wait until the user resumes the queue.
    fn is_held(&self) -> bool {
        self.state.qp.sends.is_held() && self.state.unsent == 0
    }

    /// Called when the peer's TCP has acknowledged the bytes below the stream offset `acknowledged`. The
    /// requests that wait for this acknowledgement complete only when
    /// [`complete_acknowledged`](Self::complete_acknowledged) is called: a Terminate in the same segment may
    /// name one of these requests.
    pub(crate) fn on_acknowledged(&mut self, acknowledged: u64) {
        self.state.set_acknowledged(acknowledged);
    }

    /// Completes the requests that waited only for TCP's acknowledgements, which have arrived.
    pub(crate) fn complete_acknowledged(&mut self) {
        self.state.complete_acknowledged();
    }

    /// Whether any of our Reads or atomics wait for their responses.
    pub(crate) fn awaits_answers(&self) -> bool {
        !self.state.outstanding.is_empty()
    }

    /// Returns a counter that changes with each FPDU sent, and with each received segment of a response to a
    /// Read or atomic of ours.
    pub(crate) fn progress(&self) -> u64 {
        self.state.progress
    }

    // ---- InfiniBand's semantics ----

    /// Called when the peer has sent FIN, after which the peer accepts no more requests.
    pub(crate) fn on_peer_closed(&mut self) {
        self.state.rules.on_peer_closed();
    }

    /// Returns the changes that the connection has to act on.
    #[inline]
    pub(crate) fn take_news(&mut self) -> Option<News> {
        self.state.rules.take_news()
    }

    /// Whether a message of the peer was accepted for which no receive request was promised.
    #[inline]
    pub(crate) fn owes_limit(&self) -> bool {
        self.state.rules.owe_limit()
    }

    /// Makes the next [`give_to_tcp`](Self::give_to_tcp) send the limit to the peer, unless a Send contains
    /// the limit before that. Returns whether the limit has to be sent and this was not requested before.
    pub(crate) fn tell_limit(&mut self) -> bool {
        self.state.rules.tell_limit()
    }

    /// Called when the peer has acknowledged the bytes below `offset`. Returns whether acknowledgements need
    /// not be withheld any more, since the peer knows which bytes are not accepted.
    pub(crate) fn end_withholding(&mut self, offset: u64) -> bool {
        self.state.rules.end_withholding(offset)
    }

    /// Called when the stream fails: no message after the peer's stream offset `position` is accepted.
    /// Returns whether the peer will be notified of this. If so, the bytes after `position` must not be
    /// acknowledged until the peer knows.
    pub(crate) fn end_taking(&mut self, position: u64) -> bool {
        self.state.rules.end(position)
    }

    /// If acknowledgements are withheld, returns a stream offset. The acknowledgements are withheld until the
    /// peer has acknowledged the bytes below this offset ([`end_withholding`](Self::end_withholding)).
    pub(crate) fn withheld_until(&self) -> Option<u64> {
        self.state.rules.withheld_until()
    }

    /// Whether a message of the peer waits for a receive request.
    pub(crate) fn awaits_recv(&self) -> bool {
        self.state.rules.await_recv()
    }

    /// Makes the queue pair notify the engine when a receive request is posted
    /// ([`Ask::Receive`](crate::queues::Ask::Receive)). Called while a message of the peer waits for a
    /// receive request.
    pub(crate) fn await_recv(&self) {
        self.state.qp.await_recv(&self.state.consumer);
    }

    /// If a receive request is available now, binds it to the waiting message, and notifies the peer. Returns
    /// whether there was a receive request.
    pub(crate) fn bind_awaited(&mut self) -> bool {
        let is_bound = inbound::bind(&mut self.state, &mut self.inbound);
        if is_bound {
            self.state.rules.on_recv();
        }
        is_bound
    }

    /// Stops waiting for a receive request. Returns the failure of the message that has waited.
    pub(crate) fn stop_waiting(&mut self) -> Option<Failure> {
        self.state.rules.give_up_waiting().map(Failure::Here)
    }

    /// Whether our requests wait until the peer has a receive request.
    pub(crate) fn awaits_peer(&self) -> bool {
        self.state.rules.await_peer()
    }

    /// Fails the request of the oldest message that the peer has not confirmed, since the peer had no receive
    /// request for this message.
    pub(crate) fn fail_rnr(&mut self) {
        self.state.fail_rnr();
    }

    /// Checks the invariants; for tests. Returns the number of the stream's waiting requests.
    pub(crate) fn check(&self, pool: &RequestPool) -> Check<Waiting> {
        let bound = self.state.consumer.taken_recvs();
        self.inbound.check(self.state.extensions, bound)?;
        let taken = self.state.qp.receives.taken().1;
        ensure!(taken == bound as u64, "{taken} receive requests taken, {bound} bound");
        let waiting = Waiting {
            peer_requests: self.outbound.check(pool)?,
            outstanding: self.state.check(&pool.outstanding)?,
        };
        let (inbound, outstanding) = self.reserved();
        ensure!(
            waiting.peer_requests <= inbound,
            "{} requests of the peer's wait, {inbound} may",
            waiting.peer_requests
        );
        ensure!(
            waiting.outstanding <= outstanding,
            "{} of our requests wait, {outstanding} may",
            waiting.outstanding
        );
        Ok(waiting)
    }

    /// Begins a graceful close, in which the posted requests are still sent.
    pub(crate) fn begin_close(&self) {
        self.state.qp.state.set(QpState::Closing);
    }

    /// Called when TCP has ended, without an error of the stream. Puts the queue pair into the state of a
    /// lost connection.
    pub(crate) fn lose(&self) {
        self.state.qp.state.lose(&self.state.qp.signals);
    }

    /// Called when the stream has failed. Reports the failure to the user, completes all requests, and
    /// prepares the Terminate if the peer has to get one. Returns the Terminate for the report to the
    /// application, and how the connection ends.
    pub(crate) fn fail(
        &mut self,
        pool: &mut RequestPool,
        failure: &Failure,
    ) -> (Option<Arc<TerminateReport>>, Ending) {
        // On InfiniBand, a request that fails here sends nothing, and the peer's queue pair stays usable. No
        // error is reported to a queue pair of type UC.
        let is_silent = matches!(failure, Failure::Here(_) | Failure::User(_))
            && (self.is_unreliable() || self.state.has_failed_request() && self.state.qp.outlives_peer());
        let (error, report) = (failure.stream_error(), failure.report(self.may_send && !is_silent));
        // RFC 5041 sections 6.2.2, 7.1 and 8.3 (DDP-156, DDP-157, DDP-190, DDP-222), RFC 5040 sections 5.4
        // and 7.1 (RDMAP-258, RDMAP-323): the user receives an event and the error, or the peer's Terminate.
        let qp = &self.state.qp;
        let outcome = qp.state.fail(&qp.signals, failure.origin(), error, report.clone());
        let terminate = match failure {
            Failure::Peer(terminate) => Some(&**terminate),
            _ => None,
        };
        let first = match failure {
            Failure::Peer(terminate) if self.state.is_invalid_request(terminate) => {
                WcStatus::RemoteInvalidRequest
            }
            _ => outcome.oldest,
        };
        self.complete_started(pool, first, terminate);
        self.flush();
        // RFC 5041 sections 6.2 and 6.2.2 (DDP-144, DDP-161): DDP only returns its error. The stream ends
        // here because its ULP, RDMAP, has decided so.
        let ending = match failure {
            // RFC 7306 section 8.1 (EXT-146): the peer receives a Terminate if our message could not be
            // generated, and also if the peer's message is invalid. RFC 5040 section 7.1 (RDMAP-324): an
            // error that is found here is reported to the peer.
            Failure::Here(_) | Failure::User(_)
                if is_silent && self.may_send && self.state.rules.tell_end() =>
            {
                self.outbound.end_silently();
                Ending::Terminating
            }
            Failure::Here(_) | Failure::User(_) if is_silent => Ending::Silent,
            Failure::Here(terminate) | Failure::User(terminate) if self.may_send => {
                self.outbound.terminate(terminate);
                Ending::Terminating
            }
            Failure::Peer(_) | Failure::Unreadable => Ending::Terminated,
            Failure::Here(_) | Failure::User(_) | Failure::Lost(_) => Ending::Lost,
        };
        (report, ending)
    }

    /// Completes all started requests, oldest first: finished requests with success, the other requests in
    /// error. The queue pair flushes the requests that are still queued. A request that is known to be the
    /// cause has its own status. Without such a request, `first` is the status of the request that the peer's
    /// Terminate names, or else of the oldest unfinished request. With InfiniBand's semantics, no request
    /// succeeds after a request in error. So a request is also flushed if the peer has accepted it while an
    /// older Read or atomic waited for its response. Returns whether any request completed in error.
    fn complete_started(
        &mut self,
        pool: &mut RequestPool,
        mut first: WcStatus,
        terminate: Option<&Terminate>,
    ) -> bool {
        let Self { state, outbound, inbound, .. } = self;
        state.give_up_responses(&mut pool.outstanding);
        outbound.abandon(pool, state);
        let refused = terminate.and_then(|terminate| state.refused(terminate));
        let flushes_behind_failure = state.rules.flush_behind_failure();
        let succeeds_when_sent = state.rules.drop_messages();
        let acknowledged = state.pending.iter().take_while(|pending| state.is_done_with(pending)).count();
        state.unsent = 0;
        state.consumer.release_sends(state.pending.len());
        let StreamState { qp, consumer, pending, .. } = state;
        let has_recvs = consumer.taken_recvs() > 0;
        let (sends, signals) = (&qp.sends, &qp.signals);
        let cause = qp.state.cause();
        let mut failed = false;
        for (place, pending) in pending.drain(..).enumerate() {
            let is_done = match (pending.awaits, refused) {
                (None, _) => true,
                // The peer accepts messages in order, so it has accepted all messages before the refused
                // message.
                (Some(Awaited::Acknowledgement(_)), Some(refused)) => place < refused,
                // A message of the type UC succeeds once it is sent.
                (Some(Awaited::Acknowledgement(_)), None) if succeeds_when_sent => terminate.is_none(),
                (Some(Awaited::Acknowledgement(_)), None) => terminate.is_none() && place < acknowledged,
                _ => false,
            };
            if is_done && !(flushes_behind_failure && failed) {
                let completion = sends.succeeded(pending.wr_id, pending.opcode, pending.byte_len);
                consumer.complete_send(sends, signals, pending.signaled, completion);
                continue;
            }
            let status = match pending.fault {
                Some(fault) => fault,
                None if refused.is_none_or(|refused| place == refused) => {
                    std::mem::replace(&mut first, WcStatus::WrFlushError)
                }
                None => WcStatus::WrFlushError,
            };
            let completion = sends.failed(pending.wr_id, pending.opcode, status, cause);
            consumer.complete_send(sends, signals, true, completion);
            failed = true;
        }
        // No started request has failed. The next request of the send queue would have found no peer, so this
        // request fails instead.
        if first == WcStatus::RetryExceeded && consumer.fail_next_send(sends, signals, first, cause) {
            failed = true;
        }
        inbound.abandon();
        consumer.abandon_recvs(&qp.receives, cause);
        qp.receives.stop_waiting();
        failed || has_recvs
    }

    /// Completes the queued requests as flushed.
    pub(crate) fn flush(&mut self) {
        let StreamState { qp, consumer, .. } = &mut self.state;
        consumer.flush(&qp.sends, &qp.receives, &qp.signals, qp.state.cause());
        qp.report();
    }

    /// If no send request is open, and the user has requested the event for this, reports the event.
    pub(crate) fn report_if_drained(&self) {
        let qp = &self.state.qp;
        qp.sends.report_if_drained(&qp.signals);
    }

    /// Whether the requests that the peer has not accepted may stay in the send queue after the end
    /// ([`end_unfinished`](Self::end_unfinished)). They may only if the user has set a retry time. If a
    /// message from the peer has arrived only in part, the queue pair ends, and the requests may not stay. A
    /// queue pair of type UC drops both, the requests and the message.
    pub(crate) fn may_retry(&self) -> bool {
        self.is_unreliable()
            || !self.state.qp.attributes.retry_time().is_zero() && self.state.consumer.taken_recvs() == 0
    }

    /// As [`end`](Self::end), but requests that the peer has not accepted are put back into the send queue,
    /// and are not sent.
    pub(crate) fn end_unfinished(mut self, pool: &mut RequestPool) {
        let Self { state, outbound, inbound, .. } = &mut self;
        state.complete_acknowledged();
        state.give_up_responses(&mut pool.outstanding);
        outbound.abandon(pool, state);
        state.qp.attributes.set_retries(!state.qp.config.is_unreliable());
        state.consumer.return_sends();
        state.consumer.return_recvs(&state.qp.receives, state.qp.state.cause());
        inbound.abandon();
        state.qp.receives.stop_waiting();
        self.leave(pool);
    }

    /// Completes the requests that the stream has taken from the queue pair, releases the stream's slots in
    /// `pool`, and returns the other requests to the queue pair. The oldest request in error has the status
    /// `first`. Returns whether any request completed in error.
    pub(crate) fn end(mut self, pool: &mut RequestPool, first: WcStatus) -> bool {
        let failed = self.complete_started(pool, first, None);
        self.leave(pool);
        failed
    }

    /// Releases the slots in `pool`, and returns the requests to the queue pair.
    fn leave(self, pool: &mut RequestPool) {
        let (inbound, outstanding) = self.reserved();
        pool.peer_requests.release(inbound);
        pool.outstanding.release(outstanding);
        let StreamState { qp, consumer, pending, .. } = self.state;
        qp.consumer.put_back(consumer, pending);
    }
}
