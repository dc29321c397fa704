//! The peers provoke very many small segments from the victim. Then the peers stop acknowledging these
//! segments, and send SACK blocks that cover parts of them. These are the attacks of 2019 (CVE-2019-11477,
//! 11478 and 11479). The peers announce a small maximum segment size, so that the victim sends many short
//! segments.

use std::collections::HashMap;

use super::arena::{Actor, Arena, Scene};
use super::crafted_peer::{PeerOptions, read};
use super::crafted_peers::CraftedPeers;
use super::victim::{LENT, STRANGERS_IRD};
use super::{Attack, Scenario, as_it_is, check};
use testkit::packet::parse;

/// Blocks of one byte, far apart. No segment is wholly inside a block, so the victim searches without finding
/// a segment.
pub const INSIDE: Scenario = Scenario {
    name: "sack-inside",
    about: "SACK blocks inside of segments, very many of which are in flight (CVE-2019-11478)",
    configure: as_it_is,
    attack: |arena| SackStorm::attack(arena, Kind::Inside),
};

/// Each block covers one segment. The blocks cover every second segment, from the last segment to the first,
/// again and again.
pub const FRAGMENTS: Scenario = Scenario {
    name: "sack-fragments",
    about: "SACK blocks of every other small segment, from the last to the first (CVE-2019-11479)",
    configure: as_it_is,
    attack: |arena| SackStorm::attack(arena, Kind::Fragments),
};

/// One block, which begins at the second segment and grows by a segment with each acknowledgement, up to the
/// last segment.
pub const GROWING: Scenario = Scenario {
    name: "sack-growing",
    about: "a SACK block that grows to very many small segments (CVE-2019-11477)",
    configure: as_it_is,
    attack: |arena| SackStorm::attack(arena, Kind::Growing),
};

/// Number of connections.
const PEERS: u32 = 4;
/// The maximum segment size that the peers announce.
const MSS: u16 = 64;
/// Minimum number of segments in flight on each connection.
const IN_FLIGHT: usize = 1000;
/// Minimum time in microseconds to wait for the responses to the last Reads.
const FILL_US: u64 = 20_000;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Inside,
    Fragments,
    Growing,
}

/// The progress of the preparation.
#[derive(Clone, Copy, PartialEq)]
enum Stage {
    /// The connections are being established.
    Connecting,
    /// The peers acknowledge the responses to the first Reads, so the congestion windows grow.
    Growing,
    /// Since this time, the peers do not acknowledge the responses to the last Reads.
    Filling(u64),
    Ready,
}

struct SackStorm {
    kind: Kind,
    crafted: CraftedPeers,
    lent: (u32, u64),
    numbers: Vec<u32>,
    stage: Stage,
    /// The segments in flight to each peer, by its number: the sequence numbers of each segment's start and
    /// end.
    flights: HashMap<u32, Vec<(u32, u32)>>,
    sent: usize,
    /// Number of frames that the victim has sent on these connections since the attack began.
    answers: usize,
}

impl SackStorm {
    fn attack(arena: &Arena, kind: Kind) -> Box<dyn Attack> {
        let mut crafted = CraftedPeers::new(arena.macs(), 0);
        let options = PeerOptions { mss: MSS, ..PeerOptions::default() };
        let numbers = (0..PEERS).map(|_| crafted.join(options)).collect();
        let lent = (arena.victim.lent.rkey(), arena.victim.lent.addr());
        let (stage, flights) = (Stage::Connecting, HashMap::new());
        Box::new(Self { kind, crafted, lent, numbers, stage, flights, sent: 0, answers: 0 })
    }

    /// Makes each peer send the maximum number of Reads, starting with MSN `first`.
    fn ask(&mut self, first: u32) {
        let (stag, to) = self.lent;
        for &number in &self.numbers {
            let peer = self.crafted.get(number);
            peer.inbox.clear();
            for msn in first..first + u32::from(STRANGERS_IRD) {
                let fpdu = peer.fpdu(&read(msn, LENT as u32, stag, to));
                let frame = peer.send_data(&fpdu);
                peer.queue(frame);
            }
        }
        self.crafted.wake();
    }

