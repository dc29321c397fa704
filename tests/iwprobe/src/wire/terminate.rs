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

/// A Terminate's payload, taken apart by its own bits.
///
/// Linux's siw on little-endian machines has the two halves of the first octet swapped and M, D, R at the low end of the
/// third, M lowest. Both readings are kept: one frame alone cannot always tell which was meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// All of it.
    pub octets: Vec<u8>,
}

impl Terminate {
    /// Takes a payload; `None` when it is too short for the control field.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        (payload.len() >= 4).then(|| Self { octets: payload.to_vec() })
    }

    /// What it says in RFC 5040's bit order.
    pub fn code(&self) -> Code {
        Code(self.octets[0] >> 4, self.octets[0] & 0x0f, self.octets[1])
    }

    /// What it says with the halves of the first octet swapped.
    pub fn swapped_code(&self) -> Code {
        let Code(layer, etype, code) = self.code();
        Code(etype, layer, code)
    }

    /// M, D and R where RFC 5040 has them.
    pub fn header_control(&self) -> (bool, bool, bool) {
        let octet = self.octets[2];
        (octet & 0x80 != 0, octet & 0x40 != 0, octet & 0x20 != 0)
    }

    /// M, D and R where siw has them.
    pub fn swapped_header_control(&self) -> (bool, bool, bool) {
        let octet = self.octets[2];
        (octet & 1 != 0, octet & 2 != 0, octet & 4 != 0)
    }

    /// M, D and R in whichever order they are there.
    pub fn any_header_control(&self) -> (bool, bool, bool) {
        if self.octets[2] & 0xe0 != 0 { self.header_control() } else { self.swapped_header_control() }
    }

    /// The reserved bits.
    pub fn reserved(&self) -> u16 {
        u16::from_be_bytes([self.octets[2], self.octets[3]]) & 0x1fff
    }

    /// The same without M, D and R where siw has them.
    pub fn any_reserved(&self) -> u16 {
        if self.octets[2] & 0xe0 != 0 { self.reserved() } else { self.reserved() & !0x0700 }
    }

    /// DDP Segment Length, where there are octets for it.
    pub fn segment_length(&self) -> Option<u16> {
        self.octets.get(4..6).map(|octets| u16::from_be_bytes([octets[0], octets[1]]))
    }

    /// The echoed DDP header (by its own T bit), as far as there are octets.
    pub fn ddp_header(&self) -> &[u8] {
        let rest = self.octets.get(6..).unwrap_or(&[]);
        let header = Segment { octets: rest.to_vec() }.header_length();
        &rest[..header.min(rest.len())]
    }

    /// What follows the echoed DDP header.
    pub fn rdmap_header(&self) -> &[u8] {
        &self.octets[(6 + self.ddp_header().len()).min(self.octets.len())..]
    }
}
