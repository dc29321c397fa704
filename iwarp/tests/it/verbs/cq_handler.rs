//! Completion queues whose events go to a handler: for which queue a handler is called, and what a handler
//! may do.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use crate::common::{ALL, Pair, remote_addr};
use iwarp::engine::ThreadOptions;
use iwarp::verbs::{
    AsyncEventKind, CompletionQueue, ConnParam, Context, ContextConfig, CqEventHandler, CqOptions, QpInit,
    QpState, QueuePair, RecvRequest, SendFlags, SendOp, SendRequest, VerbsError, WcStatus,
};

/// Returns a handler, and the list of the queue numbers with which the handler was called.
fn recorder() -> (CqEventHandler, Arc<Mutex<Vec<u32>>>) {
    let called = Arc::<Mutex<Vec<u32>>>::default();
    let record = Arc::clone(&called);
    (Arc::new(move |cq_num| record.lock().unwrap().push(cq_num)), called)
}

fn with_handler(context: &Context, handler: &CqEventHandler) -> CompletionQueue {
    context.create_cq_with(&CqOptions { handler: Some(handler), ..CqOptions::new(64) }).unwrap()
}

/// Two queues have the same handler. The handler is called once for each arming, with the number of the armed
/// queue, when that queue has a completion of the requested kind.
#[test]
fn a_handler_learns_which_queue_has_an_event() {
    let (mut pair, _listener) = Pair::listening();
    let (handler, called) = recorder();
    let [sends, recvs] = [(); 2].map(|()| with_handler(&pair.b.context, &handler));
    let init = QpInit { send_cq: &sends, recv_cq: &recvs, ..QpInit::new(&sends) };
    let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&init).unwrap());
    let c = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
    let (local, remote) = pair.regions(64);
    let mut send = |solicited: bool, count: usize| {
        let flags = if solicited { SendFlags::SIGNALED | SendFlags::SOLICITED } else { SendFlags::SIGNALED };
        for wr_id in 0..count as u64 {
            c.qp_b.post_recv(&RecvRequest::new(wr_id, remote.sge(0, 8))).unwrap();
            c.qp_a.post_send(&SendRequest::new(wr_id, SendOp::Send, local.sge(0, 8)).flags(flags)).unwrap();
        }
        pair.run_us(1000);
        assert_eq!(std::iter::from_fn(|| recvs.poll_one()).count(), count);
        std::mem::take(&mut *called.lock().unwrap())
    };
    assert_eq!(send(true, 2), [0_u32; 0], "not armed");
    sends.req_notify(false).unwrap();
    recvs.req_notify(false).unwrap();
    assert_eq!(send(false, 3), [recvs.cq_num()]);
    assert_eq!(send(false, 1), [0_u32; 0], "once");
    recvs.req_notify(true).unwrap();
    assert_eq!(send(false, 2), [0_u32; 0], "not solicited");
    assert_eq!(send(true, 2), [recvs.cq_num()]);
    let to = remote_addr(&local, 0);
    c.qp_b.post_send(&SendRequest::new(1, SendOp::Write { remote: to }, remote.sge(0, 8))).unwrap();
    pair.run_us(1000);
    assert_eq!(*called.lock().unwrap(), [sends.cq_num()]);
}

/// If a completion was missed, the handler runs on the thread that arms the queue.
#[test]
fn a_handler_learns_of_a_missed_completion_at_once() {
    let context = Context::new(ContextConfig::default()).unwrap();
    let (handler, called) = recorder();
    let cq = with_handler(&context, &handler);
    let pd = context.alloc_pd().unwrap();
    let qp = pd.create_qp(&QpInit::new(&cq)).unwrap();
    let region = pd.reg_mr(64, ALL).unwrap();
    qp.post_recv(&RecvRequest::new(1, region.sge(0, 8))).unwrap();
    qp.modify(QpState::Error).unwrap();
    cq.req_notify(false).unwrap();
    assert_eq!(*called.lock().unwrap(), [0_u32; 0]);
    cq.req_notify_with_missed(false).unwrap();
    assert_eq!(*called.lock().unwrap(), [cq.cq_num()]);
    cq.req_notify_with_missed(true).unwrap();
    assert_eq!(*called.lock().unwrap(), [cq.cq_num()], "the queue was not polled since the event");
    let other = context.create_cq(4, None).unwrap();
    assert!(matches!(other.req_notify_with_missed(false), Err(VerbsError::Invalid(_))));
}

