//! The invariants of an engine.

use dp::invariant::{Check, ensure};

#[cfg(test)]
use super::{Connection, EngineState};
use super::{ORPHANS, Poller};
use crate::stream::Waiting;

impl Poller {
    /// Checks the invariants of the engine, and that each used slot of the shared slabs belongs to a
    /// connection; for tests.
    pub(in crate::engine) fn check(&self) -> Check {
        self.state.tcp.check_invariants()?;
        let (mut count, mut scheduled) = (0, 0);
        let (mut buffers, mut records, mut waiting) = (0, 0, Waiting::default());
        for (slot, connection) in self.connections.iter().enumerate() {
            let Some(connection) = connection else { continue };
            let holdings =
                connection.check(&self.state).map_err(|what| format!("connection {slot}: {what}"))?;
            ensure!(connection.conn().slot() == slot, "connection {:?} is in slot {slot}", connection.conn());
            if let Some(at) = connection.scheduled.get() {
                ensure!(self.deadlines.contains(&(at, slot as u32)), "connection {slot} will not be woken");
                scheduled += 1;
            }
            count += 1;
            buffers += holdings.buffers;
            records += holdings.records;
            waiting.peer_requests += holdings.waiting.peer_requests;
            waiting.outstanding += holdings.waiting.outstanding;
        }
        ensure!(self.connection_count == count, "{} counted of {count} connections", self.connection_count);
        let deadlines = self.deadlines.iter().filter(|(_, slot)| *slot != ORPHANS).count();
        ensure!(deadlines == scheduled, "{deadlines} deadlines, {scheduled} scheduled");
        self.state.tx_scheduler.check().map_err(|what| format!("turns to send: {what}"))?;
        self.state.held.check(buffers, records)?;
        self.state.request_pool.check(waiting)
    }
}

#[cfg(test)]
impl Poller {
    /// Returns the engine's only connection, so that a test can corrupt its state.
    pub(in crate::engine) fn only_connection(&mut self) -> (&mut Connection, &EngineState) {
        let mut connections = self.connections.iter_mut().flatten();
        let connection = connections.next().expect("a connection");
        assert!(connections.next().is_none(), "more than one connection");
        (connection, &self.state)
    }
}

#[cfg(test)]
mod tests {
    use dp::invariant::assert_found;
    use tcp_lite::Instant;

    use super::*;
    use crate::engine::two_engines::{Stage, connection_at};
    use crate::mpa::HeldList;

    type Break = fn(&mut Poller);

    const BROKEN: [(Break, &str); 5] = [
        (move_connection, "is in slot 1"),
        (|poller| poller.deadlines.clear(), "connection 0 will not be woken"),
        (|poller| poller.connection_count += 1, "2 counted of 1 connections"),
        (|poller| assert!(poller.deadlines.insert((Instant::ZERO, 7))), "2 deadlines, 1 scheduled"),
        (forget_buffer, "held buffers: 1 slots taken, 0 in lists"),
    ];

    fn move_connection(poller: &mut Poller) {
        poller.connections.insert(0, None);
    }

    fn forget_buffer(poller: &mut Poller) {
        let mut buf = poller.port.mempool().alloc().expect("a free buffer");
        assert!(buf.append(1).is_some());
        HeldList::default().hold(&mut poller.state.held, 0, buf, false).expect("a free slot");
    }

    #[test]
    fn a_poller_whose_parts_disagree_is_found() {
        for (break_it, found) in BROKEN {
            let mut ends = connection_at(Stage::Opening);
            let poller = &mut ends[0].engine.poller;
            poller.check().unwrap();
            break_it(poller);
            assert_found(poller.check(), found);
        }
    }
}
