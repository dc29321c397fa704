//! Reads into several scatter/gather elements. Such a Read may need several Read Requests, but has one
//! completion.

use arrayvec::ArrayVec;

use crate::common::served::Served;
use crate::common::ulpdu::{read_header, tagged, untagged};
use crate::common::{ALL, Connected, Pair, Testbed, agreeing, pattern, read_bytes, remote_addr};
use iwarp::memory::Access;
use iwarp::verbs::{
    ConnParam, MAX_SGE, MemoryRegion, QpState, QueuePair, SendFlags, SendOp, SendRequest, Sge, VerbsError,
    WcOpcode, WcStatus,
};

/// Returns a Read of the peer's bytes from `from` on, into the pieces `pieces` of `local`.
fn read(
    wr_id: u64,
    local: &MemoryRegion,
    pieces: &[(usize, usize)],
    remote: &MemoryRegion,
    from: usize,
) -> SendRequest {
    let sg_list = pieces.iter().map(|&(at, len)| local.sge(at, len)).collect();
    let op = SendOp::Read { remote: remote_addr(remote, from) };
    SendRequest { wr_id, op, sg_list, flags: SendFlags::SIGNALED }
}

fn param(depth: u16, is_ib: bool) -> ConnParam {
    let base = if is_ib { agreeing() } else { ConnParam::default() };
    ConnParam { responder_resources: depth, initiator_depth: depth, ..base }
}

fn connected(depth: u16, is_ib: bool) -> (Pair, Connected) {
    let mut pair = Testbed::new().hosts();
    let c = pair.connect(&param(depth, is_ib));
    (pair, c)
}

/// The bytes of the peer are placed in the elements one after the other, with any depth. The elements are
/// empty, long, or as many as a request may have. Requests before and behind the Read complete in order, and
/// each request uses one entry of the send queue.
#[test]
fn each_element_gets_the_bytes_behind_those_of_the_one_before() {
    let lists: [&[(usize, usize)]; 6] = [
        &[(100, 64), (300, 1), (50, 20)],
        &[(0, 0), (9, 8), (20, 0), (40, 30), (99, 0)],
        &[(0, 70_000), (200_000, 60_001), (100_000, 7)],
        &[(5, 0), (6, 0)],
        &[(0, 1), (2, 1), (4, 1), (6, 1), (8, 1), (10, 1), (12, 1), (14, 1)],
        &[],
    ];
    for (depth, is_ib) in [(1, false), (2, true), (16, false), (16, true), (1, true)] {
        let (mut pair, c) = connected(depth, is_ib);
        let (local, remote) = pair.regions(300_000);
        let source = pattern(7, 300_000);
        remote.write_at(0, &source).unwrap();
        for (round, pieces) in lists.iter().enumerate() {
            local.write_at(0, &vec![0; 300_000]).unwrap();
            let from = 1000 + round;
            let before =
                SendRequest::new(1, SendOp::Write { remote: remote_addr(&remote, 0) }, local.sge(0, 8));
            c.qp_a.post_send(&before).unwrap();
            c.qp_a.post_send(&read(2, &local, pieces, &remote, from)).unwrap();
            let silent = read(3, &local, pieces, &remote, from).flags(SendFlags::empty());
            c.qp_a.post_send(&silent).unwrap();
            assert_eq!(c.qp_a.query().send_outstanding, 3);
            c.qp_a.post_send(&before).unwrap();
            let total: usize = pieces.iter().map(|piece| piece.1).sum();
            for (wr_id, opcode, bytes) in
                [(1, WcOpcode::Write, 0), (2, WcOpcode::Read, total), (1, WcOpcode::Write, 0)]
            {
                let wc = pair.wc_a();
                assert_eq!((wc.wr_id, wc.opcode, wc.status), (wr_id, opcode, WcStatus::Success));
                assert_eq!(wc.byte_len as usize, bytes);
            }
            let mut expected = vec![0; 300_000];
            let mut at = from;
            for &(to, len) in *pieces {
                expected[to..to + len].copy_from_slice(&source[at..at + len]);
                at += len;
            }
            // The Write has changed the first bytes of `remote`, so they are restored after this check.
            assert_eq!(read_bytes(&local, 0, 300_000), expected, "{pieces:?}, depth {depth}");
            remote.write_at(0, &source).unwrap();
        }
        pair.run_us(10_000);
        assert!(pair.a.cq.is_empty() && c.qp_a.query().send_outstanding == 0);
    }
}

