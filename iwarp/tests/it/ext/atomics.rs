//! Atomics between two engines, for example their effect on the word, the alignment and the rights that they
//! need, and the order of their completions.

use crate::common::ext::{ADD_ONE, ALL, ATOMIC, atomic, cas, set_word, word};
use crate::common::{Pair, expect_terminate, read_bytes, remote_addr};
use dp::link::LinkConfig;
use iwarp::memory::{Access, Base};
use iwarp::verbs::{
    AtomicOp, CmEventKind, ConnParam, Extensions, MrOptions, QpInit, RecvRequest, RemoteAddr, SendFlags,
    SendOp, SendRequest, StreamError, VerbsError, WcOpcode, WcStatus,
};

/// Each operation changes only the eight bytes at its address, and returns their old value.
// Proves EXT-001, EXT-004, EXT-031 to EXT-033, EXT-036, EXT-044 to EXT-046, EXT-049 to EXT-054, EXT-059,
// EXT-084, EXT-085, EXT-100, EXT-171, EXT-187: for each operation and its operands (EXT-044 to EXT-059),
// the test checks the word, the bytes beside it and the returned value.
#[test]
fn each_operation_changes_its_word_alone() {
    let (mut pair, c) = Pair::connected();
    let words = pair.b.pd.reg_mr(24, ATOMIC).unwrap();
    let local = pair.a.pd.reg_mr(24, Access::LOCAL_WRITE).unwrap();
    let receive = pair.b.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    c.qp_b.post_recv(&RecvRequest::new(1, receive.sge(0, 64))).unwrap();
    let merge = AtomicOp::CmpSwap {
        compare: 0x7700,
        compare_mask: 0xff00,
        swap: 0xaaaa_aaaa_aaaa_aaaa,
        swap_mask: 0xffff_0000,
    };
    let any = AtomicOp::CmpSwap { compare: 1, compare_mask: 0, swap: 9, swap_mask: u64::MAX };
    for (op, opcode, before, after) in [
        (AtomicOp::FetchAdd { add: 3, mask: 0 }, WcOpcode::FetchAdd, 5, 8),
        (ADD_ONE, WcOpcode::FetchAdd, u64::MAX, 0),
        (
            AtomicOp::FetchAdd { add: 0x1_0000_0001, mask: 0x8000_0000_8000_0000 },
            WcOpcode::FetchAdd,
            0x1_ffff_ffff,
            0x2_0000_0000,
        ),
        (merge, WcOpcode::CmpSwap, 0x1122_3344_5566_7788, 0x1122_3344_aaaa_7788),
        (cas(6, 7), WcOpcode::CmpSwap, 5, 5),
        (any, WcOpcode::CmpSwap, 1234, 9),
        (AtomicOp::Swap { swap: 9 }, WcOpcode::Swap, 7, 9),
    ] {
        words.write_at(0, &[0xEE; 24]).unwrap();
        local.write_at(0, &[0xDD; 24]).unwrap();
        set_word(&words, 8, before);
        c.qp_a.post_send(&atomic(1, op, remote_addr(&words, 8), &local, 8)).unwrap();
        let wc = pair.wc_a();
        assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (1, WcStatus::Success, opcode, 8));
        assert_eq!((word(&words, 8), word(&local, 8)), (after, before), "{op:x?}");
        for (region, byte) in [(&words, 0xEE), (&local, 0xDD)] {
            let bytes = read_bytes(region, 0, 24);
            assert!(bytes[..8].iter().chain(&bytes[16..]).all(|&o| o == byte), "{op:x?}");
        }
    }
    assert!(pair.b.cq.poll_one().is_none(), "nothing is told to the responder's user");
}

