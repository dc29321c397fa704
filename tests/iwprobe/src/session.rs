//! A connection in full operation: sends and receives segments, and makes the checks that most cases need.

use std::time::Duration;

use crate::case::{CaseError, Check, deviates, require};
use crate::conn::{Conn, End, ReadResult};
use crate::log::Direction;
use crate::scene::{Region, Stage};
use crate::watch::{Progress, Topic, Watch};
use crate::wire::{
    Code, Deframer, Depths, Fault, Framer, ReadRequest, Segment, Startup, Terminate, describe, opcode,
};

/// The sink STag of [`Session::ping`]. No memory has this STag, since the responses are empty and need no
/// memory.
const PING_SINK: u32 = 0x5049_4e47;
/// The sink STag of [`Session::read`]. A responder copies the STag without checking it (RFC 5040 section
/// 4.4).
const READ_SINK: u32 = 0x0bad_cafe;
/// Maximum length of a meaningful Terminate, bytes: the control field, the segment length, both headers.
const LONGEST_TERMINATE: usize = 52;

/// A received segment, the end of the connection, or neither.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Incoming {
    /// A segment.
    Segment(Segment),
    /// The end of the connection.
    End(End),
    /// Neither a segment nor the end of the connection arrived in time.
    Silence,
}

impl std::fmt::Display for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Segment(segment) => f.write_str(&describe::segment(segment)),
            Self::End(end) => write!(f, "{end}"),
            Self::Silence => f.write_str("nothing"),
        }
    }
}

/// An established connection.
#[derive(Debug)]
pub struct Session {
    conn: Conn,
    framer: Framer,
    deframer: Deframer,
    watch: Watch,
    progress: Progress,
    /// The framing errors of this connection.
    misframed: Vec<String>,
    timeout: Duration,
    quiet: Duration,
    /// Next MSN of the probe's queues 0 to 3.
    pub msn: [u32; 4],
    /// The objects that the target has set up, if there is a target.
    pub stage: Option<Stage>,
    /// The endpoint's startup frame.
    pub frame: Startup,
    /// Maximum number of the probe's Reads that the endpoint serves at a time; `None` if the endpoint did not
    /// announce this number.
    pub peer_ird: Option<u16>,
}

/// The time limits of a session.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Maximum time to wait for an expected message.
    pub timeout: Duration,
    /// Time without a message after which the endpoint counts as silent.
    pub quiet: Duration,
}

impl Session {
    /// Returns a session on a connection whose startup frames have been exchanged: the probe sent `ours`, and
    /// the endpoint sent `frame`.
    pub fn new(conn: Conn, ours: &Startup, frame: Startup, watch: Watch, patience: Patience) -> Self {
        use crate::wire::flag::{C, M};
        let crc = ours.has(C) || frame.has(C);
        let said = |depth: u16| (depth != Depths::UNSAID).then_some(depth);
        let peer_ird = frame.depths().and_then(|depths| said(depths.ird));
        Self {
            conn,
            framer: Framer::new(frame.has(M), crc),
            deframer: Deframer::new(ours.has(M), crc),
            watch,
            progress: Progress::default(),
            misframed: Vec::new(),
            timeout: patience.timeout,
            quiet: patience.quiet,
            msn: [1; 4],
            stage: None,
            frame,
            peer_ird,
        }
    }

    /// Accepts the bytes that arrived right after the startup frame.
    pub fn begin_with(&mut self, bytes: &[u8]) {
        self.deframer.push(bytes);
    }

    /// Returns the connection.
    pub fn conn(&self) -> &Conn {
        &self.conn
    }

    /// Returns region `index` of the stage.
    ///
    /// # Errors
    /// If there is no target, or if the target cannot register such a region.
    pub fn region(&self, index: usize) -> Result<Region, CaseError> {
        self.stage.as_ref().ok_or(CaseError::NeedsTarget)?.region(index)
    }

    /// Whether the probe sends markers to the endpoint.
    pub fn sends_markers(&self) -> bool {
        self.framer.markers
    }

    /// Whether CRCs are in use.
    pub fn uses_crc(&self) -> bool {
        self.framer.crc
    }

    /// Returns the number of bytes of FPDUs sent so far.
    pub fn position(&self) -> u64 {
        self.framer.position
    }

    /// Sends raw bytes.
    pub fn send_bytes(&mut self, bytes: &[u8], text: &str) {
        self.conn.send(bytes, text);
    }

    /// Returns the FPDU of a segment, with `fault`, and does not send it.
    pub fn frame_of(&mut self, segment: &Segment, fault: Fault) -> Vec<u8> {
        self.framer.frame(&segment.bytes, fault)
    }

    /// Sends a segment.
    pub fn send(&mut self, segment: &Segment) {
        self.send_faulty(segment, Fault::default());
    }

