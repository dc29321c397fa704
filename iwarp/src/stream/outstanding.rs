//! Our user's requests between their start and their completion, and the responses that they wait for.

use std::collections::VecDeque;

use arrayvec::ArrayVec;
use dp::invariant::{Check, ensure};

use crate::ddp::UntaggedQueue;
use crate::queues::{
    Awaited, Pending, SendEntry, SendFlags, SendOp, SentTo, Sge, Signaled, WcOpcode, WcStatus, send_opcode,
};
use crate::rdmap::{ReadSink, Terminate, TerminateError};

use super::sent_to::{Refused, is_of};
use super::slot_pool::{PoolQueue, SlotPool};
use super::state::StreamState;

/// Maximum number of requests that complete together. With a higher limit, the first request would wait
/// longer, and the cost of a request would hardly fall.
pub(super) const TOGETHER: usize = 16;

/// Returns the record of a request that starts.
#[inline]
pub(super) fn pending_of(request: &SendEntry) -> Pending {
    Pending {
        wr_id: request.wr_id,
        opcode: send_opcode(&request.op),
        signaled: request.flags.contains(SendFlags::SIGNALED),
        byte_len: 0,
        awaits: Some(Awaited::LastSegment),
        sent_to: SentTo::default(),
        fault: None,
    }
}

/// Returns the record of a request that is sent, and that completes with the [`Awaited::Acknowledgement`] of
/// `offset`.
#[inline]
pub(super) fn acknowledged_of(request: &SendEntry, offset: u64, send_msn: u32) -> Pending {
    Pending {
        awaits: Some(Awaited::Acknowledgement(offset)),
        sent_to: SentTo::of(request, send_msn),
        ..pending_of(request)
    }
}

/// One of our requests that waits for its response.
pub(super) enum Outstanding {
    /// A Read of the peer's memory, from address `from` on.
    Read { sink: ReadSink, part: ReadPart, from: u64 },
    /// An atomic on the word of the peer's at address `word`. `sink` receives the previous value of the word.
    Atomic { id: u32, sink: Sge, word: u64 },
}

impl Outstanding {
    /// Whether the response completes a request.
    fn completes(&self) -> bool {
        matches!(self, Self::Read { part: ReadPart::Last, .. } | Self::Atomic { .. })
    }

    /// Whether the request uses some of the `length` bytes of the peer's memory at address `at`. The keys are
    /// not compared, since several keys may name the same bytes.
    fn uses(&self, at: u64, length: u32) -> bool {
        let (from, bytes) = match *self {
            Self::Read { part: ReadPart::Rtr, .. } => return false,
            Self::Read { ref sink, from, .. } => (from, u64::from(sink.size())),
            Self::Atomic { word, .. } => (word, 8),
        };
        // A distance below a length also covers addresses that wrap.
        from.wrapping_sub(at) < u64::from(length) && bytes > 0 || at.wrapping_sub(from) < bytes && length > 0
    }
}

/// The part of a request that a Read Request covers. A Read Request has one sink, so a request with several
/// scatter/gather elements needs one Read Request for each element that has bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadPart {
    /// No part: the Read Request is the ready-to-receive message, which no user posted.
    Rtr,
    /// A part before the last part.
    Earlier,
    /// The last part, or the whole request. The response completes the request.
    Last,
}

/// Removes and returns the oldest value. If the queue is empty after that, the queue starts again at the
/// front of its buffer. So a short queue always uses the same cache lines, even if its capacity is large.
pub(super) fn take_front<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let oldest = queue.pop_front();
    if queue.is_empty() {
        queue.clear();
    }
    oldest
}

/// Whether a request writes to memory of the peer that one of the outstanding requests uses.
#[cold]
fn changes_awaited(outstanding: &PoolQueue, slots: &SlotPool<Outstanding>, request: &SendEntry) -> bool {
    let (SendOp::Write { remote } | SendOp::WriteImmediate { remote, .. }) = request.op else { return false };
    outstanding.iter(slots).any(|awaited| awaited.uses(remote.addr, request.length))
}

