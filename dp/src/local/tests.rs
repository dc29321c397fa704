//! Tests of the parts of a local wire, and tests of ports of one process on a wire. `tests/local_processes`
//! tests several processes.

mod burst;
mod claim;
mod delivery;
mod folder;
mod group;
mod growth;
mod handshake;
mod hello;
mod hostile;
mod lending;
mod ring;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::connect;
use testkit::folder::Folder;

use super::peer::memory_bytes;
use super::*;
use crate::{BURST, Burst, Checksum, ExtBuf, Link, LinkState, Mbuf, Port, Sleep, Statistics, TxOffload};

/// The folder of a wire for one test.
struct Scratch(Folder);

impl Scratch {
    fn new() -> Self {
        Self(Folder::absent("dp-local"))
    }

    fn config(&self) -> LocalConfig {
        LocalConfig {
            mbufs: 512,
            bulk_mbufs: 16,
            ring_bytes: 256 << 10,
            ..LocalConfig::new(self.0.to_path_buf())
        }
    }

    fn open(&self, station: u16) -> LocalPort {
        open(&LocalConfig { station: Some(station), ..self.config() }).unwrap()
    }
}

/// Makes a frame of `bytes` bytes (at least 16) to `station`. The contents of the frame depend on `number`. A
/// frame that is longer than the MTU requests to be cut.
fn frame(port: &LocalPort, station: u16, number: u32, bytes: usize) -> Mbuf {
    let mut frame = port.mempool().alloc().unwrap();
    let [high, low] = station.to_be_bytes();
    assert!(frame.append_slice(&[2, 0, 0x64, 0x40, high, low]));
    assert!(frame.append_slice(&port.info().mac));
    assert!(frame.append_slice(&number.to_be_bytes()));
    while frame.len() < bytes {
        let mut part = port.mempool().alloc().unwrap();
        let (start, room) = (frame.len(), (bytes - frame.len()).min(port.mempool().data_bytes()));
        for (at, byte) in part.append(room).unwrap().iter_mut().enumerate() {
            *byte = ((start + at) as u32).wrapping_mul(7).wrapping_add(number) as u8;
        }
        frame.chain(part).unwrap();
    }
    if bytes > 9018 {
        frame.set_tx_offload(TxOffload { tso_segment_bytes: 8960, ..TxOffload::default() });
    }
    frame
}

fn number(frame: &Mbuf) -> u32 {
    let mut bytes = [0; 4];
    frame.copy_to(12, &mut bytes);
    u32::from_be_bytes(bytes)
}

fn flat(frame: &Mbuf) -> Vec<u8> {
    frame.segments().flatten().copied().collect()
}

fn send_at(port: &mut LocalPort, now_us: u64, frame: Mbuf) -> bool {
    port.tx_burst(now_us, &mut [frame].into_iter().collect()) == 1
}

fn send(port: &mut LocalPort, frame: Mbuf) -> bool {
    send_at(port, 0, frame)
}

fn poll_once(port: &mut LocalPort, now_us: u64) -> Vec<Mbuf> {
    let mut burst = Burst::new();
    port.rx_burst(now_us, &mut burst);
    burst.into_iter().collect()
}

/// Polls all ports in turn until `count` frames have arrived at the last port. Returns the frames.
fn receive(ports: &mut [&mut LocalPort], count: usize) -> Vec<Mbuf> {
    let mut arrived = Vec::new();
    for _ in 0..100_000 {
        let (last, others) = ports.split_last_mut().unwrap();
        for port in others {
            assert!(poll_once(port, 0).is_empty());
        }
        arrived.extend(poll_once(last, 0));
        if arrived.len() >= count {
            return arrived;
        }
    }
    panic!("{} of {count} frames arrive", arrived.len());
}

fn paired(scratch: &Scratch) -> (LocalPort, LocalPort) {
    let (mut a, mut b) = (scratch.open(1), scratch.open(2));
    pair_up(&mut a, &mut b);
    (a, b)
}

