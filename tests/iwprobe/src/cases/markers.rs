//! Markers that the probe sends because the endpoint asks for them (RFC 5044 sections 4.2 and 4.3).

use super::codes::{LLP_CRC, LLP_MARKER};
use crate::case::{Case, CaseError, any, deviates, not_applicable};
use crate::probe::Probe;
use crate::session::{Incoming, Session};
use crate::wire::{Fault, Segment};

fn marked(p: &Probe, words: &str) -> Result<Session, CaseError> {
    let mut session = if words.is_empty() { p.plain()? } else { p.stage(words)? };
    if !session.sends_markers() {
        return not_applicable("the endpoint asks for no markers");
    }
    session.ping()?;
    Ok(session)
}

/// Sends empty Writes until the next marker is inside the next FPDU.
fn before_marker(session: &mut Session) {
    while session.position() % 512 < 500 - 20 || session.position().is_multiple_of(512) {
        session.send(&Segment::write(0, 0, &[]));
    }
}

pub(super) const CASES: &[Case] = &[
    any("markers-every-phase", "MPA-066 MPA-124")
        .about("FPDUs with markers before, inside, between pad and CRC, and behind are all taken")
        .run(|p| {
            let mut session = marked(p, "mr=4096:rw")?;
            let region = session.region(0)?;
            let mut expected = crate::scene::pattern(0, 4096);
            for step in 0..64 {
                let bytes: Vec<u8> = (0..step + 1).map(|n| (step * 3 + n) as u8).collect();
                session.send(&Segment::write(region.stag, region.to + step as u64 * 64, &bytes));
                expected[step * 64..step * 64 + bytes.len()].copy_from_slice(&bytes);
            }
            let back = session.read(region.stag, region.to, 4096)?;
            if back == expected { Ok(()) } else { deviates("other bytes than were written") }
        }),
    any("markers-inside-a-large-fpdu", "MPA-076 MPA-124")
        .about("an FPDU with many markers inside leaves none of them in what is written")
        .run(|p| {
            let mut session = marked(p, "mr=16384:rw")?;
            let region = session.region(0)?;
            let bytes: Vec<u8> = (0..16_384).map(|n: usize| (n / 5) as u8).collect();
            session.send(&Segment::write(region.stag, region.to, &bytes));
            let back = session.read(region.stag, region.to, 16_384)?;
            if back == bytes { Ok(()) } else { deviates("other bytes than were written") }
        }),
    any("marker-reserved-half", "MPA-051").about("the reserved half of a marker is not looked at").run(|p| {
        let mut session = marked(p, "")?;
        before_marker(&mut session);
        session
            .send_faulty(&Segment::write(0, 0, &[]), Fault { marker_xor: 0xffff_0000, ..Fault::default() });
        session
            .send_faulty(&Segment::write(0, 0, &[]), Fault { marker_xor: 0xffff_0000, ..Fault::default() });
        session.ping()
    }),
    any("marker-low-bits", "MPA-054").about("the two low bits of FPDUPTR count as zero").run(|p| {
        let mut session = marked(p, "")?;
        before_marker(&mut session);
        session.send_faulty(&Segment::write(0, 0, &[]), Fault { marker_xor: 3, ..Fault::default() });
        session.send_faulty(&Segment::write(0, 0, &[]), Fault { marker_xor: 3, ..Fault::default() });
        session.ping()
    }),
    any("marker-points-elsewhere", "MPA-234")
        .about("a marker under a good CRC that points elsewhere: Terminate 2/0/03, or not looked at")
        .run(|p| {
            let mut session = marked(p, "")?;
            before_marker(&mut session);
            session.send_faulty(&Segment::write(0, 0, &[]), Fault { marker_xor: 0x40, ..Fault::default() });
            session.send_faulty(&Segment::write(0, 0, &[]), Fault { marker_xor: 0x40, ..Fault::default() });
            let ping = session.read_request(0, 0, 0);
            session.send(&ping);
            match session.receive() {
                Incoming::Segment(segment) => match segment.as_terminate() {
                    Some(told) if !told.is_any_of(&[LLP_MARKER]) => {
                        deviates(format!("Terminate {}", told.code()))
                    }
                    _ => Ok(()),
                },
                other => deviates(format!("expected an answer or Terminate {LLP_MARKER}, got {other}")),
            }
        }),
    any("marker-not-in-the-crc", "MPA-056")
        .about("markers count for the CRC: one byte of a marker changed in transit is 2/0/02")
        .run(|p| {
            let mut session = marked(p, "")?;
            if !session.uses_crc() {
                return not_applicable("no CRCs on this connection");
            }
            before_marker(&mut session);
            let mut bytes = Vec::new();
            let start = session.position();
            while bytes.len() < 60 {
                bytes.extend(session.frame_of(&Segment::write(0, 0, &[]), Fault::default()));
            }
            let marker = (512 - start % 512) as usize;
            bytes[marker] ^= 0x80;
            session.send_bytes(&bytes, "empty Writes, the reserved half of a marker changed");
            session.expect_terminate(&[LLP_CRC]).map(|_| ())
        }),
];