/// The word is a number in the responder's byte order. The returned value is a number in the requester's byte
/// order.
// Proves EXT-041, EXT-047.
#[test]
fn words_are_numbers_of_the_machine() {
    let (mut pair, c) = Pair::connected();
    let words = pair.b.pd.reg_mr(8, ATOMIC).unwrap();
    let bytes = |number: u64| {
        if cfg!(target_endian = "little") { number.to_le_bytes() } else { number.to_be_bytes() }
    };
    let holds = |number: u64| {
        let held = read_bytes(&words, 0, 8);
        held == bytes(number)
    };
    words.write_at(0, &bytes(1)).unwrap();
    assert_eq!(pair.atomic(&c, AtomicOp::FetchAdd { add: 2, mask: 0 }, remote_addr(&words, 0)), 1);
    assert!(holds(3));
    let swap = AtomicOp::Swap { swap: 0x1122_3344_5566_7788 };
    assert_eq!(pair.atomic(&c, swap, remote_addr(&words, 0)), 3);
    assert!(holds(0x1122_3344_5566_7788));
}

/// Adding 0 shows whether the peer supports atomics, and does not change the word.
// Proves EXT-164.
#[test]
fn adding_nothing_is_a_safe_probe() {
    let (mut pair, c) = Pair::connected();
    let words = pair.b.pd.reg_mr(8, ATOMIC).unwrap();
    for (value, mask) in [(0, 0), (u64::MAX, 0), (0x0123_4567_89ab_cdef, u64::MAX), (7, 0x8080)] {
        set_word(&words, 0, value);
        assert_eq!(pair.atomic(&c, AtomicOp::FetchAdd { add: 0, mask }, remote_addr(&words, 0)), value);
        assert_eq!(word(&words, 0), value);
    }
}

// Proves EXT-073, EXT-189.
#[test]
fn every_aligned_word_of_a_region_will_do() {
    let (mut pair, c) = Pair::connected();
    let words = pair.b.pd.reg_mr(4096, ATOMIC).unwrap();
    for at in (0..4096).step_by(8) {
        assert_eq!(pair.atomic(&c, AtomicOp::Swap { swap: at as u64 }, remote_addr(&words, at)), 0);
    }
    assert!((0..4096).step_by(8).all(|at| word(&words, at) == at as u64));
}

/// A misaligned target is refused: the word and the bytes around it do not change, no value is returned, and
/// both users receive the error.
// Proves EXT-043, EXT-048, EXT-058, EXT-178 to EXT-180, EXT-182 to EXT-185, EXT-202.
#[test]
fn a_misaligned_target_is_refused() {
    for op in [ADD_ONE, cas(0, 1), AtomicOp::Swap { swap: 1 }] {
        for offset in 1..8 {
            let (mut pair, c) = Pair::connected();
            let words = pair.b.pd.reg_mr(32, ATOMIC).unwrap();
            let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
            set_word(&local, 0, 99);
            c.qp_a.post_send(&atomic(1, op, remote_addr(&words, 8 + offset), &local, 0)).unwrap();
            let wc = pair.wc_a();
            assert_eq!(wc.status, WcStatus::RemoteOperationError, "{op:x?} at {offset}");
            let told = StreamError { layer: 0, etype: 2, code: 7, from_peer: true };
            assert_eq!(wc.cause, Some(told.into()));
            expect_terminate(&mut pair, &c, 0, 2, 7);
            assert_eq!(word(&local, 0), 99, "no value came back");
            assert!((0..32).step_by(8).all(|at| word(&words, at) == 0), "{op:x?} at {offset}");
        }
    }
}

/// The memory has to be aligned; the tagged offset that names it need not be.
// Proves EXT-174, EXT-189.
#[test]
fn the_memory_is_aligned_not_its_tagged_offset() {
    let options = MrOptions { base: Base::Iova(4), ..MrOptions::new(ATOMIC) };
    for (addr, aligned) in [(4, true), (12, true), (8, false)] {
        let (mut pair, c) = Pair::connected();
        let words = pair.b.pd.reg_mr_with(32, &options).unwrap();
        assert_eq!((words.addr(), words.as_ptr().addr() % 8), (4, 0));
        let remote = RemoteAddr { addr, rkey: words.rkey() };
        if aligned {
            assert_eq!(pair.atomic(&c, ADD_ONE, remote), 0);
            assert_eq!(word(&words, addr as usize - 4), 1);
        } else {
            let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
            c.qp_a.post_send(&atomic(1, ADD_ONE, remote, &local, 0)).unwrap();
            expect_terminate(&mut pair, &c, 0, 2, 7);
        }
    }
}

