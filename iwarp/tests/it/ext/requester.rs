//! The Atomic Requests and Immediate Data that our engine sends, byte for byte, and the engine's handling of
//! the answers.

use crate::common::ext::{ADD_ONE, atomic_response, cas, piece, set_word, tagged, untagged, word};
use crate::common::served::{Served, Setup};
use iwarp::memory::Access;
use iwarp::verbs::{
    AsyncEventKind, AtomicOp, ConnParam, MemoryRegion, RemoteAddr, SendFlags, SendOp, SendRequest,
    StreamError, WcOpcode, WcStatus,
};

const TARGET: RemoteAddr = RemoteAddr { addr: 0x1008, rkey: 0x1234_5678 };

fn atomic(wr_id: u64, op: AtomicOp, local: &MemoryRegion, at: usize) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Atomic { remote: TARGET, op }, local.sge(at, 8))
}

fn read(wr_id: u64, local: &MemoryRegion, at: usize) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Read { remote: TARGET }, local.sge(at, 8))
}

fn id_of(request: &[u8]) -> u32 {
    u32::from_be_bytes(request[22..26].try_into().unwrap())
}

/// Returns the Read Response for a Read of eight bytes into `local`.
fn read_response(local: &MemoryRegion, at: u64) -> Vec<u8> {
    tagged(0x42, local.rkey(), local.addr() + at, &[0xAB; 8])
}

/// Atomics share queue 1 and its MSNs with Reads. The headers of atomics are those of the RFC, byte for byte.
// Proves EXT-012, EXT-018, EXT-022, EXT-060, EXT-061, EXT-063, EXT-067, EXT-075, EXT-076, EXT-078, EXT-080,
// EXT-082, EXT-087, EXT-088, EXT-169, EXT-186: each atomic is one message, whose operands and masks are
// compared byte for byte.
#[test]
fn requests_are_sent_to_the_byte() {
    let mut peer = Served::new();
    let local = peer.reg_mr(64, Access::LOCAL_WRITE);
    let compare = AtomicOp::CmpSwap { compare: 0xAA00, compare_mask: 0xFF00, swap: 0xBB, swap_mask: 0xFF };
    peer.post(&read(1, &local, 0));
    peer.post(&atomic(2, AtomicOp::FetchAdd { add: 2, mask: 4 }, &local, 8));
    peer.post(&atomic(3, compare, &local, 16));
    peer.post(&atomic(4, AtomicOp::Swap { swap: 9 }, &local, 24));
    peer.post(&read(5, &local, 32));
    let heard: Vec<_> = (0..5).map(|_| peer.receive()).collect();
    for (n, (segment, control)) in heard.iter().zip([0x41, 0x4a, 0x4a, 0x4a, 0x41]).enumerate() {
        assert_eq!(segment[..18], untagged(control, 1, n as u32 + 1, &[]));
    }
    for (segment, aopcode, operands) in [
        (&heard[1], 0, [2, 4, 0, u64::MAX]),
        (&heard[2], 2, [0xBB, 0xFF, 0xAA00, 0xFF00]),
        (&heard[3], 1, [9, u64::MAX, 0, u64::MAX]),
    ] {
        assert_eq!(segment.len(), 70);
        assert_eq!(segment[18..22], [0, 0, 0, aopcode]);
        assert_eq!(segment[26..30], TARGET.rkey.to_be_bytes());
        assert_eq!(segment[30..38], TARGET.addr.to_be_bytes());
        assert_eq!(segment[38..], operands.map(u64::to_be_bytes).concat());
    }
    let ids = [&heard[1], &heard[2], &heard[3]].map(|segment| id_of(segment));
    assert!(ids[0] != ids[1] && ids[1] != ids[2] && ids[0] != ids[2]);
    // The answers arrive in order. The third answer on queue 3 completes the third atomic: the answer to the
    // Read has no number on queue 3.
    peer.send_all(&[
        &read_response(&local, 0),
        &atomic_response(1, ids[0], 101),
        &atomic_response(2, ids[1], 102),
        &atomic_response(3, ids[2], 103),
        &read_response(&local, 32),
    ]);
    for (wr_id, opcode) in [
        (1, WcOpcode::Read),
        (2, WcOpcode::FetchAdd),
        (3, WcOpcode::CmpSwap),
        (4, WcOpcode::Swap),
        (5, WcOpcode::Read),
    ] {
        let wc = peer.wc();
        assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (wr_id, WcStatus::Success, opcode, 8));
    }
    assert_eq!([8, 16, 24].map(|at| word(&local, at)), [101, 102, 103]);
}

