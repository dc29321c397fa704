//! Reads that the endpoint has to refuse (RFC 5040 section 7.2).

use super::codes::{
    ANY_MSN, OPERATION_UNSPECIFIED, PROTECTION_ACCESS, PROTECTION_BOUNDS, PROTECTION_STAG, PROTECTION_WRAP,
    UNTAGGED_NO_BUFFER,
};
use crate::case::{Case, Check, any, deviates, not_applicable, responder};
use crate::probe::Probe;
use crate::scene::Region;
use crate::session::Incoming;
use crate::wire::{Code, ReadRequest, Segment, opcode};

/// Sends the Read (STag, TO, size) that `read` returns for the first region of `scene`. The endpoint has to
/// refuse the Read with one of `codes`.
fn refused(p: &Probe, scene: &str, codes: &[Code], read: impl FnOnce(Region) -> (u32, u64, u32)) -> Check {
    let mut session = p.stage(scene)?;
    let (stag, to, size) = read(session.region(0)?);
    let request = session.read_request(stag, to, size);
    session.send(&request);
    session.expect_terminate(codes).map(|_| ())
}

pub(super) const CASES: &[Case] = &[
    any("read-unknown-stag", "RDMAP-142 RDMAP-220 RDMAP-340 SEC-084")
        .about("a Read from an STag that nobody registered: Terminate 0/1/00, no response")
        .run(|p| {
            let mut session = p.plain()?;
            let request = session.read_request(0xdead_be00, 0x1000, 1);
            session.send(&request);
            session.expect_terminate(&[PROTECTION_STAG]).map(|_| ())
        }),
    any("read-neighbour-stag", "RDMAP-220 RDMAP-340")
        .about("the right STag but for its low eight bits: Terminate 0/1/00")
        .run(|p| refused(p, "mr=64:r", &[PROTECTION_STAG], |r| (r.stag ^ 1, r.to, 8))),
    any("read-deregistered", "RDMAP-340 RDMAP-353")
        .about("a Read of what was registered once: Terminate 0/1/00")
        .run(|p| refused(p, "mr=64:r:z", &[PROTECTION_STAG], |r| (r.stag, r.to, 8))),
    any("read-below-base", "RDMAP-143 RDMAP-342 RDMAP-352")
        .about("a Read that begins one byte before the region: Terminate 0/1/01")
        // If the region begins at offset 0, the offset before it is 2^64 - 1, and the sum of offset and
        // length wraps.
        .run(|p| {
            refused(p, "mr=64:r", &[PROTECTION_BOUNDS, PROTECTION_WRAP], |r| {
                (r.stag, r.to.wrapping_sub(1), 8)
            })
        }),
    any("read-past-end", "RDMAP-143 RDMAP-343 RDMAP-352")
        .about("a Read that ends one byte behind the region: Terminate 0/1/01, no response")
        .run(|p| refused(p, "mr=64:r", &[PROTECTION_BOUNDS], |r| (r.stag, r.end() - 7, 8))),
    any("read-at-end", "RDMAP-342")
        .about("a Read that begins behind the region: Terminate 0/1/01")
        .run(|p| refused(p, "mr=64:r", &[PROTECTION_BOUNDS], |r| (r.stag, r.end(), 1))),
    any("read-4-gib", "RDMAP-343")
        .about("a Read of 2^32 - 1 bytes from a region of 64: Terminate 0/1/01, no response")
        .run(|p| refused(p, "mr=64:r", &[PROTECTION_BOUNDS], |r| (r.stag, r.to, u32::MAX))),
    any("read-offset-wraps", "RDMAP-146 RDMAP-344")
        .about("offset and size add up to more than 2^64: Terminate 0/1/04 (or 0/1/01)")
        .run(|p| {
            refused(p, "mr=64:r", &[PROTECTION_WRAP, PROTECTION_BOUNDS], |r| (r.stag, u64::MAX - 7, 16))
        }),
    any("read-without-the-right", "RDMAP-144 DDP-230 RDMAP-354")
        .about("a Read of a region for writing: Terminate 0/1/02")
        .run(|p| refused(p, "mr=64:w", &[PROTECTION_ACCESS], |r| (r.stag, r.to, 8))),
    any("read-of-local-region", "SEC-041")
        .about("a Read of a region without remote rights: Terminate 0/1/02 or 0/1/00")
        .run(|p| refused(p, "mr=64:-", &[PROTECTION_ACCESS, PROTECTION_STAG], |r| (r.stag, r.to, 8))),
    any("read-request-short", "RDMAP-111")
        .about("a Read Request of 27 bytes: refused (0/2/FF, for which no better code exists)")
        .run(|p| {
            let mut session = p.plain()?;
            let msn = session.next_msn(1);
            let short = ReadRequest::default().encode()[..27].to_vec();
            session.send(&Segment::untagged(opcode::READ_REQUEST, 1, msn, &short));
            super::untagged::ended(&mut session)
        }),
    any("read-msn-repeated", "RDMAP-337 DDP-174")
        .about(
            "a Read Request with an MSN that was used already: Terminate 1/2/03 (or 1/2/02), not \
             answered again",
        )
        .run(|p| {
            let mut session = p.plain()?;
            session.ping()?;
            session.send(&Segment::read_request(1, &ReadRequest::default()));
            session.expect_terminate(ANY_MSN).map(|_| ())
        }),
    any("read-msn-far-ahead", "RDMAP-337 DDP-165")
        .about("a Read Request with an MSN far ahead of every slot: Terminate 1/2/02 (or 1/2/03)")
        .run(|p| {
            let mut session = p.plain()?;
            session.ping()?;
            session.send(&Segment::read_request(0x4000_0000, &ReadRequest::default()));
            session.expect_terminate(ANY_MSN).map(|_| ())
        }),
    any("reads-beyond-ird", "")
        .about(
            "more long Reads at once than IRD says: Terminate 1/2/02, or all answered by one that is \
             faster",
        )
        .run(|p| {
            let mut session = p.stage("mr=65536:r ird=2")?;
            let region = session.region(0)?;
            let Some(ird) = session.peer_ird.filter(|ird| *ird > 0 && *ird <= 16) else {
                return not_applicable("the endpoint did not take up so small an IRD");
            };
            let reads: Vec<Segment> =
                (0..ird + 6).map(|_| session.read_request(region.stag, region.to, 65_536)).collect();
            session.send_together(&reads);
            let mut answered = 0;
            loop {
                match session.receive() {
                    Incoming::Segment(segment) if segment.opcode() == opcode::READ_RESPONSE => {
                        answered += u32::from(segment.is_last());
                        if answered == u32::from(ird) + 6 {
                            return Ok(());
                        }
                    }
                    Incoming::Segment(segment) => {
                        return match segment.as_terminate() {
                            Some(told) if told.is_any_of(&[UNTAGGED_NO_BUFFER]) => Ok(()),
                            _ => deviates(format!("got {}", crate::wire::describe::segment(&segment))),
                        };
                    }
                    other => return deviates(format!("expected responses or Terminate 1/2/02, got {other}")),
                }
            }
        }),
    responder("read-with-ird-0", "")
        .about(
            "a Read where IRD 0 was agreed on: Terminate 1/2/02, or answered by one that keeps a \
             slot all the same",
        )
        .run(|p| {
            let mut session = p.stage("mr=64:r ird=0")?;
            let region = session.region(0)?;
            if session.peer_ird != Some(0) {
                return not_applicable("the endpoint did not take up IRD 0");
            }
            let request = session.read_request(region.stag, region.to, 8);
            session.send(&request);
            match session.receive() {
                Incoming::Segment(segment) if segment.opcode() == opcode::READ_RESPONSE => Ok(()),
                Incoming::Segment(segment) => match segment.as_terminate() {
                    Some(told) if told.is_any_of(ANY_MSN) || told.is_any_of(&[OPERATION_UNSPECIFIED]) => {
                        Ok(())
                    }
                    _ => deviates(format!("got {}", crate::wire::describe::segment(&segment))),
                },
                other => deviates(format!("expected Terminate 1/2/02, got {other}")),
            }
        }),
    any("read-good-then-bad", "RDMAP-214")
        .about("a good Read before a bad one is answered, or not, but the Terminate tells of the bad one")
        .run(|p| {
            let mut session = p.stage("mr=64:r")?;
            let region = session.region(0)?;
            let good = session.read_request(region.stag, region.to, 64);
            let bad = session.read_request(0xdead_be00, 0, 64);
            session.send_together(&[good, bad]);
            let (before, _) = session.expect_terminate_later(&[PROTECTION_STAG])?;
            let fine = before.iter().all(|s| s.opcode() == opcode::READ_RESPONSE && s.payload().len() == 64);
            if fine { Ok(()) } else { deviates("something else than the response came before the Terminate") }
        }),
];
