//! Tests of frames that contain several segments: a port divides such a frame into segments (TSO), or a wire
//! passes the whole frame. A frame is divided only between segments, and begins where a segment begins, even
//! if segments are retransmitted. Segments with external memory are tested in the same way.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use dp::link::{LinkConfig, LinkPlan, LinkTso, pair};
use dp::{Burst, ExtBuf, Mss, Port, TsoLimits};
use tcp_lite::{ConnId, Event, Instant, SegmentBuf, SendError, Stack};

use crate::harness::{MAC_A, MAC_B, World, byte, config};
use crate::in_order::InOrder;

/// Returns the length of record number `nr`, which is one segment. Most records are long, and some are short.
fn record(nr: u64) -> u64 {
    match nr % 97 {
        41 => 12,
        42..=44 => 700,
        96 => 1448,
        _ => 1444,
    }
}

struct End {
    stack: Stack,
    port: Box<dyn Port>,
    conn: Option<ConnId>,
}

impl End {
    fn new(mut config: tcp_lite::StackConfig, port: Box<dyn Port>) -> Self {
        config.offloads = port.info().offloads;
        let mut stack = Stack::new(config, port.mempool().clone());
        stack.set_tso_limits(port.info().tso);
        Self { stack, port, conn: None }
    }

    fn receive(
        &mut self,
        now_us: u64,
        mut on_received: impl FnMut(&mut Stack, ConnId, tcp_lite::Received),
    ) -> bool {
        let now = Instant::from_micros(now_us as i64);
        let mut frames = Burst::new();
        let mut moved = false;
        while self.port.rx_burst(now_us, &mut frames) > 0 {
            moved = true;
            frames.drain(..).for_each(|frame| self.stack.input(now, frame));
        }
        self.stack.poll(now);
        while let Some(event) = self.stack.event() {
            moved = true;
            match event {
                Event::Established { conn, .. } => self.conn = Some(conn),
                Event::Received { conn, received } => on_received(&mut self.stack, conn, received),
                Event::Writable { .. } | Event::Acknowledged { .. } => {}
                Event::Evict { .. }
                | Event::PeerClosed { .. }
                | Event::Closed { .. }
                | Event::AddressConflict { .. }
                | Event::Datagram => {
                    panic!("nothing of the kind is to happen")
                }
            }
        }
        moved
    }

    fn send(&mut self, now_us: u64) -> bool {
        let mut out = Burst::new();
        let mut moved = false;
        while self.stack.transmit(Instant::from_micros(now_us as i64), &mut out) || !out.is_empty() {
            moved |= self.port.tx_burst(now_us, &mut out) > 0;
        }
        moved
    }
}

/// The results of a run: for example, offset and length of each delivery, and the counters of sender and
/// receiver.
struct Arrived {
    stretches: Vec<(u64, u64)>,
    frames: u64,
    /// Frames that the sender's port refused.
    refused: u64,
    sender: tcp_lite::StackCounters,
    receiver: tcp_lite::StackCounters,
    /// Number of segments with external memory.
    external: usize,
}

/// Writes the record that begins at stream offset `at`.
fn write(segment: &mut SegmentBuf<'_, '_>, at: u64, bytes: u64) {
    let room = segment.append(bytes as usize).unwrap();
    room.iter_mut().zip(at..).for_each(|(out, at)| *out = byte(at));
}

/// External memory in flight: where its segment ends in the stream, and whether the memory is still
/// referenced.
struct Kept {
    end: u64,
    memory: Weak<Vec<u8>>,
}

