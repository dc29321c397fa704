//! The record of an FPDU that was placed early. The record exists until the FPDU is handed up in the sender's
//! order.

use super::ordered::StreamRange;

/// Number of bytes of the ULPDU that are kept: the length of the longest DDP header (untagged, RFC 5041
/// section 4.3).
pub(crate) const HEAD_BYTES: usize = 18;

/// An FPDU that was placed early.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyFpdu {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) ulpdu_bytes: usize,
    pub(super) head: [u8; HEAD_BYTES],
}

impl EarlyFpdu {
    /// The first bytes of the ULPDU.
    pub(super) fn ulpdu_head(&self) -> &[u8] {
        &self.head[..self.ulpdu_bytes.min(HEAD_BYTES)]
    }
}

impl StreamRange for EarlyFpdu {
    fn start(&self) -> u64 {
        self.start
    }

    fn end(&self) -> u64 {
        self.end
    }
}
