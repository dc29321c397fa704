//! Users on several threads, for example posting from many threads, waiting on descriptors, and sharing a
//! completion queue.

use crate::common::{Pair, Testbed, remote_addr};
use std::collections::HashMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use dp::link::LinkConfig;
use iwarp::engine::ThreadOptions;
use iwarp::memory::Access;
use iwarp::verbs::{ConnParam, QpInit, QpState, SendOp, SendRequest, VerbsError, WcStatus};

const PATIENCE: Duration = Duration::from_secs(60);

/// Four threads post to one queue pair while a fifth thread polls completions. Every request completes once,
/// and each thread's requests complete in the order in which the thread posted them.
#[test]
fn posting_is_safe_from_any_thread() {
    const THREADS: u64 = 4;
    const EACH: u64 = 5000;
    let (pair, c) = Pair::connected();
    let source = pair.a.pd.reg_mr(4096, Access::empty()).unwrap();
    let target = pair.b.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let remote = remote_addr(&target, 0);
    let Pair { a, b, .. } = pair;
    let engines = [a.engine, b.engine].map(|engine| engine.spawn(ThreadOptions::default()).unwrap());
    let start = Barrier::new(THREADS as usize);
    let mut last: HashMap<u64, u64> = HashMap::new();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (qp, start, source) = (&c.qp_a, &start, &source);
            scope.spawn(move || {
                start.wait();
                for n in 0..EACH {
                    let request =
                        SendRequest::new(thread << 32 | n, SendOp::Write { remote }, source.sge(0, 100));
                    let deadline = Instant::now() + PATIENCE;
                    loop {
                        match qp.post_send(&request) {
                            Ok(()) => break,
                            Err(VerbsError::QueueFull(_)) if Instant::now() < deadline => {
                                std::thread::yield_now()
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        let deadline = Instant::now() + PATIENCE;
        let mut reaped = 0;
        while reaped < THREADS * EACH {
            assert!(Instant::now() < deadline, "{reaped} completions");
            let Some(wc) = a.cq.poll_one() else {
                std::thread::yield_now();
                continue;
            };
            assert_eq!(wc.status, WcStatus::Success);
            let (thread, n) = (wc.wr_id >> 32, wc.wr_id & 0xffff_ffff);
            let expected = last.get(&thread).map_or(0, |last| last + 1);
            assert_eq!(n, expected, "of thread {thread}");
            last.insert(thread, n);
            reaped += 1;
        }
    });
    assert!(!a.cq.overflowed());
    drop(engines);
}

/// The event of a completion is never lost if a user arms the queue, polls once more, and then waits.
#[test]
fn an_armed_queue_always_wakes() {
    let mut pair = Pair::new(&LinkConfig::default());
    let channel = pair.a.context.create_comp_channel().unwrap();
    pair.a.cq = pair.a.context.create_cq(64, Some(&channel)).unwrap();
    let c = pair.connect(&ConnParam::default());
    let source = pair.a.pd.reg_mr(4096, Access::empty()).unwrap();
    let target = pair.b.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let remote = remote_addr(&target, 0);
    let Pair { a, b, .. } = pair;
    let _engines = [a.engine, b.engine].map(|engine| engine.spawn(ThreadOptions::default()).unwrap());
    for n in 0..2000 {
        c.qp_a.post_send(&SendRequest::new(n, SendOp::Write { remote }, source.sge(0, 8))).unwrap();
        let wc = loop {
            a.cq.req_notify(false).unwrap();
            if let Some(wc) = a.cq.poll_one() {
                break wc;
            }
            assert_ne!(channel.wait(Some(PATIENCE)).unwrap(), 0, "no event for request {n}");
        };
        assert_eq!((wc.wr_id, wc.status), (n, WcStatus::Success));
    }
}

/// Threads that post to a queue pair in the error state flush their own requests, in the order in which each
/// thread posts.
#[test]
fn what_is_posted_too_late_is_flushed_in_order() {
    const THREADS: u64 = 4;
    const EACH: u64 = 20_000;
    let (mut pair, c) = Pair::connected();
    c.id_a.abort();
    pair.event_a();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let qp = &c.qp_a;
            scope.spawn(move || {
                for n in 0..EACH {
                    let request = SendRequest::empty(thread << 32 | n, SendOp::Send);
                    // The queue is full until completions are polled.
                    while qp.post_send(&request).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let deadline = Instant::now() + PATIENCE;
        let mut next = [0; THREADS as usize];
        let mut reaped = 0;
        while reaped < THREADS * EACH {
            assert!(Instant::now() < deadline, "{reaped} completions");
            let Some(wc) = pair.a.cq.poll_one() else {
                std::thread::yield_now();
                continue;
            };
            let expected = &mut next[(wc.wr_id >> 32) as usize];
            assert_eq!((wc.wr_id & 0xffff_ffff, wc.status), (*expected, WcStatus::WrFlushError));
            *expected += 1;
            reaped += 1;
        }
    });
}

/// Some threads post while another thread closes gracefully. Requests posted before the close are executed,
/// and later requests are refused. Each accepted request completes once.
#[test]
fn posting_races_with_a_graceful_close() {
    const THREADS: u64 = 2;
    const NOT_YET: u8 = 0;
    const ASKING: u8 = 1;
    const ASKED: u8 = 2;
    for round in 0..20 {
        let (pair, c) = Pair::connected();
        let source = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
        let target = pair.b.pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let remote = remote_addr(&target, 0);
        let Pair { a, b, .. } = pair;
        let engines = [a.engine, b.engine].map(|engine| engine.spawn(ThreadOptions::default()).unwrap());
        let close = AtomicU8::new(NOT_YET);
        let deadline = Instant::now() + PATIENCE;
        let mut reaped = Vec::new();
        let taken: Vec<(u64, bool)> = std::thread::scope(|scope| {
            let post = |thread: u64| {
                let mut taken = Vec::new();
                for n in 0.. {
                    let before = close.load(Ordering::SeqCst);
                    let write = SendOp::Write { remote };
                    let request = SendRequest::new(thread << 32 | n, write, source.sge(0, 8));
                    match c.qp_a.post_send(&request) {
                        Ok(()) => {
                            assert_ne!(before, ASKED, "taken behind the close");
                            taken.push((request.wr_id, close.load(Ordering::SeqCst) == NOT_YET));
                        }
                        Err(VerbsError::InvalidState(_)) => {
                            assert_ne!(
                                close.load(Ordering::SeqCst),
                                NOT_YET,
                                "refused in front of the close"
                            );
                            if before == ASKED {
                                return taken;
                            }
                        }
                        Err(VerbsError::QueueFull(_)) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                    assert!(Instant::now() < deadline);
                }
                taken
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || post(thread))).collect();
            while reaped.len() < 100 * (round % 4) {
                reaped.extend(a.cq.poll_one());
                assert!(Instant::now() < deadline);
            }
            close.store(ASKING, Ordering::SeqCst);
            c.id_a.disconnect();
            close.store(ASKED, Ordering::SeqCst);
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        // In the error state, accepted requests may still have to be flushed, possibly by a thread that has
        // posted late.
        while c.qp_a.state() != QpState::Error || reaped.len() < taken.len() {
            reaped.extend(a.cq.poll_one());
            assert!(Instant::now() < deadline, "{} completions of {}", reaped.len(), taken.len());
        }
        reaped.extend(std::iter::from_fn(|| a.cq.poll_one()));
        let statuses: HashMap<u64, WcStatus> = reaped.iter().map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!((reaped.len(), statuses.len()), (taken.len(), taken.len()), "each completes once");
        for (wr_id, before) in taken {
            assert!(!before || statuses[&wr_id] == WcStatus::Success, "{wr_id:x}: {:?}", statuses[&wr_id]);
        }
        drop(engines);
    }
}

/// Stopping an engine thread wakes the thread, at any point between a poll and its sleep.
#[test]
fn an_engine_thread_stops_at_once() {
    let mut engine = Testbed::new().peer().engine;
    let options =
        ThreadOptions { spin_polls: 0, yield_polls: 0, max_sleep: PATIENCE, ..ThreadOptions::default() };
    for n in 0..10_000 {
        let thread = engine.spawn(options).unwrap();
        for _ in 0..n % 500 * 10 {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        engine = thread.stop();
        assert!(start.elapsed() < PATIENCE / 2, "round {n}");
    }
}

/// If a call asks for too many or too few entries, its error names the limit.
#[test]
fn limits_are_told() {
    let pair = Pair::new(&LinkConfig::default());
    let init = QpInit { max_send_wr: 1 << 20, ..QpInit::new(&pair.a.cq) };
    let Err(error) = pair.a.pd.create_qp(&init) else { panic!("no such queue pair") };
    assert_eq!(error.to_string(), "limit reached: max_qp_wr = 32768");
    let Err(error) = pair.a.context.create_cq(0, None) else { panic!("no such queue") };
    assert_eq!(error.to_string(), "a completion queue needs at least one entry");
}

/// An entry of the send queue is free when its completion has been polled, and not before. Therefore a user
/// that posts until the queue is full never makes a completion queue of the same depth overflow.
#[test]
fn a_place_in_the_send_queue_is_freed_by_reaping() {
    let mut pair = Pair::new(&LinkConfig::default());
    pair.a.cq = pair.a.context.create_cq(1024, None).unwrap();
    let c = pair.connect(&ConnParam::default());
    let source = pair.a.pd.reg_mr(64, Access::empty()).unwrap();
    let target = pair.b.pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let remote = remote_addr(&target, 0);
    let post = |n| c.qp_a.post_send(&SendRequest::new(n, SendOp::Write { remote }, source.sge(0, 8)));
    for n in 0..1024 {
        post(n).unwrap();
    }
    pair.run_us(100_000);
    assert!(matches!(post(1024), Err(VerbsError::QueueFull(_))), "all are done, none is reaped");
    assert_eq!(pair.a.cq.poll_one().map(|wc| wc.wr_id), Some(0));
    post(1024).unwrap();
    assert_eq!(std::iter::from_fn(|| pair.a.cq.poll_one()).count(), 1023);
    assert!(!pair.a.cq.overflowed());
}
