//! Tests of the frames of a pair: for example, their order, the limits of a burst, when the reader can read
//! the frames, and when the writer can use the space again.

use super::super::hello::{Heard, hear};
use super::super::peer::{Pair, Peer, PeerState, Pools, Sent, Side, make_memory};
use super::*;
use crate::Mempool;

/// Sends frames of 9,000 bytes to station 2 until the port accepts no more frames. Returns the number of
/// accepted frames.
fn fill(a: &mut LocalPort, now_us: u64, first: u32) -> u32 {
    let refused = (first..first + 1000).find(|number| {
        let next = frame(a, 2, *number, 9000);
        !send_at(a, now_us, next)
    });
    refused.expect("a port takes no more at some time") - first
}

/// Receives at most `count` frames with one burst. Returns the numbers of the frames.
fn receive_some(port: &mut LocalPort, count: usize) -> Vec<u32> {
    let mut burst: Burst = (0..BURST - count).map(|_| frame(port, 1, 0, 16)).collect();
    port.rx_burst(0, &mut burst);
    burst.iter().skip(BURST - count).map(number).collect()
}

/// The ring has room for a small frame, but not for the long frame before it. The small frame waits too, so
/// the order does not change.
#[test]
fn a_small_frame_does_not_overtake_those_that_wait_for_space() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    for number in 0..40 {
        let long = frame(&a, 2, number, 9000);
        assert!(send(&mut a, long));
    }
    let small = frame(&a, 2, 40, 64);
    assert!(send(&mut a, small));
    let arrived: Vec<u32> = receive(&mut [&mut a, &mut b], 41).iter().map(number).collect();
    assert_eq!(arrived, (0..41).collect::<Vec<_>>());
}

#[test]
fn the_space_of_each_received_frame_is_free_with_the_burst() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let taken = fill(&mut a, 0, 0);
    // The bursts are so small that no space is released during a burst.
    for (round, count) in [1, 3, 5].into_iter().enumerate() {
        assert_eq!(receive_some(&mut b, count).len(), count);
        assert_eq!(fill(&mut a, 0, taken + 10 * round as u32), count as u32, "round {round}");
    }
}

#[test]
fn a_burst_to_several_stations_is_shown_to_all_of_them() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let mut c = scratch.open(3);
    pair_up(&mut a, &mut c);
    let mut burst: Burst = (0..12).map(|number| frame(&a, 2 + number as u16 % 2, number, 100)).collect();
    assert_eq!(a.tx_burst(0, &mut burst), 12);
    // The sender is not polled during this loop.
    for (port, first) in [(&mut b, 0), (&mut c, 1)] {
        let arrived: Vec<u32> = poll_once(port, 0).iter().map(number).collect();
        assert_eq!(arrived, (first..12).step_by(2).collect::<Vec<_>>());
    }
}

/// If two stations have more frames than fit in a burst, the two stations are read in turn.
#[test]
fn no_station_keeps_the_frames_of_another_from_being_received() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let mut c = scratch.open(3);
    pair_up(&mut c, &mut b);
    for number in 0..8 {
        for (port, begin) in [(&mut a, 100), (&mut c, 200)] {
            let sent = frame(port, 2, begin + number, 500);
            assert!(send(port, sent));
        }
    }
    let senders: Vec<u32> = (0..8).map(|_| receive_some(&mut b, 1)[0] / 100).collect();
    assert_eq!(senders.iter().filter(|sender| **sender == 1).count(), 4, "{senders:?}");
}

/// Reading the sockets is a system call. If the caller's clock does not advance, the port reads the sockets
/// in each 256th poll without a frame.
#[test]
fn a_port_whose_clock_stands_still_looks_at_its_sockets_once_in_256_idle_polls() {
    for (busy, idle, until_told) in [(0, 0, 257), (0, 100, 157), (0, 300, 213), (200, 0, 257)] {
        let scratch = Scratch::new();
        let (mut a, mut b) = paired(&scratch);
        // There is no recent handshake, so most polls do not read the sockets. The count of polls starts at
        // the last frame.
        (0..3).for_each(|_| drop(poll_once(&mut a, 0)));
        for number in 0..=busy {
            let sent = frame(&b, 1, number, 64);
            assert!(send(&mut b, sent));
            assert_eq!(poll_once(&mut a, 0).len(), 1);
        }
        (0..idle).for_each(|_| drop(poll_once(&mut a, 0)));
        drop(b);
        let told = (1..1000).find(|_| {
            poll_once(&mut a, 0);
            a.next_departed().is_some()
        });
        assert_eq!(told, Some(until_told), "{busy} busy and {idle} idle polls");
    }
}

