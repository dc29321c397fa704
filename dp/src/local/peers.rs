//! All stations with which a port communicates, and the sockets to these stations. This module connects to
//! stations, accepts connections, and detects stations that have ended.
//!
//! No function of this module blocks. [`Peers::look`] handles timers and socket events. If there are many
//! events, a call leaves some of them to the next call.

use std::collections::VecDeque;
use std::iter;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, connect};

use super::claim::{self, Claim};
use super::credentials::is_same_user;
use super::fork::OwnFd;
use super::hello::{self, Descriptors, Heard, Kind, Message};
use super::memory::{self, SharedMemory};
use super::peer::{self, Pair, Peer, PeerState, Pools, Side, make_memory, memory_bytes};
use super::pool::{PeerPool, PoolMemory};
use super::{LocalCounters, LocalError};

/// Maximum time for connecting to a station and receiving its answer. The time is long, since the station's
/// process may be stopped. TCP usually gives up earlier.
const ANSWER_US: u64 = 60_000_000;

/// Maximum time for which an accepted socket may wait for a hello that can be answered. After this time the
/// port tells the connecting process to connect again.
const GREETING_US: u64 = 2_000_000;

/// Maximum number of accepted sockets that wait for a hello, or for the end of the station's previous pair.
/// Further connections wait in the listener's queue.
const MAX_GREETINGS: usize = 64;

/// Maximum time for which an accepted socket may wait for its hello while other connections wait in the
/// listener's queue.
const PLACE_US: u64 = 10_000;

/// Time after the start of a handshake for which each poll reads the sockets. Reading the sockets is a system
/// call. A handshake that takes longer probably waits for a process that does not run.
const HASTE_US: u64 = 10_000;

/// Time for which the listener is ignored after the process has run out of descriptors.
const DEAF_US: u64 = 100_000;

/// Time until this port connects again to a station that has sent its own hello, since this hello may be
/// lost.
const CROSSED_US: u64 = 1_000_000;

/// Maximum number of events that one call of [`Peers::look`] handles.
const EVENTS: usize = 32;

/// The keys of events: for the listener, for a socket whose station is not known yet, and for the socket of a
/// station.
const LISTENER: u64 = 0;
const GREETING: u64 = 1 << 32;
const STATION: u64 = 2 << 32;

/// A socket by which another station has connected to this port.
struct Greeting {
    socket: OwnFd,
    /// The number by which the keys of events name the socket.
    token: u32,
    since_us: u64,
    /// The hello that has arrived on the socket. The hello waits here until it can be answered, for example
    /// until the station's previous pair has ended.
    hello: Option<Hello>,
}

/// A hello with the memory that it offers.
struct Hello {
    message: Message,
    rings: OwnedFd,
    pool: Option<OwnedFd>,
}

/// All stations with which a port communicates.
pub(super) struct Peers {
    pub(super) claim: Claim,
    epoll: OwnFd,
    ring_bytes: usize,
    /// The pages of this port. `None` if the port lends no frames.
    pool: Option<Arc<PoolMemory>>,
    /// The random number of this port: see [`Message::instance`].
    instance: u64,
    serial: u64,
    /// The station numbers of `list`, in the same order. The numbers are searched linearly, since most ports
    /// have few peers.
    stations: Vec<u16>,
    pub(super) list: Vec<Peer>,
    greetings: Vec<Greeting>,
    next_token: u32,
    /// Stations that have ended, but are not yet reported to the user. Until a station is reported, the port
    /// receives nothing from the station's number, so that the user does not confuse a new process with the
    /// old process.
    departed: VecDeque<u16>,
    /// The time at which the port listens again, if the listener is ignored.
    deaf_until_us: Option<u64>,
    /// Number of bytes by which the rings to which this port writes may still grow.
    pub(super) allowance: usize,
    /// `true` if frames may wait for space in a ring.
    pub(super) backlogged: bool,
    pub(super) counters: LocalCounters,
}

