//! Tests of two endpoints on an in-memory wire.

mod connections;
mod credits;
mod ends;
#[path = "../common/limited.rs"]
mod limited;
mod limited_tests;
mod metrics;
mod operations;
mod own_requests;
mod send;
mod silent_peer;
mod streams;

use dp::link::{LinkConfig, pair};
use iwarp_tokio::{Connection, ConnectionOptions, Endpoint, Listener};

const PORT: u16 = 7471;
const SERVER: &str = "10.0.0.2:7471";

/// Returns a client and a server.
fn endpoints() -> (Endpoint, Endpoint) {
    let (a, b) = pair(&LinkConfig::default());
    (Endpoint::on_port(a, &["10.0.0.1/24"]).unwrap(), Endpoint::on_port(b, &["10.0.0.2/24"]).unwrap())
}

/// Returns the client's and the server's side of a connection with these options.
async fn connected(options: &ConnectionOptions) -> (Connection, Connection) {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let accept = async { listener.request().await?.accept(options).await };
    tokio::try_join!(Connection::connect_with(&client, SERVER, options), accept).unwrap()
}
