//! Frames FPDUs of Writes into a socket's send buffer, and places them from its receive buffer, without a
//! copy in between.

use benches::errors::Error;
use iwarp::ddp::{Header, Segmenter, TaggedHeader};
use iwarp::memory::Stag;
use iwarp::mpa::{CRC_BYTES, Crc32c, Framer, LENGTH_BYTES, fpdu_bytes};
use iwarp::rdmap::Opcode;
use smoltcp::socket::tcp::Socket;

/// The one region of the receiver.
const STAG: Stag = Stag(0x100);

/// RDMAP version 1, before the opcode (RFC 5040 section 4.1).
const RDMAP_VERSION: u8 = 0x40;

/// Sends one message repeatedly.
pub(super) struct Sender {
    framer: Framer,
    mulpdu: usize,
    message: Vec<u8>,
    segmenter: Segmenter,
    /// Messages that have not begun; `None`: unlimited.
    left: Option<u64>,
    sent_bytes: u64,
    /// An FPDU that is not contiguous in the socket's buffer.
    apart: Vec<u8>,
}

impl Sender {
    /// A sender whose FPDUs fit segments of `emss` bytes.
    pub(super) fn new(message: Vec<u8>, emss: usize) -> Self {
        let framer = Framer::new(false, true);
        let mut segmenter = Segmenter::tagged(0);
        // No message is in progress.
        segmenter.next(u32::MAX);
        Self {
            mulpdu: framer.mulpdu(emss),
            framer,
            message,
            segmenter,
            left: Some(0),
            sent_bytes: 0,
            apart: Vec::with_capacity(1 << 16),
        }
    }

    pub(super) fn message_bytes(&self) -> usize {
        self.message.len()
    }

    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Sends without limit.
    pub(super) fn resume(&mut self) {
        self.left = None;
    }

    /// Begins no further message.
    pub(super) fn stop_at_end(&mut self) {
        self.left = Some(0);
    }

    /// Sends `message` once, after the message in progress.
    pub(super) fn begin(&mut self, message: Vec<u8>) {
        self.message = message;
        self.left = Some(1);
    }

    /// Whether all messages are sent.
    pub(super) fn is_done(&self) -> bool {
        self.left == Some(0) && self.segmenter.is_done()
    }

    /// Frames as many FPDUs as `socket` has space for.
    pub(super) fn fill(&mut self, socket: &mut Socket<'_>) -> Result<(), Error> {
        if !socket.may_send() {
            return Ok(());
        }
        let failed = |error: smoltcp::socket::tcp::SendError| Error::Exchange(error.to_string());
        while self.begin_next() {
            let Some(next) = self.segmenter.peek(self.mulpdu as u32) else { break };
            let wire = self.framer.wire_len(TaggedHeader::LEN + next.len as usize);
            if socket.send_capacity() - socket.send_queue() < wire {
                break;
            }
            let framed = socket
                .send(|room| match room.get_mut(..wire) {
                    Some(room) => {
                        self.frame(room);
                        (wire, true)
                    }
                    None => (0, false),
                })
                .map_err(failed)?;
            if !framed {
                let mut apart = std::mem::take(&mut self.apart);
                apart.resize(wire, 0);
                self.frame(&mut apart);
                let taken = socket.send_slice(&apart).map_err(failed)?;
                debug_assert_eq!(taken, wire, "there was space");
                self.apart = apart;
            }
        }
        Ok(())
    }

    /// Begins the next message if none is in progress. Returns whether there is one.
    fn begin_next(&mut self) -> bool {
        if self.segmenter.is_done() {
            match &mut self.left {
                Some(0) => return false,
                Some(left) => *left -= 1,
                None => {}
            }
            self.segmenter = Segmenter::tagged(self.message.len() as u32);
        }
        true
    }

    /// Frames the next FPDU into `room`, which has exactly its length.
    fn frame(&mut self, room: &mut [u8]) {
        let Some(segment) = self.segmenter.next(self.mulpdu as u32) else { return };
        let header = TaggedHeader {
            last: segment.last,
            rsvd_ulp: RDMAP_VERSION | Opcode::Write as u8,
            stag: STAG,
            to: u64::from(segment.offset),
        };
        let (at, bytes) = (segment.offset as usize, segment.len as usize);
        let mut writer = self.framer.begin(room, TaggedHeader::LEN + bytes);
        writer.put(&header.to_bytes());
        writer.put(&self.message[at..at + bytes]);
        writer.finish();
        self.sent_bytes += bytes as u64;
    }
}

/// Places Writes into one buffer.
pub(super) struct Receiver {
    target: Vec<u8>,
    placed_bytes: u64,
    /// The beginning of an FPDU whose rest is at the front of the socket's buffer.
    apart: Vec<u8>,
}

impl Receiver {
    pub(super) fn new(bytes: usize) -> Self {
        Self { target: vec![0; bytes], placed_bytes: 0, apart: Vec::with_capacity(1 << 17) }
    }

    pub(super) fn placed(&self) -> &[u8] {
        &self.target
    }

    /// Bytes placed so far.
    pub(super) fn placed_bytes(&self) -> u64 {
        self.placed_bytes
    }

    pub(super) fn clear(&mut self) {
        self.target.fill(0);
    }

