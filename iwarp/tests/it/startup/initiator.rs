//! MPA startup on the wire, with the engine as the initiator: the bytes that the engine sends before its
//! first message, and the engine's reaction to Replies.

use crate::common::connect_error;
use crate::common::ulpdu::from_hex;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::Testbed;
use crate::common::hooked::Hooks;
use crate::common::initiator::Initiator;
use crate::common::raw::{fpdu, frame};
use crate::common::responder::Responder;
use dp::{Burst, Mbuf, Port};
use iwarp::mpa::frame::{Depths, Enhanced};
use iwarp::mpa::{Framer, RtrKinds, StartupFault};
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, QpState, RecvRequest, RemoteAddr, SendOp, SendRequest,
    StreamError, TerminateOrigin,
};

const WRITE_RTR: &str = "000ec140 00000001 00000000 00000000 ebd34c5f";
const READ_RTR: &str = "002e4141 00000000 00000001 00000001 00000000 00000000 00000000 00000000 00000000 00000001 \
                        00000000 00000000 ba10e3c9";
const SEND_RTR: &str = "00124143 00000000 00000000 00000001 00000000 587be8c4";
const TERMINATE: &str = "00164147 00000000 00000002 00000001 00000000";

fn reply(flags: u8, revision: u8, private_data: &[u8]) -> Vec<u8> {
    frame("Rep", flags, revision, private_data)
}

fn client_server() -> ConnParam {
    ConnParam { peer_to_peer: false, ..ConnParam::default() }
}

fn stream_error(code: u8) -> ConnectionError {
    ConnectionError::Stream(StreamError { layer: 2, etype: 0, code, from_peer: false })
}

/// Returns a Send of no bytes.
fn send(wr_id: u64) -> SendRequest {
    SendRequest::empty(wr_id, SendOp::Send)
}

// Proves MPA2-003, MPA2-004, MPA2-014, MPA2-017, MPA2-018, MPA2-019, MPA2-086, MPA2-110, MPA2-111, MPA2-112,
// MPA2-135: the engine first sends one message of the agreed kind, which has no completion and no entry in a
// queue.
#[test]
fn the_rtr_goes_first() {
    for (named, rtr, next_msn) in [
        ([0x80, 1, 0xc0, 1], WRITE_RTR, 1),
        ([0x80, 1, 0x40, 1], READ_RTR, 1),
        ([0xc0, 1, 0, 1], SEND_RTR, 2),
    ] {
        let param = ConnParam { rtr: RtrKinds::all(), ..ConnParam::default() };
        let mut d = Initiator::new(&param);
        assert_eq!(d.pair.inbox[16..], [0x50, 2, 0, 4, 0xc0, 0x80, 0xc0, 0x80]);
        // No request can be posted before the Reply has arrived.
        assert!(d.qp.post_send(&send(1)).is_err());
        d.pair.inbox.clear();
        d.pair.send(&reply(0x50, 2, &named));
        d.established();
        d.qp.post_send(&SendRequest { flags: iwarp::verbs::SendFlags::SIGNALED, ..send(1) }).unwrap();
        d.pair.until(20_000, |_| false);
        let rtr = from_hex(rtr);
        assert_eq!(d.pair.inbox[..rtr.len()], rtr);
        let next = &d.pair.inbox[rtr.len()..];
        assert_eq!((next.len(), next[..4].to_vec()), (24, vec![0, 0x12, 0x41, 0x43]), "one RTR alone");
        assert_eq!(next[12..16], [0, 0, 0, next_msn]);
        let completions: Vec<_> = std::iter::from_fn(|| d.cq.poll_one()).map(|wc| wc.wr_id).collect();
        assert_eq!(completions, [1]);
    }
}

