//! Untagged segments: queues, MSN, MO (RFC 5041 sections 4.3, 7.1).

use super::codes::{
    ANY_MSN, UNTAGGED_MO, UNTAGGED_NO_BUFFER, UNTAGGED_QN, UNTAGGED_TOO_LONG, UNTAGGED_VERSION,
};
use crate::case::{Case, CaseError, Check, any, deviates};
use crate::probe::Probe;
use crate::session::{Incoming, Session};
use crate::wire::{Code, Segment};

fn running(p: &Probe) -> Result<Session, CaseError> {
    let mut session = p.plain()?;
    session.ping()?;
    Ok(session)
}

fn refused(p: &Probe, codes: &[Code], segment: &Segment) -> Check {
    let mut session = running(p)?;
    session.send(segment);
    session.expect_terminate(codes).map(|_| ())
}

/// Sends several segments that the target must refuse, as `refused` sends one segment. The target has one
/// receive of 16 bytes, and must not receive anything.
fn not_received(p: &Probe, codes: &[Code], segments: &[Segment]) -> Check {
    let mut session = p.stage("recv=1x16")?;
    session.ping()?;
    session.send_together(segments);
    session.expect_terminate(codes)?;
    p.report(session)?.expect_received(&[])
}

/// Checks that the endpoint ends the stream, with any Terminate or without a Terminate.
pub(super) fn ended(session: &mut Session) -> Check {
    match session.receive() {
        Incoming::End(_) => Ok(()),
        Incoming::Segment(segment) if segment.as_terminate().is_some() => Ok(()),
        other => deviates(format!("expected the stream to be ended, got {other}")),
    }
}

