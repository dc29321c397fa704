//! What posted requests look like on the wire, and when they leave.

use iwarp::verbs::{
    ConnParam, MrOptions, RemoteAddr, SendFlags, SendOp, SendRequest, VerbsError, WcOpcode, WcStatus,
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::peer::{ALL, Peer, read_header, tagged, untagged};

const REMOTE: RemoteAddr = RemoteAddr { addr: 0x1000, rkey: 0x1122_3344 };

/// Each request is one message, to the octet, and messages leave in the order of the requests, whatever their kinds.
// Proves RDMAP-009, RDMAP-010, RDMAP-011, RDMAP-015, RDMAP-019, RDMAP-026, RDMAP-023, RDMAP-035, RDMAP-040, RDMAP-046, RDMAP-047, RDMAP-052 to RDMAP-057,
// RDMAP-061, RDMAP-065, RDMAP-070, RDMAP-079, RDMAP-080, RDMAP-083 to RDMAP-092, RDMAP-094, RDMAP-098,
// RDMAP-110 to RDMAP-113, RDMAP-116 to RDMAP-119, RDMAP-123, RDMAP-127, RDMAP-130, RDMAP-131, RDMAP-196, RDMAP-202,
// RDMAP-205, RDMAP-207, RDMAP-212, RDMAP-213, RDMAP-215, RDMAP-216, RDMAP-219, RDMAP-234, RDMAP-243 to RDMAP-245,
// RDMAP-247, RDMAP-248, RDMAP-285, RDMAP-296 to RDMAP-298, RDMAP-397, RDMAP-398, RDMAP-399, RDMAP-401, RDMAP-402.
#[test]
fn each_request_is_one_message_to_the_octet() {
    let mut peer = Peer::new();
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
    peer.qp.post_send_list(&requests).unwrap();
    let heard = peer.hear();
    let golden = [
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
    assert_eq!(heard, golden);
}

/// Lengths up to 2^32 - 1 are taken and carried; one octet more is refused when posted, and nothing is sent.
// Proves RDMAP-003 to RDMAP-004.
#[test]
fn lengths_have_32_bits() {
    let mut peer = Peer::new();
    // Pages that nobody touches take no memory.
    const OCTETS: usize = 1 << 32;
    let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
    // SAFETY: a new mapping replaces nothing.
    let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), OCTETS, rights, flags) }.unwrap();
    // SAFETY: it stays mapped until the region is gone, and nobody else accesses it.
    let region = unsafe { peer.pd.reg_user_mr(memory.cast(), OCTETS, &MrOptions::new(ALL)) }.unwrap();
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
    assert!(peer.hear().is_empty());
    peer.qp.post_send(&SendRequest::new(2, SendOp::Read { remote: REMOTE }, most)).unwrap();
    let header = read_header((most.lkey, most.addr), u32::MAX, (REMOTE.rkey, REMOTE.addr));
    assert_eq!(peer.hear(), [untagged(0x41, 0x41, 0, 1, 1, 0, &header)]);
    peer.qp.post_send(&SendRequest::new(3, SendOp::Write { remote: REMOTE }, most)).unwrap();
    assert_eq!(peer.qp.query().send_outstanding, 2, "taken");
    drop(region);
    // SAFETY: nothing refers to it any more.
    unsafe { munmap(memory, OCTETS) }.unwrap();
}

/// A segment by its offset, whether it is the last, and its payload.
type Header<'a> = dyn Fn(u32, bool, &[u8]) -> Vec<u8> + 'a;

/// A message of several segments: the same control octets and STag in each, offsets that go on where the last one ended,
/// the L bit in the last alone. A gather list is one message.
// Proves RDMAP-030, RDMAP-036, RDMAP-038, RDMAP-057, RDMAP-059, RDMAP-086, RDMAP-201, RDMAP-204, RDMAP-242.
#[test]
fn a_long_message_is_cut_into_like_segments() {
    let mut peer = Peer::new();
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
    let heard = peer.hear();
    let mut rest = &heard[..];
    let mut message = |header: &Header<'_>, header_len: usize| {
        let mut offset = 0;
        while offset < data.len() {
            let (segment, after) = rest.split_first().unwrap();
            let len = segment.len() - header_len;
            let last = offset + len == data.len();
            assert!(segment.len() <= 1500 - 40 && (last || len > 1000), "{len} octets");
            assert_eq!(*segment, header(offset as u32, last, &data[offset..offset + len]));
            offset += len;
            rest = after;
        }
    };
    let ddp = |last| if last { 0x41 } else { 0x01 };
    message(&|mo, last, octets| untagged(ddp(last), 0x44, 0xa1b2_c3d4, 0, 1, mo, octets), 18);
    message(
        &|to, last, octets| tagged(ddp(last) | 0x80, 0x40, REMOTE.rkey, REMOTE.addr + u64::from(to), octets),
        14,
    );
    message(&|mo, last, octets| untagged(ddp(last), 0x43, 0, 0, 2, mo, octets), 18);
    assert!(rest.is_empty());
}

