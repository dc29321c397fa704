//! Writes as FPDUs in a byte stream, and their placement: the part of iWARP that does not depend on the TCP
//! below it. The baselines that are not uwarp use this module: smoltcp's sockets (`pair/smoltcp_sockets`) and
//! the kernel's sockets (`compare/kernel/writes.rs`).
//!
//! The crate `iwarp` provides the framing: MPA's length, pad and CRC32c, and DDP's tagged header. `iwarp`
//! computes the CRC of each FPDU while it copies the payload. The target checks the CRC, the STag and the
//! bounds before it places the payload. There are no markers, startup exchange, queue pairs, completions or
//! registered memory.

use benches::errors::Error;
use iwarp::ddp::{Header, Segmenter, TaggedHeader};
use iwarp::memory::Stag;
use iwarp::mpa::{CRC_BYTES, Crc32c, Framer, LENGTH_BYTES, fpdu_bytes};
use iwarp::rdmap::Opcode;

/// The STag of the only region of the target.
const STAG: Stag = Stag(0x100);

/// RDMAP's version 1 and the opcode of a Write (RFC 5040 section 4.1).
const WRITE: u8 = 0x40 | Opcode::Write as u8;

/// Sends one message repeatedly.
pub(crate) struct Writer {
    framer: Framer,
    mulpdu: usize,
    message: Vec<u8>,
    segmenter: Segmenter,
    /// Number of messages that have not begun. `None` means that the number is unlimited.
    left: Option<u64>,
    sent_bytes: u64,
}

impl Writer {
    /// Makes a sender whose FPDUs fit into segments of `emss` bytes.
    pub(crate) fn new(message: Vec<u8>, emss: usize) -> Self {
        let framer = Framer::new(false, true);
        let mut segmenter = Segmenter::tagged(0);
        // The segmenter is advanced to its end, so that no message is in progress.
        segmenter.next(u32::MAX);
        Self { mulpdu: framer.mulpdu(emss), framer, message, segmenter, left: Some(0), sent_bytes: 0 }
    }

    pub(crate) fn message_bytes(&self) -> usize {
        self.message.len()
    }

    pub(crate) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// From now on, sends the message again and again, without limit.
    pub(crate) fn resume(&mut self) {
        self.left = None;
    }

    /// From now on, begins no further message.
    pub(crate) fn stop_at_end(&mut self) {
        self.left = Some(0);
    }

    /// Sends `message` once, from now on. No other message may be in progress.
    pub(crate) fn begin(&mut self, message: Vec<u8>) {
        self.message = message;
        self.left = Some(1);
    }

    /// Sends the present message once more, after the message in progress.
    pub(crate) fn begin_again(&mut self) {
        self.left = Some(1);
    }

    /// Whether all messages are framed.
    pub(crate) fn is_done(&self) -> bool {
        self.left == Some(0) && self.segmenter.is_done()
    }

    /// Returns the length on the wire of the next FPDU, or `None` if no message is left. Begins the next
    /// message if no message is in progress.
    pub(crate) fn next_bytes(&mut self) -> Option<usize> {
        if !self.begin_next() {
            return None;
        }
        let next = self.segmenter.peek(self.mulpdu as u32)?;
        Some(self.framer.wire_len(TaggedHeader::LEN + next.len as usize))
    }

    /// Begins the next message if no message is in progress. Returns whether a message is in progress
    /// afterwards.
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

    /// Frames the next FPDU into `room`, whose length is exactly that of the FPDU.
    pub(crate) fn frame(&mut self, room: &mut [u8]) {
        let Some(segment) = self.segmenter.next(self.mulpdu as u32) else { return };
        let header =
            TaggedHeader { last: segment.last, rsvd_ulp: WRITE, stag: STAG, to: u64::from(segment.offset) };
        let (at, bytes) = (segment.offset as usize, segment.len as usize);
        let mut writer = self.framer.begin(room, TaggedHeader::LEN + bytes);
        writer.put(&header.to_bytes());
        writer.put(&self.message[at..at + bytes]);
        writer.finish();
        self.sent_bytes += bytes as u64;
    }
}

/// Places Writes into one buffer.
pub(crate) struct Target {
    target: Vec<u8>,
    placed_bytes: u64,
    /// The beginning of an FPDU from a slice that is consumed. The rest of the FPDU will be at the front of
    /// the next slice.
    apart: Vec<u8>,
}

impl Target {
    pub(crate) fn new(bytes: usize) -> Self {
        Self { target: vec![0; bytes], placed_bytes: 0, apart: Vec::with_capacity(1 << 17) }
    }

