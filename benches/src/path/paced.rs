//! The state of a run at a given rate: due messages, and confirmed messages. The module `pacing` posts the
//! messages.

use std::collections::VecDeque;

use crate::latency::Latencies;
use crate::rate::Schedule;

/// Maximum number of zero-length Reads in flight on one queue pair, unless `outs` is smaller.
pub(super) const FLUSHES: u32 = crate::params::FLUSHES;

/// One run at a given rate.
pub(super) struct Paced {
    pub(super) schedule: Schedule,
    pub(super) asked_messages_per_s: f64,
    pub(super) latencies: Latencies,
    /// True if zero-length Reads confirm messages.
    pub(super) by_flush: bool,
    pub(super) hz: u64,
    /// The queue pair for the next message.
    pub(super) next: usize,
    pub(super) flows: Vec<PacedFlow>,
    /// Queue pairs that have posted messages after their last zero-length Read.
    pub(super) unflushed: Vec<usize>,
    pub(super) unsent: u64,
}

#[derive(Default)]
pub(super) struct PacedFlow {
    /// The times at which the messages in flight were due, oldest first.
    pub(super) due: VecDeque<u64>,
    pub(super) confirmed: u64,
    pub(super) flushes_in_flight: u32,
    pub(super) is_unflushed: bool,
}

impl Paced {
    /// Records the latencies of message `count` of queue pair `index` and of all messages before it. Call
    /// this function when the target has these messages.
    pub(super) fn confirm(&mut self, index: usize, count: u64, now: u64) {
        let Self { flows, latencies, hz, .. } = self;
        let flow = &mut flows[index];
        for due in flow.due.drain(..(count.saturating_sub(flow.confirmed) as usize).min(flow.due.len())) {
            latencies.record_cycles(now.saturating_sub(due), *hz);
        }
        flow.confirmed = flow.confirmed.max(count);
    }
}
