//! MPA Request and Reply frames (RFC 5044 section 7.1.1, RFC 6581 section 6 and 9).

/// "MPA ID Req Frame".
pub const REQUEST_KEY: [u8; 16] = *b"MPA ID Req Frame";
/// "MPA ID Rep Frame".
pub const REPLY_KEY: [u8; 16] = *b"MPA ID Rep Frame";

/// Bytes before the private data.
const HEADER: usize = 20;

/// Flags of byte 16.
pub mod flag {
    /// The sender of the frame wants markers.
    pub const M: u8 = 0x80;
    /// The sender of the frame wants CRCs.
    pub const C: u8 = 0x40;
    /// The connection is rejected.
    pub const R: u8 = 0x20;
    /// The private data begins with depths and RTR kinds.
    pub const S: u8 = 0x10;
}

/// A startup frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Startup {
    /// The kind of frame.
    pub key: [u8; 16],
    /// Byte 16: [`flag`].
    pub flags: u8,
    /// Byte 17.
    pub revision: u8,
    /// PD_Length.
    pub length: u16,
    /// All private data, the four bytes of RFC 6581 included.
    pub private: Vec<u8>,
}

/// The four bytes that RFC 6581 puts in front of the ULP's private data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths {
    /// A: peer-to-peer.
    pub peer_to_peer: bool,
    /// B: RTR by Send.
    pub by_send: bool,
    /// C: RTR by Write.
    pub by_write: bool,
    /// D: RTR by Read.
    pub by_read: bool,
    /// Inbound Reads, 14 bits.
    pub ird: u16,
    /// Outbound Reads, 14 bits.
    pub ord: u16,
}

impl Depths {
    /// 0x3fff: the ULPs agree on the depth (RFC 6581 section 9.1).
    pub const UNSAID: u16 = 0x3fff;

    /// Client-server.
    pub fn new(ird: u16, ord: u16) -> Self {
        Self { ird, ord, ..Self::default() }
    }

    /// The bytes.
    pub fn encode(self) -> [u8; 4] {
        let bit = |set: bool, mask: u16| if set { mask } else { 0 };
        let first = bit(self.peer_to_peer, 0x8000) | bit(self.by_send, 0x4000) | self.ird & 0x3fff;
        let second = bit(self.by_write, 0x8000) | bit(self.by_read, 0x4000) | self.ord & 0x3fff;
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }

    /// From the bytes.
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
    /// A frame of revision 1.
    pub fn plain(key: [u8; 16], flags: u8, private: &[u8]) -> Self {
        Self { key, flags, revision: 1, length: private.len() as u16, private: private.to_vec() }
    }

    /// A frame of revision 2 with S set.
    pub fn enhanced(key: [u8; 16], flags: u8, depths: Depths, private: &[u8]) -> Self {
        let private = [&depths.encode(), private].concat();
        Self { key, flags: flags | flag::S, revision: 2, length: private.len() as u16, private }
    }

    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.key.to_vec();
        bytes.extend([self.flags, self.revision]);
        bytes.extend(self.length.to_be_bytes());
        bytes.extend(&self.private);
        bytes
    }

    /// A whole frame at the front of `bytes`, with its length; `None` while it is not whole.
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

    /// The depths, if the frame is enhanced.
    pub fn depths(&self) -> Option<Depths> {
        let bytes = self.private.first_chunk::<4>()?;
        (self.has(flag::S) && self.revision >= 2).then(|| Depths::decode(*bytes))
    }

    /// The private data of the ULP.
    pub fn ulp_data(&self) -> &[u8] {
        if self.depths().is_some() { &self.private[4..] } else { &self.private }
    }
}
