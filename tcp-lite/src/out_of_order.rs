//! A gauge of the memory behind what waits ahead of the frontier: of one connection, and of a whole stack.
//!
//! TCP holds no data: it counts what it has handed up and not been given back, and what its user says of the
//! packet buffers behind that. Not here: what follows when there is too much.

/// What waits ahead of the frontier: now, and at most so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutOfOrder {
    /// Bytes of payload handed up ahead of the frontier (or named in [`Stack::hold`](crate::Stack::hold)) and
    /// not [`release`](crate::Stack::release)d since.
    pub held_bytes: u64,
    /// The most of them that there ever were.
    pub held_bytes_max: u64,
    /// Bytes of the packet buffers that the user keeps for them, as it says with
    /// [`Stack::pin`](crate::Stack::pin).
    pub pinned_bytes: u64,
    /// The most of them that there ever were.
    pub pinned_bytes_max: u64,
}

impl OutOfOrder {
    pub(crate) fn hold(&mut self, bytes: u64) {
        self.held_bytes += bytes;
        self.held_bytes_max = self.held_bytes_max.max(self.held_bytes);
    }

    pub(crate) fn release(&mut self, bytes: u64) {
        self.held_bytes = self.held_bytes.saturating_sub(bytes);
    }

    /// `from` bytes pinned have become `to`.
    pub(crate) fn pin(&mut self, from: u64, to: u64) {
        self.pinned_bytes = self.pinned_bytes.saturating_sub(from) + to;
        self.pinned_bytes_max = self.pinned_bytes_max.max(self.pinned_bytes);
    }
}
