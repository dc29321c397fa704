//! Frames to multicast groups.

use super::*;

const UDP: u8 = 17;
const IGMP: u8 = 2;

/// Makes an IPv4 packet of `bytes` bytes to a group, whose contents depend on `number`.
fn to_group(port: &LocalPort, protocol: u8, number: u8, bytes: usize) -> Mbuf {
    let mut frame = port.mempool().alloc().unwrap();
    assert!(frame.append_slice(&[0x01, 0x00, 0x5e, 1, 2, 3]));
    assert!(frame.append_slice(&port.info().mac));
    let mut packet = vec![number; bytes - 12];
    packet[..2].copy_from_slice(&[0x08, 0x00]);
    packet[11] = protocol;
    let room = port.mempool().data_bytes() - frame.len();
    let (front, rest) = packet.split_at(packet.len().min(room));
    assert!(frame.append_slice(front));
    for piece in rest.chunks(port.mempool().data_bytes()) {
        let mut part = port.mempool().alloc().unwrap();
        assert!(part.append_slice(piece));
        frame.chain(part).unwrap();
    }
    frame
}

/// Polls the ports until each has the frame with this number in its last byte, and no other.
fn each_receives(ports: &mut [&mut LocalPort], numbers: &[u8]) {
    let mut arrived = vec![Vec::new(); ports.len()];
    for _ in 0..100_000 {
        for (port, arrived) in ports.iter_mut().zip(&mut arrived) {
            arrived.extend(poll_once(port, 0).iter().map(|frame| *flat(frame).last().unwrap()));
        }
        if arrived.iter().map(Vec::len).sum::<usize>() >= numbers.len() * (ports.len() - 1) {
            break;
        }
    }
    let (sender, others) = arrived.split_first().unwrap();
    assert!(sender.is_empty(), "{sender:?}");
    for arrived in others {
        assert_eq!(arrived, numbers);
    }
}

#[test]
fn a_datagram_to_a_group_reaches_every_other_station() {
    let scratch = Scratch::new();
    let (mut a, mut b, mut c) = (scratch.open(1), scratch.open(2), scratch.open(3));
    let frame = to_group(&a, UDP, 7, 100);
    assert!(!a.has_unsent() && send(&mut a, frame));
    assert!(a.has_unsent(), "the stations have not answered");
    each_receives(&mut [&mut a, &mut b, &mut c], &[7]);
    assert!(!a.has_unsent());
    // The second datagram is written to rings, and a station that comes later gets a copy, too.
    let mut late = scratch.open(4);
    let frame = to_group(&a, UDP, 8, 1000);
    assert!(send(&mut a, frame));
    each_receives(&mut [&mut a, &mut b, &mut c, &mut late], &[8]);
    let frame = to_group(&b, UDP, 9, 60);
    assert!(send(&mut b, frame));
    each_receives(&mut [&mut b, &mut a, &mut c, &mut late], &[9]);
    // Now every pair has its rings, so nothing but the send itself makes the frame visible.
    let frame = to_group(&a, UDP, 10, 80);
    assert!(send(&mut a, frame));
    each_receives(&mut [&mut a, &mut b, &mut c, &mut late], &[10]);
    let counters = a.counters();
    assert_eq!((counters.tx_frames, counters.tx_bytes, counters.tx_dropped), (3, 1180, 0));
    // The order of frames to a station is kept.
    let frames = [to_group(&a, UDP, 1, 64), frame_to(&a, 2, 2), to_group(&a, UDP, 3, 64)];
    assert_eq!(a.tx_burst(0, &mut frames.into_iter().collect()), 3);
    let arrived = receive(&mut [&mut a, &mut b], 3);
    assert_eq!(arrived.iter().map(|frame| *flat(frame).last().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
}

/// Makes a frame to a station, whose last byte is `number`.
fn frame_to(port: &LocalPort, station: u16, number: u8) -> Mbuf {
    let mut frame = frame(port, station, 0, 16);
    assert!(frame.append_slice(&[number]));
    frame
}

#[test]
fn stations_that_have_ended_are_no_obstacle() {
    let scratch = Scratch::new();
    let (mut a, b, mut c) = (scratch.open(1), scratch.open(2), scratch.open(3));
    // A killed process leaves its socket in the folder.
    let path = scratch.0.join("9.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    drop(b);
    for number in 1..4 {
        let frame = to_group(&a, UDP, number, 100);
        assert!(send(&mut a, frame));
        each_receives(&mut [&mut a, &mut c], &[number]);
        while a.next_departed().is_some() {}
    }
    assert_eq!(a.counters().tx_frames, 3);
}

/// An IGMP message has no reader, and a frame that no group may have is dropped as before.
#[test]
fn only_datagrams_of_allowed_length_are_sent_to_groups() {
    let scratch = Scratch::new();
    let (mut a, mut b) = (scratch.open(1), scratch.open(2));
    let longest = usize::from(a.info().mtu) + 18;
    let mut foreign = to_group(&a, UDP, 1, 100);
    foreign.head_mut().unwrap()[0] = 0x00;
    let mut other = to_group(&a, UDP, 1, 100);
    other.head_mut().unwrap()[13] = 0x06;
    let short = frame(&a, 0, 0, 20);
    let frames = [to_group(&a, IGMP, 1, 100), to_group(&a, UDP, 1, longest + 1), foreign, other, short];
    for frame in frames {
        assert!(send(&mut a, frame));
    }
    assert!((0..1000).all(|_| poll_once(&mut b, 0).is_empty() && poll_once(&mut a, 0).is_empty()));
    assert_eq!((a.counters().tx_dropped, a.counters().tx_frames), (5, 0));
    let frame = to_group(&a, UDP, 5, longest);
    assert!(send(&mut a, frame));
    each_receives(&mut [&mut a, &mut b], &[5]);
}

/// A station that does not read loses datagrams, but does not block the sender.
#[test]
fn a_station_that_does_not_read_blocks_nobody() {
    let scratch = Scratch::new();
    let (mut a, mut deaf, mut c) = (scratch.open(1), scratch.open(2), scratch.open(3));
    pair_up(&mut a, &mut deaf);
    pair_up(&mut a, &mut c);
    let mut arrived = 0;
    for number in 0..400 {
        let frame = to_group(&a, UDP, number as u8, 8000);
        assert!(send(&mut a, frame));
        arrived += poll_once(&mut c, 0).len();
        poll_once(&mut a, 0);
    }
    assert_eq!(arrived, 400);
    assert!(a.local_counters().lost > 0);
}
