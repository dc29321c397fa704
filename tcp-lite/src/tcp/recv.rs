//! The receive side: frontier, out-of-order ranges, window, SACK blocks.

use slab::Slab;

/// Out-of-order ranges of one connection.
#[derive(Default)]
struct Ranges {}

/// Range sets of the connections that have a hole.
pub(crate) struct ReorderSlab {
    records: Slab<Ranges>,
    limit: usize,
}

impl ReorderSlab {
    /// Room for `limit` connections with holes, taken now.
    pub(crate) fn new(limit: usize) -> Self {
        Self { records: Slab::with_capacity(limit), limit }
    }
}
