//! The rules that a stream follows: iWARP's, or InfiniBand's if both peers have agreed on them.
//!
//! Where the two sets of rules differ, the stream calls a method of [`Rules`]. The method returns what the
//! rules of the stream require, or updates the state that InfiniBand's rules need.

use super::{Change, IbProfile, Impossible, News, ProfileMessage};
use crate::ddp::UntaggedHeader;
use crate::memory::{Accessor, EpochGuard, Fault, Stag, Word};
use crate::queues::{SendOp, SentTo};
use crate::rdmap::Terminate;

/// The rules of one stream, with the state that InfiniBand's rules need.
pub(in crate::stream) struct Rules(Option<Box<IbProfile>>);

impl Rules {
    /// Returns InfiniBand's rules if both peers have agreed on them, otherwise iWARP's rules.
    pub(in crate::stream) fn new(ib_semantics: bool) -> Self {
        Self(ib_semantics.then(|| Box::new(IbProfile::new())))
    }

    /// Returns InfiniBand's rules for queue pairs of type UC.
    pub(in crate::stream) fn unreliable() -> Self {
        Self(Some(Box::new(IbProfile::unreliable())))
    }

    /// Returns the state of InfiniBand's rules; `None` with iWARP's rules.
    #[inline]
    fn profile(&self) -> Option<&IbProfile> {
        self.0.as_deref()
    }

    /// As [`profile`](Self::profile).
    #[inline]
    fn profile_mut(&mut self) -> Option<&mut IbProfile> {
        self.0.as_deref_mut()
    }

    // ---- requests of this side ----

