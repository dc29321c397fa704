//! The measurements, which run between the synchronisations of the exchange.

pub mod bandwidth;
mod cpu_time;
mod figures;
pub mod latency;
pub mod merge;
pub mod repeats;

pub use figures::{BandwidthRow, CoreFigures, Figures, LoadFigures, OnRow, Row};
