//! The invariants of a connection.

use std::sync::Arc;

use dp::invariant::{Check, ensure};

use super::super::state::EngineState;
use super::full_operation::FullState;
use super::{Attempt, Connection, Phase};
use crate::stream::Waiting;

/// The slots of shared slabs that a connection holds.
#[derive(Debug, Default)]
pub(in crate::engine) struct Holdings {
    pub(in crate::engine) buffers: usize,
    pub(in crate::engine) records: usize,
    pub(in crate::engine) waiting: Waiting,
}

impl Connection {
    /// Checks the invariants of the connection; for tests.
    pub(in crate::engine) fn check(&self, state: &EngineState) -> Check<Holdings> {
        let mut holdings = Holdings::default();
        match &self.phase {
            Phase::FullOperation(full) => {
                let ((buffers, records), waiting) = full.check(&state.held, &state.request_pool)?;
                holdings = Holdings { buffers, records, waiting };
            }
            Phase::StreamingMode(mode) => holdings.buffers = mode.check(&state.held)?,
            Phase::AwaitReply { reassembly, .. }
            | Phase::AwaitRequest { reassembly, .. }
            | Phase::Deciding { reassembly, .. } => holdings.buffers = reassembly.check(&state.held)?,
            Phase::Opening(_) | Phase::Ended(_) => {}
        }
        self.check_phase(state)?;
        let pinned = self.phase.pinned_bytes();
        ensure!(self.pinned == pinned, "TCP counts {} bytes pinned of {pinned}", self.pinned);
        ensure!(!matches!(self.attempt, Attempt::Failed(_)), "the attempt has failed, and it is still there");
        ensure!(!self.closed, "it is closed and still there");
        ensure!(
            self.next_deadline() == self.scheduled,
            "due at {:?}, scheduled for {:?}",
            self.next_deadline(),
            self.scheduled
        );
        Ok(holdings)
    }

    /// Whether user and deadline are those of the phase.
    fn check_phase(&self, state: &EngineState) -> Check {
        let (is_known, has_deadline) = (self.user.id().is_some(), self.timers.deadline().is_some());
        // A connection that TCP has lost waits for TCP's last event.
        let is_there = state.tcp.info(self.conn).is_some();
        match &self.phase {
            Phase::Opening(_) | Phase::AwaitReply { .. } => {
                ensure!(has_deadline, "startup has no deadline");
                ensure!(is_known, "this end has connected for no user");
            }
            Phase::AwaitRequest { .. } => {
                ensure!(has_deadline, "startup has no deadline");
                ensure!(is_known || self.admitted.is_some(), "a Request is awaited for nobody");
            }
            Phase::Deciding { .. } => ensure!(is_known || !is_there, "nobody decides on the Request"),
            Phase::StreamingMode(mode) => {
                let is_same = self.plain.as_ref().is_some_and(|plain| Arc::ptr_eq(plain, &mode.plain));
                ensure!(is_same, "streaming mode has the bytes of another connection");
                ensure!(is_known, "streaming mode has no user");
                ensure!(
                    has_deadline == mode.closing.is_some(),
                    "streaming mode has a deadline: {has_deadline}"
                );
            }
            Phase::FullOperation(full) => {
                ensure!(is_known, "Full Operation has no user");
                match &full.state {
                    FullState::AwaitingRtr(_) => {
                        ensure!(!full.stream.may_send(), "the RTR is awaited and has come");
                        ensure!(has_deadline, "the RTR has no deadline");
                    }
                    FullState::Open => {
                        let waits = full.stream.awaits_recv();
                        ensure!(waits || !has_deadline, "Full Operation has a deadline");
                    }
                    FullState::Draining { .. } => {}
                    FullState::Terminating => ensure!(has_deadline, "the Terminate has no deadline"),
                }
            }
            Phase::Ended(_) => ensure!(has_deadline, "the end has no deadline"),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use dp::invariant::assert_found;
    use tcp_lite::{Deadline, Instant};

    use super::*;
    use crate::engine::connection::report::User;
    use crate::engine::two_engines::Stage::{
        AwaitRequest, AwaitRtr, Deciding, Ended, Established, Opening, Streaming,
    };
    use crate::engine::two_engines::{Stage, connection_at};

    const CLIENT: usize = 0;
    const SERVER: usize = 1;

    type Break = fn(&mut Connection);

    /// What is broken: at which stage, at which end, how, and what the check says.
    const BROKEN: [(Stage, usize, Break, &str); 21] = [
        (Opening, CLIENT, |c| c.timers.clear_deadline(), "startup has no deadline"),
        (Opening, CLIENT, |c| c.user = User::Done, "this end has connected for no user"),
        (Deciding, CLIENT, |c| c.timers.clear_deadline(), "startup has no deadline"),
        (Deciding, CLIENT, |c| c.user = User::Done, "this end has connected for no user"),
        (Deciding, CLIENT, Connection::consider_fallback, "the attempt has failed, and it is still there"),
        (Deciding, SERVER, |c| c.user = User::Unaware, "nobody decides on the Request"),
        (AwaitRequest, SERVER, |c| c.timers.clear_deadline(), "startup has no deadline"),
        (AwaitRequest, SERVER, lose_everybody, "a Request is awaited for nobody"),
        (Streaming, CLIENT, |c| c.plain = None, "streaming mode has the bytes of another connection"),
        (Streaming, SERVER, |c| c.user = User::Unaware, "streaming mode has no user"),
        (Streaming, CLIENT, set_deadline, "streaming mode has a deadline: true"),
        (Streaming, CLIENT, begin_to_close, "streaming mode has a deadline: false"),
        (Established, SERVER, |c| c.user = User::Done, "Full Operation has no user"),
        (Established, CLIENT, set_deadline, "Full Operation has a deadline"),
        (Established, CLIENT, fail, "the Terminate has no deadline"),
        (AwaitRtr, SERVER, |c| c.timers.clear_deadline(), "the RTR has no deadline"),
        (Established, CLIENT, |c| c.pinned = 2048, "TCP counts 2048 bytes pinned of 0"),
        (Established, CLIENT, |c| c.closed = true, "it is closed and still there"),
        (Established, CLIENT, |c| c.scheduled = Instant::ZERO.into(), "due at None, scheduled for Some("),
        (Opening, CLIENT, |c| c.scheduled = Deadline::NONE, "due at Some("),
        (Ended, CLIENT, |c| c.timers.clear_deadline(), "the end has no deadline"),
    ];

    fn lose_everybody(connection: &mut Connection) {
        (connection.user, connection.admitted) = (User::Unaware, None);
    }

    fn set_deadline(connection: &mut Connection) {
        connection.timers.set_deadline(Instant::ZERO);
    }

    fn begin_to_close(connection: &mut Connection) {
        if let Phase::StreamingMode(mode) = &mut connection.phase {
            mode.closing = Some(0);
        }
    }

    fn fail(connection: &mut Connection) {
        if let Phase::FullOperation(full) = &mut connection.phase {
            full.state = FullState::Terminating;
        }
    }

    #[test]
    fn a_connection_whose_parts_disagree_is_found() {
        for (stage, end, break_it, found) in BROKEN {
            let mut ends = connection_at(stage);
            for end in &ends {
                end.engine.poller.check().unwrap();
            }
            let (connection, state) = ends[end].engine.poller.only_connection();
            break_it(connection);
            assert_found(connection.check(state).map(drop), found);
        }
    }
}
