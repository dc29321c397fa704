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
    /// [`Event::Acknowledged`](crate::Event). By default, only acknowledgements of segments with external
    /// memory are reported.
    pub fn report_acknowledgements(&mut self, conn: ConnId, on: bool) {
        self.with_live(conn, |tcb, _| tcb.report_acknowledgements(on));
    }

    /// Acknowledges the bytes that have arrived on `conn` now, not after
    /// [`TcpConfig::delayed_ack`](crate::TcpConfig). Does nothing if all bytes are acknowledged.
    pub fn acknowledge_early(&mut self, now: Instant, conn: ConnId) {
        self.advance(now);
        self.with_live(conn, |tcb, _| tcb.acknowledge_early());
    }

    /// Withholds the acknowledgement of the peer's bytes from this stream offset on, though they have
    /// arrived; `None`: acknowledges all that arrives. For a user whose peer concludes more from an
    /// acknowledgement than TCP promises, and has to be told something else first. Acknowledged bytes stay
    /// acknowledged, and the whole stream is acknowledged once the peer's FIN has arrived. If this takes
    /// long, the peer retransmits the bytes, so a user should withhold for at most a round trip.
    pub fn withhold(&mut self, conn: ConnId, from: Option<u64>) {
        self.with_live(conn, |tcb, _| tcb.withhold(from));
    }

    /// A number that the two ends of a TCP connection compute from their initial sequence numbers. If a proxy
    /// terminates the connection, the two ends have different numbers. `None` for a dead id.
    pub fn sequence_mark(&self, conn: ConnId) -> Option<u32> {
        let conn = self.connections.live(conn).and_then(|slot| self.connections.get(slot))?;
        Some(conn.tcb.sequence_mark())
    }
}
