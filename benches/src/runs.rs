//! The measurements of a test. [`perftest::script`](crate::perftest::script) runs them in order, and
//! synchronizes the two ends between them.

pub mod bandwidth;
mod cpu_time;
mod figures;
pub mod latency;
pub mod merge;
pub mod repeats;

pub use figures::{BandwidthRow, CoreFigures, Figures, LoadFigures, OnRow, Row};
