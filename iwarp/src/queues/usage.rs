//! The limits of a context and their use (RFC 5042 section 6.4.1).
//!
//! Protection domains, completion queues and shared receive queues hold a [`Permit`] until they are
//! destroyed. A context may have many queue pairs, so a queue pair holds only counts, which need less memory,
//! and returns these counts when it is dropped. The memory table counts its registrations and windows itself.

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
    /// The maximum number that may be in use at a time.
    pub limit: usize,
    /// The number that is in use now.
    pub used: usize,
    /// Number of requests that were refused because of the limit.
    pub refused: u64,
}

/// The limits of a context on the number of objects in use, and how much of each limit is in use
/// ([`Context::usage`](crate::verbs::Context::usage)).
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
    /// TCP connections of all listeners that peers have begun and that are not established yet
    /// ([`ListenOptions::half_open`](crate::verbs::ListenOptions::half_open) on every engine).
    pub half_open: Usage,
    /// Connections of all listeners that are not accepted or rejected yet, because startup is not complete or
    /// the user has not decided ([`ListenOptions::backlog`](crate::verbs::ListenOptions::backlog)).
    pub backlog: Usage,
    /// Asynchronous events that wait. `refused` is the number of lost events.
    pub async_events: Usage,
}

impl ContextUsage {
    /// Returns these limits in an array.
    pub fn all(&self) -> [Usage; 11] {
        let Self { pd, mr, mw, qp, cq, cqe, srq, read_slots, half_open, backlog, async_events } = *self;
        [pd, mr, mw, qp, cq, cqe, srq, read_slots, half_open, backlog, async_events]
    }
}

/// The limit of one kind of object, and how much of the limit is in use.
pub(crate) struct Quota {
    name: &'static str,
    limit: usize,
    used: AtomicUsize,
    refused: AtomicU64,
}

/// A part of a quota. Dropping this value returns the part to the quota.
pub(crate) struct Permit {
    quota: Arc<Quota>,
    count: usize,
}

impl Quota {
    pub(crate) fn new(name: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(Self { name, limit, used: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// Grants `count` units. Returns [`VerbsError::Limit`] if this would exceed the limit.
    pub(crate) fn take(self: &Arc<Self>, count: usize) -> Result<Permit, VerbsError> {
        // RFC 5041 section 8.3.2 (DDP-235), RFC 5040 section 8.1.2 (RDMAP-365): each allocation counts
        // towards a limit.
        let more = |used: usize| used.checked_add(count).filter(|&used| used <= self.limit);
        // RFC 5042 sections 3 and 6.4.1 (SEC-048, SEC-049, SEC-121): this function is the resource manager.
        // It never grants more units than the limit allows.
        match self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Permit { quota: Arc::clone(self), count }),
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(VerbsError::Limit { name: self.name, limit: self.limit })
            }
        }
    }

    /// Returns `count` units to the quota. The owner has turned its permit [into a
    /// count](Permit::into_count).
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

/// Checks that a size does not exceed its limit.
pub(crate) fn within(name: &'static str, size: usize, limit: usize) -> Result<(), VerbsError> {
    if size > limit { Err(VerbsError::Limit { name, limit }) } else { Ok(()) }
}

impl Permit {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Turns the permit into a count. The owner must later [return the count](Quota::take_back) to the quota.
    pub(crate) fn into_count(mut self) -> usize {
        std::mem::take(&mut self.count)
    }

    /// Adds another permit of the same quota to this permit.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.count += std::mem::take(&mut other.count);
    }

    /// Returns all units above `count` to the quota.
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