impl StreamState {
    /// Whether `request` has to wait for the responses to our Reads and atomics. On InfiniBand, a responder
    /// executes requests in order, so a Write never changes the bytes that an earlier Read or atomic of the
    /// same queue pair returns. In iWARP, a response may be generated after a later Write was placed.
    #[inline]
    pub(super) fn has_to_wait(&self, slots: &SlotPool<Outstanding>, request: &SendEntry) -> bool {
        !self.outstanding.is_empty()
            && self.rules.let_reads_go_first()
            && changes_awaited(&self.outstanding, slots, request)
    }

    /// Returns the record of the next request, if the request was started before.
    fn started(&mut self) -> Option<&mut Pending> {
        let at = self.pending.len() - self.unsent;
        self.pending.get_mut(at)
    }

    /// Starts the next request, and records the event that it waits for.
    fn start(&mut self, pending: Pending) {
        if let Some(started) = self.started() {
            *started = pending;
        } else {
            self.consumer.start_send();
            self.pending.push_back(pending);
            self.unsent += 1;
        }
    }

    /// Called when the next request, which is started, has nothing left to send.
    fn finish(&mut self) {
        self.unsent -= 1;
    }

    /// Called when the last segment of the next request is written to TCP, or when the request sends nothing
    /// and was executed. The request completes as soon as all earlier requests have completed.
    ///
    /// RFC 5040 section 5.5 (RDMAP-287): requests complete in post order.
    #[inline]
    pub(super) fn complete_next(&mut self) {
        let Some(request) = self.next_request() else { return };
        let pending = Pending { awaits: None, ..pending_of(request) };
        if !self.pending.is_empty() {
            self.start(pending);
            return self.finish();
        }
        self.consumer.remove_send();
        let completion = self.qp.sends.succeeded(pending.wr_id, pending.opcode, 0);
        self.consumer.complete_send(&self.qp.sends, &self.qp.signals, pending.signaled, completion);
    }

    /// As [`complete_next`](Self::complete_next), but the request completes only after the bytes below
    /// `offset` are acknowledged as well. `send_msn` is the MSN of its last message to queue 0, if there is
    /// such a message.
    pub(super) fn complete_next_acknowledged(&mut self, offset: u64, send_msn: u32) {
        if offset <= self.acknowledged() && !self.rules.complete_by_acknowledgement() {
            // The bytes below `offset` were already acknowledged while the copied end of the message still
            // waited to be sent.
            return self.complete_next();
        }
        let Some(request) = self.next_request() else { return };
        let pending = acknowledged_of(request, offset, send_msn);
        self.start(pending);
        self.finish();
    }

    /// Returns the stream offset below which the peer has accepted all messages. The result is at most the
    /// offset up to which the peer's TCP has acknowledged bytes.
    pub(super) fn acknowledged(&self) -> u64 {
        self.rules.taken(self.acknowledged)
    }

    /// Records that the peer's TCP has acknowledged the bytes below this stream offset.
    pub(super) fn set_acknowledged(&mut self, offset: u64) {
        self.acknowledged = self.acknowledged.max(offset);
    }

    /// Completes all requests that may complete now. Called after more bytes are acknowledged, or more
    /// receive requests are promised.
    pub(super) fn complete_acknowledged(&mut self) {
        let offset = self.acknowledged();
        let mut progress = false;
        for pending in &mut self.pending {
            match pending.awaits {
                Some(Awaited::Acknowledgement(end))
                    if offset < end || !self.rules.have_recv(&pending.sent_to) =>
                {
                    break;
                }
                Some(Awaited::Acknowledgement(_)) => {
                    pending.awaits = None;
                    progress = true;
                }
                _ => {}
            }
        }
        if progress {
            self.rules.note_progress();
        }
        self.complete_done();
    }

    /// Whether requests wait for an acknowledgement.
    pub(super) fn awaits_acknowledgement(&self) -> bool {
        self.pending.iter().any(|pending| !self.is_acknowledged(pending) && pending.is_sent())
    }

