//! Transfers between two engines in memory: Writes, Reads and Sends of different sizes, with markers and
//! without, and over wires with and without losses.

use crate::common::{ALL, Pair, Testbed, pattern, read_bytes, remote_addr};
use dp::link::{LinkConfig, LinkPlan, LinkTso};
use dp::{Mss, TsoLimits};
use iwarp::verbs::{
    ConnParam, RecvRequest, SendFlags, SendOp, SendRequest, WcOpcode, WcStatus, WorkCompletion,
};

/// Returns the parameters of connections, each with whether the hosts ask for CRCs.
fn params() -> Vec<(bool, ConnParam)> {
    let mut all = Vec::new();
    for markers in [false, true] {
        for crc in [true, false] {
            for peer_to_peer in [true, false] {
                all.push((crc, ConnParam { markers, peer_to_peer, ..ConnParam::default() }));
            }
        }
    }
    all.push((true, ConnParam { mpa_revision: 1, ..ConnParam::default() }));
    all
}

const SIZES: [usize; 14] = [0, 1, 3, 4, 5, 508, 511, 512, 1427, 1428, 1429, 4096, 65_536, 300_001];

/// Writes, Reads and Sends of different sizes transfer exactly their bytes, whatever the peers agreed on at
/// startup.
// Proves DDP-012, DDP-109.
#[test]
fn every_operation_moves_its_bytes() {
    for (crc, param) in params() {
        let mut pair = Testbed::new().configure(|config| config.crc = crc).hosts();
        let c = pair.connect(&param);
        let len = 300_001;
        let (local, remote) = pair.regions(len);
        // Without an RTR, a responder may send only after the initiator's first message. Here A always sends
        // first.
        for (n, size) in SIZES.into_iter().enumerate() {
            let data = pattern(n as u64, size);
            local.write_at(0, &data).unwrap();
            let op = SendOp::Write { remote: remote_addr(&remote, 0) };
            c.qp_a.post_send(&SendRequest::new(1, op, local.sge(0, size))).unwrap();
            assert_eq!(pair.wc_a().status, WcStatus::Success);

            // A Send tells B that the Write has arrived.
            let receive = RecvRequest::new(2, remote.sge(0, len));
            let flag = pair.b.pd.reg_mr(1, ALL).unwrap();
            c.qp_b.post_recv(&RecvRequest::new(3, flag.sge(0, 1))).unwrap();
            c.qp_a.post_send(&SendRequest::new(4, SendOp::Send, local.sge(0, 1.min(size)))).unwrap();
            assert_eq!(pair.wc_a().opcode, WcOpcode::Send);
            assert_eq!(pair.wc_b().wr_id, 3);
            let mut got = vec![0; size];
            remote.read_at(0, &mut got).unwrap();
            assert!(got == data, "Write of {size} bytes, {param:?}");

            // A Read copies the bytes back into another region.
            let back = pair.a.pd.reg_mr(len, ALL).unwrap();
            let op = SendOp::Read { remote: remote_addr(&remote, 0) };
            c.qp_a.post_send(&SendRequest::new(5, op, back.sge(0, size))).unwrap();
            let wc = pair.wc_a();
            assert_eq!((wc.status, wc.opcode, wc.byte_len), (WcStatus::Success, WcOpcode::Read, size as u32));
            back.read_at(0, &mut got).unwrap();
            assert!(got == data, "Read of {size} bytes, {param:?}");

            // A Send transfers other bytes.
            let data = pattern(100 + n as u64, size);
            local.write_at(0, &data).unwrap();
            c.qp_b.post_recv(&receive).unwrap();
            c.qp_a.post_send(&SendRequest::new(6, SendOp::Send, local.sge(0, size))).unwrap();
            assert_eq!(pair.wc_a().status, WcStatus::Success);
            let wc = pair.wc_b();
            assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (2, WcOpcode::Recv, size as u32));
            remote.read_at(0, &mut got).unwrap();
            assert!(got == data, "Send of {size} bytes, {param:?}");
        }
        // B also writes and reads.
        let data = pattern(7, 5000);
        remote.write_at(0, &data).unwrap();
        let op = SendOp::Write { remote: remote_addr(&local, 0) };
        c.qp_b.post_send(&SendRequest::new(1, op, remote.sge(0, 5000))).unwrap();
        let read = SendOp::Read { remote: remote_addr(&local, 0) };
        c.qp_b.post_send(&SendRequest::new(2, read, remote.sge(100_000, 5000))).unwrap();
        assert_eq!(pair.wc_b().opcode, WcOpcode::Write);
        assert_eq!(pair.wc_b().opcode, WcOpcode::Read);
        let got = read_bytes(&remote, 100_000, 5000);
        assert!(got == data, "Write and Read back of the responder, {param:?}");
    }
}