    /// Whether a Send or Write completes when the peer has accepted its message. If not, it completes when
    /// its last segment is handed to TCP (RFC 5040 section 5.5), or when TCP's acknowledgement arrives if its
    /// bytes are sent without a copy.
    #[inline]
    pub(in crate::stream) fn complete_by_acknowledgement(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the stream offset below which requests are accepted, if the peer's TCP has acknowledged the
    /// bytes below `acknowledged`.
    #[inline]
    pub(in crate::stream) fn taken(&self, acknowledged: u64) -> u64 {
        self.profile().map_or(acknowledged, |ib| ib.taken(acknowledged))
    }

    /// Whether the peer has promised a receive request for the message of a request, or the message needs
    /// none. By iWARP's rules no message needs a promise.
    #[inline]
    pub(in crate::stream) fn have_recv(&self, sent_to: &SentTo) -> bool {
        self.profile().is_none_or(|ib| sent_to.last_send().is_none_or(|msn| ib.is_promised(msn)))
    }

    /// Records that the peer has accepted a request of ours.
    pub(in crate::stream) fn note_progress(&mut self) {
        if let Some(ib) = self.profile_mut() {
            ib.note_progress();
        }
    }

    /// Whether the peer accepts requests now.
    #[inline]
    pub(in crate::stream) fn let_send(&self) -> bool {
        self.profile().is_none_or(IbProfile::lets_send)
    }

    /// Whether the oldest posted request may be sent now, and may complete without regard to older requests.
    /// `has_pending` says whether requests are started and not yet completed, and `has_unsent` says whether
    /// some of these still have to be sent. By the agreement's rules, the posted request itself waits for an
    /// acknowledgement, so it completes after the pending requests in any case. But if requests wait for
    /// their responses (`has_outstanding`), the posted request may have to wait for these responses.
    #[inline]
    pub(in crate::stream) fn let_send_posted(
        &self,
        has_pending: bool,
        has_unsent: bool,
        has_outstanding: bool,
    ) -> bool {
        match self.profile() {
            None => !has_pending,
            Some(ib) => !has_unsent && !has_outstanding && ib.lets_send(),
        }
    }

    /// Whether the peer may still accept requests.
    pub(in crate::stream) fn is_peer_there(&self) -> bool {
        self.profile().is_none_or(IbProfile::is_peer_there)
    }

    /// Whether requests wait until the peer has a receive request.
    pub(in crate::stream) fn await_peer(&self) -> bool {
        self.profile().is_some_and(IbProfile::awaits_peer)
    }

    /// Called when the peer has sent FIN, after which it accepts no more requests.
    pub(in crate::stream) fn on_peer_closed(&mut self) {
        if let Some(ib) = self.profile_mut() {
            ib.on_peer_closed();
        }
    }

    /// Whether a request of this kind may be posted. The encoding of Immediate Data depends on the rules.
    pub(in crate::stream) fn allow(&self, op: &SendOp) -> bool {
        op.is_allowed(self.0.is_some())
    }

    /// Whether a request with invalid local memory fails only when its response has arrived. On InfiniBand
    /// the response of a Read or atomic is written to the buffer after the peer has executed the request.
    pub(in crate::stream) fn meet_buffer_late(&self, op: &SendOp) -> bool {
        self.0.is_some() && matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. })
    }

    /// Whether an invalid request completes with a separate status (`IBV_WC_REM_INV_REQ_ERR`).
    pub(in crate::stream) fn have_invalid_requests(&self) -> bool {
        self.0.is_some()
    }

    /// Whether no request succeeds after a failed request. Then a request is also flushed if the peer has
    /// accepted it while an older Read or atomic waited for its response.
    pub(in crate::stream) fn flush_behind_failure(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the oldest request fails as out of retries when the peer vanishes (`IBV_WC_RETRY_EXC_ERR`).
    pub(in crate::stream) fn fail_when_peer_vanishes(&self) -> bool {
        self.0.is_some()
    }

    // ---- requests of the peer ----

    /// Whether a message that finds no receive request is dropped, and sent again unless the stream [drops
    /// messages](Self::drop_messages). If not, such a message is an error (RFC 5041 section 7.1).
    #[inline]
    pub(in crate::stream) fn refuse_without_recv(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a message that cannot be accepted is dropped, and the stream continues, as between queue pairs
    /// of type UC.
    pub(in crate::stream) fn drop_messages(&self) -> bool {
        self.profile().is_some_and(|ib| ib.is_unreliable)
    }

    /// Called when the peer's message with this MSN on queue 0 finds no receive request. `terminate` is sent
    /// if this side stops waiting for a receive request.
    pub(in crate::stream) fn refuse(&mut self, msn: u32, terminate: Terminate) {
        if let Some(ib) = self.profile_mut() {
            ib.refuse(msn, terminate);
        }
    }

    /// Whether a message of the peer waits for a receive request.
    pub(in crate::stream) fn await_recv(&self) -> bool {
        self.profile().is_some_and(IbProfile::awaits_recv)
    }

    /// Called when there is a receive request for the refused message.
    pub(in crate::stream) fn on_recv(&mut self) {
        if let Some(ib) = self.profile_mut() {
            ib.on_recv();
        }
    }

    /// Stops waiting for a receive request. Returns the Terminate for the refused message; `None` if no
    /// message is refused.
    pub(in crate::stream) fn give_up_waiting(&mut self) -> Option<Box<Terminate>> {
        self.profile_mut()?.give_up_waiting()
    }

    /// Called when this side has accepted the peer's message with this MSN on queue 0.
    #[inline]
    pub(in crate::stream) fn on_taken(&mut self, msn: u32) {
        if let Some(ib) = self.profile_mut() {
            ib.on_taken(msn);
        }
    }

    /// Whether Immediate Data is kept out of the receive buffer. If so, Immediate Data whose last four bytes
    /// are 0xFF belongs to the Send that follows.
    #[inline]
    pub(in crate::stream) fn keep_immediate_apart(&self) -> bool {
        self.0.is_some()
    }

    /// Whether receive requests may be bound to messages that have not begun. Receive requests cannot be
    /// bound ahead where Immediate Data can belong to a Send, since such Immediate Data consumes no receive
    /// request.
    pub(in crate::stream) fn bind_ahead(&self) -> bool {
        self.0.is_none()
    }

    /// Whether the alignment of an atomic's address is checked before the rights of the peer.
    pub(in crate::stream) fn check_alignment_first(&self) -> bool {
        self.0.is_some()
    }

    /// Checks the word that an atomic of the peer names, and returns it.
    pub(in crate::stream) fn check_atomic<'g>(
        &self,
        guard: &'g EpochGuard<'_>,
        (stag, to): (Stag, u64),
        by: Accessor,
    ) -> Result<Word<'g>, Fault> {
        match self.0.is_some() {
            true => guard.check_ib_atomic(stag, to, by),
            false => guard.check_atomic(stag, to, by),
        }
    }

    // ---- messages of queue 4 ----

    /// Whether queue 4 exists, and Sends contain limits.
    #[inline]
    pub(in crate::stream) fn have_queue_4(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a Write waits for the responses to earlier Reads and atomics of the bytes that it writes.
    #[inline(always)]
    pub(in crate::stream) fn let_reads_go_first(&self) -> bool {
        self.0.is_some()
    }

    /// Whether a message of queue 4 waits to be sent.
    #[inline(always)]
    pub(in crate::stream) fn have_messages(&self) -> bool {
        self.profile().is_some_and(IbProfile::has_messages)
    }

    /// Removes and returns the next message of queue 4 with its MSN, if a message has to be sent now.
    /// `tells_limit` says whether a limit that the peer waits for has to be sent now, in a message of its
    /// own. `msns` are the MSNs of our next messages to queue 0 and to queue 1.
    #[inline]
    pub(in crate::stream) fn next_message(
        &mut self,
        tells_limit: bool,
        msns: (u32, u32),
    ) -> Option<(ProfileMessage, u32)> {
        let ib = self.profile_mut()?;
        if tells_limit {
            ib.tell_limit();
        }
        if !ib.has_messages() {
            return None;
        }
        ib.next_message(msns)
    }

    /// Called when a message of queue 4 that ends at stream offset `end` was written.
    pub(in crate::stream) fn on_message_sent(&mut self, end: u64) {
        if let Some(ib) = self.profile_mut() {
            ib.set_sent(end);
        }
    }

    /// Handles a message of the peer to queue 4, and returns its effect. `payload` begins with the payload of
    /// the message, and is at least one byte longer than a valid payload if the payload is too long.
    ///
    /// # Errors
    /// [`Impossible`] if the message is no message of queue 4, or is not allowed now.
    pub(in crate::stream) fn on_message(
        &mut self,
        header: &UntaggedHeader,
        payload: &[u8],
    ) -> Result<Change, Impossible> {
        let Some(ib) = self.profile_mut() else { return Ok(Change::None) };
        ib.on_message(ProfileMessage::of_segment(header, payload, ib.next_msn()))
    }

    // ---- limits: the promises of receive requests ----

    /// Called when the peer has sent a limit. Returns whether more of our messages have a receive request.
    #[inline]
    pub(in crate::stream) fn on_limit(&mut self, limit: u32) -> bool {
        self.profile_mut().is_some_and(|ib| ib.on_limit(limit))
    }

    /// Sets our receive limit to the value that `limit` returns. Does not call `limit` if there is no limit.
    #[inline]
    pub(in crate::stream) fn set_limit(&mut self, limit: impl FnOnce() -> u32) {
        if let Some(ib) = self.profile_mut() {
            ib.set_limit(limit());
        }
    }

    /// Makes a message of queue 4 tell the limit, if the peer waits for the limit. Returns whether this was
    /// requested by this call, and not before.
    pub(in crate::stream) fn tell_limit(&mut self) -> bool {
        self.profile_mut().is_some_and(IbProfile::tell_limit)
    }

    /// Called when no more is sent of a message that has begun. The limit in its header was not sent, so the
    /// limit is owed again.
    pub(in crate::stream) fn on_message_cut_off(&mut self) {
        if let Some(ib) = self.profile_mut() {
            ib.owe_limit();
        }
    }

    /// Returns our receive limit for the header of a Send, and records that the limit is sent to the peer.
    /// The limit is the MSN up to which the peer's Sends find a receive request. With iWARP's rules there is
    /// no limit, and the header has 0 (RFC 5040 section 4.2).
    #[inline]
    pub(in crate::stream) fn take_limit(&mut self) -> u32 {
        self.profile_mut().map_or(0, IbProfile::take_limit)
    }

    /// Returns what [`take_limit`](Self::take_limit) returns, but does not record that the limit is sent.
    #[inline]
    pub(in crate::stream) fn limit(&self) -> u32 {
        self.profile().map_or(0, IbProfile::limit)
    }

    /// Whether the peer waits for a new limit.
    #[inline]
    pub(in crate::stream) fn owe_limit(&self) -> bool {
        self.profile().is_some_and(IbProfile::owes_limit)
    }

    /// Records that this side has written FPDUs up to this stream offset.
    #[inline]
    pub(in crate::stream) fn set_written(&mut self, end: u64) {
        if let Some(ib) = self.profile_mut() {
            ib.set_written(end);
        }
    }

    /// Removes and returns the changes since the last call that the connection has to act on.
    #[inline]
    pub(in crate::stream) fn take_news(&mut self) -> Option<News> {
        self.profile_mut()?.take_news()
    }

    // ---- the end of the stream ----

    /// Whether a failing stream reports to the peer which of the peer's messages it has accepted.
    pub(in crate::stream) fn tell_end(&self) -> bool {
        self.0.is_some()
    }

    /// Called when the stream fails: no message after the peer's stream offset `position` is accepted.
    /// Returns whether the stream reports the offset to the peer.
    pub(in crate::stream) fn end(&mut self, position: u64) -> bool {
        let Some(ib) = self.profile_mut() else { return false };
        ib.end(position);
        true
    }

    /// Returns the stream offset of which [`end_withholding`](Self::end_withholding) awaits the
    /// acknowledgement; `None` if no acknowledgements are withheld.
    pub(in crate::stream) fn withheld_until(&self) -> Option<u64> {
        self.profile().and_then(IbProfile::withheld_until)
    }

    /// Called when the peer's TCP has acknowledged the bytes below `offset`. Returns whether acknowledgements
    /// need not be withheld any more.
    pub(in crate::stream) fn end_withholding(&mut self, offset: u64) -> bool {
        self.profile_mut().is_some_and(|ib| ib.end_withholding(offset))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dp::Region;

    use super::*;
    use crate::memory::{Access, Base, MemoryTable, PdId, RegisterOptions, Registration, StreamId};
    use crate::queues::{RemoteAddr, SendEntry};
    use crate::rdmap::{AtomicOp, TerminateError};

    const REMOTE: RemoteAddr = RemoteAddr { addr: 0, rkey: 7 };

    /// Returns iWARP's rules and the rules of the agreement.
    fn both() -> [Rules; 2] {
        [false, true].map(Rules::new)
    }

    /// Returns the answers to one question by iWARP's rules and by the rules of the agreement.
    fn answers<T>(question: impl Fn(&mut Rules) -> T) -> [T; 2] {
        both().map(|mut rules| question(&mut rules))
    }

    /// Receives a message of queue 4, if that queue exists.
    fn receive(rules: &mut Rules, message: ProfileMessage) {
        if let Some(ib) = rules.profile_mut() {
            ib.on_message(Some(message)).unwrap();
        }
    }

    /// Returns the first queued message of queue 4.
    fn message(rules: &mut Rules) -> Option<ProfileMessage> {
        rules.profile_mut()?.next_message((7, 9)).map(|(message, _)| message)
    }

    #[test]
    fn the_agreement_answers_these_questions_alone() {
        type Question = fn(&mut Rules) -> bool;
        let yes_if_agreed: [(&str, Question); 12] = [
            ("profile", |rules| rules.profile().is_some()),
            ("profile_mut", |rules| rules.profile_mut().is_some()),
            ("complete_by_acknowledgement", |rules| rules.complete_by_acknowledgement()),
            ("have_invalid_requests", |rules| rules.have_invalid_requests()),
            ("flush_behind_failure", |rules| rules.flush_behind_failure()),
            ("fail_when_peer_vanishes", |rules| rules.fail_when_peer_vanishes()),
            ("refuse_without_recv", |rules| rules.refuse_without_recv()),
            ("keep_immediate_apart", |rules| rules.keep_immediate_apart()),
            ("check_alignment_first", |rules| rules.check_alignment_first()),
            ("have_queue_4", |rules| rules.have_queue_4()),
            ("let_reads_go_first", |rules| rules.let_reads_go_first()),
            ("tell_end", |rules| rules.tell_end()),
        ];
        for (name, question) in yes_if_agreed {
            assert_eq!(answers(question), [false, true], "{name}");
        }
        assert_eq!(answers(|rules| rules.bind_ahead()), [true, false]);
    }

    #[test]
    fn the_agreement_allows_other_immediate_data() {
        let allowed = |op: &SendOp| answers(|rules| rules.allow(op));
        assert_eq!(allowed(&SendOp::SendImmediate { data: [0; 4] }), [false, true]);
        // With the agreement, Immediate Data whose last four bytes are 0xFF belongs to a Send.
        let (joined, alone) = ([0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF], [0xFF, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFE]);
        for (data, answer) in [(joined, [true, false]), (alone, [true, true])] {
            assert_eq!(allowed(&SendOp::Immediate { data }), answer, "{data:?}");
            assert_eq!(allowed(&SendOp::WriteImmediate { remote: REMOTE, data }), answer, "{data:?}");
        }
        for op in [SendOp::Send, SendOp::Write { remote: REMOTE }, SendOp::Read { remote: REMOTE }] {
            assert_eq!(allowed(&op), [true, true], "{op:?}");
        }
    }

    /// The response of a Read or atomic is written to the request's memory. A Send or Write needs its memory
    /// before it is sent.
    #[test]
    fn the_buffer_of_a_response_is_met_late() {
        let late = |op: &SendOp| answers(|rules| rules.meet_buffer_late(op));
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        for op in [SendOp::Read { remote: REMOTE }, SendOp::Atomic { remote: REMOTE, op }] {
            assert_eq!(late(&op), [false, true], "{op:?}");
        }
        for op in [SendOp::Send, SendOp::Write { remote: REMOTE }] {
            assert_eq!(late(&op), [false, false], "{op:?}");
        }
    }

    /// By iWARP's rules, all bytes that the peer's TCP has acknowledged count as accepted. By the agreement's
    /// rules, only bytes before the end that the peer has reported count.
    #[test]
    fn acknowledged_bytes_are_taken_up_to_the_end_of_the_peer() {
        let taken = |rules: &mut Rules| {
            rules.set_written(1000);
            let before = rules.taken(u64::MAX);
            receive(rules, ProfileMessage::AcceptedUntil(700));
            (before, [0, 699, 700, 701, 1000].map(|acknowledged| rules.taken(acknowledged)))
        };
        let [iwarp, agreed] = answers(taken);
        assert_eq!(iwarp, (u64::MAX, [0, 699, 700, 701, 1000]));
        assert_eq!(agreed, (u64::MAX, [0, 699, 700, 700, 700]));
    }

    /// The stream offset that the peer reports must not exceed what this side has written.
    #[test]
    fn an_end_beyond_what_is_written_is_impossible() {
        let mut rules = Rules::new(true);
        rules.set_written(700);
        let ib = rules.profile_mut().unwrap();
        assert!(ib.on_message(Some(ProfileMessage::AcceptedUntil(701))).is_err());
        assert_eq!(ib.on_message(Some(ProfileMessage::AcceptedUntil(700))), Ok(Change::AcceptedUntil(700)));
    }

    /// By iWARP's rules a message needs no promise. By the agreement's rules, a Write needs no receive
    /// request, and any other message has to be within the peer's limit, even where the MSN wraps.
    #[test]
    fn a_message_has_a_receive_request_up_to_the_limit() {
        let sent_to = |op: SendOp, msn| SentTo::of(&SendEntry { op, ..SendEntry::default() }, msn);
        let quarters = [1 << 30, 2 << 30, 3 << 30];
        for (told, limit) in [(&[][..], 5), (&quarters, u32::MAX), (&quarters, 2)] {
            let have_recv = |op, msn| {
                answers(|rules| {
                    for &limit in told.iter().chain([&limit]) {
                        receive(rules, ProfileMessage::Limit(limit));
                    }
                    rules.have_recv(&sent_to(op, msn))
                })
            };
            for (msn, promised) in [(limit, true), (limit.wrapping_add(1), false)] {
                assert_eq!(have_recv(SendOp::Send, msn), [true, promised], "MSN {msn}");
                assert_eq!(have_recv(SendOp::Write { remote: REMOTE }, msn), [true, true]);
            }
        }
        let none = answers(|rules| rules.have_recv(&sent_to(SendOp::Send, 1)));
        assert_eq!(none, [true, false], "nothing is promised at first");
    }

    /// Returns `let_send`, `is_peer_there` and `await_peer` of the rules, and the news.
    fn peer(rules: &mut Rules) -> ([bool; 3], Option<News>) {
        ([rules.let_send(), rules.is_peer_there(), rules.await_peer()], rules.take_news())
    }

    #[test]
    fn a_peer_without_a_receive_request_is_awaited() {
        let not_ready = News { peer_not_ready: true, ..News::default() };
        let [mut iwarp, mut agreed] = both();
        let takes = [true, true, false];
        assert_eq!([&mut iwarp, &mut agreed].map(peer), [(takes, None); 2]);
        for rules in [&mut iwarp, &mut agreed] {
            receive(rules, ProfileMessage::NotReady(1));
        }
        assert_eq!(
            (peer(&mut iwarp), peer(&mut agreed)),
            ((takes, None), ([false, true, true], Some(not_ready)))
        );
        receive(&mut agreed, ProfileMessage::Ready);
        assert_eq!(peer(&mut agreed), ([false, true, false], None));
        assert!(agreed.have_messages());
        assert_eq!(message(&mut agreed), Some(ProfileMessage::Resume { send_msn: 7, request_msn: 9 }));
        assert_eq!((peer(&mut agreed), agreed.have_messages()), ((takes, None), false));
    }

    /// By iWARP's rules, requests may be sent to a peer that has sent FIN. By the agreement's rules, they may
    /// not.
    #[test]
    fn a_peer_that_has_closed_takes_no_requests() {
        let closed = |rules: &mut Rules| {
            rules.on_peer_closed();
            peer(rules)
        };
        assert_eq!(answers(closed), [([true, true, false], None), ([false, false, false], None)]);
    }

    #[test]
    fn progress_is_news_of_the_agreement() {
        let news = answers(|rules| {
            rules.note_progress();
            [rules.take_news(), rules.take_news()]
        });
        assert_eq!(news, [[None, None], [Some(News { peer_takes: true, ..News::default() }), None]]);
    }

    /// By iWARP's rules a message without a receive request is an error, and nothing is recorded.
    #[test]
    fn a_refused_message_is_told_before_requests() {
        let refused = answers(|rules| {
            rules.refuse(5, Terminate::bare(TerminateError::LocalCatastrophic));
            (rules.take_news(), rules.have_messages(), rules.let_send(), message(rules))
        });
        let news = News { refused: true, ..News::default() };
        let told = ProfileMessage::NotReady(5);
        assert_eq!(refused, [(None, false, true, None), (Some(news), true, false, Some(told))]);
    }

    /// By iWARP's rules the field of a Send is 0, and no limit is owed.
    #[test]
    fn a_send_tells_the_limit() {
        let limits = answers(|rules| {
            rules.set_limit(|| 20);
            rules.on_taken(1);
            rules.tell_limit();
            let before = (rules.limit(), rules.owe_limit(), rules.have_messages());
            let told = rules.take_limit();
            (before, told, (rules.limit(), rules.owe_limit(), rules.have_messages()))
        });
        let none = (0, false, false);
        assert_eq!(limits, [(none, 0, none), ((20, true, true), 20, (20, false, false))]);
    }

    /// Only by the agreement's rules, this side's limit is computed, and a limit of the peer has an effect.
    #[test]
    fn limits_belong_to_the_agreement() {
        let computed = answers(|rules| {
            let mut computed = false;
            rules.set_limit(|| {
                computed = true;
                20
            });
            (computed, [5, 5, 6].map(|limit| rules.on_limit(limit)))
        });
        assert_eq!(computed, [(false, [false; 3]), (true, [true, false, true])]);
    }

    /// A limit whose message was cut off is owed again. It is told once, by a message of queue 4 if no Send
    /// follows.
    #[test]
    fn a_limit_that_was_cut_off_is_told_again() {
        let told = answers(|rules| {
            rules.set_limit(|| 20);
            rules.on_taken(1);
            rules.take_limit();
            rules.on_message_cut_off();
            let first = (rules.owe_limit(), rules.next_message(false, (7, 9)));
            let asked = [rules.tell_limit(), rules.tell_limit()];
            (first, asked, rules.next_message(false, (7, 9)), rules.next_message(true, (7, 9)))
        });
        let limit = Some((ProfileMessage::Limit(20), 1));
        assert_eq!(
            told,
            [((false, None), [false; 2], None, None), ((true, None), [true, false], limit, None)]
        );
        let at_once = answers(|rules| {
            rules.on_taken(1);
            rules.next_message(true, (7, 9))
        });
        assert_eq!(at_once, [None, Some((ProfileMessage::Limit(0), 1))]);
    }

    /// By iWARP's rules a posted request waits until the pending requests complete. By the agreement's rules
    /// it waits for requests that still have to be sent, for responses, and for the peer.
    #[test]
    fn a_posted_request_goes_first_by_other_rules() {
        let lets = |rules: &mut Rules| {
            [(false, false, false), (true, false, false), (true, true, false), (true, false, true)]
                .map(|(pending, unsent, outstanding)| rules.let_send_posted(pending, unsent, outstanding))
        };
        assert_eq!(answers(lets), [[true, false, false, false], [true, true, false, false]]);
        let refused = answers(|rules| {
            receive(rules, ProfileMessage::NotReady(1));
            lets(rules)
        });
        assert_eq!(refused, [[true, false, false, false], [false; 4]]);
    }

    #[test]
    fn a_refused_message_waits_for_a_receive_request() {
        let waits = answers(|rules| {
            let before = rules.await_recv();
            rules.refuse(5, Terminate::bare(TerminateError::LocalCatastrophic));
            let refused = rules.await_recv();
            rules.on_recv();
            let ready = rules.await_recv();
            let given_up = [rules.give_up_waiting(), rules.give_up_waiting()].map(|told| told.is_some());
            ([before, refused, ready], given_up)
        });
        assert_eq!(waits, [([false; 3], [false; 2]), ([false, true, false], [true, false])]);
    }

    /// A message to queue 4 is handled only if the queue exists. The fields of the header are checked.
    #[test]
    fn a_message_of_queue_4_has_an_effect_of_the_agreement() {
        let (header, payload) = ProfileMessage::Limit(9).to_segment(1);
        let mut both = both();
        let mut on = |payload: &[u8]| both.each_mut().map(|rules| rules.on_message(&header, payload));
        assert_eq!(on(&payload), [Ok(Change::None), Ok(Change::Limit)]);
        assert_eq!(on(&payload), [Ok(Change::None), Err(Impossible)], "MSN 1 again");
    }

    /// Acknowledgements are withheld from the end of the stream until the peer has acknowledged the report.
    #[test]
    fn acknowledgements_are_withheld_by_the_agreement() {
        let withheld = answers(|rules| {
            let at_first = (rules.end(300), rules.withheld_until());
            let told = rules.next_message(false, (7, 9));
            rules.on_message_sent(80);
            let ended = [79, 80, 81].map(|offset| rules.end_withholding(offset));
            (at_first, told, ended, rules.withheld_until())
        });
        let told = Some((ProfileMessage::AcceptedUntil(300), 1));
        assert_eq!(
            withheld,
            [
                ((false, None), None, [false; 3], None),
                ((true, Some(u64::MAX)), told, [false, true, false], None)
            ]
        );
    }

    /// The agreement's rules require that the tagged offset is aligned, and check this before everything
    /// else. They also require the right for atomics, even if the peer may read and write the word. iWARP's
    /// rules require neither.
    #[test]
    fn an_atomic_is_checked_by_the_rules_of_the_stream() {
        const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };
        let table = MemoryTable::new(16, [3; 32]);
        let registered = |access: Access, base: Base| -> Registration {
            let options =
                RegisterOptions { pd: ME.pd, stream: None, access, base, ..RegisterOptions::default() };
            table.register(Arc::new(Region::new(4096).unwrap()), &options).unwrap()
        };
        let both_ways = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let atomic = registered(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC, Base::Zero);
        let other = registered(both_ways, Base::Zero);
        let participant = table.join();
        let guard = participant.enter();
        let check = |stag: Stag, to| answers(|rules| rules.check_atomic(&guard, (stag, to), ME).map(drop));
        assert_eq!(check(atomic.stag(), 4088), [Ok(()), Ok(())]);
        assert_eq!(check(other.stag(), 0), [Ok(()), Err(Fault::AccessRights)]);
        let invalid = Stag(atomic.stag().0 ^ 1);
        assert_eq!(check(invalid, 8), [Err(Fault::InvalidStag); 2]);
        assert_eq!(check(invalid, 4), [Err(Fault::InvalidStag), Err(Fault::Misaligned)]);
        assert_eq!(check(atomic.stag(), 4096), [Err(Fault::Bounds); 2]);
    }
}
