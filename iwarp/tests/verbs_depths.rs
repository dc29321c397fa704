//! IRD and ORD at their ends: none at all, and one.

mod common;

use common::Pair;
use dp::link::LinkConfig;
use iwarp::memory::Access;
use iwarp::verbs::{ConnParam, RemoteAddr, SendOp, SendRequest, VerbsError, WcStatus};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

/// Without Reads in either direction the rest works, and a Read is refused when it is posted.
#[test]
fn depths_of_zero_leave_sends_and_writes() {
    for peer_to_peer in [false, true] {
        let mut pair = Pair::new(&LinkConfig::default());
        let none =
            ConnParam { responder_resources: 0, initiator_depth: 0, peer_to_peer, ..ConnParam::default() };
        let c = pair.connect(&none);
        let local = pair.a.pd.reg_mr(64, ALL).unwrap();
        let remote = pair.b.pd.reg_mr(64, ALL).unwrap();
        let to = RemoteAddr { addr: remote.addr(), rkey: remote.rkey() };
        let read = SendRequest::new(1, SendOp::Read { remote: to }, local.sge(0, 8));
        assert!(matches!(c.qp_a.post_send(&read), Err(VerbsError::Invalid(_))));
        c.qp_a.post_send(&SendRequest::new(2, SendOp::Write { remote: to }, local.sge(0, 8))).unwrap();
        assert_eq!((pair.wc_a().wr_id, c.qp_a.error()), (2, None));
    }
}

/// With one slot Reads go one by one, and the slot comes back each time, in both directions at once.
#[test]
fn a_depth_of_one_is_never_exceeded_and_never_lost() {
    let mut pair = Pair::new(&LinkConfig::default());
    let one = ConnParam { responder_resources: 1, initiator_depth: 1, ..ConnParam::default() };
    let c = pair.connect(&one);
    let a = pair.a.pd.reg_mr(8192, ALL).unwrap();
    let b = pair.b.pd.reg_mr(8192, ALL).unwrap();
    for wr_id in 0..100 {
        for (qp, from, to) in [(&c.qp_a, &b, &a), (&c.qp_b, &a, &b)] {
            let remote = RemoteAddr { addr: from.addr(), rkey: from.rkey() };
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