/// An atomic with a fault of its rights, STag or range is refused with the error code of the fault, and the
/// memory does not change.
// Proves EXT-086, EXT-152, EXT-153, EXT-155, EXT-204.
#[test]
fn a_refused_atomic_terminates_the_stream() {
    let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
    let own = Access::LOCAL_WRITE;
    // The columns: access rights, additions to STag and address, and the error code.
    let cases: &[(&str, Access, u32, i64, u8)] = &[
        ("unknown STag", ATOMIC, 1, 0, 0x00),
        ("no remote right", own, 0, 0, 0x00),
        ("behind the region", ATOMIC, 0, 32, 0x01),
        ("across its end", ATOMIC, 0, 28, 0x01),
        ("in front of it", ATOMIC, 0, -8, 0x01),
        ("to read only", own | read, 0, 0, 0x02),
        ("to write only", own | write, 0, 0, 0x02),
    ];
    for &(name, access, stag, addr, code) in cases {
        let (mut pair, c) = Pair::connected();
        let words = pair.b.pd.reg_mr(32, access).unwrap();
        let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        let remote = RemoteAddr {
            addr: words.addr().wrapping_add_signed(addr),
            rkey: words.rkey().wrapping_add(stag),
        };
        c.qp_a.post_send(&atomic(1, ADD_ONE, remote, &local, 0)).unwrap();
        assert_eq!(pair.wc_a().status, WcStatus::RemoteAccessError, "{name}");
        expect_terminate(&mut pair, &c, 0, 1, code);
        assert!((0..32).step_by(8).all(|at| word(&words, at) == 0), "{name}");
    }
}

/// An atomic is refused if its STag belongs to another stream or protection domain, or if its range wraps.
// Proves EXT-071, EXT-152, EXT-155, EXT-204.
#[test]
fn an_stag_of_another_stream_is_refused() {
    for (wrap, code) in [(false, 0x03), (true, 0x04)] {
        let (mut pair, c) = Pair::connected();
        let other = pair.b.qp();
        let options = MrOptions {
            qp: (!wrap).then_some(&other),
            base: if wrap { Base::Iova(u64::MAX - 31) } else { Base::VirtualAddress },
            ..MrOptions::new(ATOMIC)
        };
        let words = pair.b.pd.reg_mr_with(32, &options).unwrap();
        let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        c.qp_a.post_send(&atomic(1, ADD_ONE, remote_addr(&words, 24), &local, 0)).unwrap();
        expect_terminate(&mut pair, &c, 0, 1, code);
        assert_eq!(word(&words, 24), 0);
    }
    let (mut pair, c) = Pair::connected();
    let words = pair.b.context.alloc_pd().unwrap().reg_mr(32, ATOMIC).unwrap();
    let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
    c.qp_a.post_send(&atomic(1, ADD_ONE, remote_addr(&words, 0), &local, 0)).unwrap();
    expect_terminate(&mut pair, &c, 0, 1, 0x03);
    assert_eq!(word(&words, 0), 0);
}

