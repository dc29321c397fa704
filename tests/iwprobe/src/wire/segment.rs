//! DDP segments and the RDMAP fields in them (RFC 5041 section 4, RFC 5040 section 4).

use super::Terminate;

/// RDMAP opcodes.
pub mod opcode {
    /// RDMA Write.
    pub const WRITE: u8 = 0;
    /// RDMA Read Request.
    pub const READ_REQUEST: u8 = 1;
    /// RDMA Read Response.
    pub const READ_RESPONSE: u8 = 2;
    /// Send.
    pub const SEND: u8 = 3;
    /// Send with Invalidate.
    pub const SEND_INVALIDATE: u8 = 4;
    /// Send with Solicited Event.
    pub const SEND_SE: u8 = 5;
    /// Send with Solicited Event and Invalidate.
    pub const SEND_SE_INVALIDATE: u8 = 6;
    /// Terminate.
    pub const TERMINATE: u8 = 7;
    /// Immediate Data (RFC 7306).
    pub const IMMEDIATE: u8 = 8;
    /// Immediate Data with Solicited Event (RFC 7306).
    pub const IMMEDIATE_SE: u8 = 9;
    /// Atomic Request (RFC 7306).
    pub const ATOMIC_REQUEST: u8 = 10;
    /// Atomic Response (RFC 7306).
    pub const ATOMIC_RESPONSE: u8 = 11;
}

const TAGGED_HEADER: usize = 14;
const UNTAGGED_HEADER: usize = 18;

/// One DDP segment: its bytes, with functions that return the fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The whole segment.
    pub bytes: Vec<u8>,
}

/// The header of an RDMA Read Request (RFC 5040 section 4.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadRequest {
    /// STag of the buffer for the response.
    pub sink_stag: u32,
    /// Tagged offset in the buffer for the response.
    pub sink_to: u64,
    /// Number of requested bytes.
    pub size: u32,
    /// STag of the buffer to read.
    pub source_stag: u32,
    /// Tagged offset in the buffer to read.
    pub source_to: u64,
}

impl ReadRequest {
    /// Returns the 28 bytes of the header.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.sink_stag.to_be_bytes().to_vec();
        bytes.extend(self.sink_to.to_be_bytes());
        bytes.extend(self.size.to_be_bytes());
        bytes.extend(self.source_stag.to_be_bytes());
        bytes.extend(self.source_to.to_be_bytes());
        bytes
    }

    /// Parses the first 28 bytes of `bytes`; `None` if there are fewer bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<28>()?;
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        Some(Self {
            sink_stag: word(0),
            sink_to: long(4),
            size: word(12),
            source_stag: word(16),
            source_to: long(20),
        })
    }
}

impl Segment {
    /// Returns a tagged message of one segment.
    pub fn tagged(opcode: u8, stag: u32, to: u64, payload: &[u8]) -> Self {
        let mut bytes = vec![0xc1, 0x40 | opcode];
        bytes.extend(stag.to_be_bytes());
        bytes.extend(to.to_be_bytes());
        bytes.extend(payload);
        Self { bytes }
    }

