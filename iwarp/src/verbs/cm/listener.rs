//! The limits and counters of a listener, shared by all engines.
//!
//! Engines use the limits and counters when a connection arrives, is accepted or rejected, or ends. The
//! transfer of data does not use the limits and counters.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use tcp_lite::ListenerCounters;

use super::identifier::CmShared;
use super::param::ListenOptions;

/// Counters of a listener, added up over all engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerStats {
    /// Current number of connections, including the backlog.
    pub connections: usize,
    /// Current number of connections that are neither accepted nor rejected yet.
    pub undecided: usize,
    /// Number of half-open TCP connections (their SYNs were answered) at the last poll of each engine.
    pub half_open: usize,
    /// Maximum of `half_open`: the sum of the engines' limits on half-open connections
    /// ([`ListenOptions::half_open`]).
    pub half_open_limit: usize,
    /// Connections admitted.
    pub accepted: u64,
    /// SYNs for which no half-open connection was created, because of the address filter, the limits on
    /// half-open connections, or [`ListenOptions::failures_per_address`].
    pub syns: ListenerCounters,
    /// Connections reset because of [`ListenOptions::backlog`].
    pub backlog_full: u64,
    /// Connections reset because of [`ListenOptions::backlog_per_address`].
    pub backlog_address_full: u64,
    /// Connections reset because of [`ListenOptions::max_connections`].
    pub connections_full: u64,
    /// Connections reset because of [`ListenOptions::max_per_address`].
    pub connections_address_full: u64,
    /// Connections reset because of [`ListenOptions::rate_per_address`].
    pub rate_address_full: u64,
    /// Connections that were reset during their setup, because the limit
    /// [`ListenOptions::failures_per_address`] was reached. SYNs that arrive after that are counted in
    /// `syns.blocked`.
    pub failures_address_full: u64,
    /// Connections closed because no Request arrived in time.
    pub startup_timeouts: u64,
    /// Connections closed because the Request was invalid or not allowed.
    pub startup_faults: u64,
    /// Connections that ended before the Request was complete for any other reason, for example because the
    /// peer closed.
    pub startup_lost: u64,
    /// Requests announced to the user.
    pub requests: u64,
    /// Requests that were rejected, by the user or automatically.
    pub rejected: u64,
    /// Number of `rejected` requests that were rejected because of
    /// [`ResponderOptions::decision_timeout`](super::ResponderOptions::decision_timeout).
    pub decision_timeouts: u64,
}

/// The part of a listener that engines use.
pub(crate) struct ListenerShared {
    pub(crate) options: ListenOptions,
    tally: Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    stats: ListenerStats,
    /// Peers by address. The map never has more entries than there are connections.
    addresses: BTreeMap<IpAddr, Address>,
}

#[derive(Default)]
struct Address {
    connections: usize,
    undecided: usize,
}

impl ListenerShared {
    pub(super) fn new(options: ListenOptions) -> Self {
        Self { options, tally: Mutex::default() }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn stats(&self) -> ListenerStats {
        self.tally().stats
    }

    pub(crate) fn count(&self, count: impl FnOnce(&mut ListenerStats)) {
        count(&mut self.tally().stats);
    }

    /// Admits one more connection from `address`. If a limit refuses the connection, counts the refusal and
    /// returns `None`.
    ///
    /// `id` is the listener's identifier.
    pub(crate) fn admit(self: &Arc<Self>, id: &Arc<CmShared>, address: IpAddr) -> Option<Admitted> {
        let ListenOptions { backlog, backlog_per_address, max_connections, max_per_address, .. } =
            self.options;
        let mut tally = self.tally();
        let Tally { stats, addresses } = &mut *tally;
        let (of_address, undecided_of_address) =
            addresses.get(&address).map_or((0, 0), |address| (address.connections, address.undecided));
        let full = |bound: Option<usize>, count: usize| bound.is_some_and(|bound| count >= bound);
        let refusal = if stats.connections >= max_connections {
            &mut stats.connections_full
        } else if full(max_per_address, of_address) {
            &mut stats.connections_address_full
        } else if stats.undecided >= backlog.max(1) {
            &mut stats.backlog_full
        } else if full(backlog_per_address, undecided_of_address) {
            &mut stats.backlog_address_full
        } else {
            stats.accepted += 1;
            stats.connections += 1;
            stats.undecided += 1;
            let entry = addresses.entry(address).or_default();
            entry.connections += 1;
            entry.undecided += 1;
            drop(tally);
            let (id, listener) = (Arc::clone(id), Arc::clone(self));
            return Some(Admitted { id, listener, address, undecided: true });
        };
        *refusal += 1;
        None
    }
}

/// A connection that a listener has admitted. The connection counts against the limits until this value is
/// dropped.
pub(crate) struct Admitted {
    /// The identifier of the listener.
    pub(crate) id: Arc<CmShared>,
    pub(crate) listener: Arc<ListenerShared>,
    address: IpAddr,
    undecided: bool,
}

impl Admitted {
    /// Removes the connection from the backlog.
    pub(crate) fn decide(&mut self) {
        if std::mem::take(&mut self.undecided) {
            let mut tally = self.listener.tally();
            tally.stats.undecided -= 1;
            if let Some(address) = tally.addresses.get_mut(&self.address) {
                address.undecided -= 1;
            }
        }
    }

    pub(crate) fn address(&self) -> IpAddr {
        self.address
    }

    /// Whether the connection is in the backlog.
    pub(crate) fn is_undecided(&self) -> bool {
        self.undecided
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.decide();
        let mut tally = self.listener.tally();
        tally.stats.connections -= 1;
        if let Some(address) = tally.addresses.get_mut(&self.address) {
            address.connections -= 1;
            if address.connections == 0 {
                tally.addresses.remove(&self.address);
            }
        }
    }
}