/// Inline data may be overwritten right after the post. Unsignaled requests generate no completion.
#[test]
fn inline_and_unsignalled() {
    let (mut pair, c) = Pair::connected();
    let local = pair.a.pd.reg_mr(128, ALL).unwrap();
    let remote = pair.b.pd.reg_mr(4096, ALL).unwrap();
    for n in 0..10_u8 {
        local.write_at(0, &[n; 64]).unwrap();
        let op = SendOp::Write { remote: remote_addr(&remote, 64 * usize::from(n)) };
        let flags = if n == 9 { SendFlags::INLINE | SendFlags::SIGNALED } else { SendFlags::INLINE };
        c.qp_a.post_send(&SendRequest::new(u64::from(n), op, local.sge(0, 64)).flags(flags)).unwrap();
    }
    let wc = pair.wc_a();
    assert_eq!((wc.wr_id, wc.status), (9, WcStatus::Success));
    pair.run_us(100_000);
    assert!(pair.a.cq.poll_one().is_none());
    let got = read_bytes(&remote, 0, 640);
    assert!(got.chunks(64).enumerate().all(|(n, chunk)| chunk == [n as u8; 64]));
}

/// Short requests are sent directly from their queue, in groups, and all other requests become messages. If
/// both kinds are posted alternately, they are sent and completed in order, and each byte comes from the
/// right memory.
#[test]
fn short_and_other_requests_take_turns_in_order() {
    const PIECE: usize = 4096;
    const COUNT: usize = 60;
    for markers in [false, true] {
        let mut pair = Pair::new(&LinkConfig::default());
        let c = pair.connect(&ConnParam { markers, ..ConnParam::default() });
        let len = PIECE * COUNT;
        let (source, target) = pair.regions(len);
        let answers = pair.a.pd.reg_mr(8, ALL).unwrap();
        source.write_at(0, &pattern(3, len)).unwrap();
        let (mut written, mut expected) = (vec![0; len], Vec::new());
        for n in 0..COUNT {
            let at = n * PIECE;
            let write = SendOp::Write { remote: remote_addr(&target, at) };
            let (size, mut flags) = match n % 9 {
                // Most messages are short, so that several are sent together.
                0..5 => (64 + n, SendFlags::empty()),
                5 => (n, SendFlags::INLINE),
                6 => (PIECE, SendFlags::empty()),
                7 => (0, SendFlags::empty()),
                _ => (32, SendFlags::FENCE),
            };
            if n % 3 != 0 {
                flags |= SendFlags::SIGNALED;
                expected.push(n as u64);
            }
            written[at..at + size].copy_from_slice(&pattern(3, len)[at..at + size]);
            let mut request = SendRequest::new(n as u64, write, source.sge(at, size)).flags(flags);
            if n % 4 == 1 && size > 1 {
                // The same bytes are posted as two elements.
                request.sg_list = [source.sge(at, 1), source.sge(at + 1, size - 1)].into_iter().collect();
            }
            c.qp_a.post_send(&request).unwrap();
            if n % 9 == 7 {
                let read = SendOp::Read { remote: remote_addr(&target, 0) };
                let request = SendRequest::new(1000 + n as u64, read, answers.sge(0, 8));
                c.qp_a.post_send(&request).unwrap();
                expected.push(1000 + n as u64);
            }
        }
        pair.run_us(1_000_000);
        let completed: Vec<_> = std::iter::from_fn(|| pair.a.cq.poll_one()).collect();
        assert!(completed.iter().all(|wc| wc.status == WcStatus::Success));
        assert_eq!(completed.iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), expected);
        assert!(read_bytes(&target, 0, len) == written, "markers {markers}");
        assert_eq!(c.qp_a.query().send_outstanding, 0);
    }
}