/// Makes a pair between two stations, by sending a frame from the first to the second.
fn pair_up(first: &mut LocalPort, second: &mut LocalPort) {
    let hello = frame(first, second.station(), 0, 16);
    assert!(send(first, hello));
    assert_eq!(receive(&mut [first, second], 1).len(), 1);
    poll_once(first, 0);
}

/// Maximum number of bytes of each ring of a process that connects without a port.
const RING: u64 = 512 << 10;

/// Makes a socket that is connected to station 1. No message was sent on the socket.
fn dial(scratch: &Scratch) -> OwnedFd {
    let socket = super::claim::socket().unwrap();
    connect(&socket, &super::claim::address(&scratch.0, 1).unwrap()).unwrap();
    socket
}

/// Makes the memory of a pair of rings of `RING` bytes.
fn ring_memory() -> OwnedFd {
    memory::create(memory_bytes(RING).unwrap(), []).unwrap()
}

/// Polls until the port reports that a station has ended. Returns the station, and the numbers of the frames
/// that were received before the report.
fn departed(port: &mut LocalPort) -> (u16, Vec<u32>) {
    let mut before = Vec::new();
    for now_us in 0..100_000 {
        before.extend(poll_once(port, now_us).iter().map(number));
        if let Some([2, 0, 0x64, 0x40, high, low]) = port.next_departed() {
            return (u16::from_be_bytes([high, low]), before);
        }
    }
    panic!("nobody departs");
}