    /// Whether a request no longer waits for an acknowledgement: it waits for no event, or for another event.
    pub(super) fn is_done_with(&self, pending: &Pending) -> bool {
        !pending.is_sent() || self.is_acknowledged(pending)
    }

    /// Whether the acknowledgement that a request waits for has arrived.
    pub(super) fn is_acknowledged(&self, pending: &Pending) -> bool {
        let offset = self.acknowledged();
        matches!(pending.awaits, Some(Awaited::Acknowledgement(end)) if end <= offset)
            && self.rules.have_recv(&pending.sent_to)
    }

    /// Called when the peer has dropped the request with this MSN on queue 0, and all later requests. The
    /// dropped requests are sent again when the peer has a receive request. Requests that send nothing have
    /// been executed, and are not executed again.
    #[cold]
    pub(super) fn go_back(&mut self, slots: &mut SlotPool<Outstanding>, msn: u32) {
        let is_dropped = |pending: &Pending| pending.is_sent() && pending.sent_to.has_send(msn);
        let first = self.pending.iter().position(is_dropped);
        let first = first.unwrap_or_else(|| self.pending.len() - self.unsent);
        let answered = |pending: &&Pending| pending.awaits == Some(Awaited::Response);
        let kept = self.pending.iter().take(first).filter(answered).count();
        for pending in self.pending.range_mut(first..) {
            if pending.awaits.is_some() {
                pending.awaits = Some(Awaited::LastSegment);
            }
        }
        self.unsent = self.pending.len() - first;
        self.next_element = 0;
        let (mut requests, mut atomics) = (0, 0);
        self.outstanding.keep_while(
            slots,
            |response| {
                let is_rtr = matches!(response, Outstanding::Read { part: ReadPart::Rtr, .. });
                let keeps = requests < kept || is_rtr;
                requests += usize::from(response.completes());
                keeps
            },
            |response| atomics += u32::from(matches!(response, Outstanding::Atomic { .. })),
        );
        self.atomic_responses.withdraw(atomics);
    }

    /// Skips the next request if it sends nothing and was executed before. Returns whether the request was
    /// skipped.
    pub(super) fn skip_done(&mut self) -> bool {
        let is_done = self.unsent > 0 && self.started().is_some_and(|started| started.awaits.is_none());
        if is_done {
            self.finish();
        }
        is_done
    }

    /// Fails the oldest request that waits for its last segment or for an acknowledgement, with
    /// `RnrRetryExceeded`: this request is the cause of the stream's end. If no request waits for these, the
    /// next request is the cause.
    pub(super) fn fail_rnr(&mut self) {
        let waits = |pending: &&mut Pending| {
            matches!(pending.awaits, Some(Awaited::Acknowledgement(_) | Awaited::LastSegment))
        };
        match self.pending.iter_mut().find(waits) {
            Some(pending) => pending.fault = Some(WcStatus::RnrRetryExceeded),
            None => self.fail_next(WcStatus::RnrRetryExceeded),
        }
    }

    /// Records that the next request is the cause of the stream's end.
    #[cold]
    pub(super) fn fail_next(&mut self, status: WcStatus) {
        if let Some(request) = self.next_request() {
            let pending = Pending { fault: Some(status), ..pending_of(request) };
            self.start(pending);
            self.finish();
        }
    }

    /// Called when the next request is started but not sent completely, and no more of it will be sent.
    /// Records the request as started, with `fault` as the status of its completion if the request is the
    /// cause of the stream's end.
    pub(super) fn abandon_next(&mut self, send_msn: u32, fault: Option<WcStatus>) {
        if let Some(request) = self.next_request() {
            let sent_to = SentTo::of(request, send_msn);
            let pending = Pending { sent_to, fault, ..pending_of(request) };
            self.start(pending);
            self.finish();
        }
    }

    /// Records that a Read or atomic is started. The request completes when its last response is delivered
    /// and all earlier requests have completed.
    ///
    /// RFC 5040 section 5.5 (RDMAP-291): a Read is not complete before its response is delivered.
    pub(super) fn await_response(&mut self, pending: Pending) {
        self.start(Pending { awaits: Some(Awaited::Response), ..pending });
    }