// Proves MPA2-113: an RTR by Read counts as one of the outstanding Reads, and the user's first Read has MSN
// 2.
#[test]
fn an_rtr_by_read_is_a_read() {
    let param = ConnParam { initiator_depth: 1, ..ConnParam::default() };
    let mut d = Initiator::answered(&param, &reply(0x50, 2, &[0x80, 1, 0x40, 1]));
    d.established();
    let read = SendOp::Read { remote: RemoteAddr { addr: 0, rkey: 1 } };
    d.qp.post_send(&SendRequest::empty(1, read)).unwrap();
    d.pair.until(20_000, |_| false);
    let rtr = from_hex(READ_RTR);
    assert_eq!(d.pair.inbox, rtr, "the Read waits for the answer to the RTR");
    let mut framer = Framer::new(false, true);
    let answer = fpdu(&mut framer, &[0xc1, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(answer, from_hex("000ec142 00000000 00000000 00000000 6975d6ca"));
    d.pair.send(&answer);
    d.pair.until(20_000, |_| false);
    assert_eq!(d.pair.inbox[rtr.len()..][12..16], [0, 0, 0, 2]);
}

// Proves MPA2-065, MPA2-007, MPA2-011: ORD is lowered to the peer's IRD without an error, and is never
// exceeded. A Read that has to wait also delays the requests behind it.
#[test]
fn the_peers_ird_bounds_our_reads() {
    let param = ConnParam { initiator_depth: 16, ..client_server() };
    let mut d = Initiator::answered(&param, &reply(0x50, 2, &[0, 2, 0, 1]));
    let _event = told!(d.event(), Established { ord: 2, .. });
    let read = SendOp::Read { remote: RemoteAddr { addr: 0, rkey: 1 } };
    for wr_id in 0..3 {
        d.qp.post_send(&SendRequest::empty(wr_id, read)).unwrap();
    }
    d.qp.post_send(&send(3)).unwrap();
    d.pair.until(50_000, |_| false);
    assert_eq!(d.pair.inbox.len(), 2 * 52, "two Reads");
    let mut framer = Framer::new(false, true);
    let answer = fpdu(&mut framer, &[0xc1, 0x42, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    d.pair.send(&answer);
    d.pair.until(50_000, |_| false);
    assert_eq!(d.pair.inbox.len(), 3 * 52 + 24, "the third, and what waited behind it");
    assert_eq!(d.pair.inbox[2 * 52..][..4], [0, 0x2e, 0x41, 0x41]);
    assert_eq!(d.qp.error(), None);
}

// Proves MPA2-042, MPA2-043, MPA2-044, MPA2-066, MPA2-067, MPA2-087, MPA2-088, MPA2-108, MPA2-117, MPA2-145:
// if the initiator cannot meet the terms of a Reply, it sends a Terminate in place of the RTR, and then a
// FIN.
#[test]
fn terms_that_cannot_be_met_are_terminated() {
    let only_write = ConnParam { rtr: RtrKinds::WRITE, ..ConnParam::default() };
    for (param, answer, code, tail) in [
        (client_server(), [0, 1, 0, 200], 6, "20060000 6540fb1b"),
        (ConnParam::default(), [0x80, 1, 0x80, 200], 6, "20060000 6540fb1b"),
        (only_write, [0x80, 1, 0x40, 1], 7, "20070000 1bd2babe"),
        (ConnParam::default(), [0, 1, 0, 1], 7, "20070000 1bd2babe"),
        (client_server(), [0x80, 1, 0x80, 1], 7, "20070000 1bd2babe"),
    ] {
        let mut d = Initiator::answered(&param, &reply(0x50, 2, &answer));
        assert!(d.pair.until(100_000, |pair| pair.peer_closed), "no FIN");
        assert_eq!(d.pair.inbox, from_hex(&format!("{TERMINATE} {tail}")));
        d.closes();
        let event = d.event();
        let CmEventKind::ConnectError { error, peer } = event.kind else { panic!("{event:?}") };
        assert_eq!((error, error.mpa_code()), (stream_error(code), Some(code)));
        assert_eq!(peer, Some(Enhanced::decode(answer)));
        assert_eq!(d.qp.terminate().unwrap().origin, TerminateOrigin::Sent);
    }
}

// Proves MPA2-069, MPA2-089: with larger depths, the user's connect succeeds with the Reply for which the
// previous test sends code 6. Without RTR, it succeeds with a Reply for which that test sends code 7.
#[test]
fn another_try_with_other_terms_is_the_users() {
    let more = ConnParam { responder_resources: 200, ..client_server() };
    let mut d = Initiator::answered(&more, &reply(0x50, 2, &[0, 1, 0, 200]));
    let _event = told!(d.event(), Established { ird: 200, .. });
    let mut d = Initiator::answered(&client_server(), &reply(0x50, 2, &[0, 1, 0, 1]));
    d.established();
    d.qp.post_send(&send(1)).unwrap();
    assert!(d.pair.until(100_000, |pair| pair.inbox.len() == 24), "{:?}", d.pair.inbox);
}

// Proves MPA-151, MPA-189, MPA-196, MPA-205, MPA-227, MPA-228, MPA-242, MPA-301, MPA2-128, MPA2-129: code 4
// ends TCP at once, without another byte, and the user receives the code.
#[test]
fn an_invalid_reply_ends_the_connection() {
    let one = ConnParam { mpa_revision: 1, ..ConnParam::default() };
    let strict = ConnParam { tolerate_early_fpdus: false, ..client_server() };
    let mut wrong_case = reply(0x50, 2, &[0; 4]);
    wrong_case[11] = b'f';
    let behind = [reply(0x50, 2, &[0, 1, 0, 1]), vec![0]].concat();
    for (param, answer) in [
        (client_server(), frame("Req", 0x50, 2, &[0; 4])),
        (client_server(), wrong_case),
        (client_server(), b"HTTP/1.1 400 Bad Request".to_vec()),
        (client_server(), reply(0x50, 3, &[0; 4])),
        (client_server(), reply(0x40, 0, &[])),
        (client_server(), reply(0x50, 2, &[0; 600])),
        (client_server(), reply(0x10, 2, &[0; 3])),
        (one.clone(), reply(0x40, 2, &[])),
        (one, reply(0x50, 2, &[0; 4])),
        (ConnParam::default(), reply(0x40, 1, &[])),
        (strict, behind),
    ] {
        let mut d = Initiator::answered(&param, &answer);
        assert!(d.pair.until(100_000, |pair| pair.closed.is_some()), "{answer:02x?}");
        assert_eq!(d.pair.inbox.len(), 0);
        let error = connect_error(d.event());
        assert!(matches!(error, ConnectionError::Startup(_)), "{error:?}");
        assert_eq!(error.mpa_code(), Some(4));
    }
}

// Proves MPA2-068, MPA2-120: a reject contains private data and the depths that the peer would need.
#[test]
fn a_reject_brings_depths() {
    let mut d = Initiator::answered(&client_server(), &reply(0x70, 2, &[0, 1, 0, 8, b'n', b'o']));
    let event = d.event();
    let CmEventKind::Rejected { private_data, peer } = event.kind else { panic!("{event:?}") };
    assert_eq!(&private_data[..], b"no");
    assert_eq!(peer.map(|peer| peer.depths), Some(Depths { ird: 1, ord: 8 }));
    // The connection had no error, so our side closes with a FIN.
    assert!(d.pair.until(100_000, |pair| pair.peer_closed));
    assert_eq!((d.pair.inbox.len(), d.pair.closed), (0, None));
}

// Proves MPA-206, MPA-311: one timeout applies to the whole Reply, whether no byte or all bytes but the last
// arrive.
#[test]
fn a_reply_that_stalls_is_given_up() {
    let param = ConnParam { timeout: Duration::from_secs(2), ..client_server() };
    let whole = reply(0x50, 2, &[0, 1, 0, 1]);
    for begun in [0, 19, whole.len() - 1] {
        let mut d = Initiator::new(&param);
        let start = d.pair.now_us;
        d.pair.until(1_500_000, |_| false);
        d.pair.send(&whole[..begun]);
        let error = connect_error(d.event());
        assert_eq!(error, ConnectionError::StartupTimeout);
        let after = d.pair.now_us - start;
        assert!((1_900_000..2_100_000).contains(&after), "{after} us");
        assert!(d.pair.until(10_000, |pair| pair.closed.is_some()));
    }
}

// Proves MPA2-105: without the option `fallback`, the user receives the end of TCP as an error.
#[test]
fn a_close_without_a_reply_is_told() {
    for resets in [false, true] {
        let mut d = Initiator::new(&ConnParam::default());
        if resets {
            d.pair.abort();
        } else {
            d.pair.close();
        }
        let error = connect_error(d.event());
        assert_eq!(error.mpa_code(), Some(1), "{error}");
        d.pair.until(1_000_000, |_| false);
        assert_eq!(d.pair.accepted, 1);
    }
}

// Proves MPA-037, MPA2-106, MPA2-120, MPA2-143, MPA2-158: the initiator makes one more connection, without
// the enhanced mode, and the user sees which connection was established.
#[test]
fn a_peer_without_revision_2_is_asked_again() {
    let param = ConnParam { fallback: true, ..ConnParam::default() }.with_private_data(b"hello").unwrap();
    for resets in [false, true] {
        for accepts in [false, true] {
            let mut d = Initiator::new(&param);
            assert_eq!(d.pair.inbox[16..20], [0x50, 2, 0, 9]);
            if resets {
                d.pair.abort();
            } else {
                d.pair.close();
            }
            assert!(
                d.pair.until(1_000_000, |pair| pair.accepted == 2 && pair.inbox.len() >= 25),
                "no second try"
            );
            assert_eq!(d.pair.inbox[16..], [0x40, 1, 0, 5, b'h', b'e', b'l', b'l', b'o']);
            d.pair.inbox.clear();
            if accepts {
                d.pair.send(&reply(0x40, 1, b"you"));
                let event = d.event();
                let CmEventKind::Established { private_data, peer, revision, fell_back, .. } = event.kind
                else {
                    panic!("{event:?}")
                };
                assert_eq!((&private_data[..], peer, revision, fell_back), (&b"you"[..], None, 1, true));
                // The end of the first connection does not end the queue pair.
                assert_eq!((d.qp.cause(), d.qp.state()), (None, QpState::Rts));
                // There is no RTR, because the users decide who sends first.
                d.pair.until(20_000, |_| false);
                assert_eq!(d.pair.inbox.len(), 0);
            } else {
                d.pair.abort();
                told!(d.event(), ConnectError { .. });
                assert!(d.pair.next_event(&d.channel, 30_000_000).is_none(), "told once");
                assert_eq!(d.pair.accepted, 2);
            }
        }
    }
}

/// One timeout applies to both attempts together.
#[test]
fn a_second_try_has_the_time_that_the_first_has_left() {
    let mut d = Initiator::new(&ConnParam {
        fallback: true,
        timeout: Duration::from_secs(4),
        ..ConnParam::default()
    });
    let start_us = d.pair.now_us;
    d.pair.until(3_000_000, |_| false);
    d.pair.close();
    let error = connect_error(d.event());
    assert_eq!((error, d.pair.accepted), (ConnectionError::StartupTimeout, 2));
    let took_us = d.pair.now_us - start_us;
    assert!((3_900_000..4_100_000).contains(&took_us), "{took_us} us");
}

// Proves MPA-154, MPA-155, MPA-199, MPA-310: if the Reply asks for markers, the engine sends them from the
// first byte on.
#[test]
fn markers_begin_with_the_first_byte_of_full_operation() {
    for (flags, start) in [(0x50, "00124143"), (0xd0, "00000000 00124143")] {
        let mut d = Initiator::answered(&client_server(), &reply(flags, 2, &[0, 1, 0, 1]));
        d.established();
        d.qp.post_send(&send(1)).unwrap();
        d.pair.until(50_000, |_| false);
        let start = from_hex(start);
        assert_eq!(d.pair.inbox[..start.len()], start);
        let mut framer = Framer::new(flags & 0x80 != 0, true);
        let ulpdu = from_hex("4143 00000000 00000000 00000001 00000000");
        assert_eq!(d.pair.inbox, fpdu(&mut framer, &ulpdu));
    }
}

// Proves MPA-158, MPA-159, MPA-160, MPA-230: CRCs are used unless neither startup frame asks for them.
// Without CRCs, the CRC field is ignored.
#[test]
fn crcs_are_used_if_either_asks() {
    for (ours, theirs) in [(false, false), (true, false), (false, true), (true, true)] {
        let pair = Testbed::new().configure(|config| config.crc = ours).peer();
        let mut d = Initiator::on(pair, &client_server());
        assert_eq!(d.pair.inbox[16] & 0x40 != 0, ours);
        d.pair.inbox.clear();
        d.pair.send(&reply(if theirs { 0x50 } else { 0x10 }, 2, &[0, 1, 0, 1]));
        d.established();
        d.qp.post_send(&send(1)).unwrap();
        d.pair.until(50_000, |_| false);
        let mut framer = Framer::new(false, true);
        let good = fpdu(&mut framer, &from_hex("4143 00000000 00000000 00000001 00000000"));
        let used = ours || theirs;
        assert_eq!(d.pair.inbox[..20], good[..20]);
        assert_eq!(d.pair.inbox[20..] == good[20..], used, "{:02x?}", d.pair.inbox);
        // The peer sends an empty Write with a wrong CRC field.
        let mut framer = Framer::new(false, true);
        let mut bad = fpdu(&mut framer, &[0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bad[16..].fill(0xab);
        d.pair.send(&bad);
        d.pair.until(50_000, |_| false);
        let code = d.qp.error().map(|error| (error.layer, error.etype, error.code));
        assert_eq!(code, used.then_some((2, 0, 2)));
    }
}

// Proves MPA-037, MPA-186, MPA-188, MPA-192, MPA2-058, MPA2-094: the depths are settled, and FPDUs are sent
// and read, only when the Reply is complete. The user receives the depths of the Reply unchanged.
#[test]
fn nothing_leaves_before_the_whole_reply() {
    // Virtual time advances a lot between the bytes, so the timeout is long.
    let param = ConnParam { timeout: Duration::from_secs(3600), ..ConnParam::default() };
    let mut d = Initiator::new(&param);
    d.pair.inbox.clear();
    let whole = reply(0x50, 2, &[0x80, 3, 0x80, 5, b'x']);
    for byte in &whole[..whole.len() - 1] {
        d.pair.send(&[*byte]);
        d.pair.until(1_000, |_| false);
        let event = d.channel.poll();
        assert!(d.pair.inbox.is_empty() && event.is_none(), "{event:?}");
    }
    d.pair.send(&whole[whole.len() - 1..]);
    let event = d.event();
    let CmEventKind::Established { ord: 3, ird: 128, revision: 2, peer, .. } = event.kind else {
        panic!("{event:?}")
    };
    assert_eq!(peer, Some(Enhanced::decode([0x80, 3, 0x80, 5])));
    d.pair.until(10_000, |_| false);
    assert_eq!(d.pair.inbox, from_hex(WRITE_RTR));
    // The next byte belongs to an FPDU, even if the FPDU is incomplete.
    let (begun, rest) = (from_hex(SEND_RTR)[..7].to_vec(), from_hex(SEND_RTR)[7..].to_vec());
    d.qp.post_recv(&RecvRequest { wr_id: 7, sg_list: Default::default() }).unwrap();
    for (bytes, received) in [(begun, None), (rest, Some(7))] {
        d.pair.send(&bytes);
        d.pair.until(10_000, |_| false);
        assert_eq!(d.cq.poll_one().map(|wc| wc.wr_id), received);
    }
}

// Proves MPA2-146, MPA2-151: FPDUs that a responder sends too early are accepted behind a Reply without the
// peer-to-peer model, even in the segment of the Reply.
#[test]
fn early_fpdus_are_borne_where_it_is_allowed() {
    let mut framer = Framer::new(false, true);
    let early = fpdu(&mut framer, &[0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut d =
        Initiator::answered(&client_server(), &[reply(0x50, 2, &[0, 1, 0, 1]), early.clone()].concat());
    d.established();
    assert_eq!((d.qp.error(), d.pair.engine.counters().rx_fpdus), (None, 1));
    // If an RTR has to be sent first, an early FPDU is refused.
    let mut d =
        Initiator::answered(&ConnParam::default(), &[reply(0x50, 2, &[0x80, 1, 0x80, 1]), early].concat());
    let error = connect_error(d.event());
    assert_eq!(error, ConnectionError::Startup(StartupFault::EarlyBytes));
}

// Proves SEC-057, MPA2-109: if any byte of a Reply is changed, the attempt ends, or the connection stays
// within our own limits.
#[test]
fn a_reply_that_was_altered_is_harmless() {
    let param = ConnParam { responder_resources: 8, initiator_depth: 8, ..ConnParam::default() };
    let whole = reply(0x50, 2, &[0x80, 4, 0xc0, 4, b'h', b'i']);
    let (mut established, mut ended) = (0, 0);
    for at in 0..whole.len() {
        for change in [0x01, 0x10, 0x80, 0xff] {
            let mut altered = whole.clone();
            altered[at] ^= change;
            let mut d = Initiator::answered(&param, &altered);
            d.closes_or_not();
            match d.event().kind {
                CmEventKind::Established { ird, ord, private_data, .. } => {
                    assert!(ird <= 128 && ord <= 8 && private_data.len() <= 2, "{at}: {change:#x}");
                    established += 1;
                }
                CmEventKind::Rejected { .. } => ended += 1,
                CmEventKind::ConnectError { error, .. } => {
                    let code = error.mpa_code();
                    assert!(code.is_none() || matches!(code, Some(4 | 6 | 7)), "{at}: {change:#x}: {error}");
                    ended += 1;
                }
                other => panic!("{at}: {change:#x}: {other:?}"),
            }
        }
    }
    assert!(established > 10 && ended > 60, "{established} {ended}");
}

impl Initiator {
    fn closes_or_not(&mut self) {
        if self.pair.peer_closed && self.pair.closed.is_none() {
            self.pair.close();
        }
    }
}

// Proves MPA2-095: a local error without a code of its own is reported to the peer as code 5 before the
// connection ends. In this test, no buffer is left for the bytes of an incomplete FPDU.
#[test]
fn a_local_error_is_told_before_the_end() {
    let pair = Testbed::new().configure(|config| config.held_buffers = Some(1)).peer();
    let mut d = Initiator::on(pair, &client_server());
    d.pair.inbox.clear();
    d.pair.send(&reply(0x50, 2, &[0, 1, 0, 1]));
    d.established();
    let mut bytes = vec![0x80, 0];
    bytes.extend([0; 2600]);
    for part in bytes.chunks(1301) {
        d.pair.send(part);
        d.pair.until(1_000, |_| false);
    }
    assert!(d.pair.until(100_000, |pair| pair.peer_closed), "no FIN");
    assert_eq!(d.pair.inbox, from_hex(&format!("{TERMINATE} 20050000 1680d5f1")));
    d.closes();
    let event = d.event();
    let error = stream_error(5);
    assert!(
        matches!(event.kind, CmEventKind::Disconnected { error: Some(e), .. } if e == error),
        "{event:?}"
    );
}

// Proves MPA-136, MPA-138, MPA-175, MPA2-012, MPA2-152: the Request is sent first as plain bytes in a segment
// of its own. The engine sends no other bytes than the Request, the RTR and the posted Send.
#[test]
fn startup_bytes_have_segments_of_their_own() {
    let param = ConnParam::default().with_private_data(b"hello").unwrap();
    let mut d = Initiator::new(&param);
    assert_eq!(d.pair.inbox, frame("Req", 0x50, 2, b"\x80\x80\xc0\x80hello"));
    d.pair.send(&reply(0x50, 2, &[0x80, 1, 0x80, 1]));
    d.established();
    d.qp.post_send(&send(1)).unwrap();
    d.pair.until(20_000, |_| false);
    assert_eq!(d.pair.segments[0], 29);
    assert_eq!(d.pair.segments.iter().sum::<usize>(), 29 + 20 + 24);
}

// Proves MPA-197: a user that does not accept the Reply's private data closes the connection. MPA takes no
// part in this close.
#[test]
fn the_user_may_refuse_what_the_reply_says() {
    let mut d = Initiator::answered(&client_server(), &reply(0x50, 2, &[0, 1, 0, 1, b'?']));
    let event = d.event();
    assert!(matches!(&event.kind, CmEventKind::Established { private_data, .. } if **private_data == *b"?"));
    assert!(!d.pair.is_over());
    d.id.disconnect();
    assert!(d.pair.until(100_000, |pair| pair.peer_closed));
    assert_eq!(d.pair.inbox.len(), 0, "not one FPDU");
    d.closes();
    assert!(matches!(d.event().kind, CmEventKind::Disconnected { error: None, .. }));
}

// Proves MPA-057: the receiver decides whether the peer has to send markers. The M bit of the receiver's
// Request or Reply announces this setting.
#[test]
fn the_markers_bit_is_the_receivers_setting() {
    for markers in [false, true] {
        let param = ConnParam { markers, ..client_server() };
        let d = Initiator::new(&param);
        assert_eq!(d.pair.inbox[16] & 0x80 != 0, markers);
        let mut d = Responder::new();
        let id = d.connect_request(&frame("Req", 0x50, 2, &[0, 8, 0, 8])).id;
        let _qp = d.accept(&id, &param);
        assert_eq!(d.pair.inbox[16] & 0x80 != 0, markers);
    }
}

/// The TCP segments that pass a port, in order. For each segment: whether our side sent it, its flags, and
/// whether it has a payload.
type Passed = Arc<Mutex<Vec<(bool, u8, bool)>>>;

struct Watch(Passed);

impl Watch {
    fn note(&self, ours: bool, frames: &[Mbuf]) {
        for frame in frames {
            let head = frame.head();
            if head.get(12..14) != Some(&[8, 0]) || head[23] != 6 {
                continue;
            }
            let tcp = 14 + 4 * usize::from(head[14] & 15);
            let headers = tcp - 14 + 4 * usize::from(head[tcp + 12] >> 4);
            let total = usize::from(u16::from_be_bytes([head[16], head[17]]));
            self.0.lock().unwrap().push((ours, head[tcp + 13] & 0x17, total > headers));
        }
    }
}

impl Hooks for Watch {
    fn rx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        let before = frames.len();
        let count = port.rx_burst(now_us, frames);
        self.note(false, &frames[before..]);
        count
    }

    fn tx_burst(&mut self, port: &mut dyn Port, now_us: u64, frames: &mut Burst) -> usize {
        self.note(true, frames);
        port.tx_burst(now_us, frames)
    }
}

// Proves RDMAP-296: the first byte of MPA follows the TCP handshake. No SYN carries data, although the
// Request is known when the user connects.
#[test]
fn mpa_begins_behind_the_handshake() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let passed = Passed::default();
    let raw = Testbed::new().hook_a(Watch(Arc::clone(&passed))).peer();
    let d = Initiator::on(raw, &client_server());
    assert!(d.pair.inbox.starts_with(b"MPA ID Req Frame"));
    let passed = passed.lock().unwrap();
    let first = passed.iter().position(|(_, _, payload)| *payload).unwrap();
    assert!(passed[first].0, "the Request");
    let before: Vec<_> = passed[..first].iter().map(|(ours, flags, _)| (*ours, *flags)).collect();
    assert_eq!(before[..2], [(true, SYN), (false, SYN | ACK)], "{before:?}");
    assert!(before[2..].iter().all(|it| *it == (true, ACK)), "{before:?}");
}

/// After a Reply that rejects, the identifier no longer belongs to the connection. A call on the identifier
/// does not disturb the close.
#[test]
fn an_identifier_is_over_when_its_connection_is_rejected() {
    let mut d = Initiator::answered(&client_server(), &reply(0x70, 2, &[0, 8, 0, 8]));
    told!(d.event(), Rejected { .. });
    d.id.abort();
    d.pair.until(100_000, |_| false);
    assert_eq!((d.pair.peer_closed, d.pair.closed), (true, None));
}
