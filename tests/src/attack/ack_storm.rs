//! Three kinds of bogus acknowledgements: of bytes that were never sent (an ACK loop, RFC 5961 section 5);
//! duplicate acknowledgements; and acknowledgements of one byte each (a misbehaving receiver, RFC 5681
//! section 3.1, RFC 3465).
//!
//! For the last two kinds, the peers first read the lent region, so that bytes are in flight. Each kind is a
//! scenario without SACK and a scenario with SACK. Without SACK the victim counts duplicate acknowledgements;
//! with SACK the victim counts SACK blocks (`sack_storm.rs`).

use std::time::Duration;

use super::arena::{Actor, Arena, Scene};
use super::crafted_peer::{PeerOptions, read};
use super::crafted_peers::CraftedPeers;
use super::victim::LENT;
use super::{Attack, Scenario, as_it_is, check};

/// The attacker acknowledges bytes that were never sent.
pub const UNSENT: Scenario = Scenario {
    name: "ack-unsent",
    about: "acknowledgements of bytes that were never sent",
    configure: as_it_is,
    attack: |arena| AckStorm::attack(arena, Kind::Unsent, false),
};

/// The attacker sends the same acknowledgement again and again.
pub const DUPLICATE: Scenario = Scenario {
    name: "ack-duplicate",
    about: "the same acknowledgement repeatedly, with bytes in flight",
    configure: as_it_is,
    attack: |arena| AckStorm::attack(arena, Kind::Duplicate, false),
};

/// The attacker acknowledges the victim's bytes one by one.
pub const DIVISION: Scenario = Scenario {
    name: "ack-division",
    about: "acknowledgements of one byte each",
    configure: as_it_is,
    attack: |arena| AckStorm::attack(arena, Kind::Division, false),
};

/// The attack [`UNSENT`], but each acknowledgement also has a SACK block of bytes that were never sent.
pub const UNSENT_SACK: Scenario = Scenario {
    name: "ack-unsent-sack",
    about: "acknowledgements of bytes that were never sent, with SACK",
    attack: |arena| AckStorm::attack(arena, Kind::Unsent, true),
    ..UNSENT
};

/// The attack [`DUPLICATE`], but each acknowledgement also has a SACK block, which always has the same byte.
pub const DUPLICATE_SACK: Scenario = Scenario {
    name: "ack-duplicate-sack",
    about: "the same acknowledgement with the same SACK block repeatedly",
    attack: |arena| AckStorm::attack(arena, Kind::Duplicate, true),
    ..DUPLICATE
};

/// The attack [`DIVISION`], but each acknowledgement also has a SACK block, which grows by one byte each
/// time.
pub const DIVISION_SACK: Scenario = Scenario {
    name: "ack-division-sack",
    about: "acknowledgements of one byte each, with a SACK block that grows by one byte",
    attack: |arena| AckStorm::attack(arena, Kind::Division, true),
    ..DIVISION
};

/// Number of connections.
const PEERS: u32 = 4;
/// Maximum number of challenge ACKs of a connection per second.
const CHALLENGES: u64 = 64;
/// Duration of the attack without honest traffic.
const BURSTS: Duration = Duration::from_millis(50);
/// Maximum number of bytes in flight at the start of a connection (RFC 6928).
const INITIAL_WINDOW: u64 = 10 * 1460;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Unsent,
    Duplicate,
    Division,
}

struct AckStorm {
    kind: Kind,
    sack: bool,
    crafted: CraftedPeers,
    lent: (u32, u64),
    numbers: Vec<u32>,
    /// Whether each peer has sent its Read Request.
    asked: bool,
    sent: u64,
    /// Number of bytes that each peer has acknowledged one by one.
    divided: u32,
    ready_us: Option<u64>,
    /// Number of frames that the victim has sent since the attack began.
    answers: u64,
}

impl AckStorm {
    fn attack(arena: &Arena, kind: Kind, sack: bool) -> Box<dyn Attack> {
        let mut crafted = CraftedPeers::new(arena.macs(), 0);
        // Without SACK, the victim counts each repeated acknowledgement as a duplicate acknowledgement.
        let options = PeerOptions { large: sack, ..PeerOptions::default() };
        let numbers = (0..PEERS).map(|_| crafted.join(options)).collect();
        let lent = (arena.victim.lent.rkey(), arena.victim.lent.addr());
        let (asked, sent, divided, ready_us, answers) = (false, 0, 0, None, 0);
        Box::new(Self { kind, sack, crafted, lent, numbers, asked, sent, divided, ready_us, answers })
    }

