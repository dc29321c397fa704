//! Tests of links with several queues at each end. Most of the tests check at which queue frames arrive, and
//! in which order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::*;
use crate::Flow;

const QUEUES: usize = 4;

/// Number of bytes of a frame up to the end of the TCP ports (Ethernet header, IPv4 header, ports). The
/// segment is from 10.0.0.1 to 10.0.0.2.
const HEADER_BYTES: usize = 38;

fn link(steering: LinkSteering) -> (Vec<End>, Vec<End>) {
    queues(&LinkConfig { ring_frames: 64, ..clean() }, QUEUES, steering)
}

/// Makes a segment of the flow with this source port. After the ports, the frame contains the segment's
/// number in the flow.
fn segment(port: &End, source: u16, number: u32) -> Mbuf {
    let mut frame = frame(port, 0);
    let bytes = frame.head_mut().unwrap();
    bytes[12..15].copy_from_slice(&[0x08, 0x00, 0x45]);
    bytes[23] = 6;
    bytes[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    bytes[34..36].copy_from_slice(&source.to_be_bytes());
    bytes[36..38].copy_from_slice(&7471_u16.to_be_bytes());
    bytes[HEADER_BYTES..][..4].copy_from_slice(&number.to_be_bytes());
    frame
}

/// Returns the source port of a frame, and the frame's number in its flow.
fn named(frame: &Mbuf) -> (u16, u32) {
    let number = frame.head()[HEADER_BYTES..][..4].try_into().unwrap();
    (Flow::of_frame(frame.head()).unwrap().src.1, u32::from_be_bytes(number))
}

/// Returns the queue that the receiving end announces for the flow with this source port.
fn announced(to: &End, source: u16) -> u16 {
    let flow = Flow { src: ("10.0.0.1".parse().unwrap(), source), dst: ("10.0.0.2".parse().unwrap(), 7471) };
    to.info().queue.rss.as_ref().unwrap().queue(&flow)
}

#[test]
fn queues_have_numbers_and_pools_of_their_own_and_one_address() {
    for (steering, rss) in [(LinkSteering::Rss, true), (LinkSteering::SenderQueue, false)] {
        let (a, b) = link(steering);
        for end in [&a, &b] {
            assert_eq!(end.len(), QUEUES);
            for (index, port) in end.iter().enumerate() {
                let info = port.info();
                assert_eq!((usize::from(info.queue.index), info.mac), (index, end[0].info().mac));
                assert_eq!((info.queue.rss.is_some(), info.offloads.contains(Offloads::RX_RSS)), (rss, rss));
            }
            let _one = end[0].mempool().alloc().unwrap();
            assert_eq!([0, 1].map(|queue| end[queue].mempool().available()), [511, 512]);
        }
        assert_ne!(a[0].info().mac, b[0].info().mac);
    }
    let (a, b) = queues(&clean(), 1, LinkSteering::Rss);
    assert_eq!([a, b].map(|end| end[0].info().queue.clone()), [Queue::default(), Queue::default()]);
}

#[test]
#[should_panic(expected = "1 to 64 queues")]
fn a_link_without_queues_is_refused() {
    queues(&clean(), 0, LinkSteering::Rss);
}

#[test]
fn a_flow_arrives_in_order_at_the_queue_that_is_announced() {
    let (mut a, mut b) = link(LinkSteering::Rss);
    let mut sent: HashMap<u16, u32> = HashMap::new();
    let mut arrived: HashMap<u16, u32> = HashMap::new();
    let mut at_queue = [0; QUEUES];
    for turn in 0..200_u16 {
        // Each sending queue has its own flows, and sends frames of several flows in one burst.
        for (index, port) in a.iter_mut().enumerate() {
            let mut burst: Burst = (0..16)
                .map(|at| {
                    let source = 1000 * index as u16 + (turn + at / 3) % 40;
                    let number = sent.entry(source).or_default();
                    *number += 1;
                    segment(port, source, *number)
                })
                .collect();
            assert_eq!(port.tx_burst(0, &mut burst), 16);
        }
        for (index, port) in b.iter_mut().enumerate() {
            for frame in receive_frames(port, 0) {
                let (source, number) = named(&frame);
                assert_eq!(usize::from(announced(port, source)), index);
                assert_eq!(number, *arrived.entry(source).or_default() + 1, "of {source}");
                arrived.insert(source, number);
                at_queue[index] += 1;
            }
        }
    }
    assert_eq!(sent, arrived);
    assert!(at_queue.iter().all(|frames| *frames > 1000), "{at_queue:?}");
}

#[test]
fn the_hash_is_also_right_between_two_frames_of_another_flow() {
    let (mut a, b) = link(LinkSteering::Rss);
    let other = (0..100).find(|source| announced(&b[0], *source) != announced(&b[0], 1000)).unwrap();
    let mut burst: Burst =
        [1000, other, 1000, 1000, other].into_iter().map(|source| segment(&a[2], source, 0)).collect();
    assert_eq!(a[2].tx_burst(0, &mut burst), 5);
    let mut b = b;
    let counts = [1000, other].map(|source| {
        let queue = usize::from(announced(&b[0], source));
        receive_frames(&mut b[queue], 0).len()
    });
    assert_eq!(counts, [3, 2]);
}

#[test]
fn frames_without_a_segment_arrive_at_the_first_queue() {
    let (mut a, mut b) = link(LinkSteering::Rss);
    for port in &mut a {
        assert_eq!(send(port, 0, [7]), 1);
    }
    assert_eq!(receive(&mut b[0], 0), [7; QUEUES]);
}

#[test]
fn without_a_hash_a_frame_arrives_at_the_queue_with_the_number_of_the_senders() {
    let (mut a, mut b) = link(LinkSteering::SenderQueue);
    for (index, port) in b.iter_mut().enumerate() {
        assert_eq!(send(port, 0, [index as u32, 100]), 2);
    }
    for (index, port) in a.iter_mut().enumerate() {
        assert_eq!(receive(port, 0), [index as u32, 100]);
    }
}

#[test]
fn a_full_queue_holds_up_its_own_senders_alone() {
    let (mut a, mut b) = link(LinkSteering::Rss);
    let fill = |port: &mut End, count| {
        let mut burst: Burst = (0..count).map(|n| segment(port, 1000, n)).collect();
        port.tx_burst(0, &mut burst)
    };
    assert_eq!((fill(&mut a[0], 50), fill(&mut a[0], 50)), (50, 14));
    assert_eq!(a[0].counters().tx_ring_full, 36);
    assert_eq!(fill(&mut a[1], 50), 50, "another sender has a wire of its own");
    let queue = usize::from(announced(&b[0], 1000));
    assert_eq!(receive_frames(&mut b[queue], 0).len(), 114);
    assert_eq!(fill(&mut a[0], 50), 50);
    // The wire to a removed queue accepts one ring of frames. Further frames are dropped.
    drop(b.remove(queue));
    assert_eq!((fill(&mut a[0], 50), a[0].counters().tx_dropped), (50, 36));
    assert_eq!(a[0].link_state(), LinkState::Up);
    let other = (0..100).find(|source| usize::from(announced(&b[0], *source)) != queue).unwrap();
    let mut burst: Burst = [segment(&a[0], other, 0)].into_iter().collect();
    assert_eq!(a[0].tx_burst(0, &mut burst), 1);
    drop(b);
    assert_eq!(a[0].link_state(), LinkState::Down);
}

#[test]
fn senders_with_full_rings_have_their_turns() {
    let (mut a, mut b) = queues(&LinkConfig { ring_frames: 1024, ..clean() }, QUEUES, LinkSteering::Rss);
    let queue = usize::from(announced(&b[0], 1000));
    for (index, port) in a.iter_mut().enumerate() {
        for _ in 0..4 {
            let mut burst: Burst = (0..BURST).map(|_| segment(port, 1000, index as u32)).collect();
            assert_eq!(port.tx_burst(0, &mut burst), BURST);
        }
    }
    let mut seen = Vec::new();
    for _ in 0..2 * QUEUES {
        let mut burst = Burst::new();
        assert_eq!(b[queue].rx_burst(0, &mut burst), BURST);
        seen.push(named(&burst[0]).1);
    }
    assert_eq!(seen, [0, 1, 2, 3, 0, 1, 2, 3]);
}

#[test]
fn frames_that_are_not_due_wait_on_every_wire() {
    let plan = LinkPlan { delay_us: 500, ..LinkPlan::default() };
    let (mut a, mut b) = queues(&with_plan(plan), QUEUES, LinkSteering::Rss);
    let queue = usize::from(announced(&b[0], 1000));
    assert_eq!(b[queue].next_due_us(), None);
    for (port, now_us) in [(3, 100), (1, 110)] {
        let mut burst: Burst = [segment(&a[port], 1000, port as u32)].into_iter().collect();
        a[port].tx_burst(now_us, &mut burst);
    }
    assert_eq!(b[queue].next_due_us(), Some(600));
    let numbers = |port: &mut End, now_us| {
        receive_frames(port, now_us).iter().map(|frame| named(frame).1).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&mut b[queue], 599), [0; 0]);
    assert_eq!(numbers(&mut b[queue], 600), [3]);
    assert_eq!(b[queue].next_due_us(), Some(610));
    assert_eq!(numbers(&mut b[queue], 610), [1]);
    assert_eq!(b[queue].next_due_us(), None);
}

