//! `idle_qp_bytes`: memory that a queue pair takes which is connected and does nothing.
//!
//! What grows on the heap between two counts of open queue pairs, for each, at the end that takes more;
//! connected with all defaults, Reads and atomics included, and at rest. Work queues are set aside: what
//! grows with their depth, as measured by connecting some queue pairs with deep ones and as many with short
//! ones, is what they take.

use std::time::Duration;

use benches::errors::Error;
use dp::link::LinkConfig;

use crate::pair::heap::{Census, Owner};
use crate::pair::host::{Hosts, Lane, LaneConfig};
use crate::pair::interleave::Comparison;

/// What an idle queue pair may take, bytes.
const GOAL_BYTES: f64 = 4096.0;

/// Depth of each work queue.
const DEPTH: usize = 16;

/// Depths that are compared to find what an entry takes.
const SHORT: usize = 2;
const DEEP: usize = 66;

/// Long enough for the last acknowledgement to be sent.
const REST: Duration = Duration::from_millis(60);

/// How many queue pairs are open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) few: usize,
    pub(crate) many: usize,
    /// For what a work queue takes.
    pub(crate) sample: usize,
}

impl Default for Counts {
    fn default() -> Self {
        Self { few: 1_000, many: 10_000, sample: 128 }
    }
}

/// Bytes of one queue pair of `owner`'s that is connected and idle, without its work queues.
#[derive(Clone, Copy, Debug)]
struct Idle {
    owner: Owner,
    bytes: f64,
    /// What was set aside.
    work_queues: f64,
}

fn lane(qps: usize, depth: usize) -> Result<Lane, Error> {
    Hosts::new()?.lane(0, LaneConfig { link: LinkConfig::default(), qps, depth, bytes: 4096 })
}

/// Connects until there are `to` queue pairs and lets them rest; what each owner then has.
fn grow(lane: &mut Lane, to: usize) -> Result<[Census; 2], Error> {
    lane.connect(to)?;
    lane.rest(REST)?;
    Ok([Owner::Client, Owner::Server].map(Census::take))
}

/// What one more queue pair of `depth` takes, by owner, from the second half of `sample`.
fn sampled(depth: usize, sample: usize) -> Result<[f64; 2], Error> {
    let mut lane = lane(2 * sample, depth)?;
    let before = grow(&mut lane, sample)?;
    let after = grow(&mut lane, 2 * sample)?;
    Ok([0, 1].map(|end| (after[end].bytes - before[end].bytes) as f64 / sample as f64))
}

/// # Errors
/// Of the engines.
pub(crate) fn measure(counts: &Counts, detail: bool) -> Result<Comparison, Error> {
    let (short, deep) = (sampled(SHORT, counts.sample)?, sampled(DEEP, counts.sample)?);
    let mut lane = lane(counts.many, DEPTH)?;
    let before = grow(&mut lane, counts.few)?;
    let after = grow(&mut lane, counts.many)?;
    let more = (counts.many - counts.few) as f64;
    let ends = [Owner::Client, Owner::Server].map(|owner| {
        let end = owner as usize - Owner::Client as usize;
        let work_queues = (deep[end] - short[end]) / (DEEP - SHORT) as f64 * DEPTH as f64;
        let bytes = (after[end].bytes - before[end].bytes) as f64 / more - work_queues;
        let idle = Idle { owner, bytes, work_queues };
        if detail {
            tell(&idle, &after[end].growth(&before[end]), more);
        }
        idle
    });
    let bytes = ends[0].bytes.max(ends[1].bytes);
    Ok(Comparison { ours: bytes, theirs: GOAL_BYTES, unit: "bytes" })
}

/// Allocations of a queue pair by size, on standard error.
fn tell(idle: &Idle, growth: &[(Option<usize>, i64)], more: f64) {
    let Idle { owner, bytes, work_queues } = idle;
    eprintln!("{owner:?}: {bytes:.0} bytes, and {work_queues:.0} of work queues with {DEPTH} entries");
    for &(size, count) in
        growth.iter().filter(|&&(_, count)| count.abs() as f64 >= more / 100.0 || count.abs() < 4)
    {
        let each = count as f64 / more;
        match size {
            Some(size) => eprintln!("  {:8.1} in {each:6.3} of {size}", each * size as f64),
            None => eprintln!("           {each:6.3} of more than all of these"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue pair takes some memory, and less than its TCP and verbs objects could reasonably need.
    #[test]
    fn an_idle_queue_pair_takes_some_memory() {
        let counts = Counts { few: 64, many: 256, sample: 64 };
        let Comparison { ours, .. } = measure(&counts, false).unwrap();
        assert!((512.0..131_072.0).contains(&ours), "{ours}");
    }
}
