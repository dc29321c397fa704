//! Direct Data Placement (RFC 5041): headers, segmentation, and the checks before placement.
//!
//! One DDP segment is one ULPDU of MPA. The payload of a segment follows the header. A segment arrives in one
//! of three ways:
//!
//! | [`Arrival`] | place | deliver | a failed check |
//! |---|---|---|---|
//! | [`Arrival::InOrder`] | now | now | ends the stream |
//! | [`Arrival::Ahead`], beyond a hole | now, if every check passes | no | is no error: the segment is not placed, and MPA passes it to DDP again when it is next in order |
//! | [`Arrival::Placed`], placed early and now next in order | no | now | ends the stream |
//!
//! This module does not own buffers (`crate::memory` and the queues of a queue pair do). This module does not
//! know opcodes (`crate::rdmap` reads the opcodes from the bytes that DDP reserves for its ULP).

pub mod error;
pub mod header;
pub mod segment;
pub mod tagged;
pub mod untagged;

pub use error::DdpError;
pub use header::{Header, HeaderError, HeaderWords, TaggedHeader, UntaggedHeader};
pub use segment::{Segment, Segmenter};
pub use untagged::{Delivered, Destination, UntaggedQueue};

/// How a segment reached DDP. The value decides whether the segment is placed, delivered, or both.
///
/// RFC 5041 section 5.3 (DDP-123): a segment beyond a hole is placed but not delivered. MPA passes the
/// segment to DDP again when it is next in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The segment is next in order and not yet placed: DDP places and then delivers the segment.
    InOrder,
    /// The segment is beyond a hole: DDP only places the segment, if every check passes.
    Ahead,
    /// The segment was placed early and is now next in order: DDP only delivers the segment.
    Placed,
}

impl Arrival {
    /// Whether DDP places the payload now.
    pub fn places(self) -> bool {
        self != Arrival::Placed
    }

    /// Whether DDP delivers the segment now. If DDP delivers the segment, a failed check is an error of the
    /// stream.
    ///
    /// RFC 5041 sections 4.1, 5.3 and 5.4 (DDP-053, DDP-131, DDP-134, DDP-136 to DDP-138): a segment is
    /// delivered only when it is next in order, so that every earlier segment of the stream is placed and
    /// every earlier message is delivered.
    pub fn delivers(self) -> bool {
        self != Arrival::Ahead
    }
}
