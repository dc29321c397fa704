//! Parses a sender's stream as MPA defines it (RFC 5044 sections 4 and 7.1): the ends of the startup frame
//! and of each FPDU, the marker pointers, the CRCs. It reads byte by byte and shares no code with the framer
//! under test.

/// Bytes between markers.
const INTERVAL: u64 = 512;

/// Parser state.
#[derive(Debug)]
enum Reading {
    /// The startup frame, with the bytes read so far.
    Startup(Vec<u8>),
    /// FPDUs. `body` is the current one without its markers, `covered` with them.
    Fpdus { start: u64, header: u64, body: Vec<u8>, covered: Vec<u8>, marker: Vec<u8> },
}

/// The parser of one direction.
#[derive(Debug)]
pub(super) struct Parser {
    pos: u64,
    reading: Reading,
    /// The startup frame's requests for markers and CRC, once it is complete.
    asked: Option<(bool, bool)>,
    /// Read and atomic Requests so far (RFC 5040 section 4.1, RFC 7306 section 4).
    pub(super) requests: u64,
    /// Complete responses to Requests of the peer.
    pub(super) answers: u64,
}

/// The settings that follow from both startup frames.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MpaSettings {
    /// This direction has markers.
    pub(super) markers: bool,
    /// CRCs are used.
    pub(super) crc: bool,
}

impl Default for Parser {
    fn default() -> Self {
        Self { pos: 0, reading: Reading::Startup(Vec::new()), asked: None, requests: 0, answers: 0 }
    }
}

impl Parser {
    /// The requests of this side's startup frame for markers and CRC.
    pub(super) fn asked(&self) -> Option<(bool, bool)> {
        self.asked
    }

    /// Parses further bytes. Returns the offsets at which a startup frame or FPDU ends.
    ///
    /// # Errors
    /// The error in the stream.
    pub(super) fn read(&mut self, bytes: &[u8], settings: MpaSettings) -> Result<Vec<u64>, String> {
        let mut ends = Vec::new();
        for &byte in bytes {
            let at = self.pos;
            self.pos += 1;
            match &mut self.reading {
                Reading::Startup(frame) => {
                    frame.push(byte);
                    if frame.len() >= 20
                        && frame.len() == 20 + usize::from(u16::from_be_bytes([frame[18], frame[19]]))
                    {
                        if !frame.starts_with(b"MPA ID Re") {
                            return Err("the stream does not begin with an MPA startup frame".into());
                        }
                        self.asked = Some((frame[16] & 0x80 != 0, frame[16] & 0x40 != 0));
                        ends.push(self.pos);
                        let (body, covered, marker) = (Vec::new(), Vec::new(), Vec::new());
                        self.reading =
                            Reading::Fpdus { start: self.pos, header: self.pos, body, covered, marker };
                    }
                }
                Reading::Fpdus { start, header, body, covered, marker } => {
                    let place = at - *start;
                    if settings.markers && (place.is_multiple_of(INTERVAL) || !marker.is_empty()) {
                        marker.push(byte);
                        covered.push(byte);
                        if marker.len() == 4 {
                            let first = at - 3;
                            if body.is_empty() {
                                *header = at + 1;
                            }
                            let wanted = first.saturating_sub(*header);
                            let says = u64::from(u16::from_be_bytes([marker[2], marker[3]]) & 0xfffc);
                            if says != wanted {
                                return Err(format!(
                                    "the marker at offset {first} points back {says} bytes instead of {wanted}"
                                ));
                            }
                            marker.clear();
                        }
                        continue;
                    }
                    if body.is_empty() && covered.is_empty() {
                        *header = at;
                    }
                    body.push(byte);
                    covered.push(byte);
                    if body.len() < 6 {
                        continue;
                    }
                    let length = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
                    if body.len() < length.next_multiple_of(4) + 4 {
                        continue;
                    }
                    let crc = crc32c::crc32c(&covered[..covered.len() - 4]).to_le_bytes();
                    if settings.crc && covered[covered.len() - 4..] != crc {
                        return Err(format!("the FPDU whose header is at offset {header} has a wrong CRC"));
                    }
                    let (last, opcode) = (body[2] & 0x40 != 0, body[3] & 0x0f);
                    self.requests += u64::from(matches!(opcode, 1 | 10));
                    self.answers += u64::from(last && matches!(opcode, 2 | 11));
                    body.clear();
                    covered.clear();
                    *header = self.pos;
                    ends.push(self.pos);
                }
            }
        }
        Ok(ends)
    }
}

#[cfg(test)]
mod tests {
    use super::{MpaSettings, Parser};

    fn startup(flags: u8) -> Vec<u8> {
        let mut frame = b"MPA ID Req Frame".to_vec();
        frame.extend([flags, 2, 0, 3, 1, 2, 3]);
        frame
    }

    fn fpdu(ulpdu: &[u8]) -> Vec<u8> {
        let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
        bytes.extend_from_slice(ulpdu);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    #[test]
    fn ends_are_found_and_a_wrong_crc_is() {
        let mut parser = Parser::default();
        let settings = MpaSettings { markers: false, crc: true };
        assert_eq!(parser.read(&startup(0x40), settings), Ok(vec![23]));
        assert_eq!(parser.asked(), Some((false, true)));
        let mut one = fpdu(&[7; 5]);
        assert_eq!(parser.read(&one, settings), Ok(vec![23 + 12]));
        assert_eq!(parser.read(&one[..11], settings), Ok(vec![]));
        assert_eq!(parser.read(&one[11..], settings), Ok(vec![23 + 24]));
        one[3] ^= 1;
        assert!(parser.read(&one, settings).is_err());
    }

    #[test]
    fn a_marker_must_point_to_the_header() {
        let settings = MpaSettings { markers: true, crc: true };
        for (points, right) in [(508_u16, true), (504, false)] {
            let mut parser = Parser::default();
            parser.read(&startup(0x40), settings).unwrap();
            // A leading marker, then an FPDU that contains the second marker.
            let mut bytes = vec![0; 4];
            bytes.extend([600_u16.to_be_bytes().to_vec(), vec![9; 506]].concat());
            bytes.extend([[0, 0], points.to_be_bytes()].concat());
            bytes.extend([vec![9; 94], vec![0; 2]].concat());
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            assert_eq!(parser.read(&bytes, settings).is_ok(), right, "{points}");
        }
    }
}
