//! Connections whose MPA Request arrives byte by byte. The listener limits the number of such connections, in
//! total and for each address, and ends them if the Request is not complete in time.

use std::time::Duration;

use super::arena::{Actor, Arena, Scene};
use super::crafted_peer::{PeerOptions, Stage};
use super::crafted_peers::CraftedPeers;
use super::victim::PATIENCE;
use super::{Attack, Scenario, check};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "slow-startup",
    about: "MPA Requests that arrive byte by byte and never end",
    configure: |_, options| options.backlog_per_address = Some(ALLOWED as usize),
    attack: |arena| {
        let mut crafted = CraftedPeers::new(arena.macs(), 0);
        let numbers =
            (0..PEERS).map(|_| crafted.join(PeerOptions { mpa: false, ..PeerOptions::default() })).collect();
        Box::new(SlowStartup { crafted, numbers, sent: 0, request: request(), patient: false })
    },
};

/// Number of connections that the peers attempt.
const PEERS: u32 = 128;
/// Maximum number of connections that the listener has from these peers.
const ALLOWED: u32 = 16;
/// One second in microseconds: the interval between the bytes of a patient peer.
const SECOND: u64 = 1_000_000;

struct SlowStartup {
    crafted: CraftedPeers,
    numbers: Vec<u32>,
    sent: usize,
    request: Vec<u8>,
    /// Whether each peer sends only one byte per second.
    patient: bool,
}

/// Returns a Request with the longest allowed private data.
fn request() -> Vec<u8> {
    let private: usize = 512;
    let head = [b"MPA ID Req Frame", &[0x50, 2][..], &(private as u16).to_be_bytes()].concat();
    [head, vec![8; private]].concat()
}

impl Actor for SlowStartup {
    fn is_ready(&self) -> bool {
        self.crafted.count(Stage::Syn) == 0
    }

    fn frame(&mut self, scene: &Scene<'_>) -> Option<Vec<u8>> {
        if let Some(frame) = self.crafted.frame() {
            return Some(frame);
        }
        if !self.is_ready() || self.patient && self.sent as u64 > scene.now_us * u64::from(ALLOWED) / SECOND {
            return None;
        }
        for _ in 0..self.numbers.len() {
            self.sent += 1;
            let number = self.numbers[self.sent % self.numbers.len()];
            let peer = self.crafted.get(number);
            if peer.stage == Stage::Over {
                continue;
            }
            // A peer sends all bytes of the Request except the last byte, and then repeats the latest byte.
            let said = peer.nxt.wrapping_sub(peer.iss()).wrapping_sub(1) as usize;
            if said + 1 < self.request.len() {
                let byte = self.request[said];
                return Some(peer.send_data(&[byte]));
            }
            return Some(peer.data(peer.nxt.wrapping_sub(1), &self.request[said - 1..said]));
        }
        None
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.crafted.on_frame(frame);
    }
}

impl Attack for SlowStartup {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        let stats = arena.victim.listener_stats();
        check(stats.undecided == ALLOWED as usize, || format!("{stats:?}"))?;
        check(stats.backlog_address_full == u64::from(PEERS - ALLOWED), || format!("{stats:?}"))?;
        let begin_us = arena.now_us();
        check(arena.connect(self, Duration::from_secs(1)), || "an honest client cannot connect".into())?;
        let took_us = arena.now_us() - begin_us;
        self.patient = true;
        let gone = |arena: &mut Arena, _: &mut Self| arena.victim.listener_stats().undecided == 0;
        check(arena.alone(self, 2 * PATIENCE, gone), || {
            format!("still there: {:?}", arena.victim.listener_stats())
        })?;
        let after_ms = arena.now_us() / 1000;
        let limit_ms = PATIENCE.as_millis() as u64;
        check(after_ms <= limit_ms + 1500, || format!("they were ended after {after_ms} ms"))?;
        let stats = arena.victim.listener_stats();
        check(stats.startup_timeouts == u64::from(ALLOWED), || format!("{stats:?}"))?;
        check(arena.victim.strangers().1 == 0, || "a request was reported to the server".into())?;
        Ok(format!(
            "{} of {PEERS} refused for their address, {} let go after {after_ms} ms; an honest connect took {took_us} us",
            stats.backlog_address_full, stats.startup_timeouts
        ))
    }
}
