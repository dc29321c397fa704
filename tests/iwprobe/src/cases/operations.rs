//! Requests that the target posts (RFC 5040 sections 5.1 to 5.3, 5.5; RFC 5041 section 5).

use super::codes::{ANY_OPERATION, TAGGED_BOUNDS, TAGGED_STAG, TAGGED_WRAP};
use crate::case::{Case, CaseError, Check, any, require, responder};
use crate::probe::Probe;
use crate::scene::{SOURCE_PATTERN, pattern};
use crate::session::Session;
use crate::wire::{Code, ReadRequest, Segment, crc32c, describe, opcode};

const STAG: u32 = 0x1122_3344;
const TO: u64 = 0x0001_0203_0405_0607;

/// Makes the target post `operations` once the probe's Send has arrived.
fn doing(p: &Probe, operations: &str) -> Result<Session, CaseError> {
    let mut session = p.stage(&format!("recv=1x16 peer={STAG:x}:{TO:x} then={operations}"))?;
    session.send_message(b"go");
    Ok(session)
}

/// Receives the segments of one message with this opcode.
fn message(session: &mut Session, opcode: u8) -> Result<Vec<Segment>, CaseError> {
    let mut segments = vec![session.expect(opcode)?];
    while !segments[segments.len() - 1].is_last() {
        segments.push(session.expect(opcode)?);
    }
    Ok(segments)
}

fn payload(segments: &[Segment]) -> Vec<u8> {
    segments.iter().flat_map(|segment| segment.payload().to_vec()).collect()
}

fn wrote(p: &Probe, length: usize) -> Check {
    let mut session = doing(p, &format!("w{length}"))?;
    let segments = message(&mut session, opcode::WRITE)?;
    let mut to = TO;
    for segment in &segments {
        let wanted = Segment::write(STAG, to, segment.payload());
        require(segment.is_tagged() && (segment.stag(), segment.to()) == (STAG, to), || {
            format!("got {}, expected {}", describe::segment(segment), describe::segment(&wanted))
        })?;
        to = to.wrapping_add(segment.payload().len() as u64);
    }
    require(payload(&segments) == pattern(SOURCE_PATTERN, length), || "other bytes than the target's".into())
}

fn sent(p: &Probe, operation: &str, opcode: u8, length: usize, invalidates: bool) -> Check {
    let mut session = doing(p, &format!("{operation}{length}"))?;
    let segments = message(&mut session, opcode)?;
    let mut mo = 0;
    let stag = if invalidates { STAG } else { 0 };
    for segment in &segments {
        let place = (segment.is_tagged(), segment.qn(), segment.msn(), segment.mo(), segment.stag());
        require(place == (false, 0, segments[0].msn(), mo, stag), || {
            format!("got {}", describe::segment(segment))
        })?;
        mo += segment.payload().len() as u32;
    }
    require(payload(&segments) == pattern(SOURCE_PATTERN, length), || "other bytes than the target's".into())
}

/// Receives the target's Read Request, and checks it.
fn asked(session: &mut Session, size: u32) -> Result<ReadRequest, CaseError> {
    let segment = session.expect(opcode::READ_REQUEST)?;
    let read = segment.as_read_request().unwrap_or_default();
    require(segment.bytes.len() == 46 && segment.is_last(), || "not one segment of 46 bytes".into())?;
    require(!segment.is_tagged() && segment.qn() == 1, || format!("got {}", describe::segment(&segment)))?;
    require((read.size, read.source_stag, read.source_to) == (size, STAG, TO), || {
        format!("got {}", describe::segment(&segment))
    })?;
    Ok(read)
}

fn response(read: &ReadRequest, offset: usize, bytes: &[u8]) -> Segment {
    Segment::tagged(opcode::READ_RESPONSE, read.sink_stag, read.sink_to.wrapping_add(offset as u64), bytes)
}

/// Answers the target's Read with `answer`. The Read has to complete with `bytes`.
fn read(p: &Probe, bytes: &[u8], answer: impl FnOnce(&ReadRequest) -> Vec<Segment>) -> Check {
    let mut session = doing(p, &format!("r{}", bytes.len()))?;
    let read = asked(&mut session, bytes.len() as u32)?;
    for segment in answer(&read) {
        session.send(&segment);
    }
    session.ping()?;
    let report = p.report(session)?;
    let done = report.completions.iter().find(|completion| completion.kind == "r");
    require(
        done.is_some_and(|c| c.status == 0 && c.length == bytes.len() as u64 && c.crc == crc32c(bytes)),
        || format!("the target's Read completed as {done:x?}"),
    )
}

