//! Times single parts of the data path:
//! `cargo bench -p benches --no-default-features --bench primitives -- [FILTER]`.
//!
//! Times vary between machines and days: compare only times of one run on one machine.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "criterion's macro makes a public function")]

mod checksum;
mod crc32c;
mod demultiplex;
mod framing;
mod headers;
mod timers;
mod verbs;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

/// A configuration with which all benchmarks together take about a minute. On a shared machine, many short
/// runs are more reliable than few long runs.
fn briefly() -> Criterion {
    Criterion::default()
        .warm_up_time(Duration::from_millis(100))
        .measurement_time(Duration::from_millis(400))
        .sample_size(40)
        .nresamples(10_000)
        .without_plots()
}

criterion_group! {
    name = primitives;
    config = briefly();
    targets = crc32c::alone, crc32c::copies, checksum::all, headers::emit, headers::parse, framing::frame, framing::deframe,
        demultiplex::all, timers::all, verbs::all
}
criterion_main!(primitives);
