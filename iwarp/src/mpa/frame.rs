//! The bytes of the MPA Request and Reply Frames (section 7.1.1; RFC 6581 sections 6 and 9).
//!
//! A codec: what a frame means in a conversation is [`startup`](super::startup)'s. Parsing is bounded:
//! nothing beyond the 532 bytes a frame can have is asked for, and what cannot become a frame is refused as
//! early as it shows.

use arrayvec::ArrayVec;
use thiserror::Error;

/// Bytes in front of the private data.
pub const HEADER_BYTES: usize = 20;

/// Most bytes of private data in a frame, the depths of an enhanced frame included.
pub const MAX_PRIVATE_DATA: usize = 512;

/// Bytes of depths and model bits that open an enhanced frame's private data.
pub const ENHANCED_BYTES: usize = 4;

/// Longest frame.
pub const MAX_FRAME: usize = HEADER_BYTES + MAX_PRIVATE_DATA;

const KEY_BYTES: usize = 16;
const FLAG_M: u8 = 0x80;
const FLAG_C: u8 = 0x40;
const FLAG_R: u8 = 0x20;
const FLAG_S: u8 = 0x10;

/// Private data of one frame.
pub type PrivateData = ArrayVec<u8, MAX_PRIVATE_DATA>;

/// The bytes of one frame.
pub type FrameBytes = ArrayVec<u8, MAX_FRAME>;

/// Which of the two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The initiator's.
    Request,
    /// The responder's.
    Reply,
}

impl FrameKind {
    /// The key that opens the frame.
    pub const fn key(self) -> &'static [u8; KEY_BYTES] {
        match self {
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

bitflags::bitflags! {
    /// Kinds of ready-to-receive message (RFC 6581 section 9.2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RtrKinds: u8 {
        /// B: a Send of length 0.
        const SEND = 1;
        /// C: an RDMA Write of length 0.
        const WRITE = 2;
        /// D: an RDMA Read of length 0.
        const READ = 4;
    }
}

/// The depths as they stand in a frame, of the frame's sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Depths {
    /// Reads it serves at a time, 14 bits; [`Depths::LEFT_TO_ULP`] says nothing.
    pub ird: u16,
    /// Reads it issues at a time, 14 bits; [`Depths::LEFT_TO_ULP`] says nothing.
    pub ord: u16,
}

impl Depths {
    /// Not negotiated here: the ULP sees to it.
    pub const LEFT_TO_ULP: u16 = 0x3fff;

    /// Largest depth that can be negotiated.
    pub const MAX: u16 = 0x3ffe;
}

/// The four bytes of RFC 6581 section 9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// A: peer-to-peer, so that an RTR follows the Reply.
    pub peer_to_peer: bool,
    /// B, C, D: asked for (Request) or supported (Reply). Means nothing without `peer_to_peer`.
    pub rtr: RtrKinds,
    /// IRD and ORD.
    pub depths: Depths,
}

impl Enhanced {
    /// All 2^32 values decode.
    pub fn decode(bytes: [u8; ENHANCED_BYTES]) -> Self {
        let first = u16::from_be_bytes([bytes[0], bytes[1]]);
        let second = u16::from_be_bytes([bytes[2], bytes[3]]);
        let mut rtr = RtrKinds::empty();
        rtr.set(RtrKinds::SEND, first & 0x4000 != 0);
        rtr.set(RtrKinds::WRITE, second & 0x8000 != 0);
        rtr.set(RtrKinds::READ, second & 0x4000 != 0);
        Self {
            peer_to_peer: first & 0x8000 != 0,
            rtr,
            depths: Depths { ird: first & 0x3fff, ord: second & 0x3fff },
        }
    }

    /// In network order. Without `peer_to_peer` the RTR bits are 0, as RFC 6581 section 9.2 demands.
    pub fn encode(self) -> [u8; ENHANCED_BYTES] {
        let bit = |kind, bit| if self.peer_to_peer && self.rtr.contains(kind) { bit } else { 0 };
        let model = if self.peer_to_peer { 0x8000 } else { 0 };
        let first = (self.depths.ird & 0x3fff) | model | bit(RtrKinds::SEND, 0x4000);
        let second = (self.depths.ord & 0x3fff) | bit(RtrKinds::WRITE, 0x8000) | bit(RtrKinds::READ, 0x4000);
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }
}

/// Why bytes can never become a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The key is another one.
    #[error("wrong key")]
    Key,
    /// The key is that of the other frame: both ends are initiators, or a Reply came to a responder.
    #[error("the key of the other startup frame")]
    OtherKey,
    /// PD_Length above 512.
    #[error("{0} bytes of private data")]
    PrivateDataLength(u16),
    /// S is set and PD_Length is below 4.
    #[error("an enhanced frame without its depths")]
    NoDepths,
}