/// Without InfiniBand's semantics, a peer needs the right to atomics, or both the right to read and the right
/// to write.
// Proves EXT-153.
#[test]
fn reading_and_writing_amount_to_atomics() {
    for access in [ATOMIC, Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE, ALL] {
        let (mut pair, c) = Pair::connected();
        let words = pair.b.pd.reg_mr(8, access).unwrap();
        assert_eq!(pair.atomic(&c, ADD_ONE, remote_addr(&words, 0)), 0, "{access:?}");
        assert_eq!(word(&words, 0), 1);
    }
    // The right to atomics does not include the right to read or to write.
    for op in [|remote| SendOp::Write { remote }, |remote| SendOp::Read { remote }] {
        let (mut pair, c) = Pair::connected();
        let words = pair.b.pd.reg_mr(8, ATOMIC).unwrap();
        let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        c.qp_a.post_send(&SendRequest::new(1, op(remote_addr(&words, 0)), local.sge(0, 8))).unwrap();
        let error = pair.until(|_| c.qp_a.error());
        assert_eq!((error.etype, error.from_peer), (1, true), "{error}");
    }
}

/// `post_send` refuses impossible requests. The error is one line and says what to do.
#[test]
fn invalid_atomics_are_refused_when_posted() {
    let mut pair = Pair::new(&LinkConfig::default());
    let local = pair.a.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    let sealed = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
    let target = RemoteAddr::default();
    let c = pair.connect(&ConnParam::default());
    let refused = |request: &SendRequest, said: &str| {
        let error = c.qp_a.post_send(request).unwrap_err();
        assert_eq!(error.to_string(), said);
    };
    let op = SendOp::Atomic { remote: target, op: ADD_ONE };
    let wrong = |bytes| format!("an atomic returns 8 bytes: give it one element of that length, not {bytes}");
    refused(&SendRequest::empty(1, op), &wrong(0));
    refused(&SendRequest::new(1, op, local.sge(0, 4)), &wrong(4));
    refused(&SendRequest::new(1, op, local.sge(0, 16)), &wrong(16));
    let mut two = SendRequest::new(1, op, local.sge(0, 4));
    two.sg_list.push(local.sge(8, 4));
    refused(&two, "too many scatter/gather elements: 2, at most 1");
    let error = c.qp_a.post_send(&SendRequest::new(1, op, sealed.sge(0, 8))).unwrap_err();
    assert!(matches!(error, VerbsError::LocalProtection(_)), "{error}");

    // The next three cases are a queue pair without atomics, a queue pair without swaps, and a connection
    // whose ORD is 0.
    let made = |extensions| {
        let init = QpInit { extensions, ..QpInit::new(&pair.a.cq) };
        pair.a.pd.create_qp(&init).unwrap()
    };
    let (plain, no_swap) = (made(Extensions::empty()), made(Extensions::all() - Extensions::SWAP));
    let (swap, add) = (SendOp::Atomic { remote: target, op: AtomicOp::Swap { swap: 1 } }, op);
    let mute = ConnParam { initiator_depth: 0, responder_resources: 0, ..ConnParam::default() };
    let listener = pair.listen();
    let (b1, b2) = (pair.b.qp(), pair.b.qp());
    let plain = pair.connect_qps(plain, b1, &ConnParam::default(), &ConnParam::default());
    let no_swap = pair.connect_qps(no_swap, b2, &ConnParam::default(), &ConnParam::default());
    let mute = pair.connect_again(&mute, &mute);
    listener.disconnect();
    assert_eq!(no_swap.qp_a.extensions(), Extensions::ATOMICS | Extensions::IMMEDIATE);
    for (c, op, said) in [
        (&plain, add, "this queue pair was made without this message: add ATOMICS to QpInit::extensions"),
        (
            &plain,
            swap,
            "this queue pair was made without this message: add ATOMICS and SWAP to QpInit::extensions",
        ),
        (
            &no_swap,
            swap,
            "this queue pair was made without this message: add ATOMICS and SWAP to QpInit::extensions",
        ),
        (&mute, add, "this connection allows no Read and no atomic: its ORD was negotiated to 0"),
    ] {
        let error = c.qp_a.post_send(&SendRequest::new(1, op, local.sge(0, 8))).unwrap_err();
        assert_eq!(error.to_string(), said);
    }
    no_swap.qp_a.post_send(&SendRequest::new(1, add, local.sge(0, 8))).unwrap();
}

