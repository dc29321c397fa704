//! Writes: placement, and the checks before it (RFC 5041 sections 4.2, 5.2, 7.1; RFC 5040 section 5.1).

use super::codes::{
    PROTECTION_ACCESS, TAGGED_BOUNDS, TAGGED_STAG, TAGGED_STREAM, TAGGED_VERSION, TAGGED_WRAP,
};
use crate::case::{Case, CaseError, Check, any, deviates};
use crate::probe::Probe;
use crate::scene::Region;
use crate::session::{Incoming, Session};
use crate::wire::{Code, Segment, opcode};

/// Sends the Write that `write` returns for a region of 64 bytes with the rights `rights`. The endpoint has
/// to refuse the Write with one of `codes`, and must not change the region.
fn refused(p: &Probe, rights: &str, codes: &[Code], write: impl FnOnce(Region) -> Segment) -> Check {
    let mut session = p.stage(&format!("mr=64:{rights}"))?;
    let region = session.region(0)?;
    session.send(&write(region));
    session.expect_terminate(codes)?;
    p.report(session)?.expect_untouched()
}

/// Sends a Write whose bytes the endpoint has to place at `offset`.
fn placed(p: &Probe, offset: usize, bytes: &[u8], write: impl FnOnce(Region) -> Vec<Segment>) -> Check {
    let mut session = p.stage("mr=4096:rw")?;
    let region = session.region(0)?;
    for segment in write(region) {
        session.send(&segment);
    }
    session.ping()?;
    p.report(session)?.expect_written(0, offset, bytes)
}

fn running(p: &Probe) -> Result<Session, CaseError> {
    let mut session = p.plain()?;
    session.ping()?;
    Ok(session)
}

fn version(p: &Probe, control: u8) -> Check {
    let mut session = running(p)?;
    session.send(&Segment::write(0x100, 0, b"data").control(control));
    session.expect_terminate(&[TAGGED_VERSION]).map(|_| ())
}