/// The post refuses an atomic with two elements, and a Read with an element without the right to write. No
/// part of such a request is posted.
#[test]
fn what_is_wrong_is_refused_whole() {
    let (pair, c) = connected(4, false);
    let (local, remote) = pair.regions(4096);
    let read_only = pair.a.pd.reg_mr(4096, Access::empty()).unwrap();
    let mut sg_list: ArrayVec<Sge, MAX_SGE> = [local.sge(0, 8), read_only.sge(0, 8)].into_iter().collect();
    let op = SendOp::Read { remote: remote_addr(&remote, 0) };
    let wrong = SendRequest { wr_id: 1, op, sg_list: sg_list.clone(), flags: SendFlags::SIGNALED };
    assert!(matches!(c.qp_a.post_send(&wrong), Err(VerbsError::LocalProtection(_))));
    sg_list = [local.sge(0, 4), local.sge(4, 4)].into_iter().collect();
    let atomic = iwarp::rdmap::AtomicOp::FetchAdd { add: 1, mask: 0 };
    let op = SendOp::Atomic { remote: remote_addr(&remote, 0), op: atomic };
    let two = SendRequest { wr_id: 2, op, sg_list, flags: SendFlags::SIGNALED };
    assert!(matches!(c.qp_a.post_send(&two), Err(VerbsError::TooManySge { got: 2, max: 1 })));
    assert_eq!(c.qp_a.query().send_outstanding, 0);
}

/// A connection to a bare TCP peer, and the Read Requests that the peer has received: each with its header
/// (sink, size and source) and its MSN.
struct Asked {
    served: Served,
    seen: Vec<(Vec<u8>, u32)>,
}

impl Asked {
    fn new(ird: u16) -> Self {
        Self {
            served: Served::with(ConnParam { initiator_depth: ird, ..ConnParam::default() }),
            seen: vec![],
        }
    }

    /// Returns the Read Requests that have arrived since the last call.
    fn requests(&mut self) -> Vec<Vec<u8>> {
        let all = self.served.received(20_000);
        for ulpdu in &all {
            let msn = self.seen.len() as u32 + 1;
            let expected = untagged([0x41, 0x41], 0, [1, msn, 0], &ulpdu[18..]);
            assert_eq!(*ulpdu, expected, "a Read Request with MSN {msn}");
            self.seen.push((ulpdu[18..].to_vec(), msn));
        }
        all.into_iter().map(|ulpdu| ulpdu[18..].to_vec()).collect()
    }

    fn post(&self, wr_id: u64, pieces: &[(usize, usize)]) {
        self.post_with(wr_id, pieces, SendFlags::SIGNALED);
    }

    fn post_with(&self, wr_id: u64, pieces: &[(usize, usize)], flags: SendFlags) {
        let region = &self.served.region;
        let sg_list = pieces.iter().map(|&(at, len)| region.sge(at, len)).collect();
        let op = SendOp::Read { remote: iwarp::verbs::RemoteAddr { addr: 5000, rkey: 0x1234_5600 } };
        self.served.post(&SendRequest { wr_id, op, sg_list, flags });
    }

    /// Returns the expected header of the Read Request for a piece whose source begins at `from`.
    fn header(&self, (at, len): (usize, usize), from: u64) -> Vec<u8> {
        let region = &self.served.region;
        read_header((region.rkey(), self.served.to(at)), len as u32, (0x1234_5600, from))
    }

    fn answer(&mut self, at: usize, bytes: &[u8]) {
        let (stag, to) = (self.served.region.rkey(), self.served.to(at));
        self.served.send(&tagged([0xc1, 0x42], stag, to, bytes));
    }
}

