//! The measurements of a test. Before and after each measurement, the two ends wait for each other.

pub mod bandwidth;
mod cpu_time;
mod figures;
pub mod latency;
pub mod merge;
pub mod repeats;

pub use figures::{BandwidthRow, CoreFigures, Figures, LoadFigures, OnRow, Row};
