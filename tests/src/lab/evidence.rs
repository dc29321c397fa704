//! The evidence of a failed test: the frames on the wire, and the status of this user's programs once a
//! second.
//!
//! A failure that occurs once in a hundred runs cannot be repeated at will. Therefore a test gathers the
//! evidence in every run, and deletes it when the test has passed.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::process::{Process, Run};
use super::{Namespace, Result, suite};
use crate::lab_error;

/// Number of captured bytes of each frame: all headers, including RDMAP's in the first FPDU.
const SNAP_BYTES: &str = "160";
/// Number of files with captured frames, and size of each file in millions of bytes. The oldest file is
/// overwritten.
const FILES: [&str; 2] = ["4", "16"];
/// Interval of status samples.
const NEXT_LOOK: Duration = Duration::from_secs(1);
/// Number of kept status samples.
const LOOKS: usize = 90;
/// Number of frames whose lines are printed.
const FRAMES_SHOWN: usize = 40;
/// Maximum duration of a command that writes evidence.
const LIMIT: Duration = Duration::from_secs(30);

/// The evidence of the running test. The evidence is deleted when the value is dropped, unless it was
/// [kept](Self::keep).
pub struct Evidence {
    folder: PathBuf,
    capture: Option<Process>,
    looks: Option<(Sender<()>, JoinHandle<VecDeque<String>>)>,
}

impl Evidence {
    /// Captures the frames of a device, and samples the status of all programs of this user and the
    /// processor time of `watched`, such as the process of a virtual machine.
    ///
    /// # Errors
    /// If the folder cannot be created, or the capture does not start.
    pub fn gather(namespace: &Namespace, dev: &str, watched: Option<u32>) -> Result<Self> {
        let folder = base()?.join(suite::current());
        // The folder may exist since an earlier run.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let [files, megabytes] = FILES;
        let run = namespace.run("tcpdump").args(["-Z", "root", "-i", dev, "-U", "--immediate-mode"]);
        let run = run.args(["-s", SNAP_BYTES, "-C", megabytes, "-W", files, "-w"]);
        let mut capture = run.arg(folder.join("wire.pcap")).spawn()?;
        capture.wait_for("listening on", Duration::from_secs(30))?;
        let (stop, stopped) = channel();
        let begun = Instant::now();
        let looks = std::thread::spawn(move || {
            let mut looks = VecDeque::new();
            while stopped.recv_timeout(NEXT_LOOK) == Err(RecvTimeoutError::Timeout) {
                if looks.len() == LOOKS {
                    looks.pop_front();
                }
                looks.push_back(format!("{:.1} s: {}", begun.elapsed().as_secs_f64(), look(watched)));
            }
            looks
        });
        Ok(Self { folder, capture: Some(capture), looks: Some((stop, looks)) })
    }

    /// Keeps the evidence, with the caller's `texts`. Returns a line with the path of the evidence, and the
    /// last frames.
    ///
    /// # Errors
    /// If the capture does not end in time, if the thread that reads the status panicked, or if a file cannot
    /// be written.
    pub fn keep(mut self, texts: &[(&str, String)]) -> Result<String> {
        if let Some(mut capture) = self.capture.take() {
            capture.terminate();
            capture.finish(LIMIT)?;
        }
        if let Some((stop, looks)) = self.looks.take() {
            drop(stop);
            let looks =
                looks.join().map_err(|_| lab_error!("the thread that looks at the status panicked"))?;
            fs::write(self.folder.join("status"), Vec::from(looks).join("\n"))?;
        }
        for (name, text) in texts {
            fs::write(self.folder.join(name), text)?;
        }
        let frames = self.last_frames().unwrap_or_else(|error| error.to_string());
        let kept = format!("---- evidence: {}\n{frames}", self.folder.display());
        // With an empty path, `drop` does not remove the folder.
        self.folder = PathBuf::new();
        Ok(kept)
    }

    /// Returns a line for each of the last frames.
    fn last_frames(&self) -> Result<String> {
        let mut files: Vec<_> = fs::read_dir(&self.folder)?
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("wire.pcap"))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        files.sort();
        let Some((_, last)) = files.pop() else { return Ok("no frames".to_owned()) };
        let text = Run::new("tcpdump").args(["-nn", "-tt", "-r"]).arg(last).check(LIMIT)?;
        let lines: Vec<&str> = text.lines().collect();
        Ok(lines[lines.len().saturating_sub(FRAMES_SHOWN)..].join("\n"))
    }
}

impl Drop for Evidence {
    fn drop(&mut self) {
        drop(self.capture.take());
        if let Some((stop, looks)) = self.looks.take() {
            drop(stop);
            // The value is dropped without `keep`, so the samples are not needed.
            let _ = looks.join();
        }
        if !self.folder.as_os_str().is_empty() {
            // If the folder cannot be removed now, the next run of this test removes it.
            let _ = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Returns the status of all programs that answer, the load of the machine, and the processor time of a
/// process.
fn look(watched: Option<u32>) -> String {
    let shown = iwarp::status::default_folder().and_then(|folder| iwarp::status::processes(&folder));
    let shown = match shown {
        Ok(shown) => serde_json::to_string(&shown.answered).unwrap_or_else(|error| error.to_string()),
        Err(error) => error.to_string(),
    };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let ticks = watched.and_then(processor_ticks).map_or_else(String::new, |ticks| format!(" {ticks} ticks"));
    format!("load {}{ticks} {shown}", load.trim_end())
}

/// Returns the processor time of a process, in ticks of 10 ms (proc(5), fields 14 and 15 of `stat`), or
/// `None` if there is no such process.
fn processor_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    Some(fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?)
}

/// Returns the folder of all evidence: `tests-evidence` in cargo's target folder.
fn base() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(3).unwrap_or(Path::new("."));
    Ok(target.join("tests-evidence"))
}

#[cfg(test)]
mod tests {
    use super::processor_ticks;

    #[test]
    fn the_processor_time_of_a_process_grows_while_it_works() {
        let ticks = || processor_ticks(std::process::id()).expect("this process");
        let before = ticks();
        // The loop takes longer if other processes use the processor.
        while ticks() < before + 3 {
            std::hint::black_box((0..10_000).sum::<u64>());
        }
    }
}
