//! InfiniBand's semantics between two peers of this implementation
//! ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)): everything that the peers agree on
//! beyond iWARP.
//!
//! | file | what |
//! |---|---|
//! | here | the state of one stream: messages that find no receive request, at either peer |
//! | `agreement.rs` | the offer and the consent, in the private data of MPA's startup frames |
//! | `message.rs` | the messages of queue 4 |
//! | `rules.rs` | the rules that depend on the agreement |
//!
//! **A Send or Write completes when the peer has accepted its message.** A message is accepted when it is
//! placed, and has its receive request if it needs one. (With iWARP a Send or Write usually completes when it
//! is handed to TCP, RFC 5040 section 5.5.) An engine acknowledges bytes only after it has processed them, so
//! TCP's acknowledgement means that a Write is placed. For a message to queue 0, the acknowledgement means
//! acceptance only if the peer has promised a receive request for the message.
//!
//! **A receiver promises receive requests by a limit**, as InfiniBand does by credits. The limit is the MSN
//! up to which each message to queue 0 finds a receive request. A Send has the limit in its header. A
//! receiver may accept a message for which it had promised no receive request. If its user then sends no
//! answer, the receiver sends the limit in a message of queue 4 ([`Limit`](ProfileMessage::Limit)). One such
//! message covers as many later messages as there are receive requests. With a shared receive queue nothing
//! is promised, and one `Limit` is sent for all messages of a poll.
//!
//! **A message without a receive request is not accepted** (InfiniBand: "receiver not ready", RNR). The
//! receiver answers such a message with [`NotReady`](ProfileMessage::NotReady), and drops the message and all
//! later requests. The sender keeps the dropped requests. The receiver still accepts responses to its own
//! requests; otherwise the two peers could wait for each other for ever. No memory is held for a message
//! without a receive request. When there is a receive request, the receiver reports this
//! ([`Ready`](ProfileMessage::Ready)). The sender then sends [`Resume`](ProfileMessage::Resume), and after
//! this message the dropped requests. An InfiniBand sender retries a limited number of times, and the
//! receiver announces the time between two retries. uwarp's sender waits for `Ready` instead. If the number
//! of retries is limited, the request fails when as much time has passed as these retries would take.
//!
//! **Between queue pairs of type UC, messages may be lost.** A request completes when TCP has acknowledged
//! its bytes. The peer has then accepted or dropped the message (`inbound/unreliable.rs`), and does not
//! report which of the two. No message waits for a receive request.
//!
//! **A stream that fails reports the last message that it has accepted**
//! ([`AcceptedUntil`](ProfileMessage::AcceptedUntil)). The report is sent before the Terminate, or before FIN
//! if the peer gets no Terminate. TCP withholds the acknowledgement of the bytes that are not accepted
//! ([`tcp_lite::Stack::withhold`]), until the peer has acknowledged the bytes of the `AcceptedUntil` message.

use crate::rdmap::Terminate;

pub(crate) mod agreement;
mod message;
mod rules;

pub(crate) use message::{PAYLOAD_BYTES, ProfileMessage, QUEUE};
pub(super) use rules::Rules;

/// The state of a stream whose peers have agreed on the profile.
struct IbProfile {
    // ---- requests of this side ----
    peer: Peer,
    /// The MSN up to which the peer has promised receive requests.
    peer_limit: u32,
    /// The peer accepts no message after this stream offset; `u64::MAX` until the peer has reported an
    /// offset.
    accepted_until: u64,

    // ---- requests of the peer ----
    /// The MSN up to which messages of the peer find a receive request. The next Send, or the next `Limit`
    /// message, reports this limit.
    limit: u32,
    /// The MSN up to which this side has promised receive requests: the last limit that was sent.
    sent_limit: u32,
    /// Whether a message of the peer was accepted for which no receive request was promised.
    owes_limit: bool,
    /// Whether the limit has to be sent in a message of queue 4.
    tell_limit: bool,
    /// The message that found no receive request.
    refused: Option<Refused>,
    /// This side accepts no message after this stream offset, and has to report the offset.
    last: Option<u64>,
    /// The message with this MSN was refused, and the refusal was not reported to the peer before the stream
    /// failed.
    unreported: Option<u32>,
    /// Acknowledgements are withheld until the peer has acknowledged the bytes below this stream offset.
    /// `u64::MAX`: these bytes are not yet sent.
    withheld_until: Option<u64>,

