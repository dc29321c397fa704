//! The bytes of the MPA Request and Reply Frames (RFC 5044 section 7.1.1; RFC 6581 sections 6 and 9).
//!
//! This module only encodes and decodes frames; [`startup`](super::startup) decides what a frame means. The
//! parser never needs more than the 532 bytes of the longest frame.

use arrayvec::ArrayVec;
use thiserror::Error;

/// Number of bytes before the private data.
pub const HEADER_BYTES: usize = 20;

/// Maximum number of bytes of private data in a frame, including the depths of an enhanced frame.
pub const MAX_PRIVATE_DATA: usize = 512;

/// Number of bytes of the depths and model bits at the start of an enhanced frame's private data.
pub const ENHANCED_BYTES: usize = 4;

/// Number of bytes of the longest frame: the header plus [`MAX_PRIVATE_DATA`].
pub const MAX_FRAME: usize = HEADER_BYTES + MAX_PRIVATE_DATA;

const KEY_BYTES: usize = 16;
const FLAG_M: u8 = 0x80;
const FLAG_C: u8 = 0x40;
const FLAG_R: u8 = 0x20;
const FLAG_S: u8 = 0x10;

/// Private data of one frame.
pub type PrivateData = ArrayVec<u8, MAX_PRIVATE_DATA>;

/// The bytes of one frame in its form on the wire.
pub type FrameBytes = ArrayVec<u8, MAX_FRAME>;

/// The kind of a startup frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// The frame that the initiator sends.
    Request,
    /// The frame that the responder sends.
    Reply,
}

impl FrameKind {
    /// Returns the key at the start of the frame.
    pub const fn key(self) -> &'static [u8; KEY_BYTES] {
        match self {
            // RFC 5044 section 7.1.1 (MPA-148, MPA-150): these are the two keys.
            Self::Request => b"MPA ID Req Frame",
            Self::Reply => b"MPA ID Rep Frame",
        }
    }
}

bitflags::bitflags! {
    /// Kinds of ready-to-receive message (RFC 6581 section 9.2).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct RtrKinds: u8 {
        /// Bit B: a Send of length 0.
        const SEND = 1;
        /// Bit C: an RDMA Write of length 0.
        const WRITE = 2;
        /// Bit D: an RDMA Read of length 0.
        const READ = 4;
    }
}

/// IRD and ORD of the frame's sender, with the values in the frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Depths {
    /// Maximum number of Reads that the sender serves at a time, in 14 bits, or [`Depths::LEFT_TO_ULP`].
    pub ird: u16,
    /// Maximum number of Reads that the sender issues at a time, in 14 bits, or [`Depths::LEFT_TO_ULP`].
    pub ord: u16,
}

impl Depths {
    /// The value for a depth that MPA does not negotiate, but leaves to the ULPs.
    pub const LEFT_TO_ULP: u16 = 0x3fff;

    /// Maximum depth that can be negotiated.
    pub const MAX: u16 = 0x3ffe;
}

/// The four bytes of enhanced data (RFC 6581 section 9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// Bit A: whether the frame is for the peer-to-peer model, in which an RTR follows the Reply.
    pub peer_to_peer: bool,
    /// Bits B, C and D: the RTR kinds that the initiator offers (in a Request) or the responder supports (in
    /// a Reply). Without `peer_to_peer` these bits have no meaning.
    pub rtr: RtrKinds,
    /// IRD and ORD.
    pub depths: Depths,
}

impl Enhanced {
    /// Decodes the bytes. All 2^32 values are valid.
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

    /// Returns the bytes in network order.
    pub fn encode(self) -> [u8; ENHANCED_BYTES] {
        // RFC 6581 section 9.2 (MPA2-092): without bit A, the bits B, C and D are 0.
        let bit = |kind, bit| if self.peer_to_peer && self.rtr.contains(kind) { bit } else { 0 };
        let model = if self.peer_to_peer { 0x8000 } else { 0 };
        let first = (self.depths.ird & 0x3fff) | model | bit(RtrKinds::SEND, 0x4000);
        let second = (self.depths.ord & 0x3fff) | bit(RtrKinds::WRITE, 0x8000) | bit(RtrKinds::READ, 0x4000);
        // RFC 6581 section 9 (MPA2-047): the bytes are in network order.
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }
}

/// Why bytes cannot be the beginning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// The key is not one of the two valid keys.
    #[error("wrong key")]
    Key,
    /// The key is that of the other frame: both endpoints are initiators, or a responder received a Reply.
    #[error("the key of the other startup frame")]
    OtherKey,
    /// PD_Length is larger than 512.
    #[error("more than 512 bytes of private data")]
    PrivateDataLength,
    /// In revision 2 or above, S is set and PD_Length is less than 4, and the frame is no reject.
    #[error("an enhanced frame without its depths")]
    NoDepths,
}

/// The private data does not fit into the frame, which has room for 512 bytes, or for 508 bytes with depths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{bytes} bytes of private data, the limit is {limit}")]
pub struct PrivateDataTooLong {
    /// Number of bytes of private data.
    pub bytes: usize,
    /// Maximum number of bytes that fit.
    pub limit: usize,
}

