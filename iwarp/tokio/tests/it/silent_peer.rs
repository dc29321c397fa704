//! Tests with peers that request a connection, and are slow to confirm it, never confirm it, or go away.

use std::time::Duration;

use iwarp::verbs::{CmEventKind, CmId, ConnParam, ConnectionError, StreamOptions};
use iwarp_tokio::{Connection, ConnectionOptions, Endpoint, Error, Listener};
use tokio::time::sleep;

use super::{PORT, SERVER, endpoints};

const HOUR: Duration = Duration::from_secs(3600);

/// A Request of revision 2 for peer-to-peer, which announces an RDMA Write as RTR (RFC 6581 sections 6 and
/// 9.2).
const REQUEST: [u8; 24] = *b"MPA ID Req Frame\x50\x02\0\x04\x80\x08\x80\x08";

/// Connects as a peer that sends its Request, and then nothing. The peer exists as long as the returned
/// identifier.
async fn silent(client: &Endpoint) -> CmId {
    let channel = client.context().create_event_channel().unwrap();
    let id = client.context().create_id(&channel);
    id.connect_stream(SERVER.parse().unwrap(), StreamOptions::default(), &ConnParam::default()).unwrap();
    loop {
        match channel.poll().map(|event| event.kind) {
            Some(CmEventKind::StreamEstablished { .. }) => break,
            Some(other) => panic!("{other:?}"),
            None => sleep(Duration::from_millis(1)).await,
        }
    }
    assert_eq!(id.send_stream(&REQUEST).unwrap(), REQUEST.len());
    id
}

/// The loop of the documentation accepts one connection after the other. Silent peers do not delay the loop.
#[tokio::test(crate = "crate::limited")]
async fn silent_peers_do_not_hold_up_a_loop_that_accepts() {
    for accepts_by_request in [false, true] {
        let (client, server) = endpoints();
        let listener = Listener::bind(&server, PORT).unwrap();
        let accepting = tokio::spawn(async move {
            // With these options, a loop that waits for a silent peer would wait for an hour.
            let options = ConnectionOptions::default().timeout(HOUR);
            let mut accepted = Vec::new();
            loop {
                let connection = match accepts_by_request {
                    true => listener.request().await.unwrap().accept(&options).await.unwrap(),
                    false => listener.accept().await.unwrap(),
                };
                accepted.push(connection.clone());
                tokio::spawn(async move { connection.send(b"welcome").await });
            }
        });
        let mut there = Vec::new();
        for _ in 0..3 {
            there.push(silent(&client).await);
            let honest = Connection::connect(&client, SERVER).await.unwrap();
            assert_eq!(honest.recv().await.unwrap().data, b"welcome");
        }
        accepting.abort();
    }
}

/// Each call that needs the peer ends with the cause.
#[tokio::test(crate = "crate::limited")]
async fn a_silent_peer_is_given_up() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let silent = silent(&client).await;
    let options = ConnectionOptions::default().timeout(Duration::from_millis(300));
    let b = listener.request().await.unwrap().accept(&options).await.unwrap();
    let (established, sent, received, closed, ended) =
        tokio::join!(b.established(), b.send(b"x"), b.recv(), b.close(), b.closed());
    let errors =
        [established.unwrap_err(), sent.unwrap_err(), received.unwrap_err(), closed.unwrap_err(), ended];
    for error in errors {
        assert!(matches!(error, Error::Connection(ConnectionError::StartupTimeout)), "{error}");
    }
    let late = [b.established().await.unwrap_err(), b.send(b"x").await.unwrap_err()];
    assert!(late.iter().all(|error| matches!(error, Error::Connection(ConnectionError::StartupTimeout))));
    drop(silent);
}

/// An accepted connection knows the agreed parameters before the peer has confirmed the connection, and
/// reports the same afterwards.
#[tokio::test(crate = "crate::limited")]
async fn an_accepted_connection_knows_what_was_agreed_on() {
    for (offers, wants) in [(true, true), (true, false), (false, true), (false, false)] {
        let (client, server) = endpoints();
        let listener = Listener::bind(&server, PORT).unwrap();
        let options = |ib_semantics: bool| {
            let mut options = ConnectionOptions::default().private_data(b"data").unwrap();
            options.param.ib_semantics = ib_semantics;
            options
        };
        let (to, from) = (options(offers), options(wants));
        let accept = async {
            let b = listener.request().await?.accept(&from).await?;
            let before = (b.private_data().to_vec(), b.ib_semantics(), b.local_addr(), b.peer_addr());
            b.established().await?;
            Ok((b, before))
        };
        let (a, (b, before)) =
            tokio::try_join!(Connection::connect_with(&client, SERVER, &to), accept).unwrap();
        assert_eq!(before.0, b"data");
        assert_eq!((before.1, a.ib_semantics()), (offers && wants, offers && wants));
        assert_eq!((before.2, before.3), (a.peer_addr(), a.local_addr()));
        assert!(before.2.is_some() && before.3.is_some());
        let (sent, received) = tokio::join!(b.send(b"x"), a.recv());
        sent.unwrap();
        assert_eq!(received.unwrap().data, b"x");
    }
}

/// A server closes right after it has accepted a connection, or right after its first message. The close is
/// graceful, since it first waits until the peer is ready.
#[tokio::test(crate = "crate::limited")]
async fn a_connection_that_is_closed_at_once_closes_gracefully() {
    for sends in [false, true] {
        let (client, server) = endpoints();
        let listener = Listener::bind(&server, PORT).unwrap();
        let serve = async {
            let b = listener.accept().await?;
            if sends {
                b.send(b"bye").await?;
            }
            b.close().await
        };
        let visit = async {
            let a = Connection::connect(&client, SERVER).await?;
            if sends {
                assert_eq!(a.recv().await?.data, b"bye");
            }
            let Error::Connection(ConnectionError::PeerClosed) = a.recv().await.unwrap_err() else {
                panic!("the peer has closed")
            };
            assert!(matches!(a.closed().await, Error::Closed));
            Ok(())
        };
        tokio::try_join!(serve, visit).unwrap();
    }
}

/// A client goes away before it is accepted. Accepting its request returns an error, and a loop that accepts
/// skips the request.
#[tokio::test(crate = "crate::limited")]
async fn a_peer_that_has_gone_is_told_or_passed_over() {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let gone = silent(&client).await;
    let request = listener.request().await.unwrap();
    gone.abort();
    while server.counters()[0].connections_failed == 0 {
        sleep(Duration::from_millis(1)).await;
    }
    let error = request.accept(&ConnectionOptions::default()).await.unwrap_err();
    assert!(matches!(error, Error::Connection(ConnectionError::Tcp(_))), "{error}");

    for number in 1..=5 {
        let gone = silent(&client).await;
        while server.context().usage().backlog.used == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        gone.abort();
        while server.counters()[0].connections_failed <= number {
            sleep(Duration::from_millis(1)).await;
        }
    }
    let (a, b) = tokio::try_join!(Connection::connect(&client, SERVER), listener.accept()).unwrap();
    assert_eq!(a.local_addr(), b.peer_addr());
}
