//! Drivers and frontends that break the rules of the rings.

use testkit::dice::Dice;
use testkit::folder::Folder;

use super::super::chain::MAX_PIECES;
use super::super::device::{FROM_DRIVER, TO_DRIVER};
use super::super::features;
use super::driver::{ALL, Driver, GUEST, INDIRECT, MEMORY_BYTES, NEXT, SIZE, WRITE, descriptor};
use super::{build, flat, open, pattern, receive, send, until, wait_for_link};
use crate::{Burst, Link, LinkState, Port, Statistics};

const NO_HEADER: [u8; 12] = [0; 12];
/// The address, length, flags and next number of a descriptor.
type Parts = (u64, u32, (u16, u16));
/// What a driver does.
type Act = fn(&mut Driver);

const END: u64 = GUEST + MEMORY_BYTES as u64;

/// A chain that cannot be used is returned and counted, and the next frame arrives.
#[test]
fn a_malformed_chain_is_returned_and_counted() {
    let folder = Folder::new("vhost-malformed");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    let buffer = GUEST + Driver::buffer(FROM_DRIVER, 0) as u64;
    let at = |nr: u16| Driver::buffer(FROM_DRIVER, nr);
    // Tables in buffers: one that refers to a further table, one that is cyclic, one that names a missing
    // descriptor.
    driver.put(at(10), &descriptor(GUEST + at(13) as u64, 16, (INDIRECT, 0)));
    driver.put(at(13), &descriptor(buffer, 100, (0, 0)));
    driver.put(at(11), &descriptor(buffer, 100, (NEXT, 0)));
    driver.put(at(12), &descriptor(buffer, 100, (NEXT, 1)));
    let table = |nr: u16, bytes: u32| (GUEST + at(nr) as u64, bytes, (INDIRECT, 0));
    let chains: &[&[Parts]] = &[
        // The descriptors of a chain have the numbers 0, 1, ...
        &[(buffer, 100, (NEXT, 0))],
        &[(buffer, 100, (NEXT, 1)), (buffer, 100, (NEXT, 0))],
        &[(buffer, 0, (NEXT, 0))],
        &[(buffer, 100, (NEXT, SIZE))],
        &[(buffer, 100, (NEXT, u16::MAX))],
        &[(buffer, 100, (WRITE, 0))],
        &[(buffer, 100, (NEXT, 1)), (buffer, 100, (WRITE, 0))],
        &[(GUEST - 1, 100, (0, 0))],
        &[(END - 99, 100, (0, 0))],
        &[(END, 100, (0, 0))],
        &[(buffer, u32::MAX, (0, 0))],
        &[(0, 100, (0, 0))],
        &[(u64::MAX - 50, 100, (0, 0))],
        &[(buffer, 0, (0, 0))],
        &[(buffer, 11, (0, 0))],
        &[(buffer, 12 + 13, (0, 0))],
        &[(buffer, 12 + 22 + 65_536, (0, 0))],
        &[(buffer, 1 << 20, (NEXT, 1)), (buffer, 1 << 20, (0, 0))],
        &[(buffer, 16, (INDIRECT | NEXT, 1)), (buffer, 100, (0, 0))],
        &[table(10, 16)],
        &[table(11, 16)],
        &[table(12, 16)],
        &[table(12, 15)],
        &[table(12, 17)],
        &[table(12, 0)],
        &[table(12, 1 << 21)],
        &[(END - 16, 32, (INDIRECT, 0))],
        &[(GUEST - 16, 16, (INDIRECT, 0))],
    ];
    for (nr, chain) in chains.iter().enumerate() {
        for (index, &(address, bytes, flags)) in chain.iter().enumerate() {
            driver.describe(FROM_DRIVER, index as u16, address, bytes, flags);
        }
        driver.offer(FROM_DRIVER, 0);
        assert!(receive(&mut port).is_empty(), "{chain:?}");
        assert_eq!(driver.take_used(FROM_DRIVER), [(0, 0)], "{chain:?}");
        let counters = port.counters();
        assert_eq!((counters.rx_dropped, counters.rx_errors), (nr as u64 + 1, nr as u64 + 1), "{chain:?}");
        let frame = pattern(nr, 100);
        driver.send(20, &NO_HEADER, &frame, &[12]);
        assert_eq!(receive(&mut port).iter().map(flat).collect::<Vec<_>>(), [frame]);
        driver.take_used(FROM_DRIVER);
    }
    wait_for_link(&mut port, LinkState::Up);
}

/// A chain may have as many descriptors as the port handles, but no more.
#[test]
fn a_chain_has_a_maximum_length() {
    let folder = Folder::new("vhost-chain");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    let buffer = GUEST + Driver::buffer(FROM_DRIVER, 0) as u64;
    for (parts, arrives) in [(MAX_PIECES - 1, true), (MAX_PIECES, false)] {
        let flags = |nr| if nr + 1 < parts { (NEXT, nr as u16 + 1) } else { (0, 0) };
        let table: Vec<u8> = (0..parts).flat_map(|nr| descriptor(buffer + nr as u64, 1, flags(nr))).collect();
        driver.put(Driver::buffer(FROM_DRIVER, 1), &table);
        let address = GUEST + Driver::buffer(FROM_DRIVER, 1) as u64;
        driver.describe(FROM_DRIVER, 0, address, table.len() as u32, (INDIRECT, 0));
        driver.offer(FROM_DRIVER, 0);
        assert_eq!(receive(&mut port).len(), usize::from(arrives), "{parts}");
    }
}

