//! Parses a sender's stream as MPA defines it (RFC 5044 sections 4 and 7.1): the ends of the startup frame
//! and of each FPDU, the marker pointers, the CRCs. The parser reads byte by byte, and shares no code with
//! the framer under test.

use std::collections::BTreeMap;

/// Distance between the first bytes of two markers.
const INTERVAL: u64 = 512;

/// The state of the parser.
#[derive(Debug)]
enum Reading {
    /// The startup frame, with the bytes read so far.
    Startup(Vec<u8>),
    /// FPDUs. `body` is the current FPDU without its markers, and `covered` is the current FPDU with its
    /// markers.
    Fpdus { start: u64, header: u64, body: Vec<u8>, covered: Vec<u8>, marker: Vec<u8> },
}

/// The parser of one direction.
#[derive(Debug)]
pub(super) struct Parser {
    pos: u64,
    reading: Reading,
    /// Whether the startup frame asks for markers and for CRCs, once it is complete.
    asked: Option<(bool, bool)>,
    /// Number of Read Requests and Atomic Requests so far (RFC 5040 section 4.1, RFC 7306 section 4).
    requests: u64,
    /// Number of Read Requests and Atomic Requests before each message to queue 0, by the MSN of the message.
    before: BTreeMap<u32, u64>,
    /// The MSNs of the peer's messages for which there was no receive request. Each such message, and all
    /// requests after the message until the peer resumes, are dropped.
    refusals: Vec<u32>,
    /// The value of `requests` when this side resumed, for each refusal of the peer.
    resumed: Vec<u64>,
    /// Number of complete responses to requests of the peer.
    answers: u64,
}

/// A message of queue 4 (`iwarp/src/stream/ib_profile/message.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProfileMessage {
    /// There was no receive request for the message to queue 0 with this MSN.
    NotReady(u32),
    /// The requests that the peer has dropped follow.
    Resume,
}

/// The settings of a direction that follow from both startup frames.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MpaSettings {
    /// Whether this direction has markers.
    pub(super) markers: bool,
    /// Whether CRCs are used.
    pub(super) crc: bool,
}

impl Default for Parser {
    fn default() -> Self {
        Self {
            pos: 0,
            reading: Reading::Startup(Vec::new()),
            asked: None,
            requests: 0,
            before: BTreeMap::new(),
            refusals: Vec::new(),
            resumed: Vec::new(),
            answers: 0,
        }
    }
}

impl Parser {
    /// Returns whether this side's startup frame asks for markers and for CRCs; `None` until the frame is
    /// complete.
    pub(super) fn asked(&self) -> Option<(bool, bool)> {
        self.asked
    }

    /// Returns the number of requests of this side that the peer has neither answered nor dropped. Dropped
    /// requests count until this side begins to send them again.
    pub(super) fn open_requests(&self, peer: &Self) -> u64 {
        let dropped = self.resumed.iter().zip(&peer.refusals).map(|(sent, msn)| {
            let kept = self.before.get(msn).copied().unwrap_or_default();
            sent - kept
        });
        self.requests.saturating_sub(peer.answers + dropped.sum::<u64>())
    }

    /// Parses further bytes. Returns the offsets at which a startup frame or FPDU ends.
    ///
    /// # Errors
    /// A description of the error in the stream.
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
                    match profile_message(body) {
                        Some(ProfileMessage::NotReady(msn)) => self.refusals.push(msn),
                        Some(ProfileMessage::Resume) => self.resumed.push(self.requests),
                        None => {}
                    }
                    if let Some(msn) = send_begins(body) {
                        self.before.insert(msn, self.requests);
                    }
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

/// Returns the 32 bits at offset `at` of an FPDU; `None` for a tagged message.
fn word(fpdu: &[u8], at: usize) -> Option<u32> {
    if fpdu.get(2)? & 0x80 != 0 {
        return None;
    }
    fpdu.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

fn profile_message(fpdu: &[u8]) -> Option<ProfileMessage> {
    let kind = word(fpdu, 4)?;
    if word(fpdu, 8)? != 4 || fpdu.get(3)? & 0x0f != 15 {
        return None;
    }
    match kind {
        2 => word(fpdu, 24).map(ProfileMessage::NotReady),
        4 => Some(ProfileMessage::Resume),
        _ => None,
    }
}

/// Returns the MSN of the message to queue 0 that begins with this FPDU, or `None` if no such message begins
/// here.
fn send_begins(fpdu: &[u8]) -> Option<u32> {
    let begins = word(fpdu, 8)? == 0 && word(fpdu, 16)? == 0;
    if begins { word(fpdu, 12) } else { None }
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

    /// Requests that the peer has dropped no longer count as open once this side has begun to send them
    /// again. Only requests after the refused message are dropped.
    #[test]
    fn requests_that_are_sent_again_count_once() {
        let untagged = |opcode: u8, kind: u8, qn: u8, msn: u8| {
            let head = [0x41, 0x40 | opcode, 0, 0, 0, kind, 0, 0, 0, qn, 0, 0, 0, msn, 0, 0, 0, 0];
            fpdu(&[&head[..], &[0, 0, 0, 0, 0, 0, 0, 7]].concat())
        };
        let settings = MpaSettings { markers: false, crc: true };
        let [mut own, mut peer] = [Parser::default(), Parser::default()];
        own.read(&startup(0x40), settings).unwrap();
        peer.read(&startup(0x40), settings).unwrap();
        let (read, send) = (untagged(1, 0, 1, 1), |msn| untagged(3, 0, 0, msn));
        for (bytes, open) in [
            (read.clone(), 1),
            (send(7), 1),
            (read.clone(), 2),
            (send(8), 2),
            (read.clone(), 3),
            (untagged(15, 4, 3, 1), 3),
            (untagged(0, 4, 4, 1), 3),
        ] {
            own.read(&bytes, settings).unwrap();
            assert_eq!(own.open_requests(&peer), open);
        }
        peer.read(&untagged(15, 2, 4, 1), settings).unwrap();
        assert_eq!(own.open_requests(&peer), 3, "it has not begun again");
        own.read(&untagged(15, 4, 4, 1), settings).unwrap();
        assert_eq!(own.open_requests(&peer), 1, "the first one is before the message 7");
        own.read(&[send(9), read].concat(), settings).unwrap();
        assert_eq!(own.open_requests(&peer), 2);
    }

    #[test]
    fn a_marker_must_point_to_the_header() {
        let settings = MpaSettings { markers: true, crc: true };
        for (points, right) in [(508_u16, true), (504, false)] {
            let mut parser = Parser::default();
            parser.read(&startup(0x40), settings).unwrap();
            // The stream begins with a marker. The FPDU after it contains the second marker.
            let mut bytes = vec![0; 4];
            bytes.extend([600_u16.to_be_bytes().to_vec(), vec![9; 506]].concat());
            bytes.extend([[0, 0], points.to_be_bytes()].concat());
            bytes.extend([vec![9; 94], vec![0; 2]].concat());
            bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
            assert_eq!(parser.read(&bytes, settings).is_ok(), right, "{points}");
        }
    }
}
