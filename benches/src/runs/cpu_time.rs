//! The CPU time of this process.

use rustix::time::{ClockId, clock_gettime};

/// The CPU time in seconds that this process had used at some moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuTime(f64);

impl CpuTime {
    /// The CPU time of this process so far.
    pub(super) fn now() -> Self {
        let time = clock_gettime(ClockId::ProcessCPUTime);
        Self(time.tv_sec as f64 + time.tv_nsec as f64 / 1e9)
    }

    /// The CPU time spent since that moment, in percent of one CPU over `seconds`.
    pub(super) fn percent_since(self, seconds: f64) -> f64 {
        100.0 * (Self::now().0 - self.0) / seconds.max(1e-9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_cpu_time() {
        let (start, time) = (CpuTime::now(), std::time::Instant::now());
        // The loop ends after one percent of a second of CPU time. The loop may take longer than that, since
        // other programs may use the CPU.
        while start.percent_since(1.0) < 1.0 {
            assert!(time.elapsed() < std::time::Duration::from_secs(20), "no time counts");
            std::hint::spin_loop();
        }
    }
}
