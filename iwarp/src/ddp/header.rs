//! The two DDP headers (RFC 5041 section 4): their fields and their layout on the wire.
//!
//! A parsed [`Header`] is complete and has version 1. DDP has no length field: the payload is the rest of the
//! ULPDU, and MPA gives the length of the ULPDU.

use arrayvec::ArrayVec;

use crate::memory::Stag;

/// Control bit T: the segment is tagged.
const TAGGED: u8 = 0x80;
/// Control bit L: the segment is the last of its message.
const L_BIT: u8 = 0x40;
/// Control bits DV: the DDP version.
const VERSION_MASK: u8 = 0x03;
/// DDP version 1, the only version that is defined.
const VERSION: u8 = 0x01;

/// The header of a tagged segment, 14 bytes: the sender names the buffer and the offset.
///
/// RFC 5041 section 4.2 (DDP-059): every tagged segment has this header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaggedHeader {
    /// Whether the segment is the last of its message.
    pub last: bool,
    /// The byte that DDP carries for its ULP: RDMAP's control byte.
    pub rsvd_ulp: u8,
    /// The STag of the buffer at the data sink.
    pub stag: Stag,
    /// Tagged offset of the first byte of payload.
    pub to: u64,
}

/// The header of an untagged segment, 18 bytes: the queue of the receiver determines the buffer.
///
/// RFC 5041 section 4.3 (DDP-076): every untagged segment has this header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UntaggedHeader {
    /// Whether the segment is the last of its message.
    pub last: bool,
    /// The bytes that DDP carries for its ULP: RDMAP's control byte and its Invalidate STag.
    pub rsvd_ulp: [u8; 5],
    /// Queue number.
    pub qn: u32,
    /// Message sequence number on that queue: 1, 2, ..., modulo 2^32.
    pub msn: u32,
    /// Message offset of the first byte of payload.
    pub mo: u32,
}

/// A DDP header: tagged or untagged, version 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// The header of a tagged segment, 14 bytes.
    Tagged(TaggedHeader),
    /// The header of an untagged segment, 18 bytes.
    Untagged(UntaggedHeader),
}

/// Why bytes are not a DDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The ULPDU is shorter than its DDP header. RFC 5041 has no error code for this fault.
    #[error("a ULPDU of {bytes} bytes is shorter than its DDP header")]
    Runt {
        /// Number of received bytes.
        bytes: usize,
    },
    /// The version is not 1.
    #[error("DDP version {version} is not 1")]
    Version {
        /// Whether the T bit is set, on which the error code depends.
        tagged: bool,
        /// The version in the header.
        version: u8,
    },
}

/// A header as integers. Each integer consists of consecutive bytes of the header, the most significant byte
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderWords {
    /// The first 6 bytes.
    pub first: u64,
    /// The 8 bytes after the first 6 bytes.
    pub second: u64,
    /// The last 4 bytes of an untagged header.
    pub third: Option<u32>,
}

impl TaggedHeader {
    /// Number of bytes on the wire.
    pub const LEN: usize = 14;

    /// The bit that is set in the first byte of the last segment of a message.
    pub const LAST: u8 = L_BIT;

    /// Returns the header on the wire (RFC 5041 section 4.2): big-endian, version 1.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let HeaderWords { first, second, .. } = self.to_words();
        let mut bytes = [0; Self::LEN];
        bytes[..6].copy_from_slice(&first.to_be_bytes()[2..]);
        bytes[6..].copy_from_slice(&second.to_be_bytes());
        bytes
    }

    /// Returns the header as integers.
    #[inline]
    pub const fn to_words(&self) -> HeaderWords {
        let Self { last, rsvd_ulp, stag, to } = *self;
        // RFC 5041 sections 4.1 and 4.2 (DDP-055, DDP-057, DDP-062, DDP-070): reserved bits are 0, DV is 1,
        // and RsvdULP and STag are the values of RDMAP.
        let control = TAGGED | last_bit(last) | VERSION;
        let [s0, s1, s2, s3] = stag.0.to_be_bytes();
        let first = u64::from_be_bytes([0, 0, control, rsvd_ulp, s0, s1, s2, s3]);
        HeaderWords { first, second: to, third: None }
    }

    fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [control, rsvd_ulp, rest @ ..] = *bytes;
        let [s0, s1, s2, s3, to @ ..] = rest;
        Self {
            last: control & L_BIT != 0,
            rsvd_ulp,
            stag: Stag(u32::from_be_bytes([s0, s1, s2, s3])),
            to: u64::from_be_bytes(to),
        }
    }
}

impl UntaggedHeader {
    /// Number of bytes on the wire.
    pub const LEN: usize = 18;

