//! The counters of a port.

crate::counters! {
    "uwarp_port_", "_total";
    /// The counters of a port, which are never reset.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PortCounters {
        /// Number of frames that [`Port::rx_burst`](crate::Port::rx_burst) has returned.
        pub rx_frames: u64,
        /// Number of received bytes, including Ethernet headers.
        pub rx_bytes: u64,
        /// Number of frames that were passed to the device or link.
        pub tx_frames: u64,
        /// Number of bytes that were passed to the device or link.
        pub tx_bytes: u64,
        /// Number of received frames that the device or the port has dropped, for example because they were
        /// missed or had errors.
        pub rx_dropped: u64,
        /// The part of `rx_dropped` that arrived while no descriptor was free, if the device counts these
        /// frames separately.
        pub rx_missed: u64,
        /// The part of `rx_dropped` that had errors (CRC, length), if the device counts these frames
        /// separately.
        pub rx_errors: u64,
        /// Number of times that no buffer was free for a received frame.
        pub rx_no_mbuf: u64,
        /// Number of times that a frame was not sent because the transmit ring was full. The caller still has
        /// the frame, so a frame can be counted several times.
        pub tx_ring_full: u64,
        /// Number of frames that were dropped because the link was down, or because their station of a local
        /// wire could not be reached.
        pub tx_link_down: u64,
        /// Number of frames that were dropped because the port could not send them, for example because they
        /// were too long or had too many segments.
        pub tx_dropped: u64,
        /// Number of bytes of `tx_bytes` that were not copied: the receiver reads these bytes in pages of
        /// this port ([local wire](crate::local)).
        pub tx_lent_bytes: u64,
        /// Number of bytes of `rx_bytes` that were not copied: these bytes are in pages of the port that has
        /// sent them ([local wire](crate::local)).
        pub rx_borrowed_bytes: u64,
        /// Number of bytes that the port itself has copied, as a [local wire](crate::local) copies short
        /// frames into and out of its rings, and the front of each lent frame. Copies of the device and of
        /// the kernel are not counted. Lent bytes are subtracted in the poll after the sending.
        pub copied_bytes: u64,
        /// Number of frames that an [impaired port](crate::Impaired) has lost on purpose.
        pub tx_lost: u64,
        /// Number of changes of the link state.
        pub link_changes: u64,
    }
}
