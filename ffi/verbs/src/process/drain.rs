//! The end of queue pairs: what TCP has taken is still sent.
//!
//! A Send or Write of iWARP completes when TCP has taken it. Programs end as soon as their requests are
//! completed, also by `_exit`, and in user space TCP ends with them. So the call that destroys a queue pair
//! closes its connection gracefully, and returns when the peer has all of it.

use std::time::{Duration, Instant};

use iwarp::engine::SharedEngine;
use iwarp::verbs::{QpState, QueuePair};

/// The longest wait for a peer that makes progress.
const LIMIT: Duration = Duration::from_secs(30);

/// Closes the connections of queue pairs. Returns when they have ended, or when nothing has moved for `idle`.
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

/// Asks for the end of a connection. Returns whether there is one.
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
