//! RDMAP's control byte: version and opcode (RFC 5040 sections 4.1, 7.2).

use super::codes::{ANY_OPERATION, OPERATION_VERSION, TAGGED_STAG, UNTAGGED_NO_BUFFER, UNTAGGED_TOO_LONG};
use crate::case::{Case, Check, any};
use crate::probe::Probe;
use crate::wire::{Code, ReadRequest, Segment, opcode};

const VERSION: &[Code] = &[OPERATION_VERSION];

/// Sends a message that is valid for DDP and invalid for RDMAP. The endpoint has to answer with one of
/// `codes`. A target has two receives, and must not receive anything.
fn refused(p: &Probe, codes: &[Code], segment: &Segment) -> Check {
    if !p.has_target() {
        let mut session = p.plain()?;
        session.ping()?;
        session.send(segment);
        // The probe does not know whether an endpoint without a target has posted a receive.
        return session.expect_terminate(&[codes, &[UNTAGGED_NO_BUFFER]].concat()).map(|_| ());
    }
    let mut session = p.stage("recv=2x64")?;
    session.ping()?;
    session.send(segment);
    session.expect_terminate(codes)?;
    p.report(session)?.expect_received(&[])
}

/// Sends an untagged message with a reserved opcode, or with an opcode that belongs to another queue. The
/// endpoint has to refuse the message.
fn unexpected(p: &Probe, segment: &Segment) -> Check {
    refused(p, ANY_OPERATION, segment)
}

fn read_request(msn: u32) -> Segment {
    Segment::read_request(msn, &ReadRequest::default())
}

/// Returns a tagged message with this opcode. DDP accepts the message, since it has no payload.
fn tagged(opcode: u8) -> Segment {
    Segment::tagged(opcode, 0, 0, &[])
}

