//! Tests of streams of bytes: copies by tokio, both directions at once, the end of a stream, peers that break
//! the rules, and HTTP by hyper.

use std::io::IoSlice;
use std::time::Duration;

use iwarp::memory::Access;
use iwarp_tokio::{Connection, ConnectionOptions, Error, RemoteRegion, Stream};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::connected;

/// Writes `data`, ten bytes at a time.
pub(super) async fn write_shortly(stream: &mut Stream, data: &[u8]) {
    for short in data.chunks(10) {
        stream.write_all(short).await.unwrap();
    }
}

pub(super) async fn streams() -> (Stream, Stream) {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    tokio::try_join!(a.into_stream(), b.into_stream()).unwrap()
}

/// Returns `len` bytes whose period divides no buffer size.
pub(super) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 257) as u8).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2, crate = "crate::limited")]
async fn all_bytes_arrive_in_both_directions_at_once() {
    let (a, b) = streams().await;
    let (mut from_b, mut to_b) = tokio::io::split(a);
    let (mut from_a, mut to_a) = tokio::io::split(b);
    let data = bytes(10_000_000);
    let expected = data.clone();
    let sender = tokio::spawn(async move {
        // Runs of many lengths are written.
        let (mut rest, mut len) = (&data[..], 1);
        while !rest.is_empty() {
            let (now, later) = rest.split_at(len.min(rest.len()));
            to_b.write_all(now).await.unwrap();
            (rest, len) = (later, len * 3 % 300_007 + 1);
        }
        to_b.shutdown().await.unwrap();
        to_b
    });
    // The peer sends the received bytes back.
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

#[tokio::test(crate = "crate::limited")]
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

/// The peer is gone, and no written bytes are left to send. A shutdown is then no error, but a write is an
/// error.
#[tokio::test(crate = "crate::limited")]
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

/// Bytes that were written before the drop arrive, even if there are more bytes than fit into the ring.
#[tokio::test(crate = "crate::limited")]
async fn a_dropped_stream_has_sent_what_was_written() {
    let (mut a, mut b) = streams().await;
    let data = bytes(5_000_000);
    let expected = data.clone();
    let writer = tokio::spawn(async move { a.write_all(&data).await });
    let mut received = Vec::new();
    b.read_to_end(&mut received).await.unwrap();
    writer.await.unwrap().unwrap();
    assert!(received == expected);
}

/// The peer does not read. Short writes accumulate once the peer's receives are used up, and no write waits
/// for the peer.
#[tokio::test(crate = "crate::limited")]
async fn short_writes_gather_while_there_is_no_credit() {
    let (mut a, mut b) = streams().await;
    let data = bytes(100_000);
    write_shortly(&mut a, &data).await;
    let flush = tokio::time::timeout(Duration::from_millis(50), a.flush()).await;
    assert!(flush.is_err(), "the peer has taken nothing");
    let mut received = vec![0; data.len()];
    let (flushed, read) = tokio::join!(a.flush(), b.read_exact(&mut received));
    flushed.unwrap();
    read.unwrap();
    assert!(received == data);
}

/// Bytes that have accumulated are sent after the drop.
#[tokio::test(crate = "crate::limited")]
async fn a_stream_that_is_dropped_unflushed_sends_what_has_gathered() {
    let (mut a, mut b) = streams().await;
    let data = bytes(50_000);
    write_shortly(&mut a, &data).await;
    drop(a);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let mut received = Vec::new();
    b.read_to_end(&mut received).await.unwrap();
    assert!(received == data);
}

/// The parts of a vectored write follow each other in the ring, even where a ring of odd length wraps.
#[tokio::test(crate = "crate::limited")]
async fn parts_of_a_write_follow_each_other_around_the_ring() {
    let options = ConnectionOptions { stream_bytes: 1009, ..ConnectionOptions::default() };
    let (a, b) = connected(&options).await;
    let (mut a, mut b) = tokio::try_join!(a.into_stream(), b.into_stream()).unwrap();
    assert!(a.is_write_vectored());
    let data = bytes(300);
    for _ in 0..20 {
        let parts = [IoSlice::new(&data[..1]), IoSlice::new(&[]), IoSlice::new(&data[1..])];
        // The write may accept only a part of the bytes, if the credit for the bytes that were read is still
        // on its way.
        let written = a.write_vectored(&parts).await.unwrap();
        let mut received = [0; 300];
        tokio::try_join!(a.write_all(&data[written..]), b.read_exact(&mut received)).unwrap();
        assert!(received[..] == data);
    }
    let parts = [IoSlice::new(&data); 4];
    let written = a.write_vectored(&parts).await.unwrap();
    assert!(written <= 1009, "{written} bytes in a ring of 1009");
}

#[tokio::test(crate = "crate::limited")]
async fn options_that_do_not_suffice_for_a_stream_are_named() {
    let default = ConnectionOptions::default;
    for (options, named) in [
        (ConnectionOptions { stream_bytes: 0, ..default() }, "stream_bytes"),
        (ConnectionOptions { stream_bytes: (64 << 20) + 1, ..default() }, "stream_bytes"),
        (ConnectionOptions { recv_depth: 12, ..default() }, "recv_depth"),
        (ConnectionOptions { message_bytes: 24, ..default() }, "message_bytes"),
    ] {
        let (a, _b) = connected(&options).await;
        let error = a.into_stream().await.unwrap_err();
        assert!(matches!(error, Error::Verbs(_)) && error.to_string().contains(named), "{error}");
    }
}

/// As with TCP: a flush has nothing to do, and only a further write fails.
#[tokio::test(crate = "crate::limited")]
async fn a_flush_after_the_peers_close_succeeds() {
    let (mut a, mut b) = streams().await;
    a.write_all(b"all").await.unwrap();
    b.read_exact(&mut [0; 3]).await.unwrap();
    drop(b);
    assert_eq!(a.read(&mut [0; 8]).await.unwrap(), 0);
    a.connection().closed().await;
    for _ in 0..2 {
        a.flush().await.unwrap();
    }
    let error = a.write_all(b"more").await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[tokio::test(crate = "crate::limited")]
async fn a_reset_is_no_end_of_the_stream() {
    let (mut a, b) = streams().await;
    b.connection().abort();
    for _ in 0..2 {
        let error = a.read(&mut [0; 8]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        assert!(error.to_string().contains("the connection has ended: "), "{error}");
    }
    assert!(a.write_all(b"x").await.is_err());
}

#[tokio::test(crate = "crate::limited")]
async fn a_peer_that_is_no_stream_is_refused() {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    // The handle keeps the connection open until the message is acknowledged.
    let _alive = a.clone();
    let (made, sent) = tokio::join!(a.into_stream(), b.send(b"GET / HTTP/1.1"));
    sent.unwrap();
    assert!(matches!(made, Err(Error::Protocol(_))), "{made:?}");
}

/// A peer must not give credit for what was not sent, send an unknown or shortened message, write more than
/// the ring holds, or write after its end message.
#[tokio::test(crate = "crate::limited")]
async fn a_peer_that_breaks_the_rules_of_a_stream_ends_it() {
    let credit = |writes: u64| [&[2][..], &0u64.to_be_bytes(), &writes.to_be_bytes()].concat();
    let broken =
        [vec![credit(1)], vec![vec![9]], vec![credit(0)[..16].to_vec()], vec![vec![]], vec![vec![3, 0]]];
    for messages in broken {
        let (mut stream, peer, _) = stream_and_peer().await;
        for message in &messages {
            peer.send(message).await.unwrap();
        }
        breaks(&mut stream).await;
    }
    let (mut stream, peer, ring) = stream_and_peer().await;
    let nothing = peer.register(8, Access::LOCAL_WRITE).unwrap();
    let write = |len: u64| peer.write_immediate(&ring, nothing.slice(..0).unwrap(), len.to_be_bytes());
    write(ring_bytes() + 1).await.unwrap();
    breaks(&mut stream).await;

    let (mut stream, peer, ring) = stream_and_peer().await;
    let nothing = peer.register(8, Access::LOCAL_WRITE).unwrap();
    peer.send(&[3]).await.unwrap();
    peer.write_immediate(&ring, nothing.slice(..0).unwrap(), 1u64.to_be_bytes()).await.unwrap();
    breaks(&mut stream).await;
}

fn ring_bytes() -> u64 {
    ConnectionOptions::default().stream_bytes as u64
}

/// Checks that the stream fails, and that later calls also fail.
pub(super) async fn breaks(stream: &mut Stream) {
    let failed = async {
        // The message may still be on its way to the stream.
        while stream.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), failed).await.unwrap();
    let error = stream.flush().await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
    assert!(stream.write_all(b"x").await.is_err());
}

/// Returns a stream, its peer, and a range of length 0 at the start of the stream's ring.
async fn stream_and_peer() -> (Stream, Connection, RemoteRegion) {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    let peer = async {
        let ring = b.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        b.send(&[&[1][..], &ring.remote().to_bytes(), &32u32.to_be_bytes()].concat()).await?;
        let hello = b.recv().await?.data;
        RemoteRegion::try_from(&hello[1..21])
    };
    let (stream, ring) = tokio::try_join!(a.into_stream(), peer).unwrap();
    (stream, b, ring.slice(..0).unwrap())
}

/// The HTTP server and the HTTP client are hyper's. The code of hyper knows nothing of RDMA.
#[tokio::test(flavor = "multi_thread", worker_threads = 2, crate = "crate::limited")]
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
    for len in [0, 1, 1000, 5_000_000] {
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
