//! Tasks poll the engine while they wait, and hand it over to its thread before they sleep.

use std::time::Duration;

use dp::link::{LinkConfig, pair};
use iwarp::engine::{EngineConfig, SharedOptions};
use iwarp::memory::Access;
use iwarp_tokio::{Connection, ConnectionOptions, Endpoint, EndpointOptions, Error, Listener, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use super::{PORT, SERVER};

/// Longer than a task polls.
const PAUSE: Duration = Duration::from_millis(20);

/// A client and a server whose threads do not look after tasks that have polled once: without a word of a
/// task they stay away.
fn endpoints() -> (Endpoint, Endpoint) {
    let (a, b) = pair(&LinkConfig::default());
    let hour = Duration::from_secs(3600);
    let thread = SharedOptions { step_back: hour, longest_step_back: hour, ..SharedOptions::default() };
    let options = EndpointOptions { thread, ..EndpointOptions::default() };
    let open = |port: Box<dyn dp::Port>, address| {
        let config = EngineConfig::new(&*port, &[address]).unwrap();
        Endpoint::on_queues(vec![port], &config, &options).unwrap()
    };
    (open(a, "10.0.0.1/24"), open(b, "10.0.0.2/24"))
}

fn options() -> ConnectionOptions {
    ConnectionOptions { send_depth: 4, recv_depth: 16, stream_bytes: 10_000, ..ConnectionOptions::default() }
}

async fn connected(client: &Endpoint, listener: &Listener) -> (Connection, Connection) {
    let options = options();
    let accept = async { listener.request().await?.accept(&options).await };
    tokio::try_join!(Connection::connect_with(client, SERVER, &options), accept).unwrap()
}

/// Two streams. The first one is about to use an engine whose thread stays away.
async fn streams() -> (Stream, Stream) {
    let (client, server) = endpoints();
    let (a, b) = connected(&client, &Listener::bind(&server, PORT).unwrap()).await;
    let (mut a, mut b) = tokio::try_join!(a.into_stream(), b.into_stream()).unwrap();
    // If the last byte comes while the task polls, its thread stays away.
    for _ in 0..20 {
        b.write_u8(1).await.unwrap();
        b.flush().await.unwrap();
        a.read_u8().await.unwrap();
    }
    (a, b)
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), work).await.expect("nobody polls the engine")
}

#[tokio::test]
async fn connections_go_on_after_pauses() {
    in_time(async {
        let (client, server) = endpoints();
        let listener = Listener::bind(&server, PORT).unwrap();
        let (a, b) = connected(&client, &listener).await;
        let memory = b.register(8, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
        let word = memory.remote();
        // It always waits in the end. A peer has to wait for a task that computes.
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
        // The client has polled, and waits for other things now.
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

/// A task that writes and then computes for long has sent its bytes.
#[tokio::test]
async fn a_byte_leaves_with_its_write() {
    in_time(async {
        let (mut a, mut b) = streams().await;
        a.write_u8(5).await.unwrap();
        assert_eq!(b.read_u8().await.unwrap(), 5);
    })
    .await;
}
