//! An engine, and the task that serves it in the runtime of its endpoint.
//!
//! tokio's reactor watches the descriptors of the engine. So a frame wakes the worker of the runtime that
//! runs the task of the program, without a wake-up of the engine's thread before. If the runtime does not run
//! the task in time, the engine's thread serves ([`SharedEngine::descriptors`]): for example if a worker is
//! blocked or computes, if nobody drives a `current_thread` runtime, or if the runtime has ended.
//!
//! The task serves whether tasks of the program wait or not, since a peer may read memory at any time. Tasks
//! of other runtimes may use the endpoint: then the worker of the endpoint's runtime wakes the other worker.

use std::future::poll_fn;
use std::io;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use iwarp::engine::SharedEngine;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, yield_now};

use crate::events;

/// Maximum number of polls with work before other tasks run.
const TURNS: usize = 8;

/// Maximum number of rounds without work in which the engine cannot sleep, for example because it has to poll
/// its port soon. They take some hundred microseconds. Then the thread serves, which can sleep until then.
const IDLE_ROUNDS: usize = 100;

/// Requests that are posted within this time, behind others, are sent together.
const TOGETHER_US: u64 = 3;

/// A wait that has taken longer than this is not expected to be followed by a short wait.
const SHORT: Duration = Duration::from_micros(200);

/// An engine, which a task serves if the port has a descriptor.
pub(crate) struct Served {
    engine: SharedEngine,
    /// Calls the task.
    calls: Arc<Notify>,
    /// Whether the last wait of a task of the program was short.
    waits_are_short: AtomicBool,
    /// The time of the last poll of [`leave_behind`](Self::leave_behind), since `made`.
    left_at_us: AtomicU64,
    made: Instant,
}

impl Deref for Served {
    type Target = SharedEngine;

    fn deref(&self) -> &SharedEngine {
        &self.engine
    }
}

impl Served {
    /// Starts the task, in the current runtime.
    pub(crate) fn start(engine: SharedEngine) -> io::Result<(Arc<Self>, Option<AbortHandle>)> {
        let served = Arc::new(Self {
            engine,
            calls: Arc::default(),
            waits_are_short: AtomicBool::new(true),
            left_at_us: AtomicU64::new(0),
            made: Instant::now(),
        });
        let Some(fds) = served.descriptors() else { return Ok((served, None)) };
        let [port, doorbell] = fds.map(|fd| events::register(fd.try_clone_to_owned()?));
        let fds = [port?, doorbell?];
        // The thread serves until the task runs for the first time.
        let task =
            tokio::spawn(serve(Arc::downgrade(&served), Arc::clone(&served.calls), fds)).abort_handle();
        Ok((served, Some(task)))
    }

    /// Called before a task does not poll the engine for a while: it waits, or does other work. So the engine
    /// has to be served by others from now on.
    pub(crate) fn hand_over(&self) {
        if !self.is_attended() {
            self.engine.hand_over();
        } else if !self.settle() {
            self.calls.notify_one();
        }
    }

    /// Called when a task has posted a request that only a poll sends, and then continues with other work.
    /// A task that has posted usually posts again, or waits soon. So the engine stays awake, and the thread
    /// serves it if no task polls for about a millisecond. Requests that are posted shortly after each other
    /// are sent together: the task that serves polls when the tasks of the program have run.
    pub(crate) fn leave_behind(&self) {
        if self.is_attended() {
            let now_us = self.made.elapsed().as_micros() as u64;
            if now_us - self.left_at_us.load(Ordering::Relaxed).min(now_us) < TOGETHER_US {
                self.calls.notify_one();
            } else {
                self.left_at_us.store(now_us, Ordering::Relaxed);
                self.turn();
            }
        } else {
            self.engine.hand_over();
        }
    }

    /// Called before a post. The request need not wake the engine afterwards.
    pub(crate) fn before_post(&self) {
        if self.is_attended() {
            self.rouse();
        }
    }

    /// Whether a task that waits is expected to wait only for a short time. Without the task that serves, the
    /// thread has to be woken, which takes longer than a task polls.
    pub(crate) fn waits_are_short(&self) -> bool {
        self.waits_are_short.load(Ordering::Relaxed) || !self.is_attended()
    }

    /// Called after a wait that has not found its result at first.
    pub(crate) fn on_waited(&self, time: Duration) {
        let is_short = time < SHORT;
        if self.waits_are_short.load(Ordering::Relaxed) != is_short {
            self.waits_are_short.store(is_short, Ordering::Relaxed);
        }
    }

    #[cfg(test)]
    pub(crate) fn call(&self) {
        self.calls.notify_one();
    }

    /// Polls until there is no work, or other tasks should run.
    fn serve_once(&self) -> Round {
        let busy = (0..TURNS).take_while(|_| self.turn()).count() > 0;
        match (self.settle(), busy) {
            (true, _) => Round::Asleep,
            (false, true) => Round::Busy,
            (false, false) => Round::Idle,
        }
    }
}

/// What one round of the task has found.
enum Round {
    /// The engine sleeps.
    Asleep,
    /// There was work, and there may be more.
    Busy,
    /// There was no work, but the engine cannot sleep.
    Idle,
}

/// Ends the service when the task ends.
struct Service(Weak<Served>);

impl Drop for Service {
    fn drop(&mut self) {
        if let Some(served) = self.0.upgrade() {
            served.leave();
        }
    }
}

async fn serve(engine: Weak<Served>, calls: Arc<Notify>, fds: [AsyncFd<OwnedFd>; 2]) {
    let service = Service(engine);
    let engine = || service.0.upgrade();
    loop {
        let Some(()) = engine().map(|engine| engine.attend()) else { return };
        let mut idle = 0;
        loop {
            // The engine sleeps before the woken tasks run, since they may compute.
            match engine().map(|engine| engine.serve_once()) {
                None => return,
                Some(Round::Asleep) => break,
                Some(Round::Busy) => idle = 0,
                Some(Round::Idle) => idle += 1,
            }
            if idle == IDLE_ROUNDS {
                engine().iter().for_each(|engine| engine.leave());
                break;
            }
            yield_now().await;
        }
        if !woken(&calls, &fds).await {
            return;
        }
    }
}

/// Waits until a descriptor is readable or the task is called. Returns false if the runtime shuts down.
async fn woken(calls: &Notify, fds: &[AsyncFd<OwnedFd>; 2]) -> bool {
    let mut called = pin!(calls.notified());
    poll_fn(|cx| {
        let mut is_woken = called.as_mut().poll(cx).is_ready();
        for fd in fds {
            match readable(fd, cx) {
                Poll::Ready(Ok(())) => is_woken = true,
                Poll::Ready(Err(_)) => return Poll::Ready(false),
                Poll::Pending => {}
            }
        }
        if is_woken { Poll::Ready(true) } else { Poll::Pending }
    })
    .await
}

/// Waits until the descriptor is readable. The readiness is cleared at once: what follows is announced anew,
/// since each frame and each ring of a doorbell after the beginning of a sleep is an event of the reactor.
fn readable(fd: &AsyncFd<OwnedFd>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
    fd.poll_read_ready(cx).map_ok(|mut ready| ready.clear_ready())
}
