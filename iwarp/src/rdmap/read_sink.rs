//! The range of memory in which the response to an outstanding RDMA Read may be placed (RFC 5040 section 5.2;
//! RFC 5042 section 6.2).
//!
//! A Read Response is placed only inside the sink of an outstanding Read: each segment is checked against the
//! sink before placement. The peer must send responses in the order of their requests, and the segments of a
//! response in order. At delivery each segment must begin where the previous segment ended, and the last
//! segment must end where the Read ends. Without these checks, a completion could report bytes that never
//! arrived.

use crate::ddp::{DdpError, TaggedHeader};
use crate::memory::Stag;
use crate::rdmap::error::TerminateError;

/// The sink of one outstanding Read, and the number of bytes that have been delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSink {
    stag: Stag,
    to: u64,
    size: u32,
    delivered: u32,
}

/// The result of delivering a segment of a Read Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProgress {
    /// The response has further segments.
    Partial,
    /// All bytes of the Read have been delivered, and the last segment had the L flag.
    Complete,
}

impl ReadSink {
    /// Returns the sink of a Read of `size` bytes into `stag`. The first byte is placed at tagged offset
    /// `to`.
    pub const fn new(stag: Stag, to: u64, size: u32) -> Self {
        Self { stag, to, size, delivered: 0 }
    }

    /// The STag of the buffer in which the response is placed.
    pub const fn stag(&self) -> Stag {
        self.stag
    }

    /// Number of bytes of the whole Read, including bytes that are not delivered yet.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Number of bytes that have been delivered so far.
    pub const fn delivered(&self) -> u32 {
        self.delivered
    }

    /// Checks that a segment may be placed: it must name this sink, and must lie in the part of the sink that
    /// is not yet delivered. Returns the offset in the sink. For a segment beyond a hole, this function is
    /// the only check against the sink before placement.
    ///
    /// RFC 5041 section 5.2 (DDP-120): STag and TO of an empty segment are not checked.
    ///
    /// # Errors
    /// [`DdpError::InvalidStag`] if the segment names another STag. [`DdpError::ToWrap`] if the sum of tagged
    /// offset and length is 2^64 or more. [`DdpError::BaseOrBounds`] if the segment lies outside the part of
    /// the sink that is not yet delivered. An empty segment causes no error.
    pub fn check(&self, header: &TaggedHeader, payload_len: usize) -> Result<u32, DdpError> {
        if payload_len == 0 {
            return Ok(self.delivered);
        }
        if header.stag != self.stag {
            return Err(DdpError::InvalidStag);
        }
        let end = header.to.checked_add(payload_len as u64).ok_or(DdpError::ToWrap)?;
        let offset = header.to.wrapping_sub(self.to);
        let end_offset = end.wrapping_sub(self.to);
        // RFC 5042 section 6.2.1 (SEC-097): a Read Response stays within the sink of its Read.
        if offset < u64::from(self.delivered) || offset > end_offset || end_offset > u64::from(self.size) {
            return Err(DdpError::BaseOrBounds);
        }
        // The offset fits into 32 bits, since it is at most `size`.
        Ok(offset as u32)
    }

    /// Delivers a placed segment that is next in order.
    ///
    /// # Errors
    /// The errors of [`ReadSink::check`]. [`TerminateError::DdpBounds`] if the segment leaves a gap.
    /// [`TerminateError::OperationUnspecified`] if the response ends too early: RFC 5040 has no code for a
    /// response of the wrong length.
    pub fn deliver(
        &mut self,
        header: &TaggedHeader,
        payload_len: usize,
    ) -> Result<ReadProgress, TerminateError> {
        let offset = self.check(header, payload_len)?;
        if offset != self.delivered {
            return Err(TerminateError::DdpBounds);
        }
        // `check` has checked that the sum is at most `size`.
        self.delivered += payload_len as u32;
        match (header.last, self.delivered == self.size) {
            (true, true) => Ok(ReadProgress::Complete),
            (false, _) => Ok(ReadProgress::Partial),
            (true, false) => Err(TerminateError::OperationUnspecified),
        }
    }
}
