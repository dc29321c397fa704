//! InfiniBand's semantics between two ends of this implementation
//! ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)): all that they agree on beyond iWARP.
//!
//! | file | what |
//! |---|---|
//! | here | the state of one stream: what the peer has taken, what this end has, and who waits for a receive |
//! | `agreement.rs` | the offer and the consent, in the private data of MPA's startup frames |
//! | `message.rs` | the messages of queue 4 |
//!
//! **A request completes when the peer has taken its message**: when the message is placed, and has its
//! receive request if it needs one. With iWARP it completes when it is handed to TCP (RFC 5040 section 5.5).
//! The peer tells up to which stream offset it has taken everything
//! ([`Taken`](ProfileMessage::Taken)): in each Send, and otherwise in a message of its own, which goes in
//! front of the next answer. Where no answer comes in time, the message goes alone. One message tells of all
//! that was taken since the last one.
//!
//! **A message without a receive request is not taken** (InfiniBand: "receiver not ready", RNR). The receiver
//! says so ([`NotReady`](ProfileMessage::NotReady)), and drops that message and all requests behind it: the
//! sender still has them. It goes on to take what answers requests of its own, so neither end waits for the
//! other in a circle, and no memory is held for a message that has no place. Once a receive request is there,
//! the receiver says so ([`Ready`](ProfileMessage::Ready)). The sender then sends the dropped requests
//! again, behind a mark ([`Resume`](ProfileMessage::Resume)). InfiniBand's sender tries again after a time
//! that the receiver has told, so many times; here the request fails when that time has passed as often.
//!
//! **Other rules**: which Terminate is told to the user how, what an atomic may name, and that Immediate Data
//! has no bytes in the buffer, are methods of [`IbProfile`] or of its absence.

use crate::rdmap::Terminate;

pub(crate) mod agreement;
mod message;

pub(crate) use message::{PAYLOAD_BYTES, ProfileMessage, QUEUE};

/// The state of a stream whose ends have agreed on the profile.
pub(super) struct IbProfile {
    /// The stream offset of MPA's position 0 in the peer's bytes.
    rx_start: u64,

    // ---- requests of this end ----
    /// The peer has taken all messages of this end that end at or before this stream offset.
    taken: u64,
    /// This end has sent nothing behind this stream offset; 0: no FPDU at all.
    sent: u64,
    /// Whether the peer takes requests of this end.
    peer: Peer,

    // ---- requests of the peer ----
    /// The peer was told that all before this stream offset is taken.
    told: u64,
    /// The peer is told at the next opportunity, and not only along with an answer.
    tell: bool,
    /// What the peer is told last, before the stream ends.
    last: Option<u64>,
    /// The message that found no receive request.
    refused: Option<Refused>,

    // ---- queue 4 ----
    /// MSN of the next message of either direction.
    tx_msn: u32,
    rx_msn: u32,
    /// What the connection has to be told.
    news: News,
}

/// Whether the peer takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Peer {
    /// It takes them.
    Takes,
    /// It drops them: a message has found no receive request.
    NotReady,
    /// There is a receive request now, and it has to be told that the dropped requests follow.
    Ready,
    /// It has closed the connection, and takes nothing more.
    Gone,
}

/// A message of the peer that found no receive request.
struct Refused {
    /// Where it begins.
    offset: u64,
    /// What the peer is told if this end no longer waits for a receive request.
    terminate: Box<Terminate>,
    told: Told,
}

/// What the peer knows of a message that was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    /// Nothing. `ready`: there is a receive request by now.
    Nothing { ready: bool },
    /// That it was refused.
    NotReady,
    /// That it was refused. It has to be told that there is a receive request.
    ReadyNow,
    /// That there is a receive request.
    Ready,
}

/// What has happened to a stream that its connection has to act on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct News {
    /// A message of the peer has found no receive request.
    pub(crate) refused: bool,
    /// The peer has no receive request for a message of this end.
    pub(crate) peer_not_ready: bool,
    /// The peer has taken a request of this end that it did not take before.
    pub(crate) peer_takes: bool,
}

/// The peer has told what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Impossible;

