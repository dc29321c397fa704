//! Tests of the credits of a stream. The peers in these tests break the rules for credits, receive credits,
//! or close before they have given credit for all bytes.

use std::io::ErrorKind;

use iwarp::memory::Access;
use iwarp_tokio::{Connection, ConnectionOptions, Region, RemoteRegion, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::connected;
use super::streams::{breaks, bytes, streams, write_shortly};

fn credit(bytes: u64, writes: u64) -> Vec<u8> {
    [&[2][..], &bytes.to_be_bytes(), &writes.to_be_bytes()].concat()
}

/// Returns a stream, its peer, the peer's own ring, and the ring of the stream.
async fn stream_and_peer(options: &ConnectionOptions) -> (Stream, Connection, Region, RemoteRegion) {
    let (a, b) = connected(options).await;
    let own = b.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let peer = async {
        b.send(&[&[1][..], &own.remote().to_bytes(), &32u32.to_be_bytes()].concat()).await?;
        let hello = b.recv().await?.data;
        RemoteRegion::try_from(&hello[1..21])
    };
    let (stream, ring) = tokio::try_join!(a.into_stream(), peer).unwrap();
    (stream, b, own, ring)
}

/// A credit that is smaller than an earlier credit, in bytes or in Writes, ends the stream.
#[tokio::test(crate = "crate::limited")]
async fn a_peer_that_takes_credit_back_ends_the_stream() {
    for (bytes, writes) in [(9, 1), (10, 0), (0, 0)] {
        let (mut stream, peer, _ring, _) = stream_and_peer(&ConnectionOptions::default()).await;
        stream.write_all(b"0123456789").await.unwrap();
        let written = peer.recv().await.unwrap();
        assert_eq!(written.immediate, Some(10_u64.to_be_bytes()));
        // The same credit arrives twice, and then a smaller credit.
        for message in [credit(10, 1), credit(10, 1), credit(bytes, writes)] {
            peer.send(&message).await.unwrap();
        }
        breaks(&mut stream).await;
    }
}

/// A peer can give credit only for bytes and Writes that were sent.
#[tokio::test(crate = "crate::limited")]
async fn a_peer_gives_credit_for_what_was_sent_at_most() {
    for (bytes, writes) in [(11, 1), (10, 2)] {
        let (mut stream, peer, _ring, _) = stream_and_peer(&ConnectionOptions::default()).await;
        stream.write_all(b"0123456789").await.unwrap();
        peer.recv().await.unwrap();
        peer.send(&credit(bytes, writes)).await.unwrap();
        breaks(&mut stream).await;
    }
}

/// One credit is a quarter of the Writes that the peer may have in flight, and is given once.
#[tokio::test(crate = "crate::limited")]
async fn a_credit_is_given_once() {
    let options = ConnectionOptions::default();
    let (mut stream, peer, _ring, ring) = stream_and_peer(&options).await;
    let byte = peer.register(1, Access::LOCAL_WRITE).unwrap();
    // 12 of the receives are reserved for messages that need no credit.
    let quarter = (options.recv_depth as u64 - 12) / 4;
    for at in 0..quarter {
        peer.write_immediate(&ring.slice(at..=at).unwrap(), &byte, 1_u64.to_be_bytes()).await.unwrap();
    }
    stream.read_exact(&mut vec![7; quarter as usize]).await.unwrap();
    for number in 0..3_u8 {
        stream.write_all(&[number]).await.unwrap();
        stream.flush().await.unwrap();
    }
    assert_eq!(peer.recv().await.unwrap().data, credit(quarter, quarter));
    for _ in 0..3 {
        assert_eq!(peer.recv().await.unwrap().immediate, Some(1_u64.to_be_bytes()));
    }
}

/// A credit consists of exactly two numbers.
#[tokio::test(crate = "crate::limited")]
async fn a_credit_of_another_length_ends_the_stream() {
    for (len, more) in [(17, &b"x"[..]), (16, b""), (9, b""), (1, b""), (17, &[0; 8])] {
        let (mut stream, peer, _ring, _) = stream_and_peer(&ConnectionOptions::default()).await;
        peer.send(&[&credit(0, 0)[..len], more].concat()).await.unwrap();
        breaks(&mut stream).await;
    }
}

/// Writes may fill the ring, but must not exceed it by a byte while the earlier bytes are unread.
#[tokio::test(crate = "crate::limited")]
async fn a_peer_fills_the_ring_exactly() {
    let options = ConnectionOptions { stream_bytes: 100, ..ConnectionOptions::default() };
    for more in [false, true] {
        let (mut stream, b, _ring, ring) = stream_and_peer(&options).await;
        assert_eq!(ring.len, 100);
        let local = b.register(100, Access::LOCAL_WRITE).unwrap();
        local.write_at(0, &[7; 100]).unwrap();
        b.write_immediate(&ring, &local, 100_u64.to_be_bytes()).await.unwrap();
        if more {
            let nothing = local.slice(..0).unwrap();
            b.write_immediate(&ring.slice(..0).unwrap(), nothing, 1_u64.to_be_bytes()).await.unwrap();
            breaks(&mut stream).await;
        } else {
            let mut read = [0; 100];
            stream.read_exact(&mut read).await.unwrap();
            assert_eq!(read, [7; 100]);
        }
    }
}

/// Waits until the peer has all bytes that were sent, since bytes that arrive after the peer's close would be
/// answered by a reset.
async fn all_has_arrived(stream: &Stream) {
    while stream.connection().queue_pair().has_open_sends() {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
}

/// The peer has closed, so the written bytes that are not sent will never be sent. A flush and a shutdown
/// return an error.
#[tokio::test(crate = "crate::limited")]
async fn a_flush_and_a_shutdown_of_unsent_bytes_fail_when_the_peer_closes() {
    for is_flush in [true, false] {
        let (mut a, b) = streams().await;
        // There are more short writes than the peer accepts without giving credit.
        write_shortly(&mut a, &bytes(10_000)).await;
        all_has_arrived(&a).await;
        // The connection is closed without a shutdown, for which the drop of the stream would wait.
        b.connection().queue_pair().modify(iwarp::verbs::QpState::Closing).unwrap();
        a.connection().closed().await;
        let ended = if is_flush { a.flush().await } else { a.shutdown().await };
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::BrokenPipe, "flush: {is_flush}");
        // The error is the same in each later call.
        let ended = if is_flush { a.flush().await } else { a.shutdown().await };
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::BrokenPipe, "flush: {is_flush}");
    }
}

/// As the previous test, but the peer closes while the flush waits.
#[tokio::test(crate = "crate::limited")]
async fn a_flush_that_waits_fails_when_the_peer_closes() {
    let (mut a, b) = streams().await;
    write_shortly(&mut a, &bytes(10_000)).await;
    all_has_arrived(&a).await;
    let close = async {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        b.connection().queue_pair().modify(iwarp::verbs::QpState::Closing).unwrap();
    };
    let (flushed, ()) = tokio::join!(a.flush(), close);
    assert_eq!(flushed.unwrap_err().kind(), ErrorKind::BrokenPipe);
    let error = a.write_all(b"x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

/// All bytes are sent, but not the end message. The peer has closed and needs no end message, so this is no
/// error.
#[tokio::test(crate = "crate::limited")]
async fn a_shutdown_of_sent_bytes_succeeds_when_the_peer_closes() {
    let (mut a, mut b) = streams().await;
    a.write_all(b"all").await.unwrap();
    b.read_exact(&mut [0; 3]).await.unwrap();
    all_has_arrived(&a).await;
    b.connection().queue_pair().modify(iwarp::verbs::QpState::Closing).unwrap();
    a.connection().closed().await;
    a.shutdown().await.unwrap();
}
