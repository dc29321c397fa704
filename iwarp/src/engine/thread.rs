//! An engine in its own thread, which backs off when there is no work.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use crate::queues::wait_any;
use crate::verbs::{EngineHandle, VerbsError};

use super::{Engine, EngineCounters};

/// The CPU of an engine's thread, and the times when the thread backs off ([`Engine::spawn`]).
#[derive(Clone, Copy, Debug)]
pub struct ThreadOptions {
    /// The number of the CPU to which the thread is pinned; `None`: any CPU. The option has no effect if the
    /// thread may not run on that CPU, or on systems other than Linux. Default: `None`.
    pub cpu: Option<usize>,
    /// Number of idle polls before the thread yields between polls; `u32::MAX`: the thread never yields. A
    /// higher number makes the engine answer sooner and use more CPU time. Default: 2000.
    pub spin_polls: u32,
    /// Number of idle polls with yields before the thread sleeps. The sleep ends at the next deadline, at a
    /// doorbell or a command, or when the port's file descriptor (if there is one) is readable. Default: 200.
    pub yield_polls: u32,
    /// Maximum time of a sleep on a port without a file descriptor. A frame that arrives during the sleep may
    /// wait for this time. Default: 200 us.
    pub max_sleep: Duration,
}

impl Default for ThreadOptions {
    fn default() -> Self {
        // An idle poll takes a few hundred nanoseconds. The thread spins for longer than a round trip in a
        // data centre, so it is awake when a prompt answer arrives. Then the thread yields after each poll,
        // so that other threads get the CPU while a slower answer is still likely. A sleep costs two system
        // calls. Sleeps of 200 us keep this cost below a few percent of a core.
        Self { cpu: None, spin_polls: 2_000, yield_polls: 200, max_sleep: Duration::from_micros(200) }
    }
}

/// Maximum number of polls between two snapshots of the counters. A snapshot takes a lock, and users do not
/// need newer counters.
const SNAPSHOT_POLLS: u32 = 1024;

/// An engine that runs in a thread. Dropping this value, except during a panic, stops the thread and resets
/// the engine's connections.
pub struct EngineThread {
    handle: Arc<EngineHandle>,
    control: Arc<ThreadControl>,
    thread: Option<JoinHandle<Engine>>,
}

#[derive(Default)]
struct ThreadControl {
    stop: AtomicBool,
    counters: Mutex<EngineCounters>,
}

impl EngineThread {
    pub(super) fn spawn(mut engine: Engine, options: ThreadOptions) -> Result<Self, VerbsError> {
        let handle = Arc::clone(engine.handle());
        let control = Arc::new(ThreadControl::default());
        let inner = Arc::clone(&control);
        let name = format!("iwarp-engine-{}", handle.index());
        let thread = dp::thread::start(name, move || {
            run(&mut engine, &inner, options);
            engine
        });
        let thread = thread.map_err(VerbsError::System)?;
        Ok(Self { handle, control, thread: Some(thread) })
    }

    /// Returns the counters that the thread has published last. The thread publishes them at least once in
    /// 1024 polls, and when it becomes idle or ends.
    pub fn counters(&self) -> EngineCounters {
        *self.control.counters.lock().expect("no holder of this lock panics")
    }

    /// Stops the thread and returns the engine. The engine's connections stay open.
    ///
    /// # Panics
    /// Panics if the engine's thread panicked.
    pub fn stop(mut self) -> Engine {
        self.halt().expect("the thread is there until it is stopped or dropped")
    }

    fn halt(&mut self) -> Option<Engine> {
        let thread = self.thread.take()?;
        self.control.stop.store(true, Ordering::Release);
        // `wake` is not used, since a `wake` between the thread's check of `stop` and its sleep would be
        // lost.
        self.handle.doorbells().interrupt();
        match thread.join() {
            Ok(engine) => Some(engine),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            drop(self.halt());
        }
    }
}

fn run(engine: &mut Engine, control: &ThreadControl, options: ThreadOptions) {
    if let Some(cpu) = options.cpu {
        pin(cpu);
    }
    let mut idle: u32 = 0;
    let mut polls: u32 = 0;
    while !control.stop.load(Ordering::Acquire) {
        idle = if engine.poll() { 0 } else { idle.saturating_add(1) };
        polls = polls.wrapping_add(1);
        if polls.is_multiple_of(SNAPSHOT_POLLS) || idle == options.spin_polls {
            snapshot(engine, control);
        }
        if idle <= options.spin_polls {
            std::hint::spin_loop();
        } else if idle <= options.spin_polls.saturating_add(options.yield_polls) {
            std::thread::yield_now();
        } else {
            engine.sleep_until_woken(options.max_sleep);
        }
    }
    snapshot(engine, control);
}

fn snapshot(engine: &Engine, control: &ThreadControl) {
    *control.counters.lock().expect("no holder of this lock panics") = engine.counters();
}

/// Pins the calling thread to a CPU if possible.
pub(super) fn pin(cpu: usize) {
    #[cfg(target_os = "linux")]
    {
        let mut set = rustix::thread::CpuSet::new();
        if cpu < rustix::thread::CpuSet::MAX_CPU {
            set.set(cpu);
            let _ = rustix::thread::sched_setaffinity(None, &set);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpu;
}

/// The CPUs on which the calling thread may run. Dropping this value allows these CPUs again.
pub(super) struct Affinity {
    #[cfg(target_os = "linux")]
    cpus: Option<rustix::thread::CpuSet>,
}

impl Affinity {
    pub(super) fn save() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            cpus: rustix::thread::sched_getaffinity(None).ok(),
        }
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(cpus) = &self.cpus {
            // An error is ignored: these CPUs were allowed before.
            let _ = rustix::thread::sched_setaffinity(None, cpus);
        }
    }
}

/// Returns how long an engine may sleep. `limit` applies only if `frames_wake` is not set, that is, if frames
/// do not end the sleep.
pub(super) fn longest_sleep(frames_wake: bool, deadline: Option<Duration>, limit: Duration) -> Duration {
    /// A sleep without a limit, which a frame or a doorbell ends.
    const DAY: Duration = Duration::from_secs(86_400);
    match (frames_wake, deadline) {
        (true, deadline) => deadline.unwrap_or(DAY),
        (false, Some(deadline)) => deadline.min(limit),
        (false, None) => limit,
    }
}

/// Waits for a doorbell or command, or for a frame if the port has a file descriptor, at most until `limit`
/// has passed.
pub(super) fn wait(handle: &EngineHandle, port: Option<BorrowedFd<'_>>, limit: Duration) {
    let waker = handle.doorbells().waker();
    let mut fds = arrayvec::ArrayVec::<PollFd<'_>, 2>::new();
    fds.push(PollFd::from_borrowed_fd(waker, PollFlags::IN));
    if let Some(port) = port {
        fds.push(PollFd::from_borrowed_fd(port, PollFlags::IN));
    }
    // A failed wait ends at once. Then the engine polls again; in the worst case it spins.
    let waited = wait_any(&mut fds, Some(limit));
    debug_assert!(waited.is_ok(), "the engine's descriptors stay open");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_wakes_its_engine_lets_it_sleep_until_its_deadline() {
        let [short, limit, long] = [1, 2, 3].map(Duration::from_millis);
        assert_eq!(longest_sleep(true, Some(long), limit), long);
        assert!(longest_sleep(true, None, limit) > Duration::from_secs(3600));
        assert_eq!([short, long].map(|at| longest_sleep(false, Some(at), limit)), [short, limit]);
        assert_eq!(longest_sleep(false, None, limit), limit);
    }
}
