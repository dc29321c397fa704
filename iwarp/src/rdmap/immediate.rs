//! Immediate Data (RFC 7306 section 6.2): eight bytes, which are the whole DDP payload of the message.
//!
//! RDMAP has no Send with Immediate. Endpoints that have agreed on InfiniBand's semantics use two messages
//! for it: Immediate Data in whose last four bytes all bits are set, followed by the Send. The Immediate Data
//! has an MSN like every message of queue 0, but consumes no receive request: its first four bytes are
//! reported with the receive request of the Send.

use arrayvec::ArrayVec;

use crate::ddp::{DdpError, UntaggedHeader};
use crate::rdmap::error::TerminateError;

/// Number of bytes of Immediate Data.
pub const IMMEDIATE_LEN: usize = 8;

/// The last four bytes of Immediate Data that belongs to the next Send.
const JOINED: [u8; 4] = [0xFF; 4];

/// Returns the Immediate Data to send before a Send with the immediate value `data`.
pub(crate) const fn join_immediate(data: [u8; 4]) -> [u8; IMMEDIATE_LEN] {
    let ([a, b, c, d], [e, f, g, h]) = (data, JOINED);
    [a, b, c, d, e, f, g, h]
}

/// Returns the immediate value of the next Send, if `data` is Immediate Data that belongs to the next Send.
/// Otherwise returns `None`.
pub(crate) fn joined_immediate(data: &[u8; IMMEDIATE_LEN]) -> Option<[u8; 4]> {
    let [a, b, c, d, end @ ..] = *data;
    (end == JOINED).then_some([a, b, c, d])
}

/// Immediate Data that arrives in one segment, or, if MULPDU is tiny, in several segments.
#[derive(Clone, Debug, Default)]
pub struct ImmediateData {
    bytes: ArrayVec<u8, IMMEDIATE_LEN>,
}

impl ImmediateData {
    /// Checks the next segment in order. The segment must begin where the previous segment ended, and the
    /// length of the message must be eight bytes (RFC 7306 section 6.3).
    ///
    /// # Errors
    /// [`TerminateError::OperationUnspecified`] for any other length (the RFCs name no code for this error).
    /// [`TerminateError::DdpInvalidMo`] for a gap or a repetition.
    pub fn check(&self, header: &UntaggedHeader, payload_len: usize) -> Result<(), TerminateError> {
        let end = u64::from(header.mo) + payload_len as u64;
        // RFC 7306 section 6.3 (EXT-127): DDP must report exactly eight bytes.
        if end > IMMEDIATE_LEN as u64 || (header.last && end != IMMEDIATE_LEN as u64) {
            return Err(TerminateError::OperationUnspecified);
        }
        if header.mo as usize != self.bytes.len() {
            return Err(DdpError::InvalidMo.into());
        }
        Ok(())
    }

    /// Appends bytes of a checked segment, until there are eight bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes.iter().copied().take(self.bytes.remaining_capacity()));
    }

    /// Returns the bytes if all eight bytes have arrived, and otherwise `None`. In both cases clears the
    /// value for the next message.
    pub fn take(&mut self) -> Option<[u8; IMMEDIATE_LEN]> {
        std::mem::take(&mut self.bytes).into_inner().ok()
    }
}
