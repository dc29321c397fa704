//! Writes after Reads and atomics of the same bytes. With InfiniBand's semantics, a Read returns the bytes
//! from before a later Write, as a responder of InfiniBand executes requests in order.

use crate::common::{ALL, Connected, Pair, Testbed, agreeing, read_bytes, remote_addr};
use iwarp::memory::Access;
use iwarp::rdmap::AtomicOp;
use iwarp::verbs::{ConnParam, MemoryRegion, RecvRequest, SendOp, SendRequest, WcStatus};

const BYTES: usize = 3000;
const SINK: usize = 150_000;

fn connected(is_ib: bool) -> (Pair, Connected) {
    let mut pair = Testbed::new().hosts();
    let base = if is_ib { agreeing() } else { ConnParam::default() };
    let c = pair.connect(&ConnParam { responder_resources: 4, initiator_depth: 4, ..base });
    (pair, c)
}

fn write(wr_id: u64, local: &MemoryRegion, remote: &MemoryRegion, at: usize, len: usize) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Write { remote: remote_addr(remote, at) }, local.sge(at, len))
}

/// Reads into the bytes from `SINK` on, from which no Write is sent.
fn read(wr_id: u64, local: &MemoryRegion, remote: &MemoryRegion, len: usize) -> SendRequest {
    SendRequest::new(wr_id, SendOp::Read { remote: remote_addr(remote, 0) }, local.sge(SINK, len))
}

/// Polls until A has completed `count` requests in their order.
fn complete(pair: &mut Pair, count: u64) {
    for wr_id in 1..=count {
        let wc = pair.wc_a();
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
}

/// Short Writes, which are sent directly from the send queue, and long Writes. The Writes cover all bytes of
/// the Read, or only its last byte.
#[test]
fn a_read_returns_the_bytes_from_before_a_later_write() {
    for (at, len) in [(0, 8), (BYTES - 1, 1), (0, BYTES), (BYTES - 1, 100_000)] {
        let (mut pair, c) = connected(true);
        let (local, remote) = pair.regions(200_000);
        local.write_at(0, &[2; 110_000]).unwrap();
        remote.write_at(0, &[1; 110_000]).unwrap();
        let requests = [read(1, &local, &remote, BYTES), write(2, &local, &remote, at, len)];
        c.qp_a.post_send_list(&requests).unwrap();
        complete(&mut pair, 2);
        assert!(read_bytes(&local, SINK, BYTES) == [1; BYTES], "{len} bytes at {at} were read too late");
        assert!(read_bytes(&remote, at, len) == vec![2; len]);
    }
}

/// A Write with immediate, behind an atomic on a word that the Write changes.
#[test]
fn an_atomic_returns_the_word_from_before_a_later_write() {
    let (mut pair, c) = connected(true);
    let (local, remote) =
        (pair.regions(4096).0, pair.b.pd.reg_mr(4096, ALL | Access::REMOTE_ATOMIC).unwrap());
    local.write_at(0, &[9; 64]).unwrap();
    remote.write_at(0, &[0; 64]).unwrap();
    c.qp_b.post_recv(&RecvRequest::new(7, remote.sge(1024, 64))).unwrap();
    let op = AtomicOp::FetchAdd { add: 5, mask: 0 };
    let atomic = SendOp::Atomic { remote: remote_addr(&remote, 8), op };
    let last = SendOp::WriteImmediate { remote: remote_addr(&remote, 15), data: [0; 8] };
    let requests =
        [SendRequest::new(1, atomic, local.sge(2048, 8)), SendRequest::new(2, last, local.sge(0, 4))];
    c.qp_a.post_send_list(&requests).unwrap();
    complete(&mut pair, 2);
    assert_eq!(read_bytes(&local, 2048, 8), [0; 8]);
    assert_eq!(read_bytes(&remote, 16, 3), [9; 3]);
}

/// Writes of other bytes do not wait for the response. Without InfiniBand's semantics, no Write waits, since
/// iWARP leaves this to the fences of its user.
#[test]
fn other_writes_do_not_wait() {
    for (is_ib, at, sent) in [(true, 0, 1), (true, BYTES, 2), (false, 0, 2)] {
        let (mut pair, c) = connected(is_ib);
        let (local, remote) = pair.regions(200_000);
        let before = pair.a.engine.counters().tx_fpdus;
        c.qp_a.post_send_list(&[read(1, &local, &remote, BYTES), write(2, &local, &remote, at, 8)]).unwrap();
        let now_us = pair.now_us as u64;
        for _ in 0..10 {
            pair.a.poll_us(now_us);
        }
        assert_eq!(pair.a.engine.counters().tx_fpdus - before, sent, "at {at}, {is_ib}");
        complete(&mut pair, 2);
    }
}
