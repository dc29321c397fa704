//! The parts of the stack that a control block uses.

use dp::Mempool;

use super::connections::Connections;
use super::{ConnId, ListenerId, Stack, StackCounters};
use crate::event::EventQueue;
use crate::frame::Framing;
use crate::neighbor::Neighbors;
use crate::tcp::{BulkPool, Ctx, OutOfOrderSlab, SearchSlab, SegmentSlab};
use crate::{Instant, StackConfig};

pub(super) struct StackParts<'a> {
    pub(super) now: Instant,
    pub(super) config: &'a StackConfig,
    pub(super) framing: &'a Framing,
    pub(super) pool: &'a Mempool,
    pub(super) bulk_pool: Option<&'a BulkPool>,
    pub(super) segments: &'a mut SegmentSlab,
    pub(super) out_of_order: &'a mut OutOfOrderSlab,
    pub(super) searches: &'a mut SearchSlab,
    pub(super) counters: &'a mut StackCounters,
    pub(super) events: &'a mut EventQueue,
}

impl<'a> StackParts<'a> {
    /// The context for calls of the control block of `conn`.
    #[inline]
    pub(super) fn ctx(self, conn: ConnId, listener: Option<ListenerId>) -> Ctx<'a> {
        Ctx {
            now: self.now,
            config: &self.config.tcp,
            pool: self.pool,
            bulk_pool: self.bulk_pool,
            segments: self.segments,
            out_of_order: self.out_of_order,
            searches: self.searches,
            counters: self.counters,
            events: self.events,
            events_limit: self.config.limits.events,
            conn,
            listener,
        }
    }
}

impl Stack {
    /// Splits the stack into three: the parts that a control block uses, the connections, and the neighbour
    /// table.
    pub(super) fn split(&mut self, now: Instant) -> (StackParts<'_>, &mut Connections, &mut Neighbors) {
        let Self {
            config,
            framing,
            pool,
            bulk_pool,
            segments,
            out_of_order,
            searches,
            counters,
            events,
            connections,
            neighbors,
            routes: _,
            secrets: _,
            listeners: _,
            slow_path: _,
            reassembly: _,
            scratch: _,
            answers: _,
            udp: _,
            pool_retry: _,
            conflicts: _,
            link_up: _,
            port_gone: _,
            link_deadline: _,
            member: _,
            syn_cookies: _,
            now: _,
        } = self;
        let parts = StackParts {
            now,
            config,
            framing,
            pool,
            bulk_pool: bulk_pool.as_ref(),
            segments,
            out_of_order,
            searches,
            counters,
            events,
        };
        (parts, connections, neighbors)
    }
}
