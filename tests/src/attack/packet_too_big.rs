//! Forged ICMP reports that a segment is larger than the path's MTU (RFC 1191, RFC 5927 section 7).
//!
//! Half of the reports concern honest connections, with guessed sequence numbers; the victim ignores all
//! these reports. The other half concern connections with bytes in flight, as if the attacker saw these
//! bytes. The reported MTU falls slowly from 1487 to 68. The victim does not reduce its path MTU below 576
//! bytes, so few of the reports make it retransmit the bytes in flight.

use std::net::SocketAddrV4;

use super::arena::{Actor, Arena, Scene};
use super::crafted_peer::{PeerOptions, read};
use super::crafted_peers::CraftedPeers;
use super::segment::Segment;
use super::victim::{CLIENT, LENT, PORT, VICTIM};
use super::{Attack, Scenario, as_it_is, check};
use crate::sim::dice::Part;
use testkit::dice::Dice;
use testkit::packet::{flag, parse, too_big};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "packet-too-big",
    about: "forged ICMP reports of an ever smaller path MTU",
    configure: as_it_is,
    attack: |arena| {
        let mut crafted = CraftedPeers::new(arena.macs(), 0);
        for _ in 0..PEERS {
            crafted.join(PeerOptions::default());
        }
        let lent = (arena.victim.lent.rkey(), arena.victim.lent.addr());
        let dice = Part::Setup.dice(5);
        Box::new(TooBig {
            macs: arena.macs(),
            crafted,
            lent,
            dice,
            asked: false,
            sent: 0,
            heard: FrameCounts::default(),
        })
    },
};

/// Number of connections with bytes in flight.
const PEERS: u32 = 4;
/// The payload of the segment that a report quotes.
const PAYLOAD: [u8; 1448] = [0; 1448];
/// The smallest IPv4 path MTU that the victim accepts from a report, minus the headers of a segment with
/// timestamps. The victim does not reduce its segment size below this number.
const LEAST: usize = 576 - 20 - 32;
/// Maximum number of bytes in flight at the start of a connection (RFC 6928).
const INITIAL_WINDOW: u64 = 10 * 1460;

/// Maximum number of times that reports cause a retransmission of the bytes in flight.
const MOST_CUTS: u64 = 5;

/// Numbers of frames that the victim has sent on the attacker's own connections.
#[derive(Default)]
struct FrameCounts {
    segments: u64,
    bytes: u64,
    /// Number of segments smaller than [`LEAST`].
    small: u64,
}

struct TooBig {
    macs: [[u8; 6]; 2],
    crafted: CraftedPeers,
    lent: (u32, u64),
    dice: Dice,
    asked: bool,
    sent: u64,
    heard: FrameCounts,
}

impl TooBig {
    /// Makes each peer read the lent region without acknowledging the response.
    fn ask(&mut self) {
        self.asked = true;
        let (stag, to) = self.lent;
        for (_, peer) in self.crafted.all() {
            peer.set_acknowledges(false);
            peer.inbox.clear();
            let fpdu = peer.fpdu(&read(1, LENT as u32, stag, to));
            let frame = peer.send_data(&fpdu);
            peer.queue(frame);
        }
        self.crafted.wake();
    }

    /// Returns a report about a segment of the victim.
    fn report(&self, to: SocketAddrV4, seq: u32, mtu: u16) -> Option<Vec<u8>> {
        let from = SocketAddrV4::new(VICTIM, PORT);
        let segment = Segment {
            from,
            to,
            seq,
            ack: Some(0),
            flags: flag::PSH,
            window: 1000,
            options: &[],
            payload: &PAYLOAD,
        };
        let [router, victim] = self.macs;
        let frame = segment.frame([victim, router]);
        Some(too_big(&frame, &parse(&frame)?, mtu))
    }
}

impl Actor for TooBig {
    fn is_ready(&self) -> bool {
        self.crafted.is_ready()
    }

    fn frame(&mut self, scene: &Scene<'_>) -> Option<Vec<u8>> {
        let number = match self.crafted.next(self.sent as usize / 2) {
            Ok(number) => number,
            Err(first) => return first,
        };
        if !self.asked {
            self.ask();
            return self.crafted.frame();
        }
        self.sent += 1;
        let round = (self.sent / u64::from(2 * PEERS)) as u16;
        if self.sent.is_multiple_of(2) {
            // The reported MTU falls from 1487 to 68, again and again.
            let mtu = 1487 - round % 1420;
            let peer = self.crafted.get(number);
            let (here, first) = (peer.here, peer.heard.wrapping_sub(peer.inbox.len() as u32));
            return self.report(here, first, mtu);
        }
        let flow = scene.flows[round as usize % scene.flows.len()];
        // The sequence number is 2^31 to 2^31 + 2^29 away from `flow.ack`, so it is far from any byte that is
        // or was in flight.
        let seq = flow.ack.wrapping_add((1 << 31) + self.dice.below(1 << 29) as u32);
        self.report(SocketAddrV4::new(CLIENT, flow.port), seq, 576)
    }

    fn on_frame(&mut self, frame: &[u8]) {
        if let Some(tcp) = parse(frame).filter(|tcp| self.asked && !tcp.is_empty()) {
            let FrameCounts { segments, bytes, small } = &mut self.heard;
            *segments += 1;
            *bytes += tcp.len() as u64;
            *small += u64::from(tcp.len() < LEAST);
        }
        self.crafted.on_frame(frame);
    }
}

impl Attack for TooBig {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        check(self.crafted.is_ready(), || "a connection has ended".into())?;
        let stack = arena.victim.host.engine.counters().stack;
        let guesses = self.sent.div_ceil(2);
        check(stack.icmp_ignored >= guesses, || {
            format!("{} of {guesses} guesses were ignored", stack.icmp_ignored)
        })?;
        let FrameCounts { segments, bytes, small } = self.heard;
        let peers = u64::from(PEERS);
        check(bytes >= peers * PAYLOAD.len() as u64, || "nothing was in flight".into())?;
        // The second part of a segment that was cut may be short, and the last segment may be short.
        check(small * 2 <= segments + peers, || format!("{small} of {segments} segments are small"))?;
        let timeouts = arena.now_us() / 50_000 + 1;
        let allowed = peers * INITIAL_WINDOW * (MOST_CUTS + timeouts);
        check(bytes <= allowed, || format!("{bytes} bytes were sent, the limit is {allowed}"))?;
        Ok(format!(
            "{guesses} guesses ignored; {bytes} bytes in {segments} segments for {} hits",
            self.sent / 2
        ))
    }
}
