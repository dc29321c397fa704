//! Checks that idle processes use little processor time, and wake up rarely.

use std::fmt::Display;
use std::time::Duration;

use crate::process::{cpu_time, waits};

/// Maximum processor time, as the divisor of the measured time: 5 %. A process that polls without sleep uses
/// more, even if thirty busy programs share two processors with it. A process that sleeps uses less than 0.1
/// % on an idle machine. On a busy virtual machine, each wake-up has cost up to 0.4 ms, so a lower limit
/// would measure the machine. [`MOST_WAKE_UPS`] finds a process that polls with pauses.
const MOST_TIME_DIVISOR: u32 = 20;
/// Maximum number of wake-ups per second. DPDK's threads for vhost wake up 50 times a second, and an engine
/// that polls with pauses of a millisecond wakes up a thousand times a second.
const MOST_WAKE_UPS: f64 = 200.0;
/// Maximum number of measurements. One measurement within the limits is enough, since other programs can only
/// increase the figures.
const LOOKS: usize = 3;

/// Fails if one of `processes` (name and process id) uses more processor time, or wakes up more often, than a
/// process that sleeps until something happens. Prints the figures of each process. Measures up to `LOOKS`
/// times, each for the time `measured`, until all processes are within the limits.
///
/// # Errors
/// The figures of the first process that exceeds a limit, or the error for a process that has ended.
pub fn are_idle<N: Display>(measured: Duration, processes: &[(N, u32)]) -> Result<(), String> {
    for _ in 1..LOOKS {
        if look(processes, measured).is_ok() {
            return Ok(());
        }
    }
    look(processes, measured)
}

fn look<N: Display>(processes: &[(N, u32)], measured: Duration) -> Result<(), String> {
    let before = spent(processes)?;
    std::thread::sleep(measured);
    let mut wrong = Ok(());
    for ((name, _), (before, after)) in processes.iter().zip(before.into_iter().zip(spent(processes)?)) {
        let (used, woken) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
        let line = format!("{name} has used {used:?} in {measured:?}, and woken {woken} times");
        println!("  {line}");
        if used >= measured / MOST_TIME_DIVISOR || woken as f64 >= MOST_WAKE_UPS * measured.as_secs_f64() {
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
    use std::sync::atomic::{AtomicBool, Ordering};

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
        let told = look(&both, Duration::from_secs(1)).unwrap_err();
        assert!(told.starts_with("the other one has used "), "{told}");
        look(&both[..1], Duration::from_secs(1)).unwrap();
        drop(busy);
        assert!(look(&both, Duration::ZERO).unwrap_err().starts_with("process "));
    }

    #[test]
    fn a_process_that_polls_with_pauses_is_told_from_one_that_sleeps() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            let told = look(&[("this process", std::process::id())], Duration::from_secs(1));
            stop.store(true, Ordering::Relaxed);
            assert!(told.unwrap_err().starts_with("this process has used "));
        });
    }
}