/// If a program has asked for the event of any completion, the next completion generates the event, even if
/// the program asks for the event of a solicited completion afterwards.
#[test]
fn a_weaker_request_replaces_no_stronger_one() {
    let (mut pair, _listener) = Pair::listening();
    let (handler, called) = recorder();
    let cq = with_handler(&pair.b.context, &handler);
    let (qp_a, qp_b) = (pair.a.qp(), pair.b.pd.create_qp(&QpInit::new(&cq)).unwrap());
    let c = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
    let (local, remote) = pair.regions(64);
    for requests in [[false, true], [true, false]] {
        for solicited_only in requests {
            cq.req_notify(solicited_only).unwrap();
        }
        c.qp_b.post_recv(&RecvRequest::new(1, remote.sge(0, 8))).unwrap();
        c.qp_a.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 8))).unwrap();
        pair.run_us(1000);
        assert_eq!(std::mem::take(&mut *called.lock().unwrap()), [cq.cq_num()], "{requests:?}");
    }
}

/// Returns a completion queue with one entry, which calls `handler`, and two queue pairs that use this queue.
/// The first queue pair has two receives.
fn two_of_one_entry(context: &Context, handler: &CqEventHandler) -> (CompletionQueue, [QueuePair; 2]) {
    let cq = context.create_cq_with(&CqOptions { handler: Some(handler), ..CqOptions::new(1) }).unwrap();
    let pd = context.alloc_pd().unwrap();
    let qps = [(); 2].map(|()| pd.create_qp(&QpInit::new(&cq)).unwrap());
    for wr_id in 0..2 {
        qps[0].post_recv(&RecvRequest { wr_id, sg_list: Default::default() }).unwrap();
    }
    (cq, qps)
}

/// An overflow does not call the handler of a queue that is not armed.
#[test]
fn an_overflow_calls_no_handler() {
    let context = Context::new(ContextConfig::default()).unwrap();
    let (handler, called) = recorder();
    let (cq, [qp, _other]) = two_of_one_entry(&context, &handler);
    qp.modify(QpState::Error).unwrap();
    assert!(cq.overflowed() && called.lock().unwrap().is_empty());
    assert_eq!(qp.query().recv_outstanding, 1, "the entry of the one that was lost is free");
}

/// A requested event and an overflow occur at the same time. The handler is called, and the queue pairs enter
/// the Error state.
#[test]
fn an_event_beside_an_overflow_is_told() {
    let context = Context::new(ContextConfig::default()).unwrap();
    let (handler, called) = recorder();
    let (cq, [qp, other]) = two_of_one_entry(&context, &handler);
    cq.req_notify(false).unwrap();
    qp.modify(QpState::Error).unwrap();
    assert_eq!(*called.lock().unwrap(), [cq.cq_num()]);
    assert!(cq.overflowed());
    let event = context.async_events().poll().unwrap().map(|event| event.kind);
    assert_eq!((event, other.state()), (Some(AsyncEventKind::CqError), QpState::Error));
}

#[test]
fn a_queue_has_a_channel_or_a_handler_or_makes_no_events() {
    let context = Context::new(ContextConfig::default()).unwrap();
    let channel = context.create_comp_channel().unwrap();
    let (handler, _) = recorder();
    let make =
        |channel, handler| context.create_cq_with(&CqOptions { channel, handler, ..CqOptions::new(4) });
    assert!(matches!(make(Some(&channel), Some(&handler)), Err(VerbsError::Invalid(_))));
    assert!(matches!(make(None, None).unwrap().req_notify(false), Err(VerbsError::Invalid(_))));
    make(Some(&channel), None).unwrap().req_notify(false).unwrap();
    make(None, Some(&handler)).unwrap().req_notify(true).unwrap();
}

