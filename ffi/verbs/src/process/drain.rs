//! The end of queue pairs: before a queue pair is destroyed, TCP sends the bytes that it has accepted.
//!
//! With some peers a Send or Write completes when TCP has accepted it, as usual for iWARP. Many programs end
//! as soon as their requests are completed, and some of them end by `_exit`. After the end of its program, a
//! TCP in user space sends nothing more. So the call that destroys a queue pair closes the connection
//! gracefully, and returns when the connection has ended, or after a time limit. The same is done for all
//! queue pairs when the process calls `exit`.

use std::time::{Duration, Instant};

use iwarp::engine::SharedEngine;
use iwarp::verbs::{QpState, QueuePair};

/// Maximum wait while the peer makes progress.
const LIMIT: Duration = Duration::from_secs(30);

/// Maximum wait for datagrams. A process of the wire answers at once, unless it waits for a processor.
const DATAGRAMS_WAIT: Duration = Duration::from_secs(1);

/// Maximum wait for an engine that is in use.
const BUSY_WAIT: Duration = Duration::from_millis(100);

/// Closes the connections of queue pairs. Returns when the connections have ended, after `idle` without
/// progress, or after [`LIMIT`].
pub(crate) fn drain(engine: &SharedEngine, qps: &[QueuePair], idle: Duration) {
    let mut open: Vec<&QueuePair> = qps.iter().filter(|qp| close(qp)).collect();
    let begun = Instant::now();
    let mut moved = begun;
    while !open.is_empty() && begun.elapsed() < LIMIT && moved.elapsed() < idle {
        if engine.turn() {
            moved = Instant::now();
        } else {
            std::thread::yield_now();
        }
        open.retain(|qp| is_open(qp));
    }
}

/// Sends the datagrams that wait for the answer of a neighbour or of a process of the wire, so that a program
/// may end as soon as its requests are complete. Returns after at most [`DATAGRAMS_WAIT`], or after
/// [`BUSY_WAIT`] if the engine is in use all the time. A handler of a signal may call `exit` in a thread that
/// uses the engine, so this function never waits for the engine.
pub(crate) fn send_datagrams(engine: &SharedEngine) {
    let begun = Instant::now();
    let waits = || match engine.try_with(|engine| engine.has_unsent()) {
        Some(has_unsent) => has_unsent && begun.elapsed() < DATAGRAMS_WAIT,
        None => begun.elapsed() < BUSY_WAIT,
    };
    while waits() {
        if !engine.turn() {
            std::thread::yield_now();
        }
    }
}

/// Starts closing the connection of a queue pair. Returns whether the connection is being closed.
fn close(qp: &QueuePair) -> bool {
    match qp.state() {
        QpState::Rts => qp.modify(QpState::Closing).is_ok(),
        QpState::Closing => true,
        QpState::Idle | QpState::Terminate | QpState::Error | QpState::Orphaned => false,
    }
}

fn is_open(qp: &QueuePair) -> bool {
    matches!(qp.state(), QpState::Rts | QpState::Closing)
}
