//! A send queue that is held (`QueuePair::hold_sends`), as in the SQD state of libibverbs.

use crate::common::{Connected, Pair, remote_addr};
use iwarp::verbs::{
    AsyncEventKind, ConnParam, MemoryRegion, QpInit, QpState, QueuePair, RecvRequest, SendFlags, SendOp,
    SendRequest, WcStatus,
};

struct Held {
    pair: Pair,
    c: Connected,
    local: MemoryRegion,
    remote: MemoryRegion,
}

impl Held {
    fn new(is_ib: bool) -> Self {
        let (pair, c) = if is_ib { Pair::agreeing() } else { Pair::connected() };
        let (local, remote) = pair.regions(4 << 20);
        Self { pair, c, local, remote }
    }

    fn qp(&self) -> &QueuePair {
        &self.c.qp_a
    }

    fn post(&self, wr_id: u64, len: usize, flags: SendFlags) {
        let op = SendOp::Write { remote: remote_addr(&self.remote, 0) };
        self.qp().post_send(&SendRequest::new(wr_id, op, self.local.sge(0, len)).flags(flags)).unwrap();
    }

    fn post_read(&self, wr_id: u64, len: usize) {
        let op = SendOp::Read { remote: remote_addr(&self.remote, 0) };
        self.qp().post_send(&SendRequest::new(wr_id, op, self.local.sge(0, len))).unwrap();
    }

    fn drained(&self) -> usize {
        let events = self.pair.a.context.async_events();
        let mut count = 0;
        while let Some(event) = events.poll().unwrap() {
            assert_eq!((event.kind, event.number), (AsyncEventKind::SqDrained, self.qp().qp_num()));
            count += 1;
        }
        count
    }

    /// Returns `wr_id` and status of the completions of the next 50 ms.
    fn completions(&mut self) -> Vec<(u64, WcStatus)> {
        self.pair.run_us(50_000);
        std::iter::from_fn(|| self.pair.a.cq.poll_one()).map(|wc| (wc.wr_id, wc.status)).collect()
    }
}

fn all(wr_ids: impl IntoIterator<Item = u64>, status: WcStatus) -> Vec<(u64, WcStatus)> {
    wr_ids.into_iter().map(|wr_id| (wr_id, status)).collect()
}

const OK: WcStatus = WcStatus::Success;

/// Requests wait as long as the queue is held, and are then sent in order. Receives do not wait.
#[test]
fn nothing_starts_until_it_is_resumed() {
    for is_ib in [false, true] {
        let mut held = Held::new(is_ib);
        held.qp().hold_sends();
        held.post(1, 8, SendFlags::SIGNALED);
        held.post(2, 8, SendFlags::SIGNALED | SendFlags::INLINE);
        held.post(3, 100_000, SendFlags::SIGNALED);
        held.post_read(4, 8);
        held.post(5, 8, SendFlags::SIGNALED | SendFlags::FENCE);
        assert_eq!((held.completions(), held.drained()), (vec![], 0));
        held.qp().post_recv(&RecvRequest::new(9, held.local.sge(64, 8))).unwrap();
        held.c.qp_b.post_send(&SendRequest::new(8, SendOp::Send, held.remote.sge(0, 8))).unwrap();
        assert_eq!(held.completions(), [(9, OK)]);
        held.qp().resume_sends();
        assert_eq!(held.completions(), all(1..6, OK));
        assert_eq!(held.drained(), 0);
    }
}

/// The event of a drained send queue arrives once. If no request is in progress, the event arrives at once,
/// however many requests wait.
#[test]
fn the_event_does_not_wait_for_what_is_held() {
    for waiting in 0..3 {
        let mut held = Held::new(false);
        held.qp().hold_sends();
        (0..waiting).for_each(|wr_id| held.post(wr_id, 8, SendFlags::SIGNALED));
        // The engine has processed the posts.
        assert_eq!(held.completions(), []);
        held.qp().drain();
        assert_eq!(held.completions(), []);
        assert_eq!(held.drained(), 1);
        held.qp().resume_sends();
        assert_eq!((held.completions(), held.drained()), (all(0..waiting, OK), 0));
    }
    // In this case, the queue pair is not connected.
    let (pair, _c) = Pair::connected();
    let region = pair.a.pd.reg_mr(64, crate::common::ALL).unwrap();
    let qp = pair.a.pd.create_qp(&QpInit { early_sends: true, ..QpInit::new(&pair.a.cq) }).unwrap();
    for waiting in 0..2 {
        qp.hold_sends();
        qp.drain();
        let events = pair.a.context.async_events();
        let event = events.poll().unwrap().unwrap();
        assert_eq!((event.kind, event.number), (AsyncEventKind::SqDrained, qp.qp_num()), "{waiting} wait");
        qp.post_send(&SendRequest::new(1, SendOp::Send, region.sge(0, 8))).unwrap();
        assert!(events.poll().unwrap().is_none());
    }
}

