//! The neighbour table: the Ethernet addresses of next hops, and the ARP and NDP queries for these addresses.
//!
//! A simplification of RFC 4861 section 7.3 that also handles ARP. The table queries an unknown address three
//! times, at intervals of a second. Without an answer, the address then counts as unreachable for a second. A
//! unicast query confirms a known address if the address is used more than thirty seconds after its last
//! confirmation. The address is confirmed sooner if TCP gets no answer through this neighbour (section 7.3.1;
//! RFC 1122 section 2.3.2.1), if the link was down, or if a packet gave another Ethernet address. If three
//! unicast queries get no answer, the table sends broadcast or multicast queries.
//! [`discovery`](crate::discovery) has the packet formats.
//!
//! A full table evicts a known neighbour to make room for a new neighbour. The table never evicts a neighbour
//! whose Ethernet address is unknown, because a connection may wait for the answer, and the queries end
//! within seconds.
//!
//! smoltcp has a separate neighbour table, which it uses for its answers. That table learns from the packets
//! that the stack passes to smoltcp.

use std::collections::{HashMap, VecDeque};

use arrayvec::ArrayVec;
use slab::Slab;

use crate::StackConfig;
use crate::discovery::Heard;
use crate::facade::{Duration, EthernetAddress, Instant, IpAddress, IpCidr};
use crate::route::Routes;
use crate::secrets::KeyedState;

/// Number of queries for an address (RFC 4861 `MAX_MULTICAST_SOLICIT`, `MAX_UNICAST_SOLICIT`).
const QUERIES: u8 = 3;
/// Time between two queries (`RETRANS_TIMER`). An address without an answer also counts as unreachable for
/// this time.
const QUERY_INTERVAL: Duration = Duration::from_secs(1);
/// The time for which an answer is trusted (`REACHABLE_TIME`).
const REACHABLE_TIME: Duration = Duration::from_secs(30);
/// For this time after a neighbour's Ethernet address was resolved or has changed, unsolicited changes are
/// refused, so that our frames do not alternate between two hosts with the same IP address.
const MOVE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of queries that wait to be sent. A query that does not fit is repeated after
/// [`QUERY_INTERVAL`].
const QUERY_QUEUE: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// The IP address to resolve.
    pub(crate) target: IpAddress,
    /// The destination: the neighbour to confirm, or `None` for broadcast or multicast.
    pub(crate) to: Option<EthernetAddress>,
}

/// State of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// The Ethernet address of the next hop is known.
    Known(EthernetAddress),
    /// The address is being queried, or the table has no room for a query: wait for [`Neighbors::poll`] or
    /// [`Neighbors::heard`] to report a change.
    Pending,
    /// No host answered.
    Failed,
}

enum NeighborState {
    /// The address is being queried; `queries` is the number of queries so far.
    Incomplete { queries: u8 },
    /// The Ethernet address is known; `queries` is the number of unicast queries that got no answer so far.
    Known { mac: EthernetAddress, confirmed: Instant, queries: u8 },
    /// No host answered.
    Failed,
}

struct NeighborEntry {
    ip: IpAddress,
    state: NeighborState,
    /// The time at which the next query is sent, or a failure is forgotten; `None` if the entry waits for
    /// nothing.
    due: Option<Instant>,
    /// True if the entry was used since a search for an entry to evict last passed it.
    used: bool,
    /// The time at which a queried Ethernet address became known, or at which it last changed.
    moved: Instant,
}

/// Neighbours whose Ethernet addresses need no query. Such neighbours have no entries in the table.
#[derive(Default)]
pub(crate) struct KnownNeighbors {
    /// The value of [`StackConfig::derived_neighbors`].
    derived: Option<[u8; 2]>,
    /// Our own addresses, if there can be connections to them, and our Ethernet address.
    ours: ArrayVec<IpAddress, 8>,
    mac: EthernetAddress,
}

impl KnownNeighbors {
    /// The known neighbours of a stack with this configuration.
    pub(crate) fn new(config: &StackConfig, routes: &Routes) -> Self {
        let addresses = if config.loopback { routes.addresses() } else { &[] };
        let ours = addresses.iter().map(IpCidr::address).collect();
        Self { derived: config.derived_neighbors, ours, mac: config.mac }
    }