    /// The stream offset up to which this side has written FPDUs.
    written: u64,

    // ---- queue 4 ----
    /// MSNs of the next message to send, and of the next message to receive.
    tx_msn: u32,
    rx_msn: u32,
    /// Changes for the connection.
    news: News,
    /// Whether messages that cannot be accepted are dropped, as between queue pairs of type UC.
    is_unreliable: bool,
}

/// How the peer handles our requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// The peer accepts requests.
    Takes,
    /// The peer drops requests, since a message has found no receive request.
    NotReady,
    /// The peer has a receive request now. A `Resume` has to be sent before the dropped requests.
    Ready,
    /// The peer has closed the connection, or the stream has failed on either side. The peer accepts no more
    /// requests.
    Gone,
}

/// A message of the peer that found no receive request.
struct Refused {
    msn: u32,
    /// The Terminate to send if this side no longer waits for a receive request.
    terminate: Box<Terminate>,
    reported: Reported,
}

/// What was reported to the peer about a refused message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    /// Nothing was reported. `ready` says whether there is now a receive request for the refused message.
    Nothing { ready: bool },
    /// The refusal of the message was reported.
    NotReady,
    /// The refusal of the message was reported. There is now a receive request for the message, which still
    /// has to be reported.
    ReadyNow,
    /// The refusal and the receive request were reported.
    Ready,
}

/// Changes of a stream that its connection has to act on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// A message of the peer has found no receive request.
    pub(crate) refused: bool,
    /// The peer has no receive request for a message of ours.
    pub(crate) peer_not_ready: bool,
    /// The peer has accepted a request of ours.
    pub(crate) peer_takes: bool,
}

/// The peer has sent a message that contradicts the state of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Impossible;

/// The effect of a message of queue 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// No change.
    None,
    /// More messages have a receive request.
    Limit,
    /// This side sends the request with this MSN on queue 0 and all later requests again.
    GoBack(u32),
    /// Our requests before this stream offset were accepted, and no later requests will be accepted.
    AcceptedUntil(u64),
    /// The peer sends its dropped requests again, beginning with these MSNs of queue 0 and queue 1.
    PeerResumes { send_msn: u32, request_msn: u32 },
}

impl IbProfile {
    fn new() -> Self {
        Self {
            peer: Peer::Takes,
            peer_limit: 0,
            accepted_until: u64::MAX,
            limit: 0,
            sent_limit: 0,
            owes_limit: false,
            tell_limit: false,
            refused: None,
            last: None,
            unreported: None,
            withheld_until: None,
            written: 0,
            tx_msn: 1,
            rx_msn: 1,
            news: News::default(),
            is_unreliable: false,
        }
    }

    /// Returns the state for queue pairs of type UC. The peer promises no receive requests: every message
    /// that arrives is accepted, or dropped without an answer.
    fn unreliable() -> Self {
        // The value says that messages up to any offset are accepted, with a promise or without.
        Self { is_unreliable: true, accepted_until: u64::MAX - 1, ..Self::new() }
    }

    /// Removes and returns the changes since the last call.
    #[inline]
    fn take_news(&mut self) -> Option<News> {
        (self.news != News::default()).then(|| std::mem::take(&mut self.news))
    }

    // ---- requests of this side ----

    /// Returns the stream offset below which all messages are accepted, if the peer's TCP has acknowledged
    /// the bytes below `offset`.
    #[inline]
    fn taken(&self, offset: u64) -> u64 {
        offset.min(self.accepted_until)
    }

    /// Whether the peer has promised a receive request for our message with this MSN on queue 0, or has
    /// reported the end of its stream.
    #[inline]
    fn is_promised(&self, msn: u32) -> bool {
        // If the peer has reported where its stream ends, it has accepted all messages before that offset.
        self.accepted_until != u64::MAX || is_within(msn, self.peer_limit)
    }

