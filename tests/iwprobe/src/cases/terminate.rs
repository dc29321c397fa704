//! The Terminate message, sent and received (RFC 5040 sections 4.8, 5.4, 6.2, 7.1).

use super::codes::{LLP_CRC, OPERATION_VERSION, PROTECTION_STAG, TAGGED_STAG};
use crate::case::{Case, CaseError, Check, any, deviates, not_applicable, require};
use crate::probe::Probe;
use crate::session::{Incoming, Session};
use crate::wire::{Fault, Segment, Terminate, describe, opcode};

fn running(p: &Probe) -> Result<Session, CaseError> {
    let mut session = p.plain()?;
    session.ping()?;
    Ok(session)
}

/// Checks the fields that the flags M, D and R of a Terminate announce: segment length, DDP header, RDMAP
/// header.
fn echoed(told: &Terminate, failed: &Segment) -> Check {
    let (m, d, r) = told.any_header_control();
    if m {
        let length = told.segment_length();
        let whole = failed.bytes.len() as u16;
        require(length == Some(whole), || {
            format!("segment length {length:?}, the segment had {whole} bytes")
        })?;
    }
    if d {
        require(told.ddp_header() == failed.header(), || {
            format!(
                "header {}, sent was {}",
                describe::hex(told.ddp_header()),
                describe::hex(failed.header())
            )
        })?;
    }
    if r {
        let header = told.rdmap_header();
        require(header.starts_with(failed.payload()), || {
            format!("Read Request {}, sent was {}", describe::hex(header), describe::hex(failed.payload()))
        })?;
    }
    Ok(())
}

fn layout(p: &Probe, make: impl FnOnce(&mut Session) -> Segment, code: crate::wire::Code) -> Check {
    let mut session = running(p)?;
    let segment = make(&mut session);
    session.send(&segment);
    let told = session.expect_terminate(&[code])?;
    echoed(&told, &segment)
}

/// Sends Terminates. They have to end the stream, and the endpoint must not answer them with a segment. A
/// target has to report that the connection ended, with `code` if its stack reports codes.
fn not_answered(p: &Probe, mut session: Session, terminates: &[Segment], code: Option<&str>) -> Check {
    session.send_together(terminates);
    match session.receive() {
        Incoming::End(_) => {}
        Incoming::Silence => {
            // The endpoint may wait for the probe's FIN.
            session.finish();
            session.expect_end()?;
        }
        Incoming::Segment(segment) => {
            return deviates(format!("answered by {}", describe::segment(&segment)));
        }
    }
    if !p.has_target() {
        return Ok(());
    }
    let end = p.report(session)?.end;
    require(end != "open", || "the target saw no end".into())?;
    let told = end.strip_prefix("got:");
    require(told.is_none() || code.is_none() || told == code, || format!("the target was told {end}"))
}