/// Answers the target's Read of 64 bytes wrongly. The endpoint has to send a Terminate with one of `codes`,
/// and the Read must not complete with success.
fn bad_response(p: &Probe, codes: &[Code], answer: impl FnOnce(&ReadRequest) -> Segment) -> Check {
    let mut session = doing(p, "r64")?;
    let read = asked(&mut session, 64)?;
    session.send(&answer(&read));
    session.expect_terminate(codes)?;
    let report = p.report(session)?;
    let well = report.completions.iter().any(|c| c.kind == "r" && c.status == 0);
    require(!well, || "the Read is said to have succeeded".into())
}

pub(super) const CASES: &[Case] = &[
    any("does-write", "DDP-062 DDP-070 RDMAP-116 RDMAP-196 RDMAP-090")
        .about("a Write of the target: tagged, our STag and offset, its bytes")
        .run(|p| wrote(p, 100)),
    any("does-long-write", "DDP-065 DDP-072 DDP-105 DDP-108 DDP-116 DDP-126 RDMAP-204 DDP-049 MPA-017")
        .about("a Write of 65536 bytes, more than an FPDU holds, is cut: TO upwards, L on the last one")
        .run(|p| wrote(p, 65_536)),
    any("does-write-of-no-bytes", "DDP-118 RDMAP-205").about("a Write of no bytes is one segment of 14").run(
        |p| {
            let mut session = doing(p, "w0")?;
            let segment = session.expect(opcode::WRITE)?;
            require(segment.bytes.len() == 14 && segment.is_last(), || {
                format!("got {}", describe::segment(&segment))
            })
        },
    ),
    any("does-send", "DDP-079 RDMAP-130 RDMAP-234 RDMAP-243 RDMAP-098")
        .about("a Send of the target: untagged, queue 0, no Invalidate STag")
        .run(|p| sent(p, "s", opcode::SEND, 100, false)),
    any("does-long-send", "DDP-052 DDP-082 DDP-086 DDP-092 DDP-095 DDP-111 DDP-125")
        .about("a Send of 65536 bytes, more than an FPDU holds, is cut: same header, MO from 0 upwards")
        .run(|p| sent(p, "s", opcode::SEND, 65_536, false)),
    any("does-send-of-no-bytes", "DDP-118 RDMAP-245").about("a Send of no bytes is one segment of 18").run(
        |p| {
            let mut session = doing(p, "s0")?;
            let segment = session.expect(opcode::SEND)?;
            require(segment.bytes.len() == 18 && segment.is_last(), || {
                format!("got {}", describe::segment(&segment))
            })
        },
    ),
    any("does-send-se", "RDMAP-090 RDMAP-130 RDMAP-243")
        .about("a solicited Send is opcode 5")
        .run(|p| sent(p, "e", opcode::SEND_SE, 9, false)),
    any("does-send-invalidate", "RDMAP-087 RDMAP-131 RDMAP-247")
        .about("a Send with Invalidate is opcode 4 and carries our STag")
        .run(|p| sent(p, "i", opcode::SEND_INVALIDATE, 9, true)),
    any("does-send-se-invalidate", "RDMAP-087 RDMAP-131 RDMAP-247")
        .about("a solicited one is opcode 6")
        .run(|p| sent(p, "j", opcode::SEND_SE_INVALIDATE, 9, true)),
    any("does-several-sends", "DDP-089 DDP-124 RDMAP-244")
        .about("Sends leave in the order posted, MSN by MSN")
        .run(|p| {
            let mut session = doing(p, "s1,s2,e3,s4")?;
            let mut msn = None;
            for length in 1..=4 {
                let segment = match session.receive() {
                    crate::session::Incoming::Segment(segment) => segment,
                    other => return crate::case::deviates(format!("expected a Send, got {other}")),
                };
                require(segment.payload().len() == length, || {
                    format!("a Send of {} bytes", segment.payload().len())
                })?;
                let due = msn.map_or(segment.msn(), |msn: u32| msn + 1);
                require(segment.msn() == due, || format!("MSN {}, expected {due}", segment.msn()))?;
                msn = Some(due);
            }
            Ok(())
        }),
    any("does-all-in-order", "DDP-124 RDMAP-285")
        .about("Writes, Sends and a Read leave in the order posted")
        .run(|p| {
            let mut session = doing(p, "w8,s8,w3000@64,r8,s4")?;
            for opcode in [opcode::WRITE, opcode::SEND, opcode::WRITE, opcode::READ_REQUEST, opcode::SEND] {
                message(&mut session, opcode)?;
            }
            Ok(())
        }),
    any("does-read", "RDMAP-117 RDMAP-119 RDMAP-207 RDMAP-212 RDMAP-227 RDMAP-294")
        .about("a Read of the target: 28 bytes on queue 1; our response completes it")
        .run(|p| read(p, &[0x5a; 64], |read| vec![response(read, 0, &[0x5a; 64])])),
    any("does-read-answered-in-segments", "RDMAP-227 RDMAP-270 DDP-109")
        .about("a response in many segments completes the Read when the last one has come")
        .run(|p| {
            let bytes: Vec<u8> = (0..5000).map(|n: usize| (n / 9) as u8).collect();
            read(p, &bytes.clone(), |read| {
                let last = bytes.chunks(700).count() - 1;
                let cut = bytes.chunks(700).enumerate();
                cut.map(|(n, chunk)| {
                    let segment = response(read, n * 700, chunk);
                    if n < last { segment.not_last() } else { segment }
                })
                .collect()
            })
        }),
    any("does-read-of-no-bytes", "RDMAP-219 RDMAP-227")
        .about("a Read of no bytes is asked for, and completes")
        .run(|p| read(p, &[], |read| vec![response(read, 0, &[])])),
    any("does-read-not-complete-before-last", "RDMAP-291 DDP-135")
        .about("a Read is not complete before the last segment of its response, though all bytes are there")
        .run(|p| {
            let mut session = doing(p, "r64")?;
            let read = asked(&mut session, 64)?;
            session.send(&response(&read, 0, &[1; 64]).not_last());
            let report = p.report(session)?;
            let well = report.completions.iter().any(|c| c.kind == "r" && c.status == 0);
            require(!well, || "the Read is said to have succeeded".into())
        }),
    responder("does-reads-within-ord", "RDMAP-303 RDMAP-305 SEC-150")
        .about("with ORD 2 there are never more than two Reads unanswered")
        .run(|p| {
            let words = format!("recv=1x16 ord=2 peer={STAG:x}:{TO:x} then=r8,r8,r8,r8,r8");
            let mut session = p.stage(&words)?;
            session.send_message(b"go");
            let mut waiting = std::collections::VecDeque::new();
            for _ in 0..2 {
                waiting.push_back(asked(&mut session, 8)?);
            }
            session.expect_silence()?;
            for answered in 0..5 {
                let read: ReadRequest = waiting.pop_front().unwrap_or_default();
                session.send(&response(&read, 0, &[6; 8]));
                if answered < 3 {
                    waiting.push_back(asked(&mut session, 8)?);
                }
            }
            session.ping()
        }),
    any("does-fenced-write", "").about("a fenced Write waits until the Read before it has completed").run(
        |p| {
            let mut session = doing(p, "r8,w8+")?;
            let read = asked(&mut session, 8)?;
            session.expect_silence()?;
            session.send(&response(&read, 0, &[6; 8]));
            session.expect(opcode::WRITE).map(|_| ())
        },
    ),
    any("response-beyond-its-sink", "")
        .about("a response one byte longer than asked for: an error, the Read does not succeed")
        .run(|p| {
            bad_response(p, &[TAGGED_BOUNDS, TAGGED_STAG, Code(0, 2, 0x06), Code(0, 2, 0xff)], |read| {
                response(read, 0, &[1; 65])
            })
        }),
    any("response-to-another-stag", "")
        .about("a response to an STag that nobody registered: an error, the Read does not succeed")
        .run(|p| {
            let codes = [ANY_OPERATION, &[TAGGED_STAG, TAGGED_BOUNDS]].concat();
            bad_response(p, &codes, |_| Segment::tagged(opcode::READ_RESPONSE, 0xdead_be00, 0, &[1; 64]))
        }),
    any("response-offset-wraps", "RDMAP-124")
        .about("a response whose offset wraps: an error, the Read does not succeed")
        .run(|p| {
            let codes = [ANY_OPERATION, &[TAGGED_WRAP, TAGGED_BOUNDS]].concat();
            bad_response(p, &codes, |read| {
                Segment::tagged(opcode::READ_RESPONSE, read.sink_stag, u64::MAX, &[1; 64])
            })
        }),
    any("write-into-a-read-sink", "")
        .about("a Write to the sink of a Read, which was not offered for it: an error")
        .run(|p| {
            let codes = [TAGGED_STAG, Code(0, 1, 0x02), Code(1, 1, 0x02)];
            bad_response(p, &codes, |read| Segment::write(read.sink_stag, read.sink_to, &[1; 64]))
        }),
];
