//! Immediate Data in the completion and in the buffer of a receive, and its order relative to other messages.

use crate::common::ext::{ALL, piece, receiving, untagged};
use crate::common::served::Setup;
use crate::common::{Pair, expect_terminate, pattern, read_bytes, remote_addr};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::memory::Access;
use iwarp::verbs::{
    ConnParam, Extensions, QpInit, RecvRequest, SendFlags, SendOp, SendRequest, StreamError, WcOpcode,
    WcStatus, WorkCompletion,
};

const DATA: [u8; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn immediate(wr_id: u64, number: u64) -> SendRequest {
    SendRequest::empty(wr_id, SendOp::Immediate { data: number.to_be_bytes() })
}

fn number(wc: &WorkCompletion) -> u64 {
    assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::RecvImmediate, 8));
    u64::from_be_bytes(wc.immediate.unwrap())
}

/// The eight bytes are in the completion and in the buffer, in the order given. The sender's request
/// completes.
// Proves EXT-001, EXT-115, EXT-116, EXT-119, EXT-121, EXT-197, EXT-199.
#[test]
fn the_bytes_are_in_the_completion_and_in_the_buffer() {
    let (mut pair, c) = Pair::connected();
    let buffer = pair.b.pd.reg_mr(16, Access::LOCAL_WRITE).unwrap();
    for len in [8, 16] {
        buffer.write_at(0, &[0xEE; 16]).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(5, buffer.sge(0, len))).unwrap();
        c.qp_a.post_send(&SendRequest::empty(1, SendOp::Immediate { data: DATA })).unwrap();
        let wc = pair.wc_a();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::Success, WcOpcode::Immediate));
        let wc = pair.wc_b();
        assert_eq!((wc.wr_id, wc.immediate, wc.solicited), (5, Some(DATA), false));
        assert_eq!((wc.opcode, wc.byte_len, wc.invalidated), (WcOpcode::RecvImmediate, 8, None));
        let held = read_bytes(&buffer, 0, 16);
        assert_eq!((&held[..8], &held[8..]), (&DATA[..], &[0xEE; 8][..]));
    }
}

/// A Write with Immediate Data is a Write followed by Immediate Data. When the Immediate Data completes, the
/// Write's bytes are placed. This also holds over a wire that loses and reorders frames, and with
/// out-of-order placement.
// Proves EXT-002, EXT-114, EXT-135.
#[test]
fn a_write_is_placed_before_its_immediate_data_completes() {
    let plan = LinkPlan {
        drop_ppm: 20_000,
        reorder_ppm: 50_000,
        reorder_us: 300,
        delay_us: 50,
        ..LinkPlan::default()
    };
    for markers in [false, true] {
        let link =
            LinkConfig { seed: 5, a_to_b: plan.clone(), b_to_a: plan.clone(), ..LinkConfig::default() };
        let mut pair = Pair::new(&link);
        let c = pair.connect(&ConnParam { markers, ..ConnParam::default() });
        let len = 100_000;
        let source = pair.a.pd.reg_mr(len, Access::empty()).unwrap();
        let target = pair.b.pd.reg_mr(len, ALL).unwrap();
        let buffer = pair.b.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        for n in 0..20 {
            let data = pattern(n, len);
            source.write_at(0, &data).unwrap();
            c.qp_b.post_recv(&RecvRequest::new(n, buffer.sge(0, 8))).unwrap();
            let op = SendOp::WriteImmediate { remote: remote_addr(&target, 0), data: n.to_be_bytes() };
            // In even rounds, one Write with Immediate is posted. In odd rounds, a Write and then a separate
            // message of Immediate Data are posted.
            if n % 2 == 0 {
                c.qp_a.post_send(&SendRequest::new(n, op, source.sge(0, len))).unwrap();
            } else {
                let write = SendOp::Write { remote: remote_addr(&target, 0) };
                c.qp_a
                    .post_send(&SendRequest::new(n, write, source.sge(0, len)).flags(SendFlags::empty()))
                    .unwrap();
                c.qp_a.post_send(&immediate(n, n)).unwrap();
            }
            let wc = pair.wc_b();
            assert_eq!((wc.wr_id, number(&wc)), (n, n));
            let got = read_bytes(&target, 0, len);
            assert!(got == data, "round {n}, markers {markers}");
            let wc = pair.wc_a();
            assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success));
            assert_eq!(wc.opcode, if n % 2 == 0 { WcOpcode::Write } else { WcOpcode::Immediate });
            assert!(pair.a.cq.poll_one().is_none(), "one completion");
        }
        assert_eq!(pair.b.engine.counters().rx_fpdus_early > 0, markers);
    }
}

