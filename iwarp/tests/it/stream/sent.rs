//! Posted requests on the wire: the bytes of their messages, when the messages are sent, and when the
//! requests complete.

use crate::common::{ALL, read_bytes};
use iwarp::verbs::{
    ConnParam, MrOptions, RemoteAddr, SendFlags, SendOp, SendRequest, VerbsError, WcOpcode, WcStatus,
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::peer::{read_header, read_request, send, served, served_with, tagged, untagged};
use crate::common::served::Served;

const REMOTE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: 0x1122_3344 };

/// Requests of each kind, and the message of each request byte by byte, according to the tables of RFC 5040
/// section 4 and appendix A.
struct Golden {
    requests: Vec<SendRequest>,
    messages: Vec<Vec<u8>>,
}

fn golden(peer: &Served) -> Golden {
    peer.region.write_at(0, b"helloABCD").unwrap();
    let (hello, data) = (peer.region.sge(0, 5), peer.region.sge(5, 4));
    let sink = peer.region.sge(103, 7);
    let solicited = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let odd = RemoteAddr { addr: 0x2005, rkey: 0x202 };
    let requests = [
        SendRequest::new(1, SendOp::Send, hello),
        SendRequest::new(2, SendOp::Write { remote: REMOTE }, data),
        SendRequest::new(3, SendOp::SendInvalidate { rkey: 0xa1b2_c3d4 }, hello),
        SendRequest::new(4, SendOp::Read { remote: odd }, sink),
        SendRequest::new(5, SendOp::Send, hello).flags(solicited),
        SendRequest::empty(6, SendOp::Write { remote: REMOTE }),
        SendRequest::new(7, SendOp::SendInvalidate { rkey: 0xa1b2_c3d4 }, hello).flags(solicited),
        SendRequest::empty(8, SendOp::Send),
        SendRequest::empty(9, SendOp::Read { remote: REMOTE }),
    ];
    let messages = [
        untagged(0x41, 0x43, 0, 0, 1, 0, b"hello"),
        tagged(0xc1, 0x40, 0x1122_3344, 0x1000, b"ABCD"),
        untagged(0x41, 0x44, 0xa1b2_c3d4, 0, 2, 0, b"hello"),
        untagged(0x41, 0x41, 0, 1, 1, 0, &read_header((sink.lkey, sink.addr), 7, (0x202, 0x2005))),
        untagged(0x41, 0x45, 0, 0, 3, 0, b"hello"),
        tagged(0xc1, 0x40, 0x1122_3344, 0x1000, b""),
        untagged(0x41, 0x46, 0xa1b2_c3d4, 0, 4, 0, b"hello"),
        untagged(0x41, 0x43, 0, 0, 5, 0, b""),
        untagged(0x41, 0x41, 0, 1, 2, 0, &read_header((0, 0), 0, (0x1122_3344, 0x1000))),
    ];
    Golden { requests: requests.to_vec(), messages: messages.to_vec() }
}

/// Posts the golden requests that `which` selects, each on its own connection. Checks that each request is
/// sent as the expected message. Returns the requests and their messages.
fn each_alone(which: impl Fn(&SendOp) -> bool) -> Vec<(SendRequest, Vec<u8>)> {
    let mut told = Vec::new();
    for n in 0..golden(&served()).requests.len() {
        let mut peer = served();
        let Golden { mut requests, mut messages } = golden(&peer);
        let (request, mut message) = (requests.swap_remove(n), messages.swap_remove(n));
        if !which(&request.op) {
            continue;
        }
        // On its own connection, the message is the first message of its queue.
        if message[0] & 0x80 == 0 {
            message[10..14].copy_from_slice(&1_u32.to_be_bytes());
        }
        peer.qp.post_send(&request).unwrap();
        assert_eq!(peer.received(20_000), [message.clone()], "{request:?} is one message");
        told.push((request, message));
    }
    told
}

fn word(message: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(message[at..at + 4].try_into().unwrap())
}

