//! Times the lookup of a segment's connection among few and many connections.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion};
use tcp_lite::bench::{Demultiplexer, Tuple};

pub(crate) fn all(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("demultiplex");
    for count in [1_u32, 100, 10_000, 100_000] {
        let table = Demultiplexer::new(count);
        // The lookups are in an order that defeats the caches. The factor is a prime that divides no `count`
        // above 1, so every connection occurs once.
        let order: Vec<(Tuple, u32)> = (0..u64::from(count))
            .map(|n| (n * 7919 % u64::from(count)) as u32)
            .map(|n| (Tuple::nth(n), n))
            .collect();
        assert!(order.iter().all(|(tuple, n)| table.find(tuple) == Some(*n)), "each is found");
        let mut next = 0;
        group.bench_function(BenchmarkId::new("found", count), |bencher| {
            bencher.iter(|| {
                next = if next + 1 == order.len() { 0 } else { next + 1 };
                table.find(black_box(&order[next].0))
            });
        });
        let mut stranger = count;
        assert_eq!(table.find(&Tuple::nth(stranger)), None);
        group.bench_function(BenchmarkId::new("stranger", count), |bencher| {
            bencher.iter(|| {
                stranger = stranger.wrapping_add(1).max(count);
                table.find(black_box(&Tuple::nth(stranger)))
            });
        });
    }
    group.finish();
}
