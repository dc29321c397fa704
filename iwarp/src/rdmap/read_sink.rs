//! The range that an outstanding RDMA Read opens for its response (RFC 5040 section 5.2; RFC 5042 section
//! 6.2).
//!
//! A Read Response is placed only inside the sink of an outstanding Read. This is checked before placement.
//! Responses arrive in the order of their requests, and their segments in order. At delivery each segment has
//! to begin where the last one ended, and the last one has to end where the Read ends. Otherwise the
//! completion would report bytes that never arrived.

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

/// The result of delivering a segment of a Read Response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadProgress {
    /// More segments follow.
    Partial,
    /// All bytes of the Read are delivered, and the last segment had the L flag.
    Complete,
}

impl ReadSink {
    /// The sink of a Read of `size` bytes into `stag`, from tagged offset `to` on.
    pub const fn new(stag: Stag, to: u64, size: u32) -> Self {
        Self { stag, to, size, delivered: 0 }
    }

    /// The buffer that the response goes to.
    pub const fn stag(&self) -> Stag {
        self.stag
    }

    /// Bytes of the whole Read, delivered or not.
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Bytes delivered so far.
    pub const fn delivered(&self) -> u32 {
        self.delivered
    }

    /// Checks that a segment may be placed: it names this sink and lies in the part that is not yet
    /// delivered. Returns the offset in the sink. For a segment beyond a hole this is the only check of the
    /// sink.
    ///
    /// RFC 5041 section 5.2 (DDP-120): STag and TO of an empty segment are not checked.
    ///
    /// # Errors
    /// [`DdpError::InvalidStag`], [`DdpError::ToWrap`] or [`DdpError::BaseOrBounds`]; none for an empty
    /// segment.
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
        // The offset is at most `size`, which has 32 bits.
        Ok(offset as u32)
    }

    /// Delivers a placed segment at the in-order frontier.
    ///
    /// # Errors
    /// Those of [`ReadSink::check`]; [`TerminateError::DdpBounds`] when the segment leaves a gap;
    /// [`TerminateError::OperationUnspecified`] when the response ends early. RFC 5040 has no code for a
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
        // `check` keeps the sum within `size`.
        self.delivered += payload_len as u32;
        match (header.last, self.delivered == self.size) {
            (true, true) => Ok(ReadProgress::Complete),
            (false, _) => Ok(ReadProgress::Partial),
            (true, false) => Err(TerminateError::OperationUnspecified),
        }
    }
}
