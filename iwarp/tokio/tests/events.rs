//! Tests that the feature `tracing` reaches the engine. A program has only one subscriber, so this test has
//! its own program.
#![cfg(feature = "tracing")]

#[path = "common/limited.rs"]
mod limited;

use std::io::Write;
use std::sync::{Arc, Mutex};

use iwarp_tokio::{Connection, Endpoint, Listener};

/// The output of the subscriber.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(crate = "crate::limited")]
async fn a_connection_makes_events_with_its_addresses() {
    let printed = Printed::default();
    let writer = printed.clone();
    tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).init();
    let wire = format!("local:events-{}", std::process::id());
    let (client, server) = tokio::try_join!(Endpoint::open(&wire), Endpoint::open(&wire)).unwrap();
    let listener = Listener::bind(&server, 7471).unwrap();
    let address = server.addresses()[0];
    tokio::try_join!(Connection::connect(&client, (address, 7471)), listener.accept()).unwrap();
    let text = String::from_utf8(printed.0.lock().unwrap().clone()).unwrap();
    let remote = format!("remote=\"{address}:7471\"");
    let is_ours = |line: &&str| line.contains("connection established") && line.contains(&remote);
    assert_eq!(text.lines().filter(is_ours).count(), 1, "{text}");
    assert!(text.contains("port opened"), "{text}");
}