    /// Receives all whole FPDUs from `socket`. Returns whether there was one.
    pub(super) fn drain(&mut self, socket: &mut Socket<'_>) -> Result<bool, Error> {
        let mut any = false;
        while socket.can_recv() {
            let queued = socket.recv_queue();
            let taken = socket
                .recv(|bytes| {
                    let taken = self.take(bytes, queued > bytes.len());
                    (taken.as_ref().map_or(0, |&taken| taken), taken)
                })
                .map_err(|error| Error::Exchange(error.to_string()))??;
            if taken == 0 {
                break;
            }
            any = true;
        }
        Ok(any)
    }

    /// Receives FPDUs from `bytes`. With `goes_on` it consumes all bytes, as the stream continues in another
    /// slice. Returns how many bytes it consumed.
    fn take(&mut self, bytes: &[u8], goes_on: bool) -> Result<usize, Error> {
        let mut at = 0;
        if !self.apart.is_empty() {
            at = self.complete(bytes)?;
        }
        while let Some(fpdu) = first_fpdu(&bytes[at..]) {
            at += fpdu.len();
            self.place(fpdu)?;
        }
        if goes_on {
            self.apart.extend_from_slice(&bytes[at..]);
            at = bytes.len();
        }
        Ok(at)
    }

    /// Completes the FPDU that began in another slice, if all of it has arrived. Returns how many bytes that
    /// took.
    fn complete(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let before = self.apart.len();
        let mut apart = std::mem::take(&mut self.apart);
        // No FPDU is longer than its length field allows.
        apart.extend_from_slice(&bytes[..bytes.len().min(fpdu_bytes(usize::from(u16::MAX)))]);
        let taken = match first_fpdu(&apart) {
            Some(fpdu) => {
                self.place(fpdu)?;
                let taken = fpdu.len() - before;
                apart.clear();
                taken
            }
            None => {
                let taken = apart.len() - before;
                self.apart = apart;
                return Ok(taken);
            }
        };
        self.apart = apart;
        Ok(taken)
    }

    /// Checks an FPDU and places its payload.
    fn place(&mut self, fpdu: &[u8]) -> Result<(), Error> {
        let wrong = |what: &str| Error::Exchange(format!("smoltcp: {what}"));
        let (summed, field) = fpdu.split_at(fpdu.len() - CRC_BYTES);
        let mut crc = Crc32c::new();
        crc.update(summed);
        if field != crc.field() {
            return Err(wrong("an FPDU has a wrong CRC"));
        }
        let ulpdu = &summed[LENGTH_BYTES..LENGTH_BYTES + ulpdu_bytes(summed).unwrap_or(0)];
        let header = match Header::parse(ulpdu) {
            Ok(Header::Tagged(header)) if header.stag == STAG => header,
            _ => return Err(wrong("an FPDU is not a Write")),
        };
        let payload = &ulpdu[TaggedHeader::LEN..];
        let at = header.to as usize;
        let place =
            self.target.get_mut(at..at + payload.len()).ok_or_else(|| wrong("a Write is out of bounds"))?;
        place.copy_from_slice(payload);
        self.placed_bytes += payload.len() as u64;
        Ok(())
    }
}

/// The value of the length field at the front.
fn ulpdu_bytes(bytes: &[u8]) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(*bytes.first_chunk()?)))
}

/// The FPDU at the front of `bytes`, if all of it has arrived.
fn first_fpdu(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(..fpdu_bytes(ulpdu_bytes(bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair::pattern;

    /// A message as FPDUs.
    fn stream(message: &[u8]) -> Vec<u8> {
        let mut sender = Sender::new(message.to_vec(), 1460);
        sender.begin(message.to_vec());
        let mut stream = Vec::new();
        while sender.begin_next() {
            let Some(next) = sender.segmenter.peek(sender.mulpdu as u32) else { break };
            let from = stream.len();
            stream.resize(from + sender.framer.wire_len(TaggedHeader::LEN + next.len as usize), 0);
            sender.frame(&mut stream[from..]);
        }
        stream
    }

    #[test]
    fn a_message_arrives_however_its_bytes_lie() {
        let message = pattern::bytes(9, 5_000);
        let stream = stream(&message);
        for cut in 0..=stream.len() {
            let mut receiver = Receiver::new(message.len());
            let (a, b) = stream.split_at(cut);
            assert_eq!(receiver.take(a, true).unwrap(), a.len());
            assert_eq!(receiver.take(b, false).unwrap(), b.len(), "{cut}");
            assert_eq!(receiver.placed(), message, "{cut}");
        }
    }

    #[test]
    fn what_is_not_whole_stays_in_the_socket() {
        let message = pattern::bytes(9, 2_000);
        let stream = stream(&message);
        let mut receiver = Receiver::new(message.len());
        let taken = receiver.take(&stream[..1_500], false).unwrap();
        assert!(taken < 1_500 && receiver.placed_bytes() > 0, "{taken}");
        assert_eq!(receiver.take(&stream[taken..], false).unwrap(), stream.len() - taken);
        assert_eq!(receiver.placed(), message);
    }

    #[test]
    fn a_turned_bit_is_noticed() {
        let message = pattern::bytes(9, 2_000);
        for at in [0, 1, 5, 100, 1_400] {
            let mut stream = stream(&message);
            stream[at] ^= 1;
            let mut receiver = Receiver::new(message.len());
            let placed_all = receiver.take(&stream, false).is_ok_and(|_| receiver.placed() == message);
            assert!(!placed_all, "{at}");
        }
    }
}
