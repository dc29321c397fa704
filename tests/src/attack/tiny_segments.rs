//! Segments of one byte, in order and out of order, and peers that accept only small segments.

use super::arena::{Actor, Arena, Scene};
use super::crafted_peer::{PeerOptions, read, write};
use super::crafted_peers::CraftedPeers;
use super::victim::{LENT, LENT_BYTE};
use super::{Attack, Scenario, as_it_is, check};

/// The attacker sends each byte of the stream in a segment of its own.
pub const IN_ORDER: Scenario = Scenario {
    name: "tiny-in-order",
    about: "Writes in segments of one byte",
    configure: as_it_is,
    attack: |arena| Tiny::attack(arena, Kind::InOrder),
};

/// The attacker sends single bytes beyond a hole, with a hole between any two of the bytes.
pub const OUT_OF_ORDER: Scenario = Scenario {
    name: "tiny-out-of-order",
    about: "every third byte, behind a hole that is never filled",
    configure: as_it_is,
    attack: |arena| Tiny::attack(arena, Kind::OutOfOrder),
};

/// The attacker sends bytes at falling positions: each byte is directly before the byte that was sent before
/// it. So all bytes form one range.
pub const FALLING: Scenario = Scenario {
    name: "tiny-falling",
    about: "single bytes at falling positions, behind a hole that is never filled",
    configure: as_it_is,
    attack: |arena| Tiny::attack(arena, Kind::Falling),
};

/// The attacker announces a maximum segment size of 1.
pub const SMALL_MSS: Scenario = Scenario {
    name: "tiny-mss",
    about: "Reads by peers whose maximum segment size is 1",
    configure: as_it_is,
    attack: |arena| Tiny::attack(arena, Kind::SmallMss),
};

/// Number of connections.
const PEERS: u32 = 8;
/// Payload of a Write in bytes.
const PAYLOAD: usize = 256;
/// Number of bytes that a peer sends at falling positions, before it sends the same bytes again.
const FALLING_BYTES: u32 = 50_000;
/// The smallest payload in bytes to which a peer's MSS can reduce the segments of the victim.
const SMALLEST: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    InOrder,
    OutOfOrder,
    Falling,
    SmallMss,
}

struct Tiny {
    kind: Kind,
    crafted: CraftedPeers,
    lent: (u32, u64),
    /// The bytes of each peer's FPDU that the peer has not sent.
    pending: Vec<Vec<u8>>,
    sent: u64,
    /// Number of whole Writes or Reads that the peers have begun.
    whole: u64,
    /// Number of payload bytes and of segments that the peers received, and the payload of the longest
    /// segment.
    heard: (u64, u64, usize),
    counted: bool,
}

impl Tiny {
    fn attack(arena: &Arena, kind: Kind) -> Box<dyn Attack> {
        let mut crafted = CraftedPeers::new(arena.macs(), 0);
        let mss = if kind == Kind::SmallMss { 1 } else { 1460 };
        for _ in 0..PEERS {
            crafted.join(PeerOptions { mss, ..PeerOptions::default() });
        }
        let pending = vec![Vec::new(); PEERS as usize];
        let lent = (arena.victim.lent.rkey(), arena.victim.lent.addr());
        Box::new(Self { kind, crafted, lent, pending, sent: 0, whole: 0, heard: (0, 0, 0), counted: false })
    }
}

impl Actor for Tiny {
    fn is_ready(&self) -> bool {
        self.crafted.is_ready()
    }

