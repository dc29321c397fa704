//! Writes: placement, and the checks before it (RFC 5041 sections 4.2, 5.2, 7.1; RFC 5040 section 5.1).

use super::codes::{
    PROTECTION_ACCESS, TAGGED_BOUNDS, TAGGED_STAG, TAGGED_STREAM, TAGGED_VERSION, TAGGED_WRAP,
};
use crate::case::{Case, CaseError, Check, Side, deviates};
use crate::probe::Probe;
use crate::scene::Region;
use crate::session::{Incoming, Session};
use crate::wire::{Code, Segment, opcode};

/// A Write to or beside a region of 64 bytes is refused with one of `codes`, and the region is unchanged.
fn refused(p: &Probe, rights: &str, codes: &[Code], write: impl FnOnce(Region) -> Segment) -> Check {
    let mut session = p.stage(&format!("mr=64:{rights}"))?;
    let region = session.region(0)?;
    session.send(&write(region));
    session.expect_terminate(codes)?;
    p.report(session)?.expect_untouched()
}

/// A Write that has to be placed at `offset`.
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
    Case {
        name: "write-placed",
        rows: &["DDP-047", "DDP-109", "RDMAP-110", "RDMAP-197", "SEC-032"],
        side: Side::Any,
        about: "a Write is placed where it says, and completes nothing at the target",
        run: |p| {
            let mut session = p.stage("mr=4096:w recv=1x64")?;
            let region = session.region(0)?;
            session.send(&Segment::write(region.stag, region.to + 100, b"hello"));
            session.ping()?;
            let report = p.report(session)?;
            report.expect_received(&[])?;
            report.expect_written(0, 100, b"hello")
        },
    },
    Case {
        name: "write-at-odd-offset",
        rows: &["DDP-075", "RDMAP-200"],
        side: Side::Any,
        about: "a Write may begin and end anywhere in the region",
        run: |p| placed(p, 1233, b"odd", |r| vec![Segment::write(r.stag, r.to + 1233, b"odd")]),
    },
    Case {
        name: "write-whole-region",
        rows: &["DDP-183", "RDMAP-200"],
        side: Side::Any,
        about: "a Write may fill the region to its last byte",
        run: |p| placed(p, 0, &[0xa5; 4096], |r| vec![Segment::write(r.stag, r.to, &[0xa5; 4096])]),
    },
    Case {
        name: "write-in-segments",
        rows: &["DDP-109"],
        side: Side::Any,
        about: "a Write in three segments is placed as one",
        run: |p| {
            placed(p, 8, b"onetwothree", |r| {
                vec![
                    Segment::write(r.stag, r.to + 8, b"one").not_last(),
                    Segment::write(r.stag, r.to + 11, b"two").not_last(),
                    Segment::write(r.stag, r.to + 14, b"three"),
                ]
            })
        },
    },
    Case {
        name: "write-segments-not-adjacent",
        rows: &["DDP-122"],
        side: Side::Any,
        about: "segments of a Write that do not follow each other: each is placed for itself, or refused",
        run: |p| {
            let mut session = p.stage("mr=64:rw")?;
            let region = session.region(0)?;
            session.send(&Segment::write(region.stag, region.to + 32, b"back").not_last());
            session.send(&Segment::write(region.stag, region.to, b"front"));
            // The sink need not look, but may: no source sends such a message.
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
        },
    },
    Case {
        name: "write-of-no-bytes",
        rows: &["DDP-118", "DDP-119", "DDP-120", "RDMAP-205"],
        side: Side::Any,
        about: "a Write of no bytes to an STag and offset that nobody has is no error",
        run: |p| {
            let mut session = p.plain()?;
            session.send(&Segment::write(0xffff_ffff, u64::MAX, &[]));
            session.send(&Segment::write(0, 0, &[]));
            session.ping()
        },
    },
    Case {
        name: "write-reserved-bits",
        rows: &["DDP-056", "RDMAP-095"],
        side: Side::Any,
        about: "reserved bits of DDP and RDMAP are not looked at",
        run: |p| {
            placed(p, 0, b"bits", |r| vec![Segment::write(r.stag, r.to, b"bits").control(0xfd).rdmap(0x70)])
        },
    },
    Case {
        name: "write-unknown-stag",
        rows: &["DDP-068", "DDP-180", "RDMAP-157", "RDMAP-332", "SEC-084"],
        side: Side::Any,
        about: "a Write to an STag that nobody registered: Terminate 1/1/00",
        run: |p| {
            let mut session = running(p)?;
            session.send(&Segment::write(0xdead_be00, 0x1000, b"data"));
            session.expect_terminate(&[TAGGED_STAG]).map(|_| ())
        },
    },
    Case {
        name: "write-stag-zero",
        rows: &["DDP-180"],
        side: Side::Any,
        about: "a Write to STag 0, which nobody has: Terminate 1/1/00",
        run: |p| {
            let mut session = running(p)?;
            session.send(&Segment::write(0, 0, b"data"));
            session.expect_terminate(&[TAGGED_STAG]).map(|_| ())
        },
    },
    Case {
        name: "write-neighbour-stag",
        rows: &["DDP-180", "SEC-084"],
        side: Side::Any,
        about: "the right STag but for its low eight bits: Terminate 1/1/00, nothing changes",
        run: |p| refused(p, "rw", &[TAGGED_STAG], |r| Segment::write(r.stag ^ 1, r.to, b"data")),
    },
    Case {
        name: "write-deregistered",
        rows: &["DDP-181", "DDP-219", "RDMAP-353"],
        side: Side::Any,
        about: "a Write to what was registered once: Terminate 1/1/00",
        run: |p| {
            let mut session = p.stage("mr=64:rw:z")?;
            let region = session.region(0)?;
            session.send(&Segment::write(region.stag, region.to, b"data"));
            session.expect_terminate(&[TAGGED_STAG]).map(|_| ())
        },
    },
    Case {
        name: "write-below-base",
        rows: &["DDP-179", "DDP-182", "DDP-189", "RDMAP-158", "RDMAP-352", "DDP-228"],
        side: Side::Any,
        about: "a Write that begins one byte before the region: Terminate 1/1/01, nothing changes",
        // A region that begins at 0 has no byte before it: there the sum wraps.
        run: |p| {
            refused(p, "rw", &[TAGGED_BOUNDS, TAGGED_WRAP], |r| {
                Segment::write(r.stag, r.to.wrapping_sub(1), b"data")
            })
        },
    },
    Case {
        name: "write-past-end",
        rows: &["DDP-179", "DDP-183", "DDP-189", "RDMAP-158", "RDMAP-352", "DDP-228"],
        side: Side::Any,
        about: "a Write that ends one byte behind the region: Terminate 1/1/01, nothing changes",
        run: |p| refused(p, "rw", &[TAGGED_BOUNDS], |r| Segment::write(r.stag, r.end() - 3, b"data")),
    },
    Case {
        name: "write-at-end",
        rows: &["DDP-182", "RDMAP-158"],
        side: Side::Any,
        about: "a Write that begins right behind the region: Terminate 1/1/01, nothing changes",
        run: |p| refused(p, "rw", &[TAGGED_BOUNDS], |r| Segment::write(r.stag, r.end(), b"x")),
    },
    Case {
        name: "write-longer-than-region",
        rows: &["DDP-183", "DDP-189"],
        side: Side::Any,
        about: "a Write longer than the region: Terminate 1/1/01, not one byte is placed",
        run: |p| refused(p, "rw", &[TAGGED_BOUNDS], |r| Segment::write(r.stag, r.to, &[0xee; 65])),
    },
    Case {
        name: "write-second-segment-past-end",
        rows: &["DDP-183"],
        side: Side::Any,
        about: "each segment is checked: the second one ends behind the region, Terminate 1/1/01",
        run: |p| {
            let mut session = p.stage("mr=64:rw")?;
            let region = session.region(0)?;
            session.send(&Segment::write(region.stag, region.to + 56, b"fits").not_last());
            session.send(&Segment::write(region.stag, region.to + 60, b"toolong"));
            session.expect_terminate(&[TAGGED_BOUNDS]).map(|_| ())
        },
    },
    Case {
        name: "write-offset-wraps",
        rows: &["DDP-184", "RDMAP-160"],
        side: Side::Any,
        about: "offset and length add up to more than 2^64: Terminate 1/1/03 (or 1/1/01), nothing changes",
        run: |p| {
            refused(p, "rw", &[TAGGED_WRAP, TAGGED_BOUNDS], |r| Segment::write(r.stag, u64::MAX - 1, b"data"))
        },
    },
    Case {
        name: "write-without-the-right",
        rows: &["DDP-181", "DDP-230", "RDMAP-354"],
        side: Side::Any,
        about: "a Write to a region for reading: Terminate 1/1/00 (or 0/1/02), nothing changes",
        run: |p| {
            refused(p, "r", &[TAGGED_STAG, PROTECTION_ACCESS], |r| Segment::write(r.stag, r.to, b"data"))
        },
    },
    Case {
        name: "write-to-local-region",
        rows: &["DDP-181", "SEC-041"],
        side: Side::Any,
        about: "a Write to a region without remote rights: Terminate 1/1/00 (or 0/1/02), nothing changes",
        run: |p| {
            refused(p, "-", &[TAGGED_STAG, TAGGED_STREAM, PROTECTION_ACCESS], |r| {
                Segment::write(r.stag, r.to, b"data")
            })
        },
    },
    Case {
        name: "write-ddp-version-0",
        rows: &["DDP-058", "RDMAP-161", "RDMAP-332"],
        side: Side::Any,
        about: "a tagged segment of DDP version 0: Terminate 1/1/04",
        run: |p| version(p, 0xc0),
    },
    Case {
        name: "write-ddp-version-2",
        rows: &["DDP-058", "RDMAP-161", "RDMAP-332"],
        side: Side::Any,
        about: "a tagged segment of DDP version 2: Terminate 1/1/04",
        run: |p| version(p, 0xc2),
    },
    Case {
        name: "write-ddp-version-3",
        rows: &["DDP-058", "RDMAP-161", "RDMAP-332"],
        side: Side::Any,
        about: "a tagged segment of DDP version 3: Terminate 1/1/04",
        run: |p| version(p, 0xc3),
    },
    Case {
        name: "write-header-cut-short",
        rows: &[],
        side: Side::Any,
        about: "a tagged segment of 13 bytes, for which there is no code: the stream ends",
        run: |p| {
            let mut session = running(p)?;
            session.send(&Segment { bytes: Segment::write(0, 0, &[]).bytes[..13].to_vec() });
            super::untagged::ended(&mut session)
        },
    },
    Case {
        name: "nothing-placed-after-an-error",
        rows: &["DDP-192"],
        side: Side::Any,
        about: "what follows a bad segment is dropped: not placed, not delivered",
        run: |p| {
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
        },
    },
];
