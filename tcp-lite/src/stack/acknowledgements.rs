//! Calls for users that wait for the peer's acknowledgements, and for users that decide when our
//! acknowledgements are sent.

use super::Stack;
use crate::{ConnId, Instant};

impl Stack {
    /// The stream offset up to which the peer has acknowledged all bytes; `None` if the id is not valid.
    pub fn acknowledged(&self, conn: ConnId) -> Option<u64> {
        let conn = self.connections.live(conn).and_then(|slot| self.connections.get(slot))?;
        Some(conn.tcb.send_offsets().1)
    }

    /// Sets whether [`Event::Acknowledged`](crate::Event) reports all acknowledgements of the peer on `conn`.
    /// By default, only acknowledgements of segments with external memory are reported.
    pub fn report_acknowledgements(&mut self, conn: ConnId, on: bool) {
        self.with_live(conn, |tcb, _| tcb.report_acknowledgements(on));
    }

    /// Sends the acknowledgement of the bytes that have arrived on `conn` without the delay of
    /// [`TcpConfig::delayed_ack`](crate::TcpConfig). Does nothing if all bytes are acknowledged. If the user
    /// [withholds](Self::withhold) the acknowledgement of such bytes, it is sent later.
    pub fn acknowledge_early(&mut self, now: Instant, conn: ConnId) {
        self.advance(now);
        self.with_live(conn, |tcb, _| tcb.acknowledge_early());
    }

    /// Withholds acknowledgements of the peer's bytes from this stream offset on, although the bytes have
    /// arrived. With `None`, all bytes are acknowledged. This call is for a user whose peer concludes more
    /// from an acknowledgement than TCP guarantees. Such a user has to send another message before the
    /// acknowledgement. Bytes that were acknowledged before remain acknowledged, and the whole stream is
    /// acknowledged once the peer's FIN has arrived. Withhold acknowledgements for at most a round trip,
    /// because the peer retransmits the bytes after a longer time.
    pub fn withhold(&mut self, conn: ConnId, from: Option<u64>) {
        self.with_live(conn, |tcb, _| tcb.withhold(from));
    }
}
