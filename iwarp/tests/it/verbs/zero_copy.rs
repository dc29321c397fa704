//! Sending without a copy: which bytes arrive, when requests complete, and when the engine copies the payload
//! nevertheless.

use dp::link::{LinkConfig, LinkPlan, LinkTso};
use iwarp::verbs::{
    ConnParam, MemoryRegion, MrOptions, QpState, RecvRequest, SendFlags, SendOp, SendRequest, Sge, WcOpcode,
    WcStatus, ZERO_COPY_MIN_BYTES,
};

use crate::common::{ALL, Connected, Pair, Testbed, pattern, read_bytes, remote_addr};

const ZERO_COPY: SendFlags = SendFlags::SIGNALED.union(SendFlags::ZERO_COPY);

/// Length in bytes of messages that are sent without a copy.
const LONG: usize = 300_000;

/// Returns a wire for long frames. The ports compute checksums, so that the sender does not read the payload.
fn link(tso: LinkTso, plan: LinkPlan) -> LinkConfig {
    LinkConfig {
        mtu: 9000,
        checksum_offload: true,
        tso,
        seed: 9,
        a_to_b: plan.clone(),
        b_to_a: plan,
        ..LinkConfig::default()
    }
}

/// Returns two hosts that ask for no CRCs.
fn hosts(link: &LinkConfig) -> Pair {
    Testbed::on(link).configure(|config| config.crc = false).hosts()
}

fn connected(link: &LinkConfig) -> (Pair, Connected) {
    let mut pair = hosts(link);
    let connected = pair.connect(&ConnParam::default());
    (pair, connected)
}

/// Returns a Write of all bytes of `from` to `to`.
fn write(wr_id: u64, from: &MemoryRegion, to: &MemoryRegion) -> SendRequest {
    let op = SendOp::Write { remote: remote_addr(to, 0) };
    SendRequest::new(wr_id, op, from.sge(0, from.len())).flags(ZERO_COPY)
}

fn zero_copied(pair: &Pair) -> u64 {
    pair.a.engine.counters().tx_zero_copy_bytes
}

/// Each request owns a piece of memory until its completion. Then the test overwrites the piece and posts it
/// again. If a request completed before its last retransmission, wrong bytes would arrive.
#[test]
fn memory_may_change_when_its_request_completes_and_every_byte_arrives() {
    const PIECE: usize = 300_001;
    const PIECES: usize = 6;
    const MESSAGES: usize = 24;
    for tso in [LinkTso::Off, LinkTso::Cut, LinkTso::Whole] {
        for drop_ppm in [0, 20_000] {
            let plan = LinkPlan {
                drop_ppm,
                reorder_ppm: drop_ppm,
                reorder_us: 300,
                delay_us: 30,
                ..LinkPlan::default()
            };
            let (mut pair, c) = connected(&link(tso, plan));
            let (source, target) = pair.regions(PIECE * MESSAGES);
            let mut expected = Vec::new();
            let (mut next, mut open) = (0, 0);
            let mut post = |piece: usize, expected: &mut Vec<u8>| {
                let data = pattern(next as u64, PIECE);
                source.write_at(piece * PIECE, &data).unwrap();
                let op = SendOp::Write { remote: remote_addr(&target, next * PIECE) };
                let request = SendRequest::new(piece as u64, op, source.sge(piece * PIECE, PIECE));
                c.qp_a.post_send(&request.flags(ZERO_COPY)).unwrap();
                expected.extend(data);
                next += 1;
                next < MESSAGES
            };
            let mut more = true;
            for piece in 0..PIECES {
                more = post(piece, &mut expected);
                open += 1;
            }
            while open > 0 {
                let wc = pair.wc_a();
                assert_eq!((wc.status, wc.opcode), (WcStatus::Success, WcOpcode::Write));
                let piece = wc.wr_id as usize;
                source.write_at(piece * PIECE, &[0xee; PIECE]).unwrap();
                open -= 1;
                if more {
                    more = post(piece, &mut expected);
                    open += 1;
                }
            }
            pair.until(|pair| {
                (pair.b.engine.counters().rx_placed_bytes == expected.len() as u64).then_some(())
            });
            assert!(read_bytes(&target, 0, expected.len()) == expected, "{tso:?}, {drop_ppm}");
            assert_eq!(c.qp_b.error(), None);
            assert_eq!(pair.a.engine.counters().stack.tx_retransmits > 0, drop_ppm > 0);
            let copied = pair.a.engine.counters().tx_fetched_bytes - zero_copied(&pair);
            assert!(
                copied < (MESSAGES * 1500) as u64,
                "{copied} bytes copied: more than the ends of messages"
            );
        }
    }
}