/// Each Read Request names one element, and where the element's bytes begin at the peer. Each Read Request
/// counts against ORD, and the request completes with the last response.
#[test]
fn requests_on_the_wire_name_one_element_each_and_wait_for_ord() {
    let mut asked = Asked::new(2);
    // The fence does not wait for other parts of the same request.
    let fenced = SendFlags::SIGNALED | SendFlags::FENCE;
    asked.post_with(1, &[(0, 8), (100, 0), (200, 16), (300, 4)], fenced);
    asked.post(2, &[(400, 2)]);
    let first = [asked.header((0, 8), 5000), asked.header((200, 16), 5008)];
    assert_eq!(asked.requests(), first);
    asked.answer(0, &[1; 8]);
    assert_eq!(asked.requests(), [asked.header((300, 4), 5024)]);
    assert_eq!(asked.served.completions(), []);
    asked.answer(200, &[2; 16]);
    assert_eq!(asked.requests(), [asked.header((400, 2), 5000)]);
    assert_eq!(asked.served.completions(), []);
    asked.answer(300, &[3; 4]);
    assert_eq!(asked.served.statuses(), [(1, WcStatus::Success)]);
    asked.answer(400, &[4; 2]);
    assert_eq!(asked.served.statuses(), [(2, WcStatus::Success)]);
    assert_eq!(asked.requests(), Vec::<Vec<u8>>::new());
    assert_eq!(asked.served.bytes(200, 16), [2; 16]);
    assert_eq!(asked.served.bytes(300, 4), [3; 4]);
}

/// At whatever time the stream ends, the request completes once, with an error.
#[test]
fn a_read_that_has_begun_fails_once() {
    for answered in 0..3 {
        for close in [false, true] {
            let mut asked = Asked::new(1);
            asked.post(1, &[(0, 8), (200, 16), (300, 4)]);
            asked.post(2, &[(400, 2)]);
            for part in 0..answered {
                assert_eq!(asked.requests().len(), 1);
                asked.answer([0, 200][part], &[1; 16][..[8, 16][part]]);
            }
            assert_eq!(asked.requests().len(), 1);
            let first = match close {
                true => {
                    asked.served.qp.modify(QpState::Error).unwrap();
                    WcStatus::WrFlushError
                }
                // This response belongs to no Read, and ends the stream.
                false => {
                    asked.answer(600, &[1; 8]);
                    WcStatus::WrFlushError
                }
            };
            let flushed = WcStatus::WrFlushError;
            assert_eq!(asked.served.statuses(), [(1, first), (2, flushed)], "{answered} answered");
            asked.post(3, &[(0, 8), (200, 16)]);
            assert_eq!(asked.served.statuses(), [(3, flushed)]);
            assert_eq!(asked.served.qp.query().send_outstanding, 0);
        }
    }
}

/// A Terminate for any Read Request of a request makes this request fail.
#[test]
fn the_peer_may_refuse_any_part() {
    for part in 0..3 {
        for depth in [1, 8] {
            let (mut pair, c) = connected(depth, false);
            let (local, remote) = pair.regions(4096);
            // Part `part` begins at the end of the peer's memory.
            let from = 4096 - 100 * part;
            c.qp_a.post_send(&read(1, &local, &[(0, 100), (200, 100), (400, 100)], &remote, from)).unwrap();
            c.qp_a.post_send(&read(2, &local, &[(0, 100)], &remote, 0)).unwrap();
            for (wr_id, status) in [(1, WcStatus::RemoteAccessError), (2, WcStatus::WrFlushError)] {
                let wc = pair.wc_a();
                assert_eq!((wc.wr_id, wc.status), (wr_id, status), "part {part}, depth {depth}");
            }
            pair.run_us(100_000);
            assert!(pair.a.cq.is_empty());
        }
    }
}

