//! Counters of an engine.

use tcp_lite::StackCounters;

/// Counters of an engine. They are never reset.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineCounters {
    /// The counters of the port ([`Port::counters`](dp::Port::counters)).
    pub port: dp::PortCounters,
    /// The counters of the TCP stack ([`Stack::counters`](tcp_lite::Stack::counters)).
    pub stack: StackCounters,
    /// FPDUs received that passed all checks of MPA.
    pub rx_fpdus: u64,
    /// FPDUs placed ahead of the in-order frontier.
    pub rx_fpdus_early: u64,
    /// How often a message of a peer found no receive request, and waited for one
    /// ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)).
    pub rx_not_ready: u64,
    /// FPDUs handed to TCP, one for each DDP segment. A retransmission is not counted.
    pub tx_fpdus: u64,
    /// Payload bytes placed into registered memory, and the values that our atomics returned.
    pub rx_placed_bytes: u64,
    /// Payload bytes of all DDP segments sent: from registered memory, inline data, Immediate Data, and the
    /// headers that RDMAP sends as payload.
    pub tx_fetched_bytes: u64,
    /// Those among them that were sent without a copy ([`SendFlags::ZERO_COPY`](crate::verbs::SendFlags)).
    pub tx_zero_copy_bytes: u64,
    /// Terminates handed to TCP.
    pub tx_terminates: u64,
    /// Terminates received, unreadable ones included. Each ended its stream.
    pub rx_terminates: u64,
    /// Connections established, whichever end began them.
    pub connections: u64,
    /// Connections without CRCs, as neither end asked for them
    /// ([`EngineConfig::crc`](super::EngineConfig::crc)).
    pub connections_without_crc: u64,
    /// Connections and connection attempts that ended in an error.
    pub connections_failed: u64,
    /// TCP connections reset for a limit of their listener, whose statistics count them by limit.
    pub connections_refused: u64,
    /// How often more Reads and atomics were outstanding than memory was allocated for
    /// ([`EngineConfig::request_records`](super::EngineConfig::request_records)).
    pub request_growths: u64,
    /// Polls in which there was something to do.
    pub busy_polls: u64,
    /// Cycles spent in those polls.
    pub busy_cycles: u64,
    /// All polls, those in which there was nothing to do included.
    pub polls: u64,
}

/// For the sum over several.
impl std::ops::AddAssign for EngineCounters {
    fn add_assign(&mut self, more: Self) {
        let Self {
            port,
            stack,
            rx_fpdus,
            rx_fpdus_early,
            rx_not_ready,
            tx_fpdus,
            rx_placed_bytes,
            tx_fetched_bytes,
            tx_zero_copy_bytes,
            tx_terminates,
            rx_terminates,
            connections,
            connections_without_crc,
            connections_failed,
            connections_refused,
            request_growths,
            busy_polls,
            busy_cycles,
            polls,
        } = more;
        self.port += port;
        self.stack += stack;
        self.rx_fpdus += rx_fpdus;
        self.rx_fpdus_early += rx_fpdus_early;
        self.rx_not_ready += rx_not_ready;
        self.tx_fpdus += tx_fpdus;
        self.rx_placed_bytes += rx_placed_bytes;
        self.tx_fetched_bytes += tx_fetched_bytes;
        self.tx_zero_copy_bytes += tx_zero_copy_bytes;
        self.tx_terminates += tx_terminates;
        self.rx_terminates += rx_terminates;
        self.connections += connections;
        self.connections_without_crc += connections_without_crc;
        self.connections_failed += connections_failed;
        self.connections_refused += connections_refused;
        self.request_growths += request_growths;
        self.busy_polls += busy_polls;
        self.busy_cycles += busy_cycles;
        self.polls += polls;
    }
}