/// Messages are sent in the order of the requests, whatever their kinds. Each queue has its own message
/// numbers.
// Proves RDMAP-010, RDMAP-056, RDMAP-202, RDMAP-213, RDMAP-244, RDMAP-285: nine requests become nine
// messages, in the same order. The message numbers of each queue rise by one.
#[test]
fn requests_leave_in_order_as_one_message_each() {
    let mut peer = served();
    let Golden { requests, messages } = golden(&peer);
    peer.qp.post_send_list(&requests).unwrap();
    assert_eq!(peer.received(20_000), messages);
    // The test posts many requests of each kind, which differ in target and length.
    let mut peer = served();
    let mut requests = Vec::new();
    for n in 0..8 {
        let remote = RemoteAddr { addr: 0x1000 + n, rkey: 1 };
        let sge = peer.region.sge(0, n as usize);
        requests.push(SendRequest::new(n, SendOp::Write { remote }, sge));
        requests.push(SendRequest::new(n, SendOp::Send, sge));
        requests.push(SendRequest::new(n, SendOp::Read { remote }, sge));
    }
    peer.qp.post_send_list(&requests).unwrap();
    let heard = peer.received(20_000);
    assert_eq!(heard.len(), requests.len());
    for (n, messages) in heard.chunks(3).enumerate() {
        let [write, send, read] = messages else { panic!("three") };
        assert_eq!(
            (write.len(), u64::from_be_bytes(write[6..14].try_into().unwrap())),
            (14 + n, 0x1000 + n as u64)
        );
        assert_eq!((send.len(), word(send, 6), word(send, 10)), (18 + n, 0, 1 + n as u32));
        assert_eq!((word(read, 6), word(read, 10), word(read, 30)), (1, 1 + n as u32, n as u32));
    }
}

/// Checks the control bytes that all messages have in common, and those that depend on the kind of message.
// Proves MPA-297, RDMAP-001, RDMAP-009, RDMAP-035, RDMAP-040, RDMAP-052, RDMAP-061, RDMAP-065, RDMAP-079,
// RDMAP-083, RDMAP-084, RDMAP-085, RDMAP-086, RDMAP-088, RDMAP-089, RDMAP-090, RDMAP-091, RDMAP-092,
// RDMAP-094, RDMAP-098, RDMAP-298, RDMAP-397: the test has an assertion for each rule about the control
// bytes. The test covers the six operations that can be posted, the answer to a Read, and the Terminate:
// opcodes 0 to 7.
#[test]
fn control_bytes_say_what_a_message_is() {
    let mut messages: Vec<Vec<u8>> = each_alone(|_| true).into_iter().map(|(_, message)| message).collect();
    let mut peer = served();
    peer.send_and_run(&[read_request(1, (7, 8), 4, (peer.region.rkey(), peer.to(0)))]);
    let answer = peer.received(20_000);
    assert_eq!(answer, [tagged(0xc1, 0x42, 7, 8, &[0; 4])], "one message back");
    messages.extend(answer);
    // No receive is posted.
    peer.send_and_run(&[send(1, b"x")]);
    let terminate = peer.received(20_000);
    assert_eq!(terminate.len(), 1);
    messages.extend(terminate);

    let mut opcodes: Vec<u8> = messages.iter().map(|message| message[1] & 0x0f).collect();
    opcodes.sort_unstable();
    opcodes.dedup();
    assert_eq!(opcodes, [0, 1, 2, 3, 4, 5, 6, 7], "these eight and no others");
    for message in &messages {
        let (ddp, rdmap) = (message[0], message[1]);
        let opcode = rdmap & 0x0f;
        assert_eq!(rdmap >> 6, 1, "the version of RDMAP: {message:02x?}");
        assert_eq!(rdmap & 0x30, 0, "its reserved bits: {message:02x?}");
        assert_eq!(ddp & 0x03, 1, "the version of DDP: {message:02x?}");
        assert_eq!(ddp & 0x3c, 0, "its reserved bits: {message:02x?}");
        assert_eq!(ddp & 0x40, 0x40, "the only segment is the last: {message:02x?}");
        // Writes and Read Responses are tagged, and have STag and TO. The other messages have queue, number
        // and offset.
        assert_eq!(ddp & 0x80 != 0, [0, 2].contains(&opcode), "{message:02x?}");
        if ddp & 0x80 != 0 {
            assert!(message.len() >= 14 && word(message, 2) != 0);
            continue;
        }
        let queue = [0, 1, 0, 0, 0, 0, 0, 2][usize::from(opcode)];
        assert_eq!((word(message, 6), word(message, 10), word(message, 14)), (queue, 1, 0), "{message:02x?}");
        // Bytes 2 to 5 are the Invalidate STag.
        let invalidates = [4, 6].contains(&opcode);
        assert_eq!(word(message, 2), if invalidates { 0xa1b2_c3d4 } else { 0 }, "{message:02x?}");
        // Read Requests and Terminates have a header of RDMAP. In a Send, the user's bytes directly follow
        // DDP's header.
        match opcode {
            1 => assert_eq!(message.len(), 18 + 28),
            7 => assert_eq!(message[18..20], [0x12, 2]),
            _ => assert!(message[18..] == *b"hello" || message.len() == 18),
        }
    }
}

