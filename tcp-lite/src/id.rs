//! Ids of connections and listeners.

/// Id of a connection: slot and generation. The id of an ended connection never refers to a later connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

impl ConnId {
    /// The slot, an index for the user's own tables. Slots are numbered from 0 without gaps.
    pub fn slot(self) -> usize {
        self.slot as usize
    }
}

/// Id of a listener: slot and generation. The id of a closed listener never refers to a later listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}
