//! A gauge of the bytes that are held, for one connection and for a whole stack.
//!
//! TCP itself holds no received data. This gauge counts bytes that TCP passed to the user and that the user
//! has not released. Bytes count if they arrived ahead of the frontier (the next expected byte), or if the
//! user reports them with [`Stack::hold`](crate::Stack::hold). The gauge also counts the bytes of the packet
//! buffers that the user keeps for held bytes, as the user reports with [`Stack::pin`](crate::Stack::pin).
//! `tcp/slabs/out_of_order.rs` decides which bytes are given up if the user holds too much memory.

dp::counters! {
    "uwarp_tcp_out_of_order_", "";
    /// The number of held bytes now, and its maximum so far.
    ///
    /// Several gauges may reach their maxima at different times. So if gauges are added, the sum of their
    /// maxima is only an upper bound of the maximum.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OutOfOrder {
        /// Number of bytes of payload that the user holds: bytes that were passed to the user ahead of the
        /// frontier, and bytes in order that the user reported with [`Stack::hold`](crate::Stack::hold). Each
        /// byte counts until the user releases it with [`Stack::release`](crate::Stack::release).
        pub held_bytes: u64,
        /// The largest value of `held_bytes` so far.
        pub max_held_bytes: u64,
        /// Number of bytes of the packet buffers that the user keeps for held bytes, as reported by
        /// [`Stack::pin`](crate::Stack::pin).
        pub pinned_bytes: u64,
        /// The largest value of `pinned_bytes` so far.
        pub max_pinned_bytes: u64,
    }
}

impl OutOfOrder {
    pub(crate) fn hold(&mut self, bytes: u64) {
        self.held_bytes += bytes;
        self.max_held_bytes = self.max_held_bytes.max(self.held_bytes);
    }

    pub(crate) fn release(&mut self, bytes: u64) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
    }

    /// Notes that the pinned bytes of a connection changed from `from` to `to`.
    pub(crate) fn pin(&mut self, from: u64, to: u64) {
        self.pinned_bytes = self.pinned_bytes.saturating_sub(from) + to;
        self.max_pinned_bytes = self.max_pinned_bytes.max(self.pinned_bytes);
    }
}
