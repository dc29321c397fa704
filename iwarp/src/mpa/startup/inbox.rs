//! Gathers one startup frame from a stream in any segmentation, and not one octet more.

use crate::mpa::frame::{Frame, FrameKind, FrameOctets, HEADER_OCTETS, Malformed, Parsed};

/// What has come of the frame.
#[derive(Clone, Debug, Default)]
pub(super) struct Inbox {
    octets: FrameOctets,
}

impl Inbox {
    /// Whether nothing has come yet.
    pub(super) fn is_empty(&self) -> bool {
        self.octets.is_empty()
    }

    /// Takes what belongs to the frame; says how much that was, and gives the frame when it is whole.
    pub(super) fn take(
        &mut self,
        octets: &[u8],
        kind: FrameKind,
    ) -> Result<(usize, Option<Frame>), Malformed> {
        let mut used = 0;
        // Two turns at most: the header says how much follows it.
        loop {
            let rest = &octets[used..];
            let now = rest.len().min(self.lacking());
            self.octets.extend(rest[..now].iter().copied());
            used += now;
            match Frame::parse(&self.octets, kind)? {
                Parsed::Frame(frame, _) => return Ok((used, Some(frame))),
                Parsed::NeedMore if used == octets.len() => return Ok((used, None)),
                Parsed::NeedMore => {}
            }
        }
    }

    /// Octets to the end of the header or, behind it, of the private data.
    fn lacking(&self) -> usize {
        let whole = match self.octets.first_chunk::<HEADER_OCTETS>() {
            // Within MAX_PRIVATE_DATA: `Frame::parse` has seen the header and refuses more.
            Some(header) => HEADER_OCTETS + usize::from(u16::from_be_bytes([header[18], header[19]])),
            None => HEADER_OCTETS,
        };
        whole - self.octets.len()
    }
}
