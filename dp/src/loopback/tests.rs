//! Tests of [`Loopback`]: for example, frames to the port's own address are returned, and all other frames
//! are sent as if there were no wrapper.

use std::sync::Arc;

use crate::link::{self, LinkConfig};
use crate::loopback::{Loopback, QUEUE_FRAMES, RX_BYTES};
use crate::{BURST, Burst, Checksum, ExtBuf, Mbuf, Offloads, Port, Sleep, Statistics, TxOffload};

const OTHER: [u8; 6] = [0x02, 0, 0, 0, 0, 0x0b];

fn ports() -> (Loopback, Box<dyn Port>) {
    let config = LinkConfig { mbufs: 2 * QUEUE_FRAMES, ..LinkConfig::default() };
    let (a, b) = link::pair(&config);
    (Loopback::new(a), b)
}

/// Makes a frame to `to`, with `number` after the addresses.
fn frame(port: &dyn Port, to: [u8; 6], number: u8) -> Mbuf {
    let mut frame = port.mempool().alloc().unwrap();
    assert!(frame.append_slice(&to));
    assert!(frame.append_slice(&[number; 54]));
    frame
}

fn numbers(frames: &Burst) -> Vec<u8> {
    frames.iter().map(|frame| frame.head()[6]).collect()
}

#[test]
fn frames_to_us_come_back_and_the_others_leave() {
    let (mut port, mut peer) = ports();
    let ours = port.info().mac;
    let mut burst = Burst::new();
    for (number, to) in [(0, OTHER), (1, ours), (2, [0xff; 6]), (3, ours)] {
        burst.push(frame(&port, to, number));
    }
    assert_eq!(port.tx_burst(5, &mut burst), 4);
    assert!(burst.is_empty());
    assert_eq!(port.next_due_us(), Some(5));
    assert!(!port.arm_wakeup());

    let (mut here, mut there) = (Burst::new(), Burst::new());
    assert_eq!(port.rx_burst(6, &mut here), 2);
    assert_eq!(peer.rx_burst(6, &mut there), 2);
    assert_eq!(numbers(&here), [1, 3]);
    assert_eq!(numbers(&there), [0, 2]);
    assert_eq!(port.next_due_us(), None);
    assert!(port.arm_wakeup());
    let counters = port.counters();
    assert_eq!((counters.tx_frames, counters.rx_frames), (4, 2));
    assert_eq!((counters.tx_bytes, counters.rx_bytes), (240, 120));
}

/// If ports of one host share an Ethernet address, only packets to the port's own IP address are returned.
#[test]
fn of_an_address_that_is_shared_only_our_packets_come_back() {
    let (v4, v6) = ((12, [0x08, 0x00]), (12, [0x86, 0xdd]));
    let (ours, other) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let [ours_v6, other_v6] = [1, 2].map(|last| {
        let mut address = [0xfd; 16];
        address[15] = last;
        address
    });
    for (address, (at, ethertype), mine, others, wrong) in [
        (std::net::IpAddr::from(ours), v4, (30, &ours[..]), (30, &other[..]), v6.1),
        (std::net::IpAddr::from(ours_v6), v6, (38, &ours_v6[..]), (38, &other_v6[..]), v4.1),
    ] {
        let (a, mut peer) = link::pair(&LinkConfig::default());
        let mut port = Loopback::of_address(a, address);
        let mac = port.info().mac;
        let packet = |number: u8, ethertype: [u8; 2], (place, to): (usize, &[u8])| {
            let mut frame = frame(&port, mac, number);
            let head = frame.head_mut().unwrap();
            head[at..at + 2].copy_from_slice(&ethertype);
            head[place..place + to.len()].copy_from_slice(to);
            frame
        };
        let mut short = packet(4, ethertype, mine);
        short.truncate(mine.0 + mine.1.len() - 1);
        let packets = [packet(1, ethertype, mine), packet(2, ethertype, others), packet(3, wrong, mine)];
        let mut burst: Burst = packets.into_iter().chain([short]).collect();
        assert_eq!(port.tx_burst(0, &mut burst), 4);
        let (mut here, mut there) = (Burst::new(), Burst::new());
        port.rx_burst(0, &mut here);
        peer.rx_burst(0, &mut there);
        assert_eq!((numbers(&here), numbers(&there)), (vec![1], vec![2, 3, 4]), "{address}");
    }
}