/// Requests complete in the order posted, although the memory of a copied request is free earlier. A request
/// that is not copied does not complete before its acknowledgement.
#[test]
fn a_request_completes_with_the_acknowledgement_and_in_order() {
    let plan = LinkPlan { delay_us: 10_000, ..LinkPlan::default() };
    let (mut pair, c) = connected(&link(LinkTso::Whole, plan));
    let (source, target) = pair.regions(LONG);
    let inbox = pair.b.pd.reg_mr(LONG, ALL).unwrap();
    for wr_id in 0..2 {
        c.qp_b.post_recv(&RecvRequest::new(wr_id, inbox.sge(0, LONG))).unwrap();
    }
    let start_us = pair.now_us;
    let op = SendOp::Write { remote: remote_addr(&target, 0) };
    let copied = SendRequest::new(1, op, source.sge(0, 20_000));
    c.qp_a.post_send(&copied).unwrap();
    assert_eq!((pair.wc_a().wr_id, pair.now_us - start_us < 1000), (1, true), "a copy completes at once");
    c.qp_a.post_send(&write(2, &source, &target)).unwrap();
    c.qp_a.post_send(&copied).unwrap();
    let send = SendRequest::new(4, SendOp::Send, source.sge(0, LONG));
    c.qp_a.post_send(&send.clone().flags(SendFlags::ZERO_COPY)).unwrap();
    c.qp_a.post_send(&SendRequest { wr_id: 5, sg_list: copied.sg_list.clone(), ..send }).unwrap();
    let posted_us = pair.now_us;
    let first = pair.wc_a();
    let waited_us = pair.now_us - posted_us;
    // Slow start needs more than one round trip.
    assert!((20_000..200_000).contains(&waited_us), "completed after {waited_us} us on a wire of 20 ms");
    let rest = [pair.wc_a(), pair.wc_a()];
    assert_eq!([first, rest[0], rest[1]].map(|wc| wc.wr_id), [2, 1, 5], "4 asked for no completion");
    assert_eq!([pair.wc_b().byte_len, pair.wc_b().byte_len], [LONG as u32, 20_000]);
    assert!((2 * LONG - 1000..2 * LONG).contains(&(zero_copied(&pair) as usize)), "all but the ends");
}

/// The engine copies payload that is short, inline, scattered or in memory of the caller. The engine copies
/// all payload with CRCs, with markers, in short frames, and on a port without checksums.
#[test]
fn payload_that_cannot_stay_where_it_is_is_copied() {
    let whole = link(LinkTso::Whole, LinkPlan::default());
    let (mut pair, c) = connected(&whole);
    let (source, target) = pair.regions(LONG);
    let op = SendOp::Write { remote: remote_addr(&target, 0) };
    let min = ZERO_COPY_MIN_BYTES as usize;
    let mut user = vec![7_u8; LONG];
    // SAFETY: the vector exists until the end of the test, and is dropped after the region. Until then only
    // the engine accesses the vector's bytes.
    let of_user =
        unsafe { pair.a.pd.reg_user_mr(user.as_mut_ptr(), user.len(), &MrOptions::new(ALL)) }.unwrap();
    let two = [source.sge(0, LONG / 2), source.sge(LONG / 2, LONG / 2)];
    let cases: [(Vec<Sge>, SendFlags, u64); 6] = [
        (vec![source.sge(0, min)], ZERO_COPY, min as u64 - 64),
        (vec![source.sge(0, min - 1)], ZERO_COPY, 0),
        (vec![source.sge(0, LONG)], SendFlags::SIGNALED, 0),
        (two.to_vec(), ZERO_COPY, 0),
        (vec![of_user.sge(0, LONG)], ZERO_COPY, 0),
        (vec![source.sge(0, 100)], ZERO_COPY | SendFlags::INLINE, 0),
    ];
    for (nr, (sg_list, flags, expected)) in cases.into_iter().enumerate() {
        let before = zero_copied(&pair);
        let len: usize = sg_list.iter().map(|sge| sge.length as usize).sum();
        let data = pattern(nr as u64, len);
        if sg_list[0].lkey == source.lkey() {
            source.write_at(0, &data).unwrap();
        }
        let request = SendRequest { sg_list: sg_list.into_iter().collect(), ..SendRequest::empty(1, op) };
        c.qp_a.post_send(&request.flags(flags)).unwrap();
        assert_eq!(pair.wc_a().status, WcStatus::Success);
        assert_eq!(zero_copied(&pair) - before, expected, "case {nr}");
        pair.run_us(1000);
        let expected = if nr == 4 { vec![7; len] } else { data };
        assert!(read_bytes(&target, 0, len) == expected, "case {nr}");
    }
    drop(of_user);
    drop(user);

    let no_checksums = LinkConfig { checksum_offload: false, tso: LinkTso::Off, ..whole.clone() };
    // With timestamps, a TCP segment has 52 bytes less payload than its packet has bytes.
    let mtu = |emss: u16| LinkConfig { mtu: emss + 52, ..whole.clone() };
    for (link, markers, crc, expected) in [
        (&whole, false, false, LONG as u64 - 64),
        (&whole, false, true, 0),
        (&whole, true, false, 0),
        (&no_checksums, false, false, 0),
        (&mtu(8192), false, false, LONG as u64 - 64),
        (&mtu(8191), false, false, 0),
        (&mtu(1448), false, false, 0),
    ] {
        let mut pair = Testbed::on(link).configure(|config| config.crc = crc).hosts();
        let c = pair.connect(&ConnParam { markers, ..ConnParam::default() });
        let (source, target) = pair.regions(LONG);
        source.write_at(0, &pattern(3, LONG)).unwrap();
        c.qp_a.post_send(&write(1, &source, &target)).unwrap();
        assert_eq!(pair.wc_a().status, WcStatus::Success);
        pair.run_us(10_000);
        assert!(read_bytes(&target, 0, LONG) == pattern(3, LONG));
        assert_eq!(zero_copied(&pair), expected, "MTU {}, {markers}, {crc}", link.mtu);
    }
}

