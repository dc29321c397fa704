//! Queue pairs that discard their completions (`ibv_destroy_qp`): their earlier completions, their later
//! completions, and the completions of other queue pairs.

use std::time::Duration;

use crate::common::Pair;
use iwarp::verbs::{
    CompletionQueue, ConnParam, Context, ContextConfig, QpInit, QpState, QueuePair, RecvRequest, SendFlags,
    SendOp, SendRequest, SrqInit, WcStatus,
};

fn post_recvs(qp: &QueuePair, count: u64) {
    for wr_id in 0..count {
        qp.post_recv(&RecvRequest { wr_id, sg_list: Default::default() }).unwrap();
    }
}

fn numbers(cq: &CompletionQueue) -> Vec<(u32, u64, WcStatus)> {
    std::iter::from_fn(|| cq.poll_one()).map(|wc| (wc.qp_num, wc.wr_id, wc.status)).collect()
}

/// Queue pairs are created and destroyed on a completion queue with space for a few completions. The queue
/// pairs end in different ways that need no connection. None of these queue pairs leaves a completion in the
/// queue. A queue pair that is kept gets all of its completions.
#[test]
fn queue_pairs_that_come_and_go_leave_nothing() {
    let context = Context::new(ContextConfig::default()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let channel = context.create_comp_channel().unwrap();
    let cq = context.create_cq(4, Some(&channel)).unwrap();
    let init = QpInit { max_send_wr: 2, max_recv_wr: 2, early_sends: true, ..QpInit::new(&cq) };
    let stays = pd.create_qp(&init).unwrap();
    cq.req_notify(false).unwrap();
    for way in 0..32 {
        let qp = pd.create_qp(&init).unwrap();
        post_recvs(&qp, 2);
        if way % 2 == 0 {
            let empty = SendRequest::empty(7, SendOp::Send).flags(SendFlags::SIGNALED);
            qp.post_send(&empty).unwrap();
        }
        if way % 4 < 2 {
            qp.discard_completions();
        }
        match way / 4 % 3 {
            0 => qp.modify(QpState::Error).unwrap(),
            1 => assert!(qp.give_up()),
            _ => {}
        }
        // The earlier completions are removed. If there were earlier completions, the queue has generated
        // their event.
        let waited = cq.query().waiting;
        qp.discard_completions();
        assert_eq!(cq.query().waiting, 0, "{way}");
        if waited > 0 {
            assert_eq!(channel.wait(Some(Duration::ZERO)).unwrap(), 1);
            cq.req_notify(false).unwrap();
        }
        // A request that is posted later leaves no completion.
        if qp.state() == QpState::Error {
            (0..10).for_each(|_| post_recvs(&qp, 2));
        }
        drop(qp);
    }
    assert_eq!(
        (cq.overflowed(), cq.query().lost, channel.wait(Some(Duration::ZERO)).unwrap()),
        (false, 0, 0)
    );
    post_recvs(&stays, 2);
    stays.modify(QpState::Error).unwrap();
    let number = stays.qp_num();
    assert_eq!(numbers(&cq), [0, 1].map(|wr_id| (number, wr_id, WcStatus::WrFlushError)));
    assert_eq!(channel.wait(Some(Duration::ZERO)).unwrap(), 1);
}

/// A connection continues while the completions of its Sends and receives are discarded from its two
/// completion queues. The entries of the shared receive queue that the connection's receives used are free
/// again. The completions of the other queue pair stay in order.
#[test]
fn a_connection_whose_completions_are_discarded_goes_on() {
    const DEPTH: usize = 4;
    let (mut pair, _listener) = Pair::listening();
    let [sends, recvs] = [(); 2].map(|()| pair.b.context.create_cq(2 * DEPTH, None).unwrap());
    let srq = pair.b.pd.create_srq(&SrqInit { max_wr: 2 * DEPTH, ..SrqInit::default() }).unwrap();
    let init = QpInit {
        send_cq: &sends,
        recv_cq: &recvs,
        srq: Some(&srq),
        max_send_wr: DEPTH,
        max_recv_wr: 2 * DEPTH,
        ..QpInit::new(&sends)
    };
    let [goes, stays] = [(); 2].map(|()| {
        let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
        pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default())
    });
    let empty = |wr_id| SendRequest::empty(wr_id, SendOp::Send).flags(SendFlags::SIGNALED);
    let mut messages = 0;
    for round in 0..6 {
        while srq.post_recv(&RecvRequest { wr_id: messages, sg_list: Default::default() }).is_ok() {
            messages += 1;
        }
        assert_eq!(srq.query().outstanding, 2 * DEPTH, "all are free, round {round}");
        for qp in [&goes.qp_a, &stays.qp_a] {
            post_recvs(qp, 2);
        }
        for from in [&goes, &stays, &goes, &stays] {
            from.qp_a.post_send(&empty(1)).unwrap();
        }
        for wr_id in 0..2 {
            goes.qp_b.post_send(&empty(wr_id)).unwrap();
            stays.qp_b.post_send(&empty(wr_id)).unwrap();
        }
        pair.run_us(10_000);
        goes.qp_b.discard_completions();
        let number = stays.qp_b.qp_num();
        assert_eq!(numbers(&sends), [0, 1].map(|wr_id| (number, wr_id, WcStatus::Success)));
        assert!(numbers(&recvs).iter().all(|wc| (wc.0, wc.2) == (number, WcStatus::Success)));
        assert_eq!((goes.qp_b.query().send_outstanding, goes.qp_b.query().recv_outstanding), (0, 0));
        while pair.a.cq.poll_one().is_some() {}
    }
    assert!(!sends.overflowed() && !recvs.overflowed());
    assert_eq!((goes.qp_b.state(), stays.qp_b.state()), (QpState::Rts, QpState::Rts));
}
