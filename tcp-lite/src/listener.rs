//! Listening ports: the addresses that may connect, and the number of half-open connections of each port.
//!
//! The listener's user may block an address for a while because connections from it fail. The stack then
//! drops SYNs from that address, and creates neither a connection nor a cookie for them. Other hosts behind
//! the same address are usually only delayed: they retransmit their SYNs until the block ends.

use std::collections::HashMap;

use crate::facade::{Instant, IpAddress, IpCidr};
use crate::id::ListenerId;
use crate::invariant::{Check, ensure};
use crate::secrets::KeyedState;

/// Why [`Stack::listen`](crate::Stack::listen) refused a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// There are `Limits::listeners` listeners already.
    #[error("no free listener (limit {0})")]
    NoListener(usize),
    /// The port has a listener already.
    #[error("port {0} has a listener already")]
    InUse(u16),
}

/// Configuration of a listener. The default accepts connections from all addresses, limited only by
/// [`Limits::backlog`](crate::Limits::backlog).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenConfig {
    /// Maximum number of connections that are not established yet. The value is at most `Limits::backlog`;
    /// `None` means `Limits::backlog`. Beyond this number, SYNs are answered with cookies if
    /// [`Limits::syn_cookies`](crate::Limits::syn_cookies) is set. If the value is 0, the listener accepts no
    /// connection, not even by a cookie.
    pub half_open: Option<usize>,
    /// Maximum number of half-open connections from one address; `None`: no separate limit.
    pub half_open_per_address: Option<usize>,
    /// Addresses whose SYNs are answered.
    pub filter: AddressFilter,
}

/// Addresses that may connect. SYNs from refused addresses get no answer, as if there were no host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressFilter {
    /// If not empty, only addresses in this list are admitted.
    pub allow: Vec<IpCidr>,
    /// Addresses in this list are refused, even if they are in `allow`.
    pub deny: Vec<IpCidr>,
}

impl AddressFilter {
    /// Whether `address` may connect.
    pub fn admits(&self, address: &IpAddress) -> bool {
        let within = |list: &[IpCidr]| list.iter().any(|cidr| cidr.contains_addr(address));
        !within(&self.deny) && (self.allow.is_empty() || within(&self.allow))
    }
}

/// Numbers of SYNs that a listener refused, or that arrived while the listener was full. The numbers are
/// never reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerCounters {
    /// SYNs that the [`AddressFilter`] refused.
    pub filtered: u64,
    /// SYNs that arrived when the listener had the maximum number of half-open connections. Such a SYN may be
    /// answered with a cookie.
    pub half_open_full: u64,
    /// SYNs from an address that had the maximum number of half-open connections for one address.
    pub half_open_address_full: u64,
    /// SYNs from an address that was [blocked](crate::Stack::block_address).
    pub blocked: u64,
}

/// A listener's decision about a SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Admission {
    /// The listener has counted the connection as half-open.
    Counted,
    /// The listener has its maximum number of half-open connections, so only a cookie may be sent.
    Full,
    /// The SYN gets no answer.
    Refused,
}

struct Listener {
    port: u16,
    config: ListenConfig,
    half_open: usize,
    /// The number of half-open connections from each address. An address without half-open connections has no
    /// entry.
    by_address: HashMap<IpAddress, usize, KeyedState>,
    /// Blocked addresses, each with the time at which its block ends. Expired entries are removed when an
    /// address is blocked.
    blocked: HashMap<IpAddress, Instant, KeyedState>,
    counters: ListenerCounters,
}

impl Listener {
    fn blocks(&self, now: Instant, remote: &IpAddress) -> bool {
        self.blocked.get(remote).is_some_and(|until| now < *until)
    }
}

struct ListenerSlot {
    generation: u32,
    listener: Option<Listener>,
}

/// The listeners of a stack. A lookup visits the listeners one by one. This costs little, because a stack has
/// few listeners, and most segments belong to a connection and need no lookup.
pub(crate) struct Listeners {
    slots: Vec<ListenerSlot>,
    limit: usize,
    backlog: usize,
    keyed: KeyedState,
    changes: u64,
}

impl Listeners {
    /// An empty table for `limit` listeners, each with at most `backlog` half-open connections.
    pub(crate) fn new(limit: usize, backlog: usize, keyed: KeyedState) -> Self {
        Self { slots: Vec::new(), limit, backlog, keyed, changes: 0 }
    }

    /// Adds a listener on `port` ([`Stack::listen_with`](crate::Stack::listen_with)).
    pub(crate) fn add(&mut self, port: u16, config: ListenConfig) -> Result<ListenerId, ListenError> {
        if self.find(port).is_some() {
            return Err(ListenError::InUse(port));
        }
        let free = self.slots.iter().position(|s| s.listener.is_none());
        let slot = match free {
            Some(slot) => slot,
            None if self.slots.len() < self.limit => {
                self.slots.push(ListenerSlot { generation: 0, listener: None });
                self.slots.len() - 1
            }
            None => return Err(ListenError::NoListener(self.limit)),
        };
        let half_open = config.half_open.unwrap_or(self.backlog).min(self.backlog);
        self.slots[slot].listener = Some(Listener {
            port,
            by_address: HashMap::with_capacity_and_hasher(half_open, self.keyed.clone()),
            blocked: HashMap::with_hasher(self.keyed.clone()),
            config: ListenConfig { half_open: Some(half_open), ..config },
            half_open: 0,
            counters: ListenerCounters::default(),
        });
        Ok(ListenerId { slot: slot as u32, generation: self.slots[slot].generation })
    }

