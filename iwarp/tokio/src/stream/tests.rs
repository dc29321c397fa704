//! Tests that drive streams step by step: streams whose connection ends while they are read, and dropped
//! streams.

use std::task::{Context, Waker};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};

use super::linger::Linger;
use crate::Error;
use crate::router::Direction;
use crate::tests::{in_time, streams};

/// The connection is about to close, and the credit for bytes that were read before is refused. Bytes that
/// have arrived in the meantime can still be read. Then the stream ends.
#[tokio::test(crate = "crate::limited")]
async fn a_refused_credit_does_not_end_the_stream() {
    in_time(async {
        let (mut a, mut b) = streams().await;
        let cx = Context::from_waker(Waker::noop());
        let first = [7; 5000];
        b.write_all(&first).await.unwrap();
        let mut read = [0; 5000];
        let mut out = ReadBuf::new(&mut read);
        while out.filled().len() < first.len() {
            let inner = a.inner();
            inner.flow.receive(&inner.connection, Direction::Read, &cx).unwrap();
            inner.flow.incoming.copy_to(&mut out).unwrap();
            tokio::task::yield_now().await;
        }
        assert!(a.inner().flow.incoming.credit_due().is_some());
        b.write_all(b"last").await.unwrap();
        b.shutdown().await.unwrap();
        // The request completes once the peer has accepted it.
        while b.connection().queue_pair().has_open_sends() {
            tokio::task::yield_now().await;
        }
        a.connection().queue_pair().modify(iwarp::verbs::QpState::Closing).unwrap();
        let inner = a.inner();
        assert!(inner.flow.send(&inner.connection, Direction::Read, &cx).is_err(), "the credit is refused");
        let mut rest = Vec::new();
        a.read_to_end(&mut rest).await.unwrap();
        assert_eq!((read, &rest[..]), (first, &b"last"[..]));
    })
    .await;
}

/// The peer acknowledges, but never reads. The stream and its memory then stay only until the time limit.
#[tokio::test(crate = "crate::limited")]
async fn a_dropped_stream_gives_up_a_peer_that_takes_nothing() {
    in_time(async {
        let (mut a, b) = streams().await;
        a.inner().linger = Linger::new(Duration::from_millis(50));
        // There are more Writes than the peer accepts without giving credit, so the last bytes are not sent.
        for number in 0..10 {
            a.write_u8(number).await.unwrap();
        }
        assert!(!a.inner().flow.outgoing.is_sent());
        // A handle of the connection does not keep the stream alive.
        let kept = a.connection().clone();
        drop(a);
        for error in [b.connection().closed().await, kept.closed().await] {
            assert!(matches!(error, Error::Connection(_)), "{error}");
        }
    })
    .await;
}

/// A peer that reads within the limit receives all bytes, and the connection ends.
#[tokio::test(crate = "crate::limited")]
async fn a_dropped_stream_sends_the_rest_to_a_peer_that_reads() {
    in_time(async {
        let (mut a, mut b) = streams().await;
        for number in 0..10 {
            a.write_u8(number).await.unwrap();
        }
        assert!(!a.inner().flow.outgoing.is_sent());
        drop(a);
        let mut read = Vec::new();
        b.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, (0..10).collect::<Vec<u8>>());
        // The connection ends gracefully, or by a reset if a credit of this side has crossed the peer's
        // close.
        b.connection().closed().await;
    })
    .await;
}
