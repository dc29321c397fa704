//! Two endpoints on an in-memory wire. The threads of their engines do not poll after a task has polled.

mod attended;
mod requests;
mod turns;

use std::time::Duration;

use dp::link::{LinkConfig, pair};
use iwarp::engine::{EngineConfig, SharedEngine, SharedOptions};
use tokio::time::{sleep, timeout};

use crate::{Connection, ConnectionOptions, Endpoint, EndpointOptions, Listener, Stream};

pub(crate) const PORT: u16 = 7471;
pub(crate) const SERVER: &str = "10.0.0.2:7471";

/// The size of a stream's ring in bytes ([`ConnectionOptions::stream_bytes`]).
pub(crate) const RING: usize = 10_000;

/// Returns a client and a server. After a task has polled an engine, the engine's thread steps back for an
/// hour, unless the engine is handed over.
pub(crate) fn endpoints() -> (Endpoint, Endpoint) {
    let (a, b) = pair(&LinkConfig::default());
    let options = without_thread();
    let open = |port: Box<dyn dp::Port>, address| {
        let config = EngineConfig::new(&*port, &[address]).unwrap();
        Endpoint::on_queues(vec![port], &config, &options).unwrap()
    };
    (open(a, "10.0.0.1/24"), open(b, "10.0.0.2/24"))
}

/// After a task has polled an engine, the engine's thread steps back for an hour.
fn without_thread() -> EndpointOptions {
    let hour = Duration::from_secs(3600);
    let thread = SharedOptions { step_back: hour, longest_step_back: hour, ..SharedOptions::default() };
    EndpointOptions { thread, ..EndpointOptions::default() }
}

pub(crate) fn options() -> ConnectionOptions {
    ConnectionOptions { send_depth: 4, recv_depth: 16, stream_bytes: RING, ..ConnectionOptions::default() }
}

pub(crate) async fn connected(client: &Endpoint, listener: &Listener) -> (Connection, Connection) {
    let options = options();
    let accept = async { listener.request().await?.accept(&options).await };
    tokio::try_join!(Connection::connect_with(client, SERVER, &options), accept).unwrap()
}

pub(crate) async fn streams() -> (Stream, Stream) {
    let (client, server) = endpoints();
    let (a, b) = connected(&client, &Listener::bind(&server, PORT).unwrap()).await;
    tokio::try_join!(a.into_stream(), b.into_stream()).unwrap()
}

/// Polls the engine as a task does, until the engine's thread has stepped back.
pub(crate) async fn step_back(engine: &SharedEngine) {
    let mut quiet = 0;
    for _ in 0..1000 {
        engine.turn();
        let polls = engine.counters().polls;
        sleep(Duration::from_millis(3)).await;
        quiet = if engine.counters().polls == polls { quiet + 1 } else { 0 };
        if quiet == 5 {
            return;
        }
    }
    panic!("the thread polls beside a task");
}

pub(crate) async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), work).await.expect("nobody polls the engine")
}
