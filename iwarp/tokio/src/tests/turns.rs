//! A task hands the engine over to its thread before it sleeps. In each test the thread has stepped back.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;

use super::{PORT, RING, connected, endpoints, in_time, step_back, streams};
use crate::{Listener, Stream};

/// The task of the other end does something else before it reads.
const PAUSE: Duration = Duration::from_millis(20);

#[tokio::test]
async fn a_connect_hands_over() {
    in_time(async {
        let (client, server) = endpoints();
        let listener = Listener::bind(&server, PORT).unwrap();
        step_back(&client.shared.engines[0]).await;
        connected(&client, &listener).await;
    })
    .await;
}

#[tokio::test]
async fn a_listener_hands_over() {
    in_time(async {
        let (client, server) = endpoints();
        let listener = Listener::bind(&server, PORT).unwrap();
        step_back(&server.shared.engines[0]).await;
        connected(&client, &listener).await;
    })
    .await;
}

/// Waits until nothing of a stream is under way, and its thread has stepped back.
async fn leave_alone(stream: &Stream) {
    while stream.connection().queue_pair().has_open_sends() {
        sleep(Duration::from_millis(1)).await;
    }
    step_back(stream.connection().engine()).await;
}

#[tokio::test]
async fn a_write_without_room_hands_over() {
    in_time(async {
        let (mut a, mut b) = streams().await;
        a.write_all(&[1; RING]).await.unwrap();
        leave_alone(&a).await;
        let mut read = vec![0; 2 * RING];
        let late = async {
            sleep(PAUSE).await;
            b.read_exact(&mut read).await
        };
        tokio::try_join!(a.write_all(&[2; RING]), late).unwrap();
        assert!(read == [[1; RING], [2; RING]].concat());
    })
    .await;
}

/// More Writes than the peer takes at once: the last bytes gather, and go with the flush or the shutdown.
#[tokio::test]
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
