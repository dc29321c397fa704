//! Compares RDMAP's receive checks with the reference model: which segments are accepted, and the exact
//! Terminate for each refused segment.
//!
//! `Receiver` below calls the checks in the order in which the engine calls them; `reference/rdmap_ref.py`
//! computes the expected result.

use std::fmt::Write as _;
use std::sync::Arc;

use crate::common::oracle::{hex, oracle};
use iwarp::ddp::{DdpError, Header, TaggedHeader, UntaggedQueue, tagged};
use iwarp::memory::{
    Access, Accessor, Base, MemoryTable, Participant, PdId, RegisterOptions, Registration, Stag, StreamId,
};
use iwarp::rdmap::opcode::invalidate_stag;
use iwarp::rdmap::read_sink::ReadProgress;
use iwarp::rdmap::{Extensions, Opcode, Queue, ReadRequest, ReadSink, Terminate, TerminateError};
use testkit::dice::Dice;

const ME: Accessor = Accessor { pd: PdId(1), stream: StreamId(1) };
const IRD: u32 = 2;
const SEND_BUFFER: u64 = 64;

/// A stream whose segments arrive in order, with one receive of 64 bytes and no outstanding Read.
struct Receiver {
    participant: Participant,
    queues: [UntaggedQueue; 3],
}

/// Why a segment is refused, and the refused Read Request if the segment is a valid one.
struct Refusal {
    error: TerminateError,
    request: Option<ReadRequest>,
}

impl From<TerminateError> for Refusal {
    fn from(error: TerminateError) -> Self {
        Self { error, request: None }
    }
}

impl From<DdpError> for Refusal {
    fn from(error: DdpError) -> Self {
        TerminateError::from(error).into()
    }
}

impl Receiver {
    fn new(table: &MemoryTable) -> Self {
        let mut queues = [UntaggedQueue::new(); 3];
        assert!(queues[0].post(1) && queues[1].post(IRD) && queues[2].post(1));
        Self { participant: table.join(), queues }
    }

    /// Checks the segment. Returns the Terminate that answers the segment if it is refused.
    fn receive(&mut self, segment: &[u8]) -> Result<(), Terminate> {
        self.checked(segment)
            .map_err(|refusal| Terminate::of_segment(refusal.error, segment, segment.len(), refusal.request))
    }