/// A thread of the user flushes a queue pair, and the handler runs on this thread. The handler polls and arms
/// the queue, and creates and drops objects. The handler also posts to the same queue pair, which flushes the
/// request and calls the handler again.
#[test]
fn a_handler_may_use_the_objects_that_called_it() {
    struct Stage {
        context: Context,
        cq: CompletionQueue,
        qp: QueuePair,
        send: SendRequest,
        recv: RecvRequest,
    }
    let stage = Arc::new(OnceLock::<Stage>::new());
    let reaped = Arc::new(AtomicUsize::new(0));
    let handler: CqEventHandler = {
        let (stage, reaped) = (Arc::clone(&stage), Arc::clone(&reaped));
        Arc::new(move |cq_num| {
            let Stage { context, cq, qp, send, recv } = stage.get().unwrap();
            assert_eq!(cq_num, cq.cq_num());
            cq.req_notify(false).unwrap();
            while let Some(wc) = cq.poll_one() {
                assert_eq!(wc.status, WcStatus::WrFlushError);
                reaped.fetch_add(1, Ordering::Relaxed);
            }
            if reaped.load(Ordering::Relaxed) < 100 {
                qp.post_send(send).unwrap();
                qp.post_recv(recv).unwrap();
            }
            let pd = context.alloc_pd().unwrap();
            let other = context.create_cq(4, None).unwrap();
            let idle = pd.create_qp(&QpInit::new(&other)).unwrap();
            idle.post_recv(recv).unwrap_err();
            drop((idle, other, pd));
        })
    };
    let context = Context::new(ContextConfig::default()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let region = pd.reg_mr(64, ALL).unwrap();
    let cq = with_handler(&context, &handler);
    let qp = pd.create_qp(&QpInit { early_sends: true, ..QpInit::new(&cq) }).unwrap();
    let send = SendRequest::new(1, SendOp::Send, region.sge(0, 8));
    let recv = RecvRequest::new(2, region.sge(0, 8));
    qp.post_send(&send).unwrap();
    qp.post_recv(&recv).unwrap();
    assert!(stage.set(Stage { context, cq: cq.clone(), qp: qp.clone(), send, recv }).is_ok());
    cq.req_notify(false).unwrap();
    qp.modify(QpState::Error).unwrap();
    assert!(reaped.load(Ordering::Relaxed) >= 100);
    assert_eq!(cq.query().waiting, 0);
}

/// A thread sleeps until the handler wakes it. The woken thread polls every completion of an engine that runs
/// in another thread.
#[test]
fn no_completion_goes_unnoticed() {
    const MESSAGES: usize = 20_000;
    const PATIENCE: Duration = Duration::from_secs(30);
    let events = Arc::new((Mutex::new(0_u64), Condvar::new()));
    let handler: CqEventHandler = {
        let events = Arc::clone(&events);
        Arc::new(move |_| {
            *events.0.lock().unwrap() += 1;
            events.1.notify_one();
        })
    };
    let (mut pair, _listener) = Pair::listening();
    let cq = with_handler(&pair.a.context, &handler);
    let (qp_a, qp_b) = (pair.a.pd.create_qp(&QpInit::new(&cq)).unwrap(), pair.b.qp());
    let c = pair.connect_qps(qp_a, qp_b, &ConnParam::default(), &ConnParam::default());
    let (local, remote) = pair.regions(64);
    let write = SendOp::Write { remote: remote_addr(&remote, 0) };
    let Pair { a, b, .. } = pair;
    let engines = [a.engine, b.engine].map(|engine| engine.spawn(ThreadOptions::default()).unwrap());
    let (mut reaped, mut taken) = (0, 0);
    let mut posted = 0;
    while reaped < MESSAGES {
        // Few requests are posted at a time, so that the engine sleeps often.
        while posted < MESSAGES && posted - reaped < 3 {
            c.qp_a.post_send(&SendRequest::new(posted as u64, write, local.sge(0, 8))).unwrap();
            posted += 1;
        }
        cq.req_notify(false).unwrap();
        let before = reaped;
        while let Some(wc) = cq.poll_one() {
            assert_eq!((wc.wr_id, wc.status), (reaped as u64, WcStatus::Success));
            reaped += 1;
        }
        if reaped == before {
            let mut count = events.0.lock().unwrap();
            while *count == taken {
                let (guard, waited) = events.1.wait_timeout(count, PATIENCE).unwrap();
                assert!(!waited.timed_out(), "{reaped} of {posted} were noticed");
                count = guard;
            }
            taken = *count;
        }
    }
    assert!(taken > 0, "it never slept");
    drop(engines);
}
