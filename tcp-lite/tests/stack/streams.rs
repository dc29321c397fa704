//! Tests of plain streams in both directions between two stacks, with both address families, different MTUs,
//! VLANs, offloads and gateways, and on faulty wires.

use dp::link::{LinkConfig, LinkPlan};
use proptest::prelude::*;
use tcp_lite::PathMtuProbing;

use crate::harness::{MAC_A, MAC_B, World, byte, config};

const V4: &str = "10.0.0.2:4000";
const V6: &str = "[2001:db8::2]:4000";

#[test]
fn both_families_at_every_mtu_with_and_without_checksum_offload() {
    for mtu in [1280, 1500, 9000] {
        for remote in [V4, V6] {
            for checksum_offload in [false, true] {
                let link = LinkConfig { mtu, checksum_offload, ..LinkConfig::default() };
                World::standard(&link).exchange(remote, 1_000_000, 700_001, 20_000_000);
            }
        }
    }
}

#[test]
fn probes_of_the_path_mtu_leave_and_come_through() {
    for remote in [V4, V6] {
        let mut a = config(MAC_A, 1);
        a.tcp.path_mtu.probing = PathMtuProbing::Always;
        let mut world = World::new(&LinkConfig::default(), a, config(MAC_B, 2));
        world.b.stack.listen(4000).unwrap();
        let now = world.now();
        let stream = world.a.connect(now, remote.parse().unwrap(), 1_000_000);
        world.a.keep_open(stream);
        let emss = |world: &World| world.a.stack.info(world.a.streams[stream].conn).unwrap().emss;
        assert!(world.run(1_000_000, |world| world.a.streams[stream].established));
        let narrow = emss(&world);
        assert!(world.run(10_000_000, |world| world.b.received(0) == 1_000_000));
        let wide = if remote == V4 { 1448 } else { 1428 };
        assert!(narrow <= 1208 && emss(&world) == wide, "{narrow}, then {}", emss(&world));
    }
}

#[test]
fn an_empty_exchange_opens_and_closes() {
    World::standard(&LinkConfig::default()).exchange(V4, 0, 0, 20_000_000);
}

/// With a round-trip time of 20 ms, a whole window is in flight at a time, and a whole window arrives in each
/// round trip.
// Proves DDP-259.
#[test]
fn a_long_path_is_filled() {
    const BYTES: u64 = 32 << 20;
    let plan = LinkPlan { delay_us: 10_000, ..LinkPlan::default() };
    let link = LinkConfig { ring_frames: 4096, a_to_b: plan.clone(), b_to_a: plan, ..LinkConfig::default() };
    let [mut a, mut b] = [config(MAC_A, 1), config(MAC_B, 2)];
    // The window has space for many segments, but is smaller than the part of the pool that one connection
    // may hold.
    let window = 1 << 20;
    a.tcp.send_buffer_bytes = 1 << 20;
    b.tcp.recv_window_bytes = 1 << 20;
    let mut world = World::new(&link, a, b);
    world.b.stack.listen(4000).unwrap();
    let now = world.now();
    world.a.connect(now, V4.parse().unwrap(), BYTES);
    let (conn, mut most, mut half_us) = (world.a.streams[0].conn, 0, 0);
    let arrived = world.run(60_000_000, |w| {
        most = most.max(w.a.stack.info(conn).map_or(0, |info| info.unacknowledged));
        let received = w.b.streams.first().map_or(0, |stream| stream.received.next_offset());
        if received >= BYTES / 2 && half_us == 0 {
            half_us = w.now_us;
        }
        received == BYTES
    });
    assert!(arrived);
    assert!(most >= window * 9 / 10, "at most {most} bytes under way");
    let (span_us, best_us) = (world.now_us - half_us, BYTES / 2 * 20_000 / window);
    assert!(span_us <= best_us * 5 / 4, "{span_us} us for the second half, {best_us} at best");
}

#[test]
fn a_vlan_tag_is_put_on_and_required() {
    let tagged = |mac, n, vlan| {
        let mut tagged = config(mac, n);
        tagged.vlan = vlan;
        tagged
    };
    for remote in [V4, V6] {
        let link = LinkConfig::default();
        let mut world = World::new(&link, tagged(MAC_A, 1, Some(7)), tagged(MAC_B, 2, Some(7)));
        world.exchange(remote, 300_000, 300_000, 20_000_000);
    }
    let mut world = World::new(&LinkConfig::default(), tagged(MAC_A, 1, Some(7)), tagged(MAC_B, 2, Some(8)));
    let now = world.now();
    world.a.connect(now, V4.parse().unwrap(), 0);
    assert!(world.run(20_000_000, |w| w.a.streams[0].closed.is_some()));
    assert!(world.b.stack.counters().rx_not_ours > 0);
    assert!(!world.a.streams[0].established);
}

#[test]
fn link_local_addresses_are_there_without_being_asked_for() {
    World::standard(&LinkConfig::default()).exchange("[fe80::ff:fe00:b]:4000", 50_000, 50_000, 20_000_000);
}