/// Writes the same bytes as [`write`], but takes all bytes except the first and last few from external
/// memory. Returns `None` if the segment accepts no external memory.
fn attach(segment: &mut SegmentBuf<'_, '_>, at: u64, bytes: u64) -> Option<Kept> {
    assert_eq!(segment.offset(), at);
    let (before, behind) = (at % 5, at % 8);
    let middle = at + before..at + bytes - behind;
    let memory: Arc<Vec<u8>> = Arc::new(middle.clone().map(byte).collect());
    let kept = Kept { end: at + bytes, memory: Arc::downgrade(&memory) };
    write(segment, at, before);
    let taken = segment.attach(ExtBuf::new(memory)).is_ok();
    assert!(!taken || segment.attach(ExtBuf::new(Arc::new(vec![0]))).is_err(), "one for each segment");
    let from = if taken { middle.end } else { middle.start };
    write(segment, from, at + bytes - from);
    assert_eq!(segment.len() as u64, bytes);
    taken.then_some(kept)
}

/// Sends `records` records over `link`, and checks every byte.
fn run(link: &LinkConfig, records: u64) -> Arrived {
    run_with(link, records, |_| false)
}

/// Like [`run`], but takes bytes from external memory for the records for which `external` returns `true`.
fn run_with(link: &LinkConfig, records: u64, external: impl Fn(u64) -> bool) -> Arrived {
    let (mut kept, mut attached): (Vec<Kept>, usize) = (Vec::new(), 0);
    let (port_a, port_b) = pair(link);
    let (mut a, mut b) = (End::new(config(MAC_A, 1), port_a), End::new(config(MAC_B, 2), port_b));
    b.stack.listen(4000).unwrap();
    let total: u64 = (0..records).map(record).sum();
    let (mut now_us, mut nr, mut pushed) = (1_000_000, 0, 0);
    let (mut stretches, mut in_order) = (Vec::new(), InOrder::new(0, 1 << 16));
    let now = |now_us: u64| Instant::from_micros(now_us as i64);
    a.stack.connect(now(now_us), "10.0.0.2:4000".parse().unwrap(), None).unwrap();
    while in_order.next_offset() < total {
        assert!(
            now_us < 200_000_000,
            "{nr} of {records} pushed, {} of {total} arrived",
            in_order.next_offset()
        );
        let mut moved = a.receive(now_us, |_, _, _| panic!("nobody sends to a"));
        if let Some(conn) = a.conn {
            let mut sender = a.stack.sender(now(now_us), conn).unwrap();
            while nr < records {
                let mut segment = match sender.segment(0) {
                    Ok(segment) => segment,
                    Err(SendError::BufferFull | SendError::NoMbuf) => break,
                    Err(error) => panic!("{error}"),
                };
                if external(nr) {
                    kept.extend(attach(&mut segment, pushed, record(nr)));
                } else {
                    write(&mut segment, pushed, record(nr));
                }
                pushed += record(nr);
                nr += 1;
                segment.push();
                moved = true;
            }
        }
        moved |= a.send(now_us);
        if let Some(conn) = a.conn {
            let acknowledged = a.stack.acknowledged(conn).unwrap();
            assert!(kept.iter().all(|kept| kept.end <= acknowledged || kept.memory.strong_count() > 0));
            let all = kept.len();
            kept.retain(|kept| kept.end > acknowledged || kept.memory.strong_count() > 0);
            attached += all - kept.len();
        }
        moved |= b.receive(now_us, |stack, conn, received| {
            let bytes: Vec<u8> = received.buf.segments().flatten().copied().collect();
            assert!(bytes.iter().zip(received.offset..).all(|(got, at)| *got == byte(at)));
            stretches.push((received.offset, bytes.len() as u64));
            assert!(in_order.push(received).is_ok());
            let mut release = 0;
            while let Some(ordered) = in_order.pop() {
                release += ordered.release;
            }
            stack.release(conn, release);
        });
        moved |= b.send(now_us);
        if !moved {
            let deadlines = [&mut a, &mut b].map(|end| {
                let timer = end.stack.next_deadline(now(now_us)).map(|at| at.total_micros() as u64);
                [timer, end.port.next_due_us()].into_iter().flatten().min()
            });
            now_us = deadlines.into_iter().flatten().min().unwrap_or(u64::MAX).max(now_us);
        }
        now_us += 1;
    }
    a.stack.abort(now(now_us), a.conn.unwrap());
    assert!(kept.iter().all(|kept| kept.memory.strong_count() == 0), "memory outlives its connection");
    let external = attached + kept.len();
    let frames = b.port.counters().rx_frames;
    let refused = a.port.counters().tx_dropped;
    let (sender, receiver) = (a.stack.counters(), b.stack.counters());
    Arrived { stretches, frames, refused, sender, receiver, external }
}

