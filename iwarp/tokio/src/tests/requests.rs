//! Tests of requests that wait at a listener, and of the wakers that are called for events.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::sleep;

use super::{PORT, SERVER, connected, endpoints, in_time};
use crate::events::Routes;
use crate::{Connection, ConnectionOptions, Endpoint, Listener};

/// Waits until `count` requests wait at the listener.
async fn until_waiting(listener: &Listener, count: usize) {
    in_time(async {
        while listener.waiting() != count {
            sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Peers that request a connection and go away, while no task accepts their requests, leave nothing behind.
#[tokio::test(crate = "crate::limited")]
async fn requests_of_peers_that_have_gone_do_not_pile_up() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let before = server.shared.routes.len();
    for _ in 0..20 {
        let asks = tokio::spawn(connect(client.clone()));
        until_waiting(&listener, 1).await;
        assert_eq!(server.shared.routes.len(), before + 1);
        asks.abort();
        until_waiting(&listener, 0).await;
        assert_eq!(server.shared.routes.len(), before);
    }
    // The other waiting requests stay, in their order.
    let asks = [(); 3].map(|()| client.clone()).map(|client| tokio::spawn(connect(client)));
    until_waiting(&listener, 3).await;
    for _ in 0..3 {
        drop(listener.request().await.unwrap());
    }
    assert_eq!((listener.waiting(), server.shared.routes.len()), (0, before));
    for ask in asks {
        assert!(matches!(in_time(ask).await.unwrap(), Err(crate::Error::Rejected { .. })));
    }
    // Requests that wait when the listener is dropped are rejected.
    let ask = tokio::spawn(connect(client.clone()));
    until_waiting(&listener, 1).await;
    drop(listener);
    assert_eq!(server.shared.routes.len(), before - 1);
    assert!(matches!(in_time(ask).await.unwrap(), Err(crate::Error::Rejected { .. })));
}

async fn connect(client: Endpoint) -> crate::Result<Connection> {
    Connection::connect(&client, SERVER).await
}

/// A task whose waker checks whether the lock of the routes is free.
struct Task {
    routes: Arc<Routes>,
    woken: AtomicUsize,
    was_locked: AtomicBool,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.was_locked.fetch_or(self.routes.is_locked(), Ordering::Relaxed);
        self.woken.fetch_add(1, Ordering::Relaxed);
    }
}

impl Task {
    /// Polls a future with the waker of this task until the future is ready.
    async fn run<T>(self: &Arc<Self>, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let waker = Waker::from(Arc::clone(self));
        let polled =
            |_: &mut Context<'_>| Poll::Ready(future.as_mut().poll(&mut Context::from_waker(&waker)));
        let mut poll = poll_fn(polled);
        loop {
            if let Poll::Ready(value) = (&mut poll).await {
                return value;
            }
            yield_now().await;
        }
    }
}

#[tokio::test(crate = "crate::limited")]
async fn events_wake_tasks_without_a_lock() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let task = |endpoint: &Endpoint| {
        let routes = Arc::clone(&endpoint.shared.routes);
        Arc::new(Task { routes, woken: AtomicUsize::new(0), was_locked: AtomicBool::new(false) })
    };
    let [accepts, connects] = [task(&server), task(&client)];
    let (b, a) = in_time(async {
        tokio::join!(accepts.run(listener.accept()), connects.run(Connection::connect(&client, SERVER)))
    })
    .await;
    let (a, b) = (a.unwrap(), b.unwrap());
    let ended = task(&client);
    let (_, _) = in_time(async { tokio::join!(ended.run(a.closed()), b.close()) }).await;
    for task in [&accepts, &connects, &ended] {
        let woken = task.woken.load(Ordering::Relaxed);
        assert!(woken > 0 && !task.was_locked.load(Ordering::Relaxed), "{woken}");
    }
    drop(connected(&client, &listener).await);
}

#[tokio::test(crate = "crate::limited")]
async fn the_oldest_request_comes_first() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let mut asking = Vec::new();
    for number in 0..4_u8 {
        let options = ConnectionOptions::default().private_data(&[number]).unwrap();
        let client = client.clone();
        asking.push(tokio::spawn(async move {
            Connection::connect_with(&client, SERVER, &options).await.map(drop)
        }));
        until_waiting(&listener, asking.len()).await;
    }
    for number in 0..4 {
        assert_eq!(listener.request().await.unwrap().private_data(), [number]);
    }
}

/// The peer has gone, and the event for its end is not handled yet. A loop that accepts requests continues.
#[tokio::test(crate = "crate::limited")]
async fn a_request_of_a_peer_that_has_just_gone_is_passed_over() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let mut asking = Box::pin(connect(client.clone()));
    assert!(poll_fn(|cx| Poll::Ready(asking.as_mut().poll(cx).is_pending())).await);
    until_waiting(&listener, 1).await;
    drop(asking);
    let begun = std::time::Instant::now();
    // This loop blocks the runtime, which would otherwise deliver the event.
    while server.counters()[0].connections_failed == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the peer does not go");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(listener.waiting(), 1);
    let both = async { tokio::try_join!(listener.accept(), Connection::connect(&client, SERVER)) };
    let (b, a) = in_time(both).await.unwrap();
    assert_eq!(b.peer_addr(), a.local_addr());
}

/// The listener accepts no more requests, but still has its route. A request that arrives now is rejected,
/// and leaves nothing behind.
#[tokio::test(crate = "crate::limited")]
async fn a_listener_that_is_gone_takes_no_requests() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    listener.close_requests();
    let ask = tokio::spawn(connect(client.clone()));
    assert!(matches!(in_time(ask).await.unwrap(), Err(crate::Error::Rejected { .. })));
    assert_eq!((listener.waiting(), server.shared.routes.len()), (0, 1));
    drop(listener);
    assert_eq!(server.shared.routes.len(), 0);
}
