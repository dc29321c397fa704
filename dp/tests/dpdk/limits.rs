//! Tests that a port counts a full ring and an empty pool, and continues to work.

use dp::Burst;
use dp::dpdk::DeviceConfig;

use crate::support;

#[test]
fn a_full_ring_leaves_the_rest_and_an_empty_pool_gives_nothing() {
    // net_ring receives the frames that it has sent. The ring has room for a limited number of frames.
    let config = DeviceConfig { mbufs: Some(4095), ..DeviceConfig::default() };
    let mut port = support::open("net_ring0", &config);
    let pool = port.mempool().clone();
    let mut sent = 0;
    let mut frames = Burst::new();
    loop {
        while !frames.is_full() {
            frames.push(support::build(&pool, &support::pattern(sent, 64), 1));
            sent += 1;
        }
        port.tx_burst(0, &mut frames);
        if !frames.is_empty() {
            break;
        }
        assert!(sent < 4000, "the ring has an end");
    }
    let left = frames.len() as u64;
    assert_eq!(port.counters().tx_ring_full, left);
    assert_eq!(port.counters().tx_frames, u64::from(sent) - left);

    let mut hoard = Vec::new();
    while let Some(mbuf) = pool.alloc() {
        hoard.push(mbuf);
    }
    assert_eq!((pool.available(), pool.exhausted()), (0, 1));
    assert!(frames[0].share().is_some(), "views have descriptors of their own");
    // Frames in the ring still arrive, and refused frames can be sent later.
    let mut received = Burst::new();
    assert!(port.rx_burst(0, &mut received) > 0);
    assert_eq!(support::flat(&received[0]), support::pattern(0, 64));
    let taken = port.tx_burst(0, &mut frames);
    assert!(taken > 0);
    drop(hoard);
    assert!(pool.alloc().is_some());

    // The port drops a frame that is too long, and an empty frame.
    let mut frames = Burst::new();
    frames.push(support::build(&pool, &support::pattern(0, 1519), 1));
    frames.push(pool.alloc().unwrap());
    assert_eq!((port.tx_burst(0, &mut frames), port.counters().tx_dropped), (2, 2));
}
