//! `queues_2` and `engines_8`: several engines of a host, which are on the queues of one device and share one
//! address.

use std::time::Duration;

use benches::errors::Error;
use dp::link::{LinkConfig, LinkSteering};

use crate::pair::alternate::{Comparison, Rate, alternate, timed};
use crate::pair::cores;
use crate::pair::one_core::{LOAD, virtual_wire};
use crate::pair::traffic::{Load, Traffic};

/// Total number of queue pairs of `engines_8`, whatever the number of engines is.
const QPS: usize = 8;

/// Numbers of engines that are compared with one engine.
const ENGINES: [usize; 3] = [2, 4, 8];

/// `queues_2`: like `cores_2`, but the two cores use two queues of one link. The devices choose the queue of
/// a received frame by a hash (RSS).
///
/// # Errors
/// Returns an error of the engines, [`Error::Validation`] if a byte is wrong, or [`Error::Usage`] if this
/// process may not use a CPU.
pub(crate) fn two_cores(cpus: [usize; 2], time: Duration) -> Result<Comparison, Error> {
    let mut both = Traffic::on_queues(virtual_wire(), 2, LinkSteering::Rss, 1, LOAD)?.into_iter();
    let (Some(first), Some(second)) = (both.next(), both.next()) else {
        unreachable!("there are two queues")
    };
    cores::compare(cpus, time, [first, second])
}

/// Several engines of each host in one thread, which polls them in turn.
struct Shared(Vec<Traffic>);

impl Shared {
    /// Makes `engines` engines. Each engine has its part of the queue pairs and of the buffers.
    fn new(engines: usize) -> Result<Self, Error> {
        let all = virtual_wire();
        let link = LinkConfig { mbufs: all.mbufs / engines, bulk_mbufs: all.bulk_mbufs / engines, ..all };
        let qps = QPS / engines;
        let load = Load { bytes: 64 << 10, depth: 4, active: qps, redraw: None, seed: 8 };
        Traffic::on_queues(link, engines, LinkSteering::SenderQueue, qps, load).map(Self)
    }

    fn run(&mut self, slice: Duration) -> Result<Rate, Error> {
        for traffic in &mut self.0 {
            traffic.start()?;
        }
        timed(slice, || self.0.iter_mut().map(Traffic::step).sum())
    }

    fn validate(self) -> Result<(), Error> {
        self.0.into_iter().try_for_each(|traffic| traffic.validate(2))
    }
}

/// `engines_8`: compares several numbers of engines with one engine, on one core. The number of engines with
/// the lowest rate counts. If `detail` is true, prints each rate on standard error.
///
/// # Errors
/// Returns an error of the engines, or [`Error::Validation`] if a byte is wrong.
pub(crate) fn one_core(time: Duration, detail: bool) -> Result<Comparison, Error> {
    let mut one = Shared::new(1)?;
    let [two, four, eight] = ENGINES.map(Shared::new);
    let (mut two, mut four, mut eight) = (two?, four?, eight?);
    let [alone, several @ ..] = alternate(
        time,
        [
            &mut |slice| one.run(slice),
            &mut |slice| two.run(slice),
            &mut |slice| four.run(slice),
            &mut |slice| eight.run(slice),
        ],
    )?;
    let several = several.map(|rate| rate.gigabytes_per_s());
    if detail {
        eprintln!("one engine {:.3} GB/s, {ENGINES:?}: {several:.3?}", alone.gigabytes_per_s());
    }
    for shared in [one, two, four, eight] {
        shared.validate()?;
    }
    let slowest = several.into_iter().fold(f64::INFINITY, f64::min);
    Ok(Comparison { ours: slowest, theirs: alone.gigabytes_per_s(), unit: "GB/s" })
}