pub(super) const CASES: &[Case] = &[
    any("write-placed", "DDP-047 DDP-109 RDMAP-110 RDMAP-197 SEC-032")
        .about("a Write is placed where it says, and completes nothing at the target")
        .run(|p| {
            let mut session = p.stage("mr=4096:w recv=1x64")?;
            let region = session.region(0)?;
            session.send(&Segment::write(region.stag, region.to + 100, b"hello"));
            session.ping()?;
            let report = p.report(session)?;
            report.expect_received(&[])?;
            report.expect_written(0, 100, b"hello")
        }),
    any("write-at-odd-offset", "DDP-075 RDMAP-200")
        .about("a Write may begin and end anywhere in the region")
        .run(|p| placed(p, 1233, b"odd", |r| vec![Segment::write(r.stag, r.to + 1233, b"odd")])),
    any("write-whole-region", "DDP-183 RDMAP-200")
        .about("a Write may fill the region to its last byte")
        .run(|p| placed(p, 0, &[0xa5; 4096], |r| vec![Segment::write(r.stag, r.to, &[0xa5; 4096])])),
    any("write-in-segments", "DDP-109").about("a Write in three segments is placed as one").run(|p| {
        placed(p, 8, b"onetwothree", |r| {
            vec![
                Segment::write(r.stag, r.to + 8, b"one").not_last(),
                Segment::write(r.stag, r.to + 11, b"two").not_last(),
                Segment::write(r.stag, r.to + 14, b"three"),
            ]
        })
    }),
    any("write-segments-not-adjacent", "DDP-122")
        .about("segments of a Write that do not follow each other: each is placed for itself, or refused")
        .run(|p| {
            let mut session = p.stage("mr=64:rw")?;
            let region = session.region(0)?;
            session.send(&Segment::write(region.stag, region.to + 32, b"back").not_last());
            session.send(&Segment::write(region.stag, region.to, b"front"));
            // The sink need not detect the error, since a correct source never sends such a message.
            let ping = session.read_request(0, 0, 0);
            session.send(&ping);
            match session.receive() {
                Incoming::Segment(segment) if segment.opcode() == opcode::READ_RESPONSE => {}
                Incoming::Segment(segment) if segment.as_terminate().is_some() => return Ok(()),
                other => return deviates(format!("expected an answer or a Terminate, got {other}")),
            }
            let mut expected = crate::scene::pattern(0, 36);
            expected[..5].copy_from_slice(b"front");
            expected[32..].copy_from_slice(b"back");
            p.report(session)?.expect_written(0, 0, &expected)
        }),
    any("write-of-no-bytes", "DDP-118 DDP-119 DDP-120 RDMAP-205")
        .about("a Write of no bytes to an STag and offset that nobody has is no error")
        .run(|p| {
            let mut session = p.plain()?;
            session.send(&Segment::write(0xffff_ffff, u64::MAX, &[]));
            session.send(&Segment::write(0, 0, &[]));
            session.ping()
        }),
    any("write-reserved-bits", "DDP-056 RDMAP-095")
        .about("reserved bits of DDP and RDMAP are not looked at")
        .run(|p| {
            placed(p, 0, b"bits", |r| vec![Segment::write(r.stag, r.to, b"bits").control(0xfd).rdmap(0x70)])
        }),
    any("write-unknown-stag", "DDP-068 DDP-180 RDMAP-157 RDMAP-332 SEC-084")
        .about("a Write to an STag that nobody registered: Terminate 1/1/00")
        .run(|p| {
            let mut session = running(p)?;
            session.send(&Segment::write(0xdead_be00, 0x1000, b"data"));
            session.expect_terminate(&[TAGGED_STAG]).map(|_| ())
        }),
    any("write-stag-zero", "DDP-180").about("a Write to STag 0, which nobody has: Terminate 1/1/00").run(
        |p| {
            let mut session = running(p)?;
            session.send(&Segment::write(0, 0, b"data"));
            session.expect_terminate(&[TAGGED_STAG]).map(|_| ())
        },
    ),
    any("write-neighbour-stag", "DDP-180 SEC-084")
        .about("the right STag but for its low eight bits: Terminate 1/1/00, nothing changes")
        .run(|p| refused(p, "rw", &[TAGGED_STAG], |r| Segment::write(r.stag ^ 1, r.to, b"data"))),
    any("write-deregistered", "DDP-181 DDP-219 RDMAP-353")
        .about("a Write to what was registered once: Terminate 1/1/00")
        .run(|p| {
            let mut session = p.stage("mr=64:rw:z")?;
            let region = session.region(0)?;
            session.send(&Segment::write(region.stag, region.to, b"data"));
            session.expect_terminate(&[TAGGED_STAG]).map(|_| ())
        }),
    any("write-below-base", "DDP-179 DDP-182 DDP-189 RDMAP-158 RDMAP-352 DDP-228")
        .about("a Write that begins one byte before the region: Terminate 1/1/01, nothing changes")
        // If the region begins at offset 0, the offset before it is 2^64 - 1, and the sum of offset and
        // length wraps.
        .run(|p| {
            refused(p, "rw", &[TAGGED_BOUNDS, TAGGED_WRAP], |r| {
                Segment::write(r.stag, r.to.wrapping_sub(1), b"data")
            })
        }),
    any("write-past-end", "DDP-179 DDP-183 DDP-189 RDMAP-158 RDMAP-352 DDP-228")
        .about("a Write that ends one byte behind the region: Terminate 1/1/01, nothing changes")
        .run(|p| refused(p, "rw", &[TAGGED_BOUNDS], |r| Segment::write(r.stag, r.end() - 3, b"data"))),
    any("write-at-end", "DDP-182 RDMAP-158")
        .about("a Write that begins right behind the region: Terminate 1/1/01, nothing changes")
        .run(|p| refused(p, "rw", &[TAGGED_BOUNDS], |r| Segment::write(r.stag, r.end(), b"x"))),
    any("write-longer-than-region", "DDP-183 DDP-189")
        .about("a Write longer than the region: Terminate 1/1/01, not one byte is placed")
        .run(|p| refused(p, "rw", &[TAGGED_BOUNDS], |r| Segment::write(r.stag, r.to, &[0xee; 65]))),
    any("write-second-segment-past-end", "DDP-183")
        .about("each segment is checked: the second one ends behind the region, Terminate 1/1/01")
        .run(|p| {
            let mut session = p.stage("mr=64:rw")?;
            let region = session.region(0)?;
            session.send(&Segment::write(region.stag, region.to + 56, b"fits").not_last());
            session.send(&Segment::write(region.stag, region.to + 60, b"toolong"));
            session.expect_terminate(&[TAGGED_BOUNDS]).map(|_| ())
        }),
    any("write-offset-wraps", "DDP-184 RDMAP-160")
        .about("offset and length add up to more than 2^64: Terminate 1/1/03 (or 1/1/01), nothing changes")
        .run(|p| {
            refused(p, "rw", &[TAGGED_WRAP, TAGGED_BOUNDS], |r| Segment::write(r.stag, u64::MAX - 1, b"data"))
        }),
    any("write-without-the-right", "DDP-181 DDP-230 RDMAP-354")
        .about("a Write to a region for reading: Terminate 1/1/00 (or 0/1/02), nothing changes")
        .run(|p| {
            refused(p, "r", &[TAGGED_STAG, PROTECTION_ACCESS], |r| Segment::write(r.stag, r.to, b"data"))
        }),
    any("write-to-local-region", "DDP-181 SEC-041")
        .about("a Write to a region without remote rights: Terminate 1/1/00 (or 0/1/02), nothing changes")
        .run(|p| {
            refused(p, "-", &[TAGGED_STAG, TAGGED_STREAM, PROTECTION_ACCESS], |r| {
                Segment::write(r.stag, r.to, b"data")
            })
        }),
    any("write-ddp-version-0", "DDP-058 RDMAP-161 RDMAP-332")
        .about("a tagged segment of DDP version 0: Terminate 1/1/04")
        .run(|p| version(p, 0xc0)),
    any("write-ddp-version-2", "DDP-058 RDMAP-161 RDMAP-332")
        .about("a tagged segment of DDP version 2: Terminate 1/1/04")
        .run(|p| version(p, 0xc2)),
    any("write-ddp-version-3", "DDP-058 RDMAP-161 RDMAP-332")
        .about("a tagged segment of DDP version 3: Terminate 1/1/04")
        .run(|p| version(p, 0xc3)),
    any("write-header-cut-short", "")
        .about("a tagged segment of 13 bytes, for which there is no code: the stream ends")
        .run(|p| {
            let mut session = running(p)?;
            session.send(&Segment { bytes: Segment::write(0, 0, &[]).bytes[..13].to_vec() });
            super::untagged::ended(&mut session)
        }),
    any("nothing-placed-after-an-error", "DDP-192")
        .about("what follows a bad segment is dropped: not placed, not delivered")
        .run(|p| {
            let mut session = p.stage("mr=64:rw recv=2x64")?;
            let region = session.region(0)?;
            session.send_together(&[
                Segment::write(0xdead_be00, 0, b"bad"),
                Segment::write(region.stag, region.to, b"late"),
                Segment::send(1, b"late too"),
            ]);
            session.expect_terminate(&[TAGGED_STAG])?;
            let report = p.report(session)?;
            report.expect_received(&[])?;
            report.expect_untouched()
        }),
];
