//! Segmentation of a message (RFC 5041 section 5.2).

use crate::ddp::header::{TaggedHeader, UntaggedHeader};

/// One segment of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset of its payload in the message.
    pub offset: u32,
    /// Bytes of payload.
    pub len: u32,
    /// Whether the segment is the last of its message.
    pub last: bool,
}

/// Cuts one message into segments, by increasing offset.
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

    /// The next segment under `mulpdu`, without cutting it. `None` after the last segment, or when `mulpdu`
    /// leaves no room for a byte of payload.
    ///
    /// RFC 5041 section 5.2 (DDP-105, DDP-106, DDP-118): header and payload of a segment together fit
    /// `mulpdu`; an empty message is one empty segment.
    pub fn peek(&self, mulpdu: u32) -> Option<Segment> {
        let room = mulpdu.checked_sub(self.header_len)?;
        let left = self.len - self.offset;
        if self.done || room == 0 {
            return None;
        }
        let len = left.min(room);
        // RFC 5041 section 4.1 (DDP-049, DDP-050): the last segment of a message has L set, and no other has.
        Some(Segment { offset: self.offset, len, last: len == left })
    }

    /// Cuts the next segment, at most `mulpdu` bytes with its header. `None` as for [`Segmenter::peek`].
    ///
    /// RFC 5041 sections 4.1, 4.3 and 5.2 (DDP-051, DDP-052, DDP-095, DDP-108): segments cover the whole
    /// message, from offset 0 on and without a gap. The last segment comes last and has the largest offset.
    pub fn next(&mut self, mulpdu: u32) -> Option<Segment> {
        let segment = self.peek(mulpdu)?;
        self.cut(&segment);
        Some(segment)
    }

    /// Counts the segment that [`peek`](Self::peek) has returned as cut.
    #[inline]
    pub fn cut(&mut self, segment: &Segment) {
        // RFC 5041 section 3 (DDP-029): a new MULPDU applies only to later segments. A segment that was cut
        // lies below `offset` and is never cut again.
        self.offset += segment.len;
        self.done = segment.last;
    }

    /// Whether the last segment has been cut.
    pub const fn is_done(&self) -> bool {
        self.done
    }

    /// Bytes of payload cut so far.
    pub const fn cut_bytes(&self) -> u32 {
        self.offset
    }

    /// Bytes of payload of the whole message, cut or not.
    pub const fn message_bytes(&self) -> u32 {
        self.len
    }
}
