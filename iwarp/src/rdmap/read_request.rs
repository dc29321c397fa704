//! The RDMA Read Request header (RFC 5040 section 4.4): 28 bytes, which are the whole DDP payload of the
//! message.

use crate::memory::Stag;
use crate::rdmap::error::TerminateError;

/// A Read Request, which names the source at the responder and the sink at the requester. The responder
/// copies the sink's fields into its response and does not interpret these fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadRequest {
    /// The STag of the buffer at the requester.
    pub sink_stag: Stag,
    /// The tagged offset of the first byte in that buffer.
    pub sink_to: u64,
    /// Number of bytes to read.
    pub size: u32,
    /// The STag of the buffer at the responder.
    pub source_stag: Stag,
    /// The tagged offset of the first byte in that buffer.
    pub source_to: u64,
}

impl ReadRequest {
    /// Number of bytes on the wire, and size of a buffer of queue 1 for a Read Request.
    pub const LEN: usize = 28;

    /// Parses the payload of a delivered Read Request.
    ///
    /// RFC 5040 section 4.2 (RDMAP-111): the header is the whole payload.
    ///
    /// # Errors
    /// [`TerminateError::OperationUnspecified`] if the payload has fewer than 28 bytes (no code exists for
    /// this error). [`TerminateError::DdpTooLong`] if it has more than 28 bytes, which is DDP's error for a
    /// 28-byte buffer.
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

    /// Returns the header as it is on the wire.
    ///
    /// RFC 5040 section 4.4 (RDMAP-117): the header has 28 bytes, and all fields are big-endian.
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

    /// Returns the rest of the request after `bytes` bytes of the response were sent: both offsets are
    /// advanced by `bytes`, and the size is reduced by `bytes`. A Terminate contains the request in this
    /// form.
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