fn link(tso: LinkTso, a_to_b: LinkPlan) -> LinkConfig {
    LinkConfig { checksum_offload: true, tso, a_to_b, seed: 3, ..LinkConfig::default() }
}

fn borders(records: u64) -> BTreeSet<(u64, u64)> {
    let mut at = 0;
    (0..records)
        .map(|nr| {
            at += record(nr);
            (at - record(nr), record(nr))
        })
        .collect()
}

#[test]
fn a_port_that_cuts_cuts_between_segments() {
    let arrived = run(&link(LinkTso::Cut, LinkPlan::default()), 3000);
    let expected = borders(3000);
    assert_eq!(arrived.stretches, expected.into_iter().collect::<Vec<_>>());
    assert!(arrived.sender.tx_trains > 60, "{:?}", arrived.sender);
    assert!(arrived.sender.tx_segments >= 3000, "a train counts by its segments");
    assert_eq!((arrived.sender.tx_retransmits, arrived.receiver.rx_bad_checksum), (0, 0));
}

#[test]
fn what_is_lost_of_a_train_comes_again_as_it_was() {
    let plan = LinkPlan {
        drop_ppm: 10_000,
        reorder_ppm: 10_000,
        reorder_us: 50,
        delay_us: 20,
        ..LinkPlan::default()
    };
    let arrived = run(&link(LinkTso::Cut, plan), 10_000);
    let expected = borders(10_000);
    let odd: Vec<_> = arrived.stretches.iter().filter(|stretch| !expected.contains(stretch)).collect();
    assert!(odd.is_empty(), "no boundary of ours: {odd:?}");
    assert!(arrived.sender.tx_trains > 60 && arrived.sender.tx_retransmits > 50, "{:?}", arrived.sender);
    assert_eq!(arrived.receiver.rx_bad_checksum, 0);
}

/// Each segment has a separate buffer, as on a port without large buffers. A train has at most as many
/// buffers as the port accepts.
#[test]
fn a_train_has_no_more_buffers_than_the_port_takes() {
    for buffers in [2, 3, 8, 24] {
        let limits = TsoLimits { buffers, ..TsoLimits::default() };
        let link = LinkConfig { tso_limits: limits, ..link(LinkTso::Whole, LinkPlan::default()) };
        let arrived = run(&link, 3000);
        assert_eq!((arrived.refused, arrived.sender.tx_retransmits), (0, 0), "{buffers} buffers");
        let longest = arrived.stretches.iter().map(|(_, bytes)| *bytes).max().unwrap();
        let segments = buffers as u64 - 1;
        assert!((1444 * segments..=1448 * segments).contains(&longest), "{buffers} buffers: {longest}");
    }
}

/// Segments that the port cannot send by TSO are sent in separate frames.
#[test]
fn what_is_too_short_or_too_long_to_be_cut_leaves_by_itself() {
    for (mss, trains) in [
        (Mss { least: 256, most: 9000 }, true),
        (Mss { least: 1449, most: 9000 }, false),
        (Mss { least: 13, most: 1000 }, true),
    ] {
        let limits = TsoLimits { mss, ..TsoLimits::default() };
        let link = LinkConfig { tso_limits: limits, ..link(LinkTso::Cut, LinkPlan::default()) };
        let arrived = run(&link, 3000);
        assert_eq!((arrived.refused, arrived.sender.tx_retransmits), (0, 0), "{mss:?}");
        assert_eq!(arrived.stretches, borders(3000).into_iter().collect::<Vec<_>>(), "{mss:?}");
        assert_eq!(arrived.sender.tx_trains > 0, trains, "{mss:?}");
    }
}