    /// Called when the peer sends a limit. Returns whether the limit is new: a message may repeat an earlier
    /// limit.
    #[inline]
    fn on_limit(&mut self, limit: u32) -> bool {
        let more = !is_within(limit, self.peer_limit);
        if more {
            self.peer_limit = limit;
        }
        more
    }

    /// Whether our requests may be sent, and no message of queue 4 has to be sent first.
    #[inline]
    fn lets_send(&self) -> bool {
        self.peer == Peer::Takes && !self.has_urgent_messages()
    }

    fn awaits_peer(&self) -> bool {
        self.peer == Peer::NotReady
    }

    /// Called when the peer has closed the connection, after which it sends no more messages of queue 4.
    fn on_peer_closed(&mut self) {
        self.peer = Peer::Gone;
    }

    /// Whether the peer may still accept requests of ours.
    fn is_peer_there(&self) -> bool {
        self.peer != Peer::Gone
    }

    /// Records that the peer has accepted a request of ours.
    fn note_progress(&mut self) {
        self.news.peer_takes = true;
    }

    // ---- requests of the peer ----

    /// Called when this side has accepted the peer's message with this MSN on queue 0.
    #[inline]
    fn on_taken(&mut self, msn: u32) {
        self.owes_limit |= !is_within(msn, self.sent_limit);
    }

    /// Whether the peer waits for a limit, since a message was accepted for which no receive request was
    /// promised.
    #[inline]
    fn owes_limit(&self) -> bool {
        self.owes_limit
    }

    /// If the peer waits for a limit, requests that a `Limit` message is sent. Returns whether the message
    /// was requested by this call, and not before.
    fn tell_limit(&mut self) -> bool {
        let tells = self.owes_limit && !self.tell_limit;
        self.tell_limit |= tells;
        tells
    }

    /// Sets the MSN up to which messages of the peer find a receive request.
    #[inline]
    fn set_limit(&mut self, limit: u32) {
        self.limit = limit;
    }

    /// Returns the MSN that [`set_limit`](Self::set_limit) has set.
    #[inline]
    fn limit(&self) -> u32 {
        self.limit
    }

    /// Records that the limit is sent to the peer, in a message or in the header of a Send. Returns the
    /// limit.
    #[inline]
    fn take_limit(&mut self) -> u32 {
        (self.sent_limit, self.owes_limit, self.tell_limit) = (self.limit, false, false);
        self.limit
    }

    /// Records that the message whose header has the limit was not sent completely, so that the limit is
    /// still owed.
    fn owe_limit(&mut self) {
        self.owes_limit = true;
    }

    /// Called when the peer's message with this MSN on queue 0 finds no receive request.
    #[cold]
    fn refuse(&mut self, msn: u32, terminate: Terminate) {
        let reported = Reported::Nothing { ready: false };
        self.refused = Some(Refused { msn, terminate: Box::new(terminate), reported });
        self.news.refused = true;
    }

    /// Whether a message of the peer waits for a receive request of this side.
    fn awaits_recv(&self) -> bool {
        matches!(self.reported(), Some(Reported::Nothing { ready: false } | Reported::NotReady))
    }

    /// Returns what was reported to the peer about the refused message; `None` if no message is refused.
    #[inline]
    fn reported(&self) -> Option<Reported> {
        self.refused.as_ref().map(|refused| refused.reported)
    }

    /// Called when there is a receive request for the refused message.
    fn on_recv(&mut self) {
        if let Some(refused) = &mut self.refused {
            refused.reported = match refused.reported {
                Reported::Nothing { .. } => Reported::Nothing { ready: true },
                Reported::NotReady => Reported::ReadyNow,
                reported @ (Reported::ReadyNow | Reported::Ready) => reported,
            };
        }
    }

