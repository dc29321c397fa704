//! When one of four engines ends, the other engines continue, and one of them serves the queue of the ended
//! engine.

use std::net::{IpAddr, SocketAddr};

use super::{ConnParam, Engines, Hosts, PORT, local_port};

const ENGINES: usize = 4;

/// Number of connections of each engine at the beginning. Connections that share an engine at A also share an
/// engine at B.
const EACH: usize = 4;

/// Connects `EACH` connections for each engine, numbered from `first` on.
fn connect(hosts: &mut Hosts, first: usize, server: IpAddr, client: IpAddr, engine_at_a: Option<usize>) {
    let remote = SocketAddr::new(server, PORT);
    for number in first..first + EACH * ENGINES {
        let queue = (number % ENGINES) as u16;
        let from = 20_000 + 1000 * number as u16;
        let at_a = engine_at_a.unwrap_or(usize::from(queue));
        let port = local_port(hosts, remote, client, [at_a as u16, queue], from);
        let param = ConnParam { engine: Some(at_a), local_port: Some(port), ..ConnParam::default() };
        hosts.begin(number, remote, param);
    }
    let mut all = first..first + EACH * ENGINES;
    hosts.until("they connect", |hosts| all.clone().all(|number| hosts.is_established(number)));
    assert_eq!(all.next(), Some(first));
}

fn stop_engine_of_b(gone: usize) {
    let most = 2 * EACH * ENGINES;
    let mut hosts = Hosts::new(ENGINES, most, true);
    let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse::<IpAddr>().unwrap());
    connect(&mut hosts, 0, b, a, None);
    let all: Vec<usize> = (0..EACH * ENGINES).collect();
    hosts.exchange(&all, 1);

    // One engine of B ends while Writes are under way on all connections.
    let (theirs, others): (Vec<_>, Vec<_>) = all.iter().partition(|number| *number % ENGINES == gone);
    for &number in &all {
        hosts.post(0, number);
    }
    let Engines::Threads(engines) = &mut hosts.hosts[1].engines else { unreachable!("they are threads") };
    drop(engines[gone].take());
    hosts.until("its connections end", |hosts| {
        let ended =
            |number: &usize| hosts.ends.iter().all(|host| host[*number].as_ref().unwrap().ended.is_some());
        theirs.iter().all(ended)
    });
    for seed in 2..10 {
        hosts.exchange(&others, seed * 1000);
    }

    // New connections to the host's IPv6 address arrive at all four queues. The address has not been resolved
    // before.
    let [a, b] = ["fd00::1", "fd00::2"].map(|text| text.parse::<IpAddr>().unwrap());
    connect(&mut hosts, all.len(), b, a, Some((gone + 1) % ENGINES));
    let new: Vec<usize> = (all.len()..most).collect();
    hosts.exchange(&new, 100_000);
    hosts.exchange(&others, 200_000);
    for &number in others.iter().chain(&new) {
        let ends = hosts.ends.each_ref().map(|host| host[number].as_ref().unwrap().ended);
        assert_eq!(ends, [None, None], "connection {number}");
    }
}

#[test]
fn the_connections_of_others_outlive_an_engine() {
    stop_engine_of_b(2);
}

#[test]
fn another_engine_leads_when_the_first_one_ends() {
    stop_engine_of_b(0);
}
