//! FPDUs and markers (RFC 5044 sections 4.1 to 4.4), sent and received. Sent FPDUs can have faults.

use super::crc32c;

/// Distance between markers, bytes: a marker is at every stream position that is a multiple of this number.
const INTERVAL: u64 = 512;

/// The faults of an FPDU that the probe sends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fault {
    /// Bits that are flipped in the CRC.
    pub crc_xor: u32,
    /// The value of each pad byte. The CRC covers this value.
    pub pad: u8,
    /// Bits that are flipped in each marker that points into this FPDU. The upper half of a marker is
    /// reserved, and the lower half is FPDUPTR. The CRC covers the flipped bits.
    pub marker_xor: u32,
    /// ULPDU_Length, if it is not the true length. The rest of the FPDU is unchanged.
    pub length: Option<u16>,
}

/// Frames each ULPDU as one FPDU.
#[derive(Clone, Copy, Debug)]
pub struct Framer {
    /// Whether the receiver asked for markers.
    pub markers: bool,
    /// Whether CRCs are in use. Without CRCs, the CRC field is filled with 0xdeadbeef.
    pub crc: bool,
    /// Number of bytes since the startup frame.
    pub position: u64,
}

impl Framer {
    /// Returns a framer at the start of full operation.
    pub fn new(markers: bool, crc: bool) -> Self {
        Self { markers, crc, position: 0 }
    }

    /// Returns the FPDU of `ulpdu`, with the requested faults.
    pub fn frame(&mut self, ulpdu: &[u8], fault: Fault) -> Vec<u8> {
        let length = fault.length.unwrap_or(ulpdu.len() as u16);
        let mut content = length.to_be_bytes().to_vec();
        content.extend(ulpdu);
        content.resize(content.len().next_multiple_of(4), fault.pad);
        let mut wire = Vec::new();
        // The position of the header: after a marker, if the FPDU begins with a marker.
        let header = self.position + if self.marker_due(0) { 4 } else { 0 };
        for byte in content {
            self.mark(&mut wire, header, fault.marker_xor);
            wire.push(byte);
        }
        self.mark(&mut wire, header, fault.marker_xor);
        let crc = if self.crc { crc32c(&wire) } else { 0xdead_beef };
        wire.extend((crc ^ fault.crc_xor).to_le_bytes());
        self.position += wire.len() as u64;
        wire
    }

    fn marker_due(&self, written: usize) -> bool {
        self.markers && (self.position + written as u64).is_multiple_of(INTERVAL)
    }

    fn mark(&self, wire: &mut Vec<u8>, header: u64, xor: u32) {
        if self.marker_due(wire.len()) {
            let here = self.position + wire.len() as u64;
            let distance = here.saturating_sub(header) as u32;
            wire.extend((distance ^ xor).to_be_bytes());
        }
    }
}

/// An FPDU that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fpdu {
    /// The DDP segment.
    pub ulpdu: Vec<u8>,
    /// What is wrong with the FPDU's framing.
    pub complaints: Vec<String>,
}

/// Finds the FPDUs in a stream of bytes.
#[derive(Clone, Debug)]
pub struct Deframer {
    markers: bool,
    crc: bool,
    /// Stream position of the first byte of `held`.
    position: u64,
    held: Vec<u8>,
}

impl Deframer {
    /// Returns a deframer at the start of full operation.
    pub fn new(markers: bool, crc: bool) -> Self {
        Self { markers, crc, position: 0, held: Vec::new() }
    }

    /// Returns a deframer whose first byte is at `position` of the stream.
    #[must_use]
    pub fn starting_at(self, position: u64) -> Self {
        Self { position, ..self }
    }

    /// Adds received bytes, in any portions.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.extend(bytes);
    }

    /// Whether no bytes of an unfinished FPDU are left.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Returns the next whole FPDU, or `None` if more bytes are needed.
    pub fn next_fpdu(&mut self) -> Option<Fpdu> {
        let mut cursor = Cursor { frame: self, at: 0, header: None, complaints: Vec::new() };
        let length = u16::from_be_bytes([cursor.byte()?, cursor.byte()?]);
        let mut ulpdu = Vec::with_capacity(usize::from(length));
        for _ in 0..length {
            ulpdu.push(cursor.byte()?);
        }
        let pad = (usize::from(length) + 2).next_multiple_of(4) - usize::from(length) - 2;
        for _ in 0..pad {
            if cursor.byte()? != 0 {
                cursor.complaints.push("a pad byte is not zero".into());
            }
        }
        cursor.marker()?;
        let (covered, mut complaints) = (cursor.at, cursor.complaints);
        let field = u32::from_le_bytes(*self.held.get(covered..)?.first_chunk()?);
        let expected = crc32c(&self.held[..covered]);
        if self.crc && field != expected {
            complaints.push(format!("CRC {field:08x}, computed {expected:08x}"));
        }
        self.held.drain(..covered + 4);
        self.position += covered as u64 + 4;
        Some(Fpdu { ulpdu, complaints })
    }
}

/// Reads the bytes of an FPDU one by one, and skips markers.
struct Cursor<'a> {
    frame: &'a Deframer,
    at: usize,
    header: Option<usize>,
    complaints: Vec<String>,
}

impl Cursor<'_> {
    fn marker(&mut self) -> Option<()> {
        let due = self.frame.markers && (self.frame.position + self.at as u64).is_multiple_of(INTERVAL);
        if due {
            let bytes = *self.frame.held.get(self.at..)?.first_chunk::<4>()?;
            let expected = self.header.map_or(0, |header| (self.at - header) as u32);
            if u32::from_be_bytes(bytes) != expected {
                self.complaints.push(format!("marker {bytes:02x?}, expected {expected:08x}"));
            }
            self.at += 4;
        }
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        self.marker()?;
        self.header.get_or_insert(self.at);
        let byte = *self.frame.held.get(self.at)?;
        self.at += 1;
        Some(byte)
    }
}
