//! Reads one startup frame from a stream in any segmentation, and takes no byte after it.

use crate::mpa::frame::{Frame, FrameBytes, FrameKind, HEADER_BYTES, Malformed, Parsed};

/// The bytes of the frame so far.
#[derive(Clone, Debug, Default)]
pub(super) struct FrameReader {
    bytes: FrameBytes,
}

impl FrameReader {
    /// Whether no byte of the frame has arrived yet.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes bytes if all belong to the private data and do not complete it, and returns how many; otherwise
    /// takes none and returns `None`. These bytes need no check: [`take`](Self::take) has checked the
    /// header.
    pub(super) fn take_private(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.bytes.len() < HEADER_BYTES || bytes.len() >= self.lacking() {
            return None;
        }
        self.bytes.try_extend_from_slice(bytes).ok()?;
        Some(bytes.len())
    }

    /// Takes the bytes that belong to the frame. Returns how many it took, and the frame when it is complete.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        kind: FrameKind,
    ) -> Result<(usize, Option<Frame>), Malformed> {
        let mut used = 0;
        // At most two iterations: the header says how many bytes follow it.
        loop {
            let rest = &bytes[used..];
            let now = rest.len().min(self.lacking());
            self.bytes.extend(rest[..now].iter().copied());
            used += now;
            match Frame::parse(&self.bytes, kind)? {
                Parsed::Frame(frame, _) => return Ok((used, Some(frame))),
                Parsed::NeedMore if used == bytes.len() => return Ok((used, None)),
                Parsed::NeedMore => {}
            }
        }
    }

    /// Bytes that are missing up to the end of the header or, after it, of the private data.
    fn lacking(&self) -> usize {
        let whole = match self.bytes.first_chunk::<HEADER_BYTES>() {
            // At most MAX_PRIVATE_DATA: `Frame::parse` has checked the header.
            Some(header) => HEADER_BYTES + usize::from(u16::from_be_bytes([header[18], header[19]])),
            None => HEADER_BYTES,
        };
        whole - self.bytes.len()
    }
}