    fn checked(&mut self, segment: &[u8]) -> Result<(), Refusal> {
        let header = Header::parse(segment).map_err(TerminateError::from)?;
        let payload = &segment[header.wire_len()..];
        let epoch = self.participant.enter();
        match &header {
            Header::Tagged(header) => {
                tagged::check(header, payload.len(), ME, &epoch)?;
            }
            Header::Untagged(header) => {
                let queue = Queue::open(header.qn, Extensions::empty())?;
                let size = match queue {
                    Queue::Send => SEND_BUFFER,
                    Queue::ReadRequest => ReadRequest::LEN as u64,
                    _ => Terminate::MAX_LEN as u64,
                };
                let queue = &mut self.queues[queue.index()];
                queue.check(header, payload.len(), |_| size)?;
                queue.deliver(header, payload.len())?;
            }
        }
        if !header.last() {
            return Ok(());
        }
        match Opcode::check(&header, Extensions::empty())? {
            Opcode::ReadResponse => return Err(TerminateError::UnexpectedOpcode.into()),
            Opcode::ReadRequest => {
                let request = ReadRequest::parse(payload)?;
                if request.size > 0 {
                    let (stag, to, size) = (request.source_stag, request.source_to, request.size);
                    epoch.check_read(stag, to, size.into(), ME).map_err(|fault| Refusal {
                        error: TerminateError::of_read_fault(fault),
                        request: Some(request),
                    })?;
                }
            }
            opcode if opcode.invalidates() => {
                let Header::Untagged(header) = &header else { unreachable!("a Send is untagged") };
                epoch
                    .invalidate_remote(invalidate_stag(header), ME)
                    .map_err(TerminateError::of_invalidate_fault)?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the registrations of the model's own cases: one for reading and writing, one for writing, and one
/// for reading. Another registration belongs to another stream, and the last registration ends at 2^64.
fn registrations(table: &MemoryTable) -> Vec<Registration> {
    let write = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let both = write | Access::REMOTE_READ;
    [
        (both, 1, 0x1000),
        (write, 1, 0x1000),
        (Access::REMOTE_READ, 1, 0x1000),
        (both, 9, 0x1000),
        (both, 1, u64::MAX - 255),
    ]
    .into_iter()
    .map(|(access, stream, base)| {
        let stream = Some(StreamId(stream));
        let options =
            RegisterOptions { pd: ME.pd, stream, access, base: Base::Iova(base), key: 0, keep: false };
        table.register(Arc::new(dp::Region::new(256).unwrap()), &options).unwrap()
    })
    .collect()
}

/// Each input line has five STags, then a segment. Prints `ok`, `runt`, or the payload of the Terminate.
const DRIVER: &str = r"
import sys
from rdmap_ref import Receiver
for line in sys.stdin:
    *stags, seg = line.split()
    a, b, c, d, e = (int(x) for x in stags)
    r = Receiver()
    r.stags = {a: [4096, 256, 'rw', 1], b: [4096, 256, 'w', 1], c: [4096, 256, 'r', 1],
               d: [4096, 256, 'rw', 9], e: [2 ** 64 - 256, 256, 'rw', 1]}
    try: what, val = r.rx(bytes.fromhex(seg) if seg != '-' else b'')
    except ValueError: print('runt'); continue
    print('ok' if what == 'ok' else val.hex())
";

/// Returns a segment that is valid or has one or several faults, with values close to every limit of the
/// checks.
fn segment(dice: &mut Dice, stags: &[u32]) -> Vec<u8> {
    let wild = dice.number() as u32;
    let stag = dice.pick(&[stags[0], stags[0], stags[1], stags[2], stags[3], stags[4], wild, 0]);
    let to = dice.pick(&[
        0x1000,
        0x1000,
        0xFFF,
        0x1001,
        0x10FF,
        0x1100,
        0,
        u64::MAX,
        u64::MAX - 255,
        u64::MAX - 8,
    ]);
    let control = dice.pick(&[0x40, 0x40, 0x40, 0x40, 0x40, 0x70, 0x00, 0x80, 0xC0])
        | dice.pick(&[0, 0, 0, 1, 1, 1, 1, 2, 3, 3, 3, 4, 4, 5, 6, 6, 7, 8, 9, 10, 11, 12, 15]);
    let opcode = control & 0x0F;
    let tagged = if dice.one_in(16) { dice.one_in(2) } else { matches!(opcode, 0 | 2) };
    let first = dice.pick(&[0x41, 0x41, 0x41, 0x41, 0x41, 0x7D, 0x01, 0x40, 0x42, 0x43]);
    let mut bytes = vec![first | if tagged { 0x80 } else { 0 }, control];
    if tagged {
        bytes.extend(stag.to_be_bytes());
        bytes.extend(to.to_be_bytes());
        bytes.resize(14 + dice.pick(&[0, 1, 2, 8, 255, 256, 257]), 0x77);
    } else {
        let right_qn = match opcode {
            1 => 1,
            7 => 2,
            _ => 0,
        };
        let qn = dice.pick(&[right_qn, right_qn, right_qn, right_qn, 0, 1, 2, 3, u32::MAX]);
        bytes.extend(stag.to_be_bytes());
        bytes.extend(qn.to_be_bytes());
        // MSN 2 is never sent: queue 1 has two buffers, and this model would deliver the second buffer before
        // the first one.
        bytes.extend(dice.pick(&[1_u32, 1, 1, 1, 1, 0, 3, 4]).to_be_bytes());
        bytes.extend(dice.pick(&[0_u32, 0, 0, 0, 0, 0, 1, 27, 63, 65, u32::MAX]).to_be_bytes());
        if opcode == 1 && !dice.one_in(8) {
            let size = dice.pick(&[0, 1, 8, 16, 255, 256, 257, u32::MAX]);
            let (sink_stag, sink_to) = (Stag(7), dice.number());
            let request = ReadRequest { sink_stag, sink_to, size, source_stag: Stag(stag), source_to: to };
            bytes.extend(request.to_bytes());
        } else {
            bytes.resize(18 + dice.pick(&[0, 1, 5, 20, 28, 29, 52, 63, 64, 65]), 0x66);
        }
    }
    if dice.one_in(50) {
        bytes.truncate((dice.number() % 19) as usize);
    }
    bytes
}

/// Each of twelve thousand segments arrives on a fresh stream. The stream accepts or refuses the segment as
/// the model does, with the model's Terminate byte for byte.
// Proves RDMAP-093, RDMAP-095, RDMAP-108, RDMAP-128, RDMAP-192 to RDMAP-194, RDMAP-220, RDMAP-221, RDMAP-249
// to RDMAP-251.
#[test]
fn every_answer_is_the_models() {
    let table = MemoryTable::new(8, [0x50; 32]);
    let mut dice = Dice::split_mix(0x5040);
    let mut registered = registrations(&table);
    let (mut input, mut ours) = (String::new(), Vec::new());
    for _ in 0..12_000 {
        let stags: Vec<u32> = registered.iter().map(|r| r.stag().0).collect();
        let segment = segment(&mut dice, &stags);
        let bytes = if segment.is_empty() { "-".to_owned() } else { hex(&segment) };
        let [a, b, c, d, e] = stags[..] else { unreachable!("five registrations") };
        writeln!(input, "{a} {b} {c} {d} {e} {bytes}").unwrap();
        let answer = match Receiver::new(&table).receive(&segment) {
            Ok(()) => "ok".to_owned(),
            Err(_)
                if Header::parse(&segment)
                    .is_err_and(|e| TerminateError::from(e) == TerminateError::MpaMarker) =>
            {
                "runt".to_owned()
            }
            Err(terminate) => hex(&terminate.to_bytes()),
        };
        ours.push((bytes, answer));
        if registered.iter().any(|r| !r.is_valid()) {
            registered.clear();
            registered = registrations(&table);
        }
    }
    let model = oracle(DRIVER, &input);
    let mut answers = std::collections::BTreeMap::<String, u32>::new();
    for ((segment, ours), model) in ours.iter().zip(model.lines()) {
        assert_eq!(normal(ours, segment), normal(model, segment), "{segment}");
        *answers.entry(model.chars().take(4).collect()).or_default() += 1;
    }
    assert_eq!(model.lines().count(), ours.len());
    // The run has to contain each of these answers to a segment.
    for answer in ["ok", "runt", "0100", "0101", "0102", "0103", "0104", "0109", "0205", "0206", "02ff"]
        .into_iter()
        .chain(["1100", "1101", "1102", "1103", "1104", "1201", "1202", "1203", "1204", "1205", "1206"])
    {
        assert!(answers.contains_key(answer), "{answer} was never met: {answers:?}");
    }
}

/// Returns the same text for two answers that both conform to RFC 5041, which sets no precedence. If MO
/// equals the buffer's size, this model says "invalid MO", and DDP's own model, which the engine follows,
/// says "too long".
fn normal(answer: &str, segment: &str) -> String {
    let untagged = !matches!(segment.as_bytes()[0], b'8'..=b'9' | b'a'..=b'f');
    if untagged && (answer.starts_with("1204") || answer.starts_with("1205")) {
        let mo = &segment[28..36];
        let qn = &segment[12..20];
        let edge = match qn {
            "00000000" => "00000040",
            "00000001" => "0000001c",
            _ => "00000034",
        };
        if mo == edge {
            return format!("120x{}", &answer[4..]);
        }
    }
    answer.to_owned()
}

fn response(stag: u32, to: u64, last: bool) -> TaggedHeader {
    Opcode::ReadResponse.tagged_header(Stag(stag), to, last)
}

/// A response is placed only inside the sink of its Read, and is delivered without a gap up to the end of the
/// sink.
// Proves RDMAP-229, RDMAP-231.
#[test]
fn a_read_response_stays_in_its_sink() {
    let mut sink = ReadSink::new(Stag(5), 0x100, 10);
    assert_eq!(sink.check(&response(5, 0x104, false), 6), Ok(4));
    for (header, len, error) in [
        (response(6, 0x100, false), 1, DdpError::InvalidStag),
        (response(5, 0xFF, false), 2, DdpError::BaseOrBounds),
        (response(5, 0x100, false), 11, DdpError::BaseOrBounds),
        (response(5, 0x10A, false), 1, DdpError::BaseOrBounds),
        (response(5, u64::MAX, false), 1, DdpError::ToWrap),
        (response(5, 0, false), 1, DdpError::BaseOrBounds),
    ] {
        assert_eq!(sink.check(&header, len), Err(error));
        assert_eq!(sink.deliver(&header, len), Err(error.into()));
    }
    assert_eq!(sink.deliver(&response(5, 0x100, false), 4), Ok(ReadProgress::Partial));
    // Delivered bytes are not overwritten. Bytes that would leave a gap are placed but not delivered.
    assert_eq!(sink.check(&response(5, 0x103, false), 2), Err(DdpError::BaseOrBounds));
    assert_eq!(sink.check(&response(5, 0x105, true), 5), Ok(5));
    assert_eq!(sink.deliver(&response(5, 0x105, true), 5), Err(TerminateError::DdpBounds));
    // A response that ends early is an error: the Read would contain bytes that never arrived.
    assert_eq!(sink.clone().deliver(&response(5, 0x104, true), 5), Err(TerminateError::OperationUnspecified));
    assert_eq!(sink.deliver(&response(5, 0x104, true), 6), Ok(ReadProgress::Complete));
}

/// The range of the sink may end anywhere in the 64-bit space. The response to an empty Read may have any
/// STag and offset.
#[test]
fn read_sinks_at_the_edges() {
    let mut empty = ReadSink::new(Stag(5), 0x100, 0);
    assert_eq!(empty.deliver(&response(0, u64::MAX, true), 0), Ok(ReadProgress::Complete));
    assert_eq!(empty.check(&response(5, 0x100, true), 1), Err(DdpError::BaseOrBounds));
    let top = ReadSink::new(Stag(5), u64::MAX - 3, 4);
    assert_eq!(top.check(&response(5, u64::MAX - 3, false), 3), Ok(0));
    assert_eq!(top.check(&response(5, u64::MAX, true), 1), Err(DdpError::ToWrap));
    let low = ReadSink::new(Stag(5), 0, u32::MAX);
    assert_eq!(low.check(&response(5, u64::MAX - 8, false), 4), Err(DdpError::BaseOrBounds));
}