/// A peer without the extension that an atomic needs answers with a Terminate with the error Unexpected
/// Opcode. The application can read this error.
// Proves EXT-003, EXT-027, EXT-067, EXT-160, EXT-163, EXT-165, EXT-188, EXT-190.
#[test]
fn a_peer_without_the_extension_refuses() {
    let plain = Extensions::empty();
    let no_swap = Extensions::all() - Extensions::SWAP;
    let swap = AtomicOp::Swap { swap: 3 };
    for (extensions, op) in [(plain, ADD_ONE), (plain, cas(0, 1)), (plain, swap), (no_swap, swap)] {
        let (mut pair, listener) = Pair::listening();
        let qp_b = pair.b.pd.create_qp(&QpInit { extensions, ..QpInit::new(&pair.b.cq) }).unwrap();
        let qp_a = pair.a.qp();
        let c = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
        drop(listener);
        let words = pair.b.pd.reg_mr(8, ATOMIC).unwrap();
        if extensions == no_swap {
            assert_eq!(pair.atomic(&c, cas(0, 0), remote_addr(&words, 0)), 0, "the others work");
            assert_eq!(pair.atomic(&c, AtomicOp::FetchAdd { add: 0, mask: 0 }, remote_addr(&words, 0)), 0);
        }
        let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        c.qp_a.post_send(&atomic(1, op, remote_addr(&words, 0), &local, 0)).unwrap();
        assert_eq!(pair.wc_a().status, WcStatus::RemoteOperationError);
        expect_terminate(&mut pair, &c, 0, 2, 6);
        assert_eq!(word(&words, 0), 0);
    }
}

/// With an ORD of 1, 2 or 128, 300 Reads and atomics can be posted, although at most ORD of them may wait for
/// their answers at a time. All requests complete in post order.
// Proves EXT-062, EXT-088, EXT-090, EXT-098, EXT-099, EXT-102, EXT-105, EXT-112, EXT-113, EXT-192.
#[test]
fn reads_and_atomics_share_the_depth() {
    for depth in [1, 2, 128] {
        let mut pair = Pair::new(&LinkConfig::default());
        let c = pair.connect(&ConnParam {
            initiator_depth: depth,
            responder_resources: depth,
            ..ConnParam::default()
        });
        let words = pair.b.pd.reg_mr(64, ALL).unwrap();
        let local = pair.a.pd.reg_mr(8 * 300, Access::LOCAL_WRITE).unwrap();
        for n in 0..300 {
            let request = if n % 3 == 2 {
                SendRequest::new(
                    n,
                    SendOp::Read { remote: remote_addr(&words, 32) },
                    local.sge(8 * n as usize, 8),
                )
            } else {
                atomic(n, ADD_ONE, remote_addr(&words, 0), &local, 8 * n as usize)
            };
            c.qp_a.post_send(&request).unwrap();
        }
        let mut expected = 0;
        for n in 0..300 {
            let wc = pair.wc_a();
            assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success), "depth {depth}");
            if n % 3 != 2 {
                assert_eq!((wc.opcode, word(&local, 8 * n as usize)), (WcOpcode::FetchAdd, expected));
                expected += 1;
            }
        }
        assert_eq!(word(&words, 0), 200);
        assert!(c.qp_a.error().is_none() && c.qp_b.error().is_none());
    }
}

/// Each compare-and-swap of a chain depends on the result of the compare-and-swap before it. The whole chain
/// is posted at once, and is executed in the order sent.
// Proves EXT-089, EXT-112, EXT-141, EXT-201.
#[test]
fn a_chain_posted_at_once_is_carried_out_in_order() {
    let (mut pair, c) = Pair::connected();
    let words = pair.b.pd.reg_mr(8, ATOMIC).unwrap();
    let local = pair.a.pd.reg_mr(8 * 100, Access::LOCAL_WRITE).unwrap();
    for n in 0..100 {
        c.qp_a.post_send(&atomic(n, cas(n, n + 1), remote_addr(&words, 0), &local, 8 * n as usize)).unwrap();
    }
    for n in 0..100 {
        assert_eq!(pair.wc_a().wr_id, n);
        assert_eq!(word(&local, 8 * n as usize), n);
    }
    assert_eq!(word(&words, 0), 100);
}

