//! Counters of RDMA streams.

/// Counters of all streams of an engine. `EngineCounters` describes these fields.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamCounters {
    pub(crate) rx_fpdus: u64,
    pub(crate) rx_fpdus_early: u64,
    pub(crate) rx_not_ready: u64,
    pub(crate) rx_uc_not_ready: u64,
    pub(crate) rx_uc_too_long: u64,
    pub(crate) rx_uc_refused: u64,
    pub(crate) tx_fpdus: u64,
    pub(crate) rx_placed_bytes: u64,
    pub(crate) tx_fetched_bytes: u64,
    pub(crate) tx_zero_copy_bytes: u64,
}