    fn ask(&mut self) {
        self.asked = true;
        let (stag, to) = self.lent;
        for &number in &self.numbers {
            let peer = self.crafted.get(number);
            peer.set_acknowledges(false);
            peer.inbox.clear();
            let fpdu = peer.fpdu(&read(1, LENT as u32, stag, to));
            let frame = peer.send_data(&fpdu);
            peer.queue(frame);
            peer.acks = 0;
        }
        self.crafted.wake();
    }
}

impl Actor for AckStorm {
    fn is_ready(&self) -> bool {
        self.crafted.is_ready()
    }

    fn frame(&mut self, scene: &Scene<'_>) -> Option<Vec<u8>> {
        if let Some(frame) = self.crafted.frame() {
            return Some(frame);
        }
        if !self.is_ready() {
            return None;
        }
        if self.kind != Kind::Unsent && !self.asked {
            self.ask();
            return self.crafted.frame();
        }
        self.ready_us.get_or_insert(scene.now_us);
        self.sent += 1;
        let at = self.sent as usize % self.numbers.len();
        if at == 0 {
            self.divided += 1;
        }
        let (kind, divided) = (self.kind, self.divided);
        let peer = self.crafted.get(self.numbers[at]);
        let base = peer.heard.wrapping_sub(peer.inbox.len() as u32);
        let number = match kind {
            Kind::Unsent => peer.heard.wrapping_add(100_000),
            Kind::Duplicate => base,
            Kind::Division => base.wrapping_add(divided),
        };
        if !self.sack {
            return Some(peer.segment(|ack| ack.ack = Some(number)));
        }
        let (start, bytes) = match kind {
            Kind::Division => (number.wrapping_add(1460), 1 + divided),
            Kind::Unsent | Kind::Duplicate => (number.wrapping_add(1461), 1),
        };
        Some(peer.sack(number, &[(start, start.wrapping_add(bytes))]))
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.answers += u64::from(self.ready_us.is_some() && self.crafted.on_frame(frame).is_some());
        if self.ready_us.is_none() {
            self.crafted.on_frame(frame);
        }
    }
}

impl Attack for AckStorm {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        if self.kind == Kind::Unsent {
            // The attack lasts for more polls than the limit of challenge ACKs.
            arena.alone(self, BURSTS, |_, _| false);
        }
        let elapsed_us = arena.now_us() - self.ready_us.unwrap_or_default();
        check(self.crafted.is_ready(), || "a connection has ended".into())?;
        let peers = u64::from(PEERS);
        let (answers, sent) = (self.answers, self.sent);
        if self.kind == Kind::Unsent {
            let allowed = peers * CHALLENGES * (elapsed_us / 1_000_000 + 1);
            check((1..=allowed).contains(&answers), || format!("{answers} answers, {allowed} are allowed"))?;
            return Ok(format!("{answers} challenge ACKs for {sent} ACKs in {} ms", elapsed_us / 1000));
        }
        let divided = self.divided;
        let most =
            self.numbers.iter().map(|number| self.crafted.get(*number).inbox.len() as u64).max().unwrap_or(0);
        // Acknowledged bytes open the congestion window by as many bytes, whatever the number of
        // acknowledgements (RFC 3465). Each duplicate acknowledgement of bytes in flight allows one more
        // segment (RFC 5681 section 3.2).
        let acknowledged = if self.kind == Kind::Division { u64::from(divided) } else { 0 };
        let allowed = 2 * INITIAL_WINDOW + 2 * acknowledged + 3 * 1460;
        check(most <= allowed, || {
            format!("{most} bytes were sent for {acknowledged} acknowledged ones, the limit is {allowed}")
        })?;
        check(most >= 1460, || "nothing was in flight".into())?;
        // The number of retransmissions also has a limit: a few retransmissions, and in addition the
        // retransmissions that timeouts cause.
        let timeouts = elapsed_us / 50_000 + 1;
        let allowed = peers * (2 * allowed / 1460 + 4 * timeouts);
        check(answers <= allowed, || format!("{answers} frames in answer, the limit is {allowed}"))?;
        Ok(format!(
            "{answers} frames in answer to {sent} ACKs; {most} bytes out, {acknowledged} acknowledged"
        ))
    }
}
