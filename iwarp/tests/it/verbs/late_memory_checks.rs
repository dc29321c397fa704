//! Requests with invalid local memory, in a context that accepts such requests
//! (`ContextConfig::late_memory_checks`).

use crate::common::{ALL, Connected, Pair, Testbed, read_bytes, remote_addr};
use iwarp::memory::Access;
use iwarp::verbs::{
    AtomicOp, ConnParam, QpInit, QpState, RecvRequest, SendFlags, SendOp, SendRequest, Sge, SrqInit, WcStatus,
};

fn connected() -> (Pair, Connected) {
    let mut pair = Testbed::new().late_memory_checks().hosts();
    let c = pair.connect(&ConnParam::default());
    (pair, c)
}

/// Returns `wr_id` and status of the next `count` completions of `a`.
fn completions(pair: &mut Pair, count: usize) -> Vec<(u64, WcStatus)> {
    (0..count).map(|_| pair.wc_a()).map(|wc| (wc.wr_id, wc.status)).collect()
}

/// A request of any of five kinds fails when the engine executes it. The request before it succeeds, and the
/// request after it is flushed.
#[test]
fn a_send_request_fails_in_its_turn() {
    let add = AtomicOp::FetchAdd { add: 1, mask: 0 };
    for kind in 0..5 {
        let mut pair = Testbed::new().late_memory_checks().hosts();
        let (local, remote) = pair.regions(64);
        let read_only = pair.a.pd.reg_mr(64, Access::REMOTE_READ).unwrap();
        let to = remote_addr(&remote, 0);
        let op = match kind {
            0 => SendOp::Write { remote: to },
            1 => SendOp::Send,
            2 => SendOp::Read { remote: to },
            3 => SendOp::Atomic { remote: to, op: add },
            _ => SendOp::SendInvalidate { rkey: remote.rkey() },
        };
        // The cases are an unknown key, memory beyond the region, and memory without the right to write.
        let good = local.sge(0, 8);
        let mut wrong = vec![Sge { lkey: good.lkey ^ 1, ..good }, Sge { addr: good.addr + 60, ..good }];
        if matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. }) {
            wrong.push(read_only.sge(0, 8));
        }
        for sge in wrong {
            let c = pair.connect(&ConnParam::default());
            let before = SendRequest::new(1, SendOp::Write { remote: to }, good);
            let behind = SendRequest::new(3, SendOp::Write { remote: to }, good);
            let faulty = SendRequest::new(2, op, sge).flags(SendFlags::empty());
            c.qp_a.post_send_list(&[before, faulty, behind]).unwrap();
            assert_eq!(
                completions(&mut pair, 3),
                [(1, WcStatus::Success), (2, WcStatus::LocalProtectionError), (3, WcStatus::WrFlushError)],
                "{op:?}"
            );
            pair.until(|_| (c.qp_a.state() == QpState::Error).then_some(()));
            // Removes the last events, so that the next connection does not find them.
            while pair.a.channel.poll().is_some() || pair.b.channel.poll().is_some() {}
        }
    }
}

/// A message whose receive request has invalid memory fails, with the queue pair's own queue and with a
/// shared receive queue.
#[test]
fn a_receive_request_fails_with_its_message() {
    for is_shared in [false, true] {
        let mut pair = Testbed::new().late_memory_checks().hosts();
        let srq = pair.a.pd.create_srq(&SrqInit::default()).unwrap();
        let init = QpInit { srq: is_shared.then_some(&srq), ..QpInit::new(&pair.a.cq) };
        let (qp_a, qp_b) = (pair.a.pd.create_qp(&init).unwrap(), pair.b.qp());
        let (local, remote) = pair.regions(64);
        for (wr_id, sge) in [(1, local.sge(0, 8)), (2, Sge { lkey: 5, ..local.sge(8, 8) })] {
            let request = RecvRequest::new(wr_id, sge);
            if is_shared { srq.post_recv(&request) } else { qp_a.post_recv(&request) }.unwrap();
        }
        let listener = pair.listen();
        let c = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
        listener.disconnect();
        for wr_id in [1, 2] {
            c.qp_b.post_send(&SendRequest::new(wr_id, SendOp::Send, remote.sge(0, 8))).unwrap();
        }
        assert_eq!(
            completions(&mut pair, 2),
            [(1, WcStatus::Success), (2, WcStatus::LocalProtectionError)],
            "shared: {is_shared}"
        );
    }
}

/// The length of an atomic's buffer is also checked late.
#[test]
fn an_atomic_of_a_wrong_length_fails_in_its_turn() {
    for length in [4, 9] {
        let (mut pair, c) = connected();
        let (local, remote) = pair.regions(64);
        let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
        let atomic = SendOp::Atomic { remote: remote_addr(&remote, 0), op };
        c.qp_a.post_send(&SendRequest::new(1, atomic, local.sge(0, 8))).unwrap();
        assert_eq!(completions(&mut pair, 1), [(1, WcStatus::Success)]);
        c.qp_a.post_send(&SendRequest::new(2, atomic, local.sge(0, length))).unwrap();
        assert_eq!(completions(&mut pair, 1), [(2, WcStatus::LocalLengthError)], "{length} bytes");
        assert_eq!(read_bytes(&remote, 0, 8), 1_u64.to_ne_bytes(), "the word was changed once");
    }
}

/// In a context without the option, a request with invalid local memory is refused at the post.
#[test]
fn other_mistakes_are_refused_as_ever() {
    let plain = Testbed::new().hosts();
    let (qp, region) = (plain.a.qp(), plain.a.pd.reg_mr(64, ALL).unwrap());
    let wrong = Sge { lkey: 5, ..region.sge(0, 8) };
    assert!(qp.post_recv(&RecvRequest::new(1, wrong)).is_err());
}
