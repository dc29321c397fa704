//! The invariants of an engine.

use dp::invariant::{Check, ensure};

use super::Core;
use crate::rdmap::stream::Waiting;

impl Core {
    /// Whether everything in here is as it must be between any two calls, and what connections hold of what
    /// they share is all that is taken; for tests.
    pub(in crate::engine) fn check(&self) -> Check {
        self.io.tcp.check_invariants()?;
        let (mut count, mut scheduled) = (0, 0);
        let (mut buffers, mut records, mut waiting) = (0, 0, Waiting::default());
        for (slot, connection) in self.connections.iter().enumerate() {
            let Some(connection) = connection else { continue };
            let holdings = connection.check(&self.io).map_err(|what| format!("connection {slot}: {what}"))?;
            ensure!(connection.conn().slot() == slot, "connection {:?} is in slot {slot}", connection.conn());
            if let Some(at) = connection.scheduled {
                ensure!(self.deadlines.contains(&(at, slot as u32)), "connection {slot} will not be woken");
                scheduled += 1;
            }
            count += 1;
            buffers += holdings.buffers;
            records += holdings.records;
            waiting.peer_requests += holdings.waiting.peer_requests;
            waiting.outstanding += holdings.waiting.outstanding;
            waiting.held_back += holdings.waiting.held_back;
        }
        ensure!(self.connection_count == count, "{} counted of {count} connections", self.connection_count);
        ensure!(
            self.deadlines.len() == scheduled,
            "{} deadlines, {scheduled} scheduled",
            self.deadlines.len()
        );
        self.io.held.check(buffers, records)?;
        self.io.request_pool.check(waiting)
    }
}
