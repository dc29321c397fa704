//! FPDUs: framing and CRC (RFC 5044 sections 4.1, 4.4, 5, 6, 8). The cases that expect a Terminate begin with
//! a Read that the endpoint answers, since a responder may send nothing, not even a Terminate, before the
//! first valid FPDU.

use super::codes::LLP_CRC;
use crate::case::{Case, CaseError, Check, any, deviates, not_applicable};
use crate::probe::Probe;
use crate::session::{Incoming, Session};
use crate::wire::{Fault, ReadRequest, Segment};

fn running(p: &Probe) -> Result<Session, CaseError> {
    let mut session = p.plain()?;
    session.ping()?;
    Ok(session)
}

fn checked(p: &Probe) -> Result<Session, CaseError> {
    let session = running(p)?;
    if session.uses_crc() { Ok(session) } else { not_applicable("no CRCs on this connection") }
}

fn ping_segment(session: &mut Session) -> (u32, Segment) {
    let msn = session.next_msn(1);
    let read = ReadRequest { sink_stag: 0x5049_4e47, sink_to: u64::from(msn), ..ReadRequest::default() };
    (msn, Segment::read_request(msn, &read))
}

/// Sends three FPDUs in pieces of `size` bytes, and checks that the endpoint answers each FPDU.
fn split(p: &Probe, size: usize) -> Check {
    let mut session = running(p)?;
    let mut msns = Vec::new();
    let mut bytes = Vec::new();
    for _ in 0..3 {
        let (msn, segment) = ping_segment(&mut session);
        msns.push(msn);
        bytes.extend(session.frame_of(&segment, Fault::default()));
    }
    if session.peer_ird.is_some_and(|ird| ird < 3) {
        return not_applicable("the endpoint serves fewer than three Reads");
    }
    for piece in bytes.chunks(size) {
        session.send_bytes(piece, "a piece of three Reads of no bytes");
        // Without a pause, TCP may join the pieces again.
        session.conn().pause(std::time::Duration::from_micros(300));
    }
    msns.iter().try_for_each(|msn| session.expect_pong(*msn))
}

/// Sends an FPDU with `fault`, and checks that the endpoint answers with Terminate 2/0/02.
fn bad(p: &Probe, fault: Fault) -> Check {
    let mut session = checked(p)?;
    let (_, segment) = ping_segment(&mut session);
    session.send_faulty(&segment, fault);
    session.expect_terminate(&[LLP_CRC]).map(|_| ())
}

