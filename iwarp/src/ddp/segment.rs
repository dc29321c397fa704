//! Cutting a message into segments (RFC 5041 section 5.1).
//!
//! MULPDU is asked before every segment, as it may change while a message is being sent; what was cut is
//! never cut again. A message of no bytes is one segment of no bytes.

use crate::ddp::header::{TaggedHeader, UntaggedHeader};

/// One piece of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Where in the message its payload begins.
    pub offset: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Last one of the message.
    pub last: bool,
}

/// What is left to cut of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmenter {
    len: u32,
    offset: u32,
    header_len: u32,
    done: bool,
}

impl Segmenter {
    /// A tagged message of `len` bytes.
    pub const fn tagged(len: u32) -> Self {
        Self { len, offset: 0, header_len: TaggedHeader::LEN as u32, done: false }
    }

    /// An untagged message of `len` bytes.
    pub const fn untagged(len: u32) -> Self {
        Self { len, offset: 0, header_len: UntaggedHeader::LEN as u32, done: false }
    }

    /// What the next segment would be under `mulpdu`, without cutting it. `None` when the message is cut
    /// through or `mulpdu` leaves no room for a byte of payload.
    pub fn peek(&self, mulpdu: u32) -> Option<Segment> {
        let room = mulpdu.checked_sub(self.header_len)?;
        let left = self.len - self.offset;
        if self.done || room == 0 {
            return None;
        }
        let len = left.min(room);
        Some(Segment { offset: self.offset, len, last: len == left })
    }

    /// Cuts the next segment, at most `mulpdu` bytes with its header. `None` as for [`Segmenter::peek`].
    pub fn next(&mut self, mulpdu: u32) -> Option<Segment> {
        let segment = self.peek(mulpdu)?;
        self.offset += segment.len;
        self.done = segment.last;
        Some(segment)
    }

    /// Whether the last segment has been cut.
    pub const fn is_done(&self) -> bool {
        self.done
    }

    /// Bytes of payload cut so far.
    pub const fn cut_bytes(&self) -> u32 {
        self.offset
    }

    /// Bytes in the whole message.
    pub const fn message_bytes(&self) -> u32 {
        self.len
    }
}
