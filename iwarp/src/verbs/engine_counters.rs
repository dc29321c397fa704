//! Counters of an engine.

use tcp_lite::StackCounters;

dp::counters! {
    "uwarp_", "_total";
    /// Counters of an engine. The counters are never reset.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct EngineCounters {
        /// The counters of the port ([`Statistics::counters`](dp::Statistics::counters)).
        pub port: dp::PortCounters,
        /// The counters of the TCP stack ([`Stack::counters`](tcp_lite::Stack::counters)).
        pub stack: StackCounters,
        /// Received FPDUs that passed all checks of MPA.
        pub rx_fpdus: u64,
        /// FPDUs placed out of order, beyond the next expected byte.
        pub rx_fpdus_early: u64,
        /// Number of times that a message of a peer found no receive request, and waited for one
        /// ([`ConnParam::ib_semantics`](crate::verbs::ConnParam::ib_semantics)).
        pub rx_not_ready: u64,
        /// FPDUs handed to TCP, one for each DDP segment. A retransmission is not counted.
        pub tx_fpdus: u64,
        /// Payload bytes placed into registered memory, and the values that our atomics returned.
        pub rx_placed_bytes: u64,
        /// Payload bytes of all DDP segments sent: from registered memory, inline data, Immediate Data, and
        /// the headers that RDMAP sends as payload.
        pub tx_fetched_bytes: u64,
        /// The bytes of `tx_fetched_bytes` that were sent without a copy
        /// ([`SendFlags::ZERO_COPY`](crate::verbs::SendFlags)).
        pub tx_zero_copy_bytes: u64,
        /// Datagrams delivered to a receive request, one for each queue pair of a multicast group.
        pub rx_ud: u64,
        /// Datagrams dropped because they are not valid: a wrong ICRC, or a header that is not one of UD.
        pub rx_ud_invalid: u64,
        /// Datagrams dropped because no open queue pair has their number and their Q_Key.
        pub rx_ud_refused: u64,
        /// Datagrams dropped because no receive request was posted, or the receive request was too short.
        pub rx_ud_not_ready: u64,
        /// Datagrams handed to the stack.
        pub tx_ud: u64,
        /// Datagrams of completed sends that were not handed to the stack: no route leads to their
        /// destination.
        pub tx_ud_dropped: u64,
        /// Messages to a queue pair of type UC that were dropped because no receive request was posted.
        pub rx_uc_not_ready: u64,
        /// Messages to a queue pair of type UC that were dropped because they were longer than their receive
        /// request.
        pub rx_uc_too_long: u64,
        /// Writes to a queue pair of type UC that were dropped because the peer may not write to the memory.
        pub rx_uc_refused: u64,
        /// Terminates handed to TCP.
        pub tx_terminates: u64,
        /// Terminates received, including unreadable Terminates.
        pub rx_terminates: u64,
        /// Connections established, whichever side began them.
        pub connections: u64,
        /// Connections without CRCs, because neither peer requested CRCs
        /// ([`EngineConfig::crc`](crate::engine::EngineConfig::crc)).
        pub connections_without_crc: u64,
        /// Connections and connection attempts that ended in an error.
        pub connections_failed: u64,
        /// TCP connections that were reset because of a limit of their listener. The listener's statistics
        /// count them by limit.
        pub connections_refused: u64,
        /// Number of times that memory was allocated because more Reads and atomics were outstanding than
        /// there was memory for. The memory that is allocated in advance is limited by
        /// [`EngineConfig::request_records`](crate::engine::EngineConfig::request_records).
        pub request_growths: u64,
        /// Polls that found work.
        pub busy_polls: u64,
        /// Cycles spent in busy polls.
        pub busy_cycles: u64,
        /// All polls, including those that found no work.
        pub polls: u64,
    }
}

impl EngineCounters {
    /// Returns the number of bytes that the engine and its port have copied: from registered memory to the
    /// buffers of TCP, from received frames to registered memory, and within the port
    /// ([`PortCounters::copied_bytes`](dp::PortCounters)). For each payload byte that two processes exchange
    /// over a local wire, the sum over both ends grows by 2 if the messages are long. Copies of devices and
    /// of the kernel are not counted, and neither is TCP's copy of a segment of at most 512 bytes into its
    /// frame.
    pub fn copied_bytes(&self) -> u64 {
        let fetched = self.tx_fetched_bytes.saturating_sub(self.tx_zero_copy_bytes);
        fetched + self.rx_placed_bytes + self.port.copied_bytes
    }
}