/// A hundred requests are sent in the order posted, and each answer completes its own request.
// Proves EXT-088, EXT-099, EXT-176, EXT-192.
#[test]
fn a_hundred_requests_keep_their_order() {
    let mut peer = Served::new();
    let local = peer.reg_mr(8, Access::LOCAL_WRITE);
    for n in 0..100 {
        peer.post(&atomic(n, AtomicOp::Swap { swap: n }, &local, 0));
    }
    let mut outstanding = Vec::new();
    for n in 0..100_u32 {
        let heard = peer.receive();
        assert_eq!(heard[38..46], u64::from(n).to_be_bytes());
        outstanding.push(id_of(&heard));
        // The depth is 8. When eight requests are outstanding, the peer answers the oldest request.
        if outstanding.len() == 8 || n >= 92 {
            peer.run(1000);
            assert!(n >= 92 || peer.pair.inbox.is_empty(), "more than ORD are outstanding");
            let answered = n + 1 - outstanding.len() as u32;
            peer.send_all(&[&atomic_response(
                answered + 1,
                outstanding.remove(0),
                u64::from(answered) + 500,
            )]);
            let wc = peer.wc();
            assert_eq!((wc.wr_id, wc.status), (u64::from(answered), WcStatus::Success));
            assert_eq!(word(&local, 0), u64::from(answered) + 500);
        }
    }
    assert_eq!(outstanding.len(), 7);
}

/// With ORD 2, a third request is sent when the first request has been answered. Reads and atomics count
/// alike.
// Proves EXT-062.
#[test]
fn a_third_request_waits_for_the_first_answer() {
    let param = ConnParam { initiator_depth: 2, ..ConnParam::default() };
    let mut peer = Setup { accept: param, ..Setup::default() }.ready();
    let local = peer.reg_mr(64, Access::LOCAL_WRITE);
    peer.post(&read(1, &local, 0));
    peer.post(&atomic(2, ADD_ONE, &local, 8));
    peer.post(&atomic(3, ADD_ONE, &local, 16));
    peer.receive();
    let second = id_of(&peer.receive());
    peer.run(100_000);
    assert!(peer.pair.inbox.is_empty());
    peer.send_all(&[&read_response(&local, 0)]);
    let third = id_of(&peer.receive());
    peer.send_all(&[&atomic_response(1, second, 1), &atomic_response(2, third, 2)]);
    assert_eq!([peer.wc().wr_id, peer.wc().wr_id, peer.wc().wr_id], [1, 2, 3]);
}

/// Without the answer, the atomic does not complete and returns no value. Requests behind the atomic are
/// sent, and complete after it.
// Proves EXT-108, EXT-110, EXT-111, EXT-195.
#[test]
fn nothing_completes_without_its_answer() {
    let mut peer = Served::new();
    let local = peer.reg_mr(64, Access::LOCAL_WRITE);
    set_word(&local, 0, 99);
    peer.post(&atomic(1, ADD_ONE, &local, 0));
    peer.post(&SendRequest::new(2, SendOp::Send, local.sge(8, 4)));
    let id = id_of(&peer.receive());
    assert_eq!(peer.receive()[1], 0x43, "the Send does not wait");
    peer.run(1_000_000);
    assert!(peer.cq.poll_one().is_none());
    assert_eq!(word(&local, 0), 99);
    peer.send_all(&[&atomic_response(1, id, 7)]);
    assert_eq!([peer.wc().wr_id, peer.wc().wr_id], [1, 2]);
    assert_eq!(word(&local, 0), 7);
}

