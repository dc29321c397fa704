//! Acknowledgements, and announcements of receives ("limits"), that an engine owes to its peers on
//! connections with InfiniBand's semantics. On such a connection, a Send or a Write succeeds only after the
//! peer has acknowledged its bytes. A limit is the MSN up to which the peer's messages find a receive
//! request.

use std::collections::VecDeque;

use tcp_lite::{ConnId, Duration, Instant};

/// The acknowledgements that an engine still has to process or to send, and the limits that the engine still
/// has to send.
pub(super) struct Acks {
    /// Connections whose peer has acknowledged bytes. Requests of these connections may complete once all
    /// queued events of TCP are handled: a Terminate in the same frame is handled after the acknowledgement,
    /// and may name one of these requests.
    arrived: Vec<ConnId>,
    /// Connections that have received FPDUs whose acknowledgement the peer waits for. If our user answers
    /// within `patience`, the answer carries the acknowledgement. Otherwise the acknowledgement is sent
    /// separately.
    owed: Vec<ConnId>,
    /// Connections whose peer also waits for a limit, which is the MSN up to which the peer's messages find a
    /// receive request ([`ib_profile`](crate::stream::ib_profile)).
    limits: VecDeque<ConnId>,
    /// The time from which `patience` counts: the last time when a connection was added to the empty list
    /// `owed`, or to the empty list `limits` while `owed` was also empty.
    since: Instant,
    /// Maximum time that an acknowledgement or a limit waits for an answer of the user.
    patience: Duration,
}

impl Acks {
    pub(super) fn new(connections: usize) -> Self {
        Self {
            arrived: Vec::with_capacity(connections),
            owed: Vec::with_capacity(connections),
            limits: VecDeque::with_capacity(connections),
            since: Instant::ZERO,
            patience: Duration::ZERO,
        }
    }

    /// From now on, an acknowledgement or a limit waits for an answer of the user for at most `patience`. If
    /// the user polls the engine, `patience` can be zero, since the user can answer between two polls.
    pub(super) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
    }

    /// Records that the peer has acknowledged bytes.
    pub(super) fn arrive(&mut self, conn: ConnId) {
        self.arrived.push(conn);
    }

    /// Removes and returns a connection whose requests may complete.
    #[inline]
    pub(super) fn next_arrived(&mut self) -> Option<ConnId> {
        self.arrived.pop()
    }

    /// Records that the connection has received FPDUs, and so owes an acknowledgement. The caller must not
    /// call this function again for the connection before [`take_owed`](Self::take_owed) has returned it.
    pub(super) fn owe(&mut self, now: Instant, conn: ConnId) {
        if self.owed.is_empty() {
            self.since = now;
        }
        self.owed.push(conn);
    }

    /// Records that the peer of the connection waits for a limit. The connection also owes an
    /// acknowledgement. The caller must not call this function again for the connection before
    /// [`take_limit`](Self::take_limit) has returned it.
    pub(super) fn owe_limit(&mut self, now: Instant, conn: ConnId) {
        if self.owed.is_empty() && self.limits.is_empty() {
            self.since = now;
        }
        self.limits.push_back(conn);
    }

    #[inline]
    pub(super) fn owed_limits(&self) -> usize {
        self.limits.len()
    }

    /// Returns the number of connections whose limit has to be sent separately in a poll at `now`.
    #[inline]
    pub(super) fn due_limits(&self, now: Instant) -> usize {
        if self.limits.is_empty() || now < self.since + self.patience { 0 } else { self.limits.len() }
    }

    /// Removes and returns the connection that has owed a limit for the longest time.
    pub(super) fn take_limit(&mut self) -> Option<ConnId> {
        self.limits.pop_front()
    }

    #[inline]
    pub(super) fn owed(&self) -> usize {
        self.owed.len()
    }

    /// Returns the number of connections whose acknowledgement has to be sent separately in a poll at `now`.
    #[inline]
    pub(super) fn due(&self, now: Instant) -> usize {
        if now < self.since + self.patience { 0 } else { self.owed.len() }
    }

    /// Removes and returns the `count` connections that have owed an acknowledgement for the longest time.
    pub(super) fn take_owed(&mut self, count: usize) -> impl Iterator<Item = ConnId> {
        self.owed.drain(..count)
    }
}

#[cfg(test)]
mod tests {
    use tcp_lite::Stack;

    use super::*;
    use crate::engine::EngineConfig;

    #[test]
    fn a_user_that_does_not_poll_may_take_its_time_to_answer() {
        let (port, _other) = dp::link::pair(&dp::link::LinkConfig::default());
        let config = EngineConfig::new(&*port, &["10.0.0.1/24"]).unwrap();
        let mut tcp = Stack::new(config.stack, port.mempool().clone());
        let mut connect = || tcp.connect(Instant::ZERO, "10.0.0.2:7174".parse().unwrap(), None).unwrap();
        let ids = [connect(), connect()];
        let mut acks = Acks::new(4);
        let at = |us: i64| Instant::from_micros(us);
        acks.owe(at(10), ids[0]);
        assert_eq!(acks.due(at(10)), 1, "without patience");
        acks.set_patience(Duration::from_micros(3));
        acks.owe(at(12), ids[1]);
        assert_eq!([10, 12, 13].map(|us| acks.due(at(us))), [0, 0, 2]);
        assert_eq!(acks.take_owed(1).count(), 1);
        assert_eq!(acks.owed(), 1);
        assert_eq!(acks.take_owed(1).count(), 1);
        acks.owe(at(20), ids[0]);
        assert_eq!([20, 22, 23].map(|us| acks.due(at(us))), [0, 0, 1]);
    }
}
