//! The range that an outstanding RDMA Read opens for its response (RFC 5040 section 5.2; RFC 5042 section
//! 6.2).
//!
//! A Read Response is placed only inside the sink of a Read that waits for it, and this is checked before
//! placement. Responses come in the order of their requests, and their segments in order: what is delivered
//! has to continue where the last segment ended and to end where the Read ends, or the user would be told of
//! bytes that never came.

use crate::ddp::{DdpError, TaggedHeader};
use crate::memory::Stag;
use crate::rdmap::error::TerminateError;

/// The sink of one outstanding Read, and how much of it has been delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadSink {
    stag: Stag,
    to: u64,
    size: u32,
    delivered: u32,
}

/// What the delivery of a segment of a Read Response did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProgress {
    /// More is to come.
    Partial,
    /// The Read is complete.
    Complete,
}

impl ReadSink {
    /// The sink of a Read of `size` bytes into `stag` from `to` on.
    pub const fn new(stag: Stag, to: u64, size: u32) -> Self {
        Self { stag, to, size, delivered: 0 }
    }

    /// The buffer the response goes to.
    pub const fn stag(&self) -> Stag {
        self.stag
    }

    /// Bytes wanted.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Bytes delivered so far.
    pub const fn delivered(&self) -> u32 {
        self.delivered
    }

    /// Whether a segment may be placed: it names this sink and lies in what has not been delivered. Returns
    /// the offset into the sink. Segments ahead of a hole are placed by this check alone.
    ///
    /// # Errors
    /// [`DdpError::InvalidStag`], [`DdpError::ToWrap`] or [`DdpError::BaseOrBounds`]. An empty segment is
    /// never refused.
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
        if offset < u64::from(self.delivered) || offset > end_offset || end_offset > u64::from(self.size) {
            return Err(DdpError::BaseOrBounds);
        }
        // Below `size`, so it fits.
        Ok(offset as u32)
    }

    /// Delivers a placed segment at the in-order frontier.
    ///
    /// # Errors
    /// What [`ReadSink::check`] says; [`TerminateError::DdpBounds`] when the segment leaves a gap; and
    /// [`TerminateError::OperationUnspecified`] when the response ends early or goes on behind its end. RFC
    /// 5040 has no code for a response of the wrong length.
    pub fn deliver(
        &mut self,
        header: &TaggedHeader,
        payload_len: usize,
    ) -> Result<ReadProgress, TerminateError> {
        let offset = self.check(header, payload_len)?;
        if offset != self.delivered {
            return Err(TerminateError::DdpBounds);
        }
        // `check` bounded the sum by `size`.
        self.delivered += payload_len as u32;
        match (header.last, self.delivered == self.size) {
            (true, true) => Ok(ReadProgress::Complete),
            (false, _) => Ok(ReadProgress::Partial),
            (true, false) => Err(TerminateError::OperationUnspecified),
        }
    }
}
