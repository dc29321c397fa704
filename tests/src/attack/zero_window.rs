//! Peers that read the lent region and never open their window again. The bytes that the victim cannot send
//! occupy buffers, but not the buffers that other connections need. A peer that answers probes keeps its
//! connection (RFC 9293 section 3.8.6.1); the connection of a peer that does not answer ends.

use std::time::Duration;

use super::arena::{Actor, Arena, Scene};
use super::crafted_peer::{PeerOptions, read};
use super::crafted_peers::CraftedPeers;
use super::victim::{LENT, STRANGERS_IRD};
use super::{Attack, Scenario, as_it_is, check};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "zero-window",
    about: "Reads by peers who close their window and keep it closed",
    configure: as_it_is,
    attack: |arena| {
        let mut crafted = CraftedPeers::new(arena.macs(), 0);
        let numbers = (0..PEERS).map(|_| crafted.join(PeerOptions::default())).collect();
        let lent = (arena.victim.lent.rkey(), arena.victim.lent.addr());
        Box::new(ZeroWindow { crafted, numbers, lent, asked: false, sent: 0, calm: false, silent: false })
    },
};

/// Number of connections.
const PEERS: u32 = 64;
/// Default time for which a peer may leave bytes unacknowledged
/// ([`user_timeout`](tcp_lite::TcpConfig::user_timeout)).
const USER_TIMEOUT: Duration = Duration::from_secs(10);

struct ZeroWindow {
    crafted: CraftedPeers,
    numbers: Vec<u32>,
    lent: (u32, u64),
    asked: bool,
    sent: usize,
    /// Whether the peers only answer probes, and send nothing else.
    calm: bool,
    /// Whether the peers send nothing, not even answers.
    silent: bool,
}

impl Actor for ZeroWindow {
    fn is_ready(&self) -> bool {
        self.crafted.is_ready()
    }

    fn frame(&mut self, _scene: &Scene<'_>) -> Option<Vec<u8>> {
        if self.silent {
            return None;
        }
        if let Some(frame) = self.crafted.frame() {
            return Some(frame);
        }
        if !self.is_ready() {
            return None;
        }
        if !self.asked {
            self.asked = true;
            let (stag, to) = self.lent;
            for &number in &self.numbers {
                let peer = self.crafted.get(number);
                peer.set_window(0);
                for msn in 1..=u32::from(STRANGERS_IRD) {
                    let fpdu = peer.fpdu(&read(msn, LENT as u32, stag, to));
                    let frame = peer.send_data(&fpdu);
                    peer.queue(frame);
                }
            }
            self.crafted.wake();
            return self.crafted.frame();
        }
        if self.calm {
            return None;
        }
        self.sent += 1;
        let number = self.numbers[self.sent % self.numbers.len()];
        Some(self.crafted.get(number).segment(|_| {}))
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.crafted.on_frame(frame);
    }
}

impl Attack for ZeroWindow {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        let limit = arena.victim.buffers() / 2;
        let held = arena.victim.far_end.held();
        check(held <= limit, || format!("{held} buffers are held, of {}", arena.victim.buffers()))?;
        check(held >= PEERS as usize, || format!("only {held} buffers wait"))?;
        // The connections exist as long as the peers answer probes.
        self.calm = true;
        arena.alone(self, 2 * USER_TIMEOUT, |_, _| false);
        let (there, _) = arena.victim.strangers();
        check(there == self.numbers.len(), || format!("{there} connections are left of those that answer"))?;
        self.silent = true;
        let begin_us = arena.now_us();
        let gone = arena.alone(self, 3 * USER_TIMEOUT, |arena, _| arena.victim.strangers().0 == 0);
        let took_ms = (arena.now_us() - begin_us) / 1000;
        check(gone, || format!("{} connections are still there", arena.victim.strangers().0))?;
        let left = arena.victim.far_end.held();
        // The victim keeps one buffer for the next segment.
        check(left <= 1, || format!("{left} buffers are still held"))?;
        Ok(format!(
            "{held} buffers held of {limit}; {PEERS} silent ones given up after {took_ms} ms, none held then"
        ))
    }
}