    fn advance(&mut self, now_us: u64) {
        let all = usize::from(STRANGERS_IRD) * LENT;
        match self.stage {
            Stage::Connecting if self.crafted.is_ready() => {
                self.ask(1);
                self.stage = Stage::Growing;
            }
            Stage::Growing if self.crafted.all().all(|(_, peer)| peer.inbox.len() >= all) => {
                self.crafted.all().for_each(|(_, peer)| peer.set_acknowledges(false));
                self.ask(1 + u32::from(STRANGERS_IRD));
                self.stage = Stage::Filling(now_us);
            }
            Stage::Filling(since_us) if now_us >= since_us + FILL_US && self.fewest() >= IN_FLIGHT => {
                self.stage = Stage::Ready;
            }
            _ => {}
        }
    }

    /// Returns the number of segments in flight of the connection with the fewest such segments.
    fn fewest(&self) -> usize {
        self.numbers.iter().map(|number| self.flights.get(number).map_or(0, Vec::len)).min().unwrap_or(0)
    }

    /// Returns the SACK blocks of the `nth` acknowledgement of a peer to which the segments `flight` are in
    /// flight.
    fn blocks(&self, flight: &[(u32, u32)], nth: usize) -> Vec<(u32, u32)> {
        let count = flight.len();
        match self.kind {
            Kind::Inside => [count - 1, count / 2, count - 1 - nth % (count / 2), nth % (count / 2)]
                .map(|at| (flight[at].0.wrapping_add(1), flight[at].0.wrapping_add(2)))
                .to_vec(),
            Kind::Fragments => {
                let at = |before: usize| flight[count - 1 - 2 * ((nth + count / 2 - before) % (count / 2))];
                (0..4).map(at).collect()
            }
            Kind::Growing => vec![(flight[1].0, flight[1 + nth % (count - 1)].1)],
        }
    }
}

impl Actor for SackStorm {
    fn is_ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    fn frame(&mut self, scene: &Scene<'_>) -> Option<Vec<u8>> {
        self.advance(scene.now_us);
        if let Some(frame) = self.crafted.frame() {
            return Some(frame);
        }
        if self.stage != Stage::Ready {
            return None;
        }
        let number = self.numbers[self.sent % self.numbers.len()];
        let nth = self.sent / self.numbers.len();
        let flight = self.flights.get(&number)?;
        let blocks = self.blocks(flight, nth);
        let first = flight[0].0;
        self.sent += 1;
        Some(self.crafted.get(number).sack(first, &blocks))
    }

    fn on_frame(&mut self, frame: &[u8]) {
        if let (Stage::Filling(_), Some(tcp)) = (self.stage, parse(frame))
            && let Some(number) = self.crafted.addressee(frame)
            && !tcp.is_empty()
            && tcp.seq == self.crafted.get(number).heard
        {
            let end = tcp.seq.wrapping_add(tcp.len() as u32);
            self.flights.entry(number).or_default().push((tcp.seq, end));
        }
        self.answers += usize::from(self.sent > 0);
        self.crafted.on_frame(frame);
    }
}

impl Attack for SackStorm {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        check(self.crafted.is_ready(), || "a connection has ended".into())?;
        let fewest = self.fewest();
        let longest = self.flights.values().flatten().map(|(start, end)| end.wrapping_sub(*start)).max();
        check(longest <= Some(u32::from(MSS)), || format!("a segment of {longest:?} bytes"))?;
        let (sent, answers) = (self.sent, self.answers);
        // For newly sacked bytes, the victim may send as many bytes. Timeouts cause all other frames.
        let in_flight: usize = self.flights.values().map(Vec::len).sum();
        let timeouts = (arena.now_us() / 50_000 + 1) as usize;
        let allowed = 2 * in_flight + PEERS as usize * 4 * timeouts;
        check(answers <= allowed, || format!("{answers} frames in answer, the limit is {allowed}"))?;
        Ok(format!("{answers} frames in answer to {sent} ACKs, {fewest} segments in flight"))
    }
}
