//! A gauge of held memory: of one connection, and of a whole stack.
//!
//! TCP holds no data itself. It counts the bytes that were handed up and not released (all that were ahead of
//! the frontier, and those in order that the user names), and the packet buffers that its user keeps for
//! them, as the user reports. `tcp/slabs/out_of_order.rs` has the policy for too much held memory.

dp::counters! {
    "uwarp_tcp_out_of_order_", "";
    /// Held bytes, current and maximum: those handed up ahead of the frontier, and those in order that the
    /// user has not read yet.
    ///
    /// The maxima of several gauges may not coincide in time: their sum is only an upper bound.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OutOfOrder {
        /// Bytes of payload handed up ahead of the frontier (or named in [`Stack::hold`](crate::Stack::hold))
        /// and not [`release`](crate::Stack::release)d since.
        pub held_bytes: u64,
        /// The largest value of `held_bytes` so far.
        pub max_held_bytes: u64,
        /// Bytes of the packet buffers that the user keeps for held bytes, as reported by
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

    /// Pinned bytes change from `from` to `to`.
    pub(crate) fn pin(&mut self, from: u64, to: u64) {
        self.pinned_bytes = self.pinned_bytes.saturating_sub(from) + to;
        self.max_pinned_bytes = self.max_pinned_bytes.max(self.pinned_bytes);
    }
}