pub(super) const CASES: &[Case] = &[
    any("send-version-2", "RDMAP-093 RDMAP-149 RDMAP-334")
        .about("a Send of RDMAP version 2: Terminate 0/2/05, not received")
        .run(|p| refused(p, VERSION, &Segment::send(1, b"data").rdmap(0x83))),
    any("send-version-3", "RDMAP-093 RDMAP-149 RDMAP-334")
        .about("a Send of RDMAP version 3: Terminate 0/2/05, not received")
        .run(|p| refused(p, VERSION, &Segment::send(1, b"data").rdmap(0xc3))),
    any("write-version-2", "RDMAP-198 RDMAP-334")
        .about("a Write of RDMAP version 2: Terminate 0/2/05")
        .run(|p| refused(p, VERSION, &tagged(opcode::WRITE).rdmap(0x80))),
    any("read-request-version-3", "RDMAP-339")
        .about("a Read Request of RDMAP version 3: Terminate 0/2/05, no response")
        .run(|p| refused(p, VERSION, &read_request(2).rdmap(0xc1))),
    any("read-response-version-2", "RDMAP-228")
        .about(
            "a Read Response of RDMAP version 2: Terminate 0/2/05 (or 0/2/06, nothing having been \
             asked for)",
        )
        .run(|p| {
            let codes = [OPERATION_VERSION, Code(0, 2, 0x06)];
            refused(p, &codes, &tagged(opcode::READ_RESPONSE).rdmap(0x82))
        }),
    any("opcode-12", "RDMAP-108 RDMAP-333")
        .about("opcode 12, which nobody has defined: Terminate 0/2/06")
        .run(|p| unexpected(p, &Segment::untagged(12, 0, 1, b"data"))),
    any("opcode-13", "RDMAP-108 RDMAP-333")
        .about("opcode 13: Terminate 0/2/06")
        .run(|p| unexpected(p, &Segment::untagged(13, 0, 1, b"data"))),
    any("opcode-14", "RDMAP-108 RDMAP-333")
        .about("opcode 14: Terminate 0/2/06")
        .run(|p| unexpected(p, &Segment::untagged(14, 0, 1, b"data"))),
    any("opcode-15", "RDMAP-108 RDMAP-333")
        .about("opcode 15: Terminate 0/2/06")
        .run(|p| unexpected(p, &Segment::untagged(15, 0, 1, b"data"))),
    any("opcode-15-on-queue-1", "RDMAP-333")
        .about("opcode 15 on the queue of Read Requests: Terminate 0/2/06")
        .run(|p| unexpected(p, &Segment::untagged(15, 1, 2, &[0; 28]))),
    any("opcode-12-tagged", "RDMAP-108 RDMAP-333")
        .about("a tagged message of opcode 12: Terminate 0/2/06")
        .run(|p| unexpected(p, &tagged(12))),
    any("send-tagged", "RDMAP-333")
        .about("a Send with T set: Terminate 0/2/06")
        .run(|p| unexpected(p, &tagged(opcode::SEND))),
    any("read-request-tagged", "RDMAP-333")
        .about("a Read Request with T set: Terminate 0/2/06")
        .run(|p| unexpected(p, &tagged(opcode::READ_REQUEST))),
    any("terminate-tagged", "")
        .about("a Terminate with T set is none: Terminate 0/2/06, or the end without an answer")
        .run(|p| {
            let mut session = p.plain()?;
            session.ping()?;
            session.send(&tagged(opcode::TERMINATE));
            super::untagged::ended(&mut session)
        }),
    any("write-untagged", "RDMAP-333")
        .about("a Write with T clear: Terminate 0/2/06, not received")
        .run(|p| unexpected(p, &Segment::untagged(opcode::WRITE, 0, 1, b"data"))),
    any("read-response-untagged", "RDMAP-333")
        .about("a Read Response with T clear: Terminate 0/2/06, not received")
        .run(|p| unexpected(p, &Segment::untagged(opcode::READ_RESPONSE, 0, 1, b"data"))),
    any("read-request-on-queue-0", "RDMAP-338")
        .about("a Read Request on the queue of Sends: Terminate 0/2/06, no response")
        .run(|p| unexpected(p, &read_request(1).on_queue(0))),
    any("read-request-on-queue-2", "")
        .about("a Read Request on the queue of Terminates: Terminate 0/2/06 (or the end), no response")
        .run(|p| {
            let mut session = p.plain()?;
            session.ping()?;
            session.send(&read_request(1).on_queue(2));
            super::untagged::ended(&mut session)
        }),
    any("send-on-queue-1", "RDMAP-333")
        .about("a Send on the queue of Read Requests: Terminate 0/2/06, not received")
        .run(|p| unexpected(p, &Segment::untagged(opcode::SEND, 1, 2, &[0; 28]))),
    any("send-on-queue-2", "")
        .about("a Send on the queue of Terminates: Terminate 0/2/06 (or the end), not received")
        .run(|p| {
            let mut session = p.plain()?;
            session.ping()?;
            session.send(&Segment::untagged(opcode::SEND, 2, 1, b"data"));
            super::untagged::ended(&mut session)
        }),
    any("terminate-on-queue-0", "")
        .about("a Terminate on the queue of Sends: not received as a message, the stream ends")
        .run(|p| {
            let mut session = p.stage("recv=1x64")?;
            session.ping()?;
            session.send(&Segment::untagged(opcode::TERMINATE, 0, 1, &[0; 4]));
            super::untagged::ended(&mut session)?;
            p.report(session)?.expect_received(&[])
        }),
    any("read-response-unasked", "RDMAP-228")
        .about("a Read Response of no bytes that nobody asked for: Terminate 0/2/06")
        .run(|p| unexpected(p, &tagged(opcode::READ_RESPONSE))),
    any("read-response-unasked-into-a-region", "RDMAP-228")
        .about("a Read Response that nobody asked for, into a region for reading: an error, nothing changes")
        .run(|p| {
            let mut session = p.stage("mr=64:r")?;
            session.ping()?;
            let region = session.region(0)?;
            session.send(&Segment::tagged(opcode::READ_RESPONSE, region.stag, region.to, b"data"));
            let codes = [ANY_OPERATION, &[TAGGED_STAG, Code(1, 1, 0x02), Code(0, 1, 0x02)]].concat();
            session.expect_terminate(&codes)?;
            p.report(session)?.expect_untouched()
        }),
    any("first-of-several-errors", "RDMAP-331")
        .about("two bad messages at once: the Terminate tells of the first")
        .run(|p| {
            let mut session = p.plain()?;
            session.ping()?;
            session.send_together(&[
                Segment::write(0xdead_be00, 0, b"first"),
                Segment::send(77, b"second").on_queue(9),
            ]);
            let told = session.expect_terminate(&[TAGGED_STAG])?;
            let (_, d, _) = told.any_header_control();
            crate::case::require(!d || told.ddp_header()[2..6] == [0xde, 0xad, 0xbe, 0], || {
                "the header echoed is not that of the first".into()
            })
        }),
    any("queue-1-message-too-long", "RDMAP-111")
        .about("a Read Request of 60 bytes: refused (1/2/05, or 0/2/FF), no response")
        .run(|p| {
            let mut session = p.plain()?;
            session.ping()?;
            let long = [ReadRequest::default().encode(), vec![0; 32]].concat();
            session.send(&Segment::untagged(opcode::READ_REQUEST, 1, 2, &long));
            let codes = [ANY_OPERATION, &[UNTAGGED_TOO_LONG, UNTAGGED_NO_BUFFER]].concat();
            session.expect_terminate(&codes).map(|_| ())
        }),
];