#[test]
fn queues_on_threads_lose_nothing_and_keep_the_order_of_flows() {
    const EACH: u32 = 3000;
    const FLOWS: u16 = 8;
    // There are more buffers than all wires and bursts can hold.
    let config = LinkConfig { ring_frames: 64, mbufs: 1024, ..clean() };
    let (a, b) = queues(&config, QUEUES, LinkSteering::Rss);
    let arrived = AtomicU32::new(0);
    let all = EACH * QUEUES as u32;
    let deadline = Instant::now() + Duration::from_secs(60);
    std::thread::scope(|scope| {
        for (index, mut port) in a.into_iter().enumerate() {
            scope.spawn(move || {
                let mut burst = Burst::new();
                let mut next = 0;
                while (next < EACH || !burst.is_empty()) && Instant::now() < deadline {
                    while next < EACH && !burst.is_full() {
                        let source = FLOWS * index as u16 + next as u16 % FLOWS;
                        burst.push(segment(&port, source, next / u32::from(FLOWS)));
                        next += 1;
                    }
                    if port.tx_burst(0, &mut burst) == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
        for mut port in b {
            let arrived = &arrived;
            scope.spawn(move || {
                let mut next: HashMap<u16, u32> = HashMap::new();
                let mut burst = Burst::new();
                while arrived.load(Ordering::Relaxed) < all && Instant::now() < deadline {
                    port.rx_burst(0, &mut burst);
                    for frame in burst.drain(..) {
                        let (source, number) = named(&frame);
                        assert_eq!(announced(&port, source), port.info().queue.index);
                        assert_eq!(number, *next.entry(source).or_default(), "of {source}");
                        next.insert(source, number + 1);
                        arrived.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::yield_now();
                }
            });
        }
    });
    assert_eq!(arrived.into_inner(), all);
}
