//! Runs programs, watches them, and ends them by their own process ids, within a time limit.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{LabError, Result};
use crate::lab_error;

/// Maximum time to wait for the remaining output of a program that has ended.
const REST_WITHIN: Duration = Duration::from_secs(30);

/// A program that will be run. Its output is captured; its standard input is empty, or a file.
#[derive(Clone, Debug)]
pub struct Run {
    argv: Vec<OsString>,
    stdin: Option<PathBuf>,
    namespace: Option<String>,
    cpu: Option<usize>,
    env: Vec<(OsString, OsString)>,
}

impl Run {
    /// Creates a run of a program, which is given by its path or by its name on the search path.
    pub fn new(program: impl AsRef<Path>) -> Self {
        Self {
            argv: vec![program.as_ref().as_os_str().to_owned()],
            stdin: None,
            namespace: None,
            cpu: None,
            env: Vec::new(),
        }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.argv.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Makes a file the standard input.
    #[must_use]
    pub fn stdin(mut self, file: impl AsRef<Path>) -> Self {
        self.stdin = Some(file.as_ref().to_owned());
        self
    }

    /// Sets the network namespace in which the program runs.
    #[must_use]
    pub fn within(mut self, namespace: String) -> Self {
        self.namespace = Some(namespace);
        self
    }

    /// Sets the CPU to which the program is pinned.
    #[must_use]
    pub fn pinned(mut self, cpu: usize) -> Self {
        self.cpu = Some(cpu);
        self
    }

    /// Starts the program.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn spawn(self) -> Result<Process> {
        let mut argv: Vec<OsString> = Vec::new();
        // With `--pdeathsig`, the kernel kills the child when the thread that started it ends, for any
        // reason.
        if Path::new("/usr/bin/setpriv").exists() {
            argv.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(OsString::from));
        }
        if let Some(name) = &self.namespace {
            // `ip netns exec` replaces itself by the program, so the program has the process id of the child.
            argv.extend(["ip", "netns", "exec", name].map(OsString::from));
        }
        if let Some(cpu) = self.cpu {
            argv.extend(["taskset", "-c", &cpu.to_string()].map(OsString::from));
        }
        let what = self.argv.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ");
        argv.extend(self.argv);
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).envs(self.env);
        let stdin = match &self.stdin {
            Some(file) => {
                let opened = std::fs::File::open(file);
                opened.map_err(|error| lab_error!("{}: {error}", file.display()))?.into()
            }
            None => Stdio::null(),
        };
        command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| lab_error!("{what}: {error}"))?;
        let captured = Arc::new(Captured::default());
        captured.follow(child.stdout.take());
        captured.follow(child.stderr.take());
        Ok(Process { child, what, captured, status: None })
    }

    /// Runs the program until it ends, and returns its output.
    ///
    /// # Errors
    /// If the program cannot be started, fails, or takes longer than `limit`.
    pub fn check(self, limit: Duration) -> Result<String> {
        self.spawn()?.finish(limit)?.success()
    }
}

/// The output of a program so far: both streams in the order of arrival.
#[derive(Default)]
struct Captured {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    text: String,
    open: usize,
}