/// A Write consists of control bytes, STag, tagged offset and payload, and nothing else.
// Proves RDMAP-057, RDMAP-070, RDMAP-110, RDMAP-116, RDMAP-196, RDMAP-205, RDMAP-398: the header contains the
// requested STag and offset, and the payload contains the requested bytes. Empty Writes are also sent. Each
// Write completes once.
#[test]
fn a_write_is_a_tagged_message_of_the_users_bytes() {
    let told = each_alone(|op| matches!(op, SendOp::Write { .. }));
    let payloads: Vec<&[u8]> = told.iter().map(|(_, message)| &message[14..]).collect();
    assert_eq!(payloads, [&b"ABCD"[..], b""]);
    for (_, message) in &told {
        assert_eq!(message[..6], [0xc1, 0x40, 0x11, 0x22, 0x33, 0x44]);
        assert_eq!(message[6..14], 0x1000_u64.to_be_bytes());
    }
    let mut peer = served();
    let request = SendRequest::new(7, SendOp::Write { remote: REMOTE }, peer.region.sge(0, 4));
    peer.qp.post_send(&request).unwrap();
    assert_eq!(peer.statuses(), [(7, WcStatus::Success)]);
    assert!(peer.statuses().is_empty(), "once");
}

/// Read Requests are sent on queue 1, and have 28 bytes that name both buffers.
// Proves RDMAP-019, RDMAP-023, RDMAP-026, RDMAP-046, RDMAP-047, RDMAP-054, RDMAP-111, RDMAP-117, RDMAP-118,
// RDMAP-119, RDMAP-123, RDMAP-127, RDMAP-207, RDMAP-212, RDMAP-216, RDMAP-219, RDMAP-399: each field is at
// its position directly behind DDP's header, with misaligned offsets and with a size of 0. The test also
// checks the positions in the FPDU.
#[test]
fn a_read_request_names_both_buffers() {
    let told = each_alone(|op| matches!(op, SendOp::Read { .. }));
    assert_eq!(told.len(), 2);
    for (request, message) in &told {
        assert_eq!(message[..6], [0x41, 0x41, 0, 0, 0, 0]);
        assert_eq!(message[6..18], [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0]);
        let sink = request.sg_list.first().map_or((0, 0, 0), |sge| (sge.lkey, sge.addr, sge.length));
        let SendOp::Read { remote } = request.op else { panic!("a Read") };
        assert_eq!(word(message, 18), sink.0);
        assert_eq!(message[22..30], sink.1.to_be_bytes());
        assert_eq!(word(message, 30), sink.2);
        assert_eq!(word(message, 34), remote.rkey);
        assert_eq!(message[38..], remote.addr.to_be_bytes());
        assert_eq!(message.len(), 46, "nothing behind it");
    }
    let (odd, _) = &told[0];
    assert!(
        odd.sg_list[0].addr % 4 != 0 && matches!(odd.op, SendOp::Read { remote } if remote.addr % 4 != 0)
    );
    // The FPDU contains the length, the headers of DDP and RDMAP, and the CRC; 46 bytes need no pad.
    let mut peer = served();
    let Golden { requests, .. } = golden(&peer);
    peer.qp.post_send(&requests[3]).unwrap();
    peer.run(20_000);
    let wire = peer.pair.inbox.clone();
    assert_eq!((wire.len(), &wire[..4]), (2 + 46 + 4, &[0, 46, 0x41, 0x41][..]));
    assert_eq!(wire[20..24], requests[3].sg_list[0].lkey.to_be_bytes());
    assert_eq!(wire[48..], crc32c::crc32c(&wire[..48]).to_le_bytes());
}

