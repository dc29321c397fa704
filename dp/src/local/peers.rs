//! All stations that a port has to do with, and the sockets: connecting, accepting, and noticing who is gone.
//!
//! Nothing here blocks. [`Peers::look`] does what has become possible since the last call.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, connect};

use super::claim::{self, Claim};
use super::credentials::is_same_user;
use super::fork::OwnFd;
use super::hello::{self, Heard, Kind, Message};
use super::memory::{self, SharedMemory};
use super::peer::{Pair, Peer, PeerState, Side, make_memory, memory_bytes};
use super::{LocalCounters, LocalError};

/// How long a handshake may take. Both sides only have to be polled once or twice, so a process that takes
/// longer is stopped, or not one of ours.
const HANDSHAKE_US: u64 = 2_000_000;

/// Sockets that were accepted and have sent no hello yet. One more replaces the oldest.
const MAX_GREETINGS: usize = 64;

/// How long the listener is left alone when the process has no descriptors.
const DEAF_US: u64 = 100_000;

/// Time between attempts to connect to a station whose queue of connections is full.
const REDIAL_US: u64 = 1000;

/// Events taken with one call.
const EVENTS: usize = 32;

/// Keys of events: the listener, a socket without a station yet, or the socket of a station.
const LISTENER: u64 = 0;
const GREETING: u64 = 1 << 32;
const STATION: u64 = 2 << 32;

/// A socket that another station has connected to ours.
struct Greeting {
    socket: OwnFd,
    /// Its number in keys.
    token: u32,
    since_us: u64,
    /// Its hello, which waits until the pair before it has ended.
    hello: Option<(Message, OwnedFd)>,
}

/// See the module.
pub(super) struct Peers {
    pub(super) claim: Claim,
    epoll: OwnFd,
    ring_bytes: usize,
    /// A random number: see [`Message::instance`].
    instance: u64,
    /// Hellos sent so far.
    serial: u64,
    /// The numbers of `list`, in the same order: most ports have few.
    stations: Vec<u16>,
    pub(super) list: Vec<Peer>,
    greetings: Vec<Greeting>,
    next_token: u32,
    /// Stations that are gone, and of which the user is still to be told. Until then nothing is received
    /// from these numbers, so that nobody takes a new process for the old one.
    departed: VecDeque<u16>,
    /// When `look` was last called.
    looked_us: u64,
    /// When to listen again.
    deaf_until_us: Option<u64>,
    /// Whether frames may wait for space in a ring.
    pub(super) backlogged: bool,
    pub(super) counters: LocalCounters,
}