/// A burst ends with the frame that reaches 256 KiB, so that its bytes are usually still in the cache when
/// the engine places them.
#[test]
fn a_burst_ends_behind_256_kib() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let mut c = scratch.open(3);
    pair_up(&mut c, &mut b);
    for number in 0..3 {
        for port in [&mut a, &mut c] {
            let long = frame(port, 2, number, 60_000);
            assert!(send(port, long));
        }
    }
    let counts = [0; 3].map(|_| poll_once(&mut b, 0).len());
    assert_eq!(counts, [5, 1, 0], "the fifth passes 256 KiB");
}

/// The reader can read the beginning of a long burst while the rest is being written.
#[test]
fn the_reader_sees_each_32_kib_at_once() {
    let pool = Mempool::heap("shown", 64, 9024);
    let (memory, _memfd) = make_memory(256 << 10).unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let pair = |socket, side| Pair::new(OwnFd::new(socket), &memory, side, (7, 1), Pools::default());
    let mut peer = Peer::new(0);
    peer.state = PeerState::Paired(pair(ours.into(), Side::Maker));
    let mut reader = pair(theirs.into(), Side::Taker);
    let mut seen = Vec::new();
    for _ in 0..8 {
        let mut frame = pool.alloc().unwrap();
        assert!(frame.append(9000).is_some());
        assert!(matches!(peer.send(0, frame), Ok(Sent::Written)));
        let mut count = 0;
        while let Some(record) = reader.rx.peek().unwrap() {
            reader.rx.advance(record);
            count += 1;
        }
        seen.push(count);
    }
    assert_eq!(seen, [0, 0, 0, 4, 0, 0, 0, 4]);
}

/// The port has noticed that the station has ended, but has not read all frames of the station. So the
/// station is still in the list, but a frame for it is dropped.
#[test]
fn a_frame_for_a_station_that_has_ended_is_dropped_at_once() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    for number in 0..3 {
        let last = frame(&b, 1, number, 500);
        assert!(send(&mut b, last));
    }
    drop(b);
    assert_eq!(receive_some(&mut a, 1), [0]);
    assert!(!a.arm_wakeup(), "the others wait");
    a.disarm_wakeup();
    assert_eq!(receive_some(&mut a, 1), [1]);
    // This frame was received in the first poll after a wait, so the port reads the sockets 10 us later. The
    // full burst leaves the last frame in the ring.
    let full = |port: &mut LocalPort, now_us: u64| {
        let mut burst: Burst = (0..BURST).map(|_| frame(port, 1, 0, 16)).collect();
        port.rx_burst(now_us, &mut burst);
    };
    full(&mut a, 9);
    let late = frame(&a, 2, 9, 64);
    assert!(send(&mut a, late));
    assert_eq!((a.counters().tx_link_down, a.local_counters().lost), (0, 0), "it is not known yet");
    full(&mut a, 10);
    let late = frame(&a, 2, 9, 64);
    assert!(send(&mut a, late));
    assert_eq!((a.counters().tx_link_down, a.local_counters().lost), (1, 0));
    assert_eq!(a.next_due_us(), None);
    assert_eq!(departed(&mut a), (2, vec![2]));
}

/// Only a sleeping port is woken by a message, since a message needs a system call of the sender.
#[test]
fn a_port_that_polls_again_is_not_woken() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let mut number = 0;
    let mut next = |b: &mut LocalPort| {
        number += 1;
        let sent = frame(b, 1, number, 64);
        assert!(send(b, sent));
    };
    // The port has slept, and was woken by something other than a frame.
    assert!(a.arm_wakeup());
    a.disarm_wakeup();
    next(&mut b);
    assert!(!is_readable(&a), "it polls");
    // The port finds that it need not sleep.
    assert!(!a.arm_wakeup());
    next(&mut b);
    assert!(!is_readable(&a), "it did not sleep");
    assert_eq!(receive(&mut [&mut a], 2).len(), 2);
}

/// Publishing a record sends one wake-up message to a sleeping reader. If no record was written, or if the
/// reader was already woken, publishing sends no message.
#[test]
fn a_wake_up_is_one_message() {
    let (memory, _memfd) = make_memory(256 << 10).unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let pair = |socket, side| Pair::new(OwnFd::new(socket), &memory, side, (7, 1), Pools::default());
    let (mut writer, reader) = (pair(ours.into(), Side::Maker), pair(theirs.into(), Side::Taker));
    reader.rx.mark_sleeping();
    writer.publish();
    assert!(matches!(hear(reader.socket.as_ref().unwrap()), Heard::Silence), "nothing was written");
    for heard in [true, false] {
        assert_eq!(writer.tx.write(64, 0, std::iter::once([0; 64])), Ok(true));
        writer.publish();
        let message = hear(reader.socket.as_ref().unwrap());
        assert_eq!(matches!(message, Heard::Wake), heard, "{message:?}");
    }
}
