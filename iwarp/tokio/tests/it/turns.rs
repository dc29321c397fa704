//! Tasks poll the engine while they wait, and hand it over to its thread before they sleep.

use std::time::Duration;

use dp::link::{LinkConfig, pair};
use iwarp::engine::{EngineConfig, SharedOptions};
use iwarp::memory::Access;
use iwarp_tokio::{Connection, ConnectionOptions, Endpoint, EndpointOptions, Listener};
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

/// Connects after the listener has waited for a while.
async fn connected() -> (Connection, Connection) {
    let (client, server) = endpoints();
    let listener = Listener::bind(&server, PORT).unwrap();
    let options = ConnectionOptions { send_depth: 4, stream_bytes: 10_000, ..ConnectionOptions::default() };
    let connect = async {
        sleep(PAUSE).await;
        Connection::connect_with(&client, SERVER, &options).await
    };
    tokio::try_join!(connect, async { listener.request().await?.accept(&options).await }).unwrap()
}

async fn in_time<T>(work: impl Future<Output = T>) -> T {
    timeout(Duration::from_secs(30), work).await.expect("nobody polls the engine")
}

#[tokio::test]
async fn messages_and_reads_go_on_after_pauses() {
    in_time(async {
        let (a, b) = connected().await;
        let memory = b.register(8, Access::LOCAL_WRITE | Access::REMOTE).unwrap().clone();
        let word = memory.remote();
        let server = tokio::spawn(async move {
            for number in 0..10 {
                assert_eq!(b.recv().await.unwrap().data, [number; 100]);
                sleep(PAUSE / 4).await;
                b.send(&[number]).await.unwrap();
            }
            b.closed().await
        });
        for number in 0..10 {
            a.send(&[number; 100]).await.unwrap();
            assert_eq!(a.recv().await.unwrap().data, [number]);
            sleep(PAUSE).await;
            // More than the send queue has places.
            let adds = tokio::join!(
                a.fetch_add(&word, 1),
                a.fetch_add(&word, 1),
                a.fetch_add(&word, 1),
                a.fetch_add(&word, 1),
                a.fetch_add(&word, 1),
                a.fetch_add(&word, 1),
            );
            assert_eq!(adds.5.unwrap(), u64::from(number) * 6 + 5);
        }
        a.close().await.unwrap();
        server.await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn streams_go_on_after_pauses() {
    in_time(async {
        let (a, b) = connected().await;
        let (mut a, mut b) = tokio::try_join!(a.into_stream(), b.into_stream()).unwrap();
        let reader = tokio::spawn(async move {
            let mut all = Vec::new();
            while b.read_buf(&mut all).await.unwrap() > 0 {
                // The writer finds its ring full meanwhile.
                if all.len() % 10_000 < 2000 {
                    sleep(PAUSE).await;
                }
            }
            b.write_all(b"all").await.unwrap();
            b.shutdown().await.unwrap();
            all
        });
        let bytes: Vec<u8> = (0..200_000).map(|at| (at % 251) as u8).collect();
        for part in bytes.chunks(7_000) {
            a.write_all(part).await.unwrap();
            a.flush().await.unwrap();
        }
        a.shutdown().await.unwrap();
        let mut answer = Vec::new();
        a.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"all");
        assert!(reader.await.unwrap() == bytes);
    })
    .await;
}
