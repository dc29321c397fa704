//! Tests that the values and futures of this crate may move between threads, as `tokio::spawn` requires.

use iwarp_tokio::{
    Connection, ConnectionOptions, Endpoint, EndpointOptions, Error, Listener, Message, Region, RemoteRegion,
    Request, Slice, Stream,
};

#[test]
fn values_move_between_threads() {
    fn send_and_sync<T: Send + Sync + 'static>() {}
    send_and_sync::<(Endpoint, EndpointOptions, Connection, ConnectionOptions, Listener, Request)>();
    send_and_sync::<(Error, Message, Region, RemoteRegion, Slice, Stream)>();
}

#[test]
fn futures_move_between_threads() {
    fn send<F: Future + Send>(_future: F) {}
    // The function is never called. The test passes if this code compiles.
    let _check = |endpoint: Endpoint, listener: Listener, connection: Connection, region: Region| {
        let remote = region.remote();
        send(Endpoint::open("local"));
        send(endpoint.status());
        send(Connection::connect(&endpoint, "server:7471"));
        send(listener.accept());
        send(listener.request());
        send(connection.write(&remote, &region));
        send(connection.read(&remote, &region));
        send(connection.read_bytes(&remote));
        send(connection.fetch_add(&remote, 1));
        send(connection.send(b"bytes"));
        send(connection.recv());
        send(connection.close());
        send(connection.clone().into_stream());
    };
}