/// The fields of an MPA Request or Reply (RFC 5044 section 7.1.1, RFC 6581 section 6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Request or Reply.
    pub kind: FrameKind,
    /// Bit M: whether the sender wants to receive markers.
    pub markers: bool,
    /// Bit C: whether the sender wants CRCs.
    pub crc: bool,
    /// Bit R: whether the connection is rejected. In a Request the bit is reserved.
    pub reject: bool,
    /// Rev: the MPA revision. [`Frame::parse`] accepts every value.
    pub revision: u8,
    /// The four bytes of enhanced data, if bit S is set in revision 2 or above. In revision 1 the bit is
    /// reserved.
    pub enhanced: Option<Enhanced>,
    /// The private data of the ULP, without the depths.
    pub private_data: PrivateData,
}

/// The result of [`Frame::parse`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The bytes are the beginning of a frame.
    NeedMore,
    /// The bytes begin with this frame, whose length in bytes is the second value.
    Frame(Frame, usize),
}

impl Frame {
    /// Parses a frame of `kind` at the front of `bytes`.
    ///
    /// A rejecting Reply of revision 2 without its depths is accepted, since Linux siw sends such a Reply.
    ///
    /// # Errors
    /// [`Malformed`] says why `bytes` cannot be the beginning of a frame. A wrong key is an error at its
    /// first wrong byte, and any other fault as soon as the header is complete. The caller checks the
    /// revision.
    pub fn parse(bytes: &[u8], kind: FrameKind) -> Result<Parsed, Malformed> {
        let key = &bytes[..bytes.len().min(KEY_BYTES)];
        // RFC 5044 sections 7.1.1 and 7.1.2 (MPA-149, MPA-151, MPA-196): a key that is not the key of `kind`
        // is an error. RFC 5044 section 7.1.2 (MPA-200): the key of the other kind shows that both endpoints
        // have the same role.
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
        // RFC 5044 sections 7.1.1 and 7.1.2 (MPA-169, MPA-172, MPA-202, MPA-205): more than 512 bytes of
        // private data make the frame malformed.
        if usize::from(length) > MAX_PRIVATE_DATA {
            return Err(Malformed::PrivateDataLength);
        }
        // RFC 5044 section 7.1.1 (MPA-163), RFC 6581 section 6 (MPA2-023): reserved bits are not examined.
        let reject = kind == FrameKind::Reply && flags & FLAG_R != 0;
        let enhanced = revision >= 2 && flags & FLAG_S != 0;
        if enhanced && usize::from(length) < ENHANCED_BYTES && !reject {
            return Err(Malformed::NoDepths);
        }
        // RFC 5044 section 7.1.2 (MPA-204): exactly PD_Length bytes are private data.
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
            // RFC 5044 section 7.1.2 (MPA-203): the array has room for MAX_PRIVATE_DATA bytes, the maximum
            // that passes the check above.
            private_data: for_ulp.iter().copied().collect(),
        };
        Ok(Parsed::Frame(frame, HEADER_BYTES + private_data.len()))
    }

    /// Returns the frame's bytes.
    ///
    /// # Errors
    /// [`PrivateDataTooLong`] if depths and private data together exceed 512 bytes.
    pub fn encode(&self) -> Result<FrameBytes, PrivateDataTooLong> {
        let depths = self.enhanced.map(Enhanced::encode);
        let depths = depths.as_ref().map_or(&[][..], |bytes| &bytes[..]);
        // RFC 5044 section 7.1.1 (MPA-172): at most 512 bytes of private data are sent.
        let limit = MAX_PRIVATE_DATA - depths.len();
        if self.private_data.len() > limit {
            return Err(PrivateDataTooLong { bytes: self.private_data.len(), limit });
        }
        // RFC 5044 section 7.1.1 (MPA-163), RFC 6581 section 6 (MPA2-022): the reserved bits are 0.
        let mut flags = 0;
        for (set, flag) in [
            (self.markers, FLAG_M),
            (self.crc, FLAG_C),
            (self.reject && self.kind == FrameKind::Reply, FLAG_R),
            (self.enhanced.is_some(), FLAG_S),
        ] {
            flags |= if set { flag } else { 0 };
        }
        // RFC 5044 section 7.1.1 (MPA-167): PD_Length is the number of bytes of private data.
        // RFC 6581 section 6 (MPA2-029): with S, the private data begins with the enhanced data.
        let length = (depths.len() + self.private_data.len()) as u16;
        let parts: [&[u8]; 5] =
            [self.kind.key(), &[flags, self.revision], &length.to_be_bytes(), depths, &self.private_data];
        Ok(parts.into_iter().flatten().copied().collect())
    }
}

/// Returns a copy of the ULP's private data. Fails if the private data has more than `limit` bytes.
pub(super) fn private_data(bytes: &[u8], limit: usize) -> Result<PrivateData, PrivateDataTooLong> {
    if bytes.len() > limit {
        return Err(PrivateDataTooLong { bytes: bytes.len(), limit });
    }
    Ok(bytes.iter().copied().collect())
}

#[cfg(test)]
mod tests;