pub(super) const CASES: &[Case] = &[
    any("queue-3-send", "")
        .about("a Send on queue 3: Terminate 1/2/01, or 0/2/06 where queue 3 is open for atomics")
        .run(|p| {
            let codes = [UNTAGGED_QN, UNTAGGED_NO_BUFFER, Code(0, 2, 0x06)];
            refused(p, &codes, &Segment::send(1, b"data").on_queue(3))
        }),
    any("queue-4", "DDP-164 RDMAP-162 RDMAP-332")
        .about("a queue that does not exist: Terminate 1/2/01")
        .run(|p| refused(p, &[UNTAGGED_QN], &Segment::send(1, b"data").on_queue(4))),
    any("queue-largest", "DDP-164 RDMAP-162 RDMAP-332")
        .about("queue 4294967295: Terminate 1/2/01")
        .run(|p| refused(p, &[UNTAGGED_QN], &Segment::send(1, b"data").on_queue(u32::MAX))),
    any("no-buffer", "DDP-165 RDMAP-163 SEC-129")
        .about(
            "a Send for which no receive is posted: Terminate 1/2/02 (1/2/03 where the text can be \
             read so)",
        )
        .run(|p| {
            let mut session = p.stage("mr=64:r")?;
            session.ping()?;
            session.send_message(b"data");
            session.expect_terminate(ANY_MSN)?;
            p.report(session)?.expect_received(&[])
        }),
    any("no-buffer-for-nothing", "")
        .about("a Send of no bytes for which no receive is posted needs one too: Terminate 1/2/02")
        .run(|p| {
            let mut session = p.stage("mr=64:r")?;
            session.ping()?;
            session.send_message(b"");
            session.expect_terminate(ANY_MSN).map(|_| ())
        }),
    any("no-buffer-left", "DDP-165 RDMAP-235")
        .about("each Send takes one receive: the third of two is answered by 1/2/02, the others are received")
        .run(|p| {
            let mut session = p.stage("recv=2x16")?;
            session.ping()?;
            for message in [&b"one"[..], b"two", b"three"] {
                session.send_message(message);
            }
            session.expect_terminate(ANY_MSN)?;
            p.report(session)?.expect_received(&[b"one", b"two"])
        }),
    any("msn-repeated", "DDP-174 RDMAP-164 DDP-130")
        .about("an MSN that was delivered already: Terminate 1/2/03 (or 1/2/02), not delivered twice")
        .run(|p| {
            let mut session = p.stage("recv=4x16")?;
            session.ping()?;
            session.send(&Segment::send(1, b"one"));
            session.send(&Segment::send(1, b"again"));
            session.expect_terminate(ANY_MSN)?;
            p.report(session)?.expect_received(&[b"one"])
        }),
    any("msn-zero", "DDP-174 SEC-061")
        .about("MSN 0 first, where 1 is due: Terminate 1/2/03 (or 1/2/02)")
        .run(|p| not_received(p, ANY_MSN, &[Segment::send(0, b"data")])),
    any("msn-far-ahead", "DDP-165 DDP-174 SEC-061")
        .about("an MSN far ahead of every buffer: Terminate 1/2/02 (or 1/2/03)")
        .run(|p| not_received(p, ANY_MSN, &[Segment::send(1000, b"data")])),
    any("msn-halfway-round", "DDP-174")
        .about("an MSN half the number space away: Terminate 1/2/03 (or 1/2/02)")
        .run(|p| not_received(p, ANY_MSN, &[Segment::send(0x8000_0001, b"data")])),
    any("mo-beyond-buffer", "DDP-170")
        .about("an offset behind the buffer: Terminate 1/2/04 (or 1/2/05), nothing is received")
        .run(|p| not_received(p, &[UNTAGGED_MO, UNTAGGED_TOO_LONG], &[Segment::send(1, b"x").at_offset(17)])),
    any("mo-largest", "DDP-170 DDP-171")
        .about("offset 4294967295, whose sum with the length wraps 32 bits: Terminate 1/2/04 (or 1/2/05)")
        .run(|p| {
            not_received(
                p,
                &[UNTAGGED_MO, UNTAGGED_TOO_LONG],
                &[Segment::send(1, b"xyz").at_offset(u32::MAX)],
            )
        }),
    any("mo-plus-length-too-long", "DDP-171 RDMAP-166")
        .about("offset 10 and 7 bytes into 16: Terminate 1/2/05, nothing is received")
        .run(|p| {
            not_received(
                p,
                &[UNTAGGED_TOO_LONG],
                &[Segment::send(1, &[7; 10]).not_last(), Segment::send(1, &[8; 7]).at_offset(10)],
            )
        }),
    any("mo-plus-length-fits", "DDP-171 DDP-140 DDP-139 RDMAP-236")
        .about("offset 10 and 6 bytes into 16 fill the buffer")
        .run(|p| {
            let mut session = p.stage("recv=1x16")?;
            session.send(&Segment::send(1, &[7; 10]).not_last());
            session.send(&Segment::send(1, &[8; 6]).at_offset(10));
            session.ping()?;
            p.report(session)?.expect_received(&[&[&[7; 10][..], &[8; 6]].concat()])
        }),
    any("no-l-no-delivery", "DDP-135")
        .about("a message whose last segment never comes is not delivered")
        .run(|p| {
            let mut session = p.stage("recv=1x16")?;
            session.send(&Segment::send(1, b"half").not_last());
            p.report(session)?.expect_received(&[])
        }),
    any("send-ddp-version-0", "DDP-058 RDMAP-167 RDMAP-332")
        .about("an untagged segment of DDP version 0: Terminate 1/2/06")
        .run(|p| refused(p, &[UNTAGGED_VERSION], &Segment::send(1, b"data").control(0x40))),
    any("send-ddp-version-2", "DDP-058 RDMAP-167 RDMAP-332")
        .about("an untagged segment of DDP version 2: Terminate 1/2/06")
        .run(|p| refused(p, &[UNTAGGED_VERSION], &Segment::send(1, b"data").control(0x42))),
    any("send-ddp-version-3", "DDP-058 RDMAP-167 RDMAP-332")
        .about("an untagged segment of DDP version 3: Terminate 1/2/06")
        .run(|p| refused(p, &[UNTAGGED_VERSION], &Segment::send(1, b"data").control(0x43))),
    any("send-header-cut-short", "")
        .about("an untagged segment of 17 bytes, for which there is no code: the stream ends")
        .run(|p| {
            let mut session = running(p)?;
            session.send(&Segment { bytes: Segment::send(1, &[]).bytes[..17].to_vec() });
            ended(&mut session)
        }),
    any("segment-of-one-byte", "").about("a ULPDU of one byte, the shortest there is: the stream ends").run(
        |p| {
            let mut session = running(p)?;
            session.send(&Segment { bytes: vec![0x41] });
            ended(&mut session)
        },
    ),
    any("rsvdulp-differs-in-a-message", "DDP-083")
        .about(
            "bytes 2 to 5 differ between segments of a Send: they need not be equal, and mean \
             nothing in a Send",
        )
        .run(|p| {
            let mut session = p.stage("recv=1x16")?;
            session.send(&Segment::send(1, b"one ").invalidating(0x1111_1111).not_last());
            session.send(&Segment::send(1, b"two").invalidating(0x2222_2222).at_offset(4));
            session.ping()?;
            p.report(session)?.expect_received(&[b"one two"])
        }),
    any("reserved-bits-of-a-send", "DDP-048 DDP-056 RDMAP-095 RDMAP-099")
        .about("reserved bits of DDP and RDMAP, and the Invalidate STag of a Send, are not looked at")
        .run(|p| {
            let mut session = p.stage("recv=1x16 mr=64:rw:q")?;
            let region = session.region(0)?;
            session.send(&Segment::send(1, b"bits").control(0x7d).rdmap(0x73).invalidating(region.stag));
            session.read(region.stag, region.to, 8)?;
            let report = p.report(session)?;
            report.expect_received(&[b"bits"])?;
            crate::case::require(report.invalidated.is_empty(), || "a Send invalidated an STag".into())
        }),
];
