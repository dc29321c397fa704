//! The pool of the Reads and atomics that wait for their responses, on all connections of an engine: our
//! requests and the peers' requests. Each connection has queues in this pool. When a connection begins, it
//! reserves slots for its ORD and IRD.

use dp::invariant::Check;

use super::outstanding::Outstanding;
use super::peer_request::PeerRequest;
use super::slot_pool::SlotPool;

/// The waiting requests of all connections of an engine.
pub(crate) struct RequestPool {
    /// Requests of the peers.
    pub(super) peer_requests: SlotPool<PeerRequest>,
    /// Our requests.
    pub(super) outstanding: SlotPool<Outstanding>,
}

impl RequestPool {
    /// Creates a pool. When connections reserve slots, memory is allocated for at most `limit` requests in
    /// each direction.
    pub(crate) fn new(limit: usize) -> Self {
        Self { peer_requests: SlotPool::new(limit), outstanding: SlotPool::new(limit) }
    }

    /// Returns how often the pool had to grow because more requests waited than memory was allocated for.
    pub(crate) fn growths(&self) -> u64 {
        self.peer_requests.growths + self.outstanding.growths
    }

    /// Checks that the queues of all streams contain all occupied slots; for tests.
    pub(crate) fn check(&self, streams: Waiting) -> Check {
        self.peer_requests
            .check(streams.peer_requests)
            .map_err(|what| format!("requests of peers: {what}"))?;
        self.outstanding.check(streams.outstanding).map_err(|what| format!("our requests: {what}"))
    }
}

/// The number of waiting requests of a stream, or of all streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) peer_requests: usize,
    pub(crate) outstanding: usize,
}

#[cfg(test)]
mod tests {
    use super::super::outstanding::ReadPart;
    use super::super::slot_pool::PoolQueue;
    use super::*;
    use crate::memory::Stag;
    use crate::rdmap::ReadSink;

    #[test]
    fn requests_that_no_stream_has_are_found() {
        let mut pool = RequestPool::new(8);
        pool.outstanding.reserve(8);
        let mut queue = PoolQueue::default();
        let sink = ReadSink::new(Stag(1), 0, 8);
        queue.push(&mut pool.outstanding, Outstanding::Read { sink, part: ReadPart::Last, from: 0 });
        let whole = Waiting { outstanding: 1, ..Waiting::default() };
        pool.check(whole).unwrap();
        let broken: [(Waiting, &str); 3] = [
            (Waiting { outstanding: 0, ..whole }, "our requests: 0 slots free and 0 in queues of 1"),
            (Waiting { outstanding: 2, ..whole }, "our requests: 0 slots free and 2 in queues of 1"),
            (Waiting { peer_requests: 1, ..whole }, "requests of peers: 0 slots free and 1 in queues of 0"),
        ];
        for (waiting, found) in broken {
            assert_eq!(pool.check(waiting), Err(found.into()));
        }
        pool.outstanding.release(8);
        assert_eq!(pool.check(whole), Err("our requests: 1 wait, 0 may".into()));
    }
}
