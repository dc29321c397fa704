//! Tests that the stack merges only consecutive segments of one burst.

use dp::link::LinkConfig;
use dp::{Burst, Mbuf, checksum};
use tcp_lite::{Event, TcpConfig};

use crate::harness::{MAC_A, MAC_B, World, byte, config};

/// Payload of a full segment in bytes.
const FULL: u64 = 1448;

/// Offset of the IP header in a frame; `TCP` is the offset of the TCP header over IPv4.
const IP: usize = 14;
const TCP: usize = IP + 20;

/// Returns two hosts with one or more connections, on which nothing is in flight.
fn connected(remote: &str, connections: usize) -> World {
    connect(World::standard(&LinkConfig::default()), remote, connections)
}

fn connect(mut world: World, remote: &str, connections: usize) -> World {
    world.b.stack.listen(4000).unwrap();
    world.b.keep_all_open();
    for _ in 0..connections {
        let stream = world.a.connect(world.now(), remote.parse().unwrap(), 0);
        world.a.keep_open(stream);
    }
    world.run(10_000_000, |world| {
        let up =
            |host: &crate::harness::Host| host.streams.iter().filter(|stream| stream.established).count();
        up(&world.a) == connections && up(&world.b) == connections
    });
    world.run(100_000, |_| false);
    world
}

/// Returns the frames in which `a` sends `bytes` bytes on its stream number `stream`.
fn frames(world: &mut World, stream: usize, bytes: u64) -> Vec<Mbuf> {
    let now = world.now();
    let conn = world.a.streams[stream].conn;
    let from = world.a.streams[stream].sent;
    world.a.streams[stream].sent += bytes;
    let bytes: Vec<u8> = (from..from + bytes).map(byte).collect();
    assert_eq!(world.a.stack.send(now, conn, &bytes), Ok(bytes.len()));
    let (mut frames, mut out) = (Vec::new(), Burst::new());
    while world.a.stack.transmit(now, &mut out) || !out.is_empty() {
        frames.extend(out.drain(..));
    }
    frames
}

/// Passes `frames` to `b`, and returns the number of bytes of each delivery. Does not check the bytes.
fn take_unchecked(world: &mut World, frames: Vec<Mbuf>) -> Vec<u64> {
    let now = world.now();
    let mut frames = frames.into_iter().peekable();
    while frames.peek().is_some() {
        world.b.stack.input_next(now, &mut frames);
    }
    std::iter::from_fn(|| world.b.stack.event())
        .map(|event| match event {
            Event::Received { received, .. } => received.buf.len() as u64,
            _ => panic!("another event"),
        })
        .collect()
}

/// Passes `frames` to `b`, checks the delivered bytes, and returns the number of bytes of each delivery.
fn take(world: &mut World, frames: Vec<Mbuf>) -> Vec<u64> {
    let now = world.now();
    let mut frames = frames.into_iter().peekable();
    while frames.peek().is_some() {
        world.b.stack.input_next(now, &mut frames);
    }
    let mut stretches = Vec::new();
    while let Some(event) = world.b.stack.event() {
        let Event::Received { received, .. } = event else { panic!("another event") };
        let bytes = received.buf.segments().flatten().zip(received.offset..);
        assert!(bytes.clone().all(|(&got, at)| got == byte(at)));
        stretches.push(bytes.count() as u64);
    }
    stretches
}

/// Returns the acknowledgements that `b` sends.
fn acknowledgements(world: &mut World) -> Vec<Mbuf> {
    let mut out = Burst::new();
    assert!(!world.b.stack.transmit(world.now(), &mut out));
    out.drain(..).collect()
}

#[test]
fn what_goes_on_is_handed_up_as_one_and_acknowledged_once() {
    for remote in ["10.0.0.2:4000", "[2001:db8::2]:4000"] {
        let mut world = connected(remote, 1);
        let full = if remote.starts_with('[') { FULL - 20 } else { FULL };
        let before = world.b.stack.counters();
        let burst = frames(&mut world, 0, 10 * full);
        assert_eq!(burst.len(), 10);
        assert_eq!(take(&mut world, burst), [10 * full], "{remote}");
        let after = world.b.stack.counters();
        assert_eq!((after.rx_frames - before.rx_frames, after.rx_segments - before.rx_segments), (10, 10));
        let acks = acknowledgements(&mut world);
        assert_eq!(acks.len(), 1);
        let now = world.now();
        acks.into_iter().for_each(|ack| world.a.stack.input(now, ack));
        assert_eq!(world.a.stack.usage().tx_segments, 0, "all of them");
    }
}

#[test]
fn there_is_a_bound_to_it() {
    let mut world = connected("10.0.0.2:4000", 1);
    // This transfer opens the congestion window.
    world.a.send_more(0, 60 * FULL);
    assert!(world.run(1_000_000, |world| world.b.received(0) == 60 * FULL));
    world.run(100_000, |_| false);
    let burst = frames(&mut world, 0, 40 * FULL);
    assert_eq!(take(&mut world, burst), [16 * FULL, 16 * FULL, 8 * FULL]);
}