#[test]
fn a_fenced_send_waits_for_atomics() {
    let mut peer = Served::new();
    let local = peer.reg_mr(64, Access::LOCAL_WRITE);
    peer.post(&atomic(1, ADD_ONE, &local, 0));
    peer.post(
        &SendRequest::new(2, SendOp::Send, local.sge(8, 4)).flags(SendFlags::FENCE | SendFlags::SIGNALED),
    );
    let id = id_of(&peer.receive());
    peer.run(100_000);
    assert!(peer.pair.inbox.is_empty());
    peer.send_all(&[&atomic_response(1, id, 7)]);
    assert_eq!(peer.receive()[1], 0x43);
}

// Proves EXT-021, EXT-158.
#[test]
fn an_answer_may_come_in_pieces() {
    let mut peer = Served::new();
    let local = peer.reg_mr(8, Access::LOCAL_WRITE);
    for (n, step) in [5, 1].into_iter().enumerate() {
        let msn = n as u32 + 1;
        peer.post(&atomic(1, ADD_ONE, &local, 0));
        let id = id_of(&peer.receive());
        let whole = atomic_response(msn, id, 0x0102_0304_0506_0708);
        for (k, part) in whole[18..].chunks(step).enumerate() {
            assert!(peer.cq.poll_one().is_none());
            let mo = k * step;
            peer.send_all(&[&piece(0x4b, 3, msn, mo as u32, mo + part.len() == 12, part)]);
        }
        assert_eq!(peer.wc().status, WcStatus::Success);
        assert_eq!(word(&local, 0), 0x0102_0304_0506_0708);
    }
}

/// A wrong answer ends the stream: the atomic fails, its local memory is not written, and both sides report
/// the error.
// Proves EXT-026, EXT-101, EXT-145, EXT-148, EXT-149, EXT-151, EXT-167.
#[test]
fn every_wrong_answer_ends_the_stream() {
    // The columns: the name, whether a Read is outstanding before the atomic, the answer, and the error
    // codes.
    type Answer = fn(u32, &MemoryRegion) -> Vec<u8>;
    let cases: &[(&str, bool, Answer, [u8; 2])] = &[
        ("another identifier", false, |id, _| atomic_response(1, id ^ 1, 7), [0x02, 0xFF]),
        ("11 bytes", false, |id, _| atomic_response(1, id, 7)[..29].to_vec(), [0x02, 0xFF]),
        ("13 bytes", false, |id, _| [&atomic_response(1, id, 7)[..], &[0]].concat(), [0x02, 0xFF]),
        ("32 bytes", false, |id, _| [&atomic_response(1, id, 7)[..], &[0; 20]].concat(), [0x02, 0xFF]),
        ("nothing", false, |_, _| untagged(0x4b, 3, 1, &[]), [0x02, 0xFF]),
        ("MSN 2", false, |id, _| atomic_response(2, id, 7), [0x12, 0x02]),
        ("MSN 0", false, |id, _| atomic_response(0, id, 7), [0x12, 0x03]),
        ("a gap", false, |id, _| piece(0x4b, 3, 1, 1, true, &id.to_be_bytes()), [0x12, 0x04]),
        ("on queue 1", false, |id, _| untagged(0x4b, 1, 1, &atomic_response(1, id, 7)[18..]), [0x02, 0x06]),
        (
            "another opcode",
            false,
            |id, _| untagged(0x43, 3, 1, &atomic_response(1, id, 7)[18..]),
            [0x02, 0x06],
        ),
        (
            "RDMAP version 2",
            false,
            |id, _| untagged(0x8b, 3, 1, &atomic_response(1, id, 7)[18..]),
            [0x02, 0x05],
        ),
        ("a Read Response", false, |_, local| read_response(local, 0), [0x02, 0x06]),
        ("before the Read's", true, |id, _| atomic_response(1, id, 7), [0x02, 0x06]),
    ];
    for (name, behind_read, answer, codes) in cases {
        let mut peer = Served::new();
        let local = peer.reg_mr(64, Access::LOCAL_WRITE);
        if *behind_read {
            peer.post(&read(1, &local, 0));
            peer.receive();
        }
        peer.post(&atomic(2, ADD_ONE, &local, 8));
        let id = id_of(&peer.receive());
        let segment = answer(id, &local);
        peer.send_all(&[&segment]);
        let terminate = peer.receive_terminate();
        assert_eq!(terminate[..4], [codes[0], codes[1], 0xc0, 0], "{name}");
        assert_eq!(terminate[4..6], (segment.len() as u16).to_be_bytes(), "{name}");
        assert_eq!(terminate[6..], segment[..if segment[0] & 0x80 == 0 { 18 } else { 14 }], "{name}");
        assert_ne!(peer.wc().status, WcStatus::Success, "{name}");
        assert_eq!(word(&local, 8), 0, "{name}");
        assert!(peer.qp.error().is_some_and(|error| !error.from_peer), "{name}");
    }
    // If no atomic is outstanding, queue 3 has no buffer, so a second answer is an error.
    let mut peer = Served::new();
    peer.send_all(&[&atomic_response(1, 1, 7)]);
    assert_eq!(peer.receive_terminate()[..4], [0x12, 0x02, 0xc0, 0]);
    let mut peer = Served::new();
    let local = peer.reg_mr(8, Access::LOCAL_WRITE);
    peer.post(&atomic(2, ADD_ONE, &local, 0));
    let id = id_of(&peer.receive());
    peer.send_all(&[&atomic_response(1, id, 7), &atomic_response(1, id, 8)]);
    assert_eq!(peer.receive_terminate()[..4], [0x12, 0x03, 0xc0, 0]);
    assert_eq!((peer.wc().status, word(&local, 0)), (WcStatus::Success, 7));
}

