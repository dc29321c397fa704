//! The invariants of a connection.

use dp::invariant::{Check, ensure};

use super::super::io::Io;
use super::{Connection, Phase};
use crate::rdmap::stream::Waiting;

/// What a connection has taken of what all share.
#[derive(Debug, Default)]
pub(in crate::engine) struct Holdings {
    pub(in crate::engine) buffers: usize,
    pub(in crate::engine) records: usize,
    pub(in crate::engine) waiting: Waiting,
}

impl Connection {
    /// Whether it is as it must be between any two calls; for tests.
    pub(in crate::engine) fn check(&self, io: &Io) -> Check<Holdings> {
        let mut holdings = Holdings::default();
        match &self.phase {
            Phase::FullOperation(full) => {
                let ((buffers, records), waiting) = full.stream.check(&io.held, &io.request_pool)?;
                holdings = Holdings { buffers, records, waiting };
            }
            Phase::StreamingMode(mode) => holdings.buffers = mode.check(&io.held)?,
            Phase::AwaitReply { reassembly, .. }
            | Phase::AwaitRequest { reassembly, .. }
            | Phase::Deciding { reassembly, .. } => holdings.buffers = reassembly.check(&io.held)?,
            Phase::Opening(_) | Phase::Ended(_) => {}
        }
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