/// What a message of queue 4 changes for the requests of this end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing.
    None,
    /// More of them are taken.
    Taken,
    /// More of them may be taken. The others go again.
    GoBack,
    /// The peer begins anew with its own requests, by these MSNs of queue 0 and queue 1.
    PeerResumes { send_msn: u32, request_msn: u32 },
}

impl IbProfile {
    /// Of a stream whose first FPDU from the peer is at this stream offset.
    pub(super) fn new(rx_start: u64) -> Self {
        Self {
            rx_start,
            taken: 0,
            sent: 0,
            peer: Peer::Takes,
            told: rx_start,
            tell: false,
            last: None,
            refused: None,
            tx_msn: 1,
            rx_msn: 1,
            news: News::default(),
        }
    }

    /// What has happened since the last call.
    #[inline]
    pub(super) fn take_news(&mut self) -> Option<News> {
        (self.news != News::default()).then(|| std::mem::take(&mut self.news))
    }

    // ---- requests of this end ----

    /// The stream offset up to which the peer has taken everything.
    #[inline]
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// FPDUs are sent between these stream offsets.
    #[inline]
    pub(super) fn set_sent(&mut self, start: u64, end: u64) {
        if self.sent == 0 {
            self.taken = start;
        }
        self.sent = end;
    }

    /// Whether requests of this end may be sent, and nothing of queue 4 goes first.
    #[inline]
    pub(super) fn lets_send(&self) -> bool {
        matches!(self.peer, Peer::Takes | Peer::Gone) && !self.has_own_messages()
    }

    /// Whether requests of this end wait for the peer.
    pub(super) fn is_peer_ready(&self) -> bool {
        self.peer != Peer::NotReady
    }

    /// The peer has closed the connection: it tells nothing more.
    pub(super) fn on_peer_closed(&mut self) {
        self.peer = Peer::Gone;
    }

    /// Whether the peer may still take requests of this end.
    pub(super) fn is_peer_there(&self) -> bool {
        self.peer != Peer::Gone
    }

    /// The four bytes of a Send of the peer: the lower half of a stream offset.
    ///
    /// # Errors
    /// [`Impossible`].
    #[inline]
    pub(super) fn on_taken_half(&mut self, half: u32) -> Result<bool, Impossible> {
        let more = half.wrapping_sub(self.taken as u32);
        // A Send that was made before an earlier message left tells less than that.
        if more == 0 || more > u32::MAX / 2 {
            return Ok(false);
        }
        self.on_taken(self.taken + u64::from(more))
    }

    /// The peer has taken everything up to this offset. Returns whether that is more than before.
    #[inline]
    fn on_taken(&mut self, offset: u64) -> Result<bool, Impossible> {
        // Before its first FPDU this end has no requests.
        if self.sent == 0 {
            return Ok(false);
        }
        if offset > self.sent {
            return Err(Impossible);
        }
        let more = offset > self.taken;
        self.taken = self.taken.max(offset);
        Ok(more)
    }

    // ---- requests of the peer ----

    /// The lower half of the stream offset up to which this end has taken everything, for a Send. `position`:
    /// where the next FPDU begins.
    #[inline]
    pub(super) fn taken_half(&self, position: u64) -> u32 {
        self.taken_here(position) as u32
    }

    /// The peer is told what [`taken_half`](Self::taken_half) says.
    #[inline]
    pub(super) fn set_told(&mut self, position: u64) {
        (self.told, self.tell) = (self.taken_here(position), false);
    }

    /// A Send that was to tell the peer does not go.
    pub(super) fn forget_told(&mut self) {
        self.told = 0;
    }

    /// The peer waits to be told what this end has taken.
    pub(super) fn tell(&mut self) {
        self.tell = true;
    }

    /// Up to which stream offset this end has taken everything, if the next FPDU begins at `position`.
    #[inline]
    fn taken_here(&self, position: u64) -> u64 {
        match (&self.refused, self.last) {
            (Some(refused), _) => refused.offset,
            (None, Some(last)) => last,
            (None, None) => position,
        }
    }

    /// Whether a message of queue 4 has to be sent, apart from one that tells what is taken.
    #[inline]
    fn has_own_messages(&self) -> bool {
        self.peer == Peer::Ready
            || self
                .refused
                .as_ref()
                .is_some_and(|refused| matches!(refused.told, Told::Nothing { .. } | Told::ReadyNow))
    }

