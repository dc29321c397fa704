//! InfiniBand's semantics between two ends of this implementation
//! ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)): all that they agree on beyond iWARP.
//!
//! | file | what |
//! |---|---|
//! | here | the state of one stream: messages that find no receive request, at either end |
//! | `agreement.rs` | the offer and the consent, in the private data of MPA's startup frames |
//! | `message.rs` | the messages of queue 4 |
//!
//! **A request completes when the peer has taken its message**: when the message is placed, and has its
//! receive request if it needs one. (With iWARP it completes when it is handed to TCP, RFC 5040 section 5.5.)
//! An engine acknowledges nothing that it has not looked at, so TCP's acknowledgement says that a message is
//! taken, with one exception:
//!
//! **A message that is not taken is not acknowledged before the peer knows it.** The receiver tells the peer
//! by a message of queue 4, and TCP withholds the acknowledgement
//! ([`tcp_lite::Stack::withhold`]) until the peer has acknowledged the bytes of that message.
//!
//! **A message without a receive request is not taken** (InfiniBand: "receiver not ready", RNR). The receiver
//! says so ([`NotReady`](ProfileMessage::NotReady)), and drops that message and all requests behind it: the
//! sender still has them. It goes on to take what answers requests of its own, so neither end waits for the
//! other in a circle, and no memory is held for a message that has no place. Once a receive request is there,
//! the receiver says so ([`Ready`](ProfileMessage::Ready)). The sender then sends the dropped requests
//! again, behind a mark ([`Resume`](ProfileMessage::Resume)). InfiniBand's sender tries again after a time
//! that the receiver has told, so many times; here the request fails when that time has passed as often.
//!
//! **A stream that fails tells where** ([`Ends`](ProfileMessage::Ends)), in front of its Terminate, or of FIN
//! if the peer is not told the cause.

use crate::rdmap::Terminate;

pub(crate) mod agreement;
mod message;

pub(crate) use message::{PAYLOAD_BYTES, ProfileMessage, QUEUE};

/// The state of a stream whose ends have agreed on the profile.
pub(super) struct IbProfile {
    /// The stream offset of MPA's position 0 in the peer's bytes.
    rx_start: u64,

    // ---- requests of this end ----
    peer: Peer,
    /// The peer takes no message behind this stream offset.
    ends: u64,

    // ---- requests of the peer ----
    /// The message that found no receive request.
    refused: Option<Refused>,
    /// This end takes no message behind this stream offset, and has to say so.
    last: Option<u64>,
    /// Acknowledgements are withheld until the peer has acknowledged the bytes below this stream offset;
    /// `u64::MAX`: they are not yet sent.
    withheld_until: Option<u64>,

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
    /// It has closed the connection, or its stream has failed: it takes nothing more.
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
    /// A message of the peer at this stream offset has found no receive request.
    pub(crate) refused: Option<u64>,
    /// The peer has no receive request for a message of this end.
    pub(crate) peer_not_ready: bool,
    /// The peer has taken a request of this end that it did not take before.
    pub(crate) peer_takes: bool,
}

/// The peer has told what cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Impossible;

/// What a message of queue 4 changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Nothing yet.
    None,
    /// The requests of this end before this stream offset are taken. The others go again.
    GoBack(u64),
    /// The requests of this end before this stream offset are taken, and no other one.
    Ends(u64),
    /// The peer begins anew with its own requests, by these MSNs of queue 0 and queue 1.
    PeerResumes { send_msn: u32, request_msn: u32 },
}

