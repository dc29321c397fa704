//! The small endpoint in full operation.

use std::collections::VecDeque;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};

use iwprobe::scene::words;
use iwprobe::wire::{
    Code, Deframer, Depths, Fault, Fpdu, Framer, REPLY_KEY, REQUEST_KEY, ReadRequest, Segment, Startup, flag,
    opcode,
};

use super::judge::{long, place};
use super::target::{Operation, Report, Target, source};
use super::{Flaw, PATIENCE, hang_up, more, startup};

/// Maximum number of payload bytes in a segment.
const ROOM: usize = 8000;
const DEPTH: u16 = 8;
/// The STag of the endpoint's first sink.
const SINK: u32 = 0x7000_0000;

static SERIAL: AtomicU32 = AtomicU32::new(0x101);

/// Whether the endpoint connects again after the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disconnect {
    Temporary,
    Permanent,
}

/// A request of this endpoint for which an answer is outstanding.
#[derive(Clone, Debug)]
pub(super) struct Outstanding {
    /// The letter of the operation in a scene; `-` for an RTR.
    pub(super) kind: char,
    pub(super) stag: u32,
    pub(super) length: usize,
    bytes: Vec<u8>,
}

pub(super) struct End<'a> {
    stream: &'a TcpStream,
    pub(super) flaw: Flaw,
    framer: Framer,
    pub(super) target: Target,
    /// Next MSN of each queue on which the endpoint sends.
    msn: [u32; 4],
    pub(super) next_receive: u32,
    pub(super) next_request: u32,
    pub(super) asked: VecDeque<Outstanding>,
    ord: usize,
    spoken_to: bool,
    received: bool,
    message: Vec<u8>,
    posted: VecDeque<Operation>,
    /// Answers that are sent after the answers to later requests.
    held_back: Vec<Vec<Segment>>,
    how: String,
}

fn target_of(private: &[u8], has_target: bool) -> Target {
    let private = if has_target { private } else { b"" };
    Target::new(private, SERIAL.fetch_add(7, Ordering::Relaxed))
}

/// Runs a connection as the responder.
pub(super) fn respond(stream: &TcpStream, flaw: Flaw, last: Option<&mut Report>) -> Option<()> {
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_nodelay(true).ok()?;
    let Some((request, held)) = startup::heard(stream, flaw, REQUEST_KEY) else {
        return stream.shutdown(Shutdown::Both).ok();
    };
    let target = target_of(request.ulp_data(), last.is_some());
    let (ird, ord) = (target.ird.unwrap_or(DEPTH), target.ord.unwrap_or(DEPTH));
    let text = match &last {
        Some(_) if target.reject => "iwp1 no".into(),
        Some(last) if target.wants_report => last.0.clone(),
        Some(_) if words(request.ulp_data()).is_some() => target.stage(),
        _ => String::new(),
    };
    let reply = startup::reply(&request, flaw, ird, ord, text.as_bytes());
    if target.reject {
        startup::say(stream, &Startup { flags: reply.flags | flag::R, ..reply })?;
        if let Some(last) = last {
            *last = Report::refused();
        }
        return hang_up(stream);
    }
    startup::say(stream, &reply)?;
    let agreed = request.depths().map_or(DEPTH, |asked| asked.ird.min(ord));
    let mut end = End::new(stream, flaw, target, request.has(flag::M), agreed);
    if flaw == Flaw::TalksFirst {
        end.send(&Segment::write(1, 0, &[]))?;
    }
    end.posted = std::mem::take(&mut end.target.at_once);
    end.run(&held);
    end.conclude(last);
    Some(())
}