pub(super) const CASES: &[Case] = &[
    any("terminate-bit-order", "RDMAP-134")
        .about("layer is the upper half of the first byte, type the lower one: 02 05 for a version error")
        .run(|p| {
            let mut session = running(p)?;
            session.send(&Segment::write(0, 0, &[]).rdmap(0x80));
            let told = session.expect_terminate(&[OPERATION_VERSION])?;
            require(told.code() == OPERATION_VERSION, || {
                format!("{}: read by RFC 5040 it is code {}", describe::hex(&told.bytes), told.code())
            })?;
            require(told.reserved() == 0, || format!("reserved bits {:04x}", told.reserved()))
        }),
    any("terminate-reserved-bits-zero", "RDMAP-175")
        .about("the 13 reserved bits behind M, D and R are zero")
        .run(|p| {
            let mut session = running(p)?;
            session.send(&Segment::write(0xdead_be00, 0, b"data"));
            let told = session.expect_terminate(&[TAGGED_STAG])?;
            require(told.any_reserved() == 0, || format!("reserved bits {:04x}", told.any_reserved()))
        }),
    any("terminate-on-queue-2", "RDMAP-253 RDMAP-254 RDMAP-107")
        .about("a Terminate is an untagged message of one segment: queue 2, MSN 1, MO 0")
        .run(|p| {
            let mut session = running(p)?;
            session.send(&Segment::write(0xdead_be00, 0, b"data"));
            let segment = session.expect(opcode::TERMINATE)?;
            let place = (segment.is_last(), segment.qn(), segment.msn(), segment.mo());
            require(!segment.is_tagged() && place == (true, 2, 1, 0), || {
                format!("got {}", describe::segment(&segment))
            })
        }),
    any("terminate-echoes-a-write", "RDMAP-178 RDMAP-179 RDMAP-182")
        .about("where M and D are set, length and header of the bad Write follow")
        .run(|p| layout(p, |_| Segment::write(0xdead_be00, 0x1234_5678_9abc_def0, &[9; 100]), TAGGED_STAG)),
    any("terminate-echoes-a-send", "RDMAP-178 RDMAP-179 RDMAP-182")
        .about("where M and D are set, length and header of the bad untagged segment follow")
        .run(|p| layout(p, |_| Segment::send(0x0102_0304, &[9; 33]).on_queue(77), super::codes::UNTAGGED_QN)),
    any("terminate-echoes-a-read", "RDMAP-178 RDMAP-182 RDMAP-184")
        .about("where R is set, the Read Request follows the DDP header")
        .run(|p| layout(p, |session| session.read_request(0xdead_be00, 0x1000, 77), PROTECTION_STAG)),
    any("terminate-echoes-a-version-error", "RDMAP-178 RDMAP-182")
        .about("where M and D are set, length and header of the segment of a wrong version follow")
        .run(|p| layout(p, |_| Segment::write(7, 8, &[]).rdmap(0xc0), OPERATION_VERSION)),
    any("terminate-of-mpa-echoes-nothing", "RDMAP-195")
        .about("an error of MPA is told without any header")
        .run(|p| {
            let mut session = running(p)?;
            if !session.uses_crc() {
                return not_applicable("no CRCs on this connection");
            }
            session.send_faulty(&Segment::write(0, 0, &[]), Fault { crc_xor: 2, ..Fault::default() });
            let told = session.expect_terminate(&[LLP_CRC])?;
            let (m, d, r) = told.any_header_control();
            require(!(m || d || r), || format!("got {}", describe::terminate(&told)))
        }),
    any("terminate-is-the-last", "RDMAP-261 DDP-192")
        .about("nothing but the end follows a Terminate, also when more good and bad messages come")
        .run(|p| {
            let mut session = running(p)?;
            let ping = session.read_request(0, 0, 0);
            session.send_together(&[
                Segment::write(0xdead_be00, 0, b"bad"),
                ping,
                Segment::write(0xdead_be00, 0, b"bad again"),
            ]);
            session.expect_terminate(&[TAGGED_STAG])?;
            session.finish();
            session.expect_end().map(|_| ())
        }),
    any("terminate-then-close", "DDP-193").about("after its Terminate the endpoint ends the connection").run(
        |p| {
            let mut session = running(p)?;
            session.send(&Segment::write(0xdead_be00, 0, b"bad"));
            session.expect_terminate(&[TAGGED_STAG])?;
            session.finish();
            session.expect_end().map(|_| ())
        },
    ),
    any("terminate-received", "RDMAP-257 RDMAP-258 RDMAP-176")
        .about(
            "a Terminate of ours ends the stream, and the target is told; where the stack tells \
             codes, it tells ours",
        )
        .run(|p| {
            let mut session = p.stage("recv=1x16")?;
            session.ping()?;
            // The reserved bits are set; the endpoint has to ignore them.
            not_answered(p, session, &[Segment::terminate(&[0x02, 0x08, 0x1f, 0xff])], Some("000208"))
        }),
    any("terminate-not-answered", "RDMAP-257")
        .about("a Terminate is not answered by a Terminate; the connection ends")
        .run(|p| not_answered(p, running(p)?, &[Segment::terminate(&[0, 0, 0, 0])], Some("000000"))),
    any("terminate-first-of-all", "RDMAP-256")
        .about("a Terminate as our very first message is taken")
        .run(|p| not_answered(p, p.plain()?, &[Segment::terminate(&[0, 0, 0, 0])], Some("000000"))),
    any("terminate-with-headers", "").about("a Terminate of 52 bytes, the reserved bits set, is taken").run(
        |p| {
            let mut payload = vec![0x01, 0x01, 0xff, 0xff, 0, 46];
            payload.extend(Segment::read_request(1, &crate::wire::ReadRequest::default()).bytes);
            not_answered(p, running(p)?, &[Segment::terminate(&payload)], Some("000101"))
        },
    ),
    any("terminate-of-no-known-code", "RDMAP-174")
        .about("layer 15, type 15, code aa: taken, not answered")
        .run(|p| not_answered(p, running(p)?, &[Segment::terminate(&[0xff, 0xaa, 0, 0])], Some("0f0faa"))),
    any("terminate-zero-filled", "")
        .about("headers that are not there may be sent as zeros: 52 bytes with M, D and R clear")
        .run(|p| {
            let mut payload = vec![0x20, 0x02];
            payload.resize(52, 0);
            not_answered(p, running(p)?, &[Segment::terminate(&payload)], Some("020002"))
        }),
    any("terminate-too-short", "")
        .about("a Terminate of two bytes is not answered by a Terminate either")
        .run(|p| not_answered(p, running(p)?, &[Segment::terminate(&[0, 0])], None)),
    any("terminate-of-a-wrong-version", "RDMAP-334")
        .about("a Terminate of RDMAP version 3 is an error, but not answered by a Terminate")
        .run(|p| not_answered(p, running(p)?, &[Segment::terminate(&[0, 0, 0, 0]).rdmap(0xc7)], None)),
    any("terminate-twice", "RDMAP-255").about("a second Terminate changes nothing").run(|p| {
        let second = Segment::untagged(opcode::TERMINATE, 2, 2, &[0x02, 0x08, 0, 0]);
        not_answered(p, running(p)?, &[Segment::terminate(&[0, 0, 0, 0]), second], Some("000000"))
    }),
    any("terminate-fails-what-is-outstanding", "RDMAP-314")
        .about("a Read of the target that we answer by a Terminate does not complete well")
        .run(|p| {
            let mut session = p.stage("recv=1x16 then=r64 peer=77:1000")?;
            session.send_message(b"go");
            session.expect(opcode::READ_REQUEST)?;
            session.send(&Segment::terminate(&[0x01, 0x00, 0, 0]));
            let report = p.report(session)?;
            let well = report.completions.iter().any(|c| c.kind == "r" && c.status == 0);
            require(!well, || "the Read is said to have succeeded".into())
        }),
    any("terminate-behind-messages", "RDMAP-239 RDMAP-257")
        .about("Sends before our Terminate are still received")
        .run(|p| {
            let mut session = p.stage("recv=3x16")?;
            session.send_together(&[
                Segment::send(1, b"one"),
                Segment::send(2, b"two"),
                Segment::terminate(&[0, 0, 0, 0]),
            ]);
            p.report(session)?.expect_received(&[b"one", b"two"])
        }),
];