/// A driver that publishes impossible indices cannot go on. The port closes the connection, and serves the
/// next frontend.
#[test]
fn an_impossible_index_ends_the_connection() {
    let folder = Folder::new("vhost-index");
    let mut port = open(&folder);
    let breaks: &[(&str, Act)] = &[
        ("the index jumps", |driver| driver.publish(FROM_DRIVER, SIZE + 1)),
        ("the index goes back", |driver| driver.publish(FROM_DRIVER, u16::MAX)),
        ("a head that does not exist", |driver| driver.offer(FROM_DRIVER, SIZE)),
        ("the index of the other ring jumps", |driver| driver.publish(TO_DRIVER, SIZE + 1)),
        ("a head that does not exist for the device", |driver| driver.offer(TO_DRIVER, u16::MAX)),
        ("a buffer outside of the memory", |driver| {
            driver.describe(TO_DRIVER, 0, END - 1, 2, (WRITE, 0));
            driver.offer(TO_DRIVER, 0);
        }),
        ("a buffer that may not be written", |driver| {
            driver.describe(TO_DRIVER, 0, GUEST, 2048, (0, 0));
            driver.offer(TO_DRIVER, 0);
        }),
        ("a cyclic buffer", |driver| {
            driver.describe(TO_DRIVER, 0, GUEST, 1, (WRITE | NEXT, 0));
            driver.offer(TO_DRIVER, 0);
        }),
    ];
    for (nr, (what, act)) in breaks.iter().enumerate() {
        let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
        wait_for_link(&mut port, LinkState::Up);
        act(&mut driver);
        let before = port.counters();
        until(what, || {
            let mut frames = Burst::new();
            frames.push(build(&port, &pattern(nr, 60), 60));
            port.tx_burst(0, &mut frames);
            port.rx_burst(0, &mut Burst::new());
            port.link_state() == LinkState::Down
        });
        let counters = port.counters();
        assert!(
            counters.rx_errors > before.rx_errors || counters.tx_link_down > before.tx_link_down,
            "{what}"
        );
        assert!(driver.is_closed(), "{what}");
        wait_for_link(&mut port, LinkState::Down);
    }
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    driver.send(0, &NO_HEADER, &pattern(1, 60), &[]);
    assert_eq!(receive(&mut port).len(), 1);
}

/// Chains of empty buffers do not keep the port busy.
#[test]
fn empty_buffers_are_not_a_loop() {
    let folder = Folder::new("vhost-empty");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    (0..SIZE).for_each(|nr| driver.post(nr, 0));
    let frame = build(&port, &pattern(0, 60), 60);
    assert!(!send(&mut port, frame), "the ring is full of empty buffers");
}

/// Any bytes in the rings: the port goes on, drops, or ends the connection.
#[test]
fn any_rings_are_survived() {
    let folder = Folder::new("vhost-any");
    let mut port = open(&folder);
    let mut dice = Dice::new(7);
    for round in 0..300 {
        let event_index = if round % 2 == 0 { 0 } else { features::EVENT_IDX };
        let mut driver = Driver::start(&folder.join("wire.sock"), ALL | event_index);
        wait_for_link(&mut port, LinkState::Up);
        for _ in 0..8 {
            for nr in 0..SIZE {
                for queue in [FROM_DRIVER, TO_DRIVER] {
                    let address = match dice.below(6) {
                        0 => dice.number(),
                        1 => END - dice.below(64),
                        _ => GUEST + dice.below(MEMORY_BYTES as u64),
                    };
                    let bytes = match dice.below(4) {
                        0 => dice.number() as u32,
                        _ => dice.below(4000) as u32,
                    };
                    let usual = if queue == TO_DRIVER { WRITE } else { 0 };
                    let flags = match dice.below(4) {
                        0 => dice.below(8) as u16,
                        1 => usual | NEXT,
                        _ => usual,
                    };
                    let next = dice.below(u64::from(SIZE) + 1) as u16;
                    driver.describe(queue, nr, address, bytes, (flags, next));
                }
            }
            for queue in [FROM_DRIVER, TO_DRIVER] {
                for _ in 0..dice.below(u64::from(SIZE) / 8) {
                    driver.offer(queue, dice.below(u64::from(SIZE)) as u16);
                }
            }
            let frame = build(&port, &pattern(round, 60 + dice.below(1400) as usize), 700);
            let mut frames = Burst::new();
            frames.push(frame);
            port.tx_burst(0, &mut frames);
            let received = receive(&mut port);
            assert!(received.iter().all(|frame| frame.len() >= 14));
            driver.take_used(FROM_DRIVER);
            driver.take_used(TO_DRIVER);
        }
        drop(driver);
        wait_for_link(&mut port, LinkState::Down);
    }
    let counters = port.counters();
    assert!(counters.rx_frames > 0 && counters.tx_frames > 0 && counters.rx_errors > 0, "{counters:?}");
    assert_eq!(port.mempool().available(), 64);
}