/// If the queue is not held, the event of a drained send queue waits also for requests that wait for a
/// connection.
#[test]
fn a_request_before_the_connection_is_not_drained() {
    let (mut pair, _listener) = Pair::listening();
    let (local, remote) = pair.regions(64);
    let [qp_a, qp_b] = [&pair.a, &pair.b]
        .map(|host| host.pd.create_qp(&QpInit { early_sends: true, ..QpInit::new(&host.cq) }).unwrap());
    qp_b.post_recv(&RecvRequest::new(2, remote.sge(0, 8))).unwrap();
    qp_a.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 8))).unwrap();
    qp_a.drain();
    assert!(pair.a.context.async_events().poll().unwrap().is_none(), "it is open");
    let param = ConnParam::default();
    let _c = pair.connect_qps(qp_a, qp_b, &param, &param);
    assert_eq!(pair.wc_a().status, OK);
    let event = pair.until(|pair| pair.a.context.async_events().poll().unwrap());
    assert_eq!(event.kind, AsyncEventKind::SqDrained);
}

/// When a queue is held, a message that is being sent, and Reads without an answer, are completed. The event
/// of the drained queue arrives after the last of these requests.
#[test]
fn what_is_under_way_goes_on_to_its_end() {
    for is_ib in [false, true] {
        for steps in 0..60 {
            let mut held = Held::new(is_ib);
            for wr_id in 0..3 {
                held.post(2 * wr_id, 1 << 20, SendFlags::SIGNALED);
                held.post_read(2 * wr_id + 1, 200_000);
            }
            (0..steps * 7).for_each(|_| held.pair.poll());
            held.qp().hold_sends();
            held.post(6, 8, SendFlags::SIGNALED);
            held.qp().drain();
            let mut done = Vec::new();
            let limit = held.pair.now_us + 60_000_000;
            while held.drained() == 0 {
                assert!(held.pair.now_us < limit, "no event after {steps} steps");
                held.pair.poll();
                done.extend(std::iter::from_fn(|| held.pair.a.cq.poll_one()).map(|wc| (wc.wr_id, wc.status)));
            }
            done.extend(std::iter::from_fn(|| held.pair.a.cq.poll_one()).map(|wc| (wc.wr_id, wc.status)));
            let begun = done.len() as u64;
            assert_eq!(done, all(0..begun, OK));
            assert_eq!((held.completions(), held.drained()), (vec![], 0), "after the event, {steps} steps");
            assert_eq!(held.qp().query().send_open as u64, 7 - begun);
            held.qp().resume_sends();
            let rest = held.completions();
            assert_eq!((rest, held.drained()), (all(begun..7, OK), 0), "{steps} steps");
        }
    }
}

/// An error flushes the held requests. A graceful close does not wait for held requests, but flushes them
/// unsent.
#[test]
fn what_is_held_is_flushed_in_the_end() {
    for close in [false, true] {
        let mut held = Held::new(false);
        held.local.write_at(0, &[7; 8]).unwrap();
        held.qp().hold_sends();
        held.post(1, 8, SendFlags::SIGNALED);
        held.post(2, 8, SendFlags::empty());
        assert_eq!(held.completions(), []);
        held.qp().modify(if close { QpState::Closing } else { QpState::Error }).unwrap();
        assert_eq!(held.completions(), all(1..3, WcStatus::WrFlushError));
        assert_eq!(held.qp().state(), QpState::Error);
        let mut bytes = [1; 8];
        held.remote.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
    }
}

/// If a user has called `drain` before the queue is held, the event of the drained queue still arrives.
#[test]
fn an_event_that_is_awaited_comes_also_where_the_queue_is_held_meanwhile() {
    let mut held = Held::new(false);
    held.post(1, 1 << 20, SendFlags::SIGNALED);
    held.qp().drain();
    held.qp().hold_sends();
    held.post(2, 8, SendFlags::SIGNALED);
    let _ = held.completions();
    assert_eq!(held.drained(), 1);
}
