//! Streams between two of our own stacks in memory, without privileges.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use dp::link::{LinkConfig, LinkPlan, pair};

use super::run;
use crate::stream::{Direction, EndOptions, Opener, Report, Task};

fn stream(passive: Direction, bytes: u64, plan: &LinkPlan) -> (Report, Report) {
    let config = LinkConfig { seed: 1, a_to_b: plan.clone(), b_to_a: plan.clone(), ..LinkConfig::default() };
    let (mut a, mut b) = pair(&config);
    let active = if passive == Direction::Send { Direction::Receive } else { Direction::Send };
    let peer: SocketAddr = "10.1.0.1:5000".parse().unwrap();
    let task = Task {
        opener: Opener::Passive(5000),
        direction: passive,
        bytes,
        seed: 5,
        limit: Duration::from_secs(30),
        options: EndOptions::default(),
    };
    let server =
        thread::spawn(move || run(a.as_mut(), "10.1.0.1/24".parse().unwrap(), &task, || ()).unwrap());
    let task = Task { opener: Opener::Active(peer), direction: active, ..task };
    let client = run(b.as_mut(), "10.1.0.2/24".parse().unwrap(), &task, || ()).unwrap();
    (server.join().unwrap(), client)
}

#[test]
fn a_stream_arrives_whole_whoever_opens_it() {
    for passive in [Direction::Send, Direction::Receive] {
        let (server, client) = stream(passive, 1 << 20, &LinkPlan::default());
        assert_eq!(server.to_string(), client.to_string());
        assert_eq!(server.bytes, 1 << 20);
    }
}

#[test]
fn a_stream_arrives_whole_over_a_link_that_loses_and_reorders() {
    let plan = LinkPlan { drop_ppm: 5_000, reorder_ppm: 10_000, reorder_us: 500, ..LinkPlan::default() };
    let (server, client) = stream(Direction::Send, 1 << 19, &plan);
    assert_eq!(server.to_string(), client.to_string());
}
