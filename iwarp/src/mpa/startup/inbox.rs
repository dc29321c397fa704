//! Gathers one startup frame from a stream in any segmentation, and not one byte more.

use crate::mpa::frame::{Frame, FrameBytes, FrameKind, HEADER_BYTES, Malformed, Parsed};

/// What has come of the frame.
#[derive(Clone, Debug, Default)]
pub(super) struct Inbox {
    bytes: FrameBytes,
}

impl Inbox {
    /// Whether nothing has come yet.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes what belongs to the frame; says how much that was, and gives the frame when it is whole.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        kind: FrameKind,
    ) -> Result<(usize, Option<Frame>), Malformed> {
        let mut used = 0;
        // Two turns at most: the header says how much follows it.
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

    /// Bytes to the end of the header or, behind it, of the private data.
    fn lacking(&self) -> usize {
        let whole = match self.bytes.first_chunk::<HEADER_BYTES>() {
            // Within MAX_PRIVATE_DATA: `Frame::parse` has seen the header and refuses more.
            Some(header) => HEADER_BYTES + usize::from(u16::from_be_bytes([header[18], header[19]])),
            None => HEADER_BYTES,
        };
        whole - self.bytes.len()
    }
}