    /// Returns the header on the wire (RFC 5041 section 4.3): big-endian, version 1.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let HeaderWords { first, second, third } = self.to_words();
        let mut bytes = [0; Self::LEN];
        bytes[..6].copy_from_slice(&first.to_be_bytes()[2..]);
        bytes[6..14].copy_from_slice(&second.to_be_bytes());
        bytes[14..].copy_from_slice(&third.unwrap_or_default().to_be_bytes());
        bytes
    }

    /// Returns the header as integers.
    #[inline]
    pub const fn to_words(&self) -> HeaderWords {
        let Self { last, rsvd_ulp: [r0, r1, r2, r3, r4], qn, msn, mo } = *self;
        // RFC 5041 sections 4.1 and 4.3 (DDP-055, DDP-057, DDP-079): reserved bits are 0, DV is 1, and
        // RsvdULP has RDMAP's 40 bits.
        let control = last_bit(last) | VERSION;
        let first = u64::from_be_bytes([0, 0, control, r0, r1, r2, r3, r4]);
        HeaderWords { first, second: (qn as u64) << 32 | msn as u64, third: Some(mo) }
    }

    fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [control, r0, r1, r2, r3, r4, rest @ ..] = *bytes;
        let [q0, q1, q2, q3, m0, m1, m2, m3, mo @ ..] = rest;
        Self {
            last: control & L_BIT != 0,
            rsvd_ulp: [r0, r1, r2, r3, r4],
            qn: u32::from_be_bytes([q0, q1, q2, q3]),
            msn: u32::from_be_bytes([m0, m1, m2, m3]),
            mo: u32::from_be_bytes(mo),
        }
    }
}

impl Header {
    /// Number of bytes of the longer of the two headers. To parse a header, this number of bytes must be
    /// contiguous (or the whole ULPDU, if it is shorter).
    pub const MAX_LEN: usize = UntaggedHeader::LEN;

    /// Parses the header at the front of a ULPDU. Ignores the bytes after the header.
    ///
    /// `ulpdu` is the ULPDU or its first [`Header::MAX_LEN`] bytes.
    ///
    /// # Errors
    /// [`HeaderError::Runt`] if `ulpdu` is shorter than its header, whatever its version.
    /// [`HeaderError::Version`] if the version is not 1.
    pub fn parse(ulpdu: &[u8]) -> Result<Self, HeaderError> {
        // RFC 5041 section 4.4 (DDP-096): every segment has a whole DDP header.
        let runt = HeaderError::Runt { bytes: ulpdu.len() };
        let control = *ulpdu.first().ok_or(runt)?;
        let tagged = control & TAGGED != 0;
        let header = if tagged {
            Header::Tagged(TaggedHeader::parse(ulpdu.first_chunk().ok_or(runt)?))
        } else {
            Header::Untagged(UntaggedHeader::parse(ulpdu.first_chunk().ok_or(runt)?))
        };
        // RFC 5044 section C.1 (MPA-297): the peer's DDP version must be the version that this endpoint
        // sends.
        // RFC 5041 section 4.1 (DDP-056, DDP-058): the version must be 1, and the reserved bits are not
        // examined.
        match control & VERSION_MASK {
            VERSION => Ok(header),
            version => Err(HeaderError::Version { tagged, version }),
        }
    }

    /// Writes the header to the front of `out` and returns its length.
    ///
    /// # Panics
    /// Panics if `out` is shorter than [`Header::wire_len`].
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let bytes = self.to_bytes();
        out[..bytes.len()].copy_from_slice(&bytes);
        bytes.len()
    }

    /// Returns the bytes on the wire, 14 or 18 bytes.
    #[inline]
    pub fn to_bytes(&self) -> ArrayVec<u8, { Header::MAX_LEN }> {
        match self {
            Header::Tagged(h) => h.to_bytes().into_iter().collect(),
            Header::Untagged(h) => h.to_bytes().into_iter().collect(),
        }
    }

    /// Number of bytes on the wire: 14 or 18.
    pub fn wire_len(&self) -> usize {
        match self {
            Header::Tagged(_) => TaggedHeader::LEN,
            Header::Untagged(_) => UntaggedHeader::LEN,
        }
    }

    /// Whether the segment is tagged.
    pub fn is_tagged(&self) -> bool {
        matches!(self, Header::Tagged(_))
    }

    /// Whether the segment is the last of its message.
    pub fn last(&self) -> bool {
        match self {
            Header::Tagged(h) => h.last,
            Header::Untagged(h) => h.last,
        }
    }

    /// The first byte of RsvdULP in either header: RDMAP's version and opcode.
    ///
    /// RFC 5041 sections 4.2, 4.3 and 5.4 (DDP-064, DDP-081, DDP-141): DDP passes the RsvdULP of each segment
    /// to RDMAP, so RDMAP can use it at delivery.
    pub fn control_byte(&self) -> u8 {
        match self {
            Header::Tagged(h) => h.rsvd_ulp,
            Header::Untagged(h) => h.rsvd_ulp[0],
        }
    }
}

impl From<TaggedHeader> for Header {
    fn from(h: TaggedHeader) -> Self {
        Header::Tagged(h)
    }
}

impl From<UntaggedHeader> for Header {
    fn from(h: UntaggedHeader) -> Self {
        Header::Untagged(h)
    }
}

const fn last_bit(last: bool) -> u8 {
    if last { L_BIT } else { 0 }
}