/// The private data does not fit the frame: 512 bytes, 508 with depths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{bytes} bytes of private data, the limit is {limit}")]
pub struct PrivateDataTooLong {
    /// Asked for.
    pub bytes: usize,
    /// Allowed.
    pub limit: usize,
}

/// A startup frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Request or Reply.
    pub kind: FrameKind,
    /// M: the sender needs markers in what it receives.
    pub markers: bool,
    /// C: the sender wants CRCs.
    pub crc: bool,
    /// R: rejected. Always `false` in a Request, where it is reserved.
    pub reject: bool,
    /// Rev.
    pub revision: u8,
    /// S of revision 2 and above, with its four bytes. In revision 1 the bit is reserved.
    pub enhanced: Option<Enhanced>,
    /// What is left for the ULP.
    pub private_data: PrivateData,
}

/// What [`Frame::parse`] made of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The bytes are the beginning of a frame.
    NeedMore,
    /// A frame, and how many bytes it took.
    Frame(Frame, usize),
}

impl Frame {
    /// Reads a frame of `kind` from the front of `bytes`.
    ///
    /// A rejecting Reply of revision 2 without its depths is let through (Linux siw sends it).
    ///
    /// # Errors
    /// [`Malformed`], as soon as it shows; the revision is left to the caller.
    pub fn parse(bytes: &[u8], kind: FrameKind) -> Result<Parsed, Malformed> {
        let key = &bytes[..bytes.len().min(KEY_BYTES)];
        if !kind.key().starts_with(key) {
            let other = match kind {
                FrameKind::Request => FrameKind::Reply,
                FrameKind::Reply => FrameKind::Request,
            };
            return Err(if other.key().starts_with(key) { Malformed::OtherKey } else { Malformed::Key });
        }
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(Parsed::NeedMore);
        };
        let (flags, revision) = (header[16], header[17]);
        let length = u16::from_be_bytes([header[18], header[19]]);
        if usize::from(length) > MAX_PRIVATE_DATA {
            return Err(Malformed::PrivateDataLength(length));
        }
        let reject = kind == FrameKind::Reply && flags & FLAG_R != 0;
        let enhanced = revision >= 2 && flags & FLAG_S != 0;
        if enhanced && usize::from(length) < ENHANCED_BYTES && !reject {
            return Err(Malformed::NoDepths);
        }
        let Some(private_data) = rest.get(..usize::from(length)) else {
            return Ok(Parsed::NeedMore);
        };
        let (enhanced, for_ulp) = match private_data.split_first_chunk() {
            Some((depths, rest)) if enhanced => (Some(Enhanced::decode(*depths)), rest),
            _ => (None, private_data),
        };
        let frame = Self {
            kind,
            markers: flags & FLAG_M != 0,
            crc: flags & FLAG_C != 0,
            reject,
            revision,
            enhanced,
            // At most MAX_PRIVATE_DATA, checked above.
            private_data: for_ulp.iter().copied().collect(),
        };
        Ok(Parsed::Frame(frame, HEADER_BYTES + private_data.len()))
    }

    /// The frame's bytes.
    ///
    /// # Errors
    /// [`PrivateDataTooLong`] when depths and private data together exceed 512 bytes.
    pub fn encode(&self) -> Result<FrameBytes, PrivateDataTooLong> {
        let depths = self.enhanced.map(Enhanced::encode);
        let depths = depths.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        let limit = MAX_PRIVATE_DATA - depths.len();
        if self.private_data.len() > limit {
            return Err(PrivateDataTooLong { bytes: self.private_data.len(), limit });
        }
        let mut flags = 0;
        for (set, flag) in [
            (self.markers, FLAG_M),
            (self.crc, FLAG_C),
            (self.reject && self.kind == FrameKind::Reply, FLAG_R),
            (self.enhanced.is_some(), FLAG_S),
        ] {
            flags |= if set { flag } else { 0 };
        }
        let length = (depths.len() + self.private_data.len()) as u16;
        let parts: [&[u8]; 5] =
            [self.kind.key(), &[flags, self.revision], &length.to_be_bytes(), depths, &self.private_data];
        Ok(parts.into_iter().flatten().copied().collect())
    }
}

/// Copies what a ULP passed, within `limit`.
pub(super) fn private_data(bytes: &[u8], limit: usize) -> Result<PrivateData, PrivateDataTooLong> {
    if bytes.len() > limit {
        return Err(PrivateDataTooLong { bytes: bytes.len(), limit });
    }
    Ok(bytes.iter().copied().collect())
}

#[cfg(test)]
mod tests;