/// If the memory of a part is revoked before the response arrives, the request of this part fails, and the
/// request before it succeeds.
#[test]
fn memory_that_is_revoked_fails_its_own_request() {
    let mut asked = Asked::new(8);
    let other = asked.served.reg_mr(64, ALL);
    asked.post(1, &[(0, 8)]);
    let region = &asked.served.region;
    let sg_list = [region.sge(8, 8), other.sge(0, 8)].into_iter().collect();
    let op = SendOp::Read { remote: iwarp::verbs::RemoteAddr { addr: 0, rkey: 1 << 8 } };
    asked.served.post(&SendRequest { wr_id: 2, op, sg_list, flags: SendFlags::SIGNALED });
    assert_eq!(asked.requests().len(), 3);
    other.invalidate();
    asked.answer(0, &[1; 8]);
    asked.answer(8, &[2; 8]);
    assert_eq!(asked.served.statuses(), [(1, WcStatus::Success)]);
    asked.served.send(&tagged([0xc1, 0x42], other.rkey(), other.addr(), &[3; 8]));
    assert_eq!(asked.served.statuses(), [(2, WcStatus::LocalProtectionError)]);
}

#[test]
fn a_fence_and_a_close_wait_for_all_parts() {
    let mut asked = Asked::new(1);
    asked.post(1, &[(0, 8), (200, 16)]);
    let op = SendOp::Write { remote: iwarp::verbs::RemoteAddr { addr: 0, rkey: 1 << 8 } };
    let fenced = SendRequest::new(2, op, asked.served.region.sge(0, 8));
    let fenced = fenced.flags(SendFlags::SIGNALED | SendFlags::FENCE);
    asked.served.post(&fenced);
    // A request like `fenced`, with bytes that are copied at the post.
    let inline = SendRequest { wr_id: 3, sg_list: ArrayVec::new(), ..fenced };
    asked.served.qp.send_batch().push_inline(&inline, &[&[1; 4], &[2; 4]]).unwrap();
    assert_eq!(asked.requests().len(), 1);
    asked.answer(0, &[1; 8]);
    // The first part is answered now, and therefore the second part is sent. The Writes are not sent yet.
    assert_eq!(asked.requests().len(), 1);
    asked.served.id.disconnect();
    asked.answer(200, &[2; 16]);
    assert_eq!(asked.served.received(20_000).len(), 2, "the Writes");
    assert_eq!(asked.served.completions(), [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)));
}

/// If a held queue is resumed before it is drained, the event of the drained queue does not arrive later.
#[test]
fn an_event_that_is_not_wanted_any_more_does_not_come() {
    let mut asked = Asked::new(1);
    asked.post(1, &[(0, 8)]);
    assert_eq!(asked.requests().len(), 1);
    asked.served.qp.hold_sends();
    asked.served.qp.drain();
    asked.served.run(10_000);
    asked.served.qp.resume_sends();
    asked.answer(0, &[1; 8]);
    assert_eq!(asked.served.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(asked.served.events(), []);
}

fn open_sends(qp: &QueuePair) -> usize {
    qp.query().send_open
}

/// If the queue is held during a Read with several parts, the Read is finished, and no other request is
/// started.
#[test]
fn a_queue_that_open_sends_finishes_the_read_that_has_begun() {
    let mut asked = Asked::new(1);
    asked.post(1, &[(0, 8), (200, 16), (300, 4)]);
    asked.post(2, &[(400, 2), (500, 2)]);
    assert_eq!(asked.requests().len(), 1);
    asked.served.qp.hold_sends();
    asked.served.qp.drain();
    for (at, len) in [(0, 8), (200, 16)] {
        asked.answer(at, &vec![1; len]);
        assert_eq!((asked.requests().len(), asked.served.events().len()), (1, 0));
    }
    asked.answer(300, &[1; 4]);
    assert_eq!(asked.served.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(
        (asked.requests().len(), asked.served.events().len(), open_sends(&asked.served.qp)),
        (0, 1, 1)
    );
    asked.served.qp.resume_sends();
    assert_eq!(asked.requests().len(), 1);
}