    /// Called when the Atomic Request or the last Read Request of the next request is generated.
    pub(super) fn finish_request(&mut self) {
        self.finish();
    }

    /// Called when the response to the oldest outstanding Read or atomic is delivered. Completes all requests
    /// that may complete now.
    pub(super) fn on_response(&mut self) {
        if let Some(pending) = self.next_response() {
            pending.awaits = None;
        }
        self.complete_done();
    }

    /// Returns the Read or atomic whose response is expected next.
    fn next_response(&mut self) -> Option<&mut Pending> {
        self.pending.iter_mut().find(|pending| pending.awaits == Some(Awaited::Response))
    }

    fn complete_done(&mut self) {
        let Self { qp, consumer, pending, unsent, .. } = self;
        let (sends, signals) = (&qp.sends, &qp.signals);
        if sends.is_held() {
            // While the queue is held, `start_request` reports when no request is in progress. The engine is
            // woken so that it calls `start_request`.
            qp.engine.ring();
        }
        let (mut count, mut signaled) = (0, ArrayVec::<Signaled, TOGETHER>::new());
        while pending.front().is_some_and(|pending| pending.awaits.is_none()) {
            let Some(done) = take_front(pending) else { break };
            // `unsent` may count the completed request: the requests to be sent again include requests that
            // send nothing.
            *unsent = (*unsent).min(pending.len());
            // The entry has to be free before the completion is visible.
            consumer.release_sends(1);
            // The completion of an atomic, or of a Read of at least one byte, reports a byte count. So such a
            // request completes separately, after the requests before it.
            if done.byte_len > 0 || count == TOGETHER {
                consumer.complete_sends(
                    sends,
                    signals,
                    std::mem::take(&mut count),
                    &std::mem::take(&mut signaled),
                );
            }
            if done.byte_len > 0 {
                let completion = sends.succeeded(done.wr_id, done.opcode, done.byte_len);
                consumer.complete_send(sends, signals, done.signaled, completion);
                continue;
            }
            count += 1;
            if done.signaled || sends.signals_all() {
                signaled.push(Signaled { wr_id: done.wr_id, opcode: done.opcode });
            }
        }
        if count > 0 {
            consumer.complete_sends(sends, signals, count, &signaled);
        }
    }

    /// Returns the index in `pending` of the request that a Terminate of the peer names; `None` if the
    /// Terminate names no pending request.
    pub(super) fn refused(&self, terminate: &Terminate) -> Option<usize> {
        let refused = Refused::of(terminate)?;
        self.pending.iter().position(|pending| match &refused {
            Refused::Request => pending.awaits == Some(Awaited::Response),
            Refused::Message(header) => is_of(&pending.sent_to, header),
        })
    }

    /// Whether InfiniBand would report an invalid request in place of this Terminate of the peer. This is so
    /// if the peer does not understand the request, if the request's message is longer than the peer's
    /// buffer, or if an atomic is not aligned.
    pub(super) fn is_invalid_request(&self, terminate: &Terminate) -> bool {
        if !self.rules.have_invalid_requests() {
            return false;
        }
        let is_of_atomic = || {
            let refused = self.refused(terminate).and_then(|place| self.pending.get(place));
            refused.is_some_and(|refused| {
                matches!(refused.opcode, WcOpcode::FetchAdd | WcOpcode::CmpSwap | WcOpcode::Swap)
            })
        };
        match terminate.error() {
            Some(TerminateError::UnexpectedOpcode | TerminateError::DdpTooLong) => true,
            Some(TerminateError::StreamCatastrophic) => is_of_atomic(),
            _ => false,
        }
    }

    /// Records that the oldest outstanding Read or atomic fails because the memory for its response is not
    /// valid.
    pub(super) fn fail_oldest(&mut self) {
        if let Some(pending) = self.next_response() {
            pending.fault = Some(WcStatus::LocalProtectionError);
        }
    }

