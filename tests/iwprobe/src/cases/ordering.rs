//! The order of messages that the RFCs guarantee (RFC 5040 section 5.5).

use crate::case::{Case, any, not_applicable, require};
use crate::scene::pattern;
use crate::wire::{Segment, opcode};

pub(super) const CASES: &[Case] = &[
    any("read-sees-earlier-write", "RDMAP-289")
        .about("a Read behind a Write of the same bytes, in one piece, brings what was written")
        .run(|p| {
            let mut session = p.stage("mr=64:rw")?;
            let region = session.region(0)?;
            let read = session.read_request(region.stag, region.to, 5);
            session.send_together(&[Segment::write(region.stag, region.to, b"fresh"), read]);
            let back = session.expect_read(region.to, 5)?;
            require(back == b"fresh", || "older bytes were read".into())
        }),
    any("read-sees-all-earlier-writes", "RDMAP-289").about("a Read behind 64 Writes brings all of them").run(
        |p| {
            let mut session = p.stage("mr=4096:rw")?;
            let region = session.region(0)?;
            let written: Vec<u8> = (0..4096).map(|n: usize| (n / 64) as u8 ^ 0x80).collect();
            for (index, chunk) in written.chunks(64).enumerate() {
                session.send(&Segment::write(region.stag, region.to + index as u64 * 64, chunk));
            }
            let back = session.read(region.stag, region.to, 4096)?;
            require(back == written, || "older bytes were read".into())
        },
    ),
    any("writes-in-order", "")
        .about("Writes to the same bytes one after the other, each waited for: the last one stays")
        .run(|p| {
            let mut session = p.stage("mr=64:rw")?;
            let region = session.region(0)?;
            for round in 0..4 {
                session.send(&Segment::write(region.stag, region.to, &[round; 16]));
                session.ping()?;
            }
            let back = session.read(region.stag, region.to, 16)?;
            require(back == [3; 16], || format!("{back:02x?} stayed"))
        }),
    any("write-behind-read", "RDMAP-283")
        .about("a Read and, not waiting for it, a Write of the same bytes: old ones or new ones")
        .run(|p| {
            let mut session = p.stage("mr=64:rw")?;
            let region = session.region(0)?;
            let read = session.read_request(region.stag, region.to, 4);
            session.send_together(&[read, Segment::write(region.stag, region.to, b"next")]);
            let back = session.expect_read(region.to, 4)?;
            let old = pattern(0, 4);
            let mixed = back.iter().enumerate().all(|(n, byte)| *byte == old[n] || *byte == b"next"[n]);
            require(mixed, || format!("{back:02x?} is neither"))
        }),
    any("write-then-send", "").about("a Send behind a Write: both are there").run(|p| {
        let mut session = p.stage("mr=64:rw recv=1x16")?;
        let region = session.region(0)?;
        session
            .send_together(&[Segment::write(region.stag, region.to + 4, b"data"), Segment::send(1, b"done")]);
        session.ping()?;
        let report = p.report(session)?;
        report.expect_received(&[b"done"])?;
        report.expect_written(0, 4, b"data")
    }),
    any("reads-and-sends-mixed", "RDMAP-214 RDMAP-239 RDMAP-230")
        .about("Sends and Reads in turn: each kind keeps its order")
        .run(|p| {
            let mut session = p.stage("mr=1024:r recv=4x16")?;
            let region = session.region(0)?;
            if session.peer_ird.is_some_and(|ird| ird < 4) {
                return not_applicable("the endpoint serves fewer than four Reads");
            }
            let mut segments = Vec::new();
            for n in 1..=4 {
                segments.push(Segment::send(n, &[n as u8; 5]));
                segments.push(session.read_request(region.stag, region.to, n * 100));
            }
            session.send_together(&segments);
            for n in 1..=4 {
                let back = session.expect_read(region.to, n * 100)?;
                require(back == pattern(0, back.len()), || format!("Read {n} brought other bytes"))?;
            }
            p.report(session)?.expect_received(&[&[1; 5], &[2; 5], &[3; 5], &[4; 5]])
        }),
    any("send-behind-a-long-write", "").about("a Send behind a Write of many segments: both are there").run(
        |p| {
            let mut session = p.stage("mr=8192:rw recv=1x16")?;
            let region = session.region(0)?;
            let written = vec![0x3c; 8192];
            for (index, chunk) in written.chunks(512).enumerate() {
                let segment = Segment::write(region.stag, region.to + index as u64 * 512, chunk);
                session.send(&if index < 15 { segment.not_last() } else { segment });
            }
            session.send_message(b"done");
            session.ping()?;
            let report = p.report(session)?;
            report.expect_received(&[b"done"])?;
            require(report.changes.len() == 1, || "the Write is not there".into())
        },
    ),
    any("both-directions-at-once", "RDMAP-294")
        .about("a Read of ours is answered while one of the target waits for our answer")
        .run(|p| {
            let mut session = p.stage("mr=64:r recv=1x16 then=r32 peer=77:1000")?;
            let region = session.region(0)?;
            session.send_message(b"go");
            let theirs = session.expect(opcode::READ_REQUEST)?;
            let back = session.read(region.stag, region.to, 64)?;
            require(back == pattern(0, 64), || "other bytes than are there".into())?;
            let asked = theirs.as_read_request().unwrap_or_default();
            session.send(&Segment::tagged(opcode::READ_RESPONSE, asked.sink_stag, asked.sink_to, &[4; 32]));
            session.ping()?;
            let report = p.report(session)?;
            let done = report.completions.iter().any(|c| c.kind == "r" && c.status == 0);
            require(done, || "the target's Read did not complete".into())
        }),
];