/// Returns a copy of the IPv4 frame `frame` with the first `payload` bytes of its payload. The sequence
/// number of the copy is increased by `advance`, and its checksums are correct.
fn cut(world: &World, frame: &Mbuf, payload: usize, advance: u32) -> Mbuf {
    let mut copy = frame.deep_copy(world.b.port.mempool()).unwrap();
    let headers = TCP + 32;
    copy.truncate(headers + payload);
    let bytes = copy.head_mut().unwrap();
    bytes[IP + 2..IP + 4].copy_from_slice(&((headers - IP + payload) as u16).to_be_bytes());
    let seq = u32::from_be_bytes(bytes[TCP + 4..TCP + 8].try_into().unwrap()).wrapping_add(advance);
    bytes[TCP + 4..TCP + 8].copy_from_slice(&seq.to_be_bytes());
    assert!(checksum::complete_ipv4_header(bytes) && checksum::complete(bytes));
    copy
}

/// If duplicate acknowledgements were merged with the payload before them, they would not count as
/// duplicates, and nothing would be retransmitted.
#[test]
fn acknowledgements_behind_a_segment_are_each_counted() {
    for empty in [0, 2, 3] {
        let hosts = [(MAC_A, 1), (MAC_B, 2)].map(|(mac, n)| {
            let mut host = config(mac, n);
            // Without SACK, the third duplicate acknowledgement indicates a loss.
            host.tcp = TcpConfig { sack: false, ..host.tcp };
            host
        });
        let [a, b] = hosts;
        let mut world = connect(World::new(&LinkConfig::default(), a, b), "10.0.0.2:4000", 1);
        let (now, conn) = (world.now(), world.b.streams[0].conn);
        assert_eq!(world.b.stack.send(now, conn, &[byte(0)]), Ok(1));
        let mut lost = Burst::new();
        while world.b.stack.transmit(now, &mut lost) {}
        assert_eq!(lost.len(), 1, "what is in flight to `a`");
        let data = frames(&mut world, 0, FULL).remove(0);
        let acks = (0..empty).map(|_| cut(&world, &data, 0, FULL as u32)).collect::<Vec<_>>();
        let one = cut(&world, &data, 1, FULL as u32);
        let burst = [data].into_iter().chain(acks).chain([one]).collect();
        let stretches: Vec<u64> = if empty == 0 { vec![FULL + 1] } else { vec![FULL, 1] };
        let taken = take_unchecked(&mut world, burst);
        assert_eq!(taken, stretches, "{empty} acknowledgements");
        let counters = world.b.stack.counters();
        assert_eq!(counters.fast_retransmits, u64::from(empty == 3), "{empty} acknowledgements");
    }
}

/// If the length in the IP header is longer than the frame, or shorter than the headers, the segment is not
/// merged.
#[test]
fn a_segment_of_a_length_that_it_cannot_have_is_not_joined() {
    for (length, joined) in [(52 + FULL, 3), (52 + FULL + 1, 1), (52 + FULL - 1, 2), (51, 1), (20, 1), (0, 1)]
    {
        let mut world = connected("10.0.0.2:4000", 1);
        let mut burst = frames(&mut world, 0, 3 * FULL);
        burst[1] = burst[1].deep_copy(world.b.port.mempool()).unwrap();
        let bytes = burst[1].head_mut().unwrap();
        bytes[IP + 2..IP + 4].copy_from_slice(&(length as u16).to_be_bytes());
        let _ = checksum::complete_ipv4_header(bytes) && checksum::complete(bytes);
        let stretches = take_unchecked(&mut world, burst);
        let first = match joined {
            3 => 3 * FULL,
            2 => 2 * FULL - 1,
            _ => FULL,
        };
        assert_eq!(stretches[0], first, "a length of {length}: {stretches:?}");
        assert_eq!(
            stretches.iter().sum::<u64>(),
            if joined == 2 { 3 * FULL - 1 } else { first.max(2 * FULL) }
        );
    }
}

/// Merged segments are acknowledged as if they had arrived separately: every second segment causes an
/// acknowledgement, however small it is.
#[test]
fn the_second_small_segment_is_acknowledged_at_once() {
    let mut world = connected("10.0.0.2:4000", 1);
    let mut one = frames(&mut world, 0, 7);
    assert_eq!(take(&mut world, one), [7]);
    assert!(acknowledgements(&mut world).is_empty());
    one = frames(&mut world, 0, 7);
    assert_eq!(take(&mut world, one), [7]);
    assert_eq!(acknowledgements(&mut world).len(), 1);
    let mut two = frames(&mut world, 0, 7);
    two.extend(frames(&mut world, 0, 9));
    assert_eq!(take(&mut world, two), [16]);
    assert_eq!(acknowledgements(&mut world).len(), 1);
}