#[test]
fn a_wire_that_passes_trains_whole_saves_frames() {
    let arrived = run(&link(LinkTso::Whole, LinkPlan::default()), 3000);
    let expected: BTreeSet<u64> = borders(3000).into_iter().map(|(at, _)| at).collect();
    assert!(
        arrived.stretches.iter().all(|(at, _)| expected.contains(at)),
        "each begins where a segment does"
    );
    assert!(arrived.stretches.iter().any(|(_, bytes)| *bytes > 60_000), "as long as an IP packet may be");
    assert!(arrived.frames < 3000 / 10, "{} frames", arrived.frames);
    assert_eq!(arrived.sender.tx_retransmits, 0);
}

#[test]
fn a_lost_train_is_sent_again_by_segments() {
    let plan = LinkPlan { drop_ppm: 20_000, delay_us: 20, ..LinkPlan::default() };
    let arrived = run(&link(LinkTso::Whole, plan), 10_000);
    assert!(arrived.sender.tx_retransmits > 40, "{:?}", arrived.sender);
    assert_eq!(arrived.receiver.rx_bad_checksum, 0);
}

#[test]
fn external_memory_arrives_over_every_wire_and_is_kept_until_then() {
    for tso in [LinkTso::Off, LinkTso::Cut, LinkTso::Whole] {
        for drop_ppm in [0, 10_000] {
            let plan = LinkPlan { drop_ppm, reorder_ppm: drop_ppm, reorder_us: 40, ..LinkPlan::default() };
            for external in [|_| true, |nr| nr % 3 > 0, |nr| nr % 40 > 20] {
                let arrived = run_with(&link(tso, plan.clone()), 3000, external);
                let expected = (0..3000).filter(|nr| external(*nr)).count();
                assert_eq!(arrived.external, expected);
                assert_eq!(arrived.sender.tx_trains > 30, tso != LinkTso::Off, "{:?}", arrived.sender);
                assert_eq!(arrived.sender.tx_retransmits > 10, drop_ppm > 0, "{:?}", arrived.sender);
                assert_eq!((arrived.receiver.rx_bad_checksum, arrived.refused), (0, 0));
                if drop_ppm == 0 && tso != LinkTso::Whole {
                    assert_eq!(arrived.stretches, borders(3000).into_iter().collect::<Vec<_>>());
                }
            }
        }
    }
}

#[test]
fn external_memory_is_not_taken_where_it_would_be_read_here() {
    let sums = LinkConfig { checksum_offload: false, ..link(LinkTso::Off, LinkPlan::default()) };
    assert_eq!(run_with(&sums, 200, |_| true).external, 0);
    let limits = TsoLimits { buffers: 3, ..TsoLimits::default() };
    let few_buffers = LinkConfig { tso_limits: limits, ..link(LinkTso::Cut, LinkPlan::default()) };
    assert_eq!(run_with(&few_buffers, 200, |_| true).external, 0);
}

/// A TSO frame has at most as many buffers as the port accepts, even with external memory.
#[test]
fn trains_of_external_memory_fit_the_buffers_of_the_port() {
    for buffers in 4..14 {
        let limits = TsoLimits { buffers, ..TsoLimits::default() };
        let link = LinkConfig { tso_limits: limits, ..link(LinkTso::Cut, LinkPlan::default()) };
        let arrived = run_with(&link, 1000, |nr| nr % 3 > 0);
        assert_eq!((arrived.refused, arrived.external), (0, 666), "{buffers} buffers");
    }
}