/// A posts bulk Writes and Reads, over a wire that loses, reorders, duplicates and corrupts frames. Every
/// byte arrives. With markers, a part of the bytes is placed before the hole in front of them is filled.
// Proves DDP-002, DDP-033, DDP-109, DDP-123, DDP-127, MPA-280, RDMAP-064.
#[test]
fn bulk_over_a_bad_wire() {
    let plan = LinkPlan {
        drop_ppm: 10_000,
        duplicate_ppm: 5_000,
        reorder_ppm: 20_000,
        reorder_us: 300,
        corrupt_ppm: 1_000,
        delay_us: 50,
        ..LinkPlan::default()
    };
    for markers in [false, true] {
        let link =
            LinkConfig { seed: 42, a_to_b: plan.clone(), b_to_a: plan.clone(), ..LinkConfig::default() };
        let mut pair = Pair::new(&link);
        let c = pair.connect(&ConnParam { markers, ..ConnParam::default() });
        let len = 1 << 20;
        let (source, target) = pair.regions(len);
        let back = pair.a.pd.reg_mr(len, ALL).unwrap();
        let data = pattern(5, len);
        source.write_at(0, &data).unwrap();
        let chunk = 100_000;
        for (n, at) in (0..len).step_by(chunk).enumerate() {
            let size = chunk.min(len - at);
            let remote = remote_addr(&target, at);
            let write = SendRequest::new(n as u64, SendOp::Write { remote }, source.sge(at, size));
            c.qp_a.post_send(&write.flags(SendFlags::empty())).unwrap();
            let read = SendRequest::new(n as u64, SendOp::Read { remote }, back.sge(at, size));
            c.qp_a.post_send(&read).unwrap();
        }
        for n in 0..len.div_ceil(chunk) {
            let wc = pair.wc_a();
            assert_eq!((wc.wr_id, wc.status, wc.opcode), (n as u64, WcStatus::Success, WcOpcode::Read));
        }
        let got = read_bytes(&back, 0, len);
        assert!(got == data, "markers: {markers}");
        let early = pair.b.engine.counters().rx_fpdus_early;
        assert_eq!(early > 0, markers, "{early} FPDUs placed early");
    }
}

/// A port can cut only frames with few buffers, and no frames with short segments. The port receives only
/// frames that it can send, because it would drop other frames at each retransmission.
#[test]
fn a_port_is_given_frames_that_it_cuts() {
    for buffers in [2, 5] {
        let link = LinkConfig {
            checksum_offload: true,
            tso: LinkTso::Cut,
            tso_limits: TsoLimits { buffers, mss: Mss { least: 256, most: 9000 } },
            ..LinkConfig::default()
        };
        let mut pair = Pair::new(&link);
        let c = pair.connect(&ConnParam::default());
        let (local, remote) = pair.regions(1 << 20);
        let data = pattern(1, 1 << 20);
        local.write_at(0, &data).unwrap();
        let op = SendOp::Write { remote: remote_addr(&remote, 0) };
        let flag = pair.b.pd.reg_mr(1, ALL).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(3, flag.sge(0, 1))).unwrap();
        c.qp_a.post_send(&SendRequest::new(1, op, local.sge(0, 1 << 20))).unwrap();
        for _ in 0..32 {
            c.qp_a.post_send(&SendRequest::new(2, op, local.sge(0, 8))).unwrap();
        }
        c.qp_a.post_send(&SendRequest::new(4, SendOp::Send, local.sge(0, 1))).unwrap();
        (0..34).for_each(|_| assert_eq!(pair.wc_a().status, WcStatus::Success));
        assert_eq!(pair.wc_b().wr_id, 3);
        let got = read_bytes(&remote, 0, 1 << 20);
        assert!(got == data);
        let counters = pair.a.engine.counters();
        assert_eq!((counters.stack.tx_retransmits, counters.stack.tx_trains > 0), (0, buffers > 2));
        assert_eq!(counters.port.tx_dropped, 0);
    }
}

/// `poll` returns as many completions as fit, oldest first, and loses none.
#[test]
fn completions_are_polled_in_batches() {
    let (mut pair, c) = Pair::connected();
    let remote = pair.b.pd.reg_mr(8, ALL).unwrap();
    let op = SendOp::Write { remote: remote_addr(&remote, 0) };
    for n in 0..10 {
        c.qp_a.post_send(&SendRequest::empty(n, op)).unwrap();
    }
    pair.run_us(10_000);
    let mut batch = [WorkCompletion::default(); 4];
    let mut polled = Vec::new();
    loop {
        let count = pair.a.cq.poll(&mut batch);
        if count == 0 {
            break;
        }
        polled.push(batch[..count].iter().map(|wc| wc.wr_id).collect::<Vec<_>>());
    }
    assert_eq!(polled, [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
}
