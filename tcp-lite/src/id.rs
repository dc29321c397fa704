//! Ids of connections and listeners.

/// Id of a connection. Slot and generation: never reused while anybody may still hold it.
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

/// Id of a listener. Slot and generation: that of a closed listener does not name a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}