    /// The Ethernet address of `ip`; `None` if only a query can find it.
    fn find(&self, ip: &IpAddress) -> Option<EthernetAddress> {
        if self.ours.contains(ip) {
            return Some(self.mac);
        }
        let (Some([first, second]), IpAddress::Ipv4(ip)) = (self.derived, ip) else { return None };
        let [a, b, c, d] = ip.octets();
        Some(EthernetAddress([first, second, a, b, c, d]))
    }
}

pub(crate) struct Neighbors {
    limit: usize,
    always_known: KnownNeighbors,
    index: HashMap<IpAddress, usize, KeyedState>,
    /// The index of the entry that was looked up last. Usually the next call looks up the same entry.
    latest: usize,
    entries: Slab<NeighborEntry>,
    /// The slot at which the next search for an entry to evict starts.
    clock_hand: usize,
    /// No entry is due before this time; `None` if no entry is due.
    next_due: Option<Instant>,
    queries: VecDeque<Query>,
    moves_refused: u64,
}

impl Neighbors {
    /// An empty table for `limit` neighbours.
    pub(crate) fn new(limit: usize, always_known: KnownNeighbors, keyed: KeyedState) -> Self {
        Self {
            limit: limit.max(1),
            always_known,
            index: HashMap::with_hasher(keyed),
            latest: 0,
            entries: Slab::new(),
            clock_hand: 0,
            next_due: None,
            queries: VecDeque::with_capacity(QUERY_QUEUE),
            moves_refused: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the Ethernet address of `ip`. If the address is unknown, starts to query it.
    #[inline]
    pub(crate) fn resolve(&mut self, now: Instant, ip: IpAddress) -> Resolution {
        // Usually this neighbour was also looked up last, and was confirmed recently.
        if let Some(entry) = self.entries.get_mut(self.latest)
            && entry.ip == ip
            && let NeighborState::Known { mac, confirmed, .. } = entry.state
            && now < confirmed + REACHABLE_TIME
        {
            entry.used = true;
            return Resolution::Known(mac);
        }
        self.look_up(now, ip)
    }

    #[inline(never)]
    fn look_up(&mut self, now: Instant, ip: IpAddress) -> Resolution {
        if let Some(mac) = self.always_known.find(&ip) {
            return Resolution::Known(mac);
        }
        let latest =
            Some(self.latest).filter(|&key| self.entries.get(key).is_some_and(|entry| entry.ip == ip));
        let Some(key) = latest.or_else(|| self.index.get(&ip).copied()) else {
            let due = now + QUERY_INTERVAL;
            let state = NeighborState::Incomplete { queries: 1 };
            // If the table is full and has no known neighbour to evict, this query starts when another query
            // has ended. `poll` or `heard` reports the end of that query.
            if self.insert(NeighborEntry { ip, state, due: Some(due), used: true, moved: Instant::ZERO }) {
                enqueue(&mut self.queries, Query { target: ip, to: None });
            }
            return Resolution::Pending;
        };
        self.latest = key;
        let entry = &mut self.entries[key];
        entry.used = true;
        match &mut entry.state {
            NeighborState::Incomplete { .. } => Resolution::Pending,
            NeighborState::Failed => Resolution::Failed,
            NeighborState::Known { mac, .. } => {
                let mac = *mac;
                self.confirm(now, key, REACHABLE_TIME);
                Resolution::Known(mac)
            }
        }
    }

    /// The Ethernet address of `ip`, if it is known. Sends no query.
    pub(crate) fn known(&self, ip: &IpAddress) -> Option<EthernetAddress> {
        self.always_known.find(ip).or_else(|| match self.entries.get(*self.index.get(ip)?)?.state {
            NeighborState::Known { mac, .. } => Some(mac),
            NeighborState::Incomplete { .. } | NeighborState::Failed => None,
        })
    }

    /// Called when segments sent through `ip` are not answered, because the known Ethernet address may be
    /// stale. Starts to confirm the address, unless it was confirmed in the last second or is being
    /// confirmed.
    pub(crate) fn doubt(&mut self, now: Instant, ip: &IpAddress) {
        if let Some(&key) = self.index.get(ip) {
            self.confirm(now, key, QUERY_INTERVAL);
        }
    }

    /// Called after the link was down. Known neighbours are confirmed at their next use. The queries for all
    /// other neighbours in the table start again at once.
    pub(crate) fn doubt_all(&mut self, now: Instant) {
        let Self { entries, queries: queue, .. } = self;
        // (Entries that are being queried or have failed already had an earlier deadline, so `next_due` is
        // still a lower bound.)
        for (_, entry) in entries.iter_mut() {
            match &mut entry.state {
                NeighborState::Known { confirmed, .. } => *confirmed = (*confirmed).min(now - REACHABLE_TIME),
                NeighborState::Incomplete { .. } | NeighborState::Failed => {
                    entry.state = NeighborState::Incomplete { queries: 1 };
                    entry.due = Some(now + QUERY_INTERVAL);
                    enqueue(queue, Query { target: entry.ip, to: None });
                }
            }
        }
    }

    /// Number of changes of a known Ethernet address that were refused because the address had just changed.
    pub(crate) fn moves_refused(&self) -> u64 {
        self.moves_refused
    }

    /// Starts to confirm a known neighbour that was last confirmed at least `silence` ago and is not being
    /// confirmed.
    fn confirm(&mut self, now: Instant, key: usize, silence: Duration) {
        let entry = &mut self.entries[key];
        if let NeighborState::Known { mac, confirmed, queries } = &mut entry.state
            && *queries == 0
            && now >= *confirmed + silence
        {
            *queries = 1;
            let query = Query { target: entry.ip, to: Some(*mac) };
            let due = now + QUERY_INTERVAL;
            entry.due = Some(due);
            self.note_due(due);
            enqueue(&mut self.queries, query);
        }
    }

    /// Updates the table from a received packet. Returns whether waiting connections should try again.
    pub(crate) fn heard(&mut self, now: Instant, heard: &Heard) -> bool {
        if self.always_known.find(&heard.ip).is_some() {
            return false;
        }
        let Some(&key) = self.index.get(&heard.ip) else {
            if let Some(mac) = heard.mac.filter(|_| heard.creates) {
                let state = NeighborState::Known { mac, confirmed: now, queries: 0 };
                self.insert(NeighborEntry {
                    ip: heard.ip,
                    state,
                    due: None,
                    used: false,
                    moved: Instant::ZERO,
                });
            }
            return false;
        };
        let entry = &mut self.entries[key];
        let (mac, was_known) = match &mut entry.state {
            NeighborState::Known { mac, confirmed, queries } => {
                let changes = heard.mac.is_some_and(|heard| heard != *mac);
                if changes && !heard.overrides {
                    // The neighbour may have another Ethernet address, so the known address is confirmed at
                    // the next use (RFC 4861 section 7.2.5: STALE).
                    *confirmed = (*confirmed).min(now - REACHABLE_TIME);
                    return false;
                }
                if !changes && !heard.confirms {
                    return false;
                }
                let answers = *queries > 0 && heard.confirms;
                if changes && !answers && now < entry.moved + MOVE_INTERVAL {
                    self.moves_refused += 1;
                    return false;
                }
                if changes {
                    entry.moved = now;
                }
                (heard.mac.unwrap_or(*mac), true)
            }
            NeighborState::Incomplete { .. } | NeighborState::Failed => {
                // An advertisement without an Ethernet address resolves nothing.
                let Some(mac) = heard.mac else { return false };
                entry.moved = now;
                (mac, false)
            }
        };
        // An Ethernet address that was not solicited is accepted, and confirmed at the next use (RFC 4861
        // section 7.2.5: STALE).
        let confirmed = if heard.confirms { now } else { now - REACHABLE_TIME };
        entry.state = NeighborState::Known { mac, confirmed, queries: 0 };
        entry.due = None;
        !was_known
    }

    /// Repeats the queries that are due, and forgets the failures that are due. Returns whether waiting
    /// connections should try again.
    pub(crate) fn poll(&mut self, now: Instant) -> bool {
        if self.next_due.is_none_or(|due| now < due) {
            return false;
        }
        self.next_due = None;
        let mut changed = false;
        let mut next_due: Option<Instant> = None;
        let Self { entries, index, queries: queue, .. } = self;
        entries.retain(|_, entry| {
            let due_now = entry.due.is_some_and(|due| due <= now);
            let keep = !due_now || entry.advance(now, queue, &mut changed);
            if keep {
                next_due = [next_due, entry.due].into_iter().flatten().min();
            } else {
                index.remove(&entry.ip);
            }
            keep
        });
        self.next_due = next_due;
        changed
    }

    /// The next time at which [`poll`](Self::poll) has a query to send or a failure to forget, or an earlier
    /// time; `None` if no entry is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.next_due
    }

    /// Whether there is a query to send.
    #[inline]
    pub(crate) fn has_query(&self) -> bool {
        !self.queries.is_empty()
    }

    /// The next query to send; `None` if there is none. [`query_sent`](Self::query_sent) removes it.
    pub(crate) fn query(&self) -> Option<Query> {
        self.queries.front().copied()
    }

    /// Removes the next query, because it was sent.
    pub(crate) fn query_sent(&mut self) {
        self.queries.pop_front();
    }

    fn note_due(&mut self, due: Instant) {
        self.next_due = Some(self.next_due.map_or(due, |d| d.min(due)));
    }

    /// Puts an entry into the table. Returns `false` if the table is full and has no known neighbour to
    /// evict.
    fn insert(&mut self, entry: NeighborEntry) -> bool {
        if self.entries.len() >= self.limit && !self.evict() {
            return false;
        }
        if let Some(due) = entry.due {
            self.note_due(due);
        }
        let ip = entry.ip;
        let key = self.entries.insert(entry);
        self.index.insert(ip, key);
        true
    }

    /// Removes a known neighbour that was not used lately. If all known neighbours were used, removes the
    /// first of them from `clock_hand` on (clock algorithm). Returns `false` if no neighbour is known.
    fn evict(&mut self) -> bool {
        for _ in 0..2 * self.limit {
            let key = self.clock_hand;
            self.clock_hand = (key + 1) % self.limit;
            let Some(entry) = self.entries.get_mut(key) else { continue };
            if matches!(entry.state, NeighborState::Known { .. }) && !std::mem::take(&mut entry.used) {
                let entry = self.entries.remove(key);
                self.index.remove(&entry.ip);
                return true;
            }
        }
        false
    }
}

impl NeighborEntry {
    /// Called when the entry is due: queues the next query, or changes the state after the last unanswered
    /// query. Sets `changed` if waiting connections should try again. Returns `false` if the entry has to be
    /// removed.
    fn advance(&mut self, now: Instant, queue: &mut VecDeque<Query>, changed: &mut bool) -> bool {
        let due = now + QUERY_INTERVAL;
        self.due = Some(due);
        match &mut self.state {
            NeighborState::Failed => {
                *changed = true;
                return false;
            }
            NeighborState::Incomplete { queries } if *queries >= QUERIES => {
                self.state = NeighborState::Failed;
                *changed = true;
            }
            NeighborState::Incomplete { queries } => {
                *queries += 1;
                enqueue(queue, Query { target: self.ip, to: None });
            }
            NeighborState::Known { queries, .. } if *queries >= QUERIES => {
                self.state = NeighborState::Incomplete { queries: 1 };
                enqueue(queue, Query { target: self.ip, to: None });
            }
            NeighborState::Known { mac, queries, .. } => {
                *queries += 1;
                enqueue(queue, Query { target: self.ip, to: Some(*mac) });
            }
        }
        true
    }
}

fn enqueue(queue: &mut VecDeque<Query>, query: Query) {
    if queue.len() < QUERY_QUEUE && !queue.contains(&query) {
        queue.push_back(query);
    }
}

#[cfg(test)]
mod tests;
