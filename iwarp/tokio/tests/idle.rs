//! Tests that a program that waits uses hardly any processor time. This is the only test of its process,
//! since the test measures the processor time of the whole process.

#[path = "common/limited.rs"]
mod limited;

use std::time::Duration;

use iwarp_tokio::{Connection, Endpoint, Listener};
use testkit::idle::are_idle;
use tokio::time::sleep;

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
    are_idle(Duration::from_secs(3), &[("this process", std::process::id())]).unwrap();
    // Neither the threads nor the tasks poll. A poll would cost little processor time.
    let polls = || [&client, &server].map(|endpoint| endpoint.counters()[0].polls);
    let before = polls();
    sleep(Duration::from_secs(1)).await;
    let polled: Vec<u64> = polls().iter().zip(before).map(|(after, before)| after - before).collect();
    assert!(polled.iter().all(|polls| *polls < 1000), "{polled:?} polls in a second");
    assert!(waiting.iter().all(|task| !task.is_finished()));
}