/// If a region is deregistered while its bytes are under way, the bytes still arrive, and the request
/// completes.
#[test]
fn a_deregistered_region_stays_until_its_bytes_have_arrived() {
    let plan = LinkPlan { delay_us: 5000, drop_ppm: 50_000, ..LinkPlan::default() };
    let (mut pair, c) = connected(&link(LinkTso::Cut, plan));
    let (source, target) = pair.regions(LONG);
    let data = pattern(4, LONG);
    source.write_at(0, &data).unwrap();
    c.qp_a.post_send(&write(1, &source, &target)).unwrap();
    // TCP has accepted all bytes, including the copied end of the message.
    pair.until(|pair| (pair.a.engine.counters().tx_fetched_bytes == LONG as u64).then_some(()));
    assert!(zero_copied(&pair) > LONG as u64 - 1000);
    drop(source);
    assert!(pair.a.cq.poll_one().is_none());
    assert_eq!(pair.wc_a().status, WcStatus::Success);
    assert!(read_bytes(&target, 0, LONG) == data);
}

/// A graceful close waits for the acknowledgements, so that no request is flushed.
#[test]
fn a_graceful_close_completes_what_was_posted() {
    let plan = LinkPlan { delay_us: 5000, ..LinkPlan::default() };
    let (mut pair, c) = connected(&link(LinkTso::Cut, plan));
    let (source, target) = pair.regions(LONG);
    c.qp_a.post_send(&write(1, &source, &target)).unwrap();
    c.id_a.disconnect();
    assert_eq!(pair.wc_a().status, WcStatus::Success);
    told!(pair.event_a(), Disconnected { error: None, .. });
    assert_eq!(pair.b.engine.counters().rx_placed_bytes, LONG as u64);
}

/// When the connection is lost, a request whose bytes are not acknowledged fails, as an unsent request does.
#[test]
fn a_lost_connection_flushes_what_is_not_acknowledged() {
    let plan = LinkPlan { delay_us: 5000, ..LinkPlan::default() };
    let (mut pair, c) = connected(&link(LinkTso::Cut, plan));
    let (source, target) = pair.regions(LONG);
    for wr_id in 1..=3 {
        c.qp_a.post_send(&write(wr_id, &source, &target)).unwrap();
    }
    pair.until(|pair| (zero_copied(pair) > 80_000).then_some(()));
    c.qp_a.modify(QpState::Error).unwrap();
    let ends = [pair.wc_a(), pair.wc_a(), pair.wc_a()];
    assert_eq!(ends.map(|wc| (wc.wr_id, wc.status)), [1, 2, 3].map(|id| (id, WcStatus::WrFlushError)));
    let free = pair.a.pool.capacity();
    pair.until(|pair| (pair.a.pool.available() == free).then_some(()));
}

/// The bytes from the memory are acknowledged before the send buffer has space for the end of the message.
/// The request completes when the end of the message is acknowledged.
#[test]
fn a_request_completes_also_where_its_end_waits_for_the_send_buffer() {
    for send_buffer_bytes in (9000..60_000).step_by(1500) {
        let mut pair = Testbed::on(&link(LinkTso::Off, LinkPlan { delay_us: 20, ..LinkPlan::default() }))
            .configure(|config| {
                config.crc = false;
                config.stack.tcp.send_buffer_bytes = send_buffer_bytes;
            })
            .hosts();
        let c = pair.connect(&ConnParam::default());
        let regions = [ZERO_COPY_MIN_BYTES as usize, 265_000, LONG].map(|len| (len, pair.regions(len)));
        for (len, (source, target)) in &regions {
            c.qp_a.post_send(&write(1, source, target)).unwrap();
            assert_eq!(pair.wc_a().status, WcStatus::Success, "{len} bytes, {send_buffer_bytes}");
        }
    }
}
