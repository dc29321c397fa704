//! The send queue: frozen segments, from `push` to their acknowledgement.

use dp::Mbuf;
use slab::Slab;

/// Names a queued segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentKey(u32);

/// A queued segment.
struct Segment {
    buf: Mbuf,
}

/// Records of the segments that all connections of a stack hold for transmission.
pub(crate) struct SegmentSlab {
    records: Slab<Segment>,
    limit: usize,
}

impl SegmentSlab {
    /// Room for `limit` segments, taken now.
    pub(crate) fn new(limit: usize) -> Self {
        Self { records: Slab::with_capacity(limit), limit }
    }

    /// Whether the limit is reached.
    pub(crate) fn is_full(&self) -> bool {
        self.records.len() >= self.limit
    }

    /// The retained buffer of a segment: exactly its payload. To send it without a copy: when it is not shared,
    /// prepend the headers, `share`, and `advance` over them again; when it is, chain a header buffer and a `share`.
    pub(crate) fn buf_mut(&mut self, key: SegmentKey) -> &mut Mbuf {
        &mut self.records[key.0 as usize].buf
    }
}
