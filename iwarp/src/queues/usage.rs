//! The limits of a context and their use (RFC 5042 section 6.4.1).
//!
//! Every object of a context holds a [`Permit`] until it is destroyed. A queue pair, of which there may be
//! many, holds a count instead, and returns the count when it is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::VerbsError;

/// One limit of a context, and its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The limit's name in [`ContextLimits`](super::ContextLimits), or in
    /// [`ListenOptions`](crate::verbs::ListenOptions).
    pub name: &'static str,
    /// The maximum in use at a time.
    pub limit: usize,
    /// The part that is in use now.
    pub used: usize,
    /// How often a request was refused because of the limit.
    pub refused: u64,
}

/// All limits of a context, and their use ([`Context::usage`](crate::verbs::Context::usage)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ContextUsage {
    /// Protection domains.
    pub pd: Usage,
    /// Memory registrations.
    pub mr: Usage,
    /// Memory windows.
    pub mw: Usage,
    /// Queue pairs.
    pub qp: Usage,
    /// Completion queues.
    pub cq: Usage,
    /// Entries of all completion queues.
    pub cqe: Usage,
    /// Shared receive queues.
    pub srq: Usage,
    /// Inbound Reads and atomics that all connections together may have outstanding.
    pub read_slots: Usage,
    /// TCP connections that peers have begun and that are not established yet, of all listeners together
    /// ([`ListenOptions::half_open`](crate::verbs::ListenOptions::half_open) on every engine).
    pub half_open: Usage,
    /// Connections of peers that are not accepted or rejected yet, because startup has not finished or the
    /// user has not decided, of all listeners together
    /// ([`ListenOptions::backlog`](crate::verbs::ListenOptions::backlog)).
    pub backlog: Usage,
    /// Asynchronous events that wait; `refused` counts the lost ones.
    pub async_events: Usage,
}

impl ContextUsage {
    /// All limits, in an array.
    pub fn all(&self) -> [Usage; 11] {
        let Self { pd, mr, mw, qp, cq, cqe, srq, read_slots, half_open, backlog, async_events } = *self;
        [pd, mr, mw, qp, cq, cqe, srq, read_slots, half_open, backlog, async_events]
    }
}

/// The limit of one kind of object.
pub(crate) struct Quota {
    name: &'static str,
    limit: usize,
    used: AtomicUsize,
    refused: AtomicU64,
}

/// A part of a quota; dropping it returns the part.
pub(crate) struct Permit {
    quota: Arc<Quota>,
    count: usize,
}

impl Quota {
    pub(crate) fn new(name: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(Self { name, limit, used: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// Grants `count` more, or returns the limit that forbids it.
    pub(crate) fn take(self: &Arc<Self>, count: usize) -> Result<Permit, VerbsError> {
        // RFC 5041 section 8.3.2 (DDP-235), RFC 5040 section 8.1.2 (RDMAP-365): each allocation counts
        // against a limit.
        let more = |used: usize| used.checked_add(count).filter(|&used| used <= self.limit);
        // RFC 5042 sections 3 and 6.4.1 (SEC-048, SEC-049, SEC-121): this function is the resource manager.
        // It grants every scarce resource, to any thread, but never more than the limit.
        match self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Permit { quota: Arc::clone(self), count }),
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(VerbsError::Limit { name: self.name, limit: self.limit })
            }
        }
    }

    /// Takes back `count` from an owner that has turned its permit [into a count](Permit::into_count).
    pub(crate) fn take_back(&self, count: usize) {
        self.used.fetch_sub(count, Ordering::AcqRel);
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            name: self.name,
            limit: self.limit,
            used: self.used.load(Ordering::Acquire),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// Checks that a size is within its limit.
pub(crate) fn within(name: &'static str, size: usize, limit: usize) -> Result<(), VerbsError> {
    if size > limit { Err(VerbsError::Limit { name, limit }) } else { Ok(()) }
}

impl Permit {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Turns the permit into a count, for an owner that knows the quota, and has to [return the
    /// count](Quota::take_back) itself.
    pub(crate) fn into_count(mut self) -> usize {
        std::mem::take(&mut self.count)
    }

    /// Adds another part of the same quota to this one.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.count += std::mem::take(&mut other.count);
    }

    /// Returns the part above `count`.
    pub(crate) fn shrink_to(&mut self, count: usize) {
        let surplus = self.count.saturating_sub(count);
        self.count -= surplus;
        self.quota.take_back(surplus);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.take_back(self.count);
    }
}
