//! Frames in both directions.

use testkit::folder::Folder;

use super::super::device::{FROM_DRIVER, TO_DRIVER};
use super::super::features;
use super::driver::{ALL, BUFFER_BYTES, Driver, GUEST, INDIRECT, NEXT, SIZE, descriptor};
use super::{build, config, flat, open, pattern, receive, send, wait_for_link};
use crate::{BURST, Burst, ExtBuf, LinkState, Mbuf, Port, Statistics};

const NO_HEADER: [u8; 12] = [0; 12];

#[test]
fn a_frame_of_the_driver_arrives_from_any_descriptors() {
    let folder = Folder::new("vhost-from");
    for features in [ALL, features::PROTOCOL_FEATURES, ALL & !features::MRG_RXBUF] {
        let mut port = open(&folder);
        let whole = port.mempool().available();
        let mut driver = Driver::start(&folder.join("wire.sock"), features);
        wait_for_link(&mut port, LinkState::Up);
        let header = driver.header_bytes();
        assert_eq!(header, if features == features::PROTOCOL_FEATURES { 10 } else { 12 });
        let mut head = 0;
        for (nr, lengths) in
            [&[][..], &[header], &[5, header - 5], &[header + 14], &[3; 30], &[header, 1, 2, 3]]
                .iter()
                .enumerate()
        {
            for bytes in [14, 60, 64, 1514, 2048, 2049, 9000] {
                let frame = pattern(nr, bytes);
                driver.send(head, &NO_HEADER, &frame, lengths);
                let received = receive(&mut port);
                assert_eq!(received.len(), 1, "{bytes} in {lengths:?}");
                assert_eq!(flat(&received[0]), frame, "{bytes} in {lengths:?}");
                assert_eq!(driver.take_used(FROM_DRIVER), [(head.into(), 0)]);
                head = (head + 31) % SIZE;
            }
        }
        assert_eq!(port.mempool().available(), whole, "no buffer was lost");
        assert_eq!(port.counters().rx_dropped, 0);
    }
}

#[test]
fn a_table_in_a_buffer_is_a_chain() {
    let folder = Folder::new("vhost-indirect");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    let frame = pattern(1, 300);
    let at = |nr: u16| Driver::buffer(FROM_DRIVER, nr);
    let address = |nr: u16| GUEST + at(nr) as u64;
    driver.put(at(1), &NO_HEADER);
    driver.put(at(2), &frame);
    // A descriptor of the chain stands before the table (virtio 1.2 section 2.7.5.3.2).
    for before in [0, 1] {
        let table = [descriptor(address(1), 12, (NEXT, 1)), descriptor(address(2), 300, (0, 0))].concat();
        driver.put(at(3), &table[16 * before..]);
        let bytes = (32 - 16 * before) as u32;
        if before == 1 {
            driver.describe(FROM_DRIVER, 5, address(1), 12, (NEXT, 9));
            driver.describe(FROM_DRIVER, 9, address(3), bytes, (INDIRECT, 0));
        } else {
            driver.describe(FROM_DRIVER, 5, address(3), bytes, (INDIRECT, 0));
        }
        driver.offer(FROM_DRIVER, 5);
        let received = receive(&mut port);
        assert_eq!(received.iter().map(flat).collect::<Vec<_>>(), std::slice::from_ref(&frame));
        assert_eq!(driver.take_used(FROM_DRIVER), [(5, 0)]);
    }
}

#[test]
fn a_burst_is_published_whole_and_the_ring_goes_around() {
    let folder = Folder::new("vhost-around");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    let mut number = 0;
    // The 16-bit indices wrap around.
    for round in 0..65_536 / u32::from(SIZE) + 2 {
        for head in 0..SIZE {
            driver.send(head, &NO_HEADER, &pattern(number + usize::from(head), 60), &[]);
        }
        let received = receive(&mut port);
        assert_eq!(received.len(), BURST.min(usize::from(SIZE)), "round {round}");
        for frame in &received {
            assert_eq!(flat(frame), pattern(number, 60));
            number += 1;
        }
        assert_eq!(driver.take_used(FROM_DRIVER).len(), usize::from(SIZE));
    }
}

#[test]
fn a_frame_to_the_driver_fills_as_many_buffers_as_it_needs() {
    let folder = Folder::new("vhost-to");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    for (bytes, buffer, count) in
        [(60, 2048, 1), (500, 512, 1), (501, 512, 2), (1514, 512, 3), (1514, 100, 16)]
    {
        for most in [bytes, 700, 60] {
            let frame = pattern(bytes, bytes);
            (0..count + 2).for_each(|nr| driver.post(nr, buffer));
            let sent = build(&port, &frame, most);
            assert!(send(&mut port, sent));
            let arrived = driver.arrived();
            assert_eq!(arrived.len(), 1);
            assert_eq!(arrived[0].1, frame, "{bytes} bytes in buffers of {buffer}");
            assert_eq!(arrived[0].0[10..], count.to_le_bytes());
            // The two buffers that are left receive the next frames.
            for nr in 0..2 {
                let frame = pattern(nr, 60);
                let sent = build(&port, &frame, 60);
                assert!(send(&mut port, sent));
                assert_eq!(driver.arrived()[0].1, frame);
            }
        }
    }
    assert_eq!(port.counters().tx_dropped, 0);
}

