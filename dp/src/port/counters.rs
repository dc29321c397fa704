//! The counters of a port.

crate::counters! {
    "uwarp_port_", "_total";
    /// Plain counters, never reset.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PortCounters {
        /// Frames that [`Port::rx_burst`](crate::Port::rx_burst) has returned.
        pub rx_frames: u64,
        /// Bytes received, Ethernet header included.
        pub rx_bytes: u64,
        /// Frames handed to the device or link.
        pub tx_frames: u64,
        /// Bytes handed to the device or link.
        pub tx_bytes: u64,
        /// Frames the device dropped on receive (missed, errors).
        pub rx_dropped: u64,
        /// The part of `rx_dropped` that came while no descriptor was free, if the device tells them apart.
        pub rx_missed: u64,
        /// The part of `rx_dropped` that had errors (CRC, length), if the device tells them apart.
        pub rx_errors: u64,
        /// Times no buffer was free to receive into.
        pub rx_no_mbuf: u64,
        /// Frames that a full transmit ring left with the caller.
        pub tx_ring_full: u64,
        /// Frames dropped because the link was down.
        pub tx_link_down: u64,
        /// Frames dropped because the port could not send them (too long, too many segments).
        pub tx_dropped: u64,
        /// Changes of link state seen.
        pub link_changes: u64,
    }
}
