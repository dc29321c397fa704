//! Times the timer wheel with 10,000 timers, such as an engine with many connections has.

use std::hint::black_box;
use std::time::{Duration, Instant as Stopwatch};

use criterion::Criterion;
use tcp_lite::Instant;
use tcp_lite::bench::ConnTimers;

const TIMERS: u32 = 10_000;

/// Duration of a retransmission timer in microseconds.
const RTO_US: u64 = 200_000;

fn at(us: u64) -> Option<Instant> {
    Some(Instant::from_micros(us as i64))
}

/// Returns the deadline of a timer: at least the RTO, and less than five milliseconds more. Two of the
/// [`TIMERS`] timers share each deadline.
fn deadline(slot: u32) -> u64 {
    RTO_US + u64::from(slot) * 37 % 5000
}

fn armed() -> ConnTimers {
    let mut wheel = ConnTimers::new(TIMERS as usize);
    (0..TIMERS).for_each(|slot| wheel.set(slot, at(deadline(slot))));
    wheel
}

/// Returns the time that `iterations` calls of `act` take. Before the first call, and after every [`TIMERS`]
/// calls, `make` makes a new wheel. The time of `make` is not counted.
fn rounds(
    iterations: u64,
    mut make: impl FnMut() -> ConnTimers,
    mut act: impl FnMut(&mut ConnTimers, u32),
) -> Duration {
    let (mut time, mut left) = (Duration::ZERO, iterations);
    while left > 0 {
        let now = left.min(u64::from(TIMERS)) as u32;
        let mut wheel = make();
        let start = Stopwatch::now();
        (0..now).for_each(|slot| act(&mut wheel, slot));
        time += start.elapsed();
        black_box(&mut wheel);
        left -= u64::from(now);
    }
    time
}

pub(crate) fn all(criterion: &mut Criterion) {
    check();
    let mut group = criterion.benchmark_group("timer wheel");
    group.bench_function("arm", |bencher| {
        let idle = || ConnTimers::new(TIMERS as usize);
        bencher.iter_custom(|count| {
            rounds(count, idle, |wheel, slot| wheel.set(slot, black_box(at(deadline(slot)))))
        });
    });
    group.bench_function("cancel", |bencher| {
        bencher.iter_custom(|count| rounds(count, armed, |wheel, slot| wheel.set(slot, black_box(None))));
    });
    // This benchmark sets a timer to a slightly later time, as each acknowledgement does in TCP.
    let (mut wheel, mut slot, mut now_us) = (armed(), 0, 0);
    group.bench_function("re-arm", |bencher| {
        bencher.iter(|| {
            slot = (slot + 1) % TIMERS;
            now_us += 1;
            wheel.set(black_box(slot), at(RTO_US + now_us));
        });
    });
    // Each call advances the wheel by ten microseconds, as an engine may do in a poll. A round ends before
    // the first timer is due.
    group.bench_function("advance, nothing due", |bencher| {
        bencher.iter_custom(|count| {
            rounds(count, armed, |wheel, round| {
                assert_eq!(fire(wheel, u64::from(round) * 10), None);
            })
        });
    });
    // All timers are due at the time of each call, and each call fires the next timer.
    group.bench_function("advance to a timer and fire it", |bencher| {
        bencher.iter_custom(|count| {
            rounds(count, armed, |wheel, _| {
                black_box(fire(wheel, RTO_US + 5000));
            })
        });
    });
    group.finish();
}

/// Removes and returns the next timer that is due at `until_us`, or returns `None` if no timer is due.
fn fire(wheel: &mut ConnTimers, until_us: u64) -> Option<u32> {
    wheel.expired(black_box(Instant::from_micros(until_us as i64)))
}

/// Checks that each armed timer fires once, that no timer fires before the RTO, and that a cancelled timer
/// does not fire.
fn check() {
    let mut wheel = armed();
    assert_eq!(fire(&mut wheel, RTO_US - 1), None);
    wheel.set(7, None);
    let mut fired: Vec<u32> = std::iter::from_fn(|| fire(&mut wheel, RTO_US + 5000)).collect();
    fired.sort_unstable();
    assert!(fired.into_iter().eq((0..TIMERS).filter(|slot| *slot != 7)));
}
