//! The yardstick: as many frames as an attack has, each of the same length, of peers that do nothing wrong.
//!
//! A frame that is long enough carries a whole Write, in order, into memory that was lent for it; any other
//! is an acknowledgement on an idle connection that says what was known. So the victim does for each what it
//! does for any frame: it receives it, checks its lengths and checksums, finds its connection and takes it
//! in; of a Write it checks the CRC and places the payload, and it acknowledges every other one. A comparison
//! with frames that are dropped at the door would be kinder to nobody but the attack: those cost next to
//! nothing.

use std::collections::VecDeque;

use super::arena::{Actor, Scene};
use super::puppet::{Manners, write};
use super::troupe::Troupe;
use super::victim::LENT_BYTE;

/// Idle connections the frames come on.
const PEERS: u32 = 8;
/// The first of their numbers: attackers' begin at 0.
const FIRST: u32 = 40_000;
/// Headers of a frame with a bare ACK.
const HEADERS: usize = 54;
/// What an FPDU has around the payload of a Write: length, DDP header, CRC.
const AROUND: usize = 2 + 14 + 4;

/// The peers.
pub struct Harmless {
    troupe: Troupe,
    numbers: Vec<u32>,
    lent: (u32, u64),
    /// Lengths of the frames that are to be sent.
    lengths: VecDeque<usize>,
    next: usize,
}

impl Harmless {
    /// Peers that write to `lent`.
    pub fn new(macs: [[u8; 6]; 2], lent: (u32, u64)) -> Self {
        let mut troupe = Troupe::new(macs, FIRST);
        let numbers = (0..PEERS).map(|_| troupe.join(Manners::default())).collect();
        Self { troupe, numbers, lent, lengths: VecDeque::new(), next: 0 }
    }

    /// Frames of these lengths come next, over and over.
    pub fn follow(&mut self, lengths: &[usize]) {
        self.lengths = lengths.iter().copied().collect();
    }
}

impl Actor for Harmless {
    fn is_ready(&self) -> bool {
        self.troupe.is_ready()
    }

    fn frame(&mut self, _scene: &Scene<'_>) -> Option<Vec<u8>> {
        if !self.is_ready() {
            return self.troupe.frame();
        }
        let length = self.lengths.pop_front()?;
        self.lengths.push_back(length);
        self.next = (self.next + 1) % self.numbers.len();
        let puppet = self.troupe.get(self.numbers[self.next]);
        let payload = length.saturating_sub(HEADERS) & !3;
        let mut frame = if payload >= AROUND {
            let (stag, to) = self.lent;
            let fpdu = puppet.fpdu(&write(stag, to, &vec![LENT_BYTE; payload - AROUND]));
            puppet.say(&fpdu)
        } else {
            puppet.segment(|_| {})
        };
        // What is behind the packet, as Ethernet pads.
        frame.resize(length.max(frame.len()), 0);
        Some(frame)
    }

    fn hear(&mut self, frame: &[u8]) {
        self.troupe.hear(frame);
    }
}
