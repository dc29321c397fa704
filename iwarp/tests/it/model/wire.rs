//! A port that flips bits of received packets. Unlike the link's own faults, this port does not change ARP
//! packets. ARP packets have no checksum; on a real wire, the frame check sequence protects them.

use dp::{Burst, Checksum, Port};

use crate::common::hooked::Hooks;
use testkit::dice::Dice;

/// Length of the Ethernet header, and maximum length of the Ethernet, IPv4 and TCP headers together.
const ETHERNET: usize = 14;
const HEADERS: usize = 100;

/// Position of the EtherType in a frame, and the EtherType of ARP.
const ETHERTYPE: std::ops::Range<usize> = 12..14;
const ARP: [u8; 2] = [0x08, 0x06];

/// Flips one bit in each of `ppm` frames per million. The bit is anywhere behind the Ethernet header. If
/// `unseen`, the bit is in the payload, and the checksum is reported as correct.
pub(crate) struct BitFlips {
    dice: Dice,
    ppm: usize,
    unseen: bool,
}

impl BitFlips {
    pub(crate) fn new(seed: u64, ppm: usize, unseen: bool) -> Self {
        Self { dice: Dice::new(seed), ppm, unseen }
    }
}

impl Hooks for BitFlips {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let before = frames.len();
        let count = port.rx_burst(now_us, frames);
        for frame in &mut frames[before..] {
            if self.dice.index(1_000_000) >= self.ppm || frame.head().get(ETHERTYPE) == Some(&ARP) {
                continue;
            }
            let first = if self.unseen { HEADERS } else { ETHERNET };
            let Some(mut copy) = frame.deep_copy(port.mempool()) else { continue };
            if let Some(bytes) = copy.head_mut().and_then(|bytes| bytes.get_mut(first..))
                && !bytes.is_empty()
            {
                let at = self.dice.index(bytes.len());
                bytes[at] ^= 1 << self.dice.index(8);
                copy.set_rx_checksum(if self.unseen { Checksum::Good } else { Checksum::Unknown });
                *frame = copy;
            }
        }
        count
    }
}
