//! Connections to neighbours that are gone. A port may notice the departure at once, but TCP notices it only
//! by timeouts.

use super::Stack;
use crate::Instant;
use crate::facade::EthernetAddress;

impl Stack {
    /// Called by the user when a port finds that no host has this Ethernet address any more. Every connection
    /// whose frames go to this address ends at once, without RST. The reason is
    /// [`CloseReason::Unreachable`](crate::CloseReason::Unreachable) if the connection waits for the answer
    /// to its SYN, and [`CloseReason::LinkDown`](crate::CloseReason::LinkDown) otherwise.
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
