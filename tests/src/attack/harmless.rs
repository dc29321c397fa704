//! The baseline of an attack: as many frames of the same lengths, from peers that behave well.
//!
//! A frame that is long enough carries a whole Write, in order, into memory that was lent for it. Any other
//! frame is an acknowledgement on an idle connection, with nothing new. So the victim does the ordinary work
//! for each frame: it receives it, checks lengths and checksums, finds the connection and processes the
//! segment. For a Write it also checks the CRC, places the payload, and acknowledges every second one. Frames
//! that are dropped at once would be a worse baseline, since they cost next to nothing.

use std::collections::VecDeque;

use super::arena::{Actor, Scene};
use super::crafted_peer::{PeerOptions, write};
use super::crafted_peers::CraftedPeers;
use super::victim::LENT_BYTE;

/// Idle connections that the frames belong to.
const PEERS: u32 = 8;
/// The first of their numbers. The attackers' numbers begin at 0.
const FIRST: u32 = 40_000;
/// Headers of a frame with a bare ACK.
const HEADERS: usize = 54;
/// Length of an FPDU without the payload of a Write: length field, DDP header, CRC.
const AROUND: usize = 2 + 14 + 4;

/// The well-behaved peers.
pub struct Harmless {
    crafted: CraftedPeers,
    numbers: Vec<u32>,
    lent: (u32, u64),
    /// Lengths of the coming frames.
    lengths: VecDeque<usize>,
    next: usize,
}

impl Harmless {
    /// Peers that write to `lent`.
    pub fn new(macs: [[u8; 6]; 2], lent: (u32, u64)) -> Self {
        let mut crafted = CraftedPeers::new(macs, FIRST);
        let numbers = (0..PEERS).map(|_| crafted.join(PeerOptions::default())).collect();
        Self { crafted, numbers, lent, lengths: VecDeque::new(), next: 0 }
    }

    /// Sends frames of these lengths, repeatedly.
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
        // Padding after the packet, as in Ethernet.
        frame.resize(length.max(frame.len()), 0);
        Some(frame)
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.crafted.on_frame(frame);
    }
}
