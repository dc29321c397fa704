//! The counters of a port.

crate::counters! {
    "uwarp_port_", "_total";
    /// Plain counters, never reset.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PortCounters {
        /// Frames that [`Port::rx_burst`](crate::Port::rx_burst) has returned.
        pub rx_frames: u64,
        /// Bytes received, including Ethernet headers.
        pub rx_bytes: u64,
        /// Frames passed to the device or link.
        pub tx_frames: u64,
        /// Bytes passed to the device or link.
        pub tx_bytes: u64,
        /// Received frames that the device has dropped (missed, errors).
        pub rx_dropped: u64,
        /// The part of `rx_dropped` that arrived while no descriptor was free, if the device distinguishes
        /// this.
        pub rx_missed: u64,
        /// The part of `rx_dropped` that had errors (CRC, length), if the device distinguishes this.
        pub rx_errors: u64,
        /// Number of times that no buffer was free for a received frame.
        pub rx_no_mbuf: u64,
        /// Frames that were not sent, because the transmit ring was full, and that the caller still has.
        pub tx_ring_full: u64,
        /// Frames dropped because the link was down.
        pub tx_link_down: u64,
        /// Frames dropped because the port could not send them (too long, too many segments).
        pub tx_dropped: u64,
        /// Changes of the link state.
        pub link_changes: u64,
    }
}