#[test]
fn what_is_off_the_link_goes_through_the_gateway() {
    // Each host is the other host's gateway, and their networks differ. Therefore the hosts do not resolve
    // each other's address directly.
    let host = |mac, n: u8, gateways: [&str; 2]| {
        let mut host = config(mac, n);
        host.addresses = [
            format!("10.{n}.0.1/24"),
            format!("192.0.2.{n}/24"),
            format!("2001:db8:{n}::1/64"),
            format!("fe80::{n}/64"),
        ]
        .iter()
        .map(|a| a.parse().unwrap())
        .collect();
        host.gateways = gateways.iter().map(|g| g.parse().unwrap()).collect();
        host
    };
    for remote in ["10.2.0.1:4000", "[2001:db8:2::1]:4000"] {
        let a = host(MAC_A, 1, ["192.0.2.2", "fe80::2"]);
        let b = host(MAC_B, 2, ["192.0.2.1", "fe80::1"]);
        World::new(&LinkConfig::default(), a, b).exchange(remote, 100_000, 100_000, 20_000_000);
    }
}

fn bad_plan(delay_us: u32) -> LinkPlan {
    LinkPlan {
        drop_ppm: 10_000,
        duplicate_ppm: 10_000,
        reorder_ppm: 20_000,
        reorder_us: 300,
        corrupt_ppm: 5_000,
        delay_us,
        drop_exactly: Vec::new(),
    }
}

#[test]
fn a_wire_that_loses_reorders_duplicates_and_corrupts_delivers_all() {
    for seed in 0..6 {
        for (remote, mtu) in [(V4, 1500), (V6, 1500), (V4, 9000)] {
            let (a_to_b, b_to_a) = (bad_plan(50), bad_plan(50));
            let link = LinkConfig { mtu, seed, a_to_b, b_to_a, ..LinkConfig::default() };
            World::standard(&link).exchange(remote, 500_000, 300_000, 300_000_000);
        }
    }
}

#[test]
fn a_pool_that_runs_dry_loses_nothing() {
    let mut world = World::standard(&LinkConfig { mbufs: 256, ..LinkConfig::default() });
    world.b.stack.listen(4000).unwrap();
    world.b.serve = 400_000;
    let now = world.now();
    world.a.connect(now, V4.parse().unwrap(), 400_000);
    for through in [50_000, 150_000, 250_000] {
        assert!(world.run(10_000_000, |w| w.b.streams.first().is_some_and(|_| w.b.received(0) > through)));
        let pools = [world.a.port.mempool().clone(), world.b.port.mempool().clone()];
        let taken: Vec<_> = pools.iter().flat_map(|p| std::iter::from_fn(|| p.alloc())).collect();
        world.run(300_000, |_| false);
        drop(taken);
    }
    let done = |w: &mut World| w.b.received(0) == 400_000 && w.a.received(0) == 400_000;
    assert!(world.run(60_000_000, done));
}

#[test]
fn buffers_come_back_to_their_pools() {
    let mut world = World::standard(&LinkConfig::default());
    world.exchange(V4, 400_000, 400_000, 20_000_000);
    world.run(1_000_000, |_| false);
    for host in [&world.a, &world.b] {
        assert_eq!(host.port.mempool().available(), host.port.mempool().capacity());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn any_seed_and_any_sizes(seed: u64, a_sends in 0u64..200_000, b_sends in 0u64..200_000, delay in 0u32..2000) {
        let (a_to_b, b_to_a) = (bad_plan(delay), bad_plan(delay));
        let link = LinkConfig { seed, a_to_b, b_to_a, ..LinkConfig::default() };
        World::standard(&link).exchange(V4, a_sends, b_sends, 600_000_000);
    }
}

#[test]
fn what_is_sent_after_a_long_pause_waits_from_then_on() {
    let mut world = World::standard(&LinkConfig::default());
    world.b.stack.listen(4000).unwrap();
    let now = world.now();
    world.a.keep_all_open();
    world.b.keep_all_open();
    world.a.connect(now, V4.parse().unwrap(), 1000);
    let conn = world.a.streams[0].conn;
    let waits = |w: &World| w.a.stack.info(conn).map(|info| (info.send_offset, info.unacknowledged));
    assert!(world.run(1_000_000, |w| waits(w) == Some((1000, 0))));
    // No stack is polled for longer than any timer. Then the user passes bytes to the stack before the next
    // poll, and the peer is silent.
    world.now_us += 100_000_000;
    let now = world.now();
    assert_eq!(world.a.stack.send(now, conn, &[byte(1000)]), Ok(1));
    world.a.stack.poll(now);
    assert!(world.a.stack.info(conn).is_some(), "given up before it was tried");
    world.a.streams[0].sent += 1;
    world.a.send_more(0, 1);
    assert!(world.run(1_000_000, |w| w.b.received(0) == 1001));
    let counters = world.a.stack.counters();
    assert_eq!((counters.tx_retransmits, counters.rto_expired), (0, 0));
}
