//! Tests of one-sided operations, of messages, and of futures that are dropped.

use std::time::Duration;

use dp::link::{LinkConfig, pair};
use iwarp::engine::EngineConfig;
use iwarp::memory::Access;
use iwarp::verbs::VerbsError;
use iwarp_tokio::{ConnectionOptions, Endpoint, EndpointOptions, Error, RemoteRegion};
use tokio::task::JoinSet;

use super::connected;

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

#[tokio::test(crate = "crate::limited")]
async fn bytes_are_written_and_read() {
    let (client, server) = super::endpoints();
    let listener = iwarp_tokio::Listener::bind(&server, super::PORT).unwrap();
    let memory = server.register(1 << 20, ALL).unwrap();
    let answer = ConnectionOptions::default().private_data(&memory.remote().to_bytes()).unwrap();
    let accept = async { listener.request().await?.accept(&answer).await };
    let connect = iwarp_tokio::Connection::connect(&client, super::SERVER);
    let (a, _b) = tokio::try_join!(connect, accept).unwrap();

    let remote = RemoteRegion::try_from(a.private_data()).unwrap();
    assert_eq!(remote, memory.remote());
    let local = client.register(1 << 20, Access::LOCAL_WRITE).unwrap();
    let bytes: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
    local.write_at(0, &bytes).unwrap();
    a.write(&remote, &local).await.unwrap();
    let mut there = vec![0; 1 << 20];
    memory.read_at(0, &mut there).unwrap();
    assert!(there == bytes);

    local.write_at(0, &vec![0; 1 << 20]).unwrap();
    a.read(&remote.slice(1000..3000).unwrap(), local.slice(..2000).unwrap()).await.unwrap();
    assert_eq!(local.slice(..2000).unwrap().to_vec().unwrap(), bytes[1000..3000]);

    a.write_bytes(&remote.slice(..5).unwrap(), b"hello").await.unwrap();
    assert_eq!(a.read_bytes(&remote.slice(..6).unwrap()).await.unwrap(), [b"hello", &bytes[5..6]].concat());
    let error = a.write_bytes(&remote, b"hello").await.unwrap_err();
    assert!(matches!(error, Error::Lengths { local: 5, remote: 1_048_576 }), "{error}");
    let error = a.read_bytes(&remote).await.unwrap_err();
    assert!(matches!(error, Error::TooLong { max: 4096, .. }), "{error}");
}

#[tokio::test(crate = "crate::limited")]
async fn words_are_changed_atomically() {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    let pd = iwarp_tokio::Connection::queue_pair(&b).query().pd_num;
    assert_ne!(pd, 0);
    let words = b.register(16, ALL).unwrap();
    let [first, second] = [0..8, 8..16].map(|range| words.remote().slice(range).unwrap());
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let a = a.clone();
        tasks.spawn(async move { a.fetch_add(&first, 3).await.unwrap() });
    }
    let mut before = tasks.join_all().await;
    before.sort_unstable();
    assert_eq!(before, (0..300).step_by(3).collect::<Vec<u64>>());
    assert_eq!(a.compare_swap(&first, 300, 7).await.unwrap(), 300);
    assert_eq!(a.compare_swap(&first, 300, 8).await.unwrap(), 7);
    assert_eq!(a.read_bytes(&first).await.unwrap(), 7_u64.to_ne_bytes());
    assert_eq!(a.read_bytes(&second).await.unwrap(), [0; 8]);
    let error = a.fetch_add(&first.slice(4..).unwrap(), 1).await.unwrap_err();
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
}

#[tokio::test(crate = "crate::limited")]
async fn messages_arrive_in_order_whoever_waits() {
    let options = ConnectionOptions { send_depth: 4, recv_depth: 3, ..ConnectionOptions::default() };
    let (a, b) = connected(&options).await;
    let sender = tokio::spawn(async move {
        for number in 0..500_u32 {
            // Some messages are inline, and some are not.
            let mut message = vec![number as u8; (number % 300) as usize];
            message.extend(number.to_be_bytes());
            a.send(&message).await.unwrap();
        }
        a
    });
    for number in 0..500_u32 {
        if number % 50 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let message = b.recv().await.unwrap();
        assert_eq!(message.data.len(), (number % 300) as usize + 4);
        assert_eq!(message.data[message.data.len() - 4..], number.to_be_bytes());
    }
    drop(sender.await.unwrap());
}

#[tokio::test(crate = "crate::limited")]
async fn more_requests_than_places_wait() {
    let options = ConnectionOptions { send_depth: 2, ..ConnectionOptions::default() };
    let (a, b) = connected(&options).await;
    let memory = b.register(4000, ALL).unwrap();
    let mut tasks = JoinSet::new();
    for number in 0..1000_u32 {
        let (a, at) = (a.clone(), u64::from(number) * 4);
        let remote = memory.remote().slice(at..at + 4).unwrap();
        tasks.spawn(async move { a.write_bytes(&remote, &number.to_be_bytes()).await.unwrap() });
    }
    tasks.join_all().await;
    for number in 0..1000_u32 {
        let at = number as usize * 4;
        assert_eq!(memory.slice(at..at + 4).unwrap().to_vec().unwrap(), number.to_be_bytes());
    }
}

