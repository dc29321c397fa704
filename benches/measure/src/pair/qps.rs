//! `qps_1k` and `qps_10k`: what many open queue pairs cost the active queue pairs.
//!
//! The load is 64 KiB Writes over the wire of `one_core`, on 64 active queue pairs, with four Writes in
//! flight on each. Every 10 ms, the 64 active queue pairs are drawn again from all open queue pairs. Queue
//! pairs that were active before only finish their posted requests. The baseline is this traffic with only 64
//! open queue pairs.

use std::time::Duration;

use benches::errors::Error;

use crate::pair::alternate::{Comparison, alternate};
use crate::pair::one_core::virtual_wire;
use crate::pair::traffic::{Load, Traffic};

/// Number of queue pairs that are active at a time.
const ACTIVE: usize = 64;

const LOAD: Load =
    Load { bytes: 64 << 10, depth: 4, active: ACTIVE, redraw: Some(Duration::from_millis(10)), seed: 64 };

/// Compares the traffic with `open` open queue pairs and the traffic with 64 open queue pairs. If `detail` is
/// true, prints the engines' counters on standard error.
///
/// # Errors
/// Returns an error of the engines, or [`Error::Validation`] if a byte is wrong.
pub(crate) fn measure(open: usize, time: Duration, detail: bool) -> Result<Comparison, Error> {
    let traffic = |open| Traffic::new(virtual_wire(), open, LOAD);
    let (mut many, mut few) = (traffic(open)?, traffic(ACTIVE)?);
    // In its first round trips, a connection sends less data at once. Since this effect is not a cost of many
    // connections, both sides are warmed up.
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
