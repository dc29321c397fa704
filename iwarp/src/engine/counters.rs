//! Counters of an engine.

use tcp_lite::StackCounters;

/// Counters of an engine, never reset.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineCounters {
    /// Of the port.
    pub port: dp::PortCounters,
    /// Of the stack.
    pub stack: StackCounters,
    /// FPDUs received that passed all of MPA's checks.
    pub rx_fpdus: u64,
    /// FPDUs placed ahead of the in-order frontier.
    pub rx_fpdus_early: u64,
    /// FPDUs sent.
    pub tx_fpdus: u64,
    /// Payload bytes placed into registered memory.
    pub rx_placed_bytes: u64,
    /// Payload bytes fetched from registered memory.
    pub tx_fetched_bytes: u64,
    /// Terminates sent.
    pub tx_terminates: u64,
    /// Terminates received.
    pub rx_terminates: u64,
    /// Connections established.
    pub connections: u64,
    /// Those of them that use no CRCs, as neither end asks for them
    /// ([`EngineConfig::crc`](super::EngineConfig::crc)).
    pub connections_without_crc: u64,
    /// Connections and attempts that ended in an error.
    pub connections_failed: u64,
    /// TCP connections reset for a bound of their listener, which counts them by bound.
    pub connections_refused: u64,
    /// Times that more Reads and atomics were under way than there was memory for
    /// ([`EngineConfig::request_records`](super::EngineConfig::request_records)).
    pub request_growths: u64,
    /// Turns in which there was something to do.
    pub busy_turns: u64,
    /// Cycles spent in those turns.
    pub busy_cycles: u64,
    /// All turns.
    pub turns: u64,
}