/// The memory of a Read whose future is dropped stays registered until the Read completes.
#[tokio::test(crate = "crate::limited")]
async fn a_dropped_future_leaves_its_memory_registered() {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    let memory = b.register(1 << 20, ALL).unwrap();
    memory.write_at(0, &vec![7; 1 << 20]).unwrap();
    for micros in [0, 1, 5, 20, 100, 500, 2000] {
        let local = a.register(1 << 20, Access::LOCAL_WRITE).unwrap();
        let read =
            tokio::time::timeout(Duration::from_micros(micros), a.read(&memory.remote(), &local)).await;
        drop(local);
        drop(read);
    }
    // The connection is still usable: a Read into memory that was deregistered would have ended it.
    for _ in 0..100 {
        a.write_bytes(&memory.remote().slice(..1).unwrap(), &[8]).await.unwrap();
    }
    assert_eq!(a.read_bytes(&memory.remote().slice(..2).unwrap()).await.unwrap(), [8, 7]);
}

#[tokio::test(crate = "crate::limited")]
async fn a_dropped_recv_takes_nothing() {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    let sender = tokio::spawn(async move {
        for number in 0..200_u8 {
            a.send(&[number]).await.unwrap();
        }
        a
    });
    let mut next = 0;
    while next < 200 {
        if let Ok(message) = tokio::time::timeout(Duration::from_micros(50), b.recv()).await {
            assert_eq!(message.unwrap().data, [next]);
            next += 1;
        }
    }
    drop(sender.await.unwrap());
}

#[tokio::test(crate = "crate::limited")]
async fn a_refused_request_ends_the_connection_with_the_peers_error() {
    let (a, b) = connected(&ConnectionOptions::default()).await;
    let memory = b.register(8, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    let error = a.write_bytes(&memory.remote(), &[1; 8]).await.unwrap_err();
    assert!(error.to_string().contains("the peer terminated the stream"), "{error}");
    let error = std::io::Error::from(a.closed().await);
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// The request reserves a place in the send queue before it allocates a buffer. Without a buffer, the place
/// becomes free again.
#[tokio::test(crate = "crate::limited")]
async fn a_request_without_a_buffer_takes_no_place() {
    let (a, b) = pair(&LinkConfig::default());
    let server = Endpoint::on_port(b, &["10.0.0.2/24"]).unwrap();
    let config = EngineConfig::new(&*a, &["10.0.0.1/24"]).unwrap();
    let mut few = EndpointOptions::default();
    // The limit allows the region for the receives of the connection, and one more.
    few.context.limits.max_mr = 2;
    let client = Endpoint::on_queues(vec![a], &config, &few).unwrap();

    let listener = iwarp_tokio::Listener::bind(&server, super::PORT).unwrap();
    let one = ConnectionOptions { send_depth: 1, ..ConnectionOptions::default() };
    let connect = iwarp_tokio::Connection::connect_with(&client, super::SERVER, &one);
    let (a, b) = tokio::try_join!(connect, async { listener.request().await?.accept(&one).await }).unwrap();
    let word = b.register(8, ALL).unwrap().remote();
    let last = client.register(1, Access::LOCAL_WRITE).unwrap();
    // The message is too long to be inline.
    let error = a.send(&[7; 1000]).await.unwrap_err();
    assert!(matches!(error, Error::Verbs(VerbsError::Limit { name: "max_mr", limit: 2 })), "{error}");
    let error = a.fetch_add(&word, 1).await.unwrap_err();
    assert!(matches!(error, Error::Verbs(VerbsError::Limit { .. })), "{error}");
    drop(last);
    let sent = tokio::time::timeout(Duration::from_secs(30), a.send(&[7; 1000])).await;
    sent.expect("the place is free").unwrap();
    assert_eq!(b.recv().await.unwrap().data, [7; 1000]);
}

/// With InfiniBand's semantics and without, a Write with Immediate Data completes a receive, and the received
/// message has no bytes.
#[tokio::test(crate = "crate::limited")]
async fn immediate_data_comes_without_bytes() {
    for ib_semantics in [true, false] {
        let mut options = ConnectionOptions::default();
        options.param.ib_semantics = ib_semantics;
        let (a, b) = connected(&options).await;
        let memory = b.register(100, ALL).unwrap();
        let local = a.register(100, Access::LOCAL_WRITE).unwrap();
        local.write_at(0, &[5; 100]).unwrap();
        let remote = memory.remote();
        let write = a.write_immediate(&remote, &local, *b"12345678");
        let (written, received) = tokio::join!(write, b.recv());
        written.unwrap();
        let expected = iwarp_tokio::Message { immediate: Some(*b"12345678"), ..Default::default() };
        assert_eq!(received.unwrap(), expected);
        let mut bytes = [0; 100];
        memory.read_at(0, &mut bytes).unwrap();
        assert_eq!(bytes, [5; 100]);
    }
}

#[tokio::test(crate = "crate::limited")]
async fn a_buffer_of_four_gibibytes_is_refused() {
    let (client, _server) = super::endpoints();
    let options = ConnectionOptions { message_bytes: 1 << 32, ..ConnectionOptions::default() };
    let error = iwarp_tokio::Connection::connect_with(&client, super::SERVER, &options).await.unwrap_err();
    let is_too_long = |error: &VerbsError| matches!(error, VerbsError::TooLong { got: 0x1_0000_0000, .. });
    assert!(matches!(&error, Error::Verbs(cause) if is_too_long(cause)), "{error}");
}
