//! What names connections and listeners towards their user.

/// Names a connection. Never reused while anybody may still hold it (slot and generation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// The slot, dense from 0: an index for tables beside the stack's.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Names a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}