    /// Stops waiting for a receive request. Returns the Terminate for the refused message.
    fn give_up_waiting(&mut self) -> Option<Box<Terminate>> {
        let refused = self.refused.take()?;
        self.note_unreported(&refused);
        Some(refused.terminate)
    }

    /// Records a refusal that was not reported. The refusal has to be reported even if the stream ends: the
    /// requests after the refused message were sent before the reported end, but were dropped.
    fn note_unreported(&mut self, refused: &Refused) {
        if matches!(refused.reported, Reported::Nothing { .. }) {
            self.unreported = Some(refused.msn);
        }
    }

    /// Called when the stream fails on this side: no message after stream offset `position` is accepted.
    fn end(&mut self, position: u64) {
        if let Some(refused) = self.refused.take() {
            self.note_unreported(&refused);
        }
        self.peer = Peer::Gone;
        (self.last, self.withheld_until) = (Some(position), Some(u64::MAX));
    }

    /// Records that this side has written FPDUs up to this stream offset.
    #[inline]
    fn set_written(&mut self, end: u64) {
        self.written = end;
    }

    /// Called when a message of queue 4 that ends at stream offset `end` was sent. If the message was
    /// `AcceptedUntil`, acknowledgements are withheld until the peer has acknowledged the bytes below `end`.
    fn set_sent(&mut self, end: u64) {
        if self.withheld_until == Some(u64::MAX) && self.last.is_none() {
            self.withheld_until = Some(end);
        }
    }

    /// Called when the peer's TCP has acknowledged the bytes below `offset`. Returns whether acknowledgements
    /// need not be withheld any more.
    fn end_withholding(&mut self, offset: u64) -> bool {
        let knows = self.withheld_until.is_some_and(|until| until <= offset);
        if knows {
            self.withheld_until = None;
        }
        knows
    }

    /// Returns the stream offset of which [`end_withholding`](Self::end_withholding) awaits the
    /// acknowledgement; `None` if nothing is withheld.
    fn withheld_until(&self) -> Option<u64> {
        self.withheld_until
    }

    // ---- queue 4 ----

    /// Whether a message of queue 4 has to be sent before all requests.
    #[inline]
    fn has_urgent_messages(&self) -> bool {
        self.last.is_some()
            || self.peer == Peer::Ready
            || matches!(self.reported(), Some(Reported::Nothing { .. } | Reported::ReadyNow))
    }

    /// Whether a message of queue 4 waits to be sent.
    #[inline]
    fn has_messages(&self) -> bool {
        self.tell_limit || self.has_urgent_messages()
    }

    /// Returns the next message of queue 4, with its MSN. `msns` are the MSNs of our next messages to queue 0
    /// and to queue 1.
    fn next_message(&mut self, msns: (u32, u32)) -> Option<(ProfileMessage, u32)> {
        let message = self.choose_message(msns)?;
        let msn = self.tx_msn;
        self.tx_msn = msn.wrapping_add(1);
        Some((message, msn))
    }

    fn choose_message(&mut self, (send_msn, request_msn): (u32, u32)) -> Option<ProfileMessage> {
        if let Some(msn) = self.unreported.take() {
            return Some(ProfileMessage::NotReady(msn));
        }
        if let Some(last) = self.last.take() {
            return Some(ProfileMessage::AcceptedUntil(last));
        }
        if self.peer == Peer::Ready {
            self.peer = Peer::Takes;
            return Some(ProfileMessage::Resume { send_msn, request_msn });
        }
        if self.tell_limit {
            return Some(ProfileMessage::Limit(self.take_limit()));
        }
        let refused = self.refused.as_mut()?;
        match refused.reported {
            Reported::Nothing { ready } => {
                refused.reported = if ready { Reported::ReadyNow } else { Reported::NotReady };
                Some(ProfileMessage::NotReady(refused.msn))
            }
            Reported::ReadyNow => {
                refused.reported = Reported::Ready;
                Some(ProfileMessage::Ready)
            }
            Reported::NotReady | Reported::Ready => None,
        }
    }

    /// Returns the MSN that the peer's next message of queue 4 has to have.
    fn next_msn(&self) -> u32 {
        self.rx_msn
    }