    /// Whether a message of queue 4 waits to be sent.
    #[inline]
    pub(super) fn has_messages(&self) -> bool {
        self.tell || self.has_own_messages()
    }

    /// Whether [`tell`](Self::tell) was called since the peer was told last.
    #[inline]
    pub(super) fn has_to_tell(&self) -> bool {
        self.tell
    }

    /// The next message of queue 4, with its MSN. `position`: where the next FPDU of the peer begins;
    /// `msns`: of the next message of this end to queue 0, and to queue 1.
    pub(super) fn next_message(&mut self, position: u64, msns: (u32, u32)) -> Option<(ProfileMessage, u32)> {
        let message = self.choose_message(position, msns)?;
        let msn = self.tx_msn;
        self.tx_msn = msn.wrapping_add(1);
        Some((message, msn))
    }

    fn choose_message(
        &mut self,
        position: u64,
        (send_msn, request_msn): (u32, u32),
    ) -> Option<ProfileMessage> {
        if self.peer == Peer::Ready {
            self.peer = Peer::Takes;
            return Some(ProfileMessage::Resume { send_msn, request_msn });
        }
        if let Some(refused) = &mut self.refused {
            match refused.told {
                Told::Nothing { ready } => {
                    refused.told = if ready { Told::ReadyNow } else { Told::NotReady };
                    (self.told, self.tell) = (refused.offset, false);
                    return Some(ProfileMessage::NotReady(refused.offset));
                }
                Told::ReadyNow => {
                    refused.told = Told::Ready;
                    return Some(ProfileMessage::Ready);
                }
                Told::NotReady | Told::Ready => {}
            }
        }
        if !std::mem::take(&mut self.tell) {
            return None;
        }
        let offset = self.taken_here(position);
        let more = offset > std::mem::replace(&mut self.told, offset);
        more.then_some(ProfileMessage::Taken(offset))
    }

    /// The message of the peer whose FPDU begins at this position of MPA finds no receive request.
    #[cold]
    pub(super) fn refuse(&mut self, position: u64, terminate: Terminate) {
        self.refused = Some(Refused {
            offset: self.rx_start + position,
            terminate: Box::new(terminate),
            told: Told::Nothing { ready: false },
        });
        self.news.refused = true;
    }

    /// Whether a message of the peer waits for a receive request of this end.
    pub(super) fn awaits_recv(&self) -> bool {
        self.refused
            .as_ref()
            .is_some_and(|refused| matches!(refused.told, Told::Nothing { ready: false } | Told::NotReady))
    }

    /// There is a receive request for the message that was refused.
    pub(super) fn on_recv(&mut self) {
        if let Some(refused) = &mut self.refused {
            refused.told = match refused.told {
                Told::Nothing { .. } => Told::Nothing { ready: true },
                Told::NotReady => Told::ReadyNow,
                told @ (Told::ReadyNow | Told::Ready) => told,
            };
        }
    }

    /// This end no longer waits for a receive request: the Terminate for the message that was refused.
    pub(super) fn give_up_waiting(&mut self) -> Option<Box<Terminate>> {
        self.refused.take().map(|Refused { offset, terminate, .. }| {
            self.last = Some(offset);
            terminate
        })
    }

    /// The stream ends here. What is taken by now, up to `position`, is told before that.
    pub(super) fn end(&mut self, position: u64) {
        self.last = Some(self.taken_here(position));
        (self.refused, self.peer) = (None, Peer::NotReady);
        self.tell = true;
    }

    // ---- queue 4 ----

