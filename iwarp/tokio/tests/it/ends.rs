//! Tests many connections that are refused or end at once while the program handles no event, and the
//! shutdown of the runtime in which an endpoint was created.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use dp::Port;
use dp::link::{LinkConfig, pair};
use iwarp::engine::EngineConfig;
use iwarp::verbs::ConnectionError;
use iwarp_tokio::{Connection, ConnectionOptions, Endpoint, EndpointOptions, Error, Listener};
use tokio::task::JoinSet;

use super::{PORT, SERVER};

/// Returns an endpoint whose event channel has this limit.
fn endpoint(port: Box<dyn Port>, address: &str, max_cm_events: usize) -> Endpoint {
    let config = EngineConfig::new(&*port, &[address]).unwrap();
    let mut options = EndpointOptions::default();
    options.context.limits.max_cm_events = max_cm_events;
    Endpoint::on_queues(vec![port], &config, &options).unwrap()
}

/// Returns a client whose event channel has this limit, and a server.
fn endpoints(max_cm_events: usize) -> (Endpoint, Endpoint) {
    let (a, b) = pair(&LinkConfig::default());
    (endpoint(a, "10.0.0.1/24", max_cm_events), endpoint(b, "10.0.0.2/24", 512))
}

/// Blocks the thread of the runtime, so that no task handles events, until `count` connections have failed.
fn await_failures(endpoint: &Endpoint, count: u64) {
    let begun = Instant::now();
    while endpoint.counters()[0].connections_failed < count {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", endpoint.counters()[0].connections_failed);
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn small() -> ConnectionOptions {
    ConnectionOptions { send_depth: 1, recv_depth: 1, message_bytes: 64, ..ConnectionOptions::default() }
}

/// More connections end at once than the endpoint's event channel can hold. Each `closed` and each `close`
/// returns.
#[tokio::test(crate = "crate::limited")]
async fn no_end_is_missed_however_many_come_at_once() {
    for (limit, count) in [(1, 20), (512, 600)] {
        let (client, server) = endpoints(limit);
        let listener = Listener::bind(&server, PORT).unwrap();
        let (mut peers, mut later) = (Vec::new(), Vec::new());
        let mut waiting = JoinSet::new();
        for number in 0..count {
            let options = small();
            let accept = async { listener.request().await?.accept(&options).await };
            let connect = Connection::connect_with(&client, SERVER, &options);
            let (a, b) = tokio::try_join!(connect, accept).unwrap();
            b.established().await.unwrap();
            peers.push(b);
            if number % 2 == 0 {
                waiting.spawn(async move { a.closed().await });
            } else {
                later.push(a);
            }
        }
        peers.iter().for_each(Connection::abort);
        await_failures(&client, count);
        // The connections have ended, but no event was handled.
        for a in later {
            waiting.spawn(async move { a.close().await.unwrap_err() });
        }
        for error in waiting.join_all().await {
            assert!(matches!(error, Error::Connection(ConnectionError::Tcp(_))), "{error}");
        }
    }
}

/// All connections are refused at once. Each `connect` returns an error.
#[tokio::test(crate = "crate::limited")]
async fn no_refusal_is_missed_however_many_come_at_once() {
    for (limit, count) in [(1, 20), (2, 20), (512, 600)] {
        let (client, _server) = endpoints(limit);
        let options = small();
        let connect = || Box::pin(Connection::connect_with(&client, SERVER, &options));
        let mut waiting: Vec<_> = (0..count).map(|_| connect()).collect();
        for connecting in &mut waiting {
            assert!(poll_fn(|cx| Poll::Ready(connecting.as_mut().poll(cx).is_pending())).await);
        }
        await_failures(&client, count);
        for connecting in waiting {
            let error = connecting.await.unwrap_err();
            assert!(matches!(error, Error::Connection(ConnectionError::Tcp(_))), "{error}");
        }
    }
}

/// The runtime in which an endpoint was created shuts down. Operations in another runtime get an error,
/// whether they wait already or begin later.
#[test]
fn the_end_of_the_endpoints_runtime_is_told() {
    let new_runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (first, second) = (new_runtime().unwrap(), new_runtime().unwrap());
    let _watched = crate::limited::watch();
    let ((client, server), (a, _b), listener) = first.block_on(async {
        let (client, server) = endpoints(512);
        let listener = Listener::bind(&server, PORT).unwrap();
        let ends = tokio::try_join!(Connection::connect(&client, SERVER), listener.accept()).unwrap();
        ((client, server), ends, Arc::new(listener))
    });
    let waiting = second.spawn({
        let a = a.clone();
        async move { a.closed().await }
    });
    let accepting: Vec<_> = (0..3)
        .map(|_| {
            let listener = Arc::clone(&listener);
            second.spawn(async move { listener.accept().await.map(drop) })
        })
        .collect();
    first.shutdown_timeout(Duration::from_secs(60));
    let error = second.block_on(waiting).unwrap();
    assert!(matches!(error, Error::Closed), "{error}");
    for accepting in accepting {
        let error = second.block_on(accepting).unwrap().unwrap_err();
        assert!(matches!(error, Error::System(_)), "{error}");
    }
    let error = second.block_on(listener.request()).err().unwrap();
    assert!(matches!(error, Error::System(_)), "{error}");
    let error = second.block_on(Connection::connect(&client, SERVER)).unwrap_err();
    assert!(matches!(error, Error::System(_)), "{error}");
    let error = Listener::bind(&server, PORT + 1).err().unwrap();
    assert!(matches!(error, Error::System(_)), "{error}");
}
