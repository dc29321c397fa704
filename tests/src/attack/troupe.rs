//! Several puppets at once: frames go to whom they are for, and each sends what it has to.

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
    /// Who has something to send.
    turns: VecDeque<u32>,
    /// What those who left have still to send.
    last: VecDeque<Vec<u8>>,
}

/// To whom a frame with this TCP segment goes.
pub fn addressee(frame: &[u8], tcp: &Tcp) -> Option<SocketAddrV4> {
    let bytes: [u8; 4] = frame.get(30..34)?.try_into().ok()?;
    Some(SocketAddrV4::new(Ipv4Addr::from(bytes), tcp.dst_port))
}

impl Troupe {
    /// Nobody yet; the first will have the number `first`.
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

    /// One more, whose SYN is about to be sent.
    pub fn join(&mut self, manners: Manners) -> u32 {
        let number = self.next;
        self.next += 1;
        let here = place(number);
        self.puppets.insert(number, Puppet::new(self.macs, here, manners));
        self.by_place.insert(here, number);
        self.turns.push_back(number);
        number
    }

    /// A puppet that is there.
    ///
    /// # Panics
    /// When it has left.
    pub fn get(&mut self, number: u32) -> &mut Puppet {
        self.puppets.get_mut(&number).expect("it has not left")
    }

    /// It forgets everything and is never heard of again.
    pub fn leave(&mut self, number: u32) -> Option<Puppet> {
        let puppet = self.puppets.remove(&number)?;
        self.by_place.remove(&puppet.here);
        Some(puppet)
    }

    /// A frame of somebody who has left.
    pub fn queue_last(&mut self, frame: Vec<u8>) {
        self.last.push_back(frame);
    }

    /// All may have something to send.
    pub fn wake(&mut self) {
        let mut numbers: Vec<u32> = self.puppets.keys().copied().collect();
        numbers.sort_unstable();
        self.turns.extend(numbers);
    }

    /// This one has something to send.
    pub fn wake_one(&mut self, number: u32) {
        self.turns.push_back(number);
    }

    /// Whether this one is there, and its SYN is not answered.
    pub fn asks(&self, number: u32) -> bool {
        self.puppets.get(&number).is_some_and(|puppet| puppet.stage == Stage::Syn)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.puppets.len()
    }

    /// Whether there is nobody.
    pub fn is_empty(&self) -> bool {
        self.puppets.is_empty()
    }

    /// For whom a frame of the victim's is.
    pub fn addressee(&self, frame: &[u8]) -> Option<u32> {
        let tcp = parse(frame)?;
        self.by_place.get(&addressee(frame, &tcp)?).copied()
    }

    /// How many have come to this.
    pub fn count(&self, stage: Stage) -> usize {
        self.puppets.values().filter(|puppet| puppet.stage == stage).count()
    }

    /// All that are there.
    pub fn all(&mut self) -> impl Iterator<Item = (u32, &mut Puppet)> {
        self.puppets.iter_mut().map(|(number, puppet)| (*number, puppet))
    }

    /// Whether all have come as far as they can by themselves.
    pub fn is_ready(&self) -> bool {
        self.count(Stage::Ready) == self.len()
    }

    /// Who is to do the `nth` thing that none would do by itself, of those of whom nobody has left.
    ///
    /// # Errors
    /// First comes what somebody has to send by itself; nothing, when that is over but not all are ready.
    pub fn turn(&mut self, nth: usize) -> Result<u32, Option<Vec<u8>>> {
        match self.frame() {
            Some(frame) => Err(Some(frame)),
            None if !self.is_ready() => Err(None),
            None => Ok(self.first + (nth % self.len()) as u32),
        }
    }

    /// What somebody has to send by itself.
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

    /// A frame of the victim's; says for whom it was.
    pub fn hear(&mut self, frame: &[u8]) -> Option<u32> {
        let tcp = parse(frame)?;
        let number = *self.by_place.get(&addressee(frame, &tcp)?)?;
        self.get(number).hear(frame, &tcp);
        self.turns.push_back(number);
        Some(number)
    }
}