    /// Handles the peer's next message of queue 4. Returns its effect.
    ///
    /// # Errors
    /// [`Impossible`] if the message is no message of queue 4, or is not allowed now.
    fn on_message(&mut self, message: Option<ProfileMessage>) -> Result<Change, Impossible> {
        self.rx_msn = self.rx_msn.wrapping_add(1);
        match message.ok_or(Impossible)? {
            ProfileMessage::Limit(limit) => {
                Ok(if self.on_limit(limit) { Change::Limit } else { Change::None })
            }
            ProfileMessage::NotReady(msn) if self.peer == Peer::Takes && !self.is_promised(msn) => {
                // The peer has accepted the messages before the refused message.
                self.on_limit(msn.wrapping_sub(1));
                self.peer = Peer::NotReady;
                self.news.peer_not_ready = true;
                Ok(Change::GoBack(msn))
            }
            ProfileMessage::Ready if self.peer == Peer::NotReady => {
                self.peer = Peer::Ready;
                Ok(Change::None)
            }
            ProfileMessage::Resume { send_msn, request_msn } if self.reported() == Some(Reported::Ready) => {
                self.refused = None;
                Ok(Change::PeerResumes { send_msn, request_msn })
            }
            // If this side has sent no FPDU, any offset is accepted, since the message concerns no request.
            ProfileMessage::AcceptedUntil(offset) if offset <= self.written || self.written == 0 => {
                (self.accepted_until, self.peer) = (offset, Peer::Gone);
                Ok(Change::AcceptedUntil(offset))
            }
            ProfileMessage::NotReady(_)
            | ProfileMessage::Ready
            | ProfileMessage::Resume { .. }
            | ProfileMessage::AcceptedUntil(_) => Err(Impossible),
        }
    }
}