#[test]
fn a_full_queue_leaves_frames_with_the_sender_in_order() {
    let (mut port, _peer) = ports();
    let ours = port.info().mac;
    for _ in 0..QUEUE_FRAMES / BURST {
        let mut burst: Burst = (0..BURST as u8).map(|number| frame(&port, ours, number)).collect();
        assert_eq!(port.tx_burst(0, &mut burst), BURST);
    }
    let mut burst: Burst = (100..103).map(|number| frame(&port, ours, number)).collect();
    assert_eq!(port.tx_burst(0, &mut burst), 0);
    assert_eq!(numbers(&burst), [100, 101, 102]);
    assert_eq!(port.counters().tx_ring_full, 1);
    // After some frames were received, the queue has room again.
    let mut received = Burst::new();
    assert_eq!(port.rx_burst(0, &mut received), BURST);
    assert_eq!(port.tx_burst(0, &mut burst), 3);
}

#[test]
fn a_checksum_left_to_the_device_counts_as_partial() {
    let (mut port, _peer) = ports();
    assert!(!port.info().offloads.contains(Offloads::TX_IPV4_CHECKSUM));
    let mut partial = frame(&port, port.info().mac, 1);
    partial.set_tx_offload(TxOffload { tcp_checksum: true, ..TxOffload::default() });
    let mut burst: Burst = [partial, frame(&port, port.info().mac, 2)].into_iter().collect();
    assert_eq!(port.tx_burst(0, &mut burst), 2);
    assert_eq!(port.rx_burst(0, &mut burst), 2);
    let states: Vec<Checksum> = burst.iter().map(Mbuf::rx_checksum).collect();
    assert_eq!(states, [Checksum::Partial, Checksum::Unknown]);
    assert_eq!(burst[0].tx_offload(), TxOffload::default());
}

#[test]
fn memory_of_users_is_copied() {
    let (mut port, _peer) = ports();
    let mut sent = frame(&port, port.info().mac, 1);
    let memory = ExtBuf::new(Arc::new(vec![7u8; 100]));
    sent.chain(Mbuf::external(port.mempool(), memory).unwrap()).unwrap();
    let mut burst: Burst = [sent].into_iter().collect();
    assert_eq!(port.tx_burst(0, &mut burst), 1);
    assert_eq!(port.rx_burst(0, &mut burst), 1);
    assert!(!burst[0].has_external());
    let mut bytes = [0; 160];
    assert_eq!(burst[0].copy_to(0, &mut bytes), 160);
    assert_eq!(bytes[60..], [7; 100]);
}

#[test]
fn a_burst_has_as_many_bytes_as_fit_the_cache() {
    let (mut port, _peer) = ports();
    let long = 2000;
    let count = RX_BYTES.div_ceil(long) + 1;
    for _ in 0..count {
        let mut long_frame = frame(&port, port.info().mac, 1);
        assert!(long_frame.append(long - 60).is_some());
        assert_eq!(port.tx_burst(0, &mut [long_frame].into_iter().collect()), 1);
    }
    let (mut bursts, mut received) = (Vec::new(), Burst::new());
    while port.rx_burst(0, &mut received) > 0 {
        bursts.push(received.drain(..).map(|frame| frame.len()).sum::<usize>());
    }
    assert_eq!(bursts.iter().sum::<usize>(), count * long);
    assert!(bursts.iter().all(|&bytes| bytes < RX_BYTES + long), "{bursts:?}");
}
