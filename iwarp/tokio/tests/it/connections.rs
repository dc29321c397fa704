//! Tests how connections begin and end.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use iwarp::verbs::ConnectionError;
use iwarp_tokio::{Connection, ConnectionOptions, Endpoint, Error, Listener};
use tokio::time::timeout;

use super::{PORT, SERVER, connected, endpoints};

#[tokio::test(crate = "crate::limited")]
async fn private_data_goes_both_ways() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let options = |text: &str| ConnectionOptions::default().private_data(text.as_bytes()).unwrap();
    let accept = async {
        let request = listener.request().await?;
        assert_eq!(request.private_data(), b"who is there?");
        assert_eq!(request.peer_addr().ip(), client.addresses()[0]);
        request.accept(&options("the server")).await
    };
    let to_server = options("who is there?");
    let (a, b) = tokio::try_join!(Connection::connect_with(&client, SERVER, &to_server), accept).unwrap();
    assert_eq!((a.private_data(), b.private_data()), (&b"the server"[..], &b"who is there?"[..]));
    assert_eq!((a.local_addr(), a.peer_addr()), (b.peer_addr(), b.local_addr()));
    assert!(a.ib_semantics() && b.ib_semantics());
}

#[tokio::test(crate = "crate::limited")]
async fn a_rejected_client_gets_the_reason() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let reject = async { listener.request().await?.reject(b"full") };
    let (connected, rejected) = tokio::join!(Connection::connect(&client, SERVER), reject);
    rejected.unwrap();
    let Err(Error::Rejected { private_data }) = connected else { panic!("{connected:?}") };
    assert_eq!(*private_data, *b"full");
}

#[tokio::test(crate = "crate::limited")]
async fn a_request_that_is_dropped_is_rejected() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let (connected, request) = tokio::join!(Connection::connect(&client, SERVER), async {
        drop(listener.request().await);
    });
    let () = request;
    assert!(matches!(connected, Err(Error::Rejected { .. })), "{connected:?}");
}

#[tokio::test(crate = "crate::limited")]
async fn nobody_listens() {
    let (client, server) = endpoints();
    let refused = Connection::connect(&client, SERVER).await.unwrap_err();
    assert!(matches!(refused, Error::Connection(ConnectionError::Tcp(_))), "{refused}");
    // The port of a dropped listener is free again, and no listener uses it.
    for _ in 0..2 {
        drop(Listener::bind(&server, PORT).unwrap());
    }
    Connection::connect(&client, SERVER).await.unwrap_err();
}

#[tokio::test(crate = "crate::limited")]
async fn a_port_has_one_listener() {
    let (_client, server) = endpoints();
    let _listener = Listener::bind(&server, PORT).unwrap();
    let error = Listener::bind(&server, PORT).err().unwrap();
    assert!(error.to_string().contains("choose another port"), "{error}");
}

#[tokio::test(crate = "crate::limited")]
async fn an_address_of_another_family_cannot_be_reached() {
    let (client, _server) = endpoints();
    let error = Connection::connect(&client, "[fd00::2]:7471").await.unwrap_err();
    assert!(matches!(&error, Error::Name(text) if text.contains("same IP family")), "{error}");
}

#[tokio::test(crate = "crate::limited")]
async fn a_close_is_graceful_at_both_ends() {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    a.send(b"last").await.unwrap();
    let (closed, taken) = tokio::join!(a.close(), b.recv());
    closed.unwrap();
    assert_eq!(taken.unwrap().data, b"last");
    assert!(matches!(b.closed().await, Error::Closed));
    assert!(matches!(b.recv().await, Err(Error::Connection(ConnectionError::PeerClosed))));
    assert!(matches!(a.recv().await, Err(Error::Closed)));
    assert!(matches!(a.send(b"more").await, Err(Error::Closed)));
}

#[tokio::test(crate = "crate::limited")]
async fn an_end_has_its_cause_for_all_that_wait() {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    let waiting = tokio::spawn({
        let a = a.clone();
        async move { a.recv().await }
    });
    drop(b);
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::Connection(ConnectionError::Tcp(_))), "{error}");
    for error in [a.closed().await, a.send(b"x").await.unwrap_err(), a.recv().await.unwrap_err()] {
        assert!(matches!(error, Error::Connection(ConnectionError::Tcp(_))), "{error}");
    }
}

/// The engine of the server ends, as if the server's process had died.
#[tokio::test(crate = "crate::limited")]
async fn a_server_that_dies_is_noticed() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let (a, b) = tokio::try_join!(Connection::connect(&client, SERVER), listener.accept()).unwrap();
    let waiting = tokio::spawn(async move { a.recv().await });
    drop((b, listener, server));
    let ended = timeout(Duration::from_secs(20), waiting).await.unwrap().unwrap();
    assert!(matches!(ended, Err(Error::Connection(_))), "{ended:?}");
}

/// Many connections that are dropped while they are made leave neither queue pairs nor memory.
#[tokio::test(crate = "crate::limited")]
async fn a_dropped_connect_leaves_nothing() {
    let (client, server) = endpoints();
    let _listener = Listener::bind(&server, PORT).unwrap();
    let before = used(&client);
    for micros in 0..40 {
        let connecting = Connection::connect(&client, SERVER);
        assert!(timeout(Duration::from_micros(micros * 20), connecting).await.is_err(), "nobody accepts");
    }
    let is_as_before = async {
        while used(&client) != before {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    // The engine removes the dropped objects in later polls.
    let waited = timeout(Duration::from_secs(20), is_as_before).await;
    assert!(waited.is_ok(), "{:?} are left of {before:?}", used(&client));
}

/// Returns the numbers of queue pairs, regions and completion queues that are in use.
fn used(endpoint: &Endpoint) -> [usize; 3] {
    let usage = endpoint.context().usage();
    [usage.qp, usage.mr, usage.cq].map(|usage| usage.used)
}

/// A request that is refused because this side is closing returns [`Error::Closed`], even before the
/// connection has ended.
#[tokio::test(crate = "crate::limited")]
async fn a_request_behind_a_close_is_told_who_closes() {
    let (a, _b) = connected(&ConnectionOptions::default()).await;
    let mut closing = Box::pin(a.close());
    let mut sending = Box::pin(a.send(b"late"));
    poll_fn(|cx| Poll::Ready(closing.as_mut().poll(cx).is_pending())).await;
    // The send is polled before the event of the end is delivered.
    let Poll::Ready(sent) = poll_fn(|cx| Poll::Ready(sending.as_mut().poll(cx))).await else {
        panic!("it is refused at once")
    };
    assert!(matches!(sent, Err(Error::Closed)), "{sent:?}");
    closing.await.unwrap();
}

/// A request that ends because of this side's own abort reports no other cause.
#[tokio::test(crate = "crate::limited")]
async fn a_request_that_is_aborted_here_is_closed() {
    let options = ConnectionOptions { recv_depth: 1, ..ConnectionOptions::default() };
    let (a, _b) = connected(&options).await;
    // The peer has only one buffer, and receives no message.
    a.send(b"first").await.unwrap();
    let waiting = tokio::spawn({
        let a = a.clone();
        async move { a.send(b"second").await }
    });
    while !a.queue_pair().has_open_sends() {
        tokio::task::yield_now().await;
    }
    a.abort();
    let sent = waiting.await.unwrap();
    assert!(matches!(sent, Err(Error::Closed)), "{sent:?}");
}