/// A peer without the extension answers with Unexpected Opcode. The application can read this error.
// Proves EXT-003, EXT-163, EXT-165.
#[test]
fn an_unexpected_opcode_reaches_the_application() {
    let ops = [
        SendOp::Atomic { remote: TARGET, op: cas(0, 1) },
        SendOp::Immediate { data: [1, 2, 3, 4, 5, 6, 7, 8] },
    ];
    for (op, len) in ops.into_iter().zip([8, 0]) {
        let mut peer = Served::new();
        let local = peer.reg_mr(8, Access::LOCAL_WRITE);
        let mut request = SendRequest::empty(1, op);
        if len > 0 {
            request.sg_list.push(local.sge(0, len));
        }
        peer.post(&request);
        let heard = peer.receive();
        let mut payload = vec![0x02, 0x06, 0xc0, 0, 0, heard.len() as u8];
        payload.extend(&heard[..18]);
        peer.send_all(&[&untagged(0x47, 2, 1, &payload)]);
        peer.run(10_000);
        let told = StreamError { layer: 0, etype: 2, code: 6, from_peer: true };
        assert_eq!(peer.qp.error(), Some(told));
        if len > 0 {
            let wc = peer.wc();
            assert_eq!((wc.status, wc.cause), (WcStatus::RemoteOperationError, Some(told.into())));
        }
    }
}

