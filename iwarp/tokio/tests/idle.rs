//! A program that waits uses no CPU time. This is the only test of its process, whose CPU time it measures.

#[path = "common/limited.rs"]
mod limited;

use std::time::{Duration, Instant};

use iwarp_tokio::{Connection, Endpoint, Listener};
use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time of all threads of this process.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(now).unwrap()
}

/// Returns the CPU time that all threads use during `time`.
async fn use_of(time: Duration) -> Duration {
    let before = cpu_time();
    tokio::time::sleep(time).await;
    cpu_time() - before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2, crate = "crate::limited")]
async fn connections_that_wait_for_messages_spin_nowhere() {
    let wire = format!("local:idle-{}", std::process::id());
    let (client, server) = tokio::try_join!(Endpoint::open(&wire), Endpoint::open(&wire)).unwrap();
    let listener = Listener::bind(&server, 7471).unwrap();
    let address = server.addresses()[0];
    let mut waiting = Vec::new();
    for _ in 0..10 {
        let (a, b) =
            tokio::try_join!(Connection::connect(&client, (address, 7471)), listener.accept()).unwrap();
        for end in [a, b] {
            waiting.push(tokio::spawn(async move { end.recv().await }));
        }
    }
    // The engines back off after some tenths of a millisecond of the processor, which a busy machine may give
    // them late.
    let begun = Instant::now();
    let mut used = use_of(Duration::from_millis(300)).await;
    while used > Duration::from_millis(3) && begun.elapsed() < Duration::from_secs(20) {
        used = use_of(Duration::from_millis(300)).await;
    }
    let used = use_of(Duration::from_secs(2)).await;
    assert!(used < Duration::from_millis(20), "{used:?} of two seconds");
    assert!(waiting.iter().all(|task| !task.is_finished()));
}
