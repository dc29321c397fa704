//! Sends (RFC 5040 section 5.3): valid Sends, and Sends that are longer than their receive.

use super::codes::{UNTAGGED_MO, UNTAGGED_TOO_LONG};
use crate::case::{Case, Check, any, require};
use crate::probe::Probe;
use crate::wire::{Code, Segment, opcode};

/// Sends one message in segments of `cut` bytes into a receive of `room` bytes. The target has to receive
/// this message.
fn received(p: &Probe, room: usize, message: &[u8], cut: usize) -> Check {
    let mut session = p.stage(&format!("recv=1x{room}"))?;
    let pieces: Vec<&[u8]> = if message.is_empty() { vec![&[]] } else { message.chunks(cut).collect() };
    let last = pieces.len() - 1;
    for (index, piece) in pieces.into_iter().enumerate() {
        let segment = Segment::send(1, piece).at_offset((index * cut) as u32);
        session.send(&if index < last { segment.not_last() } else { segment });
    }
    session.ping()?;
    p.report(session)?.expect_received(&[message])
}

fn too_long(p: &Probe, room: usize, length: usize, codes: &[Code]) -> Check {
    let mut session = p.stage(&format!("recv=1x{room}"))?;
    session.ping()?;
    session.send_message(&vec![3; length]);
    session.expect_terminate(codes)?;
    p.report(session)?.expect_received(&[])
}

/// Sends a Send with this opcode, which the target has to receive as a Send.
fn kind(p: &Probe, opcode: u8) -> Check {
    let mut session = p.stage("recv=1x64")?;
    session.send(&Segment::untagged(opcode, 0, 1, b"hello"));
    session.ping()?;
    let report = p.report(session)?;
    report.expect_received(&[b"hello"])?;
    require(report.received()[0].kind == "R", || format!("received as {}", report.received()[0].kind))
}

/// Sends one Send for each of these opcodes, each into its own receive. The target has to get `wanted`
/// completion events.
fn events(p: &Probe, opcodes: &[u8], wanted: u32) -> Check {
    let mut session = p.stage(&format!("recv={}x16 solicited", opcodes.len()))?;
    for (index, opcode) in opcodes.iter().enumerate() {
        session.send(&Segment::untagged(*opcode, 0, index as u32 + 1, b"hello"));
    }
    session.ping()?;
    let report = p.report(session)?;
    report.expect_received(&vec![&b"hello"[..]; opcodes.len()])?;
    require(report.events == Some(wanted), || {
        format!("the target had {:?} events, expected {wanted}", report.events)
    })
}

