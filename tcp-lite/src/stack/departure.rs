//! Neighbours that are gone: a port may find out at once what TCP would find by timeouts.

use super::Stack;
use crate::Instant;
use crate::facade::EthernetAddress;

impl Stack {
    /// Says that nobody is at this Ethernet address any more, for a port that finds out. Every connection
    /// whose frames go there ends at once, without a RST: with
    /// [`CloseReason::Unreachable`](crate::CloseReason::Unreachable) if it waits for the answer to its SYN,
    /// otherwise with [`CloseReason::LinkDown`](crate::CloseReason::LinkDown).
    pub fn end_neighbor(&mut self, now: Instant, mac: EthernetAddress) {
        self.advance(now);
        let now = self.now;
        for slot in 0..self.connections.slots() {
            let next_hop = self.connections.get(slot).map(|conn| conn.next_hop);
            if next_hop.and_then(|ip| self.neighbors.known(&ip)) == Some(mac) {
                self.with(now, slot, |tcb, ctx| tcb.on_neighbor_gone(ctx));
            }
        }
    }
}