/// A hundred messages, which are Immediate Data or Sends, complete in the order sent, over a bad wire.
// Proves EXT-121, EXT-123, EXT-126, EXT-128, EXT-130, EXT-134.
#[test]
fn a_hundred_keep_their_order_among_sends() {
    let plan = LinkPlan { drop_ppm: 50_000, reorder_ppm: 50_000, reorder_us: 300, ..LinkPlan::default() };
    for markers in [false, true] {
        let link =
            LinkConfig { seed: 6, a_to_b: plan.clone(), b_to_a: plan.clone(), ..LinkConfig::default() };
        let mut pair = Pair::new(&link);
        let c = pair.connect(&ConnParam { markers, ..ConnParam::default() });
        let local = pair.a.pd.reg_mr(1000, Access::empty()).unwrap();
        let buffers = pair.b.pd.reg_mr(1000 * 100, Access::LOCAL_WRITE).unwrap();
        for n in 0..100 {
            c.qp_b.post_recv(&RecvRequest::new(n, buffers.sge(1000 * n as usize, 1000))).unwrap();
        }
        for n in 0..100 {
            let request = if n % 3 == 0 {
                SendRequest::new(n, SendOp::Send, local.sge(0, 500 + n as usize))
            } else {
                immediate(n, n)
            };
            c.qp_a.post_send(&request).unwrap();
        }
        for n in 0..100 {
            let wc = pair.wc_b();
            assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success));
            if n % 3 == 0 {
                assert_eq!((wc.opcode, wc.byte_len, wc.immediate), (WcOpcode::Recv, 500 + n as u32, None));
            } else {
                assert_eq!(number(&wc), n);
            }
        }
    }
}

/// Only the solicited variant of Immediate Data causes a solicited event, and no message causes an event that
/// was not requested.
// Proves EXT-117, EXT-198.
#[test]
fn only_the_solicited_variant_raises_a_solicited_event() {
    let mut pair = Pair::new(&LinkConfig::default());
    let channel = pair.b.context.create_comp_channel().unwrap();
    pair.b.cq = pair.b.context.create_cq(64, Some(&channel)).unwrap();
    let c = pair.connect(&ConnParam::default());
    let buffer = pair.b.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    let target = pair.b.pd.reg_mr(8, ALL).unwrap();
    let waited = |channel: &iwarp::verbs::CompletionChannel| {
        channel.wait(Some(std::time::Duration::ZERO)).unwrap() != 0
    };
    let write = SendOp::WriteImmediate { remote: remote_addr(&target, 0), data: DATA };
    for op in [SendOp::Immediate { data: DATA }, write] {
        for (armed, solicited) in [(true, false), (true, true), (false, true)] {
            if armed {
                pair.b.cq.req_notify(true).unwrap();
            }
            c.qp_b.post_recv(&RecvRequest::new(5, buffer.sge(0, 8))).unwrap();
            let flags = if solicited { SendFlags::SOLICITED } else { SendFlags::empty() };
            c.qp_a.post_send(&SendRequest::empty(1, op).flags(flags)).unwrap();
            let wc = pair.wc_b();
            assert_eq!((wc.immediate, wc.solicited), (Some(DATA), solicited));
            assert_eq!(waited(&channel), armed && solicited, "armed {armed}, solicited {solicited}");
        }
    }
}

/// If the buffer of the receive request is missing or too small, the request and the stream fail. Without a
/// receive request, the stream also fails.
// Proves EXT-118, EXT-122.
#[test]
fn a_receive_needs_room_for_eight_bytes() {
    for len in [0, 7] {
        let (mut pair, c) = Pair::connected();
        let buffer = pair.b.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(5, buffer.sge(0, len))).unwrap();
        c.qp_a.post_send(&immediate(1, 1)).unwrap();
        expect_terminate(&mut pair, &c, 1, 2, 5);
        let wc = pair.wc_b();
        assert_eq!((wc.wr_id, wc.status, wc.immediate), (5, WcStatus::LocalLengthError, None));
    }
    let (mut pair, c) = Pair::connected();
    c.qp_a.post_send(&immediate(1, 1)).unwrap();
    expect_terminate(&mut pair, &c, 1, 2, 2);
}

/// A request of Immediate Data with scatter/gather elements is refused. A stream without the extension does
/// not send Immediate Data and does not accept it.
// Proves EXT-115, EXT-163, EXT-165.
#[test]
fn a_stream_without_immediate_data_refuses_it() {
    let (mut pair, listener) = Pair::listening();
    let qp_b = {
        let init = QpInit { extensions: Extensions::ATOMICS, ..QpInit::new(&pair.b.cq) };
        pair.b.pd.create_qp(&init).unwrap()
    };
    let qp_a = pair.a.qp();
    let c = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
    drop(listener);
    let local = pair.a.pd.reg_mr(8, Access::empty()).unwrap();
    let loaded = SendRequest::new(1, SendOp::Immediate { data: DATA }, local.sge(0, 8));
    let error = c.qp_a.post_send(&loaded).unwrap_err().to_string();
    assert_eq!(error, "Immediate Data is its 8 bytes alone: post it without elements");
    let write = SendOp::WriteImmediate { remote: Default::default(), data: DATA };
    for op in [SendOp::Immediate { data: DATA }, write] {
        let error = c.qp_b.post_send(&SendRequest::empty(1, op)).unwrap_err().to_string();
        assert_eq!(
            error,
            "this queue pair was made without this message: add IMMEDIATE to QpInit::extensions"
        );
    }
    let buffer = pair.b.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    c.qp_b.post_recv(&RecvRequest::new(5, buffer.sge(0, 8))).unwrap();
    c.qp_a.post_send(&immediate(1, 1)).unwrap();
    expect_terminate(&mut pair, &c, 0, 2, 6);
}

