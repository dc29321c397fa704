//! A shared receive queue: buffers for the messages of several streams.
//!
//! A stream reserves the oldest buffer when a message begins, and holds at most one buffer. Only the
//! completion shows which buffer the message has filled. Until then the bytes of the buffers are unknown.

use std::collections::VecDeque;

use super::super::cause::{Cause, PossibleEnd};
use super::super::memory::{Span, application};
use super::{Arriving, Model, Received};

/// Maximum number of requests in the shared receive queue.
pub(crate) const DEPTH: usize = 24;

/// The shared receive queue of a host.
#[derive(Default)]
pub(crate) struct SharedQueue {
    /// Requests that have not completed, oldest first.
    open: VecDeque<Received>,
    /// The limit that is armed, or 0 if none is armed.
    pub(crate) limit: usize,
}

impl SharedQueue {
    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }
}

impl Model {
    /// Returns the number of buffers of `host` for which no message is under way.
    pub(crate) fn spare(&self, host: usize) -> usize {
        self.shared[host].len().saturating_sub(self.due(host))
    }

    /// Returns the length in bytes of the shortest buffer in the shared receive queue of `host`.
    pub(crate) fn least(&self, host: usize) -> usize {
        let room = |open: &Received| open.spans.iter().map(|span| span.len).sum::<usize>();
        self.shared[host].open.iter().map(room).min().unwrap_or(0)
    }

    /// Returns the number of messages under way to the shared receive queue of `host`.
    fn due(&self, host: usize) -> usize {
        let ends = self.streams.iter().map(|stream| &stream.ends[host]);
        ends.filter(|end| end.shared && !end.over).map(|end| end.arriving.len()).sum()
    }

    /// Returns the number of streams that may hold a buffer of the shared receive queue of `host`.
    fn holders(&self, host: usize) -> usize {
        self.streams.iter().filter(|stream| stream.ends[host].shared && !stream.ends[host].over).count()
    }

    pub(crate) fn posted_shared(&mut self, host: usize, op: u64, spans: Vec<Span>) {
        self.memory.open(op, &spans);
        self.shared[host].open.push_back(Received { op, spans, late: false });
        self.note_shared_ends(host);
    }

    /// Records that a message of `stream` has completed buffer `op`. Each stream holds at most one buffer, so
    /// `op` has to be one of the oldest buffers.
    pub(super) fn taken(&mut self, stream: usize, host: usize, op: u64) -> Result<Received, String> {
        let holders = self.holders(host);
        let queue = &mut self.shared[host].open;
        let at = queue.iter().position(|open| open.op == op);
        let at = at.ok_or_else(|| format!("shared receive {op} is not open"))?;
        if at >= holders {
            return Err(format!("shared receive {op} was taken before {}", queue[0].op));
        }
        let end = &mut self.streams[stream].ends[host];
        if std::mem::replace(&mut end.last_shared, op) > op {
            return Err(format!("shared receive {op} completed behind a younger one of its stream"));
        }
        if end.last_told {
            return Err(format!("shared receive {op} completed behind the last of its stream"));
        }
        Ok(queue.remove(at).expect("just found"))
    }

    /// Records how streams may end if the messages under way use the buffers that `host` has now.
    pub(super) fn note_shared_ends(&mut self, host: usize) {
        let queue = &self.shared[host].open;
        let short = self.due(host) > queue.len();
        let least = self.least(host);
        let unsteady = queue.iter().any(|open| self.any_unsteady(&open.spans, application(host)));
        for stream in &mut self.streams {
            let end = &stream.ends[host];
            if !end.shared || end.over || end.arriving.is_empty() {
                continue;
            }
            let long = end.arriving.iter().any(|Arriving { message, .. }| message.len > least);
            let causes = [(short, Cause::NoReceive), (long, Cause::TooLong), (unsteady, Cause::Receive)];
            let possible_ends = causes.into_iter().filter(|(is_so, _)| *is_so);
            stream.possible_ends.extend(possible_ends.map(|(_, cause)| PossibleEnd {
                cause,
                finder: host,
                sure: false,
            }));
        }
    }

    /// Records that the shared receive queue of `host` reported its limit event. Fails if at least as many
    /// buffers as the limit are left.
    pub(crate) fn limit_reached(&mut self, host: usize) -> Result<(), String> {
        let limit = std::mem::take(&mut self.shared[host].limit);
        let left = self.shared[host].len().saturating_sub(self.holders(host));
        if left >= limit {
            return Err(format!("host {host}: {left} buffers are left, and the limit was {limit}"));
        }
        Ok(())
    }

    /// Checks the values that the shared receive queue of `host` reports, after all completions and events
    /// were read.
    pub(crate) fn check_shared(&self, host: usize, posted: usize, limit: usize) -> Result<(), String> {
        let (open, holders) = (self.shared[host].len(), self.holders(host));
        if posted > open || posted + holders < open {
            return Err(format!("host {host}: {posted} shared receives wait, of {open} that are open"));
        }
        if limit != self.shared[host].limit || posted < limit {
            return Err(format!(
                "host {host}: {posted} shared receives wait, the limit is {limit} and should be {}",
                self.shared[host].limit
            ));
        }
        Ok(())
    }

    /// Records the event for the last shared receive of a queue pair.
    pub(crate) fn last_receive(&mut self, by: (usize, usize)) -> Result<(), String> {
        let end = &mut self.streams[by.0].ends[by.1];
        if !end.shared || std::mem::replace(&mut end.last_told, true) {
            return Err(format!("{by:?} was told the end of its shared receives out of place"));
        }
        Ok(())
    }

    /// Records that no message is under way, so that the open buffers are unchanged.
    pub(super) fn shut_shared(&mut self) {
        let open = |op: u64| self.shared.iter().any(|queue| queue.open.iter().any(|open| open.op == op));
        self.memory.effects.retain(|effect| !open(effect.op));
    }

    /// Records that messages may arrive again.
    pub(crate) fn reopen_shared(&mut self) {
        for queue in &self.shared {
            queue.open.iter().for_each(|open| self.memory.open(open.op, &open.spans));
        }
    }
}