#[test]
fn a_buffer_for_the_driver_may_have_several_descriptors() {
    let folder = Folder::new("vhost-parts");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL & !features::MRG_RXBUF);
    wait_for_link(&mut port, LinkState::Up);
    let address = |nr: u16| GUEST + Driver::buffer(TO_DRIVER, nr) as u64;
    driver.describe(TO_DRIVER, 0, address(0), 12, (NEXT | super::driver::WRITE, 1));
    driver.describe(TO_DRIVER, 1, address(1), 100, (NEXT | super::driver::WRITE, 2));
    driver.describe(TO_DRIVER, 2, address(2), 100, (super::driver::WRITE, 0));
    driver.offer(TO_DRIVER, 0);
    let frame = pattern(3, 150);
    let sent = build(&port, &frame, 40);
    assert!(send(&mut port, sent));
    assert_eq!(driver.take_used(TO_DRIVER), [(0, 162)]);
    let part = |nr, bytes| driver.bytes(Driver::buffer(TO_DRIVER, nr), bytes);
    assert_eq!([part(1, 100), part(2, 50)].concat(), frame);
}

#[test]
fn a_frame_that_never_fits_is_dropped_and_takes_no_buffer() {
    let folder = Folder::new("vhost-long");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL & !features::MRG_RXBUF);
    wait_for_link(&mut port, LinkState::Up);
    driver.post(0, 512);
    driver.post(1, 512);
    let long = build(&port, &pattern(0, 501), 501);
    assert!(send(&mut port, long));
    let beyond_mtu = build(&port, &pattern(0, 1519), 1519);
    assert!(send(&mut port, beyond_mtu));
    assert_eq!((port.counters().tx_dropped, port.counters().tx_frames), (2, 0));
    let fits = pattern(0, 500);
    let sent = build(&port, &fits, 500);
    assert!(send(&mut port, sent));
    assert_eq!(
        driver.arrived(),
        [(NO_HEADER.map(|byte| byte).to_vec(), fits)].map(|(mut header, frame)| {
            header[10] = 1;
            (header, frame)
        })
    );
}

#[test]
fn frames_wait_for_buffers_in_order() {
    let folder = Folder::new("vhost-full");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    let mut frames: Burst = (0..5).map(|nr| build(&port, &pattern(nr, 600), 600)).collect();
    // Each frame needs two buffers, and there are three.
    (0..3).for_each(|nr| driver.post(nr, 400));
    assert_eq!(port.tx_burst(0, &mut frames), 1);
    assert_eq!((frames.len(), port.counters().tx_ring_full), (4, 4));
    driver.post(3, 400);
    assert_eq!(port.tx_burst(0, &mut frames), 1);
    assert_eq!(port.tx_burst(0, &mut frames), 0);
    let arrived = driver.arrived();
    assert_eq!(
        arrived.into_iter().map(|(_, frame)| frame).collect::<Vec<_>>(),
        [0, 1].map(|nr| pattern(nr, 600))
    );
    (0..10).for_each(|nr| driver.post(nr, BUFFER_BYTES));
    assert_eq!(port.tx_burst(0, &mut frames), 3);
    let arrived = driver.arrived();
    assert_eq!(
        arrived.into_iter().map(|(_, frame)| frame).collect::<Vec<_>>(),
        [2, 3, 4].map(|nr| pattern(nr, 600))
    );
    let counters = port.counters();
    assert_eq!((counters.tx_frames, counters.tx_bytes, counters.tx_dropped), (5, 3000, 0));
}

#[test]
fn external_memory_is_sent() {
    let folder = Folder::new("vhost-external");
    let mut port = open(&folder);
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    driver.post(0, BUFFER_BYTES);
    let bytes = pattern(4, 1000);
    let mut frame = build(&port, &bytes[..60], 60);
    let memory = ExtBuf::new(std::sync::Arc::new(bytes[60..].to_vec()));
    frame.chain(Mbuf::external(port.bulk_mempool().unwrap(), memory).unwrap()).unwrap();
    assert!(send(&mut port, frame));
    assert_eq!(driver.arrived()[0].1, bytes);
}

/// Without buffers a frame stays in the ring. Superframes fit chains of small buffers if no large buffer is
/// free.
#[test]
fn a_frame_waits_for_free_buffers() {
    let folder = Folder::new("vhost-starved");
    let mut port = super::super::open(&super::VhostConfig { mbufs: 64, ..config(&folder) }).unwrap();
    let mut driver = Driver::start(&folder.join("wire.sock"), ALL);
    wait_for_link(&mut port, LinkState::Up);
    let frame = pattern(1, 30_000);
    let mut hoard = Vec::new();
    for _ in 0..32 {
        driver.send(0, &NO_HEADER, &frame, &[12]);
        hoard.extend(receive(&mut port));
    }
    assert!(hoard.len() == 32 && hoard.iter().all(|held| held.segment_count() == 1));
    driver.take_used(FROM_DRIVER);
    driver.send(0, &NO_HEADER, &frame, &[12]);
    let chained = receive(&mut port).pop().unwrap();
    assert_eq!((chained.segment_count(), flat(&chained)), (30_000_usize.div_ceil(2048), frame.clone()));
    driver.take_used(FROM_DRIVER);
    while let Some(buffer) = port.mempool().alloc() {
        hoard.push(buffer);
    }
    driver.send(0, &NO_HEADER, &frame, &[12]);
    driver.send(2, &NO_HEADER, &pattern(2, 60), &[]);
    assert!(receive(&mut port).is_empty());
    assert_eq!(port.counters().rx_no_mbuf, 1);
    assert_eq!(driver.take_used(FROM_DRIVER), []);
    hoard.clear();
    let received = receive(&mut port);
    assert_eq!(received.iter().map(flat).collect::<Vec<_>>(), [frame, pattern(2, 60)]);
}
