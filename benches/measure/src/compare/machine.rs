//! A description of the machine, shown with figures.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use testing::lab::Result;
use testing::lab_error;

/// The properties that figures depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    /// The processor's model name.
    pub(crate) cpu: String,
    /// Cores that this process may use.
    pub(crate) cores: usize,
    /// Kernel and its release.
    pub(crate) kernel: String,
}

impl Machine {
    /// This one.
    pub(crate) fn here() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            cpu: cpu_name(&cpuinfo).unwrap_or("unknown processor").to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: format!("Linux {}", release.trim()),
        }
    }
}

impl std::fmt::Display for Machine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} cores, {}", self.cpu, self.cores, self.kernel)
    }
}

fn cpu_name(cpuinfo: &str) -> Option<&str> {
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim())
}

/// The first two CPUs that this process may use; the same one twice if there is only one.
///
/// # Errors
/// If the system does not report them.
pub(crate) fn two_cpus() -> Result<[usize; 2]> {
    let set = sched_getaffinity(None).map_err(|error| lab_error!("which CPUs: {error}"))?;
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    let first = allowed.next().ok_or_else(|| lab_error!("no CPU"))?;
    Ok([first, allowed.next().unwrap_or(first)])
}

/// Pins the calling thread to `cpu`.
///
/// # Errors
/// If this process may not use that CPU.
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
    fn a_processor_is_named_as_it_names_itself() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU @ 2.50GHz\nmodel name\t: Other\n";
        assert_eq!(cpu_name(cpuinfo), Some("Some CPU @ 2.50GHz"));
        assert_eq!(cpu_name("processor: 0\n"), None);
    }

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
