//! Direct Data Placement (RFC 5041): headers, segmentation, and the checks that stand before placement.
//!
//! Pure functions and small values: nothing here reads a clock, sends, or holds a packet. One DDP segment is
//! one ULPDU of MPA; its payload is what follows the header. A segment arrives in one of three ways:
//!
//! | [`Arrival`] | place | deliver | a failed check |
//! |---|---|---|---|
//! | [`Arrival::InOrder`] | now | now | ends the stream |
//! | [`Arrival::Early`], ahead of a hole | now, if every check passes | no | is forgotten: the segment is not placed and comes again |
//! | [`Arrival::Placed`], the frontier has reached it | done before | now | ends the stream |
//!
//! What it is not: it owns no buffers (`crate::memory` and the queues of a queue pair do), and it knows no
//! opcode (`crate::rdmap` does, from the bytes that DDP reserves for it).

pub mod error;
pub mod header;
pub mod segment;
pub mod tagged;
pub mod untagged;

pub use error::DdpError;
pub use header::{Header, HeaderError, TaggedHeader, UntaggedHeader};
pub use segment::{Segment, Segmenter};
pub use untagged::{Delivered, UntaggedQueue, UntaggedSlot};

/// How a segment reached DDP, and so what is to be done with it (RFC 5041 section 5.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// At the in-order frontier, not placed before: place, then deliver.
    InOrder,
    /// Ahead of a hole: place only, and only when every check passes.
    Early,
    /// Placed early, and now the frontier has reached it: deliver only.
    Placed,
}

impl Arrival {
    /// Whether the payload is to be placed now.
    pub fn places(self) -> bool {
        self != Arrival::Placed
    }

    /// Whether the segment is to be delivered now, and a failed check to be reported.
    pub fn delivers(self) -> bool {
        self != Arrival::Early
    }
}
