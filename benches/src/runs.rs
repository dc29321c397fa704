//! The measurements of a test. [`perftest::script`](crate::perftest::script) runs the measurements in order,
//! and synchronizes the two sides between any two measurements.

pub mod bandwidth;
mod cpu_time;
mod figures;
pub mod latency;
pub mod merge;
pub mod repeats;

pub use figures::{BandwidthRow, CoreFigures, Figures, LoadFigures, OnRow, Row};