/// To read several remote buffers, the user needs one Read Request per buffer.
// Proves RDMAP-215: for two buffers of the peer, the user posts two requests. Two messages are sent, each
// with the one source of its request.
#[test]
fn each_remote_buffer_takes_a_read_of_its_own() {
    let mut peer = served();
    let remotes = [RemoteAddr { addr: 0x10, rkey: 5 }, RemoteAddr { addr: 0x20, rkey: 6 }];
    for (n, remote) in remotes.into_iter().enumerate() {
        let sink = peer.region.sge(8 * n, 8);
        peer.qp.post_send(&SendRequest::new(n as u64, SendOp::Read { remote }, sink)).unwrap();
    }
    let heard = peer.received(20_000);
    assert_eq!(heard.len(), 2);
    for (message, remote) in heard.iter().zip(remotes) {
        assert_eq!(word(message, 34), remote.rkey);
        assert_eq!(message[38..], remote.addr.to_be_bytes());
    }
}

/// The four kinds of Send use queue 0. A Send contains the user's bytes and, if it invalidates, the STag to
/// invalidate.
// Proves RDMAP-011, RDMAP-053, RDMAP-080, RDMAP-087, RDMAP-113, RDMAP-130, RDMAP-131, RDMAP-234, RDMAP-243,
// RDMAP-245, RDMAP-247, RDMAP-248, RDMAP-401, RDMAP-402: the messages are untagged, are sent on queue 0, and
// have the control bytes 0x43 to 0x46. The payload directly follows the header, and may be empty. The two
// kinds that invalidate contain the user's STag; the other two kinds contain 0.
#[test]
fn a_send_is_an_untagged_message_of_the_users_bytes() {
    let told = each_alone(|op| matches!(op, SendOp::Send | SendOp::SendInvalidate { .. }));
    let heads: Vec<(u8, u8, u32)> =
        told.iter().map(|(_, message)| (message[0], message[1], word(message, 2))).collect();
    let stag = 0xa1b2_c3d4;
    assert_eq!(
        heads,
        [(0x41, 0x43, 0), (0x41, 0x44, stag), (0x41, 0x45, 0), (0x41, 0x46, stag), (0x41, 0x43, 0)]
    );
    for (request, message) in &told {
        assert_eq!(message[6..18], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0], "queue, number, offset");
        assert_eq!(message[18..], b"hello"[..if request.sg_list.is_empty() { 0 } else { 5 }]);
    }
}

/// RDMAP has no message that advertises a buffer. The application sends the advertisement in its own bytes.
// Proves RDMAP-015: registering, re-registering and invalidating a buffer sends nothing to the peer. When the
// user sends the buffer's STag, offset and length, only the payload of that Send contains these values.
#[test]
fn a_buffer_is_told_in_the_users_bytes_alone() {
    let mut peer = served();
    let mut lent = peer.pd.reg_mr(4096, ALL).unwrap();
    lent.reregister(ALL, 7).unwrap();
    let gone = peer.pd.reg_mr(4096, ALL).unwrap();
    gone.invalidate();
    assert!(peer.received(20_000).is_empty(), "nothing is said of it");
    let advertisement =
        [&lent.rkey().to_be_bytes()[..], &lent.addr().to_be_bytes(), &4096_u32.to_be_bytes()].concat();
    peer.region.write_at(0, &advertisement).unwrap();
    peer.qp.post_send(&SendRequest::new(1, SendOp::Send, peer.region.sge(0, 16))).unwrap();
    let heard = peer.received(20_000);
    assert_eq!(heard, [untagged(0x41, 0x43, 0, 0, 1, 0, &advertisement)]);
    // The peer can use the advertised buffer.
    peer.send_and_run(&[tagged(0xc1, 0x40, word(&heard[0], 18), lent.addr() + 8, b"there")]);
    let bytes = read_bytes(&lent, 8, 5);
    assert_eq!(&bytes, b"there");
}

