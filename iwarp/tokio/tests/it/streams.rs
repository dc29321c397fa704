//! Streams of bytes: tokio's copies, halves, ends, and HTTP by hyper.

use iwarp_tokio::{ConnectionOptions, Error, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connected;

async fn streams() -> (Stream, Stream) {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    tokio::try_join!(a.into_stream(), b.into_stream()).unwrap()
}

/// `len` bytes without a period that fits any buffer.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 257) as u8).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_bytes_arrive_in_both_directions_at_once() {
    let (a, b) = streams().await;
    let (mut from_b, mut to_b) = tokio::io::split(a);
    let (mut from_a, mut to_a) = tokio::io::split(b);
    let data = bytes(10_000_000);
    let expected = data.clone();
    let sender = tokio::spawn(async move {
        // Runs of all lengths.
        let (mut rest, mut len) = (&data[..], 1);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(len.min(rest.len()));
            to_b.write_all(now).await.unwrap();
            (rest, len) = (later, len * 3 % 300_007 + 1);
        }
        to_b.shutdown().await.unwrap();
        to_b
    });
    // The other end sends back what it gets.
    let echo = tokio::spawn(async move {
        tokio::io::copy(&mut from_a, &mut to_a).await.unwrap();
        to_a.shutdown().await.unwrap();
        (from_a, to_a)
    });
    let mut received = Vec::new();
    from_b.read_to_end(&mut received).await.unwrap();
    assert!(received == expected);
    drop((sender.await.unwrap(), echo.await.unwrap()));
}

#[tokio::test]
async fn one_direction_ends_and_the_other_goes_on() {
    let (mut a, mut b) = streams().await;
    a.write_all(b"question").await.unwrap();
    a.shutdown().await.unwrap();
    assert!(a.write_all(b"more").await.is_err());
    let mut question = String::new();
    b.read_to_string(&mut question).await.unwrap();
    b.write_all(b"answer").await.unwrap();
    drop(b);
    let mut answer = String::new();
    a.read_to_string(&mut answer).await.unwrap();
    assert_eq!((&*question, &*answer), ("question", "answer"));
}

/// The peer has read all, and is gone: to end is no error, and to write is one.
#[tokio::test]
async fn a_peer_that_is_gone_needs_no_end() {
    for waits in [false, true] {
        let (mut a, mut b) = streams().await;
        b.shutdown().await.unwrap();
        drop(b);
        if waits {
            assert_eq!(a.read(&mut [0; 8]).await.unwrap(), 0);
            a.connection().closed().await;
            let error = a.write_all(b"x").await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        }
        a.shutdown().await.unwrap();
    }
}

/// What was written before the drop arrives, more than a ring of it too.
#[tokio::test]
async fn a_dropped_stream_has_sent_what_was_written() {
    let (mut a, mut b) = streams().await;
    let data = bytes(1_000_000);
    let expected = data.clone();
    let writer = tokio::spawn(async move { a.write_all(&data).await });
    let mut received = Vec::new();
    b.read_to_end(&mut received).await.unwrap();
    writer.await.unwrap().unwrap();
    assert!(received == expected);
}

#[tokio::test]
async fn a_reset_is_no_end_of_the_stream() {
    let (mut a, b) = streams().await;
    b.connection().abort();
    let error = a.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(a.write_all(b"x").await.is_err());
}

#[tokio::test]
async fn a_peer_that_is_no_stream_is_refused() {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    let (made, sent) = tokio::join!(a.into_stream(), b.send(b"GET / HTTP/1.1"));
    sent.unwrap();
    assert!(matches!(made, Err(Error::Protocol(_))), "{made:?}");
    let options = ConnectionOptions { recv_depth: 12, ..ConnectionOptions::default() };
    let (a, _b) = connected(&options).await;
    assert!(matches!(a.into_stream().await, Err(Error::Protocol(_))));
}

/// A server and a client of hyper, which know nothing of RDMA.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hyper_speaks_http_over_a_stream() {
    use http_body_util::{BodyExt, Full};
    use hyper::body::{Bytes, Incoming};
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;

    async fn reverse(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
        let mut body = request.into_body().collect().await?.to_bytes().to_vec();
        body.reverse();
        Ok(Response::new(Full::from(body)))
    }

    let (a, b) = streams().await;
    let service = hyper::service::service_fn(reverse);
    let server = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(b), service);
    let server = tokio::spawn(server);
    let (mut client, connection) = hyper::client::conn::http1::handshake(TokioIo::new(a)).await.unwrap();
    let connection = tokio::spawn(connection);
    for len in [0, 1, 1000, 2_000_000] {
        let mut body = bytes(len);
        let request: Request<Full<Bytes>> =
            Request::post("/").header("host", "server").body(body.clone().into()).unwrap();
        client.ready().await.unwrap();
        let response = client.send_request(request).await.unwrap();
        assert_eq!(response.status(), 200);
        body.reverse();
        assert!(response.into_body().collect().await.unwrap().to_bytes() == body);
    }
    drop(client);
    connection.await.unwrap().unwrap();
    server.await.unwrap().unwrap();
}
