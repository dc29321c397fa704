//! MPA Request and Reply frames (RFC 5044 section 7.1.1, RFC 6581 sections 6 and 9).

/// The key of a Request.
pub const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
/// The key of a Reply.
pub const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

/// Number of bytes before the private data.
const HEADER: usize = 20;

/// Flags of byte 16.
pub mod flag {
    /// The sender of the frame wants markers.
    pub const M: u8 = 0x80;
    /// The sender of the frame wants CRCs.
    pub const C: u8 = 0x40;
    /// The sender of the frame rejects the connection.
    pub const R: u8 = 0x20;
    /// The private data begins with depths and RTR kinds.
    pub const S: u8 = 0x10;
}

/// A startup frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Startup {
    /// The key, which tells a Request from a Reply.
    pub key: [u8; 16],
    /// Byte 16: flags of [`flag`].
    pub flags: u8,
    /// Byte 17: the MPA revision.
    pub revision: u8,
    /// PD_Length: the number of bytes of private data.
    pub length: u16,
    /// All private data, including the four bytes of RFC 6581.
    pub private: Vec<u8>,
}

/// The four bytes that RFC 6581 puts in front of the ULP's private data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// Flag A: peer-to-peer model.
    pub peer_to_peer: bool,
    /// Flag B: RTR by Send.
    pub by_send: bool,
    /// Flag C: RTR by Write.
    pub by_write: bool,
    /// Flag D: RTR by Read.
    pub by_read: bool,
    /// Maximum number of inbound Reads (14 bits).
    pub ird: u16,
    /// Maximum number of outbound Reads (14 bits).
    pub ord: u16,
}

impl Depths {
    /// The depth 0x3fff leaves the depth to the ULPs: MPA does not negotiate it (RFC 6581 section 9.1).
    pub const UNSAID: u16 = 0x3fff;

    /// Returns depths for the client-server model, without an RTR.
    pub fn new(ird: u16, ord: u16) -> Self {
        Self { ird, ord, ..Self::default() }
    }

    /// Returns the four bytes.
    pub fn encode(self) -> [u8; 4] {
        let bit = |set: bool, mask: u16| if set { mask } else { 0 };
        let first = bit(self.peer_to_peer, 0x8000) | bit(self.by_send, 0x4000) | self.ird & 0x3fff;
        let second = bit(self.by_write, 0x8000) | bit(self.by_read, 0x4000) | self.ord & 0x3fff;
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }

    /// Parses the four bytes.
    pub fn decode(bytes: [u8; 4]) -> Self {
        let [a, b, c, d] = bytes;
        let (first, second) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        Self {
            peer_to_peer: first & 0x8000 != 0,
            by_send: first & 0x4000 != 0,
            by_write: second & 0x8000 != 0,
            by_read: second & 0x4000 != 0,
            ird: first & 0x3fff,
            ord: second & 0x3fff,
        }
    }
}

impl Startup {
    /// Returns a frame of revision 1.
    pub fn plain(key: [u8; 16], flags: u8, private: &[u8]) -> Self {
        Self { key, flags, revision: 1, length: private.len() as u16, private: private.to_vec() }
    }

    /// Returns a frame of revision 2 with flag S set.
    pub fn enhanced(key: [u8; 16], flags: u8, depths: Depths, private: &[u8]) -> Self {
        let private = [&depths.encode(), private].concat();
        Self { key, flags: flags | flag::S, revision: 2, length: private.len() as u16, private }
    }

    /// Returns the bytes of the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.key.to_vec();
        bytes.extend([self.flags, self.revision]);
        bytes.extend(self.length.to_be_bytes());
        bytes.extend(&self.private);
        bytes
    }

    /// Parses a frame at the front of `bytes`. Returns the frame and its length, or `None` until the whole
    /// frame has arrived.
    pub fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let header = bytes.first_chunk::<HEADER>()?;
        let length = u16::from_be_bytes([header[18], header[19]]);
        let end = HEADER + usize::from(length);
        let frame = Self {
            key: header[..16].try_into().ok()?,
            flags: header[16],
            revision: header[17],
            length,
            private: bytes.get(HEADER..end)?.to_vec(),
        };
        Some((frame, end))
    }

    /// Whether flag `mask` is set.
    pub fn has(&self, mask: u8) -> bool {
        self.flags & mask != 0
    }

    /// Returns the depths, if the frame has depths.
    pub fn depths(&self) -> Option<Depths> {
        let bytes = self.private.first_chunk::<4>()?;
        (self.has(flag::S) && self.revision >= 2).then(|| Depths::decode(*bytes))
    }

    /// Returns the private data of the ULP.
    pub fn ulp_data(&self) -> &[u8] {
        if self.depths().is_some() { &self.private[4..] } else { &self.private }
    }
}