/// Lengths up to 2^32 - 1 are accepted. A request of one byte more is refused at the post, and nothing is
/// sent.
// Proves RDMAP-003 to RDMAP-005: 2^32 bytes are refused for each operation. 2^32 - 1 bytes are accepted for a
// Read and a Write.
#[test]
fn lengths_have_32_bits() {
    let mut peer = served();
    // Pages that nobody accesses use no memory.
    const BYTES: usize = 1 << 32;
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: without a requested address, a new mapping replaces no other mapping.
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, rights, flags) }.unwrap();
    // SAFETY: the mapping exists until the region is dropped below, and the memory is accessed only through
    // the region.
    let region = unsafe { peer.pd.reg_user_mr(memory.cast(), BYTES, &MrOptions::new(ALL)) }.unwrap();
    let most = region.sge(0, u32::MAX as usize);
    for op in [SendOp::Read { remote: REMOTE }, SendOp::Write { remote: REMOTE }, SendOp::Send] {
        let mut request = SendRequest::new(1, op, most);
        request.sg_list.push(region.sge(u32::MAX as usize, 1));
        let told = peer.qp.post_send(&request);
        assert!(
            matches!(told, Err(VerbsError::TooLong { got: 0x1_0000_0000, max: 0xffff_ffff })),
            "{told:?}"
        );
    }
    assert!(peer.received(20_000).is_empty());
    peer.qp.post_send(&SendRequest::new(2, SendOp::Read { remote: REMOTE }, most)).unwrap();
    let header = read_header((most.lkey, most.addr), u32::MAX, (REMOTE.rkey, REMOTE.addr));
    assert_eq!(peer.received(20_000), [untagged(0x41, 0x41, 0, 1, 1, 0, &header)]);
    peer.qp.post_send(&SendRequest::new(3, SendOp::Write { remote: REMOTE }, most)).unwrap();
    assert_eq!(peer.qp.query().send_outstanding, 2, "taken");
    drop(region);
    // SAFETY: the mapping belongs to this test. The only user of the mapping, the region, was dropped just
    // before.
    unsafe { munmap(memory, BYTES) }.unwrap();
}

/// Builds a segment from three arguments: its offset, whether it is the last segment, and its payload.
type Header<'a> = dyn Fn(u32, bool, &[u8]) -> Vec<u8> + 'a;

/// The segments of a message have the same control bytes and STag, each offset continues where the previous
/// segment ended, and only the last segment has the L bit. A gather list is one message.
// Proves RDMAP-030, RDMAP-036, RDMAP-038, RDMAP-057, RDMAP-059, RDMAP-086, RDMAP-201, RDMAP-204, RDMAP-242.
#[test]
fn a_long_message_is_cut_into_like_segments() {
    let mut peer = served();
    let data: Vec<u8> = (0..4000_u32).map(|n| (n % 251) as u8).collect();
    peer.region.write_at(0, &data).unwrap();
    let gather = |op| {
        let mut request = SendRequest::new(1, op, peer.region.sge(0, 1700));
        request.sg_list.push(peer.region.sge(1700, 1));
        request.sg_list.push(peer.region.sge(1701, 2299));
        request
    };
    let requests = [
        gather(SendOp::SendInvalidate { rkey: 0xa1b2_c3d4 }),
        gather(SendOp::Write { remote: REMOTE }),
        gather(SendOp::Send),
    ];
    peer.qp.post_send_list(&requests).unwrap();
    let heard = peer.received(20_000);
    let mut rest = &heard[..];
    let mut message = |header: &Header<'_>, header_len: usize| {
        let mut offset = 0;
        while offset < data.len() {
            let (segment, after) = rest.split_first().unwrap();
            let len = segment.len() - header_len;
            let last = offset + len == data.len();
            assert!(segment.len() <= 1500 - 40 && (last || len > 1000), "{len} bytes");
            assert_eq!(*segment, header(offset as u32, last, &data[offset..offset + len]));
            offset += len;
            rest = after;
        }
    };
    let ddp = |last| if last { 0x41 } else { 0x01 };
    message(&|mo, last, bytes| untagged(ddp(last), 0x44, 0xa1b2_c3d4, 0, 1, mo, bytes), 18);
    message(
        &|to, last, bytes| tagged(ddp(last) | 0x80, 0x40, REMOTE.rkey, REMOTE.addr + u64::from(to), bytes),
        14,
    );
    message(&|mo, last, bytes| untagged(ddp(last), 0x43, 0, 0, 2, mo, bytes), 18);
    assert!(rest.is_empty());
}