pub(super) const CASES: &[Case] = &[
    any("fpdu-byte-by-byte", "MPA-017 MPA-075 MPA-123 MPA-133 MPA-280 DDP-032")
        .about("FPDUs in TCP segments of one byte are taken")
        .run(|p| split(p, 1)),
    any("fpdu-in-pieces-of-7", "MPA-075 MPA-123 MPA-280 DDP-032")
        .about("FPDUs cut anywhere by TCP are taken")
        .run(|p| split(p, 7)),
    any("fpdu-crc-apart", "MPA-123 MPA-133")
        .about("an FPDU whose CRC comes in a TCP segment of its own is taken, and not before")
        .run(|p| {
            let mut session = running(p)?;
            let (msn, segment) = ping_segment(&mut session);
            let bytes = session.frame_of(&segment, Fault::default());
            let (front, crc) = bytes.split_at(bytes.len() - 4);
            session.send_bytes(front, "a Read of no bytes but for its CRC");
            session.expect_silence()?;
            session.send_bytes(crc, "the CRC");
            session.expect_pong(msn)
        }),
    any("fpdu-length-split", "MPA-123").about("ULPDU_Length itself is cut by TCP").run(|p| {
        let mut session = running(p)?;
        let (msn, segment) = ping_segment(&mut session);
        let bytes = session.frame_of(&segment, Fault::default());
        session.send_bytes(&bytes[..1], "the first byte of a Read of no bytes");
        session.conn().pause(std::time::Duration::from_millis(5));
        session.send_bytes(&bytes[1..], "the others");
        session.expect_pong(msn)
    }),
    any("fpdus-in-one-piece", "MPA-075 MPA-129 DDP-032")
        .about("several FPDUs in one TCP segment are all taken, in order")
        .run(|p| split(p, 4096)),
    any("fpdu-every-pad", "MPA-040 MPA-041 MPA-043")
        .about("ULPDUs of every length modulo 4 are framed alike at both ends")
        .run(|p| {
            let mut session = p.stage("mr=64:rw")?;
            let region = session.region(0)?;
            for length in 1..=8 {
                let bytes: Vec<u8> = (0..length).map(|n| 0xa0 + n).collect();
                session.send(&Segment::write(region.stag, region.to, &bytes));
                let back = session.read(region.stag, region.to, u32::from(length))?;
                if back != bytes {
                    return deviates(format!("{length} bytes written, {back:02x?} read"));
                }
            }
            Ok(())
        }),
    any("fpdu-pad-not-zero", "MPA-043")
        .about("the contents of the pad are ignored, but covered by the CRC")
        .run(|p| {
            let mut session = p.stage("recv=1x16")?;
            // 18 bytes of header need no pad; with one byte of payload the pad has three bytes.
            let msn = session.next_msn(0);
            session.send_faulty(&Segment::send(msn, &[0x11]), Fault { pad: 0xff, ..Fault::default() });
            session.ping()?;
            p.report(session)?.expect_received(&[&[0x11]])
        }),
    any("fpdu-write-pad-not-zero", "MPA-043 MPA-076")
        .about("a pad that is not zero is not written anywhere")
        .run(|p| {
            let mut session = p.stage("mr=64:rw")?;
            let region = session.region(0)?;
            let before = crate::scene::pattern(0, 16);
            session.send_faulty(
                &Segment::write(region.stag, region.to, &[0xee]),
                Fault { pad: 0xff, ..Fault::default() },
            );
            let back = session.read(region.stag, region.to, 16)?;
            if back[0] != 0xee || back[1..] != before[1..] {
                return deviates(format!("one byte written, {back:02x?} read"));
            }
            Ok(())
        }),
    any("fpdu-bad-crc", "MPA-044 MPA-095 MPA-096 MPA-126 MPA-128 MPA-159 DDP-035 RDMAP-171")
        .about("one bit of the CRC flipped: Terminate 2/0/02, the segment is not taken")
        .run(|p| bad(p, Fault { crc_xor: 1, ..Fault::default() })),
    any("fpdu-crc-of-zero", "MPA-085 MPA-159")
        .about("a CRC field of no use, where CRCs were agreed on: Terminate 2/0/02")
        .run(|p| bad(p, Fault { crc_xor: 0xffff_ffff, ..Fault::default() })),
    any("fpdu-length-short-of-true", "MPA-096 MPA-126")
        .about("ULPDU_Length too small by four, so that the CRC is read in the wrong place: Terminate 2/0/02")
        .run(|p| bad(p, Fault { length: Some(42), ..Fault::default() })),
    any("fpdu-bad-crc-of-a-write", "MPA-126 MPA-238")
        .about("a Write with a bad CRC changes nothing that can be seen, nor does what follows it")
        .run(|p| {
            let mut session = p.stage("mr=64:rw")?;
            session.ping()?;
            let region = session.region(0)?;
            if !session.uses_crc() {
                return not_applicable("no CRCs on this connection");
            }
            let bad = session.frame_of(
                &Segment::write(region.stag, region.to, b"bad!"),
                Fault { crc_xor: 1, ..Fault::default() },
            );
            let good =
                session.frame_of(&Segment::write(region.stag, region.to + 8, b"late"), Fault::default());
            session.send_bytes(&[bad, good].concat(), "a Write with a bad CRC | a good one");
            session.expect_terminate(&[LLP_CRC])?;
            p.report(session)?.expect_untouched()
        }),
    any("fpdu-bad-crc-before-bad-stag", "MPA-126 SEC-059")
        .about("the CRC is looked at before the STag: a bad CRC on a Write to nowhere is 2/0/02")
        .run(|p| {
            let mut session = checked(p)?;
            session.send_faulty(
                &Segment::write(0xdead_be00, 0, b"data"),
                Fault { crc_xor: 1, ..Fault::default() },
            );
            session.expect_terminate(&[LLP_CRC]).map(|_| ())
        }),
    any("fpdu-of-no-bytes", "MPA-047")
        .about("an FPDU without a ULPDU, which nobody may send: ended or passed over, not misframed")
        .run(|p| {
            let mut session = running(p)?;
            session.send(&Segment { bytes: Vec::new() });
            let (msn, segment) = ping_segment(&mut session);
            session.send(&segment);
            match session.receive() {
                Incoming::End(_) => Ok(()),
                Incoming::Segment(segment) if segment.as_terminate().is_some() => Ok(()),
                Incoming::Segment(segment) if segment.to() == u64::from(msn) => Ok(()),
                other => deviates(format!("expected an end, or the next FPDU to be answered, got {other}")),
            }
        }),
    any("fpdu-too-long-for-anyone", "MPA-048")
        .about("ULPDU_Length 65535 and then FIN: the stream ends, and the endpoint lives")
        .run(|p| {
            let mut session = running(p)?;
            let (_, segment) = ping_segment(&mut session);
            session.send_faulty(&segment, Fault { length: Some(0xffff), ..Fault::default() });
            session.finish();
            loop {
                match session.receive() {
                    Incoming::End(_) => break,
                    Incoming::Segment(segment) if segment.as_terminate().is_some() => {}
                    other => return deviates(format!("expected the end, got {other}")),
                }
            }
            running(p).map(|_| ())
        }),
    any("fpdu-largest", "DDP-109").about("a ULPDU of 64768 bytes, the most there may be, is taken").run(
        |p| {
            let length = 64_768 - 14;
            let mut session = p.stage("mr=65536:rw")?;
            let region = session.region(0)?;
            let bytes: Vec<u8> = (0..length).map(|n: usize| (n / 3) as u8).collect();
            session.send(&Segment::write(region.stag, region.to, &bytes));
            session.ping()?;
            p.report(session)?.expect_written(0, 0, &bytes)
        },
    ),
    any("fpdus-all-well-framed", "MPA-041 MPA-042 MPA-088 MPA-089 MPA-091")
        .about("a Read of 3001 bytes comes back in well-framed FPDUs")
        .run(|p| {
            let mut session = p.stage("mr=4096:r")?;
            let region = session.region(0)?;
            let back = session.read(region.stag, region.to, 3001)?;
            session.expect_well_framed()?;
            if back == crate::scene::pattern(0, 3001) {
                Ok(())
            } else {
                deviates("other bytes than were there")
            }
        }),
];
