//! The rights that a queue pair gives to its peer (`QueuePair::set_remote_access`).

use iwarp::memory::Access;
use iwarp::verbs::{AtomicOp, MemoryRegion, RecvRequest, SendOp, SendRequest, VerbsError, WcStatus};

use crate::common::{Connected, Pair, read_bytes, remote_addr};

const RIGHTS: [Access; 3] = [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC];

/// Returns the operations of the peer, each with the right that the operation needs.
fn operations(target: &MemoryRegion) -> [(SendOp, Access); 4] {
    let remote = remote_addr(target, 0);
    let op = AtomicOp::FetchAdd { add: 1, mask: 0 };
    [
        (SendOp::Write { remote }, Access::REMOTE_WRITE),
        (SendOp::WriteImmediate { remote, data: [1; 8] }, Access::REMOTE_WRITE),
        (SendOp::Read { remote }, Access::REMOTE_READ),
        (SendOp::Atomic { remote, op }, Access::REMOTE_ATOMIC),
    ]
}

/// Returns a connection, and a region of each host with all rights.
fn connected() -> (Pair, Connected, [MemoryRegion; 2]) {
    let (mut pair, c) = Pair::connected();
    pair.run_us(1000);
    let all = Access::LOCAL_WRITE | Access::REMOTE;
    let regions = [&pair.a, &pair.b].map(|host| host.pd.reg_mr(64, all).unwrap());
    (pair, c, regions)
}

/// Posts `op` and returns its status. If `op` completes before the peer refuses it, returns the status of the
/// next request, which fails with the error.
fn status(pair: &mut Pair, c: &Connected, [local, target]: &[MemoryRegion; 2], op: SendOp) -> WcStatus {
    for wr_id in [8, 9] {
        c.qp_b.post_recv(&RecvRequest::new(wr_id, target.sge(16, 8))).unwrap();
    }
    let is_answered = matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. });
    c.qp_a.post_send(&SendRequest::new(1, op, local.sge(8, 8))).unwrap();
    let first = pair.wc_a().status;
    if is_answered || first != WcStatus::Success {
        return first;
    }
    // A Write is sent before the peer refuses it, so the next request fails with the error.
    pair.run_us(1000);
    match c.qp_a.post_send(&SendRequest::new(2, SendOp::Send, local.sge(8, 0))) {
        Ok(()) => pair.wc_a().status,
        Err(VerbsError::InvalidState(_)) => WcStatus::WrFlushError,
        Err(error) => panic!("{error}"),
    }
}

/// Each operation needs exactly its own right. If the right is missing, the memory does not change, and the
/// peer's Terminate reports an error of type 1, as for an STag without the right.
#[test]
fn each_operation_needs_its_right() {
    for number in 0..4 {
        for right in RIGHTS {
            for granted in [right, Access::REMOTE - right] {
                let (mut pair, c, regions) = connected();
                c.qp_b.set_remote_access(granted).unwrap();
                assert_eq!(c.qp_b.query().remote_access, granted);
                let before = read_bytes(&regions[1], 0, 8);
                let (op, needed) = operations(&regions[1])[number];
                let status = status(&mut pair, &c, &regions, op);
                let allowed = granted.contains(needed);
                assert_eq!(status == WcStatus::Success, allowed, "{number} with {granted:?}: {status:?}");
                if !allowed {
                    assert_eq!(read_bytes(&regions[1], 0, 8), before);
                    let error = c.qp_a.error().unwrap();
                    assert!(error.from_peer && error.etype == 1, "{error:?}");
                }
            }
        }
    }
}

/// A Write or Read of no bytes accesses no memory and needs no right.
#[test]
fn without_bytes_no_right_is_needed() {
    for op in [0, 2] {
        let (mut pair, c, regions) = connected();
        c.qp_b.set_remote_access(Access::empty()).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(9, regions[1].sge(16, 8))).unwrap();
        let (op, _) = operations(&regions[1])[op];
        c.qp_a.post_send(&SendRequest::new(1, op, regions[0].sge(8, 0))).unwrap();
        c.qp_a.post_send(&SendRequest::new(2, SendOp::Send, regions[0].sge(8, 0))).unwrap();
        let done = [pair.wc_a(), pair.wc_a(), pair.wc_b()].map(|wc| (wc.wr_id, wc.status));
        assert_eq!(done, [1, 2, 9].map(|wr_id| (wr_id, WcStatus::Success)), "{op:?}");
        pair.run_us(1000);
        assert_eq!((c.qp_a.error(), c.qp_b.error()), (None, None));
    }
}

/// Rights can be removed and restored while the queue pair is connected. A Write succeeds only while its
/// right is granted.
#[test]
fn rights_may_change_while_connected() {
    let (mut pair, c, regions) = connected();
    let (write, _) = operations(&regions[1])[0];
    c.qp_b.set_remote_access(Access::empty()).unwrap();
    c.qp_b.set_remote_access(Access::REMOTE_WRITE).unwrap();
    assert_eq!(status(&mut pair, &c, &regions, write), WcStatus::Success);
    c.qp_b.set_remote_access(Access::REMOTE_READ).unwrap();
    assert_ne!(status(&mut pair, &c, &regions, write), WcStatus::Success);
}

#[test]
fn a_local_right_is_refused() {
    let (_pair, c, _) = connected();
    for access in [Access::LOCAL_WRITE, Access::REMOTE | Access::MW_BIND] {
        assert!(matches!(c.qp_a.set_remote_access(access), Err(VerbsError::Invalid(_))));
    }
    assert_eq!(c.qp_a.query().remote_access, Access::REMOTE);
}