/// Runs a connection as the initiator.
pub(super) fn initiate(stream: &TcpStream, flaw: Flaw, last: Option<&mut Report>) -> Disconnect {
    let has_target = last.is_some();
    let private: &[u8] = if has_target { b"iwp1 hello" } else { b"" };
    // Errors are ignored here: if the connection has failed, the next read ends it.
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let _ = stream.set_nodelay(true);
    let _ = startup::say(stream, &startup::request(flaw, private));
    let mut end = End::new(stream, flaw, Target::default(), false, DEPTH);
    if flaw == Flaw::TalksFirst {
        let _ = end.send(&Segment::write(1, 0, &[]));
    }
    let heard = startup::heard(stream, flaw, REPLY_KEY);
    if let Some((reply, _)) = &heard {
        end.target = target_of(reply.ulp_data(), has_target);
        if end.target.bye {
            return Disconnect::Permanent;
        }
    }
    let Some((reply, held)) = heard.filter(|(reply, _)| !reply.has(flag::R)) else {
        if flaw == Flaw::TalksAfterReject {
            let _ = end.send(&Segment::write(1, 0, &[]));
        }
        let _ = stream.shutdown(Shutdown::Both);
        if let Some(last) = last {
            *last = Report::refused();
        }
        return Disconnect::Temporary;
    };
    end.framer = Framer::new(reply.has(flag::M) && flaw != Flaw::NoMarkers, true);
    end.spoken_to = true;
    let text = match &last {
        Some(last) if end.target.wants_report => Some(last.0.clone()),
        Some(_) if words(reply.ulp_data()).is_some() => Some(end.target.stage()),
        _ => None,
    };
    if end.open(reply.depths(), text).is_none() {
        let _ = hang_up(stream);
    } else {
        end.posted = std::mem::take(&mut end.target.at_once);
        end.run(&held);
    }
    end.conclude(last);
    Disconnect::Temporary
}

impl<'a> End<'a> {
    fn new(stream: &'a TcpStream, flaw: Flaw, target: Target, markers: bool, ord: u16) -> Self {
        Self {
            stream,
            flaw,
            framer: Framer::new(markers && flaw != Flaw::NoMarkers, true),
            target,
            msn: [1; 4],
            next_receive: 1,
            next_request: 1,
            asked: VecDeque::new(),
            ord: ord.min(DEPTH).into(),
            spoken_to: flaw == Flaw::TalksFirst,
            received: false,
            message: Vec::new(),
            posted: VecDeque::new(),
            held_back: Vec::new(),
            how: "close".into(),
        }
    }

    fn conclude(&self, last: Option<&mut Report>) {
        if let Some(last) = last.filter(|_| !self.target.wants_report) {
            *last = self.target.report(&self.how);
        }
    }

    /// Sends the initiator's first FPDUs: the RTR, and the stage.
    fn open(&mut self, agreed: Option<Depths>, text: Option<String>) -> Option<()> {
        let agreed = agreed.unwrap_or_default();
        self.ord = agreed.ird.min(DEPTH).into();
        if agreed.peer_to_peer && !agreed.by_write && !agreed.by_read {
            return self.terminate(Code(2, 0, 7), None);
        }
        let late = self.flaw == Flaw::LateRtr;
        let rtrs = match self.flaw {
            _ if !agreed.peer_to_peer => 0,
            Flaw::TwoRtrs => 2,
            _ => 1,
        };
        if let Some(text) = text.as_ref().filter(|_| late) {
            self.say(text)?;
        }
        for _ in 0..rtrs {
            if agreed.by_write || self.flaw == Flaw::RtrAlwaysWrite {
                self.send(&Segment::write(1, 0, &[]))?;
            } else {
                self.ask('-', 0, &ReadRequest::default())?;
            }
        }
        text.filter(|_| !late).map_or(Some(()), |text| self.say(&text))
    }

    fn say(&mut self, text: &str) -> Option<()> {
        let segments = self.untagged(opcode::SEND, 0, 0, text.as_bytes());
        self.send_all(&segments)
    }

    fn ask(&mut self, kind: char, length: usize, read: &ReadRequest) -> Option<()> {
        let segments = self.untagged(opcode::READ_REQUEST, 1, 0, &read.encode());
        self.asked.push_back(Outstanding { kind, stag: read.sink_stag, length, bytes: Vec::new() });
        self.send_all(&segments)
    }

