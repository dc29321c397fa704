//! The resources that a stack uses, which a user may compare with the stack's limits.

use super::Stack;

/// Current usage of the resources that [`Limits`](crate::Limits) bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StackUsage {
    /// Connections in any state.
    pub connections: usize,
    /// Segments held for transmission.
    pub tx_segments: usize,
    /// Small buffers of the stack's pool that hold segments for transmission. Buffers of the bulk pool do not
    /// count.
    pub tx_buffers: usize,
    /// Connections with a hole in the received stream.
    pub holes: usize,
    /// Entries of the neighbour table.
    pub neighbors: usize,
    /// Events that the user has not taken yet.
    pub events: usize,
    /// Answers to segments of no connection that wait to be sent.
    pub answers: usize,
    /// Datagrams of the user that wait to be sent, or for the Ethernet addresses of their next hops.
    pub datagrams: usize,
}

impl Stack {
    /// The current usage.
    pub fn usage(&self) -> StackUsage {
        StackUsage {
            connections: self.connections.len(),
            tx_segments: self.segments.len(),
            tx_buffers: self.segments.small_pages(),
            holes: self.out_of_order.len(),
            neighbors: self.neighbors.len(),
            events: self.events.len(),
            answers: self.answers.len(),
            datagrams: self.udp.as_ref().map_or(0, |udp| udp.outbox.len()),
        }
    }
}