/// Changes one of ten segments with `change`, and corrects its checksums. Returns the number of segments of
/// each delivery.
fn changed(change: impl Fn(&mut [u8])) -> Vec<u64> {
    let mut world = connected("10.0.0.2:4000", 1);
    let mut burst = frames(&mut world, 0, 10 * FULL);
    // The sender still uses the same buffer, so the test changes a copy.
    burst[4] = burst[4].deep_copy(world.b.port.mempool()).unwrap();
    let bytes = burst[4].head_mut().unwrap();
    change(bytes);
    assert!(checksum::complete_ipv4_header(bytes) && checksum::complete(bytes));
    take(&mut world, burst).into_iter().map(|bytes| bytes / FULL).collect()
}

#[test]
fn headers_that_say_something_else_end_the_run() {
    let alone = [4, 1, 5];
    assert_eq!(changed(|frame| frame[6] ^= 4), alone, "from another Ethernet address");
    assert_eq!(changed(|frame| frame[IP + 1] |= 3), alone, "a mark");
    assert_eq!(changed(|frame| frame[IP + 8] -= 1), alone, "another hop limit");
    assert_eq!(changed(|frame| frame[TCP + 15] ^= 1), alone, "another window");
    assert_eq!(changed(|frame| frame[TCP + 13] |= 0x40), alone, "ECE");
    assert_eq!(changed(|frame| frame[TCP + 13] |= 0x20), alone, "URG");
    assert_eq!(changed(|frame| frame[TCP + 13] |= 0x80), alone, "CWR");
    assert_eq!(changed(|frame| frame[TCP + 27] += 1), alone, "another timestamp");
}

#[test]
fn identification_and_psh_do_not() {
    assert_eq!(changed(|frame| frame[IP + 5] += 1), [10]);
    assert_eq!(changed(|frame| frame[TCP + 13] |= 8), [10]);
}

/// The segments behind the missing or damaged segment are beyond a hole, and are not merged.
#[test]
fn a_segment_that_is_missing_or_damaged_ends_the_run() {
    let (mut stretches, mut bad) = (vec![4 * FULL], 0);
    stretches.extend([FULL; 5]);
    for damage in [None, Some(IP + 10), Some(TCP + 16), Some(TCP + 100)] {
        let mut world = connected("10.0.0.2:4000", 1);
        let mut burst = frames(&mut world, 0, 10 * FULL);
        match damage {
            None => drop(burst.remove(4)),
            Some(at) => {
                // The sender still uses the same buffer, so the test changes a copy.
                burst[4] = burst[4].deep_copy(world.b.port.mempool()).unwrap();
                burst[4].head_mut().unwrap()[at] ^= 1;
                bad = 1;
            }
        }
        assert_eq!(take(&mut world, burst), stretches, "{damage:?}");
        assert_eq!(world.b.stack.counters().rx_bad_checksum, bad);
    }
}

/// A frame of many buffers, as from a port with LRO or from a port that receives into chains, is not merged.
#[test]
fn a_frame_of_many_buffers_stays_alone() {
    let mut world = connected("10.0.0.2:4000", 1);
    let mut burst = frames(&mut world, 0, 3 * FULL);
    let bytes = burst[0].head().to_vec();
    let mut chain = world.a.port.mempool().alloc().unwrap();
    assert!(chain.append_slice(&bytes[..200]));
    for part in bytes[200..].chunks(30) {
        let mut buffer = world.a.port.mempool().alloc().unwrap();
        assert!(buffer.append_slice(part));
        chain.chain(buffer).unwrap();
    }
    burst[0] = chain;
    assert_eq!(take(&mut world, burst), [FULL, 2 * FULL]);
}

#[test]
fn what_came_before_is_not_joined_again() {
    let mut world = connected("10.0.0.2:4000", 1);
    let burst = frames(&mut world, 0, 6 * FULL);
    let again: Vec<Mbuf> =
        burst.iter().map(|frame| frame.deep_copy(world.a.port.mempool()).unwrap()).collect();
    assert_eq!(take(&mut world, burst), [6 * FULL]);
    assert!(take(&mut world, again).is_empty());
    assert_eq!(world.b.stack.counters().rx_duplicate_bytes, 6 * FULL);
}

#[test]
fn connections_are_told_apart() {
    let mut world = connected("10.0.0.2:4000", 2);
    let [one, two] = [0, 1].map(|stream| frames(&mut world, stream, 4 * FULL));
    let mixed = one.into_iter().zip(two).flat_map(|(one, two)| [one, two]).collect();
    assert_eq!(take(&mut world, mixed), [FULL; 8]);
}

/// Ethernet pads short frames, and the padding must not be delivered.
#[test]
fn bytes_behind_a_packet_are_no_payload() {
    let mut world = connected("10.0.0.2:4000", 1);
    let mut burst = Vec::new();
    for _ in 0..5 {
        let mut frame = frames(&mut world, 0, 1).remove(0);
        assert!(frame.append_slice(&[0xee; 9]));
        burst.push(frame);
    }
    assert_eq!(take(&mut world, burst), [5]);
}
