//! Valid Reads, which the endpoint serves (RFC 5040 sections 4.4, 5.2).

use crate::case::{Case, Check, any, deviates, not_applicable, require};
use crate::probe::Probe;
use crate::scene::pattern;
use crate::session::Incoming;
use crate::wire::{ReadRequest, Segment, opcode};

/// Reads this part of a region of 16384 bytes, and checks the bytes.
fn part(p: &Probe, offset: usize, length: usize) -> Check {
    let mut session = p.stage("mr=16384:r")?;
    let region = session.region(0)?;
    let back = session.read(region.stag, region.to + offset as u64, length as u32)?;
    require(back == pattern(0, 16_384)[offset..offset + length], || "other bytes than are there".into())
}

pub(super) const CASES: &[Case] = &[
    any("read-served", "RDMAP-112 RDMAP-218 RDMAP-120 RDMAP-225")
        .about("a Read is answered with the bytes that are there")
        .run(|p| part(p, 0, 64)),
    any("read-one-byte", "RDMAP-127 RDMAP-217 RDMAP-218")
        .about("a Read of one byte from an odd offset")
        .run(|p| part(p, 4097, 1)),
    any("read-to-the-end", "RDMAP-343 RDMAP-218")
        .about("a Read that ends where the region does")
        .run(|p| part(p, 16_384 - 100, 100)),
    any("read-many-segments", "RDMAP-218 RDMAP-232 DDP-105 DDP-116")
        .about("a long Read comes back in segments that follow each other")
        .run(|p| part(p, 0, 16_384)),
    any("read-of-no-bytes", "RDMAP-222 DDP-118")
        .about("a Read of no bytes is answered by one segment of 14 bytes")
        .run(|p| {
            let mut session = p.plain()?;
            session.ping()
        }),
    any("read-of-no-bytes-from-nowhere", "RDMAP-221 RDMAP-222")
        .about("a Read of no bytes is answered whatever its source says")
        .run(|p| {
            let mut session = p.plain()?;
            let request = ReadRequest {
                sink_stag: 0xaabb_ccdd,
                sink_to: 0x0102_0304_0506_0708,
                size: 0,
                source_stag: u32::MAX,
                source_to: u64::MAX,
            };
            let msn = session.next_msn(1);
            session.send(&Segment::read_request(msn, &request));
            let response = session.expect(opcode::READ_RESPONSE)?;
            require(
                response.means(&Segment::tagged(opcode::READ_RESPONSE, 0xaabb_ccdd, request.sink_to, &[])),
                || format!("got {}", crate::wire::describe::segment(&response)),
            )
        }),
    any("read-sink-copied", "RDMAP-120 RDMAP-123 RDMAP-225")
        .about("sink STag and offset are copied into the response unread")
        .run(|p| {
            let mut session = p.stage("mr=64:r")?;
            let region = session.region(0)?;
            for (sink_stag, sink_to) in [(0, 0), (u32::MAX, 3), (region.stag, 0xffff_0000_0000_0001)] {
                let request = ReadRequest {
                    sink_stag,
                    sink_to,
                    size: 8,
                    source_stag: region.stag,
                    source_to: region.to,
                };
                let msn = session.next_msn(1);
                session.send(&Segment::read_request(msn, &request));
                let response = session.expect(opcode::READ_RESPONSE)?;
                let wanted = Segment::tagged(opcode::READ_RESPONSE, sink_stag, sink_to, &pattern(0, 8));
                require(response.means(&wanted), || {
                    format!("got {}", crate::wire::describe::segment(&response))
                })?;
            }
            Ok(())
        }),
    any("read-response-one-message", "RDMAP-206 RDMAP-222 DDP-049 DDP-050")
        .about("one Read, one response: L once, and nothing behind it")
        .run(|p| {
            let mut session = p.stage("mr=8192:r")?;
            let region = session.region(0)?;
            session.read(region.stag, region.to, 8192)?;
            session.expect_silence()
        }),
    any("read-segments-in-order", "DDP-126")
        .about("segments of a response come by increasing offset, none longer than a ULPDU may be")
        .run(|p| {
            let mut session = p.stage("mr=16384:r")?;
            let region = session.region(0)?;
            let request = session.read_request(region.stag, region.to, 16_384);
            session.send(&request);
            let (mut to, mut done) = (region.to, false);
            while !done {
                let segment = session.expect(opcode::READ_RESPONSE)?;
                require(segment.to() == to, || format!("TO {:x}, expected {to:x}", segment.to()))?;
                require(segment.bytes.len() <= 64_768, || "a ULPDU of more than 64768 bytes".into())?;
                to += segment.payload().len() as u64;
                done = segment.is_last();
            }
            Ok(())
        }),
    any("reads-in-order", "RDMAP-214 RDMAP-230 RDMAP-292")
        .about("Reads of different sizes sent at once are answered in their order")
        .run(|p| {
            let mut session = p.stage("mr=16384:r")?;
            let region = session.region(0)?;
            let sizes = [9000, 1, 0, 3000];
            if session.peer_ird.is_some_and(|ird| usize::from(ird) < sizes.len()) {
                return not_applicable("the endpoint serves fewer than four Reads");
            }
            let reads = sizes.map(|size| session.read_request(region.stag, region.to, size));
            session.send_together(&reads);
            for size in sizes {
                let back = session.expect_read(region.to, size)?;
                require(back == pattern(0, size as usize), || {
                    format!("the Read of {size} brought other bytes")
                })?;
            }
            Ok(())
        }),
    any("read-takes-no-receive", "RDMAP-210")
        .about("a Read is no message to the application: no receive is used up, nothing completes")
        .run(|p| {
            let mut session = p.stage("mr=64:r recv=1x64")?;
            let region = session.region(0)?;
            session.read(region.stag, region.to, 64)?;
            p.report(session)?.expect_received(&[])
        }),
    any("read-slots-used-again", "RDMAP-208 RDMAP-226")
        .about("a hundred Reads, one after the other, are all served")
        .run(|p| {
            let mut session = p.plain()?;
            (0..100).try_for_each(|_| session.ping())
        }),
    any("read-requests-in-pieces", "")
        .about("a Read Request in two DDP segments is one request, or is refused; it is not misread")
        .run(|p| {
            let mut session = p.plain()?;
            session.ping()?;
            let msn = session.next_msn(1);
            let read =
                ReadRequest { sink_stag: 0x5049_4e47, sink_to: u64::from(msn), ..ReadRequest::default() };
            let bytes = read.encode();
            session.send(&Segment::untagged(opcode::READ_REQUEST, 1, msn, &bytes[..12]).not_last());
            session.send(&Segment::untagged(opcode::READ_REQUEST, 1, msn, &bytes[12..]).at_offset(12));
            match session.receive() {
                Incoming::Segment(s) if s.as_terminate().is_some() => Ok(()),
                Incoming::Segment(s) if s.opcode() == opcode::READ_RESPONSE && s.to() == u64::from(msn) => {
                    Ok(())
                }
                other => deviates(format!("expected the response or a Terminate, got {other}")),
            }
        }),
    any("read-reserved-fields", "RDMAP-095 RDMAP-099 DDP-056")
        .about("reserved bits and the Invalidate STag of a Read Request are not looked at")
        .run(|p| {
            let mut session = p.plain()?;
            let msn = session.next_msn(1);
            let read =
                ReadRequest { sink_stag: 0x5049_4e47, sink_to: u64::from(msn), ..ReadRequest::default() };
            let segment =
                Segment::read_request(msn, &read).control(0x7d).rdmap(0x71).invalidating(0x1234_5678);
            session.send(&segment);
            session.expect_pong(msn)
        }),
];