    /// The peer's next message of queue 4.
    ///
    /// # Errors
    /// [`Impossible`]: it is no such message, or none that may come now.
    pub(super) fn on_message(&mut self, message: Option<ProfileMessage>) -> Result<Change, Impossible> {
        self.rx_msn = self.rx_msn.wrapping_add(1);
        match message.ok_or(Impossible)? {
            ProfileMessage::Taken(offset) => {
                Ok(if self.on_taken(offset)? { Change::Taken } else { Change::None })
            }
            ProfileMessage::NotReady(offset) if self.peer == Peer::Takes => {
                self.on_taken(offset)?;
                self.peer = Peer::NotReady;
                self.news.peer_not_ready = true;
                Ok(Change::GoBack)
            }
            ProfileMessage::Ready if self.peer == Peer::NotReady => {
                self.peer = Peer::Ready;
                Ok(Change::None)
            }
            ProfileMessage::Resume { send_msn, request_msn } if self.refused.is_some() => {
                self.refused = None;
                Ok(Change::PeerResumes { send_msn, request_msn })
            }
            ProfileMessage::NotReady(_) | ProfileMessage::Ready | ProfileMessage::Resume { .. } => {
                Err(Impossible)
            }
        }
    }

    /// The MSN that the peer's next message of queue 4 has to have.
    pub(super) fn next_msn(&self) -> u32 {
        self.rx_msn
    }