fn is_readable(port: &LocalPort) -> bool {
    let fd = port.poll_fd().unwrap();
    poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn frames_of_every_length_arrive_as_they_were_sent() {
    let scratch = Scratch::new();
    let (mut a, mut b) = (scratch.open(1), scratch.open(2));
    for (number, bytes) in [14, 16, 64, 1514, 9018, 9019, 30_000, 65_553].into_iter().enumerate() {
        let mut sent = frame(&a, 2, number as u32, bytes);
        sent.truncate(bytes);
        sent.set_tx_offload(TxOffload { tcp_checksum: number % 2 == 0, ..sent.tx_offload() });
        let bytes = flat(&sent);
        assert!(send(&mut a, sent));
        let received = receive(&mut [&mut a, &mut b], 1).remove(0);
        assert_eq!((flat(&received), received.segment_count()), (bytes, 1));
        let checksum = if number % 2 == 0 { Checksum::Partial } else { Checksum::Unknown };
        assert_eq!(received.rx_checksum(), checksum);
    }
    assert_eq!(a.local_counters(), LocalCounters { pairs: 1, ..LocalCounters::default() });
    assert_eq!(a.counters().tx_frames, 8);
    assert_eq!((b.counters().rx_frames, b.counters().rx_bytes), (8, a.counters().tx_bytes));
}

#[test]
fn a_port_says_what_it_is() {
    let scratch = Scratch::new();
    let mut port = scratch.open(0x1234);
    assert_eq!((port.station(), port.info().mac), (0x1234, [2, 0, 0x64, 0x40, 0x12, 0x34]));
    assert_eq!((port.info().mtu, port.info().name.as_str()), (65_000, "local4660"));
    assert_eq!((port.info().lent_from, port.mempool().data_bytes()), (Some(4096), 9216));
    assert!(port.passes_large_frames() && port.info().tells_departures && !port.info().point_to_point);
    assert!(port.bulk_mempool().is_some() && port.link_state() == LinkState::Up);
}

/// If two stations connect to each other at the same time, only one pair is used, and no frame is lost.
#[test]
fn stations_that_connect_to_each_other_at_once_have_one_pair() {
    for first in [1, 2] {
        let scratch = Scratch::new();
        let (mut a, mut b) = (scratch.open(1), scratch.open(2));
        for number in 0..20 {
            let (to_b, to_a) = (frame(&a, 2, number, 100), frame(&b, 1, number, 100));
            assert!(send(&mut a, to_b) && send(&mut b, to_a));
        }
        let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
        for turn in 0..50 {
            if turn % 2 + 1 == first {
                at_a.extend(poll_once(&mut a, 0).iter().map(number));
            } else {
                at_b.extend(poll_once(&mut b, 0).iter().map(number));
            }
        }
        let all: Vec<u32> = (0..20).collect();
        assert_eq!((at_a, at_b), (all.clone(), all));
        for port in [&a, &b] {
            assert_eq!(port.local_counters(), LocalCounters { pairs: 1, ..LocalCounters::default() });
        }
    }
}

#[test]
fn many_stations_all_talk_to_each_other() {
    let scratch = Scratch::new();
    let mut ports: Vec<LocalPort> = (1..=12).map(|station| scratch.open(station)).collect();
    for round in 0..3 {
        for from in 0..12_u16 {
            for to in (1..=12).filter(|to| *to != from + 1) {
                let sent = frame(&ports[from as usize], to, u32::from(from) << 8 | round, 200);
                assert!(send(&mut ports[from as usize], sent));
            }
        }
    }
    let mut arrived = vec![Vec::new(); 12];
    for _ in 0..200 {
        for (port, arrived) in ports.iter_mut().zip(&mut arrived) {
            arrived.extend(poll_once(port, 0).iter().map(number));
        }
    }
    for (at, arrived) in arrived.iter_mut().enumerate() {
        // The frames of each sender are in order.
        arrived.sort_by_key(|number| number >> 8);
        let wanted: Vec<u32> = (0..12)
            .filter(|from| *from != at as u32)
            .flat_map(|from| (0..3).map(move |n| from << 8 | n))
            .collect();
        assert_eq!(arrived, &wanted);
        assert_eq!(ports[at].local_counters(), LocalCounters { pairs: 11, ..LocalCounters::default() });
    }
}

#[test]
fn frames_to_nobody_are_dropped_and_counted() {
    let scratch = Scratch::new();
    let mut port = scratch.open(1);
    let mut bad: Vec<Mbuf> = [0, 1].map(|station| frame(&port, station, 0, 64)).into_iter().collect();
    for mac in [[0xff; 6], [1, 0, 0x5e, 0, 0, 1], [2, 0, 0x64, 0x41, 0, 2]] {
        let mut other = frame(&port, 2, 0, 64);
        other.head_mut().unwrap()[..6].copy_from_slice(&mac);
        bad.push(other);
    }
    let mut short = frame(&port, 2, 0, 64);
    short.truncate(13);
    let mut long = frame(&port, 2, 0, 65_019);
    long.set_tx_offload(TxOffload::default());
    let longest = frame(&port, 2, 0, 65_554);
    bad.extend([short, long, longest]);
    let count = bad.len();
    assert_eq!(port.tx_burst(0, &mut bad.into_iter().collect()), count);
    assert_eq!(port.counters().tx_dropped, count as u64);
    assert_eq!((port.local_counters(), port.next_departed()), (LocalCounters::default(), None));
    assert_eq!(port.mempool().available(), 512);
}

#[test]
fn a_station_that_is_not_there_is_reported_once_for_each_attempt() {
    let scratch = Scratch::new();
    let mut port = scratch.open(1);
    for attempt in 1..=3 {
        for _ in 0..4 {
            let lost = frame(&port, 9, 0, 64);
            assert!(send(&mut port, lost));
        }
        assert!(!port.arm_wakeup(), "there is something to tell");
        assert_eq!(port.next_due_us(), Some(0));
        assert_eq!(port.next_departed(), Some([2, 0, 0x64, 0x40, 0, 9]));
        assert_eq!(port.next_departed(), None);
        assert_eq!(port.counters().tx_link_down, 4 * attempt);
        assert_eq!(port.local_counters().departed, attempt);
    }
    assert!(port.arm_wakeup());
}

/// Makes a frame to station 2 whose last bytes are external memory. Also returns the owner of that memory.
fn with_external(from: &LocalPort) -> (Arc<Vec<u8>>, Mbuf) {
    let owner = Arc::new(vec![7; 900]);
    let mut frame = frame(from, 2, 5, 20);
    frame.chain(Mbuf::external(from.mempool(), ExtBuf::new(Arc::clone(&owner))).unwrap()).unwrap();
    (owner, frame)
}

#[test]
fn external_memory_arrives_as_a_copy_and_is_given_back_when_sent() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let (owner, sent) = with_external(&a);
    let mut bytes = vec![0; sent.len()];
    sent.copy_to(0, &mut bytes);
    assert!(send(&mut a, sent));
    assert_eq!(Arc::strong_count(&owner), 1);
    assert_eq!(flat(&receive(&mut [&mut a, &mut b], 1)[0]), bytes);
}

