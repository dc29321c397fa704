//! An attacker that knows the 4-tuple but not the sequence numbers sends RSTs, SYNs and data (RFC 5961). Half
//! of the frames have random sequence numbers. The other half have numbers in the window, but not the exact
//! number. (Of about a thousand random guesses, one is in the window.)
//!
//! Half of the frames go to honest connections, whose bytes are all checked. The other half go to an idle
//! connection, whose peer only counts challenge ACKs.

use std::net::SocketAddrV4;
use std::time::Duration;

use super::arena::{Actor, Arena, Scene};
use super::crafted_peer::{PeerOptions, Stage};
use super::crafted_peers::CraftedPeers;
use super::segment::Segment;
use super::victim::{CLIENT, PORT, VICTIM};
use super::{Attack, Scenario, as_it_is, check};
use crate::sim::dice::Part;
use testkit::dice::Dice;
use testkit::packet::flag;

/// The attack with RSTs.
pub const RESETS: Scenario = Scenario {
    name: "blind-rst",
    about: "RSTs with a known 4-tuple, random ones and ones inside the window",
    configure: as_it_is,
    attack: |arena| Blind::attack(arena, Kind::Reset),
};

/// The attack with SYNs.
pub const SYNS: Scenario = Scenario {
    name: "blind-syn",
    about: "SYNs with a known 4-tuple",
    configure: as_it_is,
    attack: |arena| Blind::attack(arena, Kind::Syn),
};

/// The attack with data.
pub const DATA: Scenario = Scenario {
    name: "blind-data",
    about: "bytes inside the window with guessed acknowledgement numbers",
    configure: as_it_is,
    attack: |arena| Blind::attack(arena, Kind::Data),
};

/// Maximum number of challenge ACKs of a connection per second (RFC 5961 section 7).
const CHALLENGES: u64 = 64;
/// Duration of the attack without honest traffic.
const BURSTS: Duration = Duration::from_millis(50);
/// Payload of a forged segment.
const BYTES: [u8; 512] = [0xbd; 512];
/// A quarter of the victim's window, in bytes. Forged numbers in the window are in the first half of this
/// part.
const WINDOW: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Reset,
    Syn,
    Data,
}

struct Blind {
    kind: Kind,
    macs: [[u8; 6]; 2],
    bystander: CraftedPeers,
    number: u32,
    dice: Dice,
    sent: u64,
    /// Number of frames to the idle connection whose sequence numbers were chosen in the window.
    hits: u64,
    ready_us: Option<u64>,
}

impl Blind {
    fn attack(arena: &Arena, kind: Kind) -> Box<dyn Attack> {
        let mut bystander = CraftedPeers::new(arena.macs(), 0);
        let number = bystander.join(PeerOptions::default());
        let macs = arena.macs();
        Box::new(Self {
            kind,
            macs,
            bystander,
            number,
            dice: Part::Setup.dice(2),
            sent: 0,
            hits: 0,
            ready_us: None,
        })
    }

    fn forged(&mut self, from: SocketAddrV4, next: u32, acknowledged: u32, hit: bool) -> Vec<u8> {
        let inside = 1 + self.dice.below(WINDOW / 2) as u32;
        let seq = if hit { next.wrapping_add(inside) } else { self.dice.below(1 << 32) as u32 };
        // The acknowledgement number is 2^31 to 2^31 + 2^29 away from `acknowledged`, so it is far from any
        // byte that is or was in flight.
        let ack = acknowledged.wrapping_add((1 << 31) + self.dice.below(1 << 29) as u32);
        let (ack, flags, payload): (_, _, &[u8]) = match self.kind {
            Kind::Reset => (None, flag::RST, &[]),
            Kind::Syn => (None, flag::SYN, &[]),
            Kind::Data => (Some(ack), flag::PSH, &BYTES),
        };
        let to = SocketAddrV4::new(VICTIM, PORT);
        Segment { from, to, seq, ack, flags, window: 1000, options: &[], payload }.frame(self.macs)
    }
}

impl Actor for Blind {
    fn is_ready(&self) -> bool {
        self.bystander.count(Stage::Ready) == 1
    }

    fn frame(&mut self, scene: &Scene<'_>) -> Option<Vec<u8>> {
        if let Some(frame) = self.bystander.frame() {
            return Some(frame);
        }
        if !self.is_ready() {
            return None;
        }
        self.ready_us.get_or_insert(scene.now_us);
        self.sent += 1;
        let hit = self.sent & 2 == 0;
        if self.sent & 1 == 0 {
            self.hits += u64::from(hit);
            let bystander = self.bystander.get(self.number);
            let (here, nxt, heard) = (bystander.here, bystander.nxt, bystander.heard);
            return Some(self.forged(here, nxt, heard, hit));
        }
        let flow = scene.flows[self.sent as usize / 4 % scene.flows.len()];
        Some(self.forged(SocketAddrV4::new(CLIENT, flow.port), flow.seq, flow.ack, hit))
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.bystander.on_frame(frame);
    }
}

impl Attack for Blind {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        // The attack lasts for more polls than the limit of challenge ACKs, since a poll sends at most one
        // challenge ACK for a connection, whatever the number of received frames is.
        arena.alone(self, BURSTS, |_, _| false);
        let elapsed_us = arena.now_us() - self.ready_us.unwrap_or_default();
        let bystander = self.bystander.get(self.number);
        check(bystander.stage == Stage::Ready, || "the idle connection has ended".into())?;
        let allowed = CHALLENGES * (elapsed_us / 1_000_000 + 1) + 1;
        let challenges = bystander.acks;
        check((1..=allowed).contains(&challenges), || {
            format!(
                "{challenges} challenge ACKs in {elapsed_us} us for {} hits, the limit is {allowed}",
                self.hits
            )
        })?;
        check(self.hits > 2 * allowed, || format!("only {} hits", self.hits))?;
        check(arena.all_established(), || "an honest connection has ended".into())?;
        check(arena.victim.lent_is_whole(), || "forged bytes were placed".into())?;
        let odds = match self.kind {
            Kind::Reset => "one guess in 2^32 resets",
            Kind::Syn => "no guess has an effect",
            Kind::Data => "one guess in 2^24 inserts bytes, which the CRC then detects",
        };
        Ok(format!("{challenges} challenge ACKs for {} hits in {} ms; {odds}", self.hits, elapsed_us / 1000))
    }
}
