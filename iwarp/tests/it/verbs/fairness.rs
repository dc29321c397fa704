//! A queue pair sends a limited number of bytes in one poll, so that bulk traffic of one queue pair does not
//! starve bulk traffic of other queue pairs.

use crate::common::{Pair, remote_addr};
use dp::link::LinkConfig;
use iwarp::memory::Access;
use iwarp::verbs::{ConnParam, SendOp, SendRequest, WcStatus};

/// Of 64 queue pairs that write as much as they can, the slowest transfers at least 0.8 times the bytes of
/// the fastest.
#[test]
fn sixty_four_bulk_queue_pairs_share_alike() {
    const QPS: usize = 64;
    const MESSAGE: usize = 64 << 10;
    let mut pair = Pair::new(&LinkConfig { mbufs: 65_536, ..LinkConfig::default() });
    let _listener = pair.listen();
    let source = pair.a.pd.reg_mr(MESSAGE, Access::empty()).unwrap();
    let target = pair.b.pd.reg_mr(MESSAGE, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let param = ConnParam::default();
    let all: Vec<_> = (0..QPS).map(|_| pair.connect_again(&param, &param)).collect();
    let remote = remote_addr(&target, 0);
    let write = |qp: usize| {
        let request = SendRequest::new(qp as u64, SendOp::Write { remote }, source.sge(0, MESSAGE));
        all[qp].qp_a.post_send(&request).unwrap();
    };
    for qp in 0..QPS {
        for _ in 0..16 {
            write(qp);
        }
    }
    let mut done = [0_u32; QPS];
    let enough = 100 * QPS as u32;
    while done.iter().sum::<u32>() < enough {
        let wc = pair.wc_a();
        assert_eq!(wc.status, WcStatus::Success);
        done[wc.wr_id as usize] += 1;
        write(wc.wr_id as usize);
    }
    let (slowest, fastest) = (done.iter().min().unwrap(), done.iter().max().unwrap());
    assert!(f64::from(*slowest) >= 0.8 * f64::from(*fastest), "slowest {slowest}, fastest {fastest}");
}