/// A frame that has to be copied waits for a buffer, as other frames wait for space in a ring.
#[test]
fn external_memory_waits_for_a_buffer_to_be_copied_to() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let (_owner, sent) = with_external(&a);
    let held: Vec<Mbuf> = std::iter::from_fn(|| a.mempool().alloc()).collect();
    let mut burst: Burst = [sent].into_iter().collect();
    for refused in 1..=2 {
        assert_eq!((a.tx_burst(0, &mut burst), burst.len()), (0, 1));
        assert_eq!((a.counters().tx_ring_full, a.counters().tx_dropped), (refused, 0));
    }
    drop(held);
    assert_eq!(a.tx_burst(0, &mut burst), 1);
    assert_eq!(number(&receive(&mut [&mut a, &mut b], 1)[0]), 5);
}

/// A ring of 256 KiB has room for 29 frames of 9,000 bytes, and 64 more frames wait in the port. All other
/// frames stay with the caller.
#[test]
fn a_full_ring_leaves_frames_with_the_caller_and_loses_none() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let mut taken = 0;
    let refused = loop {
        let mut burst: Burst = [frame(&a, 2, taken, 9000)].into_iter().collect();
        if a.tx_burst(0, &mut burst) == 0 {
            break burst;
        }
        taken += 1;
    };
    assert_eq!((refused.len(), taken, a.counters().tx_ring_full), (1, 29 + 64, 1));
    assert_eq!(a.next_due_us(), Some(50), "frames wait for space");
    let mut arrived = Vec::new();
    for _ in 0..1000 {
        arrived.extend(poll_once(&mut b, 0).iter().map(number));
        poll_once(&mut a, 0);
    }
    assert_eq!(arrived, (0..taken).collect::<Vec<_>>());
    assert_eq!((a.next_due_us(), a.local_counters().lost), (None, 0));
    assert!(send(&mut a, refused.into_iter().next().unwrap()));
    assert_eq!(number(&receive(&mut [&mut a, &mut b], 1)[0]), taken);
}

/// If a station does not read, the frames for which the station's ring has no room are dropped after some
/// time. So the other stations receive their frames.
#[test]
fn a_station_that_takes_nothing_does_not_keep_the_frames_of_others_for_ever() {
    let scratch = Scratch::new();
    let (mut a, mut stopped) = paired(&scratch);
    let mut c = scratch.open(3);
    pair_up(&mut a, &mut c);
    let mut sent = 0;
    let mut burst = Burst::new();
    while burst.is_empty() {
        burst.push(frame(&a, 2, sent, 9000));
        sent += u32::from(a.tx_burst(1000, &mut burst) == 1);
    }
    let behind = frame(&a, 3, 1, 64);
    burst.push(behind);
    assert_eq!(a.tx_burst(100_000, &mut burst), 0, "it may still go on");
    assert_eq!(a.tx_burst(101_000, &mut burst), 2);
    assert_eq!((a.local_counters().lost, a.counters().tx_link_down), (64, 1));
    assert_eq!(number(&receive(&mut [&mut a, &mut c], 1)[0]), 1);
    // From now on frames for the station are dropped at once, until the station reads from its ring.
    let lost = frame(&a, 2, 1000, 9000);
    assert!(send_at(&mut a, 101_001, lost));
    assert_eq!(a.counters().tx_link_down, 2);
    assert_eq!(receive(&mut [&mut stopped], 29).len(), 29);
    poll_once(&mut a, 101_002);
    let again = frame(&a, 2, 1001, 9000);
    assert!(send_at(&mut a, 101_003, again));
    assert_eq!(number(&receive(&mut [&mut stopped], 1)[0]), 1001);
}

