//! The invariants of a connection.

use dp::invariant::{Check, ensure};

use super::super::state::EngineState;
use super::{Attempt, Connection, Holdings};

impl Connection {
    /// Checks the invariants of the connection; for tests.
    pub(in crate::engine) fn check(&self, state: &EngineState) -> Check<Holdings> {
        let holdings = self.check_phase(state)?;
        let (pinned, _) = self.phase.upkeep();
        ensure!(self.pinned == pinned, "TCP counts {} bytes pinned of {pinned}", self.pinned);
        let has_failed = matches!(self.base.attempt, Attempt::Failed(_));
        ensure!(!has_failed, "the attempt has failed, and it is still there");
        ensure!(!self.closed, "it is closed and still there");
        ensure!(
            self.next_deadline() == self.scheduled,
            "due at {:?}, scheduled for {:?}",
            self.next_deadline(),
            self.scheduled
        );
        Ok(holdings)
    }
}

#[cfg(test)]
mod tests {
    use dp::invariant::assert_found;
    use tcp_lite::{Deadline, Instant};

    use super::*;
    use crate::engine::connection::Phase;
    use crate::engine::connection::rdma::RdmaStage;
    use crate::engine::connection::report::User;
    use crate::engine::two_engines::Stage::{
        AwaitRequest, AwaitRtr, Deciding, Ended, Established, Opening, Streaming,
    };
    use crate::engine::two_engines::{Stage, connection_at};

    const CLIENT: usize = 0;
    const SERVER: usize = 1;

    type Break = fn(&mut Connection);

    /// For each defect that the check has to find: the stage of the connection, the side whose state is
    /// changed, the change, and the message of the check.
    const BROKEN: [(Stage, usize, Break, &str); 20] = [
        (Opening, CLIENT, |c| c.base.timers.clear_deadline(), "startup has no deadline"),
        (Opening, CLIENT, |c| c.base.user = User::Done, "this end has connected for no user"),
        (Deciding, CLIENT, |c| c.base.timers.clear_deadline(), "startup has no deadline"),
        (Deciding, CLIENT, |c| c.base.user = User::Done, "this end has connected for no user"),
        (Deciding, CLIENT, fail_the_attempt, "the attempt has failed, and it is still there"),
        (Deciding, SERVER, |c| c.base.user = User::Unaware, "nobody decides on the Request"),
        (AwaitRequest, SERVER, |c| c.base.timers.clear_deadline(), "startup has no deadline"),
        (AwaitRequest, SERVER, lose_everybody, "a Request is awaited for nobody"),
        (Streaming, SERVER, |c| c.base.user = User::Unaware, "streaming mode has no user"),
        (Streaming, CLIENT, set_deadline, "streaming mode has a deadline: true"),
        (Streaming, CLIENT, begin_to_close, "streaming mode has a deadline: false"),
        (Established, SERVER, |c| c.base.user = User::Done, "Full Operation has no user"),
        (Established, CLIENT, set_deadline, "Full Operation has a deadline"),
        (Established, CLIENT, fail, "the Terminate has no deadline"),
        (AwaitRtr, SERVER, |c| c.base.timers.clear_deadline(), "the RTR has no deadline"),
        (Established, CLIENT, |c| c.pinned = 2048, "TCP counts 2048 bytes pinned of 0"),
        (Established, CLIENT, |c| c.closed = true, "it is closed and still there"),
        (Established, CLIENT, |c| c.scheduled = Instant::ZERO.into(), "due at None, scheduled for Some("),
        (Opening, CLIENT, |c| c.scheduled = Deadline::NONE, "due at Some("),
        (Ended, CLIENT, |c| c.base.timers.clear_deadline(), "the end has no deadline"),
    ];

    fn fail_the_attempt(connection: &mut Connection) {
        if let Phase::Startup(startup) = &connection.phase {
            startup.consider_fallback(&mut connection.base);
        }
    }

    fn lose_everybody(connection: &mut Connection) {
        (connection.base.user, connection.base.admitted) = (User::Unaware, None);
    }

    fn set_deadline(connection: &mut Connection) {
        connection.base.timers.set_deadline(Instant::ZERO);
    }

    fn begin_to_close(connection: &mut Connection) {
        if let Phase::Streaming(streaming) = &mut connection.phase {
            streaming.closing = Some(0);
        }
    }

    fn fail(connection: &mut Connection) {
        if let Phase::Rdma(rdma) = &mut connection.phase {
            rdma.stage = RdmaStage::Terminating;
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
