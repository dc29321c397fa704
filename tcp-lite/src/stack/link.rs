//! Changes of the port's link, and the removal of the port.

use super::Stack;
use crate::Instant;

impl Stack {
    /// Tells the stack whether the port has a link. The stack starts with the link up. While the link is
    /// down, the stack sends nothing and drops the datagrams of its user, timers keep running, and after
    /// [`TcpConfig::link_timeout`](crate::TcpConfig::link_timeout) all connections end that are not in
    /// SYN-SENT or TIME-WAIT. When the link comes up again, each connection with unacknowledged bytes at once
    /// retransmits its oldest segment and probes the peer; the other segments follow by slow start. Our
    /// addresses are announced ([`AddressProbing`](crate::AddressProbing)). The Ethernet addresses of
    /// neighbours are confirmed at their next use.
    pub fn set_link(&mut self, now: Instant, up: bool) {
        self.advance(now);
        if self.port_gone {
            return;
        }
        if std::mem::replace(&mut self.link_up, up) == up {
            return;
        }
        self.on_link_for_udp(self.now, up);
        if !up {
            self.counters.link_downs += 1;
            self.link_deadline = Some(self.now + self.config.tcp.link_timeout);
            return;
        }
        let now = self.now;
        self.link_deadline = None;
        self.conflicts.announce_all(now);
        self.neighbors.doubt_all(now);
        for slot in 0..self.connections.slots() {
            self.with(now, slot, |tcb, ctx| tcb.on_link_up(ctx));
        }
        self.connections.wake_waiting();
    }

    /// Tells the stack that the port was removed. Every connection ends at once with
    /// [`CloseReason::PortGone`](crate::CloseReason::PortGone), without RST. Later connections end in the
    /// same way.
    pub fn end_port(&mut self, now: Instant) {
        self.set_link(now, false);
        self.port_gone = true;
        self.link_deadline = Some(self.now);
        self.end_without_link(self.now);
    }

    /// Ends all connections because the port was removed, or because it has been without a link for too long.
    /// Without a link, connections in SYN-SENT or TIME-WAIT continue.
    pub(super) fn end_without_link(&mut self, now: Instant) {
        if !self.port_gone {
            self.link_deadline = None;
        }
        let gone = self.port_gone;
        for slot in 0..self.connections.slots() {
            self.with(now, slot, |tcb, ctx| match gone {
                true => tcb.on_port_gone(ctx),
                false => tcb.on_link_lost(ctx),
            });
        }
    }
}
