//! Streams and contexts that share nothing, and a path that loses all frames for a while.

use crate::common::raw::fpdu;
use crate::common::served::{Served, Setup};
use crate::common::{ALL, Pair, Testbed, remote_addr};
use dp::link::{LinkConfig, LinkPlan};
use iwarp::verbs::{
    ConnParam, FastOptions, MrOptions, QpInit, QpState, RecvRequest, RemoteAddr, SendOp, SendRequest,
    SrqInit, VerbsError, WcStatus,
};

// Proves SEC-045, SEC-051, SEC-103: by default, streams without common objects cannot access each other's
// memory and receive buffers, and cause no completions for each other. A stream that tries to do so is ended,
// and the other stream continues.
#[test]
fn streams_share_nothing_by_default() {
    for attack in 0..3 {
        let mut served = Served::new();
        let context = served.context().clone();
        // The victim has another domain, another completion queue and another queue pair in the same process.
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(8, None).unwrap();
        let victim = pd.create_qp(&QpInit::new(&cq)).unwrap();
        let secret = pd.reg_mr(64, ALL).unwrap();
        secret.write_at(0, &[0x77; 64]).unwrap();
        victim.post_recv(&RecvRequest::new(1, secret.sge(0, 64))).unwrap();
        let ulpdu = match attack {
            0 => {
                let mut write = vec![0xc1, 0x40];
                write.extend(secret.rkey().to_be_bytes());
                write.extend(secret.addr().to_be_bytes());
                write.extend([0xee; 8]);
                write
            }
            1 => {
                let mut read = vec![0x41, 0x41, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0];
                read.extend([0; 12]);
                read.extend(8_u32.to_be_bytes());
                read.extend(secret.rkey().to_be_bytes());
                read.extend(secret.addr().to_be_bytes());
                read
            }
            // The attacker's stream has no receive, and the message does not consume the victim's receive.
            _ => vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 2, 3],
        };
        served.pair.inbox.clear();
        let bytes = fpdu(&mut served.framer, &ulpdu);
        served.pair.send(&bytes);
        assert!(served.pair.until(1_000_000, |pair| pair.peer_closed), "{attack}: the attacker goes on");
        assert!(!served.pair.inbox.windows(4).any(|bytes| bytes == [0x77; 4]), "{attack}: disclosed");
        let mut bytes = [0; 64];
        secret.read_at(0, &mut bytes).unwrap();
        assert_eq!((bytes, victim.error(), cq.poll_one().is_none()), ([0x77; 64], None, true), "{attack}");
    }
}

// Proves SEC-025: the bytes of a stream are the same in every domain.
#[test]
fn domains_are_never_on_the_wire() {
    let said = [0, 1, 255].map(|before| {
        let pair = Testbed::new().peer();
        let others: Vec<_> = (0..before).map(|_| pair.context.alloc_pd().unwrap()).collect();
        let mut served = Setup::on(pair).ready();
        assert_eq!(served.pd.pd_num(), others.last().map_or(served.pd.pd_num(), |pd| pd.pd_num() + 1));
        let remote = RemoteAddr { addr: 0x1000, rkey: 0x77 };
        let invalidate = SendOp::SendInvalidate { rkey: 9 };
        for op in [SendOp::Write { remote }, SendOp::Send, invalidate] {
            served.qp.post_send(&SendRequest::new(1, op, served.region.sge(0, 3000))).unwrap();
        }
        served.pair.until(100_000, |_| false);
        // No receive is posted, so the last message is a Terminate.
        served.send(&[0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1]);
        assert!(served.pair.until(1_000_000, |pair| pair.peer_closed));
        assert!(served.pair.inbox.len() > 9000);
        served.pair.inbox
    });
    assert_eq!(said[0], said[1]);
    assert_eq!(said[0], said[2]);
}

