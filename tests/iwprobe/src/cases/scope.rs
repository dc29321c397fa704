//! The scope of an STag: the streams that may use it (RFC 5041 section 8.2, RFC 5042 section 6.1.1).

use super::codes::{PROTECTION_STAG, PROTECTION_STREAM, TAGGED_STAG, TAGGED_STREAM};
use crate::case::{Case, Check, any};
use crate::probe::Probe;
use crate::wire::Segment;

fn write_refused(p: &Probe, scene: &str) -> Check {
    let mut session = p.stage(scene)?;
    session.ping()?;
    let region = session.region(0)?;
    session.send(&Segment::write(region.stag, region.to, b"data"));
    // An endpoint that keeps a table of STags for each stream cannot find STags of other streams, and reports
    // them as invalid.
    session.expect_terminate(&[TAGGED_STREAM, TAGGED_STAG])?;
    p.report(session)?.expect_untouched()
}

fn read_refused(p: &Probe, scene: &str) -> Check {
    let mut session = p.stage(scene)?;
    let region = session.region(0)?;
    let request = session.read_request(region.stag, region.to, 8);
    session.send(&request);
    session.expect_terminate(&[PROTECTION_STREAM, PROTECTION_STAG]).map(|_| ())
}

pub(super) const CASES: &[Case] = &[
    any("write-to-other-domain", "DDP-068 DDP-212 DDP-226 RDMAP-159 RDMAP-350 SEC-087")
        .about(
            "a Write to an STag of another protection domain: Terminate 1/1/02 (or 1/1/00), nothing \
             changes",
        )
        .run(|p| write_refused(p, "mr=64:rw:x")),
    any("read-from-other-domain", "RDMAP-145 RDMAP-341 RDMAP-350")
        .about("a Read from an STag of another protection domain: Terminate 0/1/03 (or 0/1/00), no response")
        .run(|p| read_refused(p, "mr=64:rw:x")),
    any("write-to-other-stream", "DDP-213 DDP-220 DDP-227 RDMAP-351 SEC-088")
        .about("a Write to an STag of another stream: Terminate 1/1/02 (or 1/1/00), nothing changes")
        .run(|p| write_refused(p, "mr=64:rw:o")),
    any("read-from-other-stream", "RDMAP-341 RDMAP-351 SEC-088")
        .about("a Read from an STag of another stream: Terminate 0/1/03 (or 0/1/00), no response")
        .run(|p| read_refused(p, "mr=64:rw:o")),
    any("stag-of-this-stream", "RDMAP-351").about("an STag for this stream alone works on it").run(|p| {
        let mut session = p.stage("mr=64:rw:q")?;
        let region = session.region(0)?;
        session.send(&Segment::write(region.stag, region.to, b"mine"));
        let back = session.read(region.stag, region.to, 4)?;
        crate::case::require(back == b"mine", || "other bytes than were written".into())
    }),
    any("stag-of-an-earlier-stream", "")
        .about(
            "an STag that went with its connection is refused on the next one: Terminate 1/1/00 (or \
             1/1/02)",
        )
        .run(|p| {
            let mut first = p.stage("mr=64:rw")?;
            first.ping()?;
            let region = first.region(0)?;
            first.close();
            let mut session = p.stage("recv=1x16")?;
            session.ping()?;
            session.send(&Segment::write(region.stag, region.to, b"data"));
            session.expect_terminate(&[TAGGED_STAG, TAGGED_STREAM]).map(|_| ())
        }),
    any("stags-not-predictable", "")
        .about("the STags of eight connections do not follow each other by one step")
        .run(|p| {
            let mut stags = Vec::new();
            for _ in 0..8 {
                let session = p.stage("mr=64:r")?;
                stags.push(session.region(0)?.stag);
                session.close();
            }
            let steps: Vec<u32> = stags.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
            crate::case::require(steps.windows(2).any(|pair| pair[0] != pair[1]), || {
                format!("STags {stags:08x?}: the next one is predictable")
            })
        }),
];