    /// A request of this end is taken that the peer did not take before.
    pub(super) fn note_progress(&mut self) {
        self.news.peer_takes = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdmap::TerminateError;

    const START: u64 = 40;

    /// A stream whose first FPDU from the peer is at 40, and that has sent FPDUs from `start` to `end`.
    fn sent(start: u64, end: u64) -> IbProfile {
        let mut ib = IbProfile::new(START);
        ib.set_sent(start, start + 1);
        ib.set_sent(start + 1, end);
        ib
    }

    fn terminate() -> Terminate {
        Terminate::bare(TerminateError::LocalCatastrophic)
    }

    /// All messages that wait, each with its MSN.
    fn messages(ib: &mut IbProfile, position: u64) -> Vec<(ProfileMessage, u32)> {
        std::iter::from_fn(|| ib.next_message(position, (7, 9))).collect()
    }

    /// A Send has half of an offset. It counts from what is known, over every border, and never back.
    #[test]
    fn half_an_offset_is_enough() {
        let start = (3 << 32) - 100;
        let mut ib = sent(start, start + 1000);
        assert_eq!(ib.taken(), start, "what went before the first FPDU is no request");
        for (offset, more) in
            [(start + 50, true), (start + 50, false), (start + 20, false), (start + 1000, true)]
        {
            assert_eq!(ib.on_taken_half(offset as u32), Ok(more), "{offset}");
        }
        assert_eq!(ib.taken(), start + 1000);
        assert_eq!(ib.on_taken_half((start + 1001) as u32), Err(Impossible), "it was never sent");
        assert_eq!(ib.taken(), start + 1000);
    }

    /// Before its first FPDU this end has sent no request, whatever the peer says.
    #[test]
    fn nothing_is_taken_of_an_end_that_has_sent_nothing() {
        let mut ib = IbProfile::new(START);
        assert_eq!(
            (ib.on_taken_half(20), ib.on_message(Some(ProfileMessage::Taken(20)))),
            (Ok(false), Ok(Change::None))
        );
        ib.set_sent(20, 60);
        assert_eq!((ib.on_taken_half(60), ib.taken()), (Ok(true), 60));
    }

    #[test]
    fn a_message_tells_what_no_send_has_told() {
        let mut ib = sent(20, 30);
        assert_eq!((messages(&mut ib, 90), ib.has_messages()), (vec![], false));
        ib.tell();
        assert!(ib.has_messages() && ib.lets_send());
        assert_eq!(messages(&mut ib, 90), [(ProfileMessage::Taken(90), 1)]);
        // Nothing new, and a Send that tells it.
        ib.tell();
        assert_eq!((messages(&mut ib, 90), ib.has_messages()), (vec![], false));
        ib.tell();
        assert_eq!(ib.taken_half((5 << 32) + 100), 100);
        ib.set_told(100);
        assert!(!ib.has_messages());
        ib.tell();
        assert_eq!(messages(&mut ib, 100), []);
        // That Send does not go.
        ib.forget_told();
        ib.tell();
        assert_eq!(messages(&mut ib, 100), [(ProfileMessage::Taken(100), 2)]);
    }

    /// A message that finds no receive request, and the peer that sends it again.
    #[test]
    fn a_refused_message_comes_again() {
        use ProfileMessage::{NotReady, Ready, Resume};
        let (mut here, mut peer) = (sent(20, 30), sent(START, 500));
        here.refuse(60, terminate());
        assert!(here.awaits_recv() && !here.lets_send());
        assert_eq!(here.take_news(), Some(News { refused: true, ..News::default() }));
        assert_eq!((here.take_news(), here.taken_half(300)), (None, 100));
        assert_eq!(messages(&mut here, 300), [(NotReady(100), 1)]);
        assert!(here.awaits_recv() && here.lets_send() && !here.has_messages());
        // What lies behind it is not taken.
        here.tell();
        assert_eq!(messages(&mut here, 300), []);

        assert_eq!(peer.on_message(Some(NotReady(100))), Ok(Change::GoBack));
        assert_eq!(peer.take_news(), Some(News { peer_not_ready: true, ..News::default() }));
        assert!(!peer.lets_send() && !peer.is_peer_ready() && peer.is_peer_there());
        assert_eq!((peer.taken(), messages(&mut peer, 50)), (100, vec![]));

        here.on_recv();
        assert!(!here.awaits_recv() && here.has_messages());
        assert_eq!(messages(&mut here, 300), [(Ready, 2)]);
        here.on_recv();
        assert_eq!(messages(&mut here, 300), [], "the peer knows it");

        assert_eq!(peer.on_message(Some(Ready)), Ok(Change::None));
        assert!(peer.has_messages() && !peer.lets_send() && peer.is_peer_ready());
        assert_eq!(messages(&mut peer, 50), [(Resume { send_msn: 7, request_msn: 9 }, 1)]);
        assert!(peer.lets_send());

        let resumed = Change::PeerResumes { send_msn: 7, request_msn: 9 };
        assert_eq!(here.on_message(Some(Resume { send_msn: 7, request_msn: 9 })), Ok(resumed));
        here.tell();
        assert_eq!((messages(&mut here, 400), here.next_msn()), (vec![(ProfileMessage::Taken(400), 3)], 2));
    }

    /// The receive request is there before the peer was told that there is none. It has to be told both.
    #[test]
    fn a_receive_that_comes_at_once_is_told_behind_the_refusal() {
        let mut ib = sent(20, 30);
        ib.refuse(60, terminate());
        ib.on_recv();
        assert!(!ib.awaits_recv() && ib.has_messages());
        assert_eq!(messages(&mut ib, 300), [(ProfileMessage::NotReady(100), 1), (ProfileMessage::Ready, 2)]);
    }

    /// Of a message that waited for too long, and of those behind it, the peer is told nothing.
    #[test]
    fn the_last_that_is_told_is_in_front_of_the_failure() {
        let mut ib = sent(20, 30);
        ib.refuse(60, terminate());
        assert!(ib.give_up_waiting().is_some() && ib.give_up_waiting().is_none());
        ib.end(300);
        assert_eq!(messages(&mut ib, 400), [(ProfileMessage::Taken(100), 1)]);
        let mut ib = sent(20, 30);
        ib.end(300);
        assert!(ib.has_messages() && !ib.lets_send());
        assert_eq!(messages(&mut ib, 400), [(ProfileMessage::Taken(300), 1)]);
    }

    /// Each message that may not come is refused, and so is one that cannot be read.
    #[test]
    fn a_peer_that_contradicts_itself_is_refused() {
        use ProfileMessage::{NotReady, Ready, Resume, Taken};
        let resume = Resume { send_msn: 1, request_msn: 1 };
        for message in [Some(Taken(501)), Some(NotReady(501)), Some(Ready), Some(resume), None] {
            assert_eq!(sent(20, 500).on_message(message), Err(Impossible), "{message:?}");
        }
        let mut ib = sent(20, 500);
        ib.on_message(Some(NotReady(100))).unwrap();
        assert_eq!(ib.on_message(Some(NotReady(100))), Err(Impossible), "there is nothing to refuse");
        ib.on_message(Some(Ready)).unwrap();
        assert_eq!(ib.on_message(Some(Ready)), Err(Impossible));
        let mut ib = sent(20, 500);
        ib.on_peer_closed();
        assert!(!ib.is_peer_there() && ib.lets_send());
    }
}