/// Whether this MSN is at or before the limit, modulo 2^32.
#[inline]
fn is_within(msn: u32, limit: u32) -> bool {
    limit.wrapping_sub(msn) < 1 << 31
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdmap::TerminateError;
    use ProfileMessage::{AcceptedUntil, Limit, NotReady, Ready, Resume};

    fn terminate() -> Terminate {
        Terminate::bare(TerminateError::LocalCatastrophic)
    }

    /// Returns the queued messages (at most nine), each with its MSN.
    fn messages(ib: &mut IbProfile, limit: u32) -> Vec<(ProfileMessage, u32)> {
        ib.set_limit(limit);
        std::iter::from_fn(|| ib.next_message((7, 9))).take(9).collect()
    }

    /// A limit only grows, even where the MSN wraps.
    #[test]
    fn a_promise_is_never_taken_back() {
        let mut ib = IbProfile::new();
        assert!(ib.is_promised(0) && !ib.is_promised(1), "the first message has MSN 1");
        for (limit, more) in [(5, true), (5, false), (4, false), (1 << 30, true), (3 << 30, true), (3, true)]
        {
            assert_eq!(ib.on_limit(limit), more, "{limit}");
        }
        assert!(ib.is_promised(3) && ib.is_promised(u32::MAX) && !ib.is_promised(4));
    }

    #[test]
    fn a_message_tells_the_limit_that_no_send_has_told() {
        let mut ib = IbProfile::new();
        ib.tell_limit();
        assert!(!ib.owes_limit() && !ib.has_messages() && ib.lets_send(), "nothing is owed");
        ib.on_taken(1);
        assert!(ib.owes_limit() && !ib.has_messages() && ib.lets_send());
        assert_eq!(messages(&mut ib, 20), []);
        ib.tell_limit();
        assert!(ib.has_messages() && ib.lets_send(), "a Send may go before it, and tell it");
        assert_eq!(messages(&mut ib, 20), [(Limit(20), 1)]);
        ib.on_taken(20);
        assert!(!ib.owes_limit(), "it was promised");
        ib.set_limit(21);
        ib.on_taken(21);
        assert!(ib.owes_limit(), "the peer does not know");
        ib.tell_limit();
        ib.set_limit(30);
        assert_eq!((ib.limit(), ib.take_limit()), (30, 30));
        assert_eq!((ib.has_messages(), ib.owes_limit(), messages(&mut ib, 30)), (false, false, vec![]));
        ib.owe_limit();
        ib.tell_limit();
        assert_eq!(messages(&mut ib, 40), [(Limit(40), 2)]);
    }

    /// The peer repeats a message that found no receive request.
    #[test]
    fn a_refused_message_comes_again() {
        let (mut here, mut peer) = (IbProfile::new(), IbProfile::new());
        here.refuse(5, terminate());
        assert!(here.awaits_recv() && !here.lets_send());
        assert_eq!(here.take_news(), Some(News { refused: true, ..News::default() }));
        assert_eq!(here.take_news(), None);
        assert_eq!(messages(&mut here, 4), [(NotReady(5), 1)]);
        assert!(here.awaits_recv() && here.lets_send() && !here.has_messages());

        assert_eq!(peer.on_message(Some(NotReady(5))), Ok(Change::GoBack(5)));
        assert_eq!(peer.take_news(), Some(News { peer_not_ready: true, ..News::default() }));
        assert!(!peer.lets_send() && peer.awaits_peer() && peer.is_peer_there());
        assert!(peer.is_promised(4) && !peer.is_promised(5), "those before it are taken");
        assert_eq!(messages(&mut peer, 0), []);

        here.on_recv();
        assert!(!here.awaits_recv() && here.has_messages());
        assert_eq!(messages(&mut here, 4), [(Ready, 2)]);
        here.on_recv();
        assert_eq!(messages(&mut here, 4), [], "the peer knows it");

        assert_eq!(peer.on_message(Some(Ready)), Ok(Change::None));
        assert!(peer.has_messages() && !peer.lets_send() && !peer.awaits_peer());
        assert_eq!(messages(&mut peer, 0), [(Resume { send_msn: 7, request_msn: 9 }, 1)]);
        assert!(peer.lets_send());

        let resumed = Change::PeerResumes { send_msn: 7, request_msn: 9 };
        assert_eq!(here.on_message(Some(Resume { send_msn: 7, request_msn: 9 })), Ok(resumed));
        assert_eq!((here.next_msn(), here.awaits_recv()), (2, false));
        let again = here.on_message(Some(Resume { send_msn: 7, request_msn: 9 }));
        assert_eq!(again, Err(Impossible), "nothing is dropped any more");
    }

    /// A peer that was not notified of a receive request has nothing to send again, so its `Resume` is an
    /// error.
    #[test]
    fn a_peer_resumes_only_when_it_was_told_to() {
        let resume = Some(Resume { send_msn: 5, request_msn: 1 });
        let refused = |ready: bool, told: usize| {
            let mut ib = IbProfile::new();
            ib.refuse(5, terminate());
            if ready {
                ib.on_recv();
            }
            assert_eq!(std::iter::from_fn(|| ib.next_message((1, 1))).take(told).count(), told);
            ib.on_message(resume)
        };
        for (ready, told) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
            assert_eq!(refused(ready, told), Err(Impossible), "{ready} {told}");
        }
        assert_eq!(refused(true, 2), Ok(Change::PeerResumes { send_msn: 5, request_msn: 1 }));
    }

    /// The receive request is posted before the peer was notified that it is missing. The peer is notified of
    /// the refusal and of the receive request.
    #[test]
    fn a_receive_that_comes_at_once_is_told_behind_the_refusal() {
        let mut ib = IbProfile::new();
        ib.refuse(5, terminate());
        ib.on_recv();
        assert!(!ib.awaits_recv() && ib.has_messages());
        assert_eq!(messages(&mut ib, 4), [(NotReady(5), 1), (Ready, 2)]);
    }

    /// The last message reports which bytes are not accepted. TCP acknowledges these bytes once the peer has
    /// acknowledged the report.
    #[test]
    fn a_stream_that_fails_tells_where() {
        let (mut here, mut peer) = (IbProfile::new(), IbProfile::new());
        here.refuse(5, terminate());
        here.end(300);
        assert!(here.has_messages() && !here.lets_send() && !here.end_withholding(u64::MAX - 1));
        // The refusal was not sent before the stream failed. It is sent before `AcceptedUntil`, since the
        // requests after the refused message were not accepted.
        assert_eq!(here.next_message((7, 9)), Some((NotReady(5), 1)));
        here.set_sent(70);
        assert_eq!(messages(&mut here, 4), [(AcceptedUntil(300), 2)]);
        assert!(!here.lets_send() && !here.is_peer_there(), "requests of this end are over, too");
        here.set_sent(80);
        here.set_sent(90);
        assert_eq!(here.withheld_until(), Some(80));
        assert_eq!([79, 80, 81].map(|offset| here.end_withholding(offset)), [false, true, false]);
        assert_eq!(peer.taken(1000), 1000);
        peer.set_written(300);
        assert!(!peer.is_promised(4));
        assert_eq!(peer.on_message(Some(AcceptedUntil(300))), Ok(Change::AcceptedUntil(300)));
        assert!(peer.is_promised(4), "what lies before the end is taken");
        assert_eq!((peer.taken(200), peer.taken(1000)), (200, 300));
        assert!(!peer.is_peer_there() && !peer.lets_send());
    }

    /// A refusal is reported exactly once, at the end of the stream or before. The refusal is also reported
    /// once if this side has given up waiting, or has a receive request of which the peer was not notified.
    #[test]
    fn a_refusal_is_told_once() {
        for is_told in [false, true] {
            type Step = fn(&mut IbProfile);
            let steps: [Step; 3] = [
                |_| {},
                IbProfile::on_recv,
                |ib| assert!(ib.give_up_waiting().is_some() && ib.give_up_waiting().is_none()),
            ];
            for before_end in steps {
                let mut ib = IbProfile::new();
                ib.refuse(5, terminate());
                if is_told {
                    assert_eq!(messages(&mut ib, 4), [(NotReady(5), 1)]);
                }
                before_end(&mut ib);
                ib.end(300);
                let told = std::iter::from_fn(|| ib.next_message((7, 9))).take(9).map(|(message, _)| message);
                let expected = [NotReady(5), AcceptedUntil(300)];
                assert_eq!(told.collect::<Vec<_>>(), expected[usize::from(is_told)..]);
            }
        }
    }

    /// Unreadable messages, and messages that are not allowed now, are refused.
    #[test]
    fn a_peer_that_contradicts_itself_is_refused() {
        let resume = Resume { send_msn: 1, request_msn: 1 };
        for message in [Some(Ready), Some(resume), Some(AcceptedUntil(501)), None] {
            let mut ib = IbProfile::new();
            ib.set_written(500);
            assert_eq!(ib.on_message(message), Err(Impossible), "{message:?}");
        }
        assert_eq!(
            IbProfile::new().on_message(Some(AcceptedUntil(501))),
            Ok(Change::AcceptedUntil(501)),
            "it has no request"
        );
        let mut ib = IbProfile::new();
        assert_eq!(ib.on_message(Some(Limit(5))), Ok(Change::Limit));
        assert_eq!(ib.on_message(Some(Limit(5))), Ok(Change::None));
        assert_eq!(ib.on_message(Some(NotReady(5))), Err(Impossible), "it was promised");
        ib.on_message(Some(NotReady(6))).unwrap();
        assert_eq!(ib.on_message(Some(NotReady(7))), Err(Impossible), "nothing is sent meanwhile");
        ib.on_message(Some(Ready)).unwrap();
        assert_eq!(ib.on_message(Some(Ready)), Err(Impossible));
        assert_eq!(ib.on_message(Some(NotReady(6))), Err(Impossible), "nothing is sent again yet");
        let mut ib = IbProfile::new();
        ib.on_peer_closed();
        assert!(!ib.is_peer_there() && !ib.lets_send());
        for message in [NotReady(6), Ready] {
            assert_eq!(ib.on_message(Some(message)), Err(Impossible), "{message:?}");
        }
    }
}
