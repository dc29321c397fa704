//! Immediate Data (RFC 7306 section 6). These cases do not apply to an endpoint without Immediate Data, which
//! answers it with Terminate 0/2/06 or another code of `ANY_OPERATION`.

use super::codes::{ANY_MSN, ANY_OPERATION, OPERATION_VERSION, UNTAGGED_TOO_LONG};
use crate::case::{Case, CaseError, Check, any, deviates, not_applicable, require};
use crate::probe::Probe;
use crate::scene::Completion;
use crate::session::{Incoming, Session};
use crate::wire::{Segment, crc32c, opcode};

/// The eight bytes of Immediate Data. The first four are the immediate data of verbs.
const DATA: [u8; 8] = [1, 2, 3, 4, 0, 0, 0, 0];

fn immediate(msn: u32) -> Segment {
    Segment::untagged(opcode::IMMEDIATE, 0, msn, &DATA)
}

/// Opens a scene on an endpoint that supports Immediate Data.
fn stage(p: &Probe, scene: &str) -> Result<Session, CaseError> {
    let mut trial = p.stage("recv=1x16")?;
    trial.send(&immediate(1));
    let ping = trial.read_request(0, 0, 0);
    trial.send(&ping);
    match trial.receive() {
        Incoming::Segment(segment)
            if segment.as_terminate().is_some_and(|told| told.is_any_of(ANY_OPERATION)) =>
        {
            return not_applicable("the endpoint has no Immediate Data");
        }
        Incoming::Segment(segment) if segment.opcode() == opcode::READ_RESPONSE => {}
        other => return deviates(format!("Immediate Data is answered by {other}")),
    }
    trial.close();
    p.stage(scene)
}

/// Whether a completion reports the eight bytes of [`DATA`], as Immediate Data or as a received message.
fn is_data(completion: &Completion) -> bool {
    match completion.kind.as_str() {
        "I" => (completion.length == 0 && completion.crc == 0x0102_0304) || completion.crc == crc32c(&DATA),
        "R" => completion.length == 8 && completion.crc == crc32c(&DATA),
        _ => false,
    }
}

fn refused(p: &Probe, codes: &[crate::wire::Code], segment: &Segment) -> Check {
    let mut session = stage(p, "recv=2x16")?;
    session.ping()?;
    session.send(segment);
    session.expect_terminate(codes)?;
    let received = p.report(session)?.received().len();
    require(received == 0, || format!("{received} messages were received"))
}

fn received(p: &Probe, segments: &[Segment]) -> Check {
    let mut session = stage(p, "recv=1x16")?;
    for segment in segments {
        session.send(segment);
    }
    session.ping()?;
    let report = p.report(session)?;
    let got = report.received();
    require(got.len() == 1 && is_data(got[0]), || format!("the target received {got:x?}"))
}

