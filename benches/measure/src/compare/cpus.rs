//! The CPUs on which measurements run.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testing::lab::Result;
use testing::lab_error;

/// Returns the first two CPUs that this process may use. If there is only one CPU, both are this CPU.
///
/// # Errors
/// Fails if the system does not report the CPUs.
pub(crate) fn two_cpus() -> Result<[usize; 2]> {
    let set = sched_getaffinity(None).map_err(|error| lab_error!("which CPUs: {error}"))?;
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    let first = allowed.next().ok_or_else(|| lab_error!("no CPU"))?;
    Ok([first, allowed.next().unwrap_or(first)])
}

/// Pins the calling thread to `cpu`.
///
/// # Errors
/// Fails if this process may not use `cpu`.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|error| lab_error!("CPU {cpu}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_kept_on_each_of_the_two_cpus() {
        for cpu in two_cpus().unwrap() {
            std::thread::spawn(move || {
                pin(cpu).unwrap();
                let set = sched_getaffinity(None).unwrap();
                assert!(set.is_set(cpu) && set.count() == 1);
            })
            .join()
            .unwrap();
        }
        assert!(pin(usize::MAX).is_err());
    }
}
