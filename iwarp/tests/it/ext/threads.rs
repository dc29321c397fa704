//! Atomics of many streams on one word. Each engine runs on its own thread.

use crate::common::{PORT, remote_addr};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::common::ext::{ADD_ONE, ATOMIC, atomic, cas, word};
use crate::common::testbed::engine;
use dp::link::{LinkConfig, pair};
use iwarp::engine::{EngineThread, ThreadOptions};
use iwarp::memory::Access;
use iwarp::verbs::{
    CmId, CompletionQueue, ConnParam, Context, ContextConfig, EventChannel, ProtectionDomain, QpInit,
    QueuePair, WcStatus,
};

const PATIENCE: Duration = Duration::from_secs(120);

/// Calls `done` until `done` returns a value.
fn wait<T>(mut done: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(Instant::now() < end, "nothing happened");
        std::thread::yield_now();
    }
}

struct Side {
    context: Context,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    channel: EventChannel,
}

impl Side {
    fn new(number: u8) -> Self {
        let context = Context::new(ContextConfig { seed: Some([number; 32]), ..Default::default() }).unwrap();
        Self {
            pd: context.alloc_pd().unwrap(),
            cq: context.create_cq(4096, None).unwrap(),
            channel: context.create_event_channel().unwrap(),
            context,
        }
    }
}

/// Streams from A to B: `per_engine` streams on each of the two engines of a host.
struct Streams {
    a: Side,
    b: Side,
    ends: Vec<(QueuePair, QueuePair, [CmId; 2])>,
    _listener: CmId,
    _engines: Vec<EngineThread>,
}

impl Streams {
    fn new(per_engine: usize) -> Self {
        let (a, b) = (Side::new(1), Side::new(2));
        let mut engines = Vec::new();
        for net in 0..2_u8 {
            let (port_a, port_b) = pair(&LinkConfig::default());
            for (side, port, host) in [(&a, port_a, 1), (&b, port_b, 2)] {
                let address = format!("10.0.{net}.{host}/24");
                let engine = engine(&side.context, port, &address, 16 * net + host);
                engines.push(engine.spawn(ThreadOptions::default()).unwrap());
            }
        }
        let listener = b.context.create_id(&b.channel);
        listener.listen(PORT, 16, Duration::from_secs(10)).unwrap();
        let mut ends = Vec::new();
        for n in 0..2 * per_engine {
            let init = |cq| QpInit { max_send_wr: 256, ..QpInit::new(cq) };
            let (qp_a, qp_b) = (a.pd.create_qp(&init(&a.cq)).unwrap(), b.pd.create_qp(&init(&b.cq)).unwrap());
            let id = a.context.create_id(&a.channel);
            let net = n % 2;
            let param = ConnParam { engine: Some(net), ..ConnParam::default() };
            id.connect(&qp_a, format!("10.0.{net}.2:{PORT}").parse().unwrap(), &param).unwrap();
            let asked = wait(|| b.channel.poll());
            asked.id.accept(&qp_b, &ConnParam::default()).unwrap();
            for channel in [&a.channel, &b.channel] {
                let _event = told!(wait(|| channel.poll()), Established { .. });
            }
            ends.push((qp_a, qp_b, [id, asked.id]));
        }
        Self { a, b, ends, _listener: listener, _engines: engines }
    }
}

/// Each of four streams over two engines adds 1 ten thousand times. The sum is right, and no value is
/// returned twice.
// Proves EXT-029, EXT-099, EXT-103, EXT-166, EXT-170, EXT-192, EXT-193.
#[test]
fn four_streams_add_ten_thousand_times_each() {
    const EACH: usize = 10_000;
    let streams = Streams::new(2);
    let words = streams.b.pd.reg_mr(64, ATOMIC).unwrap();
    let target = remote_addr(&words, 8);
    let all = streams.ends.len() * EACH;
    let local = streams.a.pd.reg_mr(8 * all, Access::LOCAL_WRITE).unwrap();
    let mut posted = vec![0; streams.ends.len()];
    let mut completed = 0;
    wait(|| {
        for (n, (qp, ..)) in streams.ends.iter().enumerate() {
            while posted[n] < EACH {
                let slot = n * EACH + posted[n];
                if qp.post_send(&atomic(slot as u64, ADD_ONE, target, &local, 8 * slot)).is_err() {
                    break;
                }
                posted[n] += 1;
            }
        }
        while let Some(wc) = streams.a.cq.poll_one() {
            assert_eq!(wc.status, WcStatus::Success);
            completed += 1;
        }
        (completed == all).then_some(())
    });
    assert_eq!(word(&words, 8), all as u64);
    let mut values: Vec<u64> = (0..all).map(|slot| word(&local, 8 * slot)).collect();
    for stream in values.chunks(EACH) {
        assert!(stream.is_sorted(), "one stream's atomics are carried out in order");
    }
    values.sort_unstable();
    assert!(values.iter().copied().eq(0..all as u64), "every value once");
}

/// Half of the streams increment a word by compare-and-swap, and the others by FetchAdd. Each success
/// increments the word from a value that no other success has returned.
// Proves EXT-029, EXT-103, EXT-170.
#[test]
fn mixed_operations_agree_on_one_order() {
    const EACH: usize = 500;
    let streams = Streams::new(2);
    let words = streams.b.pd.reg_mr(8, ATOMIC).unwrap();
    let local = streams.a.pd.reg_mr(8 * streams.ends.len(), Access::LOCAL_WRITE).unwrap();
    let mut taken = BTreeSet::new();
    let mut left = vec![EACH; streams.ends.len()];
    let mut expected = vec![0; streams.ends.len()];
    let post = |n: usize, expected: u64| {
        let op = if n.is_multiple_of(2) { ADD_ONE } else { cas(expected, expected + 1) };
        streams.ends[n].0.post_send(&atomic(n as u64, op, remote_addr(&words, 0), &local, 8 * n)).unwrap();
    };
    (0..streams.ends.len()).for_each(|n| post(n, 0));
    let mut missed = 0;
    wait(|| {
        while let Some(wc) = streams.a.cq.poll_one() {
            assert_eq!(wc.status, WcStatus::Success);
            let n = wc.wr_id as usize;
            let value = word(&local, 8 * n);
            if n.is_multiple_of(2) || value == expected[n] {
                assert!(taken.insert(value), "{value} was taken twice");
                left[n] -= 1;
                expected[n] = value + 1;
            } else {
                missed += 1;
                expected[n] = value;
            }
            if left[n] > 0 {
                post(n, expected[n]);
            }
        }
        left.iter().all(|left| *left == 0).then_some(())
    });
    assert_eq!(word(&words, 0), taken.len() as u64);
    assert!(taken.iter().copied().eq(0..(EACH * streams.ends.len()) as u64));
    assert!(missed > 0, "the streams never met");
}
