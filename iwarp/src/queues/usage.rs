//! Limits of a context, and how much of each is used (RFC 5042 section 6.4.1).
//!
//! Every object that a context makes is granted here, by a [`Permit`] that it holds as long as it lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::VerbsError;

/// One limit of a context, and how it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The limit's name in [`ContextLimits`](super::ContextLimits), or in
    /// [`ListenOptions`](crate::verbs::ListenOptions).
    pub name: &'static str,
    /// Its value.
    pub limit: usize,
    /// How much of it is used now.
    pub used: usize,
    /// How often more was asked for than was left.
    pub refused: u64,
}

/// How every limit of a context stands ([`Context::usage`](crate::verbs::Context::usage)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Inbound Reads and atomics that connections may have outstanding, in all.
    pub read_slots: Usage,
    /// TCP connections that peers have begun and that are not established yet, of all listeners together
    /// ([`ListenOptions::half_open`](crate::verbs::ListenOptions::half_open) on every engine).
    pub half_open: Usage,
    /// Connections of peers that are not accepted or rejected yet, startup not finished or the user not
    /// decided, of all listeners together ([`ListenOptions::backlog`](crate::verbs::ListenOptions::backlog)).
    pub backlog: Usage,
    /// Asynchronous events that wait; `refused`: those that were lost.
    pub async_events: Usage,
}

impl ContextUsage {
    /// All of them, for a table.
    pub fn all(&self) -> [Usage; 11] {
        let Self { pd, mr, mw, qp, cq, cqe, srq, read_slots, half_open, backlog, async_events } = *self;
        [pd, mr, mw, qp, cq, cqe, srq, read_slots, half_open, backlog, async_events]
    }
}

/// What there is of one kind.
pub(crate) struct Quota {
    name: &'static str,
    limit: usize,
    used: AtomicUsize,
    refused: AtomicU64,
}

/// A part of a quota, given back when dropped.
pub(crate) struct Permit {
    quota: Arc<Quota>,
    count: usize,
}

impl Quota {
    pub(crate) fn new(name: &'static str, limit: usize) -> Arc<Self> {
        Arc::new(Self { name, limit, used: AtomicUsize::new(0), refused: AtomicU64::new(0) })
    }

    /// Grants `count` more, or says which limit forbids it.
    pub(crate) fn take(self: &Arc<Self>, count: usize) -> Result<Permit, VerbsError> {
        // RFC 5041 section 8.3.2 (DDP-235), RFC 5040 section 8.1.2 (RDMAP-365): each allocation counts
        // against a limit.
        let more = |used: usize| used.checked_add(count).filter(|&used| used <= self.limit);
        match self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, more) {
            Ok(_) => Ok(Permit { quota: Arc::clone(self), count }),
            Err(_) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                Err(VerbsError::Limit { name: self.name, limit: self.limit })
            }
        }
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

/// Whether a size is within its limit.
pub(crate) fn within(name: &'static str, size: usize, limit: usize) -> Result<(), VerbsError> {
    if size > limit { Err(VerbsError::Limit { name, limit }) } else { Ok(()) }
}

impl Permit {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Takes over another part of the same quota.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.count += std::mem::take(&mut other.count);
    }

    /// Gives back what is above `count`.
    pub(crate) fn shrink_to(&mut self, count: usize) {
        let surplus = self.count.saturating_sub(count);
        self.count -= surplus;
        self.quota.used.fetch_sub(surplus, Ordering::AcqRel);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.quota.used.fetch_sub(self.count, Ordering::AcqRel);
    }
}
