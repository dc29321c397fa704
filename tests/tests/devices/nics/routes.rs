//! Frames with a VLAN tag, and a router between the machines. The router is the kernel of a namespace.

use std::time::Duration;

use tests::iwperf::{Test, host};
use tests::lab::{Result, Suite};
use tests::lab_error;

use super::rig::{BRIDGES, Binding, Family, Nic, NicPair, READY_TIMEOUT, SharedPair};
use super::transfers::transfer;

/// The addresses of the client and the server, and the router's addresses towards the client and the server.
struct Route {
    family: Family,
    client: &'static str,
    server: &'static str,
    routers: [&'static str; 2],
}

const ROUTES: [Route; 2] = [
    Route {
        family: Family::V4,
        client: "10.79.1.2/24",
        server: "10.79.2.1/24",
        routers: ["10.79.1.254/24", "10.79.2.254/24"],
    },
    Route {
        family: Family::V6,
        client: "fd79:1::2/64",
        server: "fd79:2::1/64",
        routers: ["fd79:1::fe/64", "fd79:2::fe/64"],
    },
];

/// A link-local address of each router interface. A kernel sends neighbour solicitations from its own
/// address. For packets that it forwards, it sends solicitations only from a link-local address. Without such
/// an address, the kernel would not resolve the neighbour, and would drop the packet.
const LINK_LOCAL: &str = "fe80::fe/64";

pub(crate) fn add(suite: &mut Suite, shared: &SharedPair) {
    let with = shared.clone();
    suite.add("uio_e1000e_vlan", move || with.with(Binding::Uio, vlan));
    for route in ROUTES {
        let with = shared.clone();
        suite.add(format!("uio_e1000e_router_{}", route.family.name()), move || {
            with.with(Binding::Uio, |pair| routed(pair, &route))
        });
    }
}

fn vlan(pair: &NicPair) -> Result<()> {
    let between = (Family::V4.client(), Family::V4.server());
    let served = pair.serve(&pair.b, Nic::E1000e, between.1, &["--vlan", "7"])?;
    let explain = |error| lab_error!("{error}\n---- server\n{}", served.text());
    transfer(pair, &pair.a, Nic::E1000e, between, Test::WriteBw, &["--vlan", "7"]).map_err(explain)?;
    // Frames with another tag, or without a tag, belong to another network.
    for tag in [&["--vlan", "8"][..], &[]] {
        let mut words = vec!["write-bw", host(between.1), "--ip", between.0, "--timeout", "2"];
        words.extend(tag);
        let limit = Duration::from_secs(15);
        pair.iwperf(&pair.a, Nic::E1000e, &words, limit)?.finish(limit)?.failure()?;
    }
    Ok(())
}

fn routed(pair: &NicPair, route: &Route) -> Result<()> {
    for (bridge, router) in BRIDGES.iter().zip(route.routers) {
        pair.namespace.address(bridge, router)?;
        if route.family == Family::V6 {
            pair.namespace.address(bridge, LINK_LOCAL)?;
        }
    }
    pair.namespace.sysctl("ip_forward", "1")?;
    pair.namespace
        .run("sh")
        .args(["-c", "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding"])
        .check(Duration::from_secs(10))?;
    let [to_client, to_server] = route.routers.map(host);
    let served = pair.serve(&pair.b, Nic::Bridged, route.server, &["--gateway", to_server])?;
    // The router tries for 3 s to resolve the server's address. Then it reports to the client that the server
    // is unreachable, and this report ends a connection whose SYN has been retransmitted.
    let server = host(route.server);
    let address = server.parse().map_err(|error| lab_error!("{server}: {error}"))?;
    pair.namespace
        .wait_for_host(address, READY_TIMEOUT)
        .map_err(|error| lab_error!("{error}\n---- server\n{}", served.text()))?;
    let between = (route.client, route.server);
    transfer(pair, &pair.a, Nic::Bridged, between, Test::WriteBw, &["--gateway", to_client])
        .map_err(|error| lab_error!("{error}\n---- server\n{}", served.text()))?;
    Ok(())
}
