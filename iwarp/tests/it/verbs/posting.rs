//! Tests the forms of requests, for example inline bytes from memory or from the caller, and fenced requests.
//! Also tests the requests that a post refuses, and the completions of requests that fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{ALL, Pair, read_bytes, remote_addr};
use iwarp::verbs::{
    AtomicOp, CqEventHandler, CqOptions, QpInit, QpState, RecvRequest, SendFlags, SendOp, SendRequest,
    VerbsError, WcStatus,
};

const FENCED: SendFlags = SendFlags::SIGNALED.union(SendFlags::FENCE);

/// The test posts fenced messages of every form, with and without InfiniBand's semantics. When the peer has
/// the message, the Read before the message has its bytes.
#[test]
fn a_fence_holds_every_form_of_a_message() {
    for agrees in [false, true] {
        for form in ["gathered", "inline", "bytes of the caller"] {
            for is_write in [false, true] {
                let (mut pair, c) = if agrees { Pair::agreeing() } else { Pair::connected() };
                let (local, remote) = pair.regions(256);
                local.write_at(0, b"stale").unwrap();
                local.write_at(64, b"bytes").unwrap();
                remote.write_at(0, b"fresh").unwrap();
                c.qp_b.post_recv(&RecvRequest::new(1, remote.sge(64, 64))).unwrap();
                let read = SendOp::Read { remote: remote_addr(&remote, 0) };
                c.qp_a.post_send(&SendRequest::new(1, read, local.sge(0, 5))).unwrap();
                let op = match is_write {
                    true => SendOp::Write { remote: remote_addr(&remote, 64) },
                    false => SendOp::Send,
                };
                let request = SendRequest::new(2, op, local.sge(64, 5));
                match form {
                    "gathered" => c.qp_a.post_send(&request.flags(FENCED)).unwrap(),
                    "inline" => c.qp_a.post_send(&request.flags(FENCED | SendFlags::INLINE)).unwrap(),
                    _ => {
                        let request = SendRequest::empty(2, op).flags(FENCED | SendFlags::INLINE);
                        c.qp_a.send_batch().push_inline(&request, &[b"by", b"tes"]).unwrap();
                    }
                }
                pair.until(|_| (read_bytes(&remote, 64, 5) == b"bytes").then_some(()));
                assert_eq!(read_bytes(&local, 0, 5), b"fresh", "{agrees} {form} {is_write}");
            }
        }
    }
}

/// An inline request sends the bytes of its elements, or the parts from the caller, one after the other.
#[test]
fn inline_bytes_are_one_behind_the_other() {
    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(64);
    local.write_at(0, b"0123456789").unwrap();
    let mut gathered = SendRequest::new(1, SendOp::Send, local.sge(7, 3));
    gathered.sg_list.extend([local.sge(0, 0), local.sge(0, 2), local.sge(4, 1)]);
    for of_caller in [false, true] {
        c.qp_b.post_recv(&RecvRequest::new(1, remote.sge(0, 64))).unwrap();
        if of_caller {
            let request = SendRequest::empty(1, SendOp::Send);
            c.qp_a.send_batch().push_inline(&request, &[b"789", b"", b"01", b"4"]).unwrap();
        } else {
            let inline = SendFlags::SIGNALED | SendFlags::INLINE;
            c.qp_a.post_send(&gathered.clone().flags(inline)).unwrap();
        }
        assert_eq!(pair.wc_b().byte_len, 6);
        assert_eq!(read_bytes(&remote, 0, 7), b"789014\0");
    }
}

/// Only Sends and Writes without elements may have bytes from the caller, at most `QpInit::max_inline` bytes.
#[test]
fn what_takes_no_bytes_of_the_caller() {
    let (mut pair, _listener) = Pair::listening();
    let init = QpInit { max_inline: 16, ..QpInit::new(&pair.a.cq) };
    let (qp_a, qp_b) = (pair.a.pd.create_qp(&init).unwrap(), pair.b.qp());
    let c = pair.connect_qps(qp_a, qp_b, &Default::default(), &Default::default());
    let (local, remote) = pair.regions(64);
    let to = remote_addr(&remote, 0);
    let post = |op: SendOp, elements: usize, parts: &[&[u8]]| {
        let mut request = SendRequest::empty(1, op);
        request.sg_list.extend((0..elements).map(|_| local.sge(0, 8)));
        let (mut batch, bytes) = (c.qp_a.send_batch(), parts.iter().map(|part| part.len()).sum());
        let checked = batch.check_inline(&request, bytes);
        let pushed = batch.push_inline(&request, parts);
        assert_eq!(checked.is_ok(), pushed.is_ok());
        pushed
    };
    let too_long = |posted| matches!(posted, Err(VerbsError::TooLong { got: 17, max: 16 }));
    for op in [SendOp::Send, SendOp::Write { remote: to }] {
        assert!(too_long(post(op, 0, &[&[1; 17]])) && too_long(post(op, 0, &[&[1; 8], &[2; 9]])));
        assert!(matches!(post(op, 1, &[&[1; 8]]), Err(VerbsError::Invalid(_))));
        assert!(matches!(post(op, 1, &[]), Err(VerbsError::Invalid(_))));
    }
    let others = [
        SendOp::Read { remote: to },
        SendOp::Atomic { remote: to, op: AtomicOp::FetchAdd { add: 1, mask: 0 } },
        SendOp::Immediate { data: [1; 8] },
        SendOp::LocalInvalidate { rkey: 1 },
    ];
    for op in others {
        assert!(matches!(post(op, 0, &[&[1; 8]]), Err(VerbsError::Invalid(_))), "{op:?}");
    }
    assert_eq!(c.qp_a.query().send_outstanding, 0);
    for len in [0, 1, 16] {
        post(SendOp::Write { remote: to }, 0, &[&[1; 16][..len]]).unwrap();
        assert_eq!(pair.wc_a().status, WcStatus::Success);
    }
}