    fn send(&mut self, segment: &Segment) -> Option<()> {
        let mut segment = segment.clone();
        if self.flaw == Flaw::SetsReserved {
            segment = segment.clone().control(segment.control_byte() | 0x20);
        }
        let fault = Fault {
            crc_xor: u32::from(self.flaw == Flaw::BadCrc),
            pad: u8::from(self.flaw == Flaw::BadPad),
            ..Fault::default()
        };
        let bytes = self.framer.frame(&segment.bytes, fault);
        let mut stream = self.stream;
        stream.write_all(&bytes).ok()
    }

    fn send_all(&mut self, segments: &[Segment]) -> Option<()> {
        segments.iter().try_for_each(|segment| self.send(segment))
    }

    /// Cuts a message into pieces. Returns each piece with its offset, and whether it is the last piece.
    fn pieces<'o>(&self, bytes: &'o [u8]) -> Vec<(usize, &'o [u8], bool)> {
        let pieces: Vec<&[u8]> = if bytes.is_empty() { vec![&[]] } else { bytes.chunks(ROOM).collect() };
        let count = pieces.len();
        let cut = pieces.into_iter().enumerate().map(|(index, piece)| {
            let last = match self.flaw {
                Flaw::AlwaysLast => true,
                Flaw::NoLast => count == 1,
                _ => index + 1 == count,
            };
            (if self.flaw == Flaw::OffsetStands { 0 } else { index * ROOM }, piece, last)
        });
        cut.collect()
    }

    fn tagged(&self, opcode: u8, stag: u32, to: u64, bytes: &[u8]) -> Vec<Segment> {
        let cut = self.pieces(bytes).into_iter().map(|(offset, piece, last)| {
            let segment = Segment::tagged(opcode, stag, to.wrapping_add(offset as u64), piece);
            if last { segment } else { segment.not_last() }
        });
        cut.collect()
    }

    fn untagged(&mut self, opcode: u8, qn: u32, stag: u32, bytes: &[u8]) -> Vec<Segment> {
        let msn = self.msn[qn as usize];
        if self.flaw != Flaw::MsnStands {
            self.msn[qn as usize] += 1;
        }
        let is_send = matches!(opcode, opcode::SEND | opcode::SEND_SE);
        let stag = if is_send && self.flaw == Flaw::StagInSends { 0x55 } else { stag };
        let qn = if is_send && self.flaw == Flaw::WrongQueue { 3 } else { qn };
        let version = if is_send && self.flaw == Flaw::VersionZero { 0 } else { 0x40 };
        let cut = self.pieces(bytes).into_iter().map(|(offset, piece, last)| {
            let segment =
                Segment::untagged(opcode, qn, msn, piece).at_offset(offset as u32).invalidating(stag);
            let segment = segment.rdmap(version | opcode);
            if last { segment } else { segment.not_last() }
        });
        cut.collect()
    }

    /// Runs until the connection ends.
    fn run(&mut self, held: &[u8]) {
        let mut deframer = Deframer::new(false, true);
        deframer.push(held);
        let mut going_on = self.pump();
        loop {
            while let Some(fpdu) = deframer.next_fpdu().filter(|_| going_on.is_some()) {
                going_on = self.take(fpdu).and_then(|()| self.pump());
            }
            for answer in std::mem::take(&mut self.held_back).into_iter().rev() {
                going_on = going_on.and_then(|()| self.send_all(&answer));
            }
            if going_on.is_none() {
                if self.flaw == Flaw::DeliversAfterError {
                    while let Some(fpdu) = deframer.next_fpdu() {
                        let segment = Segment { bytes: fpdu.ulpdu };
                        let _ = self.judge(&segment).is_none() && self.answer(&segment).is_some();
                    }
                }
                let _ = hang_up(self.stream);
                return;
            }
            match more(self.stream) {
                Some(bytes) => deframer.push(&bytes),
                None => break,
            }
        }
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Sends the posted operations that may be sent now. Returns `None` if the endpoint closes the
    /// connection.
    fn pump(&mut self) -> Option<()> {
        let done = self.target.close && self.received;
        if !self.spoken_to {
            return Some(());
        }
        if done && self.flaw == Flaw::ClosesEarly {
            return None;
        }
        while let Some(next) = self.posted.front() {
            let asks = matches!(next.kind, 'r' | 'f' | 'c');
            let fence = next.fenced && !self.asked.is_empty() && self.flaw != Flaw::IgnoresFence;
            if fence || (asks && self.asked.len() >= self.ord && self.flaw != Flaw::IgnoresOrd) {
                return Some(());
            }
            let operation = self.posted.pop_front()?;
            self.post(&operation)?;
        }
        if done && self.asked.is_empty() { None } else { Some(()) }
    }

    fn post(&mut self, operation: &Operation) -> Option<()> {
        let Operation { kind, length, to, .. } = *operation;
        let peer = self.target.peer;
        let bytes = source(length);
        let segments = match kind {
            'w' => self.tagged(opcode::WRITE, peer, to, &bytes),
            's' => self.untagged(opcode::SEND, 0, 0, &bytes),
            'e' => self.untagged(opcode::SEND_SE, 0, 0, &bytes),
            'i' => self.untagged(opcode::SEND_INVALIDATE, 0, peer, &bytes),
            'j' => self.untagged(opcode::SEND_SE_INVALIDATE, 0, peer, &bytes),
            'm' if self.flaw == Flaw::ImmediateSwapped => {
                self.untagged(opcode::IMMEDIATE, 0, 0, &[0, 0, 0, 0, 4, 3, 2, 1])
            }
            'm' => self.untagged(opcode::IMMEDIATE, 0, 0, &[1, 2, 3, 4, 0, 0, 0, 0]),
            'r' => {
                let sink_stag = SINK + self.msn[1];
                let size = length as u32;
                let read = ReadRequest { sink_stag, sink_to: 0, size, source_stag: peer, source_to: to };
                return self.ask('r', length, &read);
            }
            _ => {
                let number = u32::from(kind == 'c') * 2;
                let mut request = [number.to_be_bytes(), [0; 4], peer.to_be_bytes()].concat();
                let fields = if kind == 'c' { [1, u64::MAX, 0, u64::MAX] } else { [1, 0, 0, u64::MAX] };
                request.extend([to].into_iter().chain(fields).flat_map(u64::to_be_bytes));
                self.asked.push_back(Outstanding { kind, stag: 0, length, bytes: Vec::new() });
                self.untagged(opcode::ATOMIC_REQUEST, 1, 0, &request)
            }
        };
        self.send_all(&segments)
    }

    /// Handles a received FPDU. Returns `None` if the endpoint ends the connection.
    fn take(&mut self, fpdu: Fpdu) -> Option<()> {
        let segment = Segment { bytes: fpdu.ulpdu };
        if fpdu.complaints.iter().any(|text| text.contains("CRC")) && self.flaw != Flaw::IgnoresCrc {
            if self.flaw == Flaw::PlacesBeforeCrc && self.judge(&segment).is_none() {
                self.answer(&segment)?;
            }
            return if self.spoken_to { self.terminate(Code(2, 0, 2), None) } else { None };
        }
        self.spoken_to = true;
        if !segment.is_whole() {
            return None;
        }
        match self.judge(&segment) {
            Some(_) if segment.opcode() == opcode::TERMINATE && self.flaw != Flaw::AnswersTerminate => None,
            Some(code) => self.terminate(code, Some(&segment)),
            None => self.answer(&segment),
        }
    }

    fn answer(&mut self, segment: &Segment) -> Option<()> {
        match segment.opcode() {
            opcode::TERMINATE if self.flaw == Flaw::AnswersTerminate => self.terminate(Code(0, 0, 0), None),
            opcode::TERMINATE => {
                if let Some(Code(layer, etype, code)) = segment.as_terminate().map(|told| told.code()) {
                    self.how = format!("got:{layer:02x}{etype:02x}{code:02x}");
                }
                None
            }
            opcode::WRITE => {
                self.place(segment.stag(), segment.to(), segment.payload());
                if self.flaw == Flaw::DeliversWrites && segment.is_last() {
                    self.delivered('R', segment.payload().to_vec());
                }
                Some(())
            }
            opcode::READ_RESPONSE => self.complete(segment),
            opcode::ATOMIC_RESPONSE => {
                let asked = self.asked.pop_front()?;
                self.target.tell(asked.kind, &[]);
                Some(())
            }
            opcode::READ_REQUEST => {
                self.next_request += 1;
                let read = segment.as_read_request()?;
                let to = read.sink_to + u64::from(self.flaw == Flaw::WrongSink);
                let mut bytes = Vec::new();
                if let Some(region) = self.region(read.source_stag).filter(|_| read.size > 0) {
                    let at = (read.source_to - region.to) as usize;
                    bytes = region.bytes[at..(at + read.size as usize).min(region.bytes.len())].to_vec();
                }
                let response = self.tagged(opcode::READ_RESPONSE, read.sink_stag, to, &bytes);
                self.reply(response)
            }
            opcode::ATOMIC_REQUEST => {
                self.next_request += 1;
                let response = self.operate(segment.payload());
                self.reply(response)
            }
            _ => {
                self.receive(segment);
                Some(())
            }
        }
    }

    fn reply(&mut self, answer: Vec<Segment>) -> Option<()> {
        if self.flaw == Flaw::AnswersInReverse {
            self.held_back.push(answer);
            return Some(());
        }
        self.send_all(&answer)
    }

    fn place(&mut self, stag: u32, to: u64, bytes: &[u8]) {
        let region = self.target.regions.iter_mut().find(|region| region.stag == stag && region.valid);
        let Some(region) = region.filter(|_| !bytes.is_empty()) else { return };
        let at = (to - region.to) as usize;
        let end = (at + bytes.len()).min(region.bytes.len());
        region.bytes[at..end].copy_from_slice(&bytes[..end - at]);
    }

    /// Handles a segment of a Read Response.
    fn complete(&mut self, segment: &Segment) -> Option<()> {
        let early = self.flaw == Flaw::CompletesEarly;
        let asked = self.asked.front_mut()?;
        asked.bytes.extend(segment.payload());
        if segment.is_last() || (early && asked.bytes.len() == asked.length) {
            let asked = self.asked.pop_front()?;
            if asked.kind == 'r' {
                self.target.tell('r', &asked.bytes);
            }
        }
        Some(())
    }

    /// Handles a segment of a Send or of Immediate Data.
    fn receive(&mut self, segment: &Segment) {
        let mo = segment.mo() as usize;
        self.message.resize(self.message.len().max(mo + segment.payload().len()), 0);
        self.message[mo..mo + segment.payload().len()].copy_from_slice(segment.payload());
        if !segment.is_last() && self.flaw != Flaw::DeliversEarly {
            return;
        }
        let bytes = std::mem::take(&mut self.message);
        let invalidates = matches!(segment.opcode(), opcode::SEND_INVALIDATE | opcode::SEND_SE_INVALIDATE);
        if matches!(segment.opcode(), opcode::SEND_SE | opcode::SEND_SE_INVALIDATE | opcode::IMMEDIATE_SE)
            || self.flaw == Flaw::AlwaysSolicited
        {
            self.target.events += 1;
        }
        self.delivered(if invalidates { 'V' } else { 'R' }, bytes);
        if invalidates {
            self.target.told.push(format!("inv={:x}", segment.stag()));
            let kept = self.flaw == Flaw::NeverInvalidates;
            for region in self.target.regions.iter_mut().filter(|region| region.stag == segment.stag()) {
                region.valid = kept;
            }
        }
    }

    fn delivered(&mut self, kind: char, bytes: Vec<u8>) {
        self.next_receive += 1;
        self.target.receives.pop_front();
        if self.flaw == Flaw::TakesTwoReceives {
            self.target.receives.pop_front();
        }
        self.target.tell(kind, &bytes);
        if !std::mem::replace(&mut self.received, true) {
            let mut then = std::mem::take(&mut self.target.then);
            if self.flaw == Flaw::PostsInReverse {
                then.make_contiguous().reverse();
            }
            self.posted.append(&mut then);
        }
    }

    /// Executes an atomic, and returns the answer.
    fn operate(&mut self, request: &[u8]) -> Vec<Segment> {
        let (stag, to) = place(request);
        let region = self.region(stag).expect("it was judged");
        let at = (to - region.to) as usize;
        let was = u64::from_le_bytes(region.bytes[at..at + 8].try_into().expect("eight bytes"));
        let [data, mask, compare, compare_mask] = [20, 28, 36, 44].map(|at| long(request, at));
        let is = match request[3] & 15 {
            0 if self.flaw == Flaw::CarriesOver => was.wrapping_add(data),
            0 => fetch_add(was, data, mask),
            _ if (was ^ compare) & compare_mask == 0 => was & !mask | data & mask,
            _ => was,
        };
        self.place(stag, to, &is.to_le_bytes());
        let id = if self.flaw == Flaw::NoIdentifier { &[0; 4] } else { &request[4..8] };
        let response = [id, &was.to_be_bytes()].concat();
        self.untagged(opcode::ATOMIC_RESPONSE, 3, 0, &response)
    }

    fn terminate(&mut self, code: Code, failed: Option<&Segment>) -> Option<()> {
        self.how = format!("sent:{:02x}{:02x}{:02x}", code.0, code.1, code.2);
        if self.flaw == Flaw::NoTerminate {
            return None;
        }
        let Code(layer, etype, number) = if self.flaw == Flaw::OneCode { Code(0, 0, 0) } else { code };
        let first = if self.flaw == Flaw::Swapped { etype << 4 | layer } else { layer << 4 | etype };
        let read = failed.filter(|s| (code.0, code.1) == (0, 1) && s.opcode() == opcode::READ_REQUEST);
        let (m, d, r) = if self.flaw == Flaw::Swapped { (1, 2, 4) } else { (0x80, 0x40, 0x20) };
        let bits = if failed.is_some() { m | d } else { 0 } | if read.is_some() { r } else { 0 };
        let mut payload = vec![first, number, bits, 0];
        if let Some(segment) = failed {
            let length =
                if self.flaw == Flaw::ShortLength { segment.payload().len() } else { segment.bytes.len() };
            payload.extend((length as u16).to_be_bytes());
            let mut header = segment.header().to_vec();
            if self.flaw == Flaw::WrongEcho {
                header[9] ^= 1;
            }
            payload.extend(header);
            payload.extend(read.map(|read| read.payload().to_vec()).unwrap_or_default());
            if self.flaw == Flaw::ShortEcho {
                payload.truncate(16);
            }
        }
        let msn = if self.flaw == Flaw::MsnFromZero { 0 } else { 1 };
        self.send(&Segment::untagged(opcode::TERMINATE, 2, msn, &payload))?;
        if self.flaw == Flaw::NeverStops { Some(()) } else { None }
    }
}

/// Returns `a + b`, where no carry passes a bit that is set in `mask`.
fn fetch_add(a: u64, b: u64, mask: u64) -> u64 {
    let (mut sum, mut carry) = (0, 0);
    for bit in 0..64 {
        let digit = (a >> bit & 1) + (b >> bit & 1) + carry;
        sum |= (digit & 1) << bit;
        carry = if mask >> bit & 1 == 1 { 0 } else { digit >> 1 };
    }
    sum
}
