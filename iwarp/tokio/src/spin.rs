//! How a task waits: the task polls the engine for a moment, and then sleeps until it is woken.
//!
//! A task that polls the engine itself receives its answer without a context switch, and does not compete
//! with the engine's thread for a CPU ([`SharedEngine`](iwarp::engine::SharedEngine)). Before the task
//! sleeps, the task lets the engine sleep, and tokio's reactor watches the engine ([`Served`]). If no reactor
//! watches the engine, the task hands the engine over to the engine's thread.

use std::pin::pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::task::yield_now;

use crate::served::Served;

/// How long a task polls before it sleeps, if the last wait was short: about the time to wake a sleeping
/// peer. If two peers answer each other at once, both tasks stay awake.
const SPIN: Duration = Duration::from_micros(50);

/// Number of polls of the engine before other tasks run. If no poll finds work, these polls take about a
/// microsecond, which is also the time of one pass through the runtime's scheduler.
const TURNS: usize = 8;

/// The state of one wait of a task.
#[derive(Default)]
pub(crate) struct Spin {
    begun: Option<Instant>,
    is_over: bool,
}

impl Spin {
    /// Calls `find` for a result, and again after each poll of the engine. Other tasks run between two polls
    /// of the task. When the time is over, `register` registers the task to be woken.
    pub(crate) fn poll<T>(
        &mut self,
        engine: &Served,
        cx: &Context<'_>,
        mut find: impl FnMut() -> Option<T>,
        register: impl FnOnce(),
    ) -> Poll<T> {
        let found = self.look(engine, cx, &mut find, register);
        if found.is_ready()
            && let Some(begun) = self.begun
        {
            engine.on_waited(begun.elapsed());
        }
        found
    }

    fn look<T>(
        &mut self,
        engine: &Served,
        cx: &Context<'_>,
        find: &mut impl FnMut() -> Option<T>,
        register: impl FnOnce(),
    ) -> Poll<T> {
        if let Some(found) = find() {
            return Poll::Ready(found);
        }
        if self.goes_on(engine) {
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

    fn goes_on(&mut self, engine: &Served) -> bool {
        let now = Instant::now();
        let begun = *self.begun.get_or_insert(now);
        self.is_over = self.is_over || now.duration_since(begun) >= SPIN || !engine.waits_are_short();
        !self.is_over
    }
}