impl Captured {
    /// Reads a stream to its end on a separate thread.
    fn follow(self: &Arc<Self>, stream: Option<impl Read + Send + 'static>) {
        let Some(mut stream) = stream else { return };
        self.lock().open += 1;
        let captured = Arc::clone(self);
        std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            loop {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => break,
                    Ok(bytes) => {
                        captured.lock().text.push_str(&String::from_utf8_lossy(&buffer[..bytes]));
                        captured.changed.notify_all();
                    }
                }
            }
            captured.lock().open -= 1;
            captured.changed.notify_all();
        });
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` returns `true`, but at most for `limit`. Returns whether `done` returned `true`.
    fn wait(&self, limit: Duration, mut done: impl FnMut(&State) -> bool) -> bool {
        let (_state, waited) = self
            .changed
            .wait_timeout_while(self.lock(), limit, |state| !done(state))
            .unwrap_or_else(PoisonError::into_inner);
        !waited.timed_out()
    }
}

/// A running program. When the value is dropped, the process is killed by its id.
pub struct Process {
    child: Child,
    what: String,
    captured: Arc<Captured>,
    status: Option<ExitStatus>,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    /// The command line of the program.
    pub what: String,
    /// The exit status of the program.
    pub status: ExitStatus,
    /// What the program printed on standard output and standard error.
    pub text: String,
    /// Time from the call of [`Process::finish`] to the end of the program.
    pub waited: Duration,
}

impl Ended {
    /// Returns the output, if the program succeeded.
    ///
    /// # Errors
    /// If the program failed, with its whole output.
    pub fn success(self) -> Result<String> {
        if self.status.success() {
            return Ok(self.text);
        }
        Err(lab_error!("{}: {}\n{}", self.what, self.status, self.text))
    }

    /// Returns the last line of the output, if the program exited with a code other than zero.
    ///
    /// # Errors
    /// If the program succeeded or was killed by a signal.
    pub fn failure(&self) -> Result<&str> {
        if self.status.code().is_some_and(|code| code != 0) {
            return Ok(self.text.trim_end().lines().next_back().unwrap_or_default());
        }
        Err(lab_error!("{}: {} where an error was due\n{}", self.what, self.status, self.text))
    }
}

impl Process {
    /// Returns what the program has printed so far.
    pub fn text(&self) -> String {
        self.captured.lock().text.clone()
    }

    /// Waits until the program has printed `needle`.
    ///
    /// # Errors
    /// If the program ends without printing the text, or does not print it within `limit`.
    pub fn wait_for(&mut self, needle: &str, limit: Duration) -> Result<()> {
        let found = |state: &State| state.text.contains(needle);
        self.captured.wait(limit, |state| found(state) || state.open == 0);
        if found(&self.captured.lock()) {
            return Ok(());
        }
        Err(lab_error!("{}: no '{needle}' within {limit:?}; it said:\n{}", self.what, self.text()))
    }

    /// Whether the process is still running.
    ///
    /// # Errors
    /// If the system does not report the state of the process.
    pub fn is_running(&mut self) -> Result<bool> {
        if self.status.is_none() {
            self.status = self.child.try_wait()?;
        }
        Ok(self.status.is_none())
    }

    /// Waits until the program has ended.
    ///
    /// # Errors
    /// If the program has not ended after `limit`. In this case the program is killed.
    pub fn finish(mut self, limit: Duration) -> Result<Ended> {
        let started = Instant::now();
        while self.is_running()? {
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                self.kill();
                return Err(lab_error!(
                    "{}: still running after {limit:?}; it said:\n{}",
                    self.what,
                    self.text()
                ));
            }
            self.await_end(left)?;
        }
        let waited = started.elapsed();
        // On a busy machine, the threads that read the output may need more time. The wait has a limit, since
        // a grandchild may keep the streams open for ever.
        self.captured.wait(REST_WITHIN, |state| state.open == 0);
        let status = self.status.ok_or_else(|| LabError::new("ended without a status"))?;
        Ok(Ended { what: self.what.clone(), status, text: self.text(), waited })
    }

    /// Sleeps until the program ends, but at most for `limit`. Polling every few milliseconds would take
    /// processor time from measured programs.
    fn await_end(&self, limit: Duration) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        let ended =
            pidfd_open(pid, PidfdFlags::empty()).map_err(|error| lab_error!("{}: {error}", self.what))?;
        let limit = Timespec::try_from(limit).map_err(|error| lab_error!("{limit:?}: {error}"))?;
        match poll(&mut [PollFd::new(&ended, PollFlags::IN)], Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(lab_error!("{}: {error}", self.what)),
        }
    }

    /// Sends SIGTERM.
    pub fn terminate(&mut self) {
        self.signal(rustix::process::Signal::TERM);
    }

    /// Kills the process (SIGKILL) and reaps it.
    pub fn kill(&mut self) {
        self.signal(rustix::process::Signal::KILL);
        if let Ok(status) = self.child.wait() {
            self.status = Some(status);
        }
    }

    /// Stops the process (SIGSTOP). A stopped process neither answers nor closes a connection.
    pub fn freeze(&mut self) {
        self.signal(rustix::process::Signal::STOP);
    }

    /// Returns the process id of the program.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn signal(&mut self, signal: rustix::process::Signal) {
        // While there is no status, the child has not been reaped, so the id still belongs to the child.
        if self.status.is_none() {
            let _ = rustix::process::kill_process(Pid::from_child(&self.child), signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.is_running(), Ok(true)) {
            self.kill();
        }
    }
}

#[cfg(test)]
mod tests;
