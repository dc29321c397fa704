//! A responder of a few lines, good enough for what needs no target, with one flaw to order. It has no memory and no
//! receives: every Write and Read of octets names an STag that it does not know.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use iwprobe::wire::{
    Code, Deframer, Depths, Fault, Fpdu, Framer, REPLY_KEY, REQUEST_KEY, Segment, Startup, flag, opcode,
};

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Nothing.
    None,
    /// Takes any key.
    AnyKey,
    /// Takes PD_Length up to 65535.
    AnyLength,
    /// Clears S in its Replies.
    ForgetsEnhanced,
    /// Names no kind of RTR.
    NoRtrKind,
    /// Sends an FPDU right behind its Reply.
    TalksFirst,
    /// Takes FPDUs whatever their CRC.
    IgnoresCrc,
    /// Its own CRCs are wrong.
    BadCrc,
    /// Closes instead of sending a Terminate.
    NoTerminate,
    /// Terminates with code 0/0/00, whatever happened.
    OneCode,
    /// siw's bit order.
    Swapped,
    /// Echoes a header that is not the failing one's.
    WrongEcho,
    /// Segment length without the header.
    ShortLength,
    /// Goes on after its Terminate.
    NeverStops,
    /// Answers a Terminate by a Terminate.
    AnswersTerminate,
    /// Counts queue 2 from 0.
    MsnFromZero,
    /// Looks at reserved bits.
    ChecksReserved,
    /// Sets a reserved bit of DDP.
    SetsReserved,
    /// Looks at the STag of empty Writes.
    ChecksEmptyWrites,
    /// Answers Reads of no octets from the wrong place.
    WrongSink,
    /// Is gone after two connections.
    Dies,
    /// Says nothing any more after two connections, but TCP still takes them.
    Hangs,
}

/// Starts it on a port of its own; it ends with the process.
pub(crate) fn start(flaw: Flaw) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let most = if flaw == Flaw::Dies || flaw == Flaw::Hangs { 2 } else { usize::MAX };
        let mut streams = listener.incoming().flatten();
        for stream in streams.by_ref().take(most) {
            std::thread::spawn(move || serve(&stream, flaw));
        }
        if flaw == Flaw::Hangs {
            streams.for_each(std::mem::forget);
        }
    });
    address
}

fn serve(stream: &TcpStream, flaw: Flaw) -> Option<()> {
    stream.set_read_timeout(Some(Duration::from_secs(20))).ok()?;
    let mut held = Vec::new();
    let request = loop {
        if let Some((frame, length)) = Startup::decode(&held) {
            held.drain(..length);
            break frame;
        }
        let early =
            held.len() >= 20 && flaw != Flaw::AnyLength && u16::from_be_bytes([held[18], held[19]]) > 512;
        if early || (held.len() >= 16 && held[..16] != REQUEST_KEY && flaw != Flaw::AnyKey) {
            return stream.shutdown(Shutdown::Both).ok();
        }
        held.extend(more(stream)?);
    };
    let fine = (request.key == REQUEST_KEY || flaw == Flaw::AnyKey)
        && (request.length <= 512 || flaw == Flaw::AnyLength)
        && matches!(request.revision, 1 | 2)
        && (!request.has(flag::S) || request.length >= 4 || request.revision == 1);
    if !fine {
        return stream.shutdown(Shutdown::Both).ok();
    }
    let reply = reply(&request, flaw);
    (&*stream).write_all(&reply.encode()).ok()?;
    let mut deframer = Deframer::new(false, true);
    deframer.push(&held);
    let framer = Framer::new(request.has(flag::M), true);
    let mut end = End { stream, flaw, framer, next_read: 1, spoken_to: flaw == Flaw::TalksFirst };
    if flaw == Flaw::TalksFirst {
        end.send(&Segment::write(1, 0, &[]))?;
    }
    loop {
        while let Some(fpdu) = deframer.next_fpdu() {
            if end.take(fpdu).is_none() {
                return hang_up(stream);
            }
        }
        match more(stream) {
            Some(octets) => deframer.push(&octets),
            None => return stream.shutdown(Shutdown::Both).ok(),
        }
    }
}

fn reply(request: &Startup, flaw: Flaw) -> Startup {
    let Some(asked) = request.depths() else {
        let reply = Startup::plain(REPLY_KEY, flag::C, b"");
        return Startup { revision: request.revision, ..reply };
    };
    let common = |depth: u16| if depth == Depths::UNSAID { depth } else { depth.min(8) };
    let named = asked.peer_to_peer && flaw != Flaw::NoRtrKind;
    let depths = Depths {
        peer_to_peer: asked.peer_to_peer,
        by_send: false,
        by_write: named && (asked.by_write || !asked.by_read),
        by_read: named && asked.by_read && asked.ord > 0,
        ird: common(asked.ord),
        ord: common(asked.ird),
    };
    let reply = Startup::enhanced(REPLY_KEY, flag::C, depths, b"");
    if flaw == Flaw::ForgetsEnhanced { Startup { flags: flag::C, ..reply } } else { reply }
}

fn more(mut stream: &TcpStream) -> Option<Vec<u8>> {
    let mut octets = [0; 4096];
    let length = stream.read(&mut octets).ok().filter(|length| *length > 0)?;
    Some(octets[..length].to_vec())
}

