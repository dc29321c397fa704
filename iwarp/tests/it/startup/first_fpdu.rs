//! What a responder does before the first FPDU of its peer arrives, and what it does with this FPDU (RFC 5044
//! section 7.1.2, RFC 6581 section 9.2).

use dp::link::LinkConfig;
use iwarp::mpa::RtrKinds;
use iwarp::verbs::{
    CmEventKind, ConnParam, ConnectionError, ListenOptions, MemoryRegion, QueuePair, RecvRequest, SendOp,
    SendRequest, WcStatus,
};

use crate::common::Testbed;
use crate::common::raw::{EMPTY_WRITE, RawPair, fpdu, peer_to_peer_request};
use crate::common::served::{Served, Setup};
use crate::common::ulpdu::{tagged, untagged};

/// The bits in IRD and ORD of a Request that offers a Send without bytes as the RTR.
const OFFER_SEND: [u8; 2] = [0xc0, 0];

/// Posts two receives of 1000 bytes each, at the beginning of the region.
fn two_receives(qp: &QueuePair, region: &MemoryRegion) {
    for n in 0..2 {
        qp.post_recv(&RecvRequest::new(n, region.sge(1000 * n as usize, 1000))).unwrap();
    }
}

fn takes_any_rtr(options: &mut ListenOptions) {
    options.responder.rtr = RtrKinds::all();
}

fn send(msn: u32, payload: &[u8]) -> Vec<u8> {
    untagged([0x41, 0x43], 0, [0, msn, 0], payload)
}

fn post_send(peer: &Served) {
    peer.post(&SendRequest::new(9, SendOp::Send, peer.region.sge(3000, 5)));
}

/// A Write with data also counts as the first FPDU, after which the responder may send.
#[test]
fn a_write_with_data_lets_the_responder_send() {
    let mut peer = Setup::default().accepted();
    post_send(&peer);
    assert!(peer.received(20_000).is_empty(), "it has to wait");
    peer.send(&tagged([0xc1, 0x40], peer.region.rkey(), peer.to(100), b"data"));
    assert_eq!(peer.received(20_000), [send(1, &[0; 5])]);
    assert_eq!(peer.bytes(100, 4), b"data");
}

/// Only the first message of the connection may be the RTR. Behind a Write, a Send of no bytes is a message
/// of the peer's user.
#[test]
fn a_send_behind_a_write_with_data_is_no_rtr() {
    let request = peer_to_peer_request(OFFER_SEND);
    let mut peer =
        Setup { request, prepare: &two_receives, listen: &takes_any_rtr, ..Setup::default() }.accepted();
    let write = tagged([0xc1, 0x40], peer.region.rkey(), peer.to(2000), b"data");
    peer.send_and_run(&[write, send(1, b""), send(2, b"hello")]);
    let done: Vec<_> = peer.done().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
    assert_eq!(done, [(0, WcStatus::Success, 0), (1, WcStatus::Success, 5)]);
}

/// The Request offers a Send as the RTR. Only a whole Send without bytes that is the first message of the
/// connection is the RTR: any other first message of queue 0 consumes a receive.
#[test]
fn only_a_whole_send_without_bytes_is_an_rtr() {
    let begins = untagged([0x01, 0x43], 0, [0, 1, 0], b"");
    for (first, len) in [
        (vec![send(1, b"x")], 1),
        (vec![begins, send(1, b"hello")], 5),
        (vec![EMPTY_WRITE.to_vec(), send(1, b"")], 0),
    ] {
        let request = peer_to_peer_request(OFFER_SEND);
        let mut peer =
            Setup { request, prepare: &two_receives, listen: &takes_any_rtr, ..Setup::default() }.accepted();
        peer.send_and_run(&first);
        peer.send_and_run(&[send(2, b"hi")]);
        let done: Vec<_> = peer.done().iter().map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect();
        assert_eq!(done, [(0, WcStatus::Success, len), (1, WcStatus::Success, 2)]);
    }
}

/// The lost segment is the RTR, which may be a Send that consumes no receive. Therefore the responder does
/// not yet know which receive belongs to a Send behind the RTR, and does not place this Send early.
#[test]
fn nothing_is_placed_before_the_rtr() {
    let (bed, control) = Testbed::with_control(&LinkConfig::default());
    let accept = ConnParam { markers: true, ..ConnParam::default() };
    let request = peer_to_peer_request(OFFER_SEND);
    let mut peer =
        Setup { request, accept, prepare: &two_receives, listen: &takes_any_rtr, ..Setup::on(bed.peer()) }
            .accepted();
    let Served { pair, framer, qp, cq, region, .. } = &mut peer;
    control.set_up(false);
    pair.offer(&fpdu(framer, &send(1, b"")));
    pair.poll();
    control.set_up(true);
    pair.offer(&fpdu(framer, &send(2, &[7; 600])));
    let is_placed = |region: &MemoryRegion| {
        let mut bytes = [0; 2000];
        region.read_at(0, &mut bytes).unwrap();
        bytes.contains(&7)
    };
    let held = |pair: &RawPair| pair.engine.counters().stack.out_of_order.held_bytes;
    assert!(pair.until(1000, |pair| held(pair) > 600), "{} bytes are held", held(pair));
    assert!(!is_placed(region), "behind the hole");
    assert!(pair.until(1_000_000, |_| !cq.is_empty()), "the RTR comes again");
    let wc = cq.poll_one().unwrap();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (0, WcStatus::Success, 600));
    let mut bytes = [0; 1000];
    region.read_at(0, &mut bytes).unwrap();
    assert_eq!((&bytes[..600], &bytes[600..]), (&[7; 600][..], &[0; 400][..]));
    assert_eq!((qp.error(), cq.poll_one().is_none()), (None, true));
}

/// If a peer ends the connection before it has allowed this side to send, the end is not graceful: the posted
/// requests were never sent.
#[test]
fn a_fin_in_place_of_the_first_fpdu_is_an_error() {
    let mut peer = Setup::default().accepted();
    post_send(&peer);
    assert!(matches!(peer.event().kind, CmEventKind::Established { ready: false, .. }));
    peer.pair.close();
    told!(peer.event(), Disconnected { error: Some(ConnectionError::PeerClosed), .. });
    assert_eq!(peer.statuses(), [(9, WcStatus::WrFlushError)]);
}