/// Immediate Data shares queue 0 and its MSNs with Sends. Behind a Write, Immediate Data is sent at once.
// Proves EXT-010, EXT-011, EXT-015 to EXT-017, EXT-020, EXT-022, EXT-023, EXT-115, EXT-119 to EXT-121,
// EXT-124 to EXT-126, EXT-159, EXT-169.
#[test]
fn immediate_data_is_sent_to_the_byte() {
    let mut peer = Served::new();
    let local = peer.reg_mr(4096, Access::LOCAL_WRITE);
    let data = [1, 2, 3, 4, 5, 6, 7, 8];
    let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let immediate = SendOp::Immediate { data };
    let write = SendOp::WriteImmediate { remote: TARGET, data };
    peer.post(&SendRequest::new(1, SendOp::Send, local.sge(0, 4)));
    peer.post(&SendRequest::empty(2, immediate));
    peer.post(&SendRequest::empty(3, immediate).flags(solicited));
    peer.post(&SendRequest::new(4, write, local.sge(0, 4096)));
    peer.post(&SendRequest::new(5, write, local.sge(0, 4)).flags(solicited));
    peer.post(&SendRequest::empty(6, write));
    peer.post(&SendRequest::new(7, SendOp::Send, local.sge(0, 4)));
    let whole = |msn, control| untagged(control, 0, msn, &data);
    assert_eq!(peer.receive()[..18], untagged(0x43, 0, 1, &[]));
    assert_eq!(peer.receive(), whole(2, 0x48));
    assert_eq!(peer.receive(), whole(3, 0x49));
    let mut written = 0;
    loop {
        let heard = peer.receive();
        assert_eq!(heard[1], 0x40);
        written += heard.len() - 14;
        if heard[0] & 0x40 != 0 {
            break;
        }
    }
    assert_eq!(written, 4096);
    assert_eq!(peer.receive(), whole(4, 0x48));
    assert_eq!(peer.receive().len(), 14 + 4);
    assert_eq!(peer.receive(), whole(5, 0x49));
    assert_eq!(peer.receive().len(), 14);
    assert_eq!(peer.receive(), whole(6, 0x48));
    assert_eq!(peer.receive()[..18], untagged(0x43, 0, 7, &[]));
    for (wr_id, opcode) in [
        (1, WcOpcode::Send),
        (2, WcOpcode::Immediate),
        (3, WcOpcode::Immediate),
        (4, WcOpcode::Write),
        (5, WcOpcode::Write),
        (6, WcOpcode::Write),
        (7, WcOpcode::Send),
    ] {
        let wc = peer.wc();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, WcStatus::Success, opcode));
    }
}

/// If our engine cannot build a message, it sends a Terminate of four bytes instead, and the request fails.
// Proves EXT-146, EXT-147.
#[test]
fn a_message_that_cannot_be_made_becomes_a_terminate() {
    let mut peer = Served::new();
    let local = peer.reg_mr(64, Access::LOCAL_WRITE);
    let op = SendOp::WriteImmediate { remote: TARGET, data: [0; 8] };
    peer.post(&SendRequest::new(1, op, local.sge(0, 64)));
    local.invalidate();
    assert_eq!(peer.receive_terminate(), [0, 0, 0, 0]);
    let wc = peer.wc();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocalProtectionError));
}

/// The response to a Read or atomic arrives after our user has invalidated the local memory of the request.
/// In both cases the request fails, the next request is flushed, and the event does not blame the peer. The
/// Terminate for a Read Response contains the response's header with the STag. The Terminate for an Atomic
/// Response, which has no STag and is correct, contains no header.
// Proves RDMAP-325, RDMAP-332, DDP-181: the Terminates for the answers of a Read and of an atomic are
// compared byte for byte.
#[test]
fn an_answer_without_a_place_is_our_users_fault() {
    for is_read in [true, false] {
        let mut peer = Served::new();
        let (lost, kept) = (peer.reg_mr(8, Access::LOCAL_WRITE), peer.reg_mr(8, Access::LOCAL_WRITE));
        peer.post(&if is_read { read(1, &lost, 0) } else { atomic(1, ADD_ONE, &lost, 0) });
        peer.post(&read(2, &kept, 0));
        let request = peer.receive();
        peer.receive();
        let answer = if is_read { read_response(&lost, 0) } else { atomic_response(1, id_of(&request), 5) };
        lost.invalidate();
        peer.send_all(&[&answer]);
        let (told, layer, etype) = if is_read {
            ([&[0x11, 0x00, 0xC0, 0x00, 0, 22][..], &answer[..14]].concat(), 1, 1)
        } else {
            (vec![0, 0, 0, 0], 0, 0)
        };
        assert_eq!(peer.receive_terminate(), told);
        let error = StreamError { layer, etype, code: 0, from_peer: false };
        for (wr_id, status) in [(1, WcStatus::LocalProtectionError), (2, WcStatus::WrFlushError)] {
            let wc = peer.wc();
            assert_eq!((wc.wr_id, wc.status, wc.cause), (wr_id, status, Some(error.into())));
        }
        assert_eq!(peer.qp.error(), Some(error));
        let event = peer.pair.context.async_events().poll().unwrap().unwrap();
        assert_eq!((event.kind, event.cause), (AsyncEventKind::QpFatal, Some(error.into())));
    }
}
