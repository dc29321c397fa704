//! Small values of IRD and ORD, and the slots for Reads that they grant.

use crate::common::raw::{EMPTY_WRITE, fpdu, request};
use crate::common::served::Served;
use crate::common::ulpdu::read_request;
use crate::common::{ALL, Pair, remote_addr};
use dp::link::LinkConfig;
use iwarp::mpa::Framer;
use iwarp::verbs::{ConnParam, QpInit, SendOp, SendRequest, VerbsError, WcStatus};

/// Without Reads in either direction, a Write works, and a Read is refused when it is posted.
#[test]
fn depths_of_zero_leave_sends_and_writes() {
    for peer_to_peer in [false, true] {
        let mut pair = Pair::new(&LinkConfig::default());
        let none =
            ConnParam { responder_resources: 0, initiator_depth: 0, peer_to_peer, ..ConnParam::default() };
        let c = pair.connect(&none);
        let (local, remote) = pair.regions(64);
        let to = remote_addr(&remote, 0);
        let read = SendRequest::new(1, SendOp::Read { remote: to }, local.sge(0, 8));
        assert!(matches!(c.qp_a.post_send(&read), Err(VerbsError::Invalid(_))));
        c.qp_a.post_send(&SendRequest::new(2, SendOp::Write { remote: to }, local.sge(0, 8))).unwrap();
        assert_eq!((pair.wc_a().wr_id, c.qp_a.error()), (2, None));
    }
}

/// With one slot, Reads are served one at a time, in both directions at once. After each Read, the slot is
/// free again.
#[test]
fn a_depth_of_one_is_never_exceeded_and_never_lost() {
    let mut pair = Pair::new(&LinkConfig::default());
    let one = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
    let c = pair.connect(&one);
    let (a, b) = pair.regions(8192);
    for wr_id in 0..100 {
        for (qp, from, to) in [(&c.qp_a, &b, &a), (&c.qp_b, &a, &b)] {
            let remote = remote_addr(from, 0);
            let len = if wr_id % 3 == 0 { 0 } else { 4000 };
            qp.post_send(&SendRequest::new(wr_id, SendOp::Read { remote }, to.sge(4096, len))).unwrap();
        }
    }
    for wr_id in 0..100 {
        for wc in [pair.wc_a(), pair.wc_b()] {
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
    }
}

// Proves MPA2-006, MPA2-010, SEC-147, SEC-151: the engine serves as many Reads at a time as it has granted.
// One more Read ends only its own stream. When a Read has been answered, its slot is free again.
#[test]
fn the_peer_gets_as_many_reads_as_it_was_granted() {
    for (reads, ends) in [(2, false), (3, true)] {
        let mut served = Served::with(ConnParam { responder_resources: 2, ..ConnParam::default() });
        let region = (served.region.rkey(), served.region.addr());
        let mut msn = 0;
        for round in 0..3 {
            let mut bytes = Vec::new();
            for _ in 0..reads {
                msn += 1;
                bytes.extend(fpdu(&mut served.framer, &read(msn, region, 8)));
            }
            served.pair.inbox.clear();
            served.pair.send(&bytes);
            served.pair.until(50_000, |_| false);
            if ends {
                let told = served.qp.error().map(|error| (error.layer, error.etype, error.code));
                assert_eq!(told, Some((1, 2, 2)));
                break;
            }
            assert_eq!((served.pair.inbox.len(), served.qp.error()), (2 * 28, None), "round {round}");
        }
    }
}

// Proves SEC-148, RDMAP-370: Read Requests that wait for long Read Responses use slots of their own stream
// only. At the same time, another stream can use all of its own slots, and no others.
#[test]
fn a_stream_full_of_reads_leaves_another_its_own() {
    const LONG: u32 = 16 << 20;
    for (reads, ends) in [(2, false), (3, true)] {
        let param = ConnParam { responder_resources: 2, ..ConnParam::default() };
        let mut greedy = Served::with(param.clone());
        let long = greedy.pd.reg_mr(LONG as usize, ALL).unwrap();
        let small = (greedy.region.rkey(), greedy.region.addr());
        for msn in 1..=2 {
            greedy.send(&read(msn, (long.rkey(), long.addr()), LONG));
        }
        let qp = greedy.pd.create_qp(&QpInit::new(&greedy.cq)).unwrap();
        let Served { pair, channel, .. } = &mut greedy;
        let mut framer = Framer::new(false, true);
        pair.connect_beside();
        pair.send(&request(true));
        let id = pair.next_event(channel, 1_000_000).expect("no connect request").id;
        id.accept(&qp, &param).unwrap();
        assert!(pair.until(1_000_000, |pair| pair.inbox.len() >= 24), "no Reply");
        pair.inbox.clear();
        let mut bytes = fpdu(&mut framer, &EMPTY_WRITE);
        bytes.extend((1..=reads).flat_map(|msn| fpdu(&mut framer, &read(msn, small, 8))));
        pair.send(&bytes);
        assert!(pair.until(1_000_000, |pair| pair.peer_closed || pair.inbox.len() == 2 * 28));
        let fetched = pair.engine.counters().tx_fetched_bytes;
        assert!(fetched < u64::from(LONG), "the first answer of the other stream is complete: {fetched}");
        assert_eq!(greedy.qp.error(), None);
        let told = qp.error().map(|error| (error.layer, error.etype, error.code));
        assert_eq!(told, ends.then_some((1, 2, 2)));
    }
}

fn read(msn: u32, source: (u32, u64), size: u32) -> Vec<u8> {
    read_request(msn, (9, 0), size, source)
}
