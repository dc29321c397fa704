//! Asks the processes of this user for their status.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use dp::local;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

use super::folder;
use super::report::{ProcessReport, REQUEST};

/// Maximum time for a process to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The answers of the processes of this user.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Processes {
    /// One report for each served context that has answered, sorted by process number.
    pub answered: Vec<ProcessReport>,
    /// The numbers of the processes that do not answer, for example because they are stopped, or whose answer
    /// has another format.
    pub silent: Vec<u32>,
}

/// The answer of the process that has bound a socket.
enum StatusAnswer {
    Report(ProcessReport),
    Silent,
}

/// Asks all processes that have a socket in `folder`. Removes the sockets of dead processes.
///
/// # Errors
/// Fails on an error of the operating system, or if the folder belongs to another user, or if other users can
/// enter or move it.
pub fn processes(folder: &Path) -> io::Result<Processes> {
    let mut processes = Processes::default();
    for (own_pid, path) in folder::sockets(folder)? {
        let Some(stream) = connect(&path)? else {
            remove(&path)?;
            continue;
        };
        // `pid` is the number of the process in our PID namespace. In the process's own namespace the number
        // can be different; that number may belong to another process here.
        let pid = local::pid_of_peer(&stream).and_then(|pid| u32::try_from(pid).ok());
        match ask(stream)? {
            StatusAnswer::Report(mut report) => {
                report.pid = pid.unwrap_or(report.pid);
                processes.answered.push(report);
            }
            // A forked child of a dead process may still have the socket open, but does not answer.
            StatusAnswer::Silent if pid.is_some_and(is_dead) => remove(&path)?,
            StatusAnswer::Silent => processes.silent.push(pid.unwrap_or(own_pid)),
        }
    }
    processes.answered.sort_by_key(|report| report.pid);
    processes.silent.sort_unstable();
    processes.silent.dedup();
    Ok(processes)
}

/// Removes the sockets of dead processes.
pub(super) fn remove_stale(folder: &Path) -> io::Result<()> {
    for (_, path) in folder::sockets(folder)? {
        if connect(&path)?.is_none() {
            remove(&path)?;
        }
    }
    Ok(())
}

fn ask(mut stream: UnixStream) -> io::Result<StatusAnswer> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = Vec::new();
    let asked = stream.write_all(REQUEST).and_then(|()| stream.read_to_end(&mut answer));
    let is_of_peer = |kind| {
        matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
    };
    match asked {
        Err(error) if !is_of_peer(error.kind()) => return Err(error),
        Err(_) => return Ok(StatusAnswer::Silent),
        Ok(_) => {}
    }
    // A process with another version of this library may have another format.
    Ok(serde_json::from_slice(&answer).map_or(StatusAnswer::Silent, StatusAnswer::Report))
}

/// Connects to the socket. Returns `None` if no process has the socket open any more, or if the socket was
/// removed.
fn connect(path: &Path) -> io::Result<Option<UnixStream>> {
    match UnixStream::connect(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
            Ok(None)
        }
        stream => stream.map(Some),
    }
}

/// Whether no process has this number.
fn is_dead(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(Errno::SRCH))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