impl IbProfile {
    /// Of a stream whose first FPDU from the peer is at this stream offset.
    pub(super) fn new(rx_start: u64) -> Self {
        Self {
            rx_start,
            peer: Peer::Takes,
            ends: u64::MAX,
            refused: None,
            last: None,
            withheld_until: None,
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

    /// The stream offset below which messages are taken that TCP's peer has acknowledged up to `offset`.
    #[inline]
    pub(super) fn taken(&self, offset: u64) -> u64 {
        offset.min(self.ends)
    }

    /// Whether requests of this end may be sent, and nothing of queue 4 goes first.
    #[inline]
    pub(super) fn lets_send(&self) -> bool {
        self.peer == Peer::Takes && !self.has_messages()
    }

    /// Whether requests of this end wait until the peer has a receive request.
    pub(super) fn awaits_peer(&self) -> bool {
        self.peer == Peer::NotReady
    }

    /// The peer has closed the connection: it tells nothing more.
    pub(super) fn on_peer_closed(&mut self) {
        self.peer = Peer::Gone;
    }

    /// Whether the peer may still take requests of this end.
    pub(super) fn is_peer_there(&self) -> bool {
        self.peer != Peer::Gone
    }

    /// A request of this end is taken that the peer did not take before.
    pub(super) fn note_progress(&mut self) {
        self.news.peer_takes = true;
    }

    // ---- requests of the peer ----

    /// The message of the peer whose FPDU begins at this position of MPA finds no receive request.
    #[cold]
    pub(super) fn refuse(&mut self, position: u64, terminate: Terminate) {
        let offset = self.rx_start + position;
        let told = Told::Nothing { ready: false };
        self.refused = Some(Refused { offset, terminate: Box::new(terminate), told });
        self.withheld_until = Some(u64::MAX);
        self.news.refused = Some(offset);
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

    /// The stream fails here: no message behind stream offset `position` is taken. Returns the offset from
    /// which on none is.
    pub(super) fn end(&mut self, position: u64) -> u64 {
        let refused = self.refused.take().map(|refused| refused.offset);
        let last = refused.or(self.last).unwrap_or(position);
        (self.last, self.peer, self.withheld_until) = (Some(last), Peer::Gone, Some(u64::MAX));
        last
    }

    /// The message that tells the peer what is not taken ends at this stream offset of this end.
    pub(super) fn set_told(&mut self, end: u64) {
        if self.withheld_until == Some(u64::MAX) {
            self.withheld_until = Some(end);
        }
    }

    /// Whether acknowledgements need not be withheld any more: TCP's peer has acknowledged the bytes below
    /// `offset`. Says so once.
    pub(super) fn knows_refusal(&mut self, offset: u64) -> bool {
        let knows = self.withheld_until.is_some_and(|until| until <= offset);
        if knows {
            self.withheld_until = None;
        }
        knows
    }

    /// See [`knows_refusal`](Self::knows_refusal).
    pub(super) fn withheld_until(&self) -> Option<u64> {
        self.withheld_until
    }

    // ---- queue 4 ----

    /// Whether a message of queue 4 waits to be sent.
    #[inline]
    pub(super) fn has_messages(&self) -> bool {
        self.last.is_some()
            || self.peer == Peer::Ready
            || self
                .refused
                .as_ref()
                .is_some_and(|refused| matches!(refused.told, Told::Nothing { .. } | Told::ReadyNow))
    }

    /// The next message of queue 4, with its MSN. `msns`: of the next message of this end to queue 0, and to
    /// queue 1.
    pub(super) fn next_message(&mut self, msns: (u32, u32)) -> Option<(ProfileMessage, u32)> {
        let message = self.choose_message(msns)?;
        let msn = self.tx_msn;
        self.tx_msn = msn.wrapping_add(1);
        Some((message, msn))
    }

    fn choose_message(&mut self, (send_msn, request_msn): (u32, u32)) -> Option<ProfileMessage> {
        if let Some(last) = self.last.take() {
            return Some(ProfileMessage::Ends(last));
        }
        if self.peer == Peer::Ready {
            self.peer = Peer::Takes;
            return Some(ProfileMessage::Resume { send_msn, request_msn });
        }
        let refused = self.refused.as_mut()?;
        match refused.told {
            Told::Nothing { ready } => {
                refused.told = if ready { Told::ReadyNow } else { Told::NotReady };
                Some(ProfileMessage::NotReady(refused.offset))
            }
            Told::ReadyNow => {
                refused.told = Told::Ready;
                Some(ProfileMessage::Ready)
            }
            Told::NotReady | Told::Ready => None,
        }
    }

    /// The MSN that the peer's next message of queue 4 has to have.
    pub(super) fn next_msn(&self) -> u32 {
        self.rx_msn
    }

    /// The peer's next message of queue 4. This end has sent FPDUs up to the stream offset `sent`; 0: none.
    ///
    /// # Errors
    /// [`Impossible`]: it is no such message, or none that may come now.
    pub(super) fn on_message(
        &mut self,
        message: Option<ProfileMessage>,
        sent: u64,
    ) -> Result<Change, Impossible> {
        self.rx_msn = self.rx_msn.wrapping_add(1);
        match message.ok_or(Impossible)? {
            ProfileMessage::NotReady(offset) if self.peer == Peer::Takes && offset < sent => {
                self.peer = Peer::NotReady;
                self.news.peer_not_ready = true;
                Ok(Change::GoBack(offset))
            }
            ProfileMessage::Ready if self.peer == Peer::NotReady => {
                self.peer = Peer::Ready;
                Ok(Change::None)
            }
            ProfileMessage::Resume { send_msn, request_msn } if self.refused.is_some() => {
                self.refused = None;
                Ok(Change::PeerResumes { send_msn, request_msn })
            }
            // An end that has sent no FPDU has no request that this is about.
            ProfileMessage::Ends(offset) if offset <= sent || sent == 0 => {
                (self.ends, self.peer) = (offset, Peer::Gone);
                Ok(Change::Ends(offset))
            }
            ProfileMessage::NotReady(_)
            | ProfileMessage::Ready
            | ProfileMessage::Resume { .. }
            | ProfileMessage::Ends(_) => Err(Impossible),
        }
    }
}
