//! A listener as its engine sees it: what it may have here, and what of that its user was told.

use std::net::IpAddr;
use std::sync::Arc;

use tcp_lite::{Instant, ListenerCounters, ListenerId};

use crate::verbs::{Admitted, CmShared, ListenerShared};

use super::rate::{Exhausted, Rate};

/// A port that is listened on.
pub(super) struct Listener {
    pub(super) id: Arc<CmShared>,
    pub(super) shared: Arc<ListenerShared>,
    pub(super) tcp: ListenerId,
    /// What of its counters, and of half-open connections, `shared` has.
    pub(super) told: (ListenerCounters, usize),
    /// Half-open connections that it may have here.
    pub(super) half_open: usize,
    pub(super) rate: Rate,
}

impl Listener {
    /// One more connection from `address`, which TCP has; `None`: it is refused, and counted.
    pub(super) fn admit(&mut self, now: Instant, address: IpAddr) -> Option<Admitted> {
        match self.rate.admit(now, address) {
            Ok(()) => return self.shared.admit(address),
            Err(Exhausted::Begun) => self.shared.count(|stats| stats.rate_address_full += 1),
            Err(Exhausted::Failed) => self.shared.count(|stats| stats.failures_address_full += 1),
        }
        None
    }

    /// Tells what it has here now.
    pub(super) fn tell(&mut self, (now, half_open): (ListenerCounters, usize)) {
        let (before, half_open_before) = std::mem::replace(&mut self.told, (now, half_open));
        self.shared.count(|stats| {
            stats.half_open = stats.half_open + half_open - half_open_before;
            stats.syns.filtered += now.filtered - before.filtered;
            stats.syns.half_open_full += now.half_open_full - before.half_open_full;
            stats.syns.half_open_address_full += now.half_open_address_full - before.half_open_address_full;
            stats.syns.barred += now.barred - before.barred;
        });
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let (_, half_open) = self.told;
        self.shared.count(|stats| {
            stats.half_open -= half_open;
            stats.half_open_limit -= self.half_open;
        });
    }
}
