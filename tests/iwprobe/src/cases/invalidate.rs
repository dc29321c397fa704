//! Sends with Invalidate (RFC 5040 section 5.3, RFC 5042 section 6.4.5).

use super::codes::{OPERATION_INVALIDATE, PROTECTION_INVALIDATE, PROTECTION_STAG, TAGGED_STAG};
use crate::case::{Case, Check, any, require};
use crate::probe::Probe;
use crate::wire::{Code, Segment, opcode};

/// Codes allowed as the answer to an STag that cannot be invalidated. RFC 5040 lists error code 0x09 under
/// two error types (remote protection and remote operation). Code 0x00 (invalid STag) also fits an unknown
/// STag.
const REFUSED: &[Code] = &[PROTECTION_INVALIDATE, OPERATION_INVALIDATE, PROTECTION_STAG];
/// Codes allowed as the answer to an STag of another stream. Such an STag is not unknown (RFC 5040 section
/// 5.3).
const FOREIGN: &[Code] = &[PROTECTION_INVALIDATE, OPERATION_INVALIDATE];

fn invalidates(p: &Probe, opcode: u8) -> Check {
    let mut session = p.stage("mr=64:rw:q recv=2x64")?;
    let region = session.region(0)?;
    session.send(&Segment::write(region.stag, region.to, b"before"));
    session.send(&Segment::untagged(opcode, 0, 1, b"hello").invalidating(region.stag));
    session.ping()?;
    session.send(&Segment::write(region.stag, region.to, b"behind"));
    session.expect_terminate(&[TAGGED_STAG])?;
    let report = p.report(session)?;
    report.expect_received(&[b"hello"])?;
    require(report.received()[0].kind == "V" && report.invalidated == [region.stag], || {
        format!("the target was told of {:08x?}, invalidated was {:08x}", report.invalidated, region.stag)
    })?;
    report.expect_written(0, 0, b"before")
}

fn refused(
    p: &Probe,
    scene: &str,
    codes: &[Code],
    stag: impl FnOnce(&crate::session::Session) -> Result<u32, crate::case::CaseError>,
) -> Check {
    let mut session = p.stage(scene)?;
    session.ping()?;
    let stag = stag(&session)?;
    session.send(&Segment::untagged(opcode::SEND_INVALIDATE, 0, 1, b"hello").invalidating(stag));
    session.expect_terminate(codes)?;
    p.report(session)?.expect_received(&[])
}

pub(super) const CASES: &[Case] = &[
    any("send-invalidate", "RDMAP-087 RDMAP-250 SEC-155")
        .about("a Send with Invalidate: received, the target gets the STag, which is invalid from then on")
        .run(|p| invalidates(p, opcode::SEND_INVALIDATE)),
    any("send-se-invalidate", "RDMAP-087 RDMAP-250")
        .about("the same with Solicited Event")
        .run(|p| invalidates(p, opcode::SEND_SE_INVALIDATE)),
    any("send-invalidate-domain-wide", "")
        .about("an STag for a whole domain: refused if several streams have it; else refused or invalidated")
        .run(|p| {
            let mut session = p.stage("mr=64:rw recv=1x64")?;
            session.ping()?;
            let region = session.region(0)?;
            session
                .send(&Segment::untagged(opcode::SEND_INVALIDATE, 0, 1, b"hello").invalidating(region.stag));
            let ping = session.read_request(0, 0, 0);
            session.send(&ping);
            match session.receive() {
                crate::session::Incoming::Segment(segment) => match segment.as_terminate() {
                    Some(told) => require(told.is_any_of(REFUSED), || format!("Terminate {}", told.code())),
                    None => Ok(()),
                },
                other => crate::case::deviates(format!("expected a Terminate or an answer, got {other}")),
            }
        }),
    any("send-invalidate-unknown", "RDMAP-335 SEC-084")
        .about("an STag that nobody registered: Terminate 0/1/00, 0/1/09 or 0/2/09")
        .run(|p| refused(p, "recv=1x64", REFUSED, |_| Ok(0xdead_be00))),
    any("send-invalidate-other-stream", "RDMAP-147 RDMAP-249 RDMAP-251 RDMAP-336")
        .about("an STag of another stream: Terminate 0/1/09 or 0/2/09")
        .run(|p| refused(p, "mr=64:rw:o recv=1x64", FOREIGN, |session| Ok(session.region(0)?.stag))),
    any("send-invalidate-other-domain", "RDMAP-249 RDMAP-251 RDMAP-336")
        .about("an STag of another protection domain: Terminate 0/1/09 or 0/2/09")
        .run(|p| refused(p, "mr=64:rw:x recv=1x64", FOREIGN, |session| Ok(session.region(0)?.stag))),
    any("send-invalidate-twice", "RDMAP-250 RDMAP-335")
        .about("what is invalidated cannot be invalidated again: the second Send is refused")
        .run(|p| {
            let mut session = p.stage("mr=64:rw:q recv=2x64")?;
            session.ping()?;
            let region = session.region(0)?;
            session
                .send(&Segment::untagged(opcode::SEND_INVALIDATE, 0, 1, b"once").invalidating(region.stag));
            session
                .send(&Segment::untagged(opcode::SEND_INVALIDATE, 0, 2, b"twice").invalidating(region.stag));
            session.expect_terminate(REFUSED)?;
            p.report(session)?.expect_received(&[b"once"])
        }),
    any("read-after-invalidate", "RDMAP-250 RDMAP-340")
        .about("a Read of what was invalidated: Terminate 0/1/00")
        .run(|p| {
            let mut session = p.stage("mr=64:r:q recv=1x64")?;
            session.ping()?;
            let region = session.region(0)?;
            session
                .send(&Segment::untagged(opcode::SEND_INVALIDATE, 0, 1, b"hello").invalidating(region.stag));
            let request = session.read_request(region.stag, region.to, 8);
            session.send(&request);
            session.expect_terminate(&[PROTECTION_STAG]).map(|_| ())
        }),
];