pub(super) const CASES: &[Case] = &[
    any("send-received", "RDMAP-113 RDMAP-237 DDP-048 DDP-139")
        .about("a Send is received, with its length and its bytes")
        .run(|p| kind(p, opcode::SEND)),
    any("send-se-received", "RDMAP-113")
        .about("a Send with Solicited Event is received like a Send")
        .run(|p| kind(p, opcode::SEND_SE)),
    any("send-raises-no-solicited-event", "RDMAP-013 RDMAP-049")
        .about("three Sends, and a queue armed for solicited ones: received, and no event")
        .run(|p| events(p, &[opcode::SEND; 3], 0)),
    any("send-se-raises-a-solicited-event", "RDMAP-013 RDMAP-049")
        .about("three Sends and one with Solicited Event: all are received, and there is one event")
        .run(|p| events(p, &[opcode::SEND, opcode::SEND, opcode::SEND, opcode::SEND_SE], 1)),
    any("send-of-no-bytes", "DDP-118 RDMAP-246 RDMAP-235")
        .about("a Send of no bytes takes a receive like any other")
        .run(|p| {
            let mut session = p.stage("recv=2x16")?;
            session.send_message(b"");
            session.send_message(b"next");
            session.ping()?;
            p.report(session)?.expect_received(&[b"", b"next"])
        }),
    any("send-of-no-bytes-into-none", "RDMAP-246")
        .about("a receive of no bytes is enough for a Send of none")
        .run(|p| received(p, 0, b"", 1)),
    any("send-fills-the-receive", "RDMAP-236")
        .about("a Send as long as the receive")
        .run(|p| received(p, 64, &[6; 64], 64)),
    any("send-in-two-segments", "DDP-109 DDP-139 DDP-140")
        .about("a Send in two segments is one message")
        .run(|p| received(p, 64, b"one and two", 5)),
    any("send-in-many-segments", "DDP-109 DDP-139")
        .about("a Send in 100 segments of 41 bytes is one message")
        .run(|p| {
            let message: Vec<u8> = (0..4100).map(|n: usize| (n / 7) as u8).collect();
            received(p, 4100, &message, 41)
        }),
    any("send-of-65536-bytes", "DDP-109 DDP-139").about("a Send of 65536 bytes in segments of 1400").run(
        |p| {
            let message: Vec<u8> = (0..65_536).map(|n: usize| (n / 11) as u8).collect();
            received(p, 65_536, &message, 1400)
        },
    ),
    any("send-last-segment-empty", "DDP-135 DDP-140")
        .about("a Send whose last segment has no bytes is as long as the others say")
        .run(|p| {
            let mut session = p.stage("recv=1x64")?;
            session.send(&Segment::send(1, b"all of it").not_last());
            session.send(&Segment::send(1, b"").at_offset(9));
            session.ping()?;
            p.report(session)?.expect_received(&[b"all of it"])
        }),
    any("send-one-byte-too-long", "DDP-171 RDMAP-166 RDMAP-238")
        .about("65 bytes into 64: Terminate 1/2/05, not received")
        .run(|p| too_long(p, 64, 65, &[UNTAGGED_TOO_LONG])),
    any("send-into-no-bytes", "DDP-171")
        .about("one byte into a receive of none: Terminate 1/2/05 (or 1/2/04), not received")
        .run(|p| too_long(p, 0, 1, &[UNTAGGED_TOO_LONG, UNTAGGED_MO])),
    any("sends-in-order", "DDP-131 RDMAP-239 RDMAP-276")
        .about("Sends of all plain kinds are received in the order sent")
        .run(|p| {
            let mut session = p.stage("recv=6x64")?;
            let messages: Vec<Vec<u8>> = (1..=6).map(|n| vec![n; usize::from(n) * 9]).collect();
            for (index, message) in messages.iter().enumerate() {
                let opcode = if index % 2 == 0 { opcode::SEND } else { opcode::SEND_SE };
                session.send(&Segment::untagged(opcode, 0, index as u32 + 1, message));
            }
            session.ping()?;
            let sent: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            p.report(session)?.expect_received(&sent)
        }),
    any("sends-take-receives-in-order", "RDMAP-235 RDMAP-236")
        .about("receives of different lengths are used in the order in which they were posted")
        .run(|p| {
            let mut session = p.stage("recv=1x8 recv=1x100 recv=1x8")?;
            session.send_message(&[1; 8]);
            session.send_message(&[2; 100]);
            session.send_message(&[3; 8]);
            session.ping()?;
            p.report(session)?.expect_received(&[&[1; 8], &[2; 100], &[3; 8]])
        }),
    any("sends-in-one-piece", "RDMAP-239 MPA-075")
        .about("eight Sends in one TCP segment are eight messages")
        .run(|p| {
            let mut session = p.stage("recv=8x16")?;
            let messages: Vec<Vec<u8>> = (1..=8).map(|n| vec![n; usize::from(n)]).collect();
            let segments: Vec<Segment> = messages
                .iter()
                .enumerate()
                .map(|(n, message)| Segment::send(n as u32 + 1, message))
                .collect();
            session.send_together(&segments);
            session.ping()?;
            let sent: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
            p.report(session)?.expect_received(&sent)
        }),
    any("write-behind-a-send", "").about("a Write behind a Send does not disturb it").run(|p| {
        let mut session = p.stage("mr=64:rw recv=1x64")?;
        let region = session.region(0)?;
        session.send(&Segment::send(1, b"first ").not_last());
        session.send(&Segment::send(1, b"second").at_offset(6));
        session.send(&Segment::write(region.stag, region.to, b"third"));
        session.ping()?;
        let report = p.report(session)?;
        report.expect_received(&[b"first second"])?;
        report.expect_written(0, 0, b"third")
    }),
];