pub(super) const CASES: &[Case] = &[
    any("immediate-received", "EXT-121 EXT-197")
        .about("Immediate Data takes a receive and is told to the target")
        .run(|p| received(p, &[immediate(1)])),
    any("immediate-se-received", "EXT-121 EXT-197")
        .about("the same with Solicited Event")
        .run(|p| received(p, &[Segment::untagged(opcode::IMMEDIATE_SE, 0, 1, &DATA)])),
    any("immediate-in-two-segments", "EXT-200")
        .about("what counts is the length of the message: four bytes and four are eight")
        .run(|p| {
            received(
                p,
                &[
                    Segment::untagged(opcode::IMMEDIATE, 0, 1, &DATA[..4]).not_last(),
                    Segment::untagged(opcode::IMMEDIATE, 0, 1, &DATA[4..]).at_offset(4),
                ],
            )
        }),
    any("immediate-reserved-fields", "EXT-169")
        .about("reserved bits and the Invalidate STag are not looked at")
        .run(|p| received(p, &[immediate(1).control(0x7d).rdmap(0x78).invalidating(0x1234_5678)])),
    any("immediate-between-sends", "EXT-121 EXT-123 EXT-134")
        .about("Send, Immediate Data, Send: MSN 1, 2, 3, received in this order")
        .run(|p| {
            let mut session = stage(p, "recv=3x16")?;
            session.send_together(&[Segment::send(1, b"one"), immediate(2), Segment::send(3, b"three")]);
            session.ping()?;
            let report = p.report(session)?;
            let got = report.received();
            let fine = got.len() == 3
                && (got[0].length, got[0].crc) == (3, crc32c(b"one"))
                && is_data(got[1])
                && (got[2].length, got[2].crc) == (5, crc32c(b"three"));
            require(fine, || format!("the target received {got:x?}"))
        }),
    any("write-then-immediate", "EXT-135").about("Immediate Data behind a Write: both are there").run(|p| {
        let mut session = stage(p, "mr=64:rw recv=1x16")?;
        let region = session.region(0)?;
        session.send_together(&[Segment::write(region.stag, region.to, b"data"), immediate(1)]);
        session.ping()?;
        let report = p.report(session)?;
        require(report.received().len() == 1, || "not received".into())?;
        report.expect_written(0, 0, b"data")
    }),
    any("immediate-of-7-bytes", "EXT-127")
        .about("seven bytes: an error and a Terminate, not received")
        .run(|p| refused(p, ANY_OPERATION, &Segment::untagged(opcode::IMMEDIATE, 0, 1, &DATA[..7]))),
    any("immediate-of-9-bytes", "EXT-127").about("nine bytes: an error and a Terminate, not received").run(
        |p| {
            let codes = [ANY_OPERATION, &[UNTAGGED_TOO_LONG]].concat();
            refused(p, &codes, &Segment::untagged(opcode::IMMEDIATE, 0, 1, &[1; 9]))
        },
    ),
    any("immediate-of-no-bytes", "EXT-127")
        .about("no bytes: an error and a Terminate, not received")
        .run(|p| refused(p, ANY_OPERATION, &Segment::untagged(opcode::IMMEDIATE, 0, 1, &[]))),
    any("immediate-of-a-wrong-version", "EXT-151")
        .about("RDMAP version 2: Terminate 0/2/05, not received")
        .run(|p| refused(p, &[OPERATION_VERSION], &immediate(1).rdmap(0x88))),
    any("immediate-on-queue-1", "EXT-150")
        .about("Immediate Data on the queue of Read Requests: a Remote Operation Error")
        .run(|p| refused(p, ANY_OPERATION, &Segment::untagged(opcode::IMMEDIATE, 1, 2, &DATA))),
    any("immediate-tagged", "EXT-150")
        .about("Immediate Data with T set: a Remote Operation Error")
        .run(|p| refused(p, ANY_OPERATION, &Segment::tagged(opcode::IMMEDIATE, 0, 0, &[]))),
    any("immediate-without-a-buffer", "EXT-149")
        .about("Immediate Data for which no receive is posted: Terminate 1/2/02")
        .run(|p| {
            let mut session = stage(p, "mr=64:r")?;
            session.ping()?;
            session.send(&immediate(1));
            session.expect_terminate(ANY_MSN).map(|_| ())
        }),
    any("does-immediate", "EXT-023 EXT-120 EXT-124 EXT-125 EXT-026")
        .about("Immediate Data of the target: untagged, queue 0, eight bytes")
        .run(|p| {
            let mut session = stage(p, "recv=1x16 then=m")?;
            session.send_message(b"go");
            let segment = session.expect(opcode::IMMEDIATE)?;
            let placed = !segment.is_tagged() && segment.is_last() && (segment.qn(), segment.mo()) == (0, 0);
            let data = segment.payload().len() == 8 && segment.payload().starts_with(&DATA[..4]);
            require(placed && data, || format!("got {}", crate::wire::describe::segment(&segment)))
        }),
];
