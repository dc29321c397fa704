//! The state of an engine that its connections share.

use std::net::IpAddr;
use std::sync::Arc;

use tcp_lite::{ConnId, Instant, Stack};

use crate::mpa::HeldSlab;
use crate::queues::EventSource;
use crate::stream::{RequestPool, StreamCounters};
use crate::verbs::{AsyncEventKind, CmShared, EngineCounters, EngineHandle};

use super::EngineConfig;
use super::acks::Acks;
use super::listening::EngineListener;
use super::orphans::Orphans;
use super::tx_scheduler::TxScheduler;

/// The part of an engine's state that its connections use.
pub(super) struct EngineState {
    pub(super) now: Instant,
    pub(super) tcp: Stack,
    pub(super) held: HeldSlab,
    pub(super) request_pool: RequestPool,
    pub(super) counters: EngineCounters,
    /// The counters of all RDMA streams.
    pub(super) stream_counters: StreamCounters,
    pub(super) config: EngineConfig,
    pub(super) handle: Arc<EngineHandle>,
    /// The context's queue for events of the port.
    pub(super) async_events: EventSource,
    pub(super) tx_scheduler: TxScheduler,
    pub(super) acks: Acks,
    pub(super) orphans: Orphans,
    pub(super) listeners: Vec<EngineListener>,
    /// The value of the stack's counter of listener changes (half-open connections, refused SYNs) up to which
    /// the listeners' statistics are updated.
    pub(super) listener_changes_reported: u64,
}

impl EngineState {
    pub(super) fn schedule_tx(&mut self, conn: ConnId) {
        self.tx_scheduler.schedule(conn.slot() as u32);
    }

    /// Counts a connection that `listener` accepted from `address` and that failed through the peer's fault.
    /// Blocks the address if it has reached its limit.
    pub(super) fn count_peer_failure(&mut self, listener: &Arc<CmShared>, address: IpAddr) {
        let (now, tcp) = (self.now, &mut self.tcp);
        if let Some(listener) = self.listeners.iter_mut().find(|known| Arc::ptr_eq(&known.id, listener))
            && let Some(until) = listener.rate.count_failure(now, address)
        {
            tcp.block_address(now, listener.tcp, address, until);
        }
    }

    /// Reports an event of this engine's port to the context.
    pub(super) fn push_async_event(&self, kind: AsyncEventKind) {
        self.async_events.push(kind, None);
    }

    /// Returns the time of the poll in microseconds.
    pub(super) fn now_us(&self) -> u64 {
        // The time is not negative.
        self.now.total_micros() as u64
    }
}
