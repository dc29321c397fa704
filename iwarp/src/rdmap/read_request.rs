//! The RDMA Read Request header (RFC 5040 section 4.4): 28 bytes, the whole DDP payload of the message.

use crate::memory::Stag;
use crate::rdmap::error::TerminateError;

/// What a peer asks to be sent, and where it wants it. The responder copies the sink's fields unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadRequest {
    /// The requester's buffer.
    pub sink_stag: Stag,
    /// Where in it.
    pub sink_to: u64,
    /// Bytes wanted.
    pub size: u32,
    /// The responder's buffer.
    pub source_stag: Stag,
    /// Where in it.
    pub source_to: u64,
}

impl ReadRequest {
    /// Bytes on the wire, and the size of a buffer of queue 1.
    pub const LEN: usize = 28;

    /// Parses the payload of a delivered Read Request.
    ///
    /// # Errors
    /// [`TerminateError::OperationUnspecified`] when there are fewer than 28 bytes (no code exists),
    /// [`TerminateError::DdpTooLong`] when there are more, as DDP would say of its 28-byte buffer.
    pub fn parse(payload: &[u8]) -> Result<Self, TerminateError> {
        let bytes: &[u8; Self::LEN] = match payload.try_into() {
            Ok(bytes) => bytes,
            Err(_) if payload.len() > Self::LEN => return Err(TerminateError::DdpTooLong),
            Err(_) => return Err(TerminateError::OperationUnspecified),
        };
        let u32_at = |at: usize| u32::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        let u64_at = |at: usize| u64::from_be_bytes(std::array::from_fn(|i| bytes[at + i]));
        Ok(Self {
            sink_stag: Stag(u32_at(0)),
            sink_to: u64_at(4),
            size: u32_at(12),
            source_stag: Stag(u32_at(16)),
            source_to: u64_at(20),
        })
    }

    /// The bytes on the wire.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let Self { sink_stag, sink_to, size, source_stag, source_to } = *self;
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&sink_stag.0.to_be_bytes());
        bytes[4..12].copy_from_slice(&sink_to.to_be_bytes());
        bytes[12..16].copy_from_slice(&size.to_be_bytes());
        bytes[16..20].copy_from_slice(&source_stag.0.to_be_bytes());
        bytes[20..28].copy_from_slice(&source_to.to_be_bytes());
        bytes
    }

    /// What is left of it after `bytes` of the response were sent, as a Terminate echoes it: both offsets
    /// moved on, the size reduced.
    #[must_use]
    pub fn advanced(&self, bytes: u32) -> Self {
        Self {
            sink_to: self.sink_to.wrapping_add(u64::from(bytes)),
            size: self.size.saturating_sub(bytes),
            source_to: self.source_to.wrapping_add(u64::from(bytes)),
            ..*self
        }
    }
}
