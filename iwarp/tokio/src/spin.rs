//! How a task waits: the task polls the engine for a moment, and then sleeps until it is woken.
//!
//! A task that polls the engine itself receives its answer without a context switch, and does not compete
//! with the engine's thread for a CPU ([`SharedEngine`]). Before the task sleeps, it hands the engine over to
//! the engine's thread.

use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use iwarp::engine::SharedEngine;
use tokio::task::yield_now;

/// How long a task polls before it sleeps: about the time to wake the engine's thread and then the runtime's
/// thread. If two peers answer each other at once, both tasks stay awake.
const SPIN: Duration = Duration::from_micros(50);

/// Number of polls of the engine before other tasks run. If no poll finds work, these polls take about a
/// microsecond, which is also the time of one pass through the runtime's scheduler.
const TURNS: usize = 8;

/// The state of one wait of a task.
#[derive(Default)]
pub(crate) struct Spin {
    until: Option<Instant>,
    is_over: bool,
}

impl Spin {
    /// Calls `find` for a result, and again after each poll of the engine. Other tasks run between two polls
    /// of the task. When the time is over, `register` registers the task to be woken.
    pub(crate) fn poll<T>(
        &mut self,
        engine: &SharedEngine,
        cx: &Context<'_>,
        mut find: impl FnMut() -> Option<T>,
        register: impl FnOnce(),
    ) -> Poll<T> {
        if let Some(found) = find() {
            return Poll::Ready(found);
        }
        if self.goes_on() {
            for _ in 0..TURNS {
                engine.turn();
                if let Some(found) = find() {
                    return Poll::Ready(found);
                }
            }
            // The task is not woken through its waker, since a task that wakes itself would run again before
            // other tasks.
            let yielded = pin!(yield_now()).poll(&mut Context::from_waker(cx.waker()));
            debug_assert!(yielded.is_pending(), "the first poll yields");
            return Poll::Pending;
        }
        register();
        engine.hand_over();
        // The result may have arrived before the task was registered.
        find().map_or(Poll::Pending, Poll::Ready)
    }

    fn goes_on(&mut self) -> bool {
        let now = Instant::now();
        self.is_over = self.is_over || now >= *self.until.get_or_insert(now + SPIN);
        !self.is_over
    }
}
