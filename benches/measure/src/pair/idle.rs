//! `idle_qp_bytes`: the memory of an idle connected queue pair.
//!
//! The program measures the growth of the heap between two numbers of open queue pairs. The figure is this
//! growth divided by the number of added queue pairs, at the end that needs more memory. The queue pairs are
//! connected with all defaults, including Reads and atomics, and are idle. The memory of work queues is
//! subtracted. To measure the memory of work queues, the program connects some queue pairs with deep queues
//! and as many queue pairs with short queues.

use benches::errors::Error;
use benches::two_hosts::{Config, Owner, TwoHosts};
use dp::link::LinkConfig;

use crate::pair::alternate::Comparison;
use crate::pair::heap::Census;

/// Goal for an idle queue pair in bytes.
const GOAL_BYTES: f64 = 4096.0;

/// Depth of each work queue.
const DEPTH: usize = 16;

/// Depth of the short queues.
const SHORT: usize = 2;
const DEEP: usize = 66;

/// Virtual time in microseconds within which the last acknowledgement is sent.
const REST_US: u64 = 60_000;

/// Numbers of open queue pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Counts {
    pub(crate) few: usize,
    pub(crate) many: usize,
    /// Number of queue pairs for the measurement of work queues.
    pub(crate) sample: usize,
}

impl Default for Counts {
    fn default() -> Self {
        Self { few: 1_000, many: 10_000, sample: 128 }
    }
}

/// The memory of one connected and idle queue pair of `owner`, without its work queues.
#[derive(Clone, Copy, Debug)]
struct Idle {
    owner: Owner,
    bytes: f64,
    /// Number of bytes of the work queues, which were subtracted.
    work_queues: f64,
}

fn hosts(qps: usize, depth: usize) -> Result<TwoHosts, Error> {
    TwoHosts::new(Config { qps, depth, ..Config::new(LinkConfig::default(), 4096) })
}

/// Connects until there are `to` queue pairs, and waits until all queue pairs are idle. Returns the live
/// allocations of each owner.
fn grow(hosts: &mut TwoHosts, to: usize) -> Result<[Census; 2], Error> {
    hosts.connect(to)?;
    let end = hosts.now_us() + REST_US;
    while hosts.now_us() < end {
        hosts.poll();
    }
    Ok([Owner::Client, Owner::Server].map(Census::take))
}

/// Returns the memory by owner of one more queue pair of `depth`. Connects `sample` queue pairs, and measures
/// the next `sample` queue pairs.
fn sampled(depth: usize, sample: usize) -> Result<[f64; 2], Error> {
    let mut hosts = hosts(2 * sample, depth)?;
    let before = grow(&mut hosts, sample)?;
    let after = grow(&mut hosts, 2 * sample)?;
    Ok([0, 1].map(|end| (after[end].bytes - before[end].bytes) as f64 / sample as f64))
}

/// # Errors
/// Returns an error of the engines.
pub(crate) fn measure(counts: &Counts, detail: bool) -> Result<Comparison, Error> {
    let (short, deep) = (sampled(SHORT, counts.sample)?, sampled(DEEP, counts.sample)?);
    let mut hosts = hosts(counts.many, DEPTH)?;
    let before = grow(&mut hosts, counts.few)?;
    let after = grow(&mut hosts, counts.many)?;
    let more = (counts.many - counts.few) as f64;
    let ends = [Owner::Client, Owner::Server].map(|owner| {
        let end = owner as usize - Owner::Client as usize;
        let work_queues = (deep[end] - short[end]) / (DEEP - SHORT) as f64 * DEPTH as f64;
        let bytes = (after[end].bytes - before[end].bytes) as f64 / more - work_queues;
        let idle = Idle { owner, bytes, work_queues };
        if detail {
            print_detail(&idle, &after[end].growth(&before[end]), more);
        }
        idle
    });
    let bytes = ends[0].bytes.max(ends[1].bytes);
    Ok(Comparison { ours: bytes, theirs: GOAL_BYTES, unit: "bytes" })
}

/// Prints the allocations of a queue pair by size on standard error.
fn print_detail(idle: &Idle, growth: &[(Option<usize>, i64)], more: f64) {
    let Idle { owner, bytes, work_queues } = idle;
    eprintln!("{owner:?}: {bytes:.0} bytes, and {work_queues:.0} bytes of work queues with {DEPTH} entries");
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

    /// Checks that the memory of an idle queue pair is plausible: at least 512 bytes, and less than 128 KiB.
    #[test]
    fn an_idle_queue_pair_takes_some_memory() {
        let counts = Counts { few: 64, many: 256, sample: 64 };
        let Comparison { ours, .. } = measure(&counts, false).unwrap();
        assert!((512.0..131_072.0).contains(&ours), "{ours}");
    }
}