impl Peers {
    pub(super) fn new(claim: Claim, ring_bytes: usize) -> Result<Self, LocalError> {
        let system = |errno: Errno| LocalError::System(errno.into());
        let epoll = OwnFd::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system)?);
        let mut instance = [0; 8];
        rustix::rand::getrandom(&mut instance[..], rustix::rand::GetRandomFlags::empty()).map_err(system)?;
        let key = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &claim.listener, key, epoll::EventFlags::IN).map_err(system)?;
        Ok(Self {
            claim,
            epoll,
            ring_bytes,
            instance: u64::from_ne_bytes(instance),
            serial: 0,
            stations: Vec::new(),
            list: Vec::new(),
            greetings: Vec::new(),
            next_token: 0,
            departed: VecDeque::new(),
            looked_us: 0,
            deaf_until_us: None,
            backlogged: false,
            counters: LocalCounters::default(),
        })
    }

    /// Readable when [`look`](Self::look) has something to do, or when a reader was woken.
    pub(super) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// The place of a station in `list`.
    #[inline]
    pub(super) fn find(&self, station: u16) -> Option<usize> {
        self.stations.iter().position(|other| *other == station)
    }

    /// The number of the station at this place.
    #[inline]
    pub(super) fn station(&self, at: usize) -> Option<u16> {
        self.stations.get(at).copied()
    }

    /// Whether a handshake is under way.
    #[inline]
    pub(super) fn is_shaking_hands(&self) -> bool {
        !self.greetings.is_empty() || self.list.iter().any(|peer| !matches!(peer.state, PeerState::Paired(_)))
    }

    /// When a handshake is given up, if one is under way, or when to listen again.
    pub(super) fn next_due_us(&self) -> Option<u64> {
        let unpaired = self.list.iter().filter(|peer| !matches!(peer.state, PeerState::Paired(_)));
        let since = unpaired.map(|peer| peer.since_us).chain(self.greetings.iter().map(|it| it.since_us));
        let given_up = since.min().map(|since_us| since_us + HANDSHAKE_US);
        // Nothing tells when there is space in the queue of a listener.
        let dialing = self.list.iter().any(|peer| matches!(peer.state, PeerState::Dialing));
        let again = dialing.then_some(self.looked_us + REDIAL_US);
        [given_up, self.deaf_until_us, again].into_iter().flatten().min()
    }

    /// The next station that is gone.
    #[inline]
    pub(super) fn next_departed(&mut self) -> Option<u16> {
        self.departed.pop_front()
    }

    /// Whether a station is gone and the user was not told.
    #[inline]
    pub(super) fn has_departed(&self) -> bool {
        !self.departed.is_empty()
    }

    /// The place of a station, to which a connection begins if there is none. `None`: it is not there.
    #[cold]
    pub(super) fn begin(&mut self, now_us: u64, station: u16) -> Option<usize> {
        if self.departed.contains(&station) {
            return None;
        }
        let at = self.add(now_us, station);
        if !self.dial(at) {
            self.remove(at);
            return None;
        }
        Some(at)
    }

    fn add(&mut self, now_us: u64, station: u16) -> usize {
        self.stations.push(station);
        self.list.push(Peer::new(now_us));
        self.list.len() - 1
    }

    /// Connects to the station at this place, and sends a hello. `false`: it is not there.
    fn dial(&mut self, at: usize) -> bool {
        let station = self.stations[at];
        match self.try_dial(station) {
            Ok(greeted) => self.list[at].state = greeted,
            // Its queue of connections is full.
            Err(Errno::AGAIN) => {}
            // This process has no descriptor or memory for the connection, and may have some later.
            Err(errno) if claim::is_lack(errno) => {}
            Err(_) => return false,
        }
        true
    }

    fn try_dial(&mut self, station: u16) -> Result<PeerState, Errno> {
        let socket = OwnFd::new(claim::socket()?);
        connect(&socket, &claim::address(self.claim.folder.path(), station)?)?;
        if !is_same_user(&socket) {
            return Err(Errno::PERM);
        }
        let (memory, memfd) = make_memory(self.ring_bytes)?;
        self.serial += 1;
        hello::tell(&socket, &self.message(Kind::Hello), Some(&memfd))?;
        let key = epoll::EventData::new_u64(STATION | u64::from(station));
        epoll::add(&self.epoll, &socket, key, epoll::EventFlags::IN)?;
        Ok(PeerState::Greeted { socket, memory })
    }

    fn message(&self, kind: Kind) -> Message {
        Message {
            kind,
            station: self.claim.station,
            ring_bytes: self.ring_bytes as u64,
            instance: self.instance,
            serial: self.serial,
        }
    }

    /// Takes what has come from sockets, and goes on with handshakes. Returns whether more has come.
    pub(super) fn look(&mut self, now_us: u64) -> bool {
        self.looked_us = now_us;
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        // A failed wait finds nothing: the next look tries again.
        let found = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()));
        let events = found.map_or(&mut [][..], |(events, _)| events);
        let more = events.len() == EVENTS;
        for event in events {
            let key = event.data.u64();
            match (key & !u64::from(u32::MAX), key as u32) {
                (LISTENER, _) => self.accept(now_us),
                (GREETING, token) => {
                    if let Some(at) = self.greetings.iter().position(|greeting| greeting.token == token) {
                        self.hear_greeting(at);
                    }
                }
                (_, station) => {
                    if let Some(at) = self.find(station as u16) {
                        self.hear_peer(at);
                    }
                }
            }
        }
        if self.is_shaking_hands() || self.deaf_until_us.is_some() {
            self.go_on(now_us);
        }
        more
    }

    /// Goes on with handshakes that wait for something but a message, and ends those that take too long.
    fn go_on(&mut self, now_us: u64) {
        if self.deaf_until_us.is_some_and(|until_us| until_us <= now_us) {
            self.listen(None);
        }
        for at in (0..self.greetings.len()).rev() {
            self.settle(now_us, at);
        }
        let late = |since_us: u64| now_us.saturating_sub(since_us) >= HANDSHAKE_US;
        for at in (0..self.greetings.len()).rev() {
            if late(self.greetings[at].since_us) {
                self.refuse(at);
            }
        }
        for at in (0..self.list.len()).rev() {
            let peer = &self.list[at];
            let gone = match peer.state {
                PeerState::Paired(_) => false,
                _ if late(peer.since_us) => true,
                PeerState::Dialing => !self.dial(at),
                PeerState::Greeted { .. } | PeerState::Crossed => false,
            };
            if gone {
                self.remove(at);
            }
        }
    }

    /// Accepts what waits.
    fn accept(&mut self, now_us: u64) {
        for _ in 0..MAX_GREETINGS {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(&self.claim.listener, flags) {
                Ok(socket) => OwnFd::new(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                // Without descriptors the listener stays readable, and we would never sleep.
                Err(_) => return self.listen(Some(now_us + DEAF_US)),
            };
            if !is_same_user(&socket) {
                self.counters.refused += 1;
                continue;
            }
            if self.greetings.len() >= MAX_GREETINGS {
                self.refuse(0);
            }
            self.next_token = self.next_token.wrapping_add(1);
            let token = self.next_token;
            let key = epoll::EventData::new_u64(GREETING | u64::from(token));
            if epoll::add(&self.epoll, &socket, key, epoll::EventFlags::IN).is_ok() {
                self.greetings.push(Greeting { socket, token, since_us: now_us, hello: None });
                // Mostly its hello is there already.
                self.hear_greeting(self.greetings.len() - 1);
            }
        }
    }

    /// Listens from now on, or not before this time.
    fn listen(&mut self, deaf_until_us: Option<u64>) {
        self.deaf_until_us = deaf_until_us;
        let flags = if deaf_until_us.is_some() { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let key = epoll::EventData::new_u64(LISTENER);
        // It is in the set, so this does not fail; if it did, the next event would find the same.
        let _ = epoll::modify(&self.epoll, &self.claim.listener, key, flags);
    }

    /// A message of a socket without a station.
    fn hear_greeting(&mut self, at: usize) {
        let greeting = &mut self.greetings[at];
        match hello::hear(&greeting.socket) {
            Heard::Silence => {}
            Heard::Message(message, Some(memfd))
                if greeting.hello.is_none()
                    && message.kind == Kind::Hello
                    && message.station != self.claim.station
                    && memory_bytes(message.ring_bytes)
                        .is_some_and(|bytes| memory::is_fit(&memfd, bytes)) =>
            {
                greeting.hello = Some((message, memfd));
            }
            // Somebody asked whether we live, or has changed its mind.
            Heard::End => self.drop_greeting(at),
            Heard::Message(..) | Heard::Nonsense | Heard::Wake => self.refuse(at),
        }
    }

    /// Answers a hello, if there is one and if it can be answered.
    fn settle(&mut self, now_us: u64, at: usize) {
        let Some((message, _)) = &self.greetings[at].hello else { return };
        let (station, instance, serial) = (message.station, message.instance, message.serial);
        if self.departed.contains(&station) {
            return;
        }
        let Some(peer) = self.find(station) else { return self.adopt(now_us, at) };
        match &self.list[peer].state {
            PeerState::Dialing | PeerState::Crossed => self.adopt(now_us, at),
            // Both have connected. The lower station's rings are used.
            PeerState::Greeted { .. } if self.claim.station > station => self.adopt(now_us, at),
            PeerState::Greeted { .. } => {
                // If it is gone, that is found on our own socket.
                let _ = hello::tell(&self.greetings[at].socket, &self.message(Kind::Crossed), None);
                self.drop_greeting(at);
            }
            // It sent this before it agreed on the pair that exists.
            PeerState::Paired(pair) if pair.instance == instance && serial <= pair.serial => {
                self.drop_greeting(at);
            }
            // The station has begun anew, or somebody else claims to be it: the old pair has to end first.
            PeerState::Paired(pair) => {
                if pair.socket.is_some() {
                    self.hear_peer(peer);
                }
            }
        }
    }

    /// Uses the rings of a hello.
    fn adopt(&mut self, now_us: u64, at: usize) {
        let Some(Greeting { socket, hello: Some((message, memfd)), .. }) = self.take_greeting(at) else {
            return;
        };
        let memory = memory_bytes(message.ring_bytes).map(|bytes| SharedMemory::map(&memfd, bytes));
        let Some(Ok(memory)) = memory else {
            self.counters.refused += 1;
            return;
        };
        let key = epoll::EventData::new_u64(STATION | u64::from(message.station));
        if hello::tell(&socket, &self.message(Kind::Welcome), None).is_err()
            || epoll::add(&self.epoll, &socket, key, epoll::EventFlags::IN).is_err()
        {
            // It is gone, or this process has no memory.
            return;
        }
        let place = match self.find(message.station) {
            Some(place) => place,
            None => self.add(now_us, message.station),
        };
        let known = (message.instance, message.serial);
        self.pair_up(place, Pair::new(socket, &Arc::new(memory), Side::Taker, known));
    }

    /// A message of a station, or its end.
    fn hear_peer(&mut self, at: usize) {
        let station = self.stations[at];
        match &mut self.list[at].state {
            PeerState::Dialing | PeerState::Crossed => {}
            PeerState::Paired(pair) => {
                if let Some(socket) = &pair.socket
                    && !hello::take_wakes(socket)
                {
                    forget(&self.epoll, pair.socket.take());
                }
            }
            PeerState::Greeted { socket, .. } => match hello::hear(&*socket) {
                Heard::Silence => {}
                Heard::Message(message, _) if message.kind == Kind::Welcome && message.station == station => {
                    self.welcomed(at, (message.instance, message.serial));
                }
                Heard::Message(message, _)
                    if message.kind == Kind::Crossed
                        && message.station == station
                        && station < self.claim.station =>
                {
                    self.replace(at, PeerState::Crossed);
                }
                Heard::Message(..) | Heard::Nonsense | Heard::Wake | Heard::End => self.remove(at),
            },
        }
    }

    /// The station uses our rings.
    fn welcomed(&mut self, at: usize, known: (u64, u64)) {
        let before = std::mem::replace(&mut self.list[at].state, PeerState::Crossed);
        if let PeerState::Greeted { socket, memory } = before {
            self.pair_up(at, Pair::new(socket, &memory, Side::Maker, known));
        }
    }

    /// Begins to use a pair.
    fn pair_up(&mut self, at: usize, pair: Pair) {
        self.counters.pairs += 1;
        self.backlogged |= !self.list[at].waiting.is_empty();
        self.replace(at, PeerState::Paired(pair));
    }

    /// Changes the state of a peer; a socket of the old one is closed.
    fn replace(&mut self, at: usize, state: PeerState) {
        let before = std::mem::replace(&mut self.list[at].state, state);
        self.close(before);
    }

    fn close(&self, state: PeerState) {
        match state {
            PeerState::Greeted { socket, .. } => forget(&self.epoll, Some(socket)),
            PeerState::Paired(pair) => forget(&self.epoll, pair.socket),
            PeerState::Dialing | PeerState::Crossed => {}
        }
    }

    /// Removes a station, which is gone: the user is told.
    pub(super) fn remove(&mut self, at: usize) {
        let station = self.stations.swap_remove(at);
        let Peer { state, waiting, .. } = self.list.swap_remove(at);
        self.close(state);
        crate::trace::station_left(station, waiting.len());
        self.counters.lost += waiting.len() as u64;
        self.counters.departed += 1;
        if !self.departed.contains(&station) {
            self.departed.push_back(station);
        }
    }

    fn take_greeting(&mut self, at: usize) -> Option<Greeting> {
        let greeting = self.greetings.remove(at);
        // Its key changes, or it is closed: another descriptor of it may be open elsewhere.
        epoll::delete(&self.epoll, &greeting.socket).ok()?;
        Some(greeting)
    }

    fn drop_greeting(&mut self, at: usize) {
        drop(self.take_greeting(at));
    }

    fn refuse(&mut self, at: usize) {
        self.counters.refused += 1;
        self.drop_greeting(at);
    }
}

/// Closes a socket, which is in the set. Explicitly, since the set keeps a socket of which somebody else has
/// a descriptor.
fn forget(epoll: &OwnFd, socket: Option<OwnFd>) {
    if let Some(socket) = socket
        && epoll.is_open()
    {
        let _ = epoll::delete(epoll, &socket);
    }
}
