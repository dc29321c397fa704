//! The baseline of an attack: about as many frames as the attack sends, with the same lengths, from peers
//! that behave well.
//!
//! A frame that is long enough carries a whole Write, in order, into memory that was lent for it. A shorter
//! frame is a bare acknowledgement on one of the same connections, and acknowledges nothing new. The victim
//! therefore does the ordinary work for each frame: it receives the frame, checks lengths and checksums,
//! finds the connection and processes the segment. For a Write it also checks the CRC and places the payload,
//! and it acknowledges every second Write. Frames that the victim drops at once would be a worse baseline,
//! since they cost next to nothing.

use std::collections::VecDeque;

use super::arena::{Actor, Scene};
use super::crafted_peer::{PeerOptions, write};
use super::crafted_peers::CraftedPeers;
use super::victim::LENT_BYTE;

/// Number of connections to which the frames belong.
const PEERS: u32 = 8;
/// Number of the first of the peers. The numbers of attackers begin at 0.
const FIRST: u32 = 40_000;
/// Length in bytes of a frame with a bare ACK.
const HEADERS: usize = 54;
/// Length of an FPDU without the payload of a Write: length field, DDP header, CRC.
const AROUND: usize = 2 + 14 + 4;

/// The well-behaved peers.
pub struct Harmless {
    crafted: CraftedPeers,
    numbers: Vec<u32>,
    lent: (u32, u64),
    /// Lengths of the next frames.
    lengths: VecDeque<usize>,
    next: usize,
}

impl Harmless {
    /// Returns peers that write to `lent` (STag and tagged offset).
    pub fn new(macs: [[u8; 6]; 2], lent: (u32, u64)) -> Self {
        let mut crafted = CraftedPeers::new(macs, FIRST);
        let numbers = (0..PEERS).map(|_| crafted.join(PeerOptions::default())).collect();
        Self { crafted, numbers, lent, lengths: VecDeque::new(), next: 0 }
    }

    /// Makes the peers send frames of these lengths, again and again.
    pub fn follow(&mut self, lengths: &[usize]) {
        self.lengths = lengths.iter().copied().collect();
    }
}

impl Actor for Harmless {
    fn is_ready(&self) -> bool {
        self.crafted.is_ready()
    }

    fn frame(&mut self, _scene: &Scene<'_>) -> Option<Vec<u8>> {
        if !self.is_ready() {
            return self.crafted.frame();
        }
        let length = self.lengths.pop_front()?;
        self.lengths.push_back(length);
        self.next = (self.next + 1) % self.numbers.len();
        let peer = self.crafted.get(self.numbers[self.next]);
        let payload = length.saturating_sub(HEADERS) & !3;
        let mut frame = if payload >= AROUND {
            let (stag, to) = self.lent;
            let fpdu = peer.fpdu(&write(stag, to, &vec![LENT_BYTE; payload - AROUND]));
            peer.send_data(&fpdu)
        } else {
            peer.segment(|_| {})
        };
        // The frame is padded after the IP packet, as in Ethernet.
        frame.resize(length.max(frame.len()), 0);
        Some(frame)
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.crafted.on_frame(frame);
    }
}
