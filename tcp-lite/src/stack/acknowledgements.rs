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

    /// Says that the user has not taken the bytes of the peer from this stream offset on, though they have
    /// arrived; `None`: it takes all that arrives. They are acknowledged, and the peer is told that they are
    /// not taken ([`taken`](Self::taken)). A peer of another implementation ignores that.
    pub fn set_untaken(&mut self, conn: ConnId, from: Option<u64>) {
        self.with_live(conn, |tcb, _| tcb.set_untaken(from));
    }

    /// Whether the option that says which bytes are not taken did not come through when this end asked for it
    /// ([`connect_asking_untaken`](Self::connect_asking_untaken)): the peer does not know it, or a middlebox
    /// takes it off. Then neither end learns of such bytes.
    pub fn lost_untaken(&self, conn: ConnId) -> bool {
        let conn = self.connections.live(conn).and_then(|slot| self.connections.get(slot));
        conn.is_some_and(|conn| conn.tcb.lost_untaken())
    }

    /// The stream offset up to which the peer's user has taken all bytes, as far as the peer has said that
    /// there are others; `None` for a dead id. It is at most [`acknowledged`](Self::acknowledged). Where
    /// acknowledgements are reported, a change is reported too.
    pub fn taken(&self, conn: ConnId) -> Option<u64> {
        let conn = self.connections.live(conn).and_then(|slot| self.connections.get(slot))?;
        Some(conn.tcb.taken_offset())
    }

    /// Makes the peer answer: an acknowledgement may have been lost that says that bytes are taken.
    pub fn probe(&mut self, now: Instant, conn: ConnId) {
        self.advance(now);
        self.with_live(conn, |tcb, _| tcb.probe());
    }
}
