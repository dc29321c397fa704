//! Segmentation of a message (RFC 5041 section 5.2).

use crate::ddp::header::{TaggedHeader, UntaggedHeader};

/// One segment of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of the segment's payload in the message.
    pub offset: u32,
    /// Number of bytes of payload.
    pub len: u32,
    /// Whether the segment is the last of its message.
    pub last: bool,
}

/// Splits one message into segments, in the order of increasing offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmenter {
    len: u32,
    offset: u32,
    header_len: u32,
    done: bool,
}

impl Segmenter {
    /// Returns a segmenter for a tagged message of `len` bytes.
    pub const fn tagged(len: u32) -> Self {
        Self { len, offset: 0, header_len: TaggedHeader::LEN as u32, done: false }
    }

    /// Returns a segmenter for an untagged message of `len` bytes.
    pub const fn untagged(len: u32) -> Self {
        Self { len, offset: 0, header_len: UntaggedHeader::LEN as u32, done: false }
    }

    /// Returns the next segment without advancing. The header and the payload of this segment have at most
    /// `mulpdu` bytes together. Returns `None` after the last segment, or if `mulpdu` leaves no room for a
    /// byte of payload.
    ///
    /// RFC 5041 section 5.2 (DDP-105, DDP-106) sets this limit. An empty message is one empty segment
    /// (DDP-118).
    pub fn peek(&self, mulpdu: u32) -> Option<Segment> {
        let room = mulpdu.checked_sub(self.header_len)?;
        let left = self.len - self.offset;
        if self.done || room == 0 {
            return None;
        }
        let len = left.min(room);
        // RFC 5041 section 4.1 (DDP-049, DDP-050): L is set in the last segment of a message and in no other
        // segment.
        Some(Segment { offset: self.offset, len, last: len == left })
    }

    /// Returns the next segment and advances over it. The header and the payload of this segment have at most
    /// `mulpdu` bytes together. Returns `None` in the same cases as [`Segmenter::peek`].
    ///
    /// RFC 5041 sections 4.1, 4.3 and 5.2 (DDP-051, DDP-052, DDP-095, DDP-108): the segments cover the whole
    /// message, from offset 0 on and without a gap. The segment with L set is sent last and has the largest
    /// offset.
    pub fn next(&mut self, mulpdu: u32) -> Option<Segment> {
        let segment = self.peek(mulpdu)?;
        self.cut(&segment);
        Some(segment)
    }

    /// Advances over the segment that [`peek`](Self::peek) has returned.
    #[inline]
    pub fn cut(&mut self, segment: &Segment) {
        // RFC 5041 section 3 (DDP-029): a new MULPDU applies only to later segments. Segments before `offset`
        // are never split again.
        self.offset += segment.len;
        self.done = segment.last;
    }

    /// Whether the last segment has been returned.
    pub const fn is_done(&self) -> bool {
        self.done
    }

    /// Number of payload bytes in the segments that were returned so far.
    pub const fn cut_bytes(&self) -> u32 {
        self.offset
    }

    /// Number of payload bytes in the segments that are left.
    pub const fn bytes_left(&self) -> u32 {
        self.len - self.offset
    }

    /// Number of payload bytes of the whole message.
    pub const fn message_bytes(&self) -> u32 {
        self.len
    }
}