/// FIN, then whatever still comes is dropped: with octets unread the system would send RST.
fn hang_up(stream: &TcpStream) -> Option<()> {
    stream.shutdown(Shutdown::Write).ok()?;
    while more(stream).is_some() {}
    Some(())
}

struct End<'a> {
    stream: &'a TcpStream,
    flaw: Flaw,
    framer: Framer,
    next_read: u32,
    spoken_to: bool,
}

impl End<'_> {
    fn send(&mut self, segment: &Segment) -> Option<()> {
        let mut segment = segment.clone();
        if self.flaw == Flaw::SetsReserved {
            segment = segment.clone().control(segment.control_octet() | 0x20);
        }
        let crc_xor = if self.flaw == Flaw::BadCrc { 1 } else { 0 };
        let octets = self.framer.frame(&segment.octets, Fault { crc_xor, ..Fault::default() });
        (&*self.stream).write_all(&octets).ok()
    }

    /// `None` ends the connection.
    fn take(&mut self, fpdu: Fpdu) -> Option<()> {
        let segment = Segment { octets: fpdu.ulpdu };
        if fpdu.complaints.iter().any(|text| text.contains("CRC")) && self.flaw != Flaw::IgnoresCrc {
            return if self.spoken_to { self.terminate(Code(2, 0, 2), None) } else { None };
        }
        self.spoken_to = true;
        if !segment.is_whole() {
            return None;
        }
        let wrong = self.judge(&segment);
        match wrong {
            Some(_) if segment.opcode() == opcode::TERMINATE && self.flaw != Flaw::AnswersTerminate => None,
            Some(code) => self.terminate(code, Some(&segment)),
            None => self.answer(&segment),
        }
    }

    fn judge(&self, segment: &Segment) -> Option<Code> {
        let empty = segment.payload().is_empty();
        if self.flaw == Flaw::ChecksReserved && segment.control_octet() & 0x3c != 0 {
            return Some(Code(0, 2, 0xff));
        }
        match (segment.is_tagged(), segment.control_octet() & 3) {
            (true, 1) | (false, 1) => {}
            (true, _) => return Some(Code(1, 1, 4)),
            (false, _) => return Some(Code(1, 2, 6)),
        }
        if segment.is_tagged() && (!empty || self.flaw == Flaw::ChecksEmptyWrites) {
            return Some(Code(1, 1, 0));
        }
        if !segment.is_tagged() {
            match segment.qn() {
                0 => return Some(Code(1, 2, 2)),
                1 if segment.msn() != self.next_read => return Some(Code(1, 2, 3)),
                1 if segment.payload().len() > 28 => return Some(Code(1, 2, 5)),
                1 | 2 => {}
                _ => return Some(Code(1, 2, 1)),
            }
        }
        if segment.rdmap_octet() >> 6 != 1 {
            return Some(Code(0, 2, 5));
        }
        match (segment.opcode(), segment.is_tagged(), segment.qn()) {
            (opcode::WRITE, true, _) => None,
            (opcode::READ_REQUEST, false, 1) => match segment.as_read_request() {
                Some(read) if read.size == 0 => None,
                // In two segments: more than it bears.
                None => Some(Code(0, 2, 0xff)),
                Some(_) => Some(Code(0, 1, 0)),
            },
            (opcode::TERMINATE, false, 2) => None,
            _ => Some(Code(0, 2, 6)),
        }
    }

    fn answer(&mut self, segment: &Segment) -> Option<()> {
        match segment.opcode() {
            opcode::TERMINATE if self.flaw == Flaw::AnswersTerminate => self.terminate(Code(0, 0, 0), None),
            opcode::TERMINATE => None,
            opcode::READ_REQUEST => {
                self.next_read += 1;
                let read = segment.as_read_request()?;
                let to = read.sink_to + u64::from(self.flaw == Flaw::WrongSink);
                self.send(&Segment::tagged(opcode::READ_RESPONSE, read.sink_stag, to, &[]))
            }
            _ => Some(()),
        }
    }

    fn terminate(&mut self, code: Code, failed: Option<&Segment>) -> Option<()> {
        if self.flaw == Flaw::NoTerminate {
            return None;
        }
        let Code(layer, etype, number) = if self.flaw == Flaw::OneCode { Code(0, 0, 0) } else { code };
        let first = if self.flaw == Flaw::Swapped { etype << 4 | layer } else { layer << 4 | etype };
        let read = failed.filter(|s| code == Code(0, 1, 0) && s.opcode() == opcode::READ_REQUEST);
        let (m, d, r) = if self.flaw == Flaw::Swapped { (1, 2, 4) } else { (0x80, 0x40, 0x20) };
        let bits = if failed.is_some() { m | d } else { 0 } | if read.is_some() { r } else { 0 };
        let mut payload = vec![first, number, bits, 0];
        if let Some(segment) = failed {
            let length =
                if self.flaw == Flaw::ShortLength { segment.payload().len() } else { segment.octets.len() };
            payload.extend((length as u16).to_be_bytes());
            let mut header = segment.header().to_vec();
            if self.flaw == Flaw::WrongEcho {
                header[9] ^= 1;
            }
            payload.extend(header);
            payload.extend(read.map(|read| read.payload().to_vec()).unwrap_or_default());
        }
        let msn = if self.flaw == Flaw::MsnFromZero { 0 } else { 1 };
        self.send(&Segment::untagged(opcode::TERMINATE, 2, msn, &payload))?;
        if self.flaw == Flaw::NeverStops { Some(()) } else { None }
    }
}