impl Peers {
    pub(super) fn new(
        claim: Claim,
        ring_bytes: usize,
        pool: Option<Arc<PoolMemory>>,
    ) -> Result<Self, LocalError> {
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
            pool,
            instance: u64::from_ne_bytes(instance),
            serial: 0,
            stations: Vec::new(),
            list: Vec::new(),
            greetings: Vec::new(),
            next_token: 0,
            departed: VecDeque::new(),
            deaf_until_us: None,
            allowance: peer::allowance(ring_bytes),
            backlogged: false,
            counters: LocalCounters::default(),
        })
    }

    /// A descriptor that is readable when an event waits for [`look`](Self::look), for example because a peer
    /// has woken this port.
    pub(super) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Returns the index of a station in `list`, or `None` if the station is not in the list.
    #[inline]
    pub(super) fn find(&self, station: u16) -> Option<usize> {
        self.stations.iter().position(|other| *other == station)
    }

    /// The number of the station at this index. `None` if no station has this index.
    #[inline]
    pub(super) fn station(&self, at: usize) -> Option<u16> {
        self.stations.get(at).copied()
    }

    /// Present size in bytes of the shared memory of all pairs.
    pub(super) fn memory_bytes(&self) -> usize {
        let pairs = self.list.iter().filter_map(|peer| match &peer.state {
            PeerState::Paired(pair) => Some(pair.memory_bytes()),
            _ => None,
        });
        pairs.sum()
    }

    /// The start times of the handshakes in progress.
    fn handshakes(&self) -> impl Iterator<Item = u64> {
        let unpaired = self.list.iter().filter(|peer| !matches!(peer.state, PeerState::Paired(_)));
        unpaired.map(|peer| peer.since_us).chain(self.greetings.iter().map(|it| it.since_us))
    }

    /// Whether a recent handshake is in progress, so that each poll should read the sockets.
    pub(super) fn is_in_haste(&self, now_us: u64) -> bool {
        self.handshakes().any(|since_us| now_us.saturating_sub(since_us) < HASTE_US)
    }

    /// The next time at which a handshake continues without a message or ends, or at which the port listens
    /// again. `None` if no such time is known.
    pub(super) fn next_due_us(&self) -> Option<u64> {
        let unpaired = self.list.iter().filter_map(|peer| match peer.state {
            PeerState::Dialing { again_us } => Some(again_us),
            PeerState::Greeted { .. } => Some(peer.since_us + ANSWER_US),
            PeerState::Paired(_) => None,
        });
        let greetings = self.greetings.iter().map(|greeting| greeting.since_us + GREETING_US);
        unpaired.chain(greetings).chain(self.deaf_until_us).min()
    }

    /// Removes and returns the next station to report as ended. Returns `None` if there is no such station.
    #[inline]
    pub(super) fn next_departed(&mut self) -> Option<u16> {
        self.departed.pop_front()
    }

    /// Whether any ended station is not yet reported to the user.
    #[inline]
    pub(super) fn has_departed(&self) -> bool {
        !self.departed.is_empty()
    }

    /// Adds a station to the list, starts connecting to the station, and returns its index. Returns `None` if
    /// this port cannot connect to the station, for example because the station does not exist, or if the end
    /// of the station is not yet reported. A station to which this port cannot connect is reported as ended.
    #[cold]
    pub(super) fn begin(&mut self, now_us: u64, station: u16) -> Option<usize> {
        if self.departed.contains(&station) {
            return None;
        }
        let at = self.add(now_us, station);
        if !self.dial(now_us, at) {
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

    /// Connects to the station at this index, and sends a hello. If the attempt fails for a reason that may
    /// pass, sets the time of the next attempt. Returns `false` if it fails for another reason, for example
    /// because the station does not exist.
    fn dial(&mut self, now_us: u64, at: usize) -> bool {
        let station = self.stations[at];
        match self.try_dial(station) {
            Ok(greeted) => self.list[at].state = greeted,
            Err(errno) if claim::may_be_there(errno) => {
                let again_us = self.list[at].next_attempt_us(now_us);
                self.list[at].state = PeerState::Dialing { again_us };
            }
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
        let descriptors = iter::once(memfd.as_fd()).chain(self.pool_memfd());
        hello::tell(&socket, &self.message(Kind::Hello), &descriptors.collect::<ArrayVec<_, 2>>())?;
        let key = epoll::EventData::new_u64(STATION | u64::from(station));
        epoll::add(&self.epoll, &socket, key, epoll::EventFlags::IN)?;
        Ok(PeerState::Greeted { socket, memory })
    }

    /// The descriptor of the pages of this port, if the port lends frames.
    fn pool_memfd(&self) -> Option<BorrowedFd<'_>> {
        self.pool.as_ref().map(|pool| pool.memfd().as_fd())
    }

    fn message(&self, kind: Kind) -> Message {
        let pool_bytes = match kind {
            Kind::Hello | Kind::Welcome => self.pool.as_ref().map_or(0, |pool| pool.len() as u64),
            Kind::Crossed | Kind::Again => 0,
        };
        Message {
            pool_bytes,
            kind,
            station: self.claim.station,
            ring_bytes: self.ring_bytes as u64,
            instance: self.instance,
            serial: self.serial,
        }
    }

    /// Reads the sockets, and continues handshakes. Returns whether more events may be waiting.
    pub(super) fn look(&mut self, now_us: u64) -> bool {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        // If the call fails, there are no events, and the next call tries again.
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
                        self.hear_peer(now_us, at);
                    }
                }
            }
        }
        if self.deaf_until_us.is_some() || self.handshakes().next().is_some() {
            self.go_on(now_us);
        }
        more
    }

    /// Continues handshakes that do not wait for a message, and ends handshakes that take too long.
    fn go_on(&mut self, now_us: u64) {
        for at in (0..self.greetings.len()).rev() {
            self.settle(now_us, at);
        }
        let late = |since_us: u64, limit_us: u64| now_us.saturating_sub(since_us) >= limit_us;
        for at in (0..self.greetings.len()).rev() {
            if late(self.greetings[at].since_us, GREETING_US) {
                self.put_off(at);
            }
        }
        for at in (0..self.list.len()).rev() {
            let peer = &self.list[at];
            let gone = match peer.state {
                PeerState::Paired(_) => false,
                _ if late(peer.since_us, ANSWER_US) => true,
                PeerState::Dialing { again_us } => again_us <= now_us && !self.dial(now_us, at),
                PeerState::Greeted { .. } => false,
            };
            if gone {
                self.remove(at);
            }
        }
        if self.deaf_until_us.is_some_and(|until_us| until_us <= now_us) {
            self.listen(None);
        }
    }

    fn accept(&mut self, now_us: u64) {
        for _ in 0..MAX_GREETINGS {
            if self.greetings.len() >= MAX_GREETINGS
                && let Some(until_us) = self.no_place_until_us(now_us)
            {
                return self.listen(Some(until_us));
            }
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(&self.claim.listener, flags) {
                Ok(socket) => OwnFd::new(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                // If there is no descriptor, the listener is ignored for a while. Otherwise the listener
                // would always be readable, and the port would never sleep.
                Err(_) => return self.listen(Some(now_us + DEAF_US)),
            };
            if !is_same_user(&socket) {
                self.counters.refused += 1;
                continue;
            }
            self.next_token = self.next_token.wrapping_add(1);
            let token = self.next_token;
            let key = epoll::EventData::new_u64(GREETING | u64::from(token));
            if epoll::add(&self.epoll, &socket, key, epoll::EventFlags::IN).is_ok() {
                self.greetings.push(Greeting { socket, token, since_us: now_us, hello: None });
                // Usually the hello has already arrived.
                self.hear_greeting(self.greetings.len() - 1);
            }
            if self.greetings.len() > MAX_GREETINGS {
                self.put_off(0);
            }
        }
    }

    /// Returns the time until which no further connection is accepted, or `None` if a connection may be
    /// accepted now. The caller calls this function when there are [`MAX_GREETINGS`] greetings. The oldest
    /// greeting keeps its place until it times out. After this time, the function answers the hello of the
    /// oldest greeting, if an answer is possible.
    fn no_place_until_us(&mut self, now_us: u64) -> Option<u64> {
        let Greeting { since_us, hello, .. } = self.greetings.first()?;
        let until_us = since_us + PLACE_US;
        if now_us < until_us {
            return Some(until_us);
        }
        // The hello of the oldest greeting may have arrived since the last check.
        if hello.is_none() {
            self.hear_greeting(0);
        }
        if self.greetings.len() >= MAX_GREETINGS {
            self.settle(now_us, 0);
        }
        None
    }

    /// Listens from now on, or ignores the listener until `deaf_until_us`.
    fn listen(&mut self, deaf_until_us: Option<u64>) {
        self.deaf_until_us = deaf_until_us;
        let flags = if deaf_until_us.is_some() { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let key = epoll::EventData::new_u64(LISTENER);
        // Errors are ignored: the listener is in the epoll set, so the call does not fail.
        let _ = epoll::modify(&self.epoll, &self.claim.listener, key, flags);
    }

    /// Reads a message from a socket whose station is not known yet.
    fn hear_greeting(&mut self, at: usize) {
        let greeting = &mut self.greetings[at];
        match hello::hear(&greeting.socket) {
            Heard::Silence => {}
            Heard::Message(message, Descriptors { rings: Some(rings), pool })
                if greeting.hello.is_none()
                    && message.kind == Kind::Hello
                    && message.station != self.claim.station
                    && memory_bytes(message.ring_bytes)
                        .is_some_and(|bytes| memory::is_fit(&rings, bytes)) =>
            {
                greeting.hello = Some(Hello { message, rings, pool });
            }
            // The other side has only checked whether this station exists, or has given up.
            Heard::End => self.drop_greeting(at),
            Heard::Message(..) | Heard::Nonsense | Heard::Wake => self.refuse(at),
        }
    }

    /// Answers the hello of a greeting, if the hello has arrived and can be answered.
    fn settle(&mut self, now_us: u64, at: usize) {
        let Some(Hello { message, .. }) = &self.greetings[at].hello else { return };
        let (station, instance, serial) = (message.station, message.instance, message.serial);
        if self.departed.contains(&station) {
            return;
        }
        let Some(peer) = self.find(station) else { return self.adopt(now_us, at) };
        match &self.list[peer].state {
            PeerState::Dialing { .. } => self.adopt(now_us, at),
            // Both stations have connected. The rings of the station with the lower number are used.
            PeerState::Greeted { .. } if self.claim.station > station => self.adopt(now_us, at),
            PeerState::Greeted { .. } => {
                // Errors are ignored: if the station has ended, the socket by which this port has connected
                // will show the end.
                let _ = hello::tell(&self.greetings[at].socket, &self.message(Kind::Crossed), &[]);
                self.drop_greeting(at);
            }
            // The station has sent this hello before it agreed to the present pair.
            PeerState::Paired(pair) if pair.instance == instance && serial <= pair.serial => {
                self.drop_greeting(at);
            }
            // The station has restarted, or another process has claimed its number. The old pair has to end
            // first.
            PeerState::Paired(pair) => {
                if pair.socket.is_some() {
                    self.hear_peer(now_us, peer);
                }
            }
        }
    }

    /// Uses the rings of the greeting's hello.
    fn adopt(&mut self, now_us: u64, at: usize) {
        let Some(Greeting { socket, hello: Some(Hello { message, rings, pool }), .. }) =
            self.take_greeting(at)
        else {
            return;
        };
        let memory = memory_bytes(message.ring_bytes).map(|bytes| SharedMemory::map(&rings, bytes));
        let (Some(Ok(memory)), Ok(pool)) = (memory, peer_pool(&message, pool)) else {
            self.counters.refused += 1;
            return;
        };
        let key = epoll::EventData::new_u64(STATION | u64::from(message.station));
        if hello::tell(&socket, &self.message(Kind::Welcome), self.pool_memfd().as_slice()).is_err()
            || epoll::add(&self.epoll, &socket, key, epoll::EventFlags::IN).is_err()
        {
            // Usually the station has ended.
            return;
        }
        let place = match self.find(message.station) {
            Some(place) => place,
            None => self.add(now_us, message.station),
        };
        let known = (message.instance, message.serial);
        let pools = Pools { ours: self.pool.clone(), theirs: pool };
        self.pair_up(place, Pair::new(socket, &Arc::new(memory), Side::Taker, known, pools));
    }

    /// Reads a message from a station, or notices that the station has closed its socket.
    fn hear_peer(&mut self, now_us: u64, at: usize) {
        let station = self.stations[at];
        match &mut self.list[at].state {
            PeerState::Dialing { .. } => {}
            PeerState::Paired(pair) => {
                if let Some(socket) = &pair.socket
                    && !hello::take_wake(socket)
                {
                    forget(&self.epoll, pair.socket.take());
                }
            }
            PeerState::Greeted { socket, .. } => match hello::hear(&*socket) {
                Heard::Silence => {}
                Heard::Message(message, Descriptors { pool, .. })
                    if message.kind == Kind::Welcome && message.station == station =>
                {
                    self.welcomed(at, &message, pool);
                }
                Heard::Message(message, _)
                    if message.kind == Kind::Crossed
                        && message.station == station
                        && station < self.claim.station =>
                {
                    self.replace(at, PeerState::Dialing { again_us: now_us + CROSSED_US });
                }
                Heard::Message(message, _) if message.kind == Kind::Again && message.station == station => {
                    let again_us = self.list[at].next_attempt_us(now_us);
                    self.replace(at, PeerState::Dialing { again_us });
                }
                Heard::Message(..) | Heard::Nonsense | Heard::Wake | Heard::End => self.remove(at),
            },
        }
    }

    /// Handles a welcome: the station uses the rings of this port's hello.
    fn welcomed(&mut self, at: usize, message: &Message, pool: Option<OwnedFd>) {
        let Ok(theirs) = peer_pool(message, pool) else { return self.remove(at) };
        let before = std::mem::replace(&mut self.list[at].state, PeerState::Dialing { again_us: 0 });
        if let PeerState::Greeted { socket, memory } = before {
            let pools = Pools { ours: self.pool.clone(), theirs };
            let known = (message.instance, message.serial);
            self.pair_up(at, Pair::new(socket, &memory, Side::Maker, known, pools));
        }
    }

    fn pair_up(&mut self, at: usize, pair: Pair) {
        self.counters.pairs += 1;
        self.backlogged |= !self.list[at].waiting.is_empty();
        self.replace(at, PeerState::Paired(pair));
    }

    /// Changes the state of a peer, and closes the socket of the old state.
    fn replace(&mut self, at: usize, state: PeerState) {
        let before = std::mem::replace(&mut self.list[at].state, state);
        self.close(before);
    }

    fn close(&mut self, state: PeerState) {
        match state {
            PeerState::Greeted { socket, .. } => forget(&self.epoll, Some(socket)),
            PeerState::Paired(pair) => {
                self.allowance += pair.tx.grown_bytes();
                forget(&self.epoll, pair.socket);
            }
            PeerState::Dialing { .. } => {}
        }
    }

    /// Removes a station, closes its socket, and adds the station to the queue of
    /// [`next_departed`](Self::next_departed).
    pub(super) fn remove(&mut self, at: usize) {
        let station = self.stations.swap_remove(at);
        let Peer { state, waiting, .. } = self.list.swap_remove(at);
        self.close(state);
        crate::trace::station_left(station, waiting.len());
        self.counters.lost += waiting.len() as u64;
        self.counters.departed += 1;
        // Until the end of a station is reported, no new connection to the station's number begins. So the
        // number is in the queue only once.
        debug_assert!(!self.departed.contains(&station), "station {station} departs twice");
        self.departed.push_back(station);
    }

    fn take_greeting(&mut self, at: usize) -> Option<Greeting> {
        let greeting = self.greetings.remove(at);
        // Now there is room for another connection.
        self.deaf_until_us = self.deaf_until_us.map(|_| 0);
        // The socket is removed from the epoll set, since it will be registered with another key, or closed.
        // Closing the socket does not remove it from the set while another process has a descriptor of the
        // socket.
        epoll::delete(&self.epoll, &greeting.socket).ok()?;
        Some(greeting)
    }

    fn drop_greeting(&mut self, at: usize) {
        drop(self.take_greeting(at));
    }

    /// Tells the other side to connect again.
    fn put_off(&mut self, at: usize) {
        self.counters.put_off += 1;
        // Errors are ignored: the other side may have ended.
        let _ = hello::tell(&self.greetings[at].socket, &self.message(Kind::Again), &[]);
        self.drop_greeting(at);
    }

    fn refuse(&mut self, at: usize) {
        self.counters.refused += 1;
        self.drop_greeting(at);
    }
}

/// Maps the pages that a message offers. Returns `None` if the message offers no pages.
///
/// # Errors
/// The descriptor is missing, is not of such memory, or cannot be mapped.
fn peer_pool(message: &Message, pool: Option<OwnedFd>) -> Result<Option<PeerPool>, Errno> {
    if message.pool_bytes == 0 {
        return Ok(None);
    }
    PeerPool::map(pool.ok_or(Errno::BADF)?, message.pool_bytes).map(Some)
}

/// Removes a socket from the epoll set and closes the socket. Closing alone does not remove the socket from
/// the set while another process has a descriptor of the socket.
fn forget(epoll: &OwnFd, socket: Option<OwnFd>) {
    if let Some(socket) = socket
        && epoll.is_open()
    {
        let _ = epoll::delete(epoll, &socket);
    }
}