/// Immediate Data of any length but eight bytes ends the stream with an error, and its receive request is
/// flushed.
// Proves EXT-026, EXT-118, EXT-127, EXT-145, EXT-146, EXT-148, EXT-200.
#[test]
fn other_lengths_end_the_stream() {
    for control in [0x48, 0x49] {
        for len in [0, 1, 7, 9, 16, 100] {
            let mut peer = receiving(&[100], Setup::default());
            let segment = untagged(control, 0, 1, &vec![7; len]);
            peer.send_all(&[&segment]);
            let expected = [&[0x02, 0xFF, 0xc0, 0, 0, segment.len() as u8], &segment[..18]].concat();
            assert_eq!(peer.receive_terminate(), expected, "{len} bytes");
            let found = StreamError { layer: 0, etype: 2, code: 0xFF, from_peer: false };
            assert_eq!(peer.qp.error(), Some(found));
            let wc = peer.wc();
            assert_eq!(
                (wc.status, wc.immediate, wc.cause),
                (WcStatus::WrFlushError, None, Some(found.into()))
            );
        }
    }
}

/// The length of the whole message counts: segments are joined, and a segment that makes the message too long
/// is an error.
// Proves EXT-127, EXT-200.
#[test]
fn pieces_make_eight_bytes() {
    for (first, second, fits) in
        [(4, 4, true), (1, 7, true), (8, 0, true), (0, 8, true), (4, 5, false), (4, 3, false)]
    {
        let mut peer = receiving(&[100, 100], Setup::default());
        peer.send_all(&[&piece(0x48, 0, 1, 0, false, &DATA[..first])]);
        let rest: Vec<u8> = DATA[first..].iter().copied().chain([0]).take(second).collect();
        peer.send_all(&[&piece(0x48, 0, 1, first as u32, true, &rest), &untagged(0x49, 0, 2, &DATA)]);
        if fits {
            let (one, two) = (peer.wc(), peer.wc());
            assert_eq!((one.wr_id, one.immediate, one.solicited), (0, Some(DATA), false));
            assert_eq!((two.wr_id, two.immediate, two.solicited), (1, Some(DATA), true));
        } else {
            assert_eq!(peer.receive_terminate()[..2], [0x02, 0xFF], "{first} + {second}");
            assert_ne!(peer.wc().status, WcStatus::Success);
        }
    }
    // In the first case, a segment leaves a gap. In the second case, the segments have different opcodes. No
    // completion covers bytes that never arrived.
    for (segments, codes) in [
        ([piece(0x48, 0, 1, 0, false, &DATA[..4]), piece(0x48, 0, 1, 5, true, &DATA[..3])], [0x12, 0x04]),
        ([piece(0x43, 0, 1, 0, false, &DATA[..4]), piece(0x48, 0, 1, 4, true, &DATA[..4])], [0x12, 0x04]),
    ] {
        let mut peer = receiving(&[100], Setup::default());
        peer.send_all(&[&segments[0], &segments[1]]);
        assert_eq!(peer.receive_terminate()[..2], codes);
    }
}

/// In segments of Immediate Data, DDP and RDMAP find the same faults as in any other message of queue 0.
// Proves EXT-009, EXT-020, EXT-149, EXT-151.
#[test]
fn faults_of_segments_are_found() {
    type Change = fn(&mut Vec<u8>);
    let cases: &[(Change, [u8; 2])] = &[
        (|s| s[0] = 0x43, [0x12, 0x06]),
        (|s| s[1] = 0x08, [0x02, 0x05]),
        (|s| s[1] = 0x89, [0x02, 0x05]),
        (|s| s[13] = 0, [0x12, 0x03]),
        (|s| s[13] = 9, [0x12, 0x02]),
        (|s| s[16] = 9, [0x12, 0x04]),
        (|s| s[9] = 4, [0x12, 0x01]),
    ];
    for (change, codes) in cases {
        let mut peer = receiving(&[100], Setup::default());
        let mut segment = untagged(0x48, 0, 1, &DATA);
        change(&mut segment);
        peer.send_all(&[&segment]);
        assert_eq!(peer.receive_terminate()[..2], *codes);
    }
    // The engine ignores the Invalidate STag of the header.
    let mut peer = receiving(&[100], Setup::default());
    let mut segment = untagged(0x48, 0, 1, &DATA);
    segment[2..6].fill(0xA5);
    peer.send_all(&[&segment]);
    assert_eq!(peer.wc().immediate, Some(DATA));
}