    pub(crate) fn placed(&self) -> &[u8] {
        &self.target
    }

    /// Returns the number of bytes placed so far.
    pub(crate) fn placed_bytes(&self) -> u64 {
        self.placed_bytes
    }

    pub(crate) fn clear(&mut self) {
        self.target.fill(0);
    }

    /// Receives FPDUs from `bytes`. Returns the number of consumed bytes. If `goes_on` is true, the stream
    /// continues in another slice, and all bytes are consumed.
    pub(crate) fn take(&mut self, bytes: &[u8], goes_on: bool) -> Result<usize, Error> {
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

    /// Completes the FPDU that began in another slice, if the whole FPDU has arrived. Returns the number of
    /// consumed bytes.
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
        let wrong = |what: &str| Error::Exchange(what.to_owned());
        let (summed, field) = fpdu.split_at(fpdu.len() - CRC_BYTES);
        let mut crc = Crc32c::new();
        crc.update(summed);
        if field != crc.field() {
            return Err(wrong("an FPDU has a wrong CRC"));
        }
        let ulpdu = &summed[LENGTH_BYTES..LENGTH_BYTES + ulpdu_bytes(summed).unwrap_or(0)];
        let header = match Header::parse(ulpdu) {
            Ok(Header::Tagged(header)) if header.stag == STAG && header.rsvd_ulp == WRITE => header,
            _ => return Err(wrong("an FPDU is not a Write")),
        };
        let payload = &ulpdu[TaggedHeader::LEN..];
        let out = || wrong("a Write is out of bounds");
        let at = usize::try_from(header.to).map_err(|_| out())?;
        let end = at.checked_add(payload.len()).ok_or_else(out)?;
        let place = self.target.get_mut(at..end).ok_or_else(out)?;
        place.copy_from_slice(payload);
        self.placed_bytes += payload.len() as u64;
        Ok(())
    }
}

/// Returns the value of the length field at the front of `bytes`.
fn ulpdu_bytes(bytes: &[u8]) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(*bytes.first_chunk()?)))
}

/// Returns the FPDU at the front of `bytes`, if the whole FPDU has arrived.
fn first_fpdu(bytes: &[u8]) -> Option<&[u8]> {
    bytes.get(..fpdu_bytes(ulpdu_bytes(bytes)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern;

    /// Returns a message as FPDUs.
    fn stream(message: &[u8]) -> Vec<u8> {
        let mut writer = Writer::new(message.to_vec(), 1460);
        writer.begin(message.to_vec());
        let mut stream = Vec::new();
        while let Some(bytes) = writer.next_bytes() {
            let from = stream.len();
            stream.resize(from + bytes, 0);
            writer.frame(&mut stream[from..]);
        }
        stream
    }

    #[test]
    fn a_message_arrives_however_its_bytes_lie() {
        let message = pattern::bytes(9, 5_000);
        let stream = stream(&message);
        for cut in 0..=stream.len() {
            let mut target = Target::new(message.len());
            let (a, b) = stream.split_at(cut);
            assert_eq!(target.take(a, true).unwrap(), a.len());
            assert_eq!(target.take(b, false).unwrap(), b.len(), "{cut}");
            assert_eq!(target.placed(), message, "{cut}");
        }
    }

    #[test]
    fn what_is_not_whole_stays_in_the_socket() {
        let message = pattern::bytes(9, 2_000);
        let stream = stream(&message);
        let mut target = Target::new(message.len());
        let taken = target.take(&stream[..1_500], false).unwrap();
        assert!(taken < 1_500 && target.placed_bytes() > 0, "{taken}");
        assert_eq!(target.take(&stream[taken..], false).unwrap(), stream.len() - taken);
        assert_eq!(target.placed(), message);
    }

    #[test]
    fn a_turned_bit_is_noticed() {
        let message = pattern::bytes(9, 2_000);
        for at in [0, 1, 5, 100, 1_400] {
            let mut stream = stream(&message);
            stream[at] ^= 1;
            let mut target = Target::new(message.len());
            let placed_all = target.take(&stream, false).is_ok_and(|_| target.placed() == message);
            assert!(!placed_all, "{at}");
        }
    }

    #[test]
    fn a_write_beyond_the_region_is_refused() {
        let message = pattern::bytes(9, 2_000);
        let refused = Target::new(1_999).take(&stream(&message), false).unwrap_err();
        assert!(refused.to_string().contains("out of bounds"), "{refused}");
        assert!(Target::new(2_000).take(&stream(&message), false).is_ok());
    }
}
