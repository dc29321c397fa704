//! Direct Data Placement (RFC 5041): headers, segmentation, and the checks before placement.
//!
//! Pure functions and small values: nothing here reads a clock, sends, or holds a packet. One DDP segment is
//! one ULPDU of MPA. Its payload follows the header. A segment arrives in one of three ways:
//!
//! | [`Arrival`] | place | deliver | a failed check |
//! |---|---|---|---|
//! | [`Arrival::InOrder`] | now | now | ends the stream |
//! | [`Arrival::Ahead`], beyond a hole | now, if every check passes | no | is ignored: the segment is not placed and arrives again in order |
//! | [`Arrival::Placed`], the frontier has reached it | already done | now | ends the stream |
//!
//! This module owns no buffers (`crate::memory` and the queues of a queue pair do) and knows no opcodes
//! (`crate::rdmap` reads them from the bytes that DDP reserves for its ULP).

pub mod error;
pub mod header;
pub mod segment;
pub mod tagged;
pub mod untagged;

pub use error::DdpError;
pub use header::{Header, HeaderError, HeaderWords, TaggedHeader, UntaggedHeader};
pub use segment::{Segment, Segmenter};
pub use untagged::{Delivered, Destination, UntaggedQueue};

/// How a segment reached DDP. It decides whether the segment is placed, delivered, or both.
///
/// RFC 5041 section 5.3 (DDP-123): a segment beyond a hole is only placed, and is handed up again in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// At the in-order frontier and not yet placed: place, then deliver.
    InOrder,
    /// Ahead of a hole: place only, if every check passes.
    Ahead,
    /// Placed early; the frontier has now reached it: deliver only.
    Placed,
}

impl Arrival {
    /// Whether the payload is to be placed now.
    pub fn places(self) -> bool {
        self != Arrival::Placed
    }

    /// Whether the segment is to be delivered now. A failed check is then an error of the stream.
    ///
    /// RFC 5041 sections 4.1, 5.3 and 5.4 (DDP-053, DDP-131, DDP-134, DDP-136 to DDP-138): at the in-order
    /// frontier only, where every earlier segment of the stream is placed and every earlier message is
    /// delivered.
    pub fn delivers(self) -> bool {
        self != Arrival::Ahead
    }
}
