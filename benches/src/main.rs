//! iwperf.
fn main() {}