    /// Whether one of our requests is the cause of a failure that was found here.
    pub(super) fn has_failed_request(&self) -> bool {
        self.pending.iter().any(|pending| pending.fault.is_some())
    }

    /// Drops the records of all outstanding responses. The caller completes the requests, and receives
    /// nothing after this.
    pub(super) fn give_up_responses(&mut self, slots: &mut SlotPool<Outstanding>) {
        self.outstanding.clear(slots);
        self.atomic_responses = UntaggedQueue::new();
    }

    /// Checks whether requests and responses match; for tests. Returns the number of outstanding responses.
    pub(super) fn check(&self, slots: &SlotPool<Outstanding>) -> Check<usize> {
        let count = self.outstanding.check(slots)?;
        let responses: Vec<_> = self.outstanding.iter(slots).collect();
        let sent = self.pending.len() - self.unsent;
        let atomics = check_pending(&self.pending, sent, &responses, self.next_element > 0)?;
        let posted = self.atomic_responses.posted();
        ensure!(posted == atomics, "{posted} buffers for the responses to {atomics} atomics");
        Ok(count)
    }
}

/// Checks that `responses` are the responses that the requests wait for, in the same order. `begun` says
/// whether the last request is a Read that has elements left. Returns how many of the responses are those of
/// atomics.
///
/// The first `sent` of the `pending` requests are sent completely.
fn check_pending(
    pending: &VecDeque<Pending>,
    sent: usize,
    responses: &[&Outstanding],
    begun: bool,
) -> Check<u32> {
    ensure!(
        pending.front().is_none_or(|first| first.awaits.is_some()),
        "the oldest request is done and waits"
    );
    let mut last = 0;
    for offset in pending.iter().filter_map(|pending| match pending.awaits {
        Some(Awaited::Acknowledgement(offset)) => Some(offset),
        _ => None,
    }) {
        ensure!(last < offset, "the acknowledgement of {offset} is awaited behind that of {last}");
        last = offset;
    }
    let awaits = pending.iter().filter(|pending| pending.awaits == Some(Awaited::Response));
    let mut requests = awaits.map(|pending| pending.opcode).peekable();
    let mut atomics = 0;
    for (place, response) in responses.iter().enumerate() {
        let is_read = match response {
            Outstanding::Read { part: ReadPart::Rtr, .. } => {
                ensure!(place == 0, "{place} requests went before the RTR");
                continue;
            }
            Outstanding::Read { part: ReadPart::Earlier, .. } => {
                let request = requests.peek();
                ensure!(request == Some(&WcOpcode::Read), "part {place} is of request {request:?}");
                continue;
            }
            Outstanding::Read { .. } => true,
            Outstanding::Atomic { .. } => false,
        };
        atomics += u32::from(!is_read);
        let request = requests.next();
        let fits = match request {
            Some(WcOpcode::Read) => is_read,
            Some(WcOpcode::FetchAdd | WcOpcode::CmpSwap | WcOpcode::Swap) => !is_read,
            _ => false,
        };
        ensure!(fits, "response {place} is for request {request:?}");
    }
    let next = pending.get(sent).map(|pending| pending.opcode);
    ensure!(!begun || next == Some(WcOpcode::Read), "the Read that has begun is {next:?}");
    let rest = requests.count();
    let expected = usize::from(begun);
    ensure!(rest == expected, "{rest} requests wait for no response, {expected} may");
    Ok(atomics)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Stag;

    fn request(opcode: WcOpcode, awaits: Option<Awaited>) -> Pending {
        let sent_to = SentTo::default();
        Pending { wr_id: 0, opcode, signaled: true, byte_len: 0, awaits, sent_to, fault: None }
    }

    fn read(part: ReadPart) -> Outstanding {
        Outstanding::Read { sink: ReadSink::new(Stag(1), 0, 8), part, from: 0 }
    }

    #[test]
    fn a_request_uses_its_bytes_of_the_peers_memory() {
        let sink = ReadSink::new(Stag(1), 500, 10);
        let read = Outstanding::Read { sink, part: ReadPart::Earlier, from: 100 };
        let atomic = Outstanding::Atomic { id: 1, sink: Sge::default(), word: 102 };
        let before_wrap = Outstanding::Read { sink, part: ReadPart::Last, from: u64::MAX - 4 };
        let rtr = Outstanding::Read { sink, part: ReadPart::Rtr, from: 100 };
        let none = Outstanding::Read { sink: ReadSink::new(Stag(1), 0, 0), part: ReadPart::Last, from: 100 };
        for (at, length, uses) in [
            (90, 10, [false; 5]),
            (90, 11, [true, false, false, false, false]),
            (90, 13, [true, true, false, false, false]),
            (102, 1, [true, true, false, false, false]),
            (104, 0, [false; 5]),
            (109, 1, [true, true, false, false, false]),
            (109, 50, [true, true, false, false, false]),
            (110, 50, [false; 5]),
            (500, 10, [false; 5]),
            (2, 3, [false, false, true, false, false]),
            (5, 3, [false; 5]),
            (u64::MAX - 9, 5, [false; 5]),
            (u64::MAX - 9, 6, [false, false, true, false, false]),
        ] {
            let found = [&read, &atomic, &before_wrap, &rtr, &none].map(|awaited| awaited.uses(at, length));
            assert_eq!(found, uses, "{at} {length}");
        }
    }

    #[test]
    fn requests_that_do_not_fit_their_responses_are_found() {
        let (response, below) = (Some(Awaited::Response), |offset| Some(Awaited::Acknowledgement(offset)));
        let whole = || {
            let requests = [
                (WcOpcode::Read, response),
                (WcOpcode::Send, None),
                (WcOpcode::Write, below(7)),
                (WcOpcode::Swap, response),
                (WcOpcode::Write, below(9)),
                (WcOpcode::Read, response),
            ];
            let responses = vec![
                read(ReadPart::Rtr),
                read(ReadPart::Earlier),
                read(ReadPart::Last),
                Outstanding::Atomic { id: 1, sink: Sge::default(), word: 0 },
                read(ReadPart::Earlier),
            ];
            (requests.map(|(opcode, awaits)| request(opcode, awaits)).into(), responses)
        };
        let (pending, responses) = whole();
        let check = |pending: &VecDeque<Pending>, responses: &[Outstanding], begun| {
            let sent = pending.len() - usize::from(begun);
            check_pending(pending, sent, &responses.iter().collect::<Vec<_>>(), begun)
        };
        assert_eq!(check(&pending, &responses, true), Ok(1));
        assert_eq!(check(&pending, &responses, false), Err("1 requests wait for no response, 0 may".into()));
        type Break = fn(&mut VecDeque<Pending>, &mut Vec<Outstanding>);
        let broken: [(Break, &str); 10] = [
            (|pending, _| pending[0].awaits = None, "the oldest request is done and waits"),
            (|pending, _| pending[3].awaits = None, "response 3 is for request Some(Read)"),
            (
                |pending, _| pending[1].awaits = Some(Awaited::Response),
                "response 3 is for request Some(Send)",
            ),
            (|_, responses| responses.swap(2, 3), "response 2 is for request Some(Read)"),
            (|_, responses| responses.truncate(3), "2 requests wait for no response, 1 may"),
            (|_, responses| responses.swap(0, 1), "1 requests went before the RTR"),
            (|_, responses| responses.swap(3, 4), "part 3 is of request Some(Swap)"),
            (|pending, _| pending.truncate(5), "part 4 is of request None"),
            (
                |pending, _| pending.push_back(request(WcOpcode::Send, None)),
                "the Read that has begun is Some(Send)",
            ),
            (|pending, _| pending.swap(2, 4), "the acknowledgement of 7 is awaited behind that of 9"),
        ];
        for (break_it, found) in broken {
            let (mut pending, mut responses) = whole();
            break_it(&mut pending, &mut responses);
            assert_eq!(check(&pending, &responses, true), Err(found.into()));
        }
    }
}
