//! The state of a listener in one engine: the listener's limits, and the counts that the engine has already
//! added to the listener's statistics.

use std::net::IpAddr;
use std::sync::Arc;

use tcp_lite::{Instant, ListenerCounters, ListenerId};

use crate::verbs::{Admitted, CmShared, ListenerShared};

use super::rate::{Exhausted, Rate};

pub(super) struct EngineListener {
    pub(super) id: Arc<CmShared>,
    pub(super) shared: Arc<ListenerShared>,
    pub(super) tcp: ListenerId,
    /// The TCP counters and the number of half-open connections that were already added to the statistics of
    /// `shared`.
    pub(super) reported: (ListenerCounters, usize),
    /// Maximum number of the listener's half-open connections in this engine.
    pub(super) half_open: usize,
    pub(super) rate: Rate,
}

impl EngineListener {
    /// Admits a connection that TCP has established with `address`. Returns `None` if a limit refuses the
    /// connection, and counts the refusal.
    pub(super) fn admit(&mut self, now: Instant, address: IpAddr) -> Option<Admitted> {
        match self.rate.admit(now, address) {
            Ok(()) => return self.shared.admit(&self.id, address),
            Err(Exhausted::Begun) => self.shared.count(|stats| stats.rate_address_full += 1),
            Err(Exhausted::Failed) => self.shared.count(|stats| stats.failures_address_full += 1),
        }
        None
    }

    /// Adds to the listener's statistics what has changed since the last call of this function.
    pub(super) fn report(&mut self, (latest, half_open): (ListenerCounters, usize)) {
        let (before, half_open_before) = std::mem::replace(&mut self.reported, (latest, half_open));
        self.shared.count(|stats| {
            stats.half_open = stats.half_open + half_open - half_open_before;
            stats.syns.filtered += latest.filtered - before.filtered;
            stats.syns.half_open_full += latest.half_open_full - before.half_open_full;
            stats.syns.half_open_address_full +=
                latest.half_open_address_full - before.half_open_address_full;
            stats.syns.blocked += latest.blocked - before.blocked;
        });
    }
}

impl Drop for EngineListener {
    fn drop(&mut self) {
        let (_, half_open) = self.reported;
        self.shared.count(|stats| {
            stats.half_open -= half_open;
            stats.half_open_limit -= self.half_open;
        });
    }
}