/// Of ten Reads two are out at a time; the others wait in order, and what is posted behind them.
// Proves RDMAP-299, RDMAP-302, RDMAP-303, RDMAP-305, RDMAP-361, RDMAP-213, RDMAP-278, RDMAP-285, RDMAP-287.
#[test]
fn reads_wait_for_their_place_in_ord() {
    let mut peer = Peer::with(&ConnParam { initiator_depth: 2, ..ConnParam::default() }, 0);
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
    assert_eq!(peer.hear(), asks[..2]);
    for n in 1..=10_usize {
        let sink = sinks[n - 1];
        peer.say(&[tagged(0xc1, 0x42, sink.lkey, sink.addr, &[n as u8; 8])]);
        let done = peer.statuses();
        let heard = peer.hear();
        if n <= 8 {
            assert_eq!(done, [(n as u64, WcStatus::Success)]);
            assert_eq!(heard[..1], asks[n + 1..n + 2]);
            // The Send follows the tenth request at once.
            assert_eq!(heard.len(), if n == 8 { 2 } else { 1 });
            continue;
        }
        // The Send's completion comes behind the last Read's.
        let expected: Vec<u64> = if n == 9 { vec![9] } else { vec![10, 11] };
        assert_eq!(done, expected.into_iter().map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
    }
}

/// A fenced request leaves only when the answers to all Reads in front of it are there.
// Proves RDMAP-028, RDMAP-284, RDMAP-433.
#[test]
fn a_fence_waits_for_reads() {
    for fenced in [SendOp::Send, SendOp::Write { remote: REMOTE }] {
        let mut peer = Peer::new();
        let sink = peer.region.sge(0, 8);
        let read = SendRequest::new(1, SendOp::Read { remote: REMOTE }, sink);
        let next = SendRequest::new(2, fenced, peer.region.sge(8, 8));
        peer.qp.post_send_list(&[read, next.flags(SendFlags::SIGNALED | SendFlags::FENCE)]).unwrap();
        assert_eq!(peer.hear().len(), 1, "the Read alone");
        peer.say(&[tagged(0x81, 0x42, sink.lkey, sink.addr, &[1; 4])]);
        assert!(peer.hear().is_empty(), "half an answer is none");
        peer.say(&[tagged(0xc1, 0x42, sink.lkey, sink.addr + 4, &[1; 4])]);
        assert_eq!(peer.hear().len(), 1);
    }
}

/// A Send or Write is complete when the layers below have it, a Read when it is answered; each once, in order.
// Proves RDMAP-041, RDMAP-044, RDMAP-067, RDMAP-073, RDMAP-227, RDMAP-274, RDMAP-286, RDMAP-287, RDMAP-291, RDMAP-294.
#[test]
fn requests_complete_each_by_its_own_condition() {
    let mut peer = Peer::new();
    let sink = peer.region.sge(0, 8);
    let source = peer.region.sge(8, 8);
    let requests = [
        SendRequest::new(1, SendOp::Write { remote: REMOTE }, source),
        SendRequest::new(2, SendOp::Read { remote: REMOTE }, sink),
        SendRequest::new(3, SendOp::Send, source),
    ];
    peer.qp.post_send_list(&requests).unwrap();
    // Nothing is sent, and so nothing is complete, before the engine is turned.
    assert!(peer.cq.poll_one().is_none());
    assert_eq!(peer.hear().len(), 3);
    assert_eq!(peer.statuses(), [(1, WcStatus::Success)], "the Send waits for its turn");
    peer.say(&[tagged(0x81, 0x42, sink.lkey, sink.addr, &[1; 7])]);
    assert!(peer.statuses().is_empty(), "the last octet is missing");
    peer.say(&[tagged(0xc1, 0x42, sink.lkey, sink.addr + 7, &[1; 1])]);
    let done: Vec<_> = peer.done().iter().map(|wc| (wc.wr_id, wc.opcode, wc.byte_len)).collect();
    assert_eq!(done, [(2, WcOpcode::Read, 8), (3, WcOpcode::Send, 0)]);
    assert_eq!(peer.octets(0, 9), [1, 1, 1, 1, 1, 1, 1, 1, 0]);
}