/// Each context numbers its objects from the same start, so a number does not identify its context. No
/// context accepts an object of another context, and a refused call has no effect.
// Proves RDMAP-359, RDMAP-366, SEC-009, SEC-164: each context represents an owner here, as each process does
// outside this test.
#[test]
fn contexts_share_nothing() {
    let mut pair = Pair::new(&LinkConfig::default());
    let (own, foreign) = (&pair.a, &pair.b);
    let invalid = |result: Result<(), VerbsError>| matches!(result, Err(VerbsError::Invalid(_)));
    let (qp, foreign_qp) = (own.qp(), foreign.qp());
    assert_eq!((qp.qp_num(), own.pd.pd_num()), (foreign_qp.qp_num(), foreign.pd.pd_num()), "alike in number");
    let before = own.context.usage();
    let create = |init: &QpInit<'_>| own.pd.create_qp(init).map(drop);
    assert!(invalid(create(&QpInit { send_cq: &foreign.cq, ..QpInit::new(&own.cq) })));
    assert!(invalid(create(&QpInit { recv_cq: &foreign.cq, ..QpInit::new(&own.cq) })));
    let srq = foreign.pd.create_srq(&SrqInit::default()).unwrap();
    assert!(invalid(create(&QpInit { srq: Some(&srq), ..QpInit::new(&own.cq) })));
    let options = MrOptions { qp: Some(&foreign_qp), ..MrOptions::new(ALL) };
    assert!(invalid(own.pd.reg_mr_with(64, &options).map(drop)));
    let options = FastOptions { qp: Some(&foreign_qp), ..FastOptions::default() };
    assert!(invalid(own.pd.alloc_fast_mr(64, &options).map(drop)));
    let id = own.context.create_id(&own.channel);
    assert!(invalid(id.connect(&foreign_qp, foreign.address, &ConnParam::default())));
    assert_eq!(own.context.usage(), before);
    // STags of the other context's memory are invalid, in calls and in requests.
    let memory = foreign.pd.reg_mr(64, ALL).unwrap();
    let receive = RecvRequest::new(1, memory.sge(0, 8));
    assert!(matches!(qp.post_recv(&receive), Err(VerbsError::LocalProtection(_))));
    // After a queue pair was refused, the right queue pair can still be used to accept.
    let _listener = pair.listen();
    id.connect(&qp, pair.b.address, &ConnParam::default()).unwrap();
    let request = pair.event_b().id;
    assert!(invalid(request.accept(&pair.a.qp(), &ConnParam::default())));
    request.accept(&foreign_qp, &ConnParam::default()).unwrap();
    pair.until(|_| (qp.state() == QpState::Rts && foreign_qp.state() == QpState::Rts).then_some(()));
}

// Proves SEC-080, SEC-079, DDP-248, MPA-258, RDMAP-382: a path loses all frames of one direction for more
// than five seconds. This is longer than a key exchange takes, which a security association below TCP may
// need. The stream does not end, because lost segments are retransmitted.
#[test]
fn a_silent_path_ends_no_stream() {
    // After a tail loss probe, the intervals between retransmissions grow from about 50 ms. The loss of 18
    // frames in succession lasts for more than five seconds.
    let lost: Vec<u64> = (20..38).collect();
    let plan = LinkPlan { drop_exactly: lost, ..LinkPlan::default() };
    let mut pair = Pair::new(&LinkConfig { a_to_b: plan, ..LinkConfig::default() });
    let c = pair.connect(&ConnParam::default());
    let (from, to) = (pair.a.pd.reg_mr(64, ALL).unwrap(), pair.b.pd.reg_mr(64, ALL).unwrap());
    let remote = remote_addr(&to, 0);
    let mut longest = 0;
    for wr_id in 0..30 {
        let start = pair.now_us;
        c.qp_a.post_send(&SendRequest::new(wr_id, SendOp::Read { remote }, from.sge(0, 8))).unwrap();
        let wc = pair.wc_a();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        longest = longest.max(pair.now_us - start);
    }
    assert!(longest > 5_000_000, "the path was silent for {longest} us only");
    assert_eq!((c.qp_a.error(), c.qp_b.error()), (None, None));
}
