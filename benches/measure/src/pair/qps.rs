//! `qps_1k` and `qps_10k`: the cost of many open queue pairs for the active ones.
//!
//! 64 KiB Writes over the wire of `one_core`, on 64 queue pairs, with four in flight on each. The 64 are
//! drawn again every 10 ms from all open queue pairs; the previously active ones only finish their posted
//! requests. The baseline is the same traffic with only 64 open.

use std::time::Duration;

use benches::errors::Error;

use crate::pair::alternate::{Comparison, alternate};
use crate::pair::one_core::virtual_wire;
use crate::pair::traffic::{Load, Traffic};

/// Active queue pairs at a time.
const ACTIVE: usize = 64;

const LOAD: Load =
    Load { bytes: 64 << 10, depth: 4, active: ACTIVE, redraw: Some(Duration::from_millis(10)), seed: 64 };

/// Measures with `open` queue pairs, against 64. `detail`: prints the engines' counters on standard error.
///
/// # Errors
/// Returns errors of the engines, or [`Error::Validation`].
pub(crate) fn measure(open: usize, time: Duration, detail: bool) -> Result<Comparison, Error> {
    let traffic = |open| Traffic::new(virtual_wire(), open, LOAD);
    let (mut many, mut few) = (traffic(open)?, traffic(ACTIVE)?);
    // A connection sends less at once before its first round trips, which is not a cost of many connections.
    many.warm_up()?;
    few.warm_up()?;
    let [many_rate, few_rate] = alternate(time, [&mut |slice| many.run(slice), &mut |slice| few.run(slice)])?;
    if detail {
        eprintln!("{open} open: {:#?}\n{ACTIVE} open: {:#?}", many.counters(), few.counters());
    }
    many.validate(4)?;
    few.validate(4)?;
    Ok(Comparison { ours: many_rate.gigabytes_per_s(), theirs: few_rate.gigabytes_per_s(), unit: "GB/s" })
}
