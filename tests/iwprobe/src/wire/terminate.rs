//! The Terminate message (RFC 5040 section 4.8).

use super::Segment;

/// Layer, error type, error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u8, pub u8, pub u8);

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:x}/{:x}/{:02x}", self.0, self.1, self.2)
    }
}

/// The payload of a Terminate.
///
/// On little-endian machines, Linux's siw swaps the two halves of the first byte, and puts M, D and R into
/// the lowest three bits of the third byte, with M in the lowest bit. A single frame does not always show
/// which order the sender used, so there are functions for both orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// The whole payload.
    pub bytes: Vec<u8>,
}

impl Terminate {
    /// Returns the Terminate with this payload; `None` if the payload is too short for the control field.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        (payload.len() >= 4).then(|| Self { bytes: payload.to_vec() })
    }

    /// Returns the code in RFC 5040's bit order.
    pub fn code(&self) -> Code {
        Code(self.bytes[0] >> 4, self.bytes[0] & 0x0f, self.bytes[1])
    }

    /// Returns the code with the halves of the first byte swapped.
    pub fn swapped_code(&self) -> Code {
        let Code(layer, etype, code) = self.code();
        Code(etype, layer, code)
    }

    /// Whether the code is one of `codes`, in RFC 5040's bit order or with the halves of the first byte
    /// swapped, as siw sends them.
    pub fn is_any_of(&self, codes: &[Code]) -> bool {
        codes.contains(&self.code()) || codes.contains(&self.swapped_code())
    }

    /// Returns M, D and R from RFC 5040's position.
    pub fn header_control(&self) -> (bool, bool, bool) {
        let byte = self.bytes[2];
        (byte & 0x80 != 0, byte & 0x40 != 0, byte & 0x20 != 0)
    }

    /// Returns M, D and R from siw's position.
    pub fn swapped_header_control(&self) -> (bool, bool, bool) {
        let byte = self.bytes[2];
        (byte & 1 != 0, byte & 2 != 0, byte & 4 != 0)
    }

    /// Returns M, D and R from RFC 5040's position if one of them is set there, otherwise from siw's
    /// position.
    pub fn any_header_control(&self) -> (bool, bool, bool) {
        if self.bytes[2] & 0xe0 != 0 { self.header_control() } else { self.swapped_header_control() }
    }

    /// Returns the reserved bits.
    pub fn reserved(&self) -> u16 {
        u16::from_be_bytes([self.bytes[2], self.bytes[3]]) & 0x1fff
    }

    /// Returns the reserved bits. If M, D and R are clear at RFC 5040's position, the bits at siw's position
    /// do not count as reserved.
    pub fn any_reserved(&self) -> u16 {
        if self.bytes[2] & 0xe0 != 0 { self.reserved() } else { self.reserved() & !0x0700 }
    }

    /// Returns DDP Segment Length; `None` if the payload is too short for it.
    pub fn segment_length(&self) -> Option<u16> {
        self.bytes.get(4..6).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// Returns the echoed DDP header, or the part of it that is in the payload. The header's T flag
    /// determines its length.
    pub fn ddp_header(&self) -> &[u8] {
        let rest = self.bytes.get(6..).unwrap_or(&[]);
        let header = Segment { bytes: rest.to_vec() }.header_length();
        &rest[..header.min(rest.len())]
    }

    /// Returns the bytes after the echoed DDP header.
    pub fn rdmap_header(&self) -> &[u8] {
        &self.bytes[(6 + self.ddp_header().len()).min(self.bytes.len())..]
    }
}
