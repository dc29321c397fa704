//! Thousands of connections on several engines. The connections are set up, used, and closed under load.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::{AT_A_TIME, ConnParam, DEPTH, Hosts, PORT};

/// Returns the processor time that this thread has used. Other threads do not change this time.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap()
}

/// Sets up `count` connections between two hosts with `engines` engines each, moves bytes through the
/// connections, and ends them. Returns the number of connections that were set up per second of processor
/// time.
fn run(engines: usize, count: usize) -> f64 {
    let mut hosts = Hosts::new(engines, count, false);
    let remote = ([10, 0, 0, 2], PORT).into();
    let start = cpu_time();
    let (mut begun, mut established) = (0, 0);
    hosts.until("all are established", |hosts| {
        while established < begun && hosts.is_established(established) {
            established += 1;
        }
        while begun < count && begun - established < AT_A_TIME {
            hosts.begin(begun, remote, ConnParam::default());
            begun += 1;
        }
        established == count
    });
    let rate = count as f64 / (cpu_time() - start).as_secs_f64();

    let all: Vec<usize> = (0..count).collect();
    for host in [0, 1] {
        let polled = hosts.polled(host);
        assert_eq!(polled.len(), engines);
        for engine in polled {
            let counters = engine.counters();
            // At A the engines are chosen in turn; at B the hash decides.
            let part = counters.connections as f64 * engines as f64 / count as f64;
            assert!((0.7..1.3).contains(&part), "host {host}: {counters:?}");
            // Engines hand over only frames of address resolution, since each frame of a connection arrives
            // at the connection's engine.
            assert!(counters.stack.handed_over < 10, "host {host}: {counters:?}");
        }
    }
    hosts.exchange(&all, 1);

    // The connections end while Writes are under way. A third ends gracefully at A, a third gracefully at B,
    // and a third is aborted.
    for &number in &all {
        for _ in 0..DEPTH - 1 {
            hosts.post(number % 2, number);
        }
        let id = |host: usize| &hosts.ends[host][number].as_ref().unwrap().id;
        match number % 3 {
            0 => id(0).disconnect(),
            1 => id(1).disconnect(),
            _ => id(0).abort(),
        }
    }
    hosts.until("all have ended", |hosts| {
        hosts.ends.iter().flatten().flatten().all(|end| end.ended.is_some())
    });
    assert_eq!(hosts.hosts.each_ref().map(|host| host.channel.lost()), [0, 0]);
    for number in all {
        let [a, b] = [0, 1].map(|host| hosts.ends[host][number].as_ref().unwrap());
        assert_eq!([a.ended, b.ended], [Some(number % 3 != 2); 2], "connection {number}");
        let sender = [a, b][number % 2];
        assert_eq!(sender.completed, DEPTH, "each request completes once");
        if number % 3 != 2 {
            assert_eq!(sender.flushed, 0, "a graceful end carries out what was posted");
        }
    }
    hosts.ends = [Vec::new(), Vec::new()];
    for host in [0, 1] {
        for engine in hosts.polled(host) {
            engine.check_invariants().unwrap();
        }
    }
    rate
}

fn compare(count: usize) {
    let [one, four] = [1, 4].map(|engines| run(engines, count));
    println!("{count} connections: {one:.0} a second with one engine, {four:.0} with four, on one core");
    assert!(four > one / 4.0, "{one:.0} connections a second with one engine, {four:.0} with four");
}

#[test]
fn thousands_of_connections_on_four_engines() {
    compare(10_000);
}