#[test]
fn frames_for_which_there_is_no_buffer_stay_in_the_ring() {
    let scratch = Scratch::new();
    let mut a = scratch.open(1);
    let small = LocalConfig { station: Some(2), mbufs: 64, bulk_mbufs: 8, ..scratch.config() };
    let mut b = open(&small).unwrap();
    for number in 0..100 {
        let sent = frame(&a, 2, number, 100);
        assert!(send(&mut a, sent), "{number}");
        poll_once(&mut a, 0);
        if number == 0 {
            receive(&mut [&mut a, &mut b], 1);
            poll_once(&mut a, 0);
        }
    }
    let held = receive(&mut [&mut a, &mut b], 64);
    assert!(poll_once(&mut b, 0).is_empty() && b.counters().rx_no_mbuf > 0);
    assert!(!b.arm_wakeup(), "frames wait");
    assert_eq!(held.iter().map(number).collect::<Vec<_>>(), (1..65).collect::<Vec<_>>());
    drop(held);
    let rest = receive(&mut [&mut a, &mut b], 35);
    assert_eq!(rest.iter().map(number).collect::<Vec<_>>(), (65..100).collect::<Vec<_>>());
}

#[test]
fn a_long_frame_comes_in_a_chain_if_there_is_no_large_buffer() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let mut held = Vec::new();
    for number in 0..18 {
        let sent = frame(&a, 2, number, 65_000);
        let bytes = flat(&sent);
        assert!(send(&mut a, sent));
        let received = receive(&mut [&mut a, &mut b], 1).remove(0);
        assert_eq!(received.segment_count(), if number < 16 { 1 } else { 65_000_usize.div_ceil(9024) });
        assert!(flat(&received) == bytes);
        held.push(received);
    }
}

#[test]
fn what_a_station_sent_before_its_end_is_received_before_the_end_is_told() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    for number in 0..90 {
        let last = frame(&b, 1, number, 500);
        assert!(send(&mut b, last));
    }
    drop(b);
    assert_eq!(departed(&mut a), (2, (0..90).collect()));
    assert_eq!(a.next_departed(), None);
    let lost = frame(&a, 2, 0, 64);
    assert!(send(&mut a, lost));
    assert_eq!(departed(&mut a).0, 2, "nobody is there any more");
    assert!(std::fs::read_dir(&scratch.0).unwrap().all(|file| file.unwrap().file_name() == "1.sock"));
}

/// Frames of the new process wait until the end of the old process is reported.
#[test]
fn a_new_process_at_a_station_is_not_taken_for_the_old_one() {
    let scratch = Scratch::new();
    let (mut a, b) = paired(&scratch);
    drop(b);
    let mut b = scratch.open(2);
    let new = frame(&b, 1, 77, 64);
    assert!(send(&mut b, new));
    for now_us in 0..10_000 {
        assert!(poll_once(&mut a, now_us).is_empty() && poll_once(&mut b, now_us).is_empty());
        assert_eq!(a.local_counters().pairs, 1);
    }
    let to_old = frame(&a, 2, 1, 64);
    assert!(send(&mut a, to_old), "dropped");
    assert_eq!(a.next_departed(), Some([2, 0, 0x64, 0x40, 0, 2]));
    assert_eq!(number(&receive(&mut [&mut b, &mut a], 1)[0]), 77);
    let back = frame(&a, 2, 78, 64);
    assert!(send(&mut a, back));
    assert_eq!(number(&receive(&mut [&mut a, &mut b], 1)[0]), 78);
    assert_eq!((a.local_counters().pairs, b.local_counters().pairs, a.next_departed()), (2, 1, None));
}