/// Sends streams of both address families, in both directions, over links that cut trains and over links that
/// pass trains uncut, and checks their bytes.
#[test]
fn exchanges_are_what_they_were() {
    for tso in [LinkTso::Cut, LinkTso::Whole] {
        for mtu in [1280, 1500, 9000] {
            for remote in ["10.0.0.2:4000", "[2001:db8::2]:4000"] {
                for drop_ppm in [0, 5000] {
                    let plan = LinkPlan { drop_ppm, delay_us: 10, ..LinkPlan::default() };
                    let link = LinkConfig { mtu, b_to_a: plan.clone(), ..link(tso, plan) };
                    let mut world = World::standard(&link);
                    world.exchange(remote, 1_000_000, 700_001, 60_000_000);
                    assert!(world.a.stack.counters().tx_trains > 0);
                }
            }
        }
    }
}

/// Segments are sent at the same time in separate frames. Some segments get a buffer at once; the other
/// segments are sent when buffers are free again.
#[test]
fn a_train_that_finds_too_few_buffers_goes_on_where_it_stopped() {
    // In the first case, the general path builds all frames from one template. In the second case, the fast
    // path builds the frames one by one. The segments of the second case are short enough to be copied, so
    // each frame takes a buffer.
    for (header_prediction, segment) in [(false, 1448), (true, 500)] {
        let [mut a, b] = [config(MAC_A, 1), config(MAC_B, 2)];
        a.tcp.header_prediction = header_prediction;
        let mut world = World::new(&LinkConfig { mbufs: 64, ..LinkConfig::default() }, a, b);
        world.b.stack.listen(4000).unwrap();
        let now = world.now();
        world.a.connect(now, "10.0.0.2:4000".parse().unwrap(), 0);
        world.a.keep_open(0);
        assert!(world.run(1_000_000, |world| world.a.streams[0].established && world.b.streams.len() == 1));
        let bytes: Vec<u8> = (0..6 * segment).map(byte).collect();
        let now = world.now();
        for bytes in bytes.chunks(segment as usize) {
            assert_eq!(world.a.stack.send(now, world.a.streams[0].conn, bytes), Ok(bytes.len()));
        }
        let pool = world.a.port.mempool().clone();
        let mut taken: Vec<_> = std::iter::from_fn(|| pool.alloc()).collect();
        taken.truncate(taken.len() - 4);
        let mut out = Burst::new();
        assert!(!world.a.stack.transmit(now, &mut out));
        assert_eq!((out.len(), world.a.stack.counters().tx_no_mbuf), (4, 1));
        taken.clear();
        assert!(!world.a.stack.transmit(now, &mut out));
        let sent: Vec<_> = out.iter().map(|frame| (frame.len(), frame.head()[47] & 8)).collect();
        let full = segment as usize + 66;
        assert_eq!(
            sent,
            [(full, 0), (full, 0), (full, 0), (full, 0), (full, 0), (full, 8)],
            "PSH on the last"
        );
        out.drain(..).for_each(|frame| world.b.stack.input(now, frame));
        assert!(world.run(1_000_000, |world| world.b.received(0) == 6 * segment));
        assert_eq!(world.a.stack.counters().tx_retransmits, 0);
    }
}

/// Returns the number of trains that a connection with pacing sends over a link with this delay.
fn trains_with_pacing(delay_us: u32) -> u64 {
    let [mut a, b] = [config(MAC_A, 1), config(MAC_B, 2)];
    a.tcp.pacing = Some(tcp_lite::Pacing::default());
    let mut world = World::new(&link(LinkTso::Cut, LinkPlan { delay_us, ..LinkPlan::default() }), a, b);
    world.exchange("10.0.0.2:4000", 500_000, 0, 20_000_000);
    world.a.stack.counters().tx_trains
}

/// A paced connection sends each segment in its own frame.
#[test]
fn a_paced_connection_sends_no_trains() {
    assert_eq!(trains_with_pacing(1000), 0);
}

/// If a path is too short for pacing, segments are not spaced, so they need not be sent in separate frames.
#[test]
fn a_path_too_short_for_pacing_has_trains() {
    assert!(trains_with_pacing(10) > 0);
}
