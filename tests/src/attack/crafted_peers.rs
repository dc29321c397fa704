//! Several peers at once. This module delivers frames to the addressed peer, and collects the frames that
//! peers send.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};

use super::crafted_peer::{CraftedPeer, PeerOptions, Stage, place};
use testkit::packet::{Tcp, parse};

/// The peers, by number.
pub struct CraftedPeers {
    macs: [[u8; 6]; 2],
    first: u32,
    next: u32,
    peers: HashMap<u32, CraftedPeer>,
    by_place: HashMap<SocketAddrV4, u32>,
    /// Numbers of the peers that may have a frame to send.
    order: VecDeque<u32>,
    /// The last frames of peers that were removed.
    last: VecDeque<Vec<u8>>,
}

/// Returns the address and port to which a frame with this TCP segment is addressed.
pub fn addressee(frame: &[u8], tcp: &Tcp) -> Option<SocketAddrV4> {
    let bytes: [u8; 4] = frame.get(30..34)?.try_into().ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(bytes), tcp.dst_port))
}

impl CraftedPeers {
    /// Returns an empty set. The first peer that joins gets the number `first`.
    pub fn new(macs: [[u8; 6]; 2], first: u32) -> Self {
        Self {
            macs,
            first,
            next: first,
            peers: HashMap::new(),
            by_place: HashMap::new(),
            order: VecDeque::new(),
            last: VecDeque::new(),
        }
    }

    /// Adds a peer whose SYN is about to be sent. Returns the peer's number.
    pub fn join(&mut self, options: PeerOptions) -> u32 {
        let number = self.next;
        self.next += 1;
        let here = place(number);
        self.peers.insert(number, CraftedPeer::new(self.macs, here, options));
        self.by_place.insert(here, number);
        self.order.push_back(number);
        number
    }

    /// Returns the peer with this number.
    ///
    /// # Panics
    /// If the peer was removed.
    pub fn get(&mut self, number: u32) -> &mut CraftedPeer {
        self.peers.get_mut(&number).expect("it was not removed")
    }

    /// Removes and returns a peer. Its connection is not closed.
    pub fn leave(&mut self, number: u32) -> Option<CraftedPeer> {
        let peer = self.peers.remove(&number)?;
        self.by_place.remove(&peer.here);
        Some(peer)
    }

    /// Queues a frame of a peer that was removed.
    pub fn queue_last(&mut self, frame: Vec<u8>) {
        self.last.push_back(frame);
    }

    /// Has to be called when all peers may have a frame to send.
    pub fn wake(&mut self) {
        let mut numbers: Vec<u32> = self.peers.keys().copied().collect();
        numbers.sort_unstable();
        self.order.extend(numbers);
    }

    /// Has to be called when this peer may have a frame to send.
    pub fn wake_one(&mut self, number: u32) {
        self.order.push_back(number);
    }

    /// Whether this peer exists and its SYN is unanswered.
    pub fn asks(&self, number: u32) -> bool {
        self.peers.get(&number).is_some_and(|peer| peer.stage == Stage::Syn)
    }

    /// Returns the number of peers.
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Whether there are no peers.
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Returns the number of the peer to which a frame of the victim is addressed.
    pub fn addressee(&self, frame: &[u8]) -> Option<u32> {
        let tcp = parse(frame)?;
        self.by_place.get(&addressee(frame, &tcp)?).copied()
    }

    /// Returns the number of peers at this stage.
    pub fn count(&self, stage: Stage) -> usize {
        self.peers.values().filter(|peer| peer.stage == stage).count()
    }

    /// Returns all peers, with their numbers.
    pub fn all(&mut self) -> impl Iterator<Item = (u32, &mut CraftedPeer)> {
        self.peers.iter_mut().map(|(number, peer)| (*number, peer))
    }

    /// Whether all connections are established.
    pub fn is_ready(&self) -> bool {
        self.count(Stage::Ready) == self.len()
    }

    /// Returns the number of the peer that does the `nth` action of the attack, round robin. Requires that no
    /// peer was removed.
    ///
    /// # Errors
    /// `Some` with a queued frame of a peer, which has to be sent before the action. `None` if no peer has a
    /// queued frame, but not all peers are ready.
    pub fn next(&mut self, nth: usize) -> Result<u32, Option<Vec<u8>>> {
        match self.frame() {
            Some(frame) => Err(Some(frame)),
            None if !self.is_ready() => Err(None),
            None => Ok(self.first + (nth % self.len()) as u32),
        }
    }

    /// Returns the next queued frame of a peer.
    pub fn frame(&mut self) -> Option<Vec<u8>> {
        if let Some(frame) = self.last.pop_front() {
            return Some(frame);
        }
        while let Some(number) = self.order.pop_front() {
            if let Some(frame) = self.peers.get_mut(&number).and_then(CraftedPeer::frame) {
                self.order.push_back(number);
                return Some(frame);
            }
        }
        None
    }

    /// Passes a frame of the victim to the addressed peer. Returns the peer's number, or `None` if there is
    /// no such peer.
    pub fn on_frame(&mut self, frame: &[u8]) -> Option<u32> {
        let tcp = parse(frame)?;
        let number = *self.by_place.get(&addressee(frame, &tcp)?)?;
        self.get(number).on_frame(frame, &tcp);
        self.order.push_back(number);
        Some(number)
    }
}
