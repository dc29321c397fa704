//! Reads one startup frame from a stream in any segmentation. No byte after the frame is consumed.

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

    /// If all of `bytes` belong to the private data and do not complete the frame, consumes them and returns
    /// their number. Otherwise consumes no byte and returns `None`. Private data needs no check:
    /// [`take`](Self::take) has already checked the header.
    pub(super) fn take_private(&mut self, bytes: &[u8]) -> Option<usize> {
        if self.bytes.len() < HEADER_BYTES || bytes.len() >= self.lacking() {
            return None;
        }
        self.bytes.try_extend_from_slice(bytes).ok()?;
        Some(bytes.len())
    }

    /// Consumes the bytes that belong to the frame. Returns the number of consumed bytes, and the frame if it
    /// is complete. Fails if the frame is malformed.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        kind: FrameKind,
    ) -> Result<(usize, Option<Frame>), Malformed> {
        let mut used = 0;
        // The loop has at most two iterations: the header says how many bytes follow it.
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

    /// Returns the number of bytes that are missing up to the end of the header. If the header is complete,
    /// returns the number of missing bytes of private data.
    fn lacking(&self) -> usize {
        let whole = match self.bytes.first_chunk::<HEADER_BYTES>() {
            // The length is at most MAX_PRIVATE_DATA, since `Frame::parse` has checked the header.
            Some(header) => HEADER_BYTES + usize::from(u16::from_be_bytes([header[18], header[19]])),
            None => HEADER_BYTES,
        };
        whole - self.bytes.len()
    }
}
