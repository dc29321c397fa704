//! The processor time and the number of wake-ups of idle processes.

use std::fmt::Display;
use std::time::Duration;

use crate::process::{cpu_time, waits};

/// Duration of a measurement.
const MEASURED: Duration = Duration::from_secs(10);
/// Maximum processor time in a measurement: 0.5 % of a processor. On an idle machine the processes use less
/// than 0.1 %. With ten other programs on two processors, each wake-up costs more.
const MOST_TIME: Duration = MEASURED.checked_div(200).unwrap();
/// Maximum number of wake-ups in a measurement. DPDK's threads for vhost wake up 50 times per second; an
/// engine that polls with pauses of a millisecond wakes up a thousand times per second.
const MOST_WAKE_UPS: u64 = 2000;
/// Maximum number of measurements, one of which has to be within the limits. Other programs can only increase
/// the figures.
const LOOKS: usize = 3;

/// Checks that no process computes, or wakes up more often than a process that sleeps until something
/// happens. `processes` has the name and the id of each process. Prints their figures.
///
/// # Errors
/// The figures of the first process that exceeds a limit, or a message that a process has ended.
pub fn are_idle<N: Display>(processes: &[(N, u32)]) -> Result<(), String> {
    for _ in 1..LOOKS {
        if look(processes, MEASURED).is_ok() {
            return Ok(());
        }
    }
    look(processes, MEASURED)
}

fn look<N: Display>(processes: &[(N, u32)], measured: Duration) -> Result<(), String> {
    let before = spent(processes)?;
    std::thread::sleep(measured);
    let mut wrong = Ok(());
    for ((name, _), (before, after)) in processes.iter().zip(before.into_iter().zip(spent(processes)?)) {
        let (used, woken) = (after.0 - before.0, after.1 - before.1);
        let line = format!("{name} has used {used:?} in {measured:?}, and woken {woken} times");
        println!("  {line}");
        if used >= MOST_TIME || woken >= MOST_WAKE_UPS {
            wrong = wrong.and(Err(line));
        }
    }
    wrong
}

/// Returns the processor time of each process, and the number of its wake-ups.
fn spent<N>(processes: &[(N, u32)]) -> Result<Vec<(Duration, u64)>, String> {
    let spent = |id| Ok::<_, std::io::Error>((cpu_time(id)?, waits(id)?));
    processes.iter().map(|(_, id)| spent(*id).map_err(|error| error.to_string())).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Running(Child);

    impl Running {
        fn shell(script: &str) -> Self {
            Self(Command::new("sh").args(["-c", script]).spawn().unwrap())
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_process_that_computes_is_told_from_one_that_sleeps() {
        let (asleep, busy) = (Running::shell("exec sleep 60"), Running::shell("while :; do :; done"));
        let both = [("the sleeper", asleep.0.id()), ("the other one", busy.0.id())];
        // A measurement of one second is enough: its limit is 50 ms of processor time, and a process that
        // computes exceeds this even if it gets only a part of a processor.
        let told = look(&both, Duration::from_secs(1)).unwrap_err();
        assert!(told.starts_with("the other one has used "), "{told}");
        look(&both[..1], Duration::from_secs(1)).unwrap();
        drop(busy);
        assert!(look(&both, Duration::ZERO).unwrap_err().starts_with("process "));
    }
}
