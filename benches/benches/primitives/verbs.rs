//! Times the calls that post a Write and poll its completion. The engine's work between these calls is not
//! timed.

use std::hint::black_box;
use std::time::{Duration, Instant};

use benches::two_hosts::{Config, TwoHosts};
use criterion::Criterion;
use dp::link::LinkConfig;
use iwarp::verbs::{SendFlags, SendOp, SendRequest, WcStatus};

const BYTES: usize = 64;

/// Number of requests posted before the engines are polled. The send queue has room for all these requests.
const BATCH: u64 = 64;

/// The call that is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Timed {
    Post,
    Poll,
}

pub(crate) fn all(criterion: &mut Criterion) {
    let mut hosts = TwoHosts::new(Config::new(LinkConfig::default(), BYTES)).expect("two hosts");
    hosts.connect(1).expect("a connection");
    hosts.a.memory.write_at(0, &[0x5a; BYTES]).expect("inside");
    let op = SendOp::Write { remote: hosts.b.remote() };
    let write = SendRequest::new(1, op, hosts.a.memory.sge(0, BYTES));
    let inline = write.clone().flags(SendFlags::SIGNALED | SendFlags::INLINE);
    let mut group = criterion.benchmark_group("verbs");
    let mut bench = |name, request: &SendRequest, timed| {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|count| batches(&mut hosts, request, count, timed))
        });
    };
    bench("post a signalled 64 B Write", &write, Timed::Post);
    bench("post it inline", &inline, Timed::Post);
    bench("poll its completion", &write, Timed::Poll);
    group.finish();
    let mut bytes = [0; BYTES];
    hosts.b.memory.read_at(0, &mut bytes).expect("inside");
    assert_eq!(bytes, [0x5a; BYTES], "what was written");
    assert!(hosts.a.engine.counters().tx_fpdus >= BATCH, "every Write was sent");
}

/// Posts `count` requests and polls their completions. Returns the time of the posts or of the polls, as
/// `timed` says.
fn batches(hosts: &mut TwoHosts, request: &SendRequest, count: u64, timed: Timed) -> Duration {
    let qp = hosts.a.qps[0].clone();
    let (mut time, mut left) = (Duration::ZERO, count);
    while left > 0 {
        let batch = left.min(BATCH);
        let posting = Instant::now();
        for _ in 0..batch {
            qp.post_send(black_box(request)).expect("room in the queue");
        }
        let posted = posting.elapsed();
        hosts.poll();
        let polling = Instant::now();
        for _ in 0..batch {
            // Each Write is complete here: a Write completes when TCP has accepted it, and TCP has space for
            // a whole batch.
            let completion = black_box(hosts.a.cq.poll_one()).expect("a completion");
            assert_eq!(completion.status, WcStatus::Success);
        }
        time += if timed == Timed::Post { posted } else { polling.elapsed() };
        left -= batch;
    }
    time
}