    /// Sends a segment in a faulty FPDU.
    pub fn send_faulty(&mut self, segment: &Segment, fault: Fault) {
        let bytes = self.framer.frame(&segment.bytes, fault);
        self.conn.send(&bytes, describe::segment(segment));
    }

    /// Sends segments in one write.
    pub fn send_together(&mut self, segments: &[Segment]) {
        let bytes: Vec<u8> =
            segments.iter().flat_map(|s| self.framer.frame(&s.bytes, Fault::default())).collect();
        let texts: Vec<String> = segments.iter().map(describe::segment).collect();
        self.conn.send(&bytes, texts.join(" | "));
    }

    /// Sends FIN.
    pub fn finish(&mut self) {
        self.conn.finish();
    }

    /// Returns the next MSN of queue `qn`, and increments it.
    pub fn next_msn(&mut self, qn: usize) -> u32 {
        let msn = self.msn[qn];
        self.msn[qn] = msn.wrapping_add(1);
        msn
    }

    /// Sends a Send message.
    pub fn send_message(&mut self, payload: &[u8]) {
        let msn = self.next_msn(0);
        self.send(&Segment::send(msn, payload));
    }

    /// Returns a Read Request with the next MSN. The sink of the Read is `READ_SINK`, with the same tagged
    /// offset as the source.
    pub fn read_request(&mut self, stag: u32, to: u64, size: u32) -> Segment {
        let msn = self.next_msn(1);
        let request =
            ReadRequest { sink_stag: READ_SINK, sink_to: to, size, source_stag: stag, source_to: to };
        Segment::read_request(msn, &request)
    }

    /// Waits for the next segment or the end of the connection.
    pub fn receive(&mut self) -> Incoming {
        self.receive_within(self.timeout)
    }

    fn receive_within(&mut self, time: Duration) -> Incoming {
        let deadline = self.conn.after(time);
        loop {
            if let Some(fpdu) = self.deframer.next_fpdu() {
                for complaint in fpdu.complaints {
                    self.watch.complain(Topic::Fpdu, complaint.clone());
                    self.misframed.push(complaint);
                }
                let segment = Segment { bytes: fpdu.ulpdu };
                self.watch.segment(&segment, &mut self.progress);
                self.conn.log().note(Direction::Received, &segment.bytes, describe::segment(&segment));
                return Incoming::Segment(segment);
            }
            match self.conn.receive(deadline) {
                ReadResult::Bytes(bytes) => self.deframer.push(&bytes),
                ReadResult::End(end) => {
                    if !self.deframer.is_empty() && end == End::Fin {
                        self.watch.complain(Topic::Fpdu, "FIN inside an FPDU".into());
                    }
                    return Incoming::End(end);
                }
                ReadResult::Nothing => return Incoming::Silence,
            }
        }
    }

    /// Checks that every received FPDU of this connection had the right CRC, pad and markers.
    ///
    /// # Errors
    /// A deviation if an FPDU was framed wrongly.
    pub fn expect_well_framed(&self) -> Check {
        require(self.misframed.is_empty(), || self.misframed.join("; "))
    }

    /// Waits for the next segment, which has to have opcode `wanted`.
    ///
    /// # Errors
    /// A deviation if another segment, the end of the connection or no segment arrives.
    pub fn expect(&mut self, wanted: u8) -> Result<Segment, CaseError> {
        match self.receive() {
            Incoming::Segment(segment) if segment.opcode() == wanted => Ok(segment),
            other => deviates(format!("expected {}, got {other}", describe::message(wanted))),
        }
    }

    /// Checks that no byte arrives for the time `quiet`, and that the connection does not end.
    ///
    /// # Errors
    /// A deviation if a byte or the end arrives.
    pub fn expect_silence(&mut self) -> Check {
        match self.receive_within(self.quiet) {
            Incoming::Silence if self.deframer.is_empty() => Ok(()),
            Incoming::Silence => deviates("expected silence, got the front of an FPDU, or a marker"),
            other => deviates(format!("expected silence, got {other}")),
        }
    }

    /// Checks that the stream works: the endpoint answers a zero-length Read, which needs no registered
    /// memory, and sends nothing before the answer.
    ///
    /// # Errors
    /// A deviation if a wrong answer or no answer arrives; `NotApplicable` if the endpoint serves no Reads.
    pub fn ping(&mut self) -> Check {
        if self.peer_ird == Some(0) {
            return Err(CaseError::NotApplicable(
                "the endpoint serves no Reads (IRD 0), which tell that it lives".into(),
            ));
        }
        let msn = self.next_msn(1);
        let request = ReadRequest { sink_stag: PING_SINK, sink_to: u64::from(msn), ..ReadRequest::default() };
        self.send(&Segment::read_request(msn, &request));
        self.expect_pong(msn)
    }

