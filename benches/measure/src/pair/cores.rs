//! `cores_2`: the gain of a second core.
//!
//! Each host has two engines. Each core drives one engine of each host over a wire of its own. The load is
//! the Writes of `one_core`, on both cores at the same time and on each core alone. The baseline is nine
//! tenths of the gain that a second core brings for a loop that copies and computes CRCs.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use benches::errors::Error;

use crate::pair::alternate::{Comparison, Rate, alternate, timed};
use crate::pair::copy_crc::CopyCrc;
use crate::pair::one_core::{LOAD, MESSAGE_BYTES, virtual_wire};
use crate::pair::traffic::Traffic;

/// The baseline, as a share of the loop's gain.
const SHARE: f64 = 0.9;

/// A command for a core.
#[derive(Clone, Copy, Debug)]
enum Job {
    Engines(Duration),
    Loop(Duration),
}

/// A thread on its own core.
struct Core {
    jobs: Sender<Job>,
    done: Receiver<Result<Rate, Error>>,
}

/// Does jobs until there are no more jobs, and then checks the data.
fn work(
    cpu: usize,
    mut traffic: Traffic,
    jobs: &Receiver<Job>,
    done: &Sender<Result<Rate, Error>>,
) -> Result<(), Error> {
    benches::net::pin(cpu)?;
    let mut copy = CopyCrc::new(MESSAGE_BYTES);
    while let Ok(job) = jobs.recv() {
        let result = match job {
            Job::Engines(slice) => traffic.run(slice),
            Job::Loop(slice) => timed(slice, || Ok(copy.message())),
        };
        if done.send(result).is_err() {
            break;
        }
    }
    copy.validate()?;
    traffic.validate(2)
}

/// Makes `cores` do `job` at the same time. Returns the sum of their results.
fn together(cores: &[&Core], job: Job) -> Result<Rate, Error> {
    let gone = || Error::Usage("a core's thread has ended".into());
    for core in cores {
        core.jobs.send(job).map_err(|_| gone())?;
    }
    let mut all = Rate::default();
    for core in cores {
        all.add(core.done.recv().map_err(|_| gone())??);
    }
    Ok(all)
}

/// Returns the gain of a second core: the rate of both cores together, relative to the rate of one core.
/// `both` is a rate per core, so both cores together have twice this rate.
fn gain([first, second, both]: [Rate; 3]) -> f64 {
    let mut one = first;
    one.add(second);
    2.0 * both.gigabytes_per_s() / one.gigabytes_per_s()
}

/// # Errors
/// Returns an error of the engines, [`Error::Validation`] if a byte is wrong, or [`Error::Usage`] if this
/// process may not use a CPU.
pub(crate) fn measure(cpus: [usize; 2], time: Duration) -> Result<Comparison, Error> {
    let first = Traffic::new(virtual_wire(), 1, LOAD)?;
    let second = first.on_another_wire()?;
    compare(cpus, time, [first, second])
}

/// Compares the gain of a second core for the traffic with the gain for the loop.
///
/// # Errors
/// Returns an error of the engines, [`Error::Validation`] if a byte is wrong, or [`Error::Usage`] if this
/// process may not use a CPU.
pub(crate) fn compare(cpus: [usize; 2], time: Duration, traffic: [Traffic; 2]) -> Result<Comparison, Error> {
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut cores = Vec::new();
        for (traffic, cpu) in traffic.into_iter().zip(cpus) {
            let ((jobs, to_do), (to_tell, done)) = (channel(), channel());
            threads.push(scope.spawn(move || work(cpu, traffic, &to_do, &to_tell)));
            cores.push(Core { jobs, done });
        }
        let [first, second] = &cores[..] else { unreachable!("there are two cores") };
        let (alone, other, both) = ([first], [second], [first, second]);
        let [a, b, ab, c, d, cd] = alternate(
            time,
            [
                &mut |slice| together(&alone, Job::Engines(slice)),
                &mut |slice| together(&other, Job::Engines(slice)),
                &mut |slice| together(&both, Job::Engines(slice)),
                &mut |slice| together(&alone, Job::Loop(slice)),
                &mut |slice| together(&other, Job::Loop(slice)),
                &mut |slice| together(&both, Job::Loop(slice)),
            ],
        )?;
        // Without further jobs, the threads check the data and end.
        drop(cores);
        for thread in threads {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        }
        Ok(Comparison { ours: gain([a, b, ab]), theirs: SHARE * gain([c, d, cd]), unit: "x" })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_cores_as_fast_as_one_each_are_a_gain_of_two() {
        let rate = |bytes| Rate { bytes, time: Duration::from_nanos(1000) };
        let mut both = rate(1000);
        both.add(rate(1000));
        assert_eq!(gain([rate(1000), rate(1000), both]), 2.0);
        assert_eq!(gain([rate(1500), rate(500), rate(750)]), 1.5);
    }
}
