//! The queue pairs that complete to a completion queue, and the number of entries that they can fill.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::memory::PdId;

use super::VerbsError;
use super::usage::Permit;

/// The entries of one completion queue that a queue pair can fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Demand {
    pub(crate) pd: PdId,
    /// Number of entries for the queue pair's own work queues.
    pub(crate) own: usize,
    /// Number and depth of the queue pair's shared receive queue, if the receives of the queue pair complete
    /// to this completion queue.
    pub(crate) srq: Option<(u32, usize)>,
}

pub(crate) struct AttachedQps {
    /// The value of [`CqOptions::strict`](super::CqOptions::strict).
    strict: Option<bool>,
    /// The numbers of the queue pairs.
    qps: BTreeSet<u32>,
    /// Number of queue pairs for each protection domain.
    pds: BTreeMap<u32, usize>,
    /// Number of queue pairs for each shared receive queue.
    srqs: BTreeMap<u32, usize>,
    /// Number of entries that all queue pairs together can fill.
    needed: usize,
    /// The permit for the entries of the completion queue, a part of `max_cqe_total`.
    pub(crate) granted: Permit,
}

impl AttachedQps {
    pub(crate) fn new(strict: Option<bool>, granted: Permit) -> Self {
        let (qps, pds, srqs) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { strict, qps, pds, srqs, needed: 0, granted }
    }

    /// Returns the number of entries that all queue pairs together can fill. A shared receive queue counts
    /// once.
    pub(crate) fn needed(&self) -> usize {
        self.needed
    }

    /// Adds a queue pair. Fails if the size is checked and `cqe` entries are too few.
    pub(crate) fn attach(&mut self, qp_num: u32, demand: Demand, cqe: usize) -> Result<(), VerbsError> {
        self.add(demand);
        if let Err(error) = self.check(cqe) {
            self.remove(demand);
            return Err(error);
        }
        self.qps.insert(qp_num);
        Ok(())
    }

    /// Removes a queue pair, if it was added. `demand` must be the value with which the queue pair was added.
    pub(crate) fn detach(&mut self, qp_num: u32, demand: Demand) {
        if self.qps.remove(&qp_num) {
            self.remove(demand);
        }
    }

    /// Checks that `cqe` entries are enough, if the size of the completion queue is checked.
    pub(crate) fn check(&self, cqe: usize) -> Result<(), VerbsError> {
        // RFC 5042 section 6.4.3.2 (SEC-145): a completion queue that several protection domains share has an
        // entry for every request, unless its user has switched the check off.
        let strict = self.strict.unwrap_or(self.pds.len() > 1);
        if strict && self.needed > cqe {
            return Err(VerbsError::CqTooSmall { cqe, needed: self.needed });
        }
        Ok(())
    }

    /// Returns the lowest number of a queue pair that is greater than `after`. If `after` is `None`, returns
    /// the lowest number of all queue pairs.
    pub(crate) fn next(&self, after: Option<u32>) -> Option<u32> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.qps.range((from, Bound::Unbounded)).next().copied()
    }

    fn add(&mut self, Demand { pd, own, srq }: Demand) {
        *self.pds.entry(pd.0).or_default() += 1;
        self.needed += own;
        if let Some((num, depth)) = srq {
            let users = self.srqs.entry(num).or_default();
            if *users == 0 {
                self.needed += depth;
            }
            *users += 1;
        }
    }

    fn remove(&mut self, Demand { pd, own, srq }: Demand) {
        release(&mut self.pds, pd.0);
        self.needed -= own;
        if let Some((num, depth)) = srq
            && release(&mut self.srqs, num)
        {
            self.needed -= depth;
        }
    }
}

/// Reduces the count of `key` by one user. Returns whether this was the last user.
fn release(users: &mut BTreeMap<u32, usize>, key: u32) -> bool {
    let Some(count) = users.get_mut(&key) else { return false };
    *count -= 1;
    let last = *count == 0;
    if last {
        users.remove(&key);
    }
    last
}