    /// Returns an untagged message of one segment.
    pub fn untagged(opcode: u8, qn: u32, msn: u32, payload: &[u8]) -> Self {
        let mut bytes = vec![0x41, 0x40 | opcode, 0, 0, 0, 0];
        bytes.extend(qn.to_be_bytes());
        bytes.extend(msn.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        Self { bytes }
    }

    /// Returns an RDMA Write.
    pub fn write(stag: u32, to: u64, payload: &[u8]) -> Self {
        Self::tagged(opcode::WRITE, stag, to, payload)
    }

    /// Returns a Send.
    pub fn send(msn: u32, payload: &[u8]) -> Self {
        Self::untagged(opcode::SEND, 0, msn, payload)
    }

    /// Returns an RDMA Read Request.
    pub fn read_request(msn: u32, request: &ReadRequest) -> Self {
        Self::untagged(opcode::READ_REQUEST, 1, msn, &request.encode())
    }

    /// Returns a Terminate with this payload.
    pub fn terminate(payload: &[u8]) -> Self {
        Self::untagged(opcode::TERMINATE, 2, 1, payload)
    }

    /// Replaces byte 0 (DDP control).
    #[must_use]
    pub fn control(self, byte: u8) -> Self {
        self.patched(0, &[byte])
    }

    /// Replaces byte 1 (RDMAP control).
    #[must_use]
    pub fn rdmap(self, byte: u8) -> Self {
        self.patched(1, &[byte])
    }

    /// Replaces the Invalidate STag of an untagged segment.
    #[must_use]
    pub fn invalidating(self, stag: u32) -> Self {
        self.patched(2, &stag.to_be_bytes())
    }

    /// Replaces the queue number of an untagged segment.
    #[must_use]
    pub fn on_queue(self, qn: u32) -> Self {
        self.patched(6, &qn.to_be_bytes())
    }

    /// Replaces the message offset of an untagged segment.
    #[must_use]
    pub fn at_offset(self, mo: u32) -> Self {
        self.patched(14, &mo.to_be_bytes())
    }

    /// Clears the L flag: more segments of the message follow.
    #[must_use]
    pub fn not_last(self) -> Self {
        let control = self.bytes[0] & !0x40;
        self.control(control)
    }

    fn patched(mut self, at: usize, bytes: &[u8]) -> Self {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self
    }

    /// Whether two segments are equal except for reserved bits, which [`watch`](crate::watch) checks.
    pub fn means(&self, other: &Self) -> bool {
        let bare = |segment: &Self| {
            let mut bytes = segment.bytes.clone();
            for (byte, used) in bytes.iter_mut().zip([0xc3, 0xcf]) {
                *byte &= used;
            }
            bytes
        };
        bare(self) == bare(other)
    }

    /// Returns DDP's control byte.
    pub fn control_byte(&self) -> u8 {
        self.bytes.first().copied().unwrap_or(0)
    }

    /// Returns RDMAP's control byte.
    pub fn rdmap_byte(&self) -> u8 {
        self.bytes.get(1).copied().unwrap_or(0)
    }

    /// Returns the opcode.
    pub fn opcode(&self) -> u8 {
        self.rdmap_byte() & 0x0f
    }

    /// Whether the T flag is set.
    pub fn is_tagged(&self) -> bool {
        self.control_byte() & 0x80 != 0
    }

    /// Whether the L flag is set.
    pub fn is_last(&self) -> bool {
        self.control_byte() & 0x40 != 0
    }

    /// Returns the length of the DDP header, bytes.
    pub fn header_length(&self) -> usize {
        if self.is_tagged() { TAGGED_HEADER } else { UNTAGGED_HEADER }
    }

    /// Whether the segment contains its whole DDP header.
    pub fn is_whole(&self) -> bool {
        self.bytes.len() >= self.header_length()
    }

    /// Returns the DDP header, or the whole segment if it is shorter than its header.
    pub fn header(&self) -> &[u8] {
        &self.bytes[..self.header_length().min(self.bytes.len())]
    }

    /// Returns the bytes after the DDP header.
    pub fn payload(&self) -> &[u8] {
        self.bytes.get(self.header_length()..).unwrap_or(&[])
    }

    fn word(&self, at: usize) -> u32 {
        self.bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u32::from_be_bytes(*bytes))
    }

    /// Returns the STag of a tagged segment, or the Invalidate STag of an untagged segment.
    pub fn stag(&self) -> u32 {
        self.word(2)
    }

    /// Returns the tagged offset.
    pub fn to(&self) -> u64 {
        u64::from(self.word(6)) << 32 | u64::from(self.word(10))
    }

    /// Returns the queue number.
    pub fn qn(&self) -> u32 {
        self.word(6)
    }

    /// Returns the message sequence number.
    pub fn msn(&self) -> u32 {
        self.word(10)
    }

    /// Returns the message offset.
    pub fn mo(&self) -> u32 {
        self.word(14)
    }

    /// Parses the payload as a Read Request, whatever the opcode is. Returns `None` if the payload is too
    /// short.
    pub fn as_read_request(&self) -> Option<ReadRequest> {
        ReadRequest::decode(self.payload())
    }

    /// Returns the Terminate that this segment is, or `None` if it is no Terminate with a whole control
    /// field.
    pub fn as_terminate(&self) -> Option<Terminate> {
        (self.opcode() == opcode::TERMINATE && !self.is_tagged())
            .then(|| Terminate::decode(self.payload()))?
    }
}
