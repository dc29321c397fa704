//! A program that waits uses no processor. The only test in this process, whose time it measures.

use std::time::Duration;

use iwarp_tokio::{Connection, Endpoint, Listener};
use rustix::time::{ClockId, clock_gettime};

/// The time of all threads of this process on processors.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(now).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
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
    // The engines back off after some tenths of a millisecond.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = cpu_time();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = cpu_time() - before;
    assert!(used < Duration::from_millis(20), "{used:?} of two seconds");
    assert!(waiting.iter().all(|task| !task.is_finished()));
}
