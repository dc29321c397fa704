//! A port that turns bits of the packets it receives. Unlike the link's own plan it spares ARP, which has no
//! checksum: what protects that is the frame check sequence of a real wire.

use dp::{Burst, Checksum, Port};

use super::dice::Dice;
use crate::common::hooked::Hooks;

/// Bytes of the Ethernet header, and of it with the headers of IPv4 and TCP.
const ETHERNET: usize = 14;
const HEADERS: usize = 100;

/// Where a frame says what it carries, and what ARP is there.
const ETHERTYPE: std::ops::Range<usize> = 12..14;
const ARP: [u8; 2] = [0x08, 0x06];

/// Of the frames that are handed out, `ppm` have a bit turned: anywhere behind Ethernet, or, `unseen`, in the
/// payload alone, with a checksum that is said to be good.
pub(crate) struct Turning {
    dice: Dice,
    ppm: usize,
    unseen: bool,
}

impl Turning {
    pub(crate) fn new(seed: u64, ppm: usize, unseen: bool) -> Self {
        Self { dice: Dice::new(seed), ppm, unseen }
    }
}

impl Hooks for Turning {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let before = frames.len();
        let count = port.rx_burst(now_us, frames);
        for frame in &mut frames[before..] {
            if self.dice.below(1_000_000) >= self.ppm || frame.head().get(ETHERTYPE) == Some(&ARP) {
                continue;
            }
            let first = if self.unseen { HEADERS } else { ETHERNET };
            let Some(mut copy) = frame.deep_copy(port.mempool()) else { continue };
            if let Some(bytes) = copy.head_mut().and_then(|bytes| bytes.get_mut(first..))
                && !bytes.is_empty()
            {
                let at = self.dice.below(bytes.len());
                bytes[at] ^= 1 << self.dice.below(8);
                copy.set_rx_checksum(if self.unseen { Checksum::Good } else { Checksum::Unknown });
                *frame = copy;
            }
        }
        count
    }
}
