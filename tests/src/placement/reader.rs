//! Parses the FPDUs of a sender's stream (RFC 5044 section 4, RFC 5041 section 4), and determines where each
//! payload belongs.

/// Distance between the first bytes of two markers.
const INTERVAL: u64 = 512;

/// Where a payload belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// At this tagged offset of the receiver's memory.
    Tagged(u64),
    /// At offset `.1` of message number `.0` of queue 0. The first message has number 0.
    Message(u64, u32),
}

/// An FPDU with payload: a tagged FPDU, or an untagged FPDU of queue 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Stream offset at which the FPDU starts. `end`: the offset at which the FPDU ends. Both offsets include
    /// the markers before them.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) place: Place,
    /// Length in bytes of the payload.
    pub(super) bytes: usize,
    /// Whether the FPDU is the last FPDU of its message.
    pub(super) last: bool,
}

/// Parses a stream as it is sent.
#[derive(Debug)]
pub(super) struct Reader {
    markers: bool,
    /// Number of bytes read.
    pos: u64,
    /// Stream offset of the first FPDU, once the startup frame is complete.
    origin: Option<u64>,
    /// The bytes read so far of a startup frame, or of an FPDU without its markers.
    body: Vec<u8>,
    /// Stream offset of the first byte of `body`.
    start: u64,
}

impl Reader {
    pub(super) fn new(markers: bool) -> Self {
        Self { markers, pos: 0, origin: None, body: Vec::new(), start: 0 }
    }

    /// Returns the number of bytes read so far.
    pub(super) fn pos(&self) -> u64 {
        self.pos
    }

    /// Parses further bytes. Appends to `out` the FPDUs whose payload is placed: tagged FPDUs, and untagged
    /// FPDUs of queue 0.
    pub(super) fn read(&mut self, bytes: &[u8], out: &mut Vec<Piece>) {
        for &byte in bytes {
            let at = self.pos;
            self.pos += 1;
            let Some(origin) = self.origin else {
                self.body.push(byte);
                if self.body.len() >= 20
                    && self.body.len() == 20 + usize::from(u16::from_be_bytes([self.body[18], self.body[19]]))
                {
                    self.body.clear();
                    self.origin = Some(self.pos);
                    self.start = self.pos;
                }
                continue;
            };
            if self.markers && (at - origin) % INTERVAL < 4 {
                continue;
            }
            self.body.push(byte);
            if self.body.len() < 6 {
                continue;
            }
            let length = usize::from(u16::from_be_bytes([self.body[0], self.body[1]]));
            if self.body.len() == (2 + length).next_multiple_of(4) + 4 {
                out.extend(piece(self.start, self.pos, &self.body[2..2 + length]));
                self.body.clear();
                self.start = self.pos;
            }
        }
    }
}

/// Parses a ULPDU. Returns `None` if the ULPDU has no payload, or is an untagged segment of a queue other
/// than 0.
fn piece(start: u64, end: u64, ulpdu: &[u8]) -> Option<Piece> {
    const TAGGED: u8 = 0x80;
    const LAST: u8 = 0x40;
    let control = *ulpdu.first()?;
    let (place, header) = if control & TAGGED != 0 {
        (Place::Tagged(u64::from_be_bytes(*ulpdu.get(6..)?.first_chunk()?)), 14)
    } else {
        let word = |at: usize| Some(u32::from_be_bytes(*ulpdu.get(at..)?.first_chunk()?));
        let (queue, msn, offset) = (word(6)?, word(10)?, word(14)?);
        if queue != 0 {
            return None;
        }
        (Place::Message(u64::from(msn.wrapping_sub(1)), offset), 18)
    };
    let bytes = ulpdu.len() - header;
    (bytes > 0).then_some(Piece { start, end, place, bytes, last: control & LAST != 0 })
}

#[cfg(test)]
mod tests {
    use super::{Piece, Place, Reader};

    #[test]
    fn a_tagged_fpdu_is_found_behind_a_startup_frame_with_markers_and_without() {
        for markers in [false, true] {
            let mut stream = [&b"MPA ID Req Frame"[..], &[0x40, 2, 0, 1, 9]].concat();
            let header = [&[0xc1, 0x40, 0, 0, 0, 7][..], &4096_u64.to_be_bytes()].concat();
            let mut body = [&614_u16.to_be_bytes()[..], &header, &[5; 600]].concat();
            body.extend([0; 4]);
            if markers {
                // One marker is at the beginning, and one is behind the first 508 bytes.
                body.splice(508..508, [0; 4]);
                body.splice(0..0, [0; 4]);
            }
            stream.extend(&body);
            let (mut reader, mut pieces) = (Reader::new(markers), Vec::new());
            stream.chunks(100).for_each(|part| reader.read(part, &mut pieces));
            let end = 21 + 620 + if markers { 8 } else { 0 };
            let place = Place::Tagged(4096);
            assert_eq!(pieces, [Piece { start: 21, end, place, bytes: 600, last: true }]);
            assert_eq!(reader.pos(), end);
        }
    }
}