#[test]
fn a_fence_waits_for_atomics() {
    let (mut pair, c) = Pair::connected();
    let words = pair.b.pd.reg_mr(8, ALL).unwrap();
    let local = pair.a.pd.reg_mr(16, Access::LOCAL_WRITE).unwrap();
    // The fenced Write sends the value that the atomic has returned.
    set_word(&words, 0, 41);
    c.qp_a.post_send(&atomic(1, ADD_ONE, remote_addr(&words, 0), &local, 0)).unwrap();
    let write = SendRequest::new(2, SendOp::Write { remote: remote_addr(&words, 0) }, local.sge(0, 8));
    c.qp_a.post_send(&write.flags(SendFlags::FENCE | SendFlags::SIGNALED)).unwrap();
    assert_eq!([pair.wc_a().wr_id, pair.wc_a().wr_id], [1, 2]);
    pair.until(|_| (word(&words, 0) == 41).then_some(()));
}

/// Completions arrive in post order: a request that was posted after an atomic does not complete before the
/// atomic's answer arrives.
// Proves EXT-100, EXT-111.
#[test]
fn completions_keep_the_order_of_posting() {
    let (mut pair, c) = Pair::connected();
    let words = pair.b.pd.reg_mr(8, ALL).unwrap();
    let local = pair.a.pd.reg_mr(64, Access::LOCAL_WRITE).unwrap();
    let unsignaled = atomic(1, ADD_ONE, remote_addr(&words, 0), &local, 0).flags(SendFlags::empty());
    c.qp_a.post_send(&unsignaled).unwrap();
    c.qp_a.post_send(&atomic(2, ADD_ONE, remote_addr(&words, 0), &local, 8)).unwrap();
    let write = SendRequest::new(3, SendOp::Write { remote: remote_addr(&words, 0) }, local.sge(32, 8));
    c.qp_a.post_send(&write).unwrap();
    c.qp_a.post_send(&atomic(4, ADD_ONE, remote_addr(&words, 0), &local, 16)).unwrap();
    assert_eq!([pair.wc_a().wr_id, pair.wc_a().wr_id, pair.wc_a().wr_id], [2, 3, 4]);
    assert_eq!((word(&local, 0), word(&local, 8)), (0, 1));
}

#[test]
fn closing_waits_for_answers() {
    let (mut pair, c) = Pair::connected();
    let words = pair.b.pd.reg_mr(8, ATOMIC).unwrap();
    let local = pair.a.pd.reg_mr(8 * 10, Access::LOCAL_WRITE).unwrap();
    for n in 0..10 {
        c.qp_a.post_send(&atomic(n, ADD_ONE, remote_addr(&words, 0), &local, 8 * n as usize)).unwrap();
    }
    c.id_a.disconnect();
    for n in 0..10 {
        assert_eq!(pair.wc_a().status, WcStatus::Success, "request {n}");
    }
    assert_eq!(word(&words, 0), 10);
}

/// The peers agree by private data. The queue pair is created after the agreement, with the requested
/// extensions or without extensions.
// Proves EXT-161.
#[test]
fn extensions_may_be_agreed_on_in_private_data() {
    for asked in [Extensions::empty(), Extensions::ATOMICS] {
        let (mut pair, _listener) = Pair::listening();
        let param = ConnParam::default().with_private_data(&[asked.bits()]).unwrap();
        let qp_a = pair.a.qp();
        let id = pair.a.context.create_id(&pair.a.channel);
        id.connect(&qp_a, pair.b.address, &param).unwrap();
        let request = pair.event_b();
        let CmEventKind::ConnectRequest { private_data, .. } = request.kind else { panic!("no request") };
        let extensions = Extensions::from_bits(private_data[0]).unwrap();
        let qp_b = pair.b.pd.create_qp(&QpInit { extensions, ..QpInit::new(&pair.b.cq) }).unwrap();
        request.id.accept(&qp_b, &ConnParam::default()).unwrap();
        pair.event_a();
        let words = pair.b.pd.reg_mr(8, ATOMIC).unwrap();
        let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        qp_a.post_send(&atomic(1, ADD_ONE, remote_addr(&words, 0), &local, 0)).unwrap();
        let status = pair.wc_a().status;
        assert_eq!(status == WcStatus::Success, !asked.is_empty(), "{status}");
        assert_eq!(word(&words, 0), u64::from(!asked.is_empty()));
    }
}