    /// Waits for the answer to a zero-length Read with this MSN.
    ///
    /// # Errors
    /// A deviation if a wrong answer or no answer arrives.
    pub fn expect_pong(&mut self, msn: u32) -> Check {
        let pong = Segment::tagged(opcode::READ_RESPONSE, PING_SINK, u64::from(msn), &[]);
        match self.receive() {
            Incoming::Segment(segment) if segment.means(&pong) => Ok(()),
            other => deviates(format!("expected the answer to a Read of no bytes, got {other}")),
        }
    }

    /// Reads `size` bytes of the endpoint's memory.
    ///
    /// # Errors
    /// A deviation if a wrong answer or no answer arrives.
    pub fn read(&mut self, stag: u32, to: u64, size: u32) -> Result<Vec<u8>, CaseError> {
        let request = self.read_request(stag, to, size);
        self.send(&request);
        self.expect_read(to, size)
    }

    /// Waits for the response to a [`read_request`](Self::read_request), and returns its bytes.
    ///
    /// # Errors
    /// A deviation if a wrong answer or no answer arrives.
    pub fn expect_read(&mut self, to: u64, size: u32) -> Result<Vec<u8>, CaseError> {
        let mut bytes = Vec::new();
        loop {
            let segment = self.expect(opcode::READ_RESPONSE)?;
            let here = to.wrapping_add(bytes.len() as u64);
            require((segment.stag(), segment.to()) == (READ_SINK, here), || {
                format!(
                    "Read Response to {:08x} TO {:x}, expected {READ_SINK:08x} TO {here:x}",
                    segment.stag(),
                    segment.to()
                )
            })?;
            bytes.extend(segment.payload());
            if segment.is_last() {
                let got = bytes.len();
                require(got == size as usize, || format!("a Read of {size} bytes brought {got}"))?;
                return Ok(bytes);
            }
            require(bytes.len() <= size as usize, || format!("a Read of {size} bytes brings more"))?;
        }
    }

    /// Checks that the next message is a Terminate with one of these codes. The case `terminate-is-the-last`
    /// checks that no message follows the Terminate.
    ///
    /// # Errors
    /// A deviation if no such Terminate arrives, or if another segment arrives before it.
    pub fn expect_terminate(&mut self, codes: &[Code]) -> Result<Terminate, CaseError> {
        let (before, terminate) = self.expect_terminate_later(codes)?;
        match before.first() {
            None => Ok(terminate),
            Some(segment) => deviates(format!("{} came before the Terminate", describe::segment(segment))),
        }
    }

    /// Waits for a Terminate with one of these codes, like [`expect_terminate`](Self::expect_terminate), but
    /// accepts segments before the Terminate, and also returns them.
    ///
    /// # Errors
    /// A deviation if no such Terminate arrives.
    pub fn expect_terminate_later(&mut self, codes: &[Code]) -> Result<(Vec<Segment>, Terminate), CaseError> {
        let wanted: Vec<String> = codes.iter().map(Code::to_string).collect();
        let mut before = Vec::new();
        let terminate = loop {
            match self.receive() {
                Incoming::Segment(segment) => match segment.as_terminate() {
                    Some(terminate) => break terminate,
                    None => before.push(segment),
                },
                other => return deviates(format!("expected Terminate {}, got {other}", wanted.join(" or "))),
            }
        };
        require(terminate.bytes.len() <= LONGEST_TERMINATE, || {
            format!(
                "a Terminate of {} bytes, at most {LONGEST_TERMINATE} have a meaning",
                terminate.bytes.len()
            )
        })?;
        // Only the case `terminate-bit-order` judges the bit order, so siw's order is accepted here.
        let known = terminate.is_any_of(codes);
        require(known, || {
            format!("expected Terminate {}, got {}", wanted.join(" or "), describe::terminate(&terminate))
        })?;
        Ok((before, terminate))
    }

    /// Checks that the connection ends, and that no segment arrives before the end.
    ///
    /// # Errors
    /// A deviation if a segment arrives, or if the connection does not end.
    pub fn expect_end(&mut self) -> Result<End, CaseError> {
        match self.receive() {
            Incoming::End(end) => Ok(end),
            other => deviates(format!("expected the end of the connection, got {other}")),
        }
    }

    /// Sends FIN, and waits until the endpoint also ends the connection, but at most for the time limit.
    pub fn close(mut self) {
        self.conn.finish();
        let deadline = self.conn.after(self.timeout);
        while self.conn.after(Duration::ZERO) < deadline {
            if matches!(self.receive(), Incoming::End(_) | Incoming::Silence) {
                return;
            }
        }
    }
}
