//! Immediate Data (RFC 7306 section 6.2): eight bytes, which are the whole DDP payload of the message.
//!
//! RDMAP has no Send with Immediate. Two ends that have agreed on InfiniBand's semantics make one of two
//! messages: Immediate Data whose last four bytes are all ones, then the Send. The first message has an MSN
//! like every message of queue 0, but takes no receive request: its first four bytes go to the receive
//! request of the Send.

use arrayvec::ArrayVec;

use crate::ddp::{DdpError, UntaggedHeader};
use crate::rdmap::error::TerminateError;

/// Bytes of Immediate Data.
pub const IMMEDIATE_LEN: usize = 8;

/// The last four bytes of Immediate Data that belongs to the Send behind it.
const JOINED: [u8; 4] = [0xFF; 4];

/// The Immediate Data in front of a Send that has these bytes.
pub(crate) const fn join_immediate(data: [u8; 4]) -> [u8; IMMEDIATE_LEN] {
    let ([a, b, c, d], [e, f, g, h]) = (data, JOINED);
    [a, b, c, d, e, f, g, h]
}

/// The bytes for the Send behind it, if this is the Immediate Data in front of one.
pub(crate) fn joined_immediate(data: &[u8; IMMEDIATE_LEN]) -> Option<[u8; 4]> {
    let [a, b, c, d, end @ ..] = *data;
    (end == JOINED).then_some([a, b, c, d])
}

/// Immediate Data as it arrives: in one segment, or in several under a tiny MULPDU.
#[derive(Clone, Debug, Default)]
pub struct ImmediateData {
    bytes: ArrayVec<u8, IMMEDIATE_LEN>,
}

impl ImmediateData {
    /// Checks the next segment in order: it begins where the last one ended, and the message length is eight
    /// (RFC 7306 section 6.3).
    ///
    /// # Errors
    /// [`TerminateError::OperationUnspecified`] for any other length (the documents name no code),
    /// [`TerminateError::DdpInvalidMo`] for a gap or a repetition.
    pub fn check(&self, header: &UntaggedHeader, payload_len: usize) -> Result<(), TerminateError> {
        let end = u64::from(header.mo) + payload_len as u64;
        // RFC 7306 section 6.3 (EXT-127): DDP has to report exactly eight bytes.
        if end > IMMEDIATE_LEN as u64 || (header.last && end != IMMEDIATE_LEN as u64) {
            return Err(TerminateError::OperationUnspecified);
        }
        if header.mo as usize != self.bytes.len() {
            return Err(DdpError::InvalidMo.into());
        }
        Ok(())
    }

    /// Appends bytes of a checked segment, up to eight in all.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes.iter().copied().take(self.bytes.remaining_capacity()));
    }

    /// The bytes, if all eight have arrived. Clears them for the next message.
    pub fn take(&mut self) -> Option<[u8; IMMEDIATE_LEN]> {
        std::mem::take(&mut self.bytes).into_inner().ok()
    }
}
