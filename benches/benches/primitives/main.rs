//! Times of what the data path is made of, each part by itself:
//! `cargo bench -p benches --no-default-features --bench primitives -- [FILTER]`.
//!
//! Times, so they are for comparing on one machine, in one run: with what is timed beside them, not with
//! another day.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "criterion's macro makes a public function")]

mod checksum;
mod demultiplex;
mod framing;
mod headers;
mod sum;
mod timers;
mod verbs;

use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};

/// About a minute for all: short runs often say more than long ones where others use the machine too.
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
    targets = sum::alone, sum::copies, checksum::all, headers::emit, headers::parse, framing::frame, framing::deframe,
        demultiplex::all, timers::all, verbs::all
}
criterion_main!(primitives);