    /// Removes a listener. Returns `false` if the id is not valid.
    pub(crate) fn remove(&mut self, id: ListenerId) -> bool {
        let Some(slot) = self.slots.get_mut(id.slot as usize).filter(|s| s.generation == id.generation)
        else {
            return false;
        };
        slot.generation = slot.generation.wrapping_add(1);
        slot.listener.take().is_some()
    }

    /// The listener on `port`; `None` if there is none.
    pub(crate) fn find(&self, port: u16) -> Option<ListenerId> {
        let at = self.slots.iter().position(|s| s.listener.as_ref().is_some_and(|l| l.port == port))?;
        Some(ListenerId { slot: at as u32, generation: self.slots[at].generation })
    }

    /// The numbers of SYNs that a listener refused, or that arrived while the listener was full, and the
    /// number of its half-open connections; `None` if the id is not valid.
    pub(crate) fn counters(&self, id: ListenerId) -> Option<(ListenerCounters, usize)> {
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        slot.listener.as_ref().map(|listener| (listener.counters, listener.half_open))
    }

    /// A number that increases whenever the [`counters`](Self::counters) of any listener change.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Counts one more half-open connection from `remote`, unless the listener refuses it or is full. Returns
    /// the decision.
    pub(crate) fn try_half_open(&mut self, now: Instant, id: ListenerId, remote: &IpAddress) -> Admission {
        self.changes += 1;
        let Some(listener) = self.get_mut(id) else { return Admission::Refused };
        let is_blocked = listener.blocks(now, remote);
        let Listener { config, half_open, by_address, counters, .. } = listener;
        if !config.filter.admits(remote) {
            counters.filtered += 1;
            return Admission::Refused;
        }
        if is_blocked {
            counters.blocked += 1;
            return Admission::Refused;
        }
        if *half_open >= config.half_open.unwrap_or(usize::MAX) {
            counters.half_open_full += 1;
            // A limit of 0 excludes connections by cookies as well.
            return if config.half_open == Some(0) { Admission::Refused } else { Admission::Full };
        }
        let of_address = by_address.get(remote).copied().unwrap_or(0);
        if of_address >= config.half_open_per_address.unwrap_or(usize::MAX) {
            counters.half_open_address_full += 1;
            return Admission::Refused;
        }
        by_address.insert(*remote, of_address + 1);
        *half_open += 1;
        Admission::Counted
    }

    /// Whether a listener accepts connections from `remote` now. Returns `false` if the id is not valid.
    pub(crate) fn admits(&self, now: Instant, id: ListenerId, remote: &IpAddress) -> bool {
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation);
        let listener = slot.and_then(|slot| slot.listener.as_ref());
        listener
            .is_some_and(|listener| listener.config.filter.admits(remote) && !listener.blocks(now, remote))
    }

    /// Blocks `remote` until `until` ([`Stack::block_address`](crate::Stack::block_address)).
    pub(crate) fn block_address(&mut self, now: Instant, id: ListenerId, remote: IpAddress, until: Instant) {
        let Some(listener) = self.get_mut(id) else { return };
        listener.blocked.retain(|_, until| now < *until);
        listener.blocked.insert(remote, until);
    }

    /// Called when a half-open connection from `remote` was established or has ended: no longer counts this
    /// connection as half-open.
    pub(crate) fn settle_half_open(&mut self, id: ListenerId, remote: &IpAddress) {
        self.changes += 1;
        let Some(Listener { half_open, by_address, .. }) = self.get_mut(id) else { return };
        debug_assert!(*half_open > 0);
        *half_open = half_open.saturating_sub(1);
        match by_address.get_mut(remote) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                by_address.remove(remote);
            }
        }
    }

    /// Checks the numbers of half-open connections. `half_open` returns the number of half-open connections
    /// of a listener.
    pub(crate) fn check(&self, half_open: impl Fn(ListenerId) -> usize) -> Check {
        for (nr, slot) in self.slots.iter().enumerate() {
            let Some(listener) = &slot.listener else { continue };
            let found = half_open(ListenerId { slot: nr as u32, generation: slot.generation });
            let counted = (listener.half_open, listener.by_address.values().sum());
            ensure!(counted == (found, found), "{counted:?} half-open of {found} at {}", listener.port);
        }
        Ok(())
    }

    fn get_mut(&mut self, id: ListenerId) -> Option<&mut Listener> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.listener.as_mut().filter(|_| slot.generation == id.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invariant::assert_found;
    use crate::secrets::Secrets;

    const REMOTE: IpAddress = IpAddress::v4(10, 0, 0, 2);

    #[test]
    fn counts_that_no_connections_have_are_found() {
        type Break = fn(&mut Listener);
        let broken: [(Break, &str); 5] = [
            (|listener| listener.half_open += 1, "(3, 2) half-open of 2 at 7471"),
            (|listener| listener.half_open -= 1, "(1, 2) half-open of 2 at 7471"),
            (|listener| _ = listener.by_address.remove(&REMOTE), "(2, 0) half-open of 2 at 7471"),
            (|listener| _ = listener.by_address.insert(REMOTE, 1), "(2, 1) half-open of 2 at 7471"),
            (
                |listener| _ = listener.by_address.insert(IpAddress::v4(10, 0, 0, 3), 1),
                "(2, 3) half-open of 2 at 7471",
            ),
        ];
        for (break_it, what) in broken {
            let mut listeners = Listeners::new(4, 8, Secrets::new([7; 32]).table_state());
            let id = listeners.add(7471, ListenConfig::default()).unwrap();
            for _ in 0..2 {
                assert_eq!(listeners.try_half_open(Instant::ZERO, id, &REMOTE), Admission::Counted);
            }
            listeners.check(|_| 2).unwrap();
            break_it(listeners.get_mut(id).unwrap());
            assert_found(listeners.check(|_| 2), what);
        }
    }
}
