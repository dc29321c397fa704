//! Counters of RDMA streams.

/// Counters of all streams of an engine. The counters are never reset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamCounters {
    /// Received FPDUs that passed all of MPA's checks.
    pub(crate) rx_fpdus: u64,
    /// FPDUs placed out of order, beyond the next expected byte.
    pub(crate) rx_fpdus_early: u64,
    /// Number of times that a message of a peer found no receive request, and waited for one.
    pub(crate) rx_not_ready: u64,
    /// FPDUs sent.
    pub(crate) tx_fpdus: u64,
    /// Payload bytes placed into registered memory, including the values that our atomics returned.
    pub(crate) rx_placed_bytes: u64,
    /// Payload bytes of all DDP segments sent: from registered memory, inline data, Immediate Data, and the
    /// headers that RDMAP sends as payload.
    pub(crate) tx_fetched_bytes: u64,
    /// The bytes of `tx_fetched_bytes` that were sent without a copy.
    pub(crate) tx_zero_copy_bytes: u64,
}
