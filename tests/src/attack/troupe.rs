//! Several puppets at once. Delivers frames to the addressed puppet, and collects the frames that puppets
//! send.

use std::collections::{HashMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddrV4};

use super::puppet::{Manners, Puppet, Stage, place};
use crate::sim::packet::{Tcp, parse};

/// The puppets, by number.
pub struct Troupe {
    macs: [[u8; 6]; 2],
    first: u32,
    next: u32,
    puppets: HashMap<u32, Puppet>,
    by_place: HashMap<SocketAddrV4, u32>,
    /// Puppets that may have a frame to send.
    turns: VecDeque<u32>,
    /// Last frames of puppets that were removed.
    last: VecDeque<Vec<u8>>,
}

/// The endpoint that a frame with this TCP segment is addressed to.
pub fn addressee(frame: &[u8], tcp: &Tcp) -> Option<SocketAddrV4> {
    let bytes: [u8; 4] = frame.get(30..34)?.try_into().ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(bytes), tcp.dst_port))
}

impl Troupe {
    /// An empty set; the first puppet gets the number `first`.
    pub fn new(macs: [[u8; 6]; 2], first: u32) -> Self {
        Self {
            macs,
            first,
            next: first,
            puppets: HashMap::new(),
            by_place: HashMap::new(),
            turns: VecDeque::new(),
            last: VecDeque::new(),
        }
    }

    /// Adds a puppet, whose SYN is about to be sent.
    pub fn join(&mut self, manners: Manners) -> u32 {
        let number = self.next;
        self.next += 1;
        let here = place(number);
        self.puppets.insert(number, Puppet::new(self.macs, here, manners));
        self.by_place.insert(here, number);
        self.turns.push_back(number);
        number
    }

    /// The puppet with this number.
    ///
    /// # Panics
    /// If it was removed.
    pub fn get(&mut self, number: u32) -> &mut Puppet {
        self.puppets.get_mut(&number).expect("it was not removed")
    }

    /// Removes a puppet without closing its connection.
    pub fn leave(&mut self, number: u32) -> Option<Puppet> {
        let puppet = self.puppets.remove(&number)?;
        self.by_place.remove(&puppet.here);
        Some(puppet)
    }

    /// Queues a frame of a puppet that was removed.
    pub fn queue_last(&mut self, frame: Vec<u8>) {
        self.last.push_back(frame);
    }

    /// All puppets may have a frame to send.
    pub fn wake(&mut self) {
        let mut numbers: Vec<u32> = self.puppets.keys().copied().collect();
        numbers.sort_unstable();
        self.turns.extend(numbers);
    }

    /// This puppet has a frame to send.
    pub fn wake_one(&mut self, number: u32) {
        self.turns.push_back(number);
    }

    /// Whether this puppet exists and its SYN is unanswered.
    pub fn asks(&self, number: u32) -> bool {
        self.puppets.get(&number).is_some_and(|puppet| puppet.stage == Stage::Syn)
    }

    /// Number of puppets.
    pub fn len(&self) -> usize {
        self.puppets.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.puppets.is_empty()
    }

    /// The puppet that a frame of the victim is addressed to.
    pub fn addressee(&self, frame: &[u8]) -> Option<u32> {
        let tcp = parse(frame)?;
        self.by_place.get(&addressee(frame, &tcp)?).copied()
    }

    /// Number of puppets at this stage.
    pub fn count(&self, stage: Stage) -> usize {
        self.puppets.values().filter(|puppet| puppet.stage == stage).count()
    }

    /// All puppets.
    pub fn all(&mut self) -> impl Iterator<Item = (u32, &mut Puppet)> {
        self.puppets.iter_mut().map(|(number, puppet)| (*number, puppet))
    }

    /// Whether all connections are established.
    pub fn is_ready(&self) -> bool {
        self.count(Stage::Ready) == self.len()
    }

    /// The puppet that has to do the `nth` action of the attack, round robin. Requires that no puppet was
    /// removed.
    ///
    /// # Errors
    /// The next frame that a puppet sends by itself, which comes first; `None` if there is none but not all
    /// puppets are ready.
    pub fn turn(&mut self, nth: usize) -> Result<u32, Option<Vec<u8>>> {
        match self.frame() {
            Some(frame) => Err(Some(frame)),
            None if !self.is_ready() => Err(None),
            None => Ok(self.first + (nth % self.len()) as u32),
        }
    }

    /// The next frame that a puppet sends by itself.
    pub fn frame(&mut self) -> Option<Vec<u8>> {
        if let Some(frame) = self.last.pop_front() {
            return Some(frame);
        }
        while let Some(number) = self.turns.pop_front() {
            if let Some(frame) = self.puppets.get_mut(&number).and_then(Puppet::frame) {
                self.turns.push_back(number);
                return Some(frame);
            }
        }
        None
    }

    /// A frame of the victim arrives. Returns its addressee.
    pub fn hear(&mut self, frame: &[u8]) -> Option<u32> {
        let tcp = parse(frame)?;
        let number = *self.by_place.get(&addressee(frame, &tcp)?)?;
        self.get(number).hear(frame, &tcp);
        self.turns.push_back(number);
        Some(number)
    }
}