#[test]
fn a_sleeper_is_woken_by_a_frame_a_connection_and_an_end() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    assert!(a.arm_wakeup() && !is_readable(&a));
    let first = frame(&b, 1, 1, 64);
    assert!(send(&mut b, first) && is_readable(&a));
    a.disarm_wakeup();
    assert_eq!(receive(&mut [&mut a], 1).len(), 1);
    assert!(is_readable(&a), "the answer comes before the wake-up message is read");
    assert!(a.arm_wakeup() && !is_readable(&a), "the message was read before the next sleep");
    a.disarm_wakeup();
    // Without a frame, the first poll after a sleep reads the sockets, and takes notice of a new peer.
    let mut d = scratch.open(4);
    let hello = frame(&d, 1, 9, 64);
    assert!(send(&mut d, hello) && is_readable(&a));
    assert!(poll_once(&mut a, 0).is_empty() && !is_readable(&a));

    // A frame that arrived before the process ended is received first.
    let second = frame(&b, 1, 2, 64);
    assert!(send(&mut b, second) && !is_readable(&a));
    assert!(!a.arm_wakeup());
    a.disarm_wakeup();
    assert_eq!(receive(&mut [&mut a], 1).len(), 1);

    assert!(a.arm_wakeup());
    let mut c = scratch.open(3);
    let third = frame(&c, 1, 3, 64);
    assert!(send(&mut c, third) && is_readable(&a));
    a.disarm_wakeup();
    assert_eq!(number(&receive(&mut [&mut c, &mut a], 1)[0]), 3);

    while !a.arm_wakeup() {
        a.disarm_wakeup();
    }
    assert!(!is_readable(&a));
    drop(b);
    assert!(is_readable(&a));
    a.disarm_wakeup();
    assert_eq!(departed(&mut a).0, 2);
}

/// A polled port reads its sockets at least every 100 us. If the caller's clock does not advance, the port
/// reads its sockets every few hundred polls.
#[test]
fn a_polling_port_notices_an_end_without_being_woken() {
    let scratch = Scratch::new();
    for clock_runs in [false, true] {
        let (mut a, b) = paired(&scratch);
        drop(b);
        let polls = (0..2000).position(|poll| {
            poll_once(&mut a, if clock_runs { poll } else { 0 });
            a.next_departed().is_some()
        });
        assert!(polls.is_some_and(|polls| polls < if clock_runs { 102 } else { 300 }), "{polls:?}");
    }
}

#[test]
fn a_burst_of_small_frames_is_received_whole() {
    let scratch = Scratch::new();
    let (mut a, mut b) = paired(&scratch);
    let mut burst: Burst = (0..BURST as u32).map(|number| frame(&a, 2, number, 60)).collect();
    assert_eq!(a.tx_burst(0, &mut burst), BURST);
    let mut arrived = Burst::new();
    assert_eq!(b.rx_burst(0, &mut arrived), BURST);
    assert_eq!(arrived.iter().map(number).collect::<Vec<_>>(), (0..BURST as u32).collect::<Vec<_>>());
}

#[test]
fn wrong_configurations_are_refused_in_words() {
    let scratch = Scratch::new();
    type Change = fn(&mut LocalConfig);
    let changes: [(Change, &str); 7] = [
        (|config| config.mtu = 575, "an MTU of 575 is too small: choose at least 576"),
        (|config| config.mtu = 65_001, "an MTU of 65001 is too large: choose at most 65000"),
        (|config| config.mbufs = 63, "63 buffers and 16 large ones are too few"),
        (|config| config.bulk_mbufs = 7, "512 buffers and 7 large ones are too few"),
        (|config| config.ring_bytes = 300_000, "rings of 300000 bytes cannot be made: choose a power of two"),
        (|config| config.ring_bytes = 1 << 40, "cannot be made"),
        (|config| config.station = Some(0), "station 0 does not exist: choose one from 1 to 65535"),
    ];
    for (change, words) in changes {
        let mut config = scratch.config();
        change(&mut config);
        let error = open(&config).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    }
    let least = LocalConfig { mtu: 576, mbufs: 64, bulk_mbufs: 8, ..scratch.config() };
    assert_eq!(open(&least).unwrap().info().mtu, 576);
}
