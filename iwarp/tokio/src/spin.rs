//! How a task waits: it polls the engine for a moment, and then sleeps until it is woken.
//!
//! A task that polls the engine itself gets its answer without a switch of threads, and does not compete with
//! the engine's thread for a CPU ([`SharedEngine`]). Before it sleeps, it hands the engine over to its
//! thread.

use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use iwarp::engine::SharedEngine;
use tokio::task::yield_now;

/// How long a task polls before it sleeps: about as long as it takes to wake the engine's thread and then
/// that of the runtime. Two ends that answer each other at once find each other awake.
const SPIN: Duration = Duration::from_micros(50);

/// Polls of the engine before other tasks run. Empty ones take about a microsecond together, and so does a
/// way through the scheduler of the runtime.
const TURNS: usize = 8;

/// One wait of a task.
#[derive(Default)]
pub(crate) struct Spin {
    until: Option<Instant>,
    is_over: bool,
}

impl Spin {
    /// Looks with `find`, which is called again after the engine was polled. Other tasks run between two
    /// polls of the task. When the time is over, `register` lets the task be woken.
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
            // Not by the waker: a task that wakes itself runs again before others do.
            let yielded = pin!(yield_now()).poll(&mut Context::from_waker(cx.waker()));
            debug_assert!(yielded.is_pending(), "the first poll yields");
            return Poll::Pending;
        }
        register();
        engine.hand_over();
        // It may have come before the task could be woken.
        find().map_or(Poll::Pending, Poll::Ready)
    }

    fn goes_on(&mut self) -> bool {
        let now = Instant::now();
        self.is_over = self.is_over || now >= *self.until.get_or_insert(now + SPIN);
        !self.is_over
    }
}
