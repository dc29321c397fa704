//! The Reads and atomics that wait for their responses, ours and the peers', and our requests that are held
//! back, of all connections of an engine. A connection has queues in this pool, and reserves slots for ORD,
//! IRD and one held-back request when it begins.

use dp::invariant::Check;

use super::outstanding::Outstanding;
use super::peer_request::PeerRequest;
use super::slot_pool::SlotPool;
use crate::queues::SendEntry;

/// Slots for outstanding requests to each slot for a held-back one. A connection holds back at most one
/// request, whatever its depth. A larger number saves memory; a smaller one avoids growth with many
/// connections of small depth.
const HELD_BACK_SHARE: usize = 16;

/// The waiting requests of all connections of an engine.
pub(crate) struct RequestPool {
    /// Requests of the peers.
    pub(super) peer_requests: SlotPool<PeerRequest>,
    /// Our requests.
    pub(super) outstanding: SlotPool<Outstanding>,
    /// Requests taken from a send queue that may not start yet: at most one for each connection.
    pub(super) held_back: SlotPool<SendEntry>,
}

impl RequestPool {
    /// Reserves memory for at most `limit` requests in each direction, as connections begin.
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            peer_requests: SlotPool::new(limit),
            outstanding: SlotPool::new(limit),
            held_back: SlotPool::new(limit.div_ceil(HELD_BACK_SHARE)),
        }
    }

    /// How often the slots had to grow because more requests waited than memory was reserved for.
    pub(crate) fn growths(&self) -> u64 {
        self.peer_requests.growths + self.outstanding.growths + self.held_back.growths
    }

    /// Whether the queues of all streams hold what is taken; for tests.
    pub(crate) fn check(&self, streams: Waiting) -> Check {
        self.peer_requests
            .check(streams.peer_requests)
            .map_err(|what| format!("requests of peers: {what}"))?;
        self.outstanding.check(streams.outstanding).map_err(|what| format!("our requests: {what}"))?;
        self.held_back.check(streams.held_back).map_err(|what| format!("requests held back: {what}"))
    }
}

/// How many requests wait: of a stream, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) peer_requests: usize,
    pub(crate) outstanding: usize,
    pub(crate) held_back: usize,
}
