//! Tests of requests that a program itself posts to the queue pair of a connection.

use iwarp::memory::Access;
use iwarp::verbs::{SendFlags, SendOp, SendRequest};
use iwarp_tokio::ConnectionOptions;

use super::connected;

/// A program may use any `wr_id`, even a number that this crate uses internally. The completion of such a
/// request completes no future of this crate.
#[tokio::test(crate = "crate::limited")]
async fn requests_of_the_program_complete_to_nobody() {
    let options = ConnectionOptions { send_depth: 4, recv_depth: 8, ..ConnectionOptions::default() };
    let (a, b) = connected(&options).await;
    let word = b.register(8, Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    let qp = a.queue_pair();
    for round in 0..20_u64 {
        let wr_ids = [0, 1, 1 << 63, u64::MAX, 1 << 63 | 3, round];
        let wr_id = wr_ids[round as usize % wr_ids.len()];
        let own = SendRequest::empty(wr_id, SendOp::Send).flags(SendFlags::SIGNALED);
        qp.post_send(&own).unwrap();
        // This request has key 0, which is also the key in some of the program's `wr_id`s.
        let remote = word.remote();
        let (before, received) = tokio::join!(a.fetch_add(&remote, 1), b.recv());
        assert_eq!((before.unwrap(), received.unwrap().data.len()), (round, 0));
        while qp.has_open_sends() {
            tokio::task::yield_now().await;
        }
    }
    // At most as many requests are in flight as the queue has places. A further request waits, and is not
    // refused.
    let sends = (0..32_u8).map(|number| {
        let a = a.clone();
        tokio::spawn(async move { a.send(&[number; 500]).await })
    });
    let sends: Vec<_> = sends.collect();
    let mut numbers = Vec::new();
    for _ in 0..32 {
        numbers.push(b.recv().await.unwrap().data[0]);
    }
    for send in sends {
        send.await.unwrap().unwrap();
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..32));
}
