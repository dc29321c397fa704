//! Peers that send 2^20 bytes beyond a hole and never fill the hole.

use super::arena::{Actor, Arena, Scene};
use super::crafted_peer::PeerOptions;
use super::crafted_peers::CraftedPeers;
use super::{Attack, Scenario, as_it_is, check};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "out-of-order",
    about: "windows filled behind holes that are never filled",
    configure: as_it_is,
    attack: |arena| {
        let mut crafted = CraftedPeers::new(arena.macs(), 0);
        for _ in 0..PEERS {
            crafted.join(PeerOptions::default());
        }
        Box::new(OutOfOrder { crafted, sent: 0 })
    },
};

/// Number of connections. Their segments beyond holes need more than twice as many buffers as the victim has.
const PEERS: u32 = 32;
/// Payload of a segment in bytes.
const SEGMENT: u32 = 1460;
/// Number of segments that a peer sends beyond its hole: about 2^20 bytes, which fit into the victim's
/// window.
const WINDOW: u32 = (1 << 20) / SEGMENT - 2;

struct OutOfOrder {
    crafted: CraftedPeers,
    sent: u32,
}

impl Actor for OutOfOrder {
    fn is_ready(&self) -> bool {
        self.crafted.is_ready()
    }

    fn frame(&mut self, _scene: &Scene<'_>) -> Option<Vec<u8>> {
        let number = match self.crafted.next(self.sent as usize) {
            Ok(number) => number,
            Err(first) => return first,
        };
        let round = self.sent / PEERS;
        self.sent += 1;
        let peer = self.crafted.get(number);
        let seq = peer.nxt.wrapping_add(SEGMENT + round % WINDOW * SEGMENT);
        Some(peer.data(seq, &[0xbd; SEGMENT as usize]))
    }

    fn on_frame(&mut self, frame: &[u8]) {
        self.crafted.on_frame(frame);
    }
}

impl Attack for OutOfOrder {
    fn check_outcome(&mut self, arena: &mut Arena) -> Result<String, String> {
        // An eighth of the buffers stays reserved for in-order bytes.
        let limit = arena.victim.buffers() * 7 / 8;
        arena.held_most = 0;
        let wanted = (PEERS * WINDOW) as usize;
        let mut sent = 0;
        arena.alone(self, super::victim::PATIENCE, |_, me| {
            sent = me.sent as usize;
            sent >= 2 * wanted
        });
        check(sent >= wanted, || format!("only {sent} segments were sent"))?;
        let held = arena.held_most;
        check(wanted > limit, || "the windows together do not exceed the buffers".into())?;
        check(held <= limit + 256, || format!("{held} buffers were held, the limit is {limit}"))?;
        let dropped = arena.victim.host.engine.counters().stack.rx_out_of_order_dropped_bytes;
        check(dropped > 0, || "nothing was dropped".into())?;
        let stack = arena.victim.host.engine.counters().stack;
        let none = stack.tx_no_mbuf + stack.rx_no_mbuf;
        check(none == 0, || format!("no buffer was free {none} times"))?;
        arena.round(self, 32)?;
        Ok(format!(
            "{held} buffers held at most of {limit}, {wanted} wanted; {dropped} bytes dropped and counted"
        ))
    }
}
