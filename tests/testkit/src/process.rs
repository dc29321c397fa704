//! The state of processes, as Linux shows it in `/proc`.

use std::io::{Error, ErrorKind, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Returns the processor time that the threads of process `id` have used so far.
///
/// # Errors
/// If the process has ended.
pub fn cpu_time(id: u32) -> Result<Duration> {
    let first = |text: &str| text.split_whitespace().next().and_then(|number| number.parse::<u64>().ok());
    sum_of_threads(id, "schedstat", first).map(Duration::from_nanos)
}

/// Returns the number of voluntary context switches of the current threads of process `id`.
///
/// # Errors
/// If the process has ended.
pub fn waits(id: u32) -> Result<u64> {
    let count = |text: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    sum_of_threads(id, "status", count)
}

/// Returns the sum over all threads of the number that `number` finds in a file of the thread.
fn sum_of_threads(id: u32, file: &str, number: impl Fn(&str) -> Option<u64>) -> Result<u64> {
    let folder = PathBuf::from(format!("/proc/{id}/task"));
    let named = |error: Error| Error::new(error.kind(), format!("process {id}: {error}"));
    let mut sum = 0;
    for thread in std::fs::read_dir(folder).map_err(named)? {
        let path = thread.map_err(named)?.path().join(file);
        // The thread may have ended in the meantime.
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let unknown = || Error::new(ErrorKind::InvalidData, format!("{}: {text}", path.display()));
        sum += number(&text).ok_or_else(unknown)?;
    }
    Ok(sum)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    #[test]
    fn time_and_waits_of_this_process_grow() {
        let id = std::process::id();
        let (time, waited) = (cpu_time(id).unwrap(), waits(id).unwrap());
        let begun = Instant::now();
        while cpu_time(id).unwrap() < time + Duration::from_millis(20) {
            assert!(begun.elapsed() < Duration::from_secs(30));
        }
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(waits(id).unwrap() >= waited + 10);
    }

    #[test]
    fn a_process_that_sleeps_uses_no_time() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let id = child.id();
        // The test waits until the process has started.
        let begun = Instant::now();
        while waits(id).unwrap() == 0 {
            assert!(begun.elapsed() < Duration::from_secs(30));
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(200));
        let before = cpu_time(id).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(cpu_time(id).unwrap(), before);
        child.kill().unwrap();
        child.wait().unwrap();
        let gone = cpu_time(id).unwrap_err();
        assert!(gone.to_string().starts_with(&format!("process {id}: ")), "{gone}");
    }
}
