//! Tests that a task hands the engine over to the engine's thread where this thread has to poll. In each
//! test, the thread has stepped back.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use iwarp::memory::Access;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

use super::{PORT, RING, SERVER, connected, endpoints, in_time, options, step_back, streams};
use crate::{Connection, Error, Listener, Stream};

/// How long the peer's task does something else before it reads.
const PAUSE: Duration = Duration::from_millis(20);

#[tokio::test(crate = "crate::limited")]
async fn a_connect_and_a_listener_hand_over() {
    for is_client in [true, false] {
        in_time(async {
            let (client, server) = endpoints();
            let listener = Listener::bind(&server, PORT).unwrap();
            let stepped_back = if is_client { &client } else { &server };
            step_back(&stepped_back.shared.engines[0]).await;
            connected(&client, &listener).await;
        })
        .await;
    }
}

/// `accept` hands the engine over, even if a task has polled the engine since the request was received.
#[tokio::test(crate = "crate::limited")]
async fn an_accept_hands_over() {
    in_time(async {
        let (client, server) = endpoints();
        let listener = Listener::bind(&server, PORT).unwrap();
        let connecting = tokio::spawn(async move { Connection::connect(&client, SERVER).await.map(drop) });
        let request = listener.request().await.unwrap();
        step_back(&server.shared.engines[0]).await;
        let _accepted = request.accept(&options()).await.unwrap();
        connecting.await.unwrap().unwrap();
    })
    .await;
}

/// Atomics fill the send queue. The future of each atomic is polled once and then dropped, before it would
/// hand over the engine. A further atomic waits for a free entry of the send queue, and hands over the
/// engine.
#[tokio::test(crate = "crate::limited")]
async fn a_full_send_queue_hands_over() {
    in_time(async {
        let (client, server) = endpoints();
        let (a, b) = connected(&client, &Listener::bind(&server, PORT).unwrap()).await;
        let memory = b.register(8, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let word = memory.remote();
        for end in [&a, &b] {
            step_back(end.engine()).await;
        }
        for _ in 0..options().send_depth {
            let mut atomic = pin!(a.fetch_add(&word, 1));
            assert!(poll_fn(|cx| Poll::Ready(atomic.as_mut().poll(cx).is_pending())).await);
        }
        let late = async {
            sleep(PAUSE).await;
            b.engine().hand_over();
        };
        let (before, ()) = tokio::join!(a.fetch_add(&word, 1), late);
        assert_eq!(before.unwrap(), 4);
    })
    .await;
}

#[tokio::test(crate = "crate::limited")]
async fn a_wait_for_the_end_hands_over() {
    in_time(async {
        let (client, server) = endpoints();
        let (a, b) = connected(&client, &Listener::bind(&server, PORT).unwrap()).await;
        step_back(a.engine()).await;
        let late = async {
            sleep(PAUSE).await;
            b.close().await
        };
        let (error, closed) = tokio::join!(a.closed(), late);
        assert!(matches!(error, Error::Closed), "{error}");
        closed.unwrap();
    })
    .await;
}

/// A request that follows other requests is sent by a poll, and the task does not poll after its write. So
/// the write hands the engine over.
#[tokio::test(crate = "crate::limited")]
async fn a_write_behind_another_hands_over() {
    in_time(async {
        let (mut a, mut b) = streams().await;
        leave_alone(&a).await;
        a.write_u8(1).await.unwrap();
        a.write_u8(2).await.unwrap();
        let mut read = [0; 2];
        b.read_exact(&mut read).await.unwrap();
        assert_eq!(read, [1, 2]);
    })
    .await;
}

/// Waits until a stream has no bytes in flight, and the thread of its engine has stepped back.
async fn leave_alone(stream: &Stream) {
    while stream.connection().queue_pair().has_open_sends() {
        sleep(Duration::from_millis(1)).await;
    }
    step_back(stream.connection().engine()).await;
}

#[tokio::test(crate = "crate::limited")]
async fn a_write_without_room_hands_over() {
    in_time(async {
        let (mut a, mut b) = streams().await;
        let bytes: Vec<u8> = (0..3 * RING).map(|at| (at % 251) as u8).collect();
        let (fits, waits) = bytes.split_at(RING);
        a.write_all(fits).await.unwrap();
        leave_alone(&a).await;
        let mut read = vec![0; bytes.len()];
        let late = async {
            sleep(PAUSE).await;
            b.read_exact(&mut read).await
        };
        tokio::try_join!(a.write_all(waits), late).unwrap();
        assert!(read == bytes);
    })
    .await;
}

/// There are more Writes than the peer accepts without giving credit. The last bytes accumulate, and are sent
/// by the flush or the shutdown.
#[tokio::test(crate = "crate::limited")]
async fn a_flush_and_a_shutdown_without_credit_hand_over() {
    for is_flush in [true, false] {
        in_time(async {
            let (mut a, mut b) = streams().await;
            for number in 0..10 {
                a.write_u8(number).await.unwrap();
            }
            leave_alone(&a).await;
            let late = async {
                sleep(PAUSE).await;
                b.read_exact(&mut [0; 10]).await
            };
            let sent = async { if is_flush { a.flush().await } else { a.shutdown().await } };
            tokio::try_join!(sent, late).unwrap();
        })
        .await;
    }
}

#[tokio::test(crate = "crate::limited")]
async fn connections_go_on_after_pauses() {
    in_time(async {
        let (client, server) = endpoints();
        let listener = Listener::bind(&server, PORT).unwrap();
        let (a, b) = connected(&client, &listener).await;
        let memory = b.register(8, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let word = memory.remote();
        // The echo task does not compute, since a peer has to wait for a task that computes.
        let echo = tokio::spawn(async move {
            while let Ok(message) = b.recv().await {
                sleep(PAUSE / 4).await;
                if b.send(&message.data).await.is_err() {
                    break;
                }
            }
            b.closed().await
        });
        for number in 0..10 {
            a.send(&[number; 100]).await.unwrap();
            assert_eq!(a.recv().await.unwrap().data, [number; 100]);
            sleep(PAUSE).await;
            assert_eq!(a.fetch_add(&word, 1).await.unwrap(), u64::from(number));
        }
        // The client has polled, and now waits for other things.
        let (c, _d) = connected(&client, &listener).await;
        assert_eq!(a.fetch_add(&word, 1).await.unwrap(), 10);
        c.abort();
        assert!(matches!(c.closed().await, Error::Connection(_)));
        assert_eq!(a.fetch_add(&word, 1).await.unwrap(), 11);
        a.close().await.unwrap();
        echo.await.unwrap();
    })
    .await;
}

/// The bytes of a task are sent even if the task computes for a long time after the write.
#[tokio::test(crate = "crate::limited")]
async fn a_byte_leaves_with_its_write() {
    in_time(async {
        let (mut a, mut b) = streams().await;
        leave_alone(&a).await;
        a.write_u8(5).await.unwrap();
        assert_eq!(b.read_u8().await.unwrap(), 5);
    })
    .await;
}