    fn frame(&mut self, _scene: &Scene<'_>) -> Option<Vec<u8>> {
        let number = match self.crafted.next(self.sent as usize) {
            Ok(number) => number,
            Err(first) => return first,
        };
        self.counted = true;
        let at = self.sent as usize % PEERS as usize;
        let round = self.sent / u64::from(PEERS);
        self.sent += 1;
        let (stag, to) = self.lent;
        let peer = self.crafted.get(number);
        match self.kind {
            Kind::InOrder => {
                if self.pending[at].is_empty() {
                    self.pending[at] = peer.fpdu(&write(stag, to, &[LENT_BYTE; PAYLOAD]));
                    self.pending[at].reverse();
                    self.whole += 1;
                }
                let byte = self.pending[at].pop()?;
                Some(peer.send_data(&[byte]))
            }
            Kind::OutOfOrder => {
                let seq = peer.nxt.wrapping_add(3 + (round % 20_000) as u32 * 3);
                Some(peer.data(seq, &[0xbd]))
            }
            Kind::Falling => {
                let seq = peer.nxt.wrapping_add(3 + FALLING_BYTES - (round as u32 % FALLING_BYTES));
                Some(peer.data(seq, &[0xbd]))
            }
            Kind::SmallMss => {
                // The peers send one Read at a time, and acknowledgements of the Read Response.
                if self.whole <= round / 64 {
                    self.whole += 1;
                    let size = if self.whole > 4 { 0 } else { 4096_u32.min(LENT as u32) };
                    if size > 0 {
                        let fpdu = peer.fpdu(&read(self.whole as u32, size, stag, to));
                        return Some(peer.send_data(&fpdu));
                    }
                }
                Some(peer.segment(|_| {}))
            }
        }
    }

    fn on_frame(&mut self, frame: &[u8]) {
        if self.counted
            && let Some(tcp) = testkit::packet::parse(frame)
        {
            let (bytes, segments, longest) = self.heard;
            let full = u64::from(!tcp.is_empty());
            self.heard = (bytes + tcp.len() as u64, segments + full, longest.max(tcp.len()));
        }
        self.crafted.on_frame(frame);
    }
}

impl Attack for Tiny {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        check(self.crafted.is_ready(), || "a connection has ended".into())?;
        check(arena.victim.lent_is_whole(), || "bytes were placed".into())?;
        let stack = arena.victim.host.engine.counters().stack;
        let held = arena.victim.far_end.held();
        match self.kind {
            Kind::InOrder => {
                let seen: Vec<_> = arena.victim.stranger_ids().filter_map(|id| id.activity()).collect();
                let fpdus: u64 = seen.iter().map(|seen| seen.rx_fpdus).sum();
                // `fpdus` includes the empty Write with which each peer began, but not the Write in progress.
                let said = self.whole;
                check(
                    (said.saturating_sub(u64::from(PEERS))..=said + u64::from(PEERS)).contains(&fpdus),
                    || format!("{fpdus} of {said} FPDUs arrived"),
                )?;
                Ok(format!(
                    "{fpdus} whole Writes out of {} segments; {held} buffers held at the end",
                    self.sent
                ))
            }
            Kind::OutOfOrder => {
                let dropped = stack.rx_out_of_order_dropped_bytes;
                // The victim holds at most 64 ranges for each peer, whatever arrives. It also holds the
                // frames that the honest client has not acknowledged.
                check(held <= 64 * PEERS as usize + 64, || format!("{held} buffers are held"))?;
                check(dropped > 0, || "nothing was dropped".into())?;
                Ok(format!("{held} buffers held at the end, {dropped} bytes dropped and counted"))
            }
            Kind::Falling => {
                // The victim holds at most 64 ranges for each peer, few of which grow. It also holds the
                // frames that the honest client has not acknowledged.
                check(held <= 64 * PEERS as usize + 64, || format!("{held} buffers are held"))?;
                let bytes = stack.out_of_order.held_bytes;
                let dropped = stack.rx_out_of_order_dropped_bytes;
                check(bytes > 0 && dropped > 0, || "nothing is held, or nothing was dropped".into())?;
                Ok(format!("{bytes} bytes held in {held} buffers at the end, {dropped} dropped and counted"))
            }
            Kind::SmallMss => {
                let (bytes, segments, longest) = self.heard;
                check(segments > 0, || "nothing was read".into())?;
                check(segments * (SMALLEST as u64) < 2 * bytes, || {
                    format!("{bytes} bytes in {segments} segments")
                })?;
                check(longest >= SMALLEST, || format!("no segment is longer than {longest}"))?;
                Ok(format!("{bytes} bytes in {segments} segments: {} each", bytes / segments))
            }
        }
    }
}
