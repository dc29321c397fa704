//! Acknowledgements, for users that wait for them or whose peer does.

use super::Stack;
use crate::{ConnId, Instant};

impl Stack {
    /// The stream offset up to which the peer has acknowledged all bytes; `None` for a dead id.
    pub fn acknowledged(&self, conn: ConnId) -> Option<u64> {
        let conn = self.connections.live(conn).and_then(|slot| self.connections.get(slot))?;
        Some(conn.tcb.send_offsets().1)
    }

    /// Says whether all acknowledgements of the peer on `conn` are reported, by
    /// [`Event::Acknowledged`](crate::Event). The default is that only those of segments with external memory
    /// are.
    pub fn report_acknowledgements(&mut self, conn: ConnId, on: bool) {
        self.with_live(conn, |tcb, _| tcb.report_acknowledgements(on));
    }

    /// Acknowledges what has arrived on `conn` now, not after [`TcpConfig::delayed_ack`](crate::TcpConfig).
    /// Does nothing if all is acknowledged.
    pub fn acknowledge_early(&mut self, now: Instant, conn: ConnId) {
        self.advance(now);
        self.with_live(conn, |tcb, _| tcb.acknowledge_early());
    }

    /// Withholds the acknowledgement of the peer's bytes from this stream offset on, though they have
    /// arrived; `None`: acknowledges all that arrives. For a user whose peer takes an acknowledgement for
    /// more than it says, and has to learn something else first. What is acknowledged stays so, and the whole
    /// stream is acknowledged once the peer's FIN has come. The peer sends the bytes again if this takes
    /// long: a user withholds no longer than a round trip takes.
    pub fn withhold(&mut self, conn: ConnId, from: Option<u64>) {
        self.with_live(conn, |tcb, _| tcb.withhold(from));
    }

    /// A number that both ends of a TCP connection know, and no other one: made of the two initial sequence
    /// numbers. Where a proxy ends the connection, each end has another one. `None` for a dead id.
    pub fn sequence_mark(&self, conn: ConnId) -> Option<u32> {
        let conn = self.connections.live(conn).and_then(|slot| self.connections.get(slot))?;
        Some(conn.tcb.sequence_mark())
    }
}
