//! Tests how often the threads of engines wake while tasks exchange messages. This is the only test of its
//! process, since all endpoints' threads have the same name.
#![cfg(target_os = "linux")]

#[path = "common/limited.rs"]
mod limited;

use std::time::{Duration, Instant};
use std::{fs, thread};

use iwarp_tokio::{Connection, Endpoint, Listener};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// How often the threads of all engines have gone to sleep.
fn sleeps_of_engines() -> u64 {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
    let of_engines = tasks.filter(|task| {
        fs::read_to_string(task.join("comm")).is_ok_and(|name| name.starts_with("iwarp-engine"))
    });
    let sleeps = of_engines.map(|task| {
        let status = fs::read_to_string(task.join("status")).unwrap();
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        count.trim().parse::<u64>().unwrap()
    });
    sleeps.sum()
}

/// Answers each message after a moment in which the peer has gone to sleep. tokio's timers would take a
/// millisecond.
async fn answer(connection: Connection) {
    while let Ok(message) = connection.recv().await {
        thread::sleep(Duration::from_micros(200));
        if connection.send(&message.data).await.is_err() {
            break;
        }
    }
}

/// The reactor wakes the tasks. The thread of each engine looks once per millisecond whether tasks still
/// serve. It may sleep twice per look: until a descriptor is readable, and then for a millisecond.
#[tokio::test(crate = "crate::limited")]
async fn messages_wake_tasks_and_no_threads() {
    let wire = format!("local:wakes-{}", std::process::id());
    let (tell, told) = oneshot::channel();
    let of_server = wire.clone();
    let server = thread::spawn(move || {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let server = Endpoint::open(&of_server).await.unwrap();
            let listener = Listener::bind(&server, 7471).unwrap();
            tell.send(server.addresses()[0]).unwrap();
            answer(listener.accept().await.unwrap()).await;
        });
    });
    let client = Endpoint::open(&wire).await.unwrap();
    let a = Connection::connect(&client, (told.await.unwrap(), 7471)).await.unwrap();
    let (mut begun, mut before) = (Instant::now(), 0);
    for number in 0..1100 {
        if number == 100 {
            (begun, before) = (Instant::now(), sleeps_of_engines());
        }
        a.send(b"message").await.unwrap();
        a.recv().await.unwrap();
    }
    let (millis, sleeps) = (begun.elapsed().as_millis() as u64, sleeps_of_engines() - before);
    println!("{sleeps} sleeps of two threads in {millis} ms");
    assert!(sleeps <= 2 * 2 * (millis + 1), "{sleeps} sleeps of two threads in {millis} ms");
    a.abort();
    server.join().unwrap();
}