/// Two of ten Reads are outstanding at a time. The other Reads and the requests behind them wait in order.
// Proves RDMAP-299, RDMAP-302, RDMAP-303, RDMAP-305, RDMAP-361, RDMAP-213, RDMAP-278, RDMAP-285, RDMAP-287.
#[test]
fn reads_wait_for_their_place_in_ord() {
    let mut peer = served_with(ConnParam { initiator_depth: 2, ..ConnParam::default() }, 0);
    assert_eq!(peer.depths.0, 2);
    let sge = |n: u64| peer.region.sge(100 * n as usize, 8);
    let mut requests: Vec<_> =
        (1..=10).map(|n| SendRequest::new(n, SendOp::Read { remote: REMOTE }, sge(n))).collect();
    requests.push(SendRequest::new(11, SendOp::Send, sge(0)));
    peer.qp.post_send_list(&requests).unwrap();
    let asks = |n: u64| {
        let sink = (sge(n).lkey, sge(n).addr);
        untagged(0x41, 0x41, 0, 1, n as u32, 0, &read_header(sink, 8, (REMOTE.rkey, REMOTE.addr)))
    };
    let (asks, sinks): (Vec<_>, Vec<_>) = (1..=10).map(|n| (asks(n), sge(n))).unzip();
    assert_eq!(peer.received(20_000), asks[..2]);
    for n in 1..=10_usize {
        let sink = sinks[n - 1];
        peer.send_and_run(&[tagged(0xc1, 0x42, sink.lkey, sink.addr, &[n as u8; 8])]);
        let done = peer.statuses();
        let heard = peer.received(20_000);
        if n <= 8 {
            assert_eq!(done, [(n as u64, WcStatus::Success)]);
            assert_eq!(heard[..1], asks[n + 1..n + 2]);
            // The Send is sent at once after the tenth Read Request.
            assert_eq!(heard.len(), if n == 8 { 2 } else { 1 });
            continue;
        }
        // The Send completes after the last Read.
        let expected: Vec<u64> = if n == 9 { vec![9] } else { vec![10, 11] };
        assert_eq!(done, expected.into_iter().map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
    }
}

/// A fenced request is sent only after the responses to all earlier Reads have arrived.
// Proves RDMAP-028, RDMAP-284, RDMAP-433.
#[test]
fn a_fence_waits_for_reads() {
    for fenced in [SendOp::Send, SendOp::Write { remote: REMOTE }] {
        let mut peer = served();
        let sink = peer.region.sge(0, 8);
        let read = SendRequest::new(1, SendOp::Read { remote: REMOTE }, sink);
        let next = SendRequest::new(2, fenced, peer.region.sge(8, 8));
        peer.qp.post_send_list(&[read, next.flags(SendFlags::SIGNALED | SendFlags::FENCE)]).unwrap();
        assert_eq!(peer.received(20_000).len(), 1, "the Read alone");
        peer.send_and_run(&[tagged(0x81, 0x42, sink.lkey, sink.addr, &[1; 4])]);
        assert!(peer.received(20_000).is_empty(), "half an answer is none");
        peer.send_and_run(&[tagged(0xc1, 0x42, sink.lkey, sink.addr + 4, &[1; 4])]);
        assert_eq!(peer.received(20_000).len(), 1);
    }
}

/// A Send or Write completes when TCP has accepted its bytes. A Read completes when it is answered. Each
/// request completes once, in order.
// Proves RDMAP-041, RDMAP-044, RDMAP-067, RDMAP-073, RDMAP-227, RDMAP-274, RDMAP-286, RDMAP-287, RDMAP-291,
// RDMAP-294.
#[test]
fn requests_complete_each_by_its_own_condition() {
    let mut peer = served();
    let sink = peer.region.sge(0, 8);
    let source = peer.region.sge(8, 8);
    let requests = [
        SendRequest::new(1, SendOp::Write { remote: REMOTE }, source),
        SendRequest::new(2, SendOp::Read { remote: REMOTE }, sink),
        SendRequest::new(3, SendOp::Send, source),
    ];
    peer.qp.post_send_list(&requests).unwrap();
    // Before the engine is polled, nothing is sent, so nothing is complete.
    assert!(peer.cq.poll_one().is_none());
    assert_eq!(peer.received(20_000).len(), 3);
    assert_eq!(peer.statuses(), [(1, WcStatus::Success)], "the Send waits for its turn");
    peer.send_and_run(&[tagged(0x81, 0x42, sink.lkey, sink.addr, &[1; 7])]);
    assert!(peer.statuses().is_empty(), "the last byte is missing");
    peer.send_and_run(&[tagged(0xc1, 0x42, sink.lkey, sink.addr + 7, &[1; 1])]);
    let done: Vec<_> = peer.done().iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
    assert_eq!(done, [(2, WcOpcode::Read, 8), (3, WcOpcode::Send, 0)]);
    assert_eq!(peer.bytes(0, 9), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
}