// Proves EXT-177, EXT-181, EXT-189: offsets may begin anywhere; only the address must be aligned. If the
// offsets of a buffer start at an odd number, FetchAdd and CmpSwap reach each aligned word, at base + 8 k,
// although this offset is odd. The requester sends the posted offset unchanged. For every other offset, the
// requester's user gets the error of a misaligned target.
#[test]
fn every_aligned_word_is_a_target_whatever_its_offset() {
    for op in [ADD_ONE, cas(0, 1)] {
        for base in [0x1003, 0x8000_0000_0000_0005] {
            let (mut pair, c) = Pair::connected();
            let words = |pair: &Pair| {
                let options = MrOptions { base: Base::Iova(base), ..MrOptions::new(ATOMIC) };
                pair.b.pd.reg_mr_with(32, &options).unwrap()
            };
            let target = words(&pair);
            let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
            for k in 0..4 {
                let remote = RemoteAddr { addr: base + 8 * k, rkey: target.rkey() };
                let request = SendRequest::new(k, SendOp::Atomic { remote, op }, local.sge(0, 8));
                c.qp_a.post_send(&request).unwrap();
                assert_eq!(pair.wc_a().status, WcStatus::Success, "{op:x?} at base + {}", 8 * k);
                assert_eq!(word(&target, 8 * k as usize), 1);
            }
            for offset in (0..25).filter(|offset| offset % 8 != 0) {
                let (mut pair, c) = Pair::connected();
                let target = words(&pair);
                let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
                let remote = RemoteAddr { addr: base + offset, rkey: target.rkey() };
                let request = SendRequest::new(1, SendOp::Atomic { remote, op }, local.sge(0, 8));
                c.qp_a.post_send(&request).unwrap();
                let wc = pair.wc_a();
                let told = Some(StreamError { layer: 0, etype: 2, code: 7, from_peer: true }.into());
                assert_eq!((wc.wr_id, wc.status, wc.cause), (1, WcStatus::RemoteOperationError, told));
                assert!((0..32).step_by(8).all(|at| word(&target, at) == 0), "{op:x?} at {offset}");
            }
        }
    }
}

/// With InfiniBand's semantics, the rights to read and to write do not include the right to atomics. An
/// atomic on a misaligned address is an invalid request, whatever the rights are.
#[test]
fn ends_that_agree_have_the_rules_of_infiniband() {
    let both = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    for (access, offset, status) in [
        (ATOMIC, 8, WcStatus::Success),
        (both, 8, WcStatus::RemoteAccessError),
        (ATOMIC, 9, WcStatus::RemoteInvalidRequest),
        (both, 9, WcStatus::RemoteInvalidRequest),
    ] {
        let (mut pair, c) = Pair::agreeing();
        let words = pair.b.pd.reg_mr(32, access).unwrap();
        let local = pair.a.pd.reg_mr(8, Access::LOCAL_WRITE).unwrap();
        c.qp_a.post_send(&atomic(1, ADD_ONE, remote_addr(&words, offset), &local, 0)).unwrap();
        assert_eq!(pair.wc_a().status, status, "{access:?} at {offset}");
        assert_eq!(word(&words, 8), u64::from(status == WcStatus::Success));
    }
}