/// A queue pair that accepts late sends also accepts late sends with bytes from the caller. Each late send is
/// flushed once and never sent. `check` returns the result that a post would have, and posts nothing.
#[test]
fn bytes_of_the_caller_may_be_late() {
    for keeps in [false, true] {
        let (mut pair, c) = Pair::connected();
        let remote = pair.b.pd.reg_mr(64, ALL).unwrap();
        c.qp_b.post_recv(&RecvRequest::new(7, remote.sge(0, 8))).unwrap();
        if keeps {
            c.qp_a.take_late_sends();
        }
        c.id_a.disconnect();
        let request = SendRequest::empty(1, SendOp::Send);
        let mut batch = c.qp_a.send_batch();
        let refused = |posted| matches!(posted, Err(VerbsError::InvalidState(QpState::Closing)));
        for checked in [batch.check(&request), batch.check_inline(&request, 8)] {
            assert!(if keeps { checked.is_ok() } else { refused(checked) });
        }
        assert_eq!(c.qp_a.query().send_outstanding, 0);
        let posted = batch.push_inline(&request, &[&[1; 8]]);
        assert!(if keeps { posted.is_ok() } else { refused(posted) });
        drop(batch);
        assert_eq!(c.qp_a.query().send_outstanding, usize::from(keeps));
        pair.until(|_| (c.qp_a.state() == QpState::Error).then_some(()));
        let done: Vec<_> =
            std::iter::from_fn(|| pair.a.cq.poll_one()).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(done, [(1, WcStatus::WrFlushError)][..usize::from(keeps)]);
        let wc = pair.wc_b();
        assert_eq!((wc.wr_id, wc.status), (7, WcStatus::WrFlushError), "nothing was sent");
    }
}

/// When a queue pair without a connection is flushed, each of its completion queues that receives a
/// completion generates its event.
#[test]
fn a_flush_makes_the_events_of_both_queues() {
    let pair = Pair::new(&Default::default());
    let called = [Arc::<AtomicUsize>::default(), Arc::default()];
    let cqs = called.each_ref().map(|called| {
        let called = Arc::clone(called);
        let handler: CqEventHandler = Arc::new(move |_| {
            called.fetch_add(1, Ordering::Relaxed);
        });
        let options = CqOptions { handler: Some(&handler), ..CqOptions::new(16) };
        pair.a.context.create_cq_with(&options).unwrap()
    });
    let init = QpInit { send_cq: &cqs[0], recv_cq: &cqs[1], early_sends: true, ..QpInit::new(&cqs[0]) };
    let region = pair.a.pd.reg_mr(64, ALL).unwrap();
    for (sends, recvs) in [(0, 1), (1, 0), (1, 1)] {
        let qp = pair.a.pd.create_qp(&init).unwrap();
        for _ in 0..sends {
            qp.post_send(&SendRequest::new(1, SendOp::Send, region.sge(0, 8))).unwrap();
        }
        for _ in 0..recvs {
            qp.post_recv(&RecvRequest::new(2, region.sge(0, 8))).unwrap();
        }
        cqs.iter().for_each(|cq| cq.req_notify(false).unwrap());
        qp.modify(QpState::Error).unwrap();
        let counts = called.each_ref().map(|called| called.swap(0, Ordering::Relaxed));
        assert_eq!(counts, [sends, recvs]);
        // A request that is posted later is flushed by the call that posts it. This call also generates the
        // event.
        cqs.iter().for_each(|cq| while cq.poll_one().is_some() {});
        cqs.iter().for_each(|cq| cq.req_notify(false).unwrap());
        qp.post_recv(&RecvRequest::new(3, region.sge(0, 8))).unwrap();
        let counts = called.each_ref().map(|called| called.swap(0, Ordering::Relaxed));
        assert_eq!(counts, [0, 1]);
        cqs.iter().for_each(|cq| while cq.poll_one().is_some() {});
    }
}

/// A started request that fails generates a completion even if it is unsignaled. All later requests also
/// generate completions.
#[test]
fn requests_under_way_that_fail_have_completions_without_a_signal() {
    for agrees in [false, true] {
        let (mut pair, c) = if agrees { Pair::agreeing() } else { Pair::connected() };
        let (local, remote) = pair.regions(64);
        let right = remote_addr(&remote, 0);
        let wrong = remote_addr(&local, 0);
        for (wr_id, remote) in [(1, right), (2, wrong), (3, right)] {
            let read = SendRequest::new(wr_id, SendOp::Read { remote }, local.sge(0, 8));
            c.qp_a.post_send(&read.flags(SendFlags::empty())).unwrap();
        }
        // The first request also fails, because the peer ends the stream before it has sent the bytes of the
        // first Read.
        let got = [pair.wc_a(), pair.wc_a(), pair.wc_a()];
        assert_eq!(got.map(|wc| wc.wr_id), [1, 2, 3], "{agrees}");
        assert!(got.iter().all(|wc| wc.status != WcStatus::Success), "{agrees}: {got:?}");
        assert!(pair.a.cq.poll_one().is_none());
    }
}

/// An element cannot have 4 GiB. A request for 2^32 bytes is not shortened to 2^32 - 1 bytes.
#[test]
#[should_panic(expected = "an element has at most 2^32 - 1 bytes, and not 4294967296")]
fn an_element_of_four_gibibytes_is_refused() {
    let (pair, _) = Pair::connected();
    let (region, _) = pair.regions(64);
    assert_eq!(region.sge(0, u32::MAX as usize).length, u32::MAX);
    region.sge(0, 1 << 32);
}
