//! Tests of links: for example, faults follow the plan, a run can be repeated exactly, and counters match the
//! frames.

mod queues;

use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::{BURST, Burst, Checksum, ExtBuf, LinkState, Mbuf, Mss, Offloads, TsoLimits, TxOffload};

type End = Box<dyn Port>;

fn clean() -> LinkConfig {
    LinkConfig { mbufs: 512, ..LinkConfig::default() }
}

fn with_plan(plan: LinkPlan) -> LinkConfig {
    LinkConfig { a_to_b: plan, seed: 7, ..clean() }
}

/// Makes a frame that contains `number`.
fn frame(port: &End, number: u32) -> Mbuf {
    let mut frame = port.mempool().alloc().unwrap();
    assert!(frame.append_slice(&[0; 60]));
    frame.head_mut().unwrap()[..4].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &Mbuf) -> u32 {
    u32::from_be_bytes(frame.head()[..4].try_into().unwrap())
}

fn send(port: &mut End, now_us: u64, numbers: impl IntoIterator<Item = u32>) -> usize {
    let mut burst: Burst = numbers.into_iter().map(|n| frame(port, n)).collect();
    port.tx_burst(now_us, &mut burst)
}

/// Receives all frames that are due.
fn receive_frames(port: &mut End, now_us: u64) -> Vec<Mbuf> {
    let mut all = Vec::new();
    let mut burst = Burst::new();
    while port.rx_burst(now_us, &mut burst) > 0 {
        all.extend(burst.drain(..));
    }
    all
}

fn receive(port: &mut End, now_us: u64) -> Vec<u32> {
    receive_frames(port, now_us).iter().map(number).collect()
}

/// Sends the frames 0..count, one every 10 us. Returns the time and the number of each frame that arrives,
/// and the faults of the wire.
fn run(config: &LinkConfig, count: u32) -> (Vec<(u64, u32)>, LinkFaults) {
    let (mut a, mut b, control) = pair_with_control(config);
    let mut arrived = Vec::new();
    for n in 0..count + 200 {
        let now_us = u64::from(n) * 10;
        if n < count {
            assert_eq!(send(&mut a, now_us, [n]), 1);
        }
        arrived.extend(receive(&mut b, now_us).into_iter().map(|n| (now_us, n)));
    }
    (arrived, control.faults_a_to_b())
}

#[test]
fn a_clean_wire_moves_frames_in_order_without_copying() {
    let (mut a, mut b) = pair(&clean());
    let sent = frame(&a, 42);
    let address = sent.head().as_ptr();
    let mut burst: Burst = [sent].into_iter().collect();
    assert_eq!(a.tx_burst(0, &mut burst), 1);
    let received = receive_frames(&mut b, 0);
    assert_eq!((received.len(), received[0].head().as_ptr()), (1, address));
    drop(received);

    assert_eq!(send(&mut b, 0, 0..50), 50);
    assert_eq!(receive(&mut a, 0), (0..50).collect::<Vec<_>>());
    assert_eq!((a.counters().rx_frames, a.counters().rx_bytes), (50, 3000));
    assert_eq!((b.counters().tx_frames, b.counters().tx_bytes), (50, 3000));
    assert_eq!(a.mempool().available(), 512);
}

#[test]
fn external_memory_arrives_as_a_copy_and_is_given_back_when_sent() {
    let (mut a, mut b) = pair(&clean());
    let owner = Arc::new(vec![7; 900]);
    let mut sent = frame(&a, 42);
    sent.chain(Mbuf::external(a.mempool(), ExtBuf::new(Arc::clone(&owner))).unwrap()).unwrap();
    let mut bytes = vec![0; sent.len()];
    sent.copy_to(0, &mut bytes);
    assert_eq!(a.tx_burst(0, &mut [sent].into_iter().collect()), 1);
    assert_eq!(Arc::strong_count(&owner), 1);
    let received = receive_frames(&mut b, 0);
    assert_eq!(received[0].segments().flatten().copied().collect::<Vec<_>>(), bytes);
}

#[test]
fn ports_say_what_they_are() {
    let (a, b) = pair(&LinkConfig { mtu: 9000, mbufs: 8, ..clean() });
    assert_eq!((a.info().name.as_str(), b.info().name.as_str()), ("link-a", "link-b"));
    assert_ne!(a.info().mac, b.info().mac);
    assert_eq!(a.info().mtu, 9000);
    assert!(a.mempool().data_bytes() >= 9018);
    assert_eq!(a.info().offloads, Offloads::TX_MULTI_SEGMENT | Offloads::TX_EXTERNAL | Offloads::RX_SCATTER);
    let (a, _b) = pair(&LinkConfig { checksum_offload: true, ..clean() });
    assert!(a.info().offloads.contains(Offloads::TX_TCP_CHECKSUM | Offloads::RX_TCP_CHECKSUM));
    assert!(!a.info().point_to_point && !a.info().tells_departures);
    let (a, _b) = pair(&LinkConfig { point_to_point: true, ..clean() });
    assert!(a.info().point_to_point);
}

#[test]
fn exactly_the_named_frames_are_lost() {
    let (arrived, faults) =
        run(&with_plan(LinkPlan { drop_exactly: vec![7, 0, 3, 3], ..LinkPlan::default() }), 10);
    assert_eq!(arrived.iter().map(|&(_, n)| n).collect::<Vec<_>>(), [1, 2, 4, 5, 6, 8, 9]);
    assert_eq!(faults.lost, 3);
}

#[test]
fn frames_are_lost_as_often_as_planned() {
    let (arrived, faults) = run(&with_plan(LinkPlan { drop_ppm: 100_000, ..LinkPlan::default() }), 5000);
    assert_eq!(arrived.len() as u64 + faults.lost, 5000);
    assert!((400..600).contains(&faults.lost), "{faults:?}");
}

#[test]
fn everything_and_nothing_are_exact_probabilities() {
    let (arrived, _) = run(&with_plan(LinkPlan { drop_ppm: 1_000_000, ..LinkPlan::default() }), 300);
    assert!(arrived.is_empty());
    let plan = LinkPlan { duplicate_ppm: 1_000_000, ..LinkPlan::default() };
    let (arrived, faults) = run(&with_plan(plan), 300);
    assert_eq!(arrived.len(), 600);
    let expected = LinkFaults { duplicated: 300, ..LinkFaults::default() };
    assert_eq!(faults, expected);
}

#[test]
fn duplicates_are_copies_that_may_be_written_apart() {
    let (mut a, mut b) = pair(&with_plan(LinkPlan { duplicate_ppm: 1_000_000, ..LinkPlan::default() }));
    send(&mut a, 0, [5]);
    let mut frames = receive_frames(&mut b, 0);
    assert_eq!(frames.len(), 2);
    frames[0].head_mut().unwrap()[3] = 6;
    assert_eq!((number(&frames[0]), number(&frames[1])), (6, 5));
}

#[test]
fn delayed_frames_arrive_in_order_when_due_and_not_before() {
    let (mut a, mut b) = pair(&with_plan(LinkPlan { delay_us: 500, ..LinkPlan::default() }));
    assert_eq!(b.next_due_us(), None);
    send(&mut a, 100, [1]);
    send(&mut a, 110, [2]);
    assert_eq!(b.next_due_us(), Some(600));
    assert!(receive(&mut b, 599).is_empty());
    assert_eq!(b.next_due_us(), Some(600));
    assert_eq!(receive(&mut b, 600), [1]);
    // The second frame is not due yet, and waits in the ring.
    assert_eq!(b.next_due_us(), Some(610));
    send(&mut a, 605, [3]);
    assert_eq!(receive(&mut b, 5000), [2, 3]);
    assert_eq!(b.next_due_us(), None);
}

#[test]
fn a_burst_cut_short_leaves_the_rest_due() {
    let (mut a, mut b) = pair(&clean());
    send(&mut a, 40, 0..3);
    let mut burst = Burst::new();
    while burst.remaining_capacity() > 1 {
        burst.push(frame(&b, 0));
    }
    assert_eq!(b.rx_burst(50, &mut burst), 1);
    assert!(b.next_due_us().is_some_and(|due_us| due_us <= 50));
    assert_eq!(b.rx_burst(50, &mut burst), 0, "no room, no frame lost");
    assert_eq!(receive(&mut b, 50), [1, 2]);
}

#[test]
fn held_frames_are_overtaken_by_the_next_ones() {
    let plan = LinkPlan { reorder_ppm: 200_000, reorder_us: 35, delay_us: 100, ..LinkPlan::default() };
    let (arrived, faults) = run(&with_plan(plan), 1000);
    assert_eq!(arrived.len(), 1000, "reordering loses nothing");
    let overtaken = arrived.windows(2).filter(|pair| pair[0].1 > pair[1].1).count();
    assert!((150..250).contains(&faults.reordered) && overtaken > 50, "{faults:?}, {overtaken}");
    for &(at_us, n) in &arrived {
        let transit_us = at_us - u64::from(n) * 10;
        assert!([100, 140].contains(&transit_us), "frame {n} took {transit_us} us, polled every 10 us");
    }
}

#[test]
fn corrupted_frames_have_one_bit_turned_and_the_senders_copy_none() {
    let (mut a, mut b) = pair(&with_plan(LinkPlan { corrupt_ppm: 1_000_000, ..LinkPlan::default() }));
    for n in 0..100 {
        let sent = frame(&a, n);
        let kept = sent.share().unwrap();
        let mut burst: Burst = [sent].into_iter().collect();
        a.tx_burst(0, &mut burst);
        let received = receive_frames(&mut b, 0);
        let turned: u32 =
            std::iter::zip(received[0].head(), kept.head()).map(|(x, y)| (x ^ y).count_ones()).sum();
        assert_eq!(turned, 1);
        assert_eq!(number(&kept), n);
    }
}

#[test]
fn the_same_seed_gives_the_same_result_and_another_does_not() {
    let plan = LinkPlan {
        drop_ppm: 50_000,
        duplicate_ppm: 50_000,
        reorder_ppm: 50_000,
        reorder_us: 70,
        corrupt_ppm: 50_000,
        delay_us: 30,
        drop_exactly: vec![11],
    };
    let config = with_plan(plan);
    let first = run(&config, 2000);
    assert_eq!(first, run(&config, 2000));
    assert_ne!(first, run(&LinkConfig { seed: 8, ..config }, 2000));
}

#[test]
fn one_probability_does_not_change_what_the_others_hit() {
    let drops = LinkPlan { drop_ppm: 100_000, ..LinkPlan::default() };
    let both = LinkPlan { delay_us: 20, duplicate_ppm: 300_000, ..drops.clone() };
    let numbers = |plan| {
        let mut numbers: Vec<_> = run(&with_plan(plan), 500).0.into_iter().map(|(_, n)| n).collect();
        numbers.dedup();
        numbers
    };
    assert_eq!(numbers(drops), numbers(both));
}

#[test]
fn the_directions_throw_their_own_dice() {
    let plan = LinkPlan { drop_ppm: 500_000, ..LinkPlan::default() };
    let config = LinkConfig { a_to_b: plan.clone(), b_to_a: plan, ..clean() };
    let (mut a, mut b) = pair(&config);
    send(&mut a, 0, 0..64);
    send(&mut b, 0, 0..64);
    assert_ne!(receive(&mut b, 0), receive(&mut a, 0));
}

#[test]
fn a_full_ring_leaves_frames_with_the_caller_and_counts_them() {
    let (mut a, mut b) = pair(&LinkConfig { ring_frames: 10, ..clean() });
    let mut burst: Burst = (0..16).map(|n| frame(&a, n)).collect();
    assert_eq!(a.tx_burst(0, &mut burst), 10);
    assert_eq!((burst.len(), a.counters().tx_ring_full), (6, 6));
    assert_eq!(a.tx_burst(0, &mut burst), 0);
    assert_eq!(a.counters().tx_ring_full, 12);
    assert_eq!(receive(&mut b, 0), (0..10).collect::<Vec<_>>());
    assert_eq!(a.tx_burst(0, &mut burst), 6);
    assert!(burst.is_empty());
    assert_eq!(receive(&mut b, 0), (10..16).collect::<Vec<_>>());
    assert_eq!(a.counters().tx_frames, 16);
}

#[test]
fn a_ring_full_of_duplicates_is_full_too() {
    let config = LinkConfig { ring_frames: BURST, ..with_plan(LinkPlan::default()) };
    let plan = LinkPlan { duplicate_ppm: 1_000_000, ..LinkPlan::default() };
    let (mut a, mut b) = pair(&LinkConfig { a_to_b: plan, ..config });
    assert_eq!(send(&mut a, 0, 0..BURST as u32), BURST);
    assert_eq!(send(&mut a, 0, [99]), 0);
    assert_eq!(receive(&mut b, 0).len(), 2 * BURST);
    assert_eq!(send(&mut a, 0, [99]), 1);
}

#[test]
fn a_dropped_end_takes_the_other_down_after_what_was_on_its_way() {
    let (mut a, mut b) = pair(&clean());
    assert_eq!(b.link_state(), LinkState::Up);
    send(&mut a, 0, [1]);
    drop(a);
    assert_eq!(b.link_state(), LinkState::Down);
    assert_eq!(receive(&mut b, 0), [1]);
    assert_eq!(send(&mut b, 0, 0..5), 5);
    let counters = b.counters();
    assert_eq!((counters.tx_link_down, counters.tx_frames, counters.link_changes), (5, 0, 1));
    assert_eq!(b.mempool().available(), 512);
}

#[test]
fn a_pulled_cable_may_be_plugged_in_again() {
    let (mut a, mut b, control) = pair_with_control(&clean());
    control.set_up(false);
    assert_eq!(send(&mut a, 0, [1]), 1);
    assert_eq!((a.link_state(), b.link_state()), (LinkState::Down, LinkState::Down));
    control.set_up(true);
    assert_eq!((a.link_state(), b.link_state()), (LinkState::Up, LinkState::Up));
    send(&mut a, 0, [2]);
    assert_eq!(receive(&mut b, 0), [2]);
    assert_eq!((a.counters().link_changes, a.counters().tx_link_down), (2, 1));
}

#[test]
fn frames_past_the_mtu_are_dropped_and_counted() {
    let (mut a, mut b) = pair(&clean());
    let mut burst = Burst::new();
    for bytes in [1518, 1519] {
        let mut frame = a.mempool().alloc().unwrap();
        frame.append(bytes).unwrap();
        burst.push(frame);
    }
    assert_eq!(a.tx_burst(0, &mut burst), 2);
    assert_eq!(receive_frames(&mut b, 0).len(), 1);
    assert_eq!((a.counters().tx_frames, a.counters().tx_dropped), (1, 1));
}

#[test]
fn an_empty_pool_loses_the_copy_and_counts_it_at_the_receiver() {
    for corrupt_ppm in [0, 1_000_000] {
        let plan = LinkPlan { duplicate_ppm: 1_000_000, corrupt_ppm, ..LinkPlan::default() };
        let (mut a, mut b) = pair(&LinkConfig { mbufs: 2, ..with_plan(plan) });
        let hoard: Vec<_> = std::iter::from_fn(|| b.mempool().alloc()).collect();
        send(&mut a, 0, [1]);
        assert_eq!(receive(&mut b, 0).len(), usize::from(corrupt_ppm == 0));
        assert_eq!(b.counters().rx_no_mbuf, 1);
        drop(hoard);
    }
}

#[test]
fn a_checksum_left_to_the_port_arrives_partial_only_where_that_is_offered() {
    for checksum_offload in [false, true] {
        let (mut a, mut b) = pair(&LinkConfig { checksum_offload, ..clean() });
        let mut asked = frame(&a, 1);
        asked.set_tx_offload(TxOffload { tcp_checksum: true, ..TxOffload::default() });
        let mut burst: Burst = [asked, frame(&a, 2)].into_iter().collect();
        a.tx_burst(0, &mut burst);
        let frames = receive_frames(&mut b, 0);
        let expected = if checksum_offload { Checksum::Partial } else { Checksum::Unknown };
        assert_eq!((frames[0].rx_checksum(), frames[1].rx_checksum()), (expected, Checksum::Unknown));
        assert_eq!(
            frames[0].tx_offload(),
            TxOffload::default(),
            "what was asked of the sender's port ends there"
        );
    }
}

#[test]
fn damage_to_a_partial_checksum_is_not_hidden_by_it() {
    let plan = LinkPlan { corrupt_ppm: 1_000_000, ..LinkPlan::default() };
    let (mut a, mut b) = pair(&LinkConfig { checksum_offload: true, ..with_plan(plan) });
    let mut asked = frame(&a, 1);
    asked.set_tx_offload(TxOffload { tcp_checksum: true, ..TxOffload::default() });
    let mut burst: Burst = [asked].into_iter().collect();
    a.tx_burst(0, &mut burst);
    assert_eq!(receive_frames(&mut b, 0)[0].rx_checksum(), Checksum::Unknown);
}

#[test]
fn chains_cross_as_chains() {
    let (mut a, mut b) = pair(&clean());
    let mut head = frame(&a, 9);
    head.chain(frame(&a, 10)).unwrap();
    let mut burst: Burst = [head].into_iter().collect();
    a.tx_burst(0, &mut burst);
    let frames = receive_frames(&mut b, 0);
    assert_eq!((frames[0].segment_count(), frames[0].len()), (2, 120));
}

#[test]
fn two_threads_pass_every_frame_in_order() {
    const FRAMES: u32 = 50_000;
    let (mut a, mut b) = pair(&LinkConfig { ring_frames: 128, ..clean() });
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut next = 0;
            let mut burst = Burst::new();
            while next < FRAMES || !burst.is_empty() {
                while next < FRAMES && !burst.is_full() {
                    let Some(mut frame) = a.mempool().alloc() else { break };
                    assert!(frame.append_slice(&next.to_be_bytes()));
                    burst.push(frame);
                    next += 1;
                }
                if a.tx_burst(0, &mut burst) == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        let mut burst = Burst::new();
        while expected < FRAMES {
            if b.rx_burst(0, &mut burst) == 0 {
                std::thread::yield_now();
            }
            for frame in burst.drain(..) {
                assert_eq!(number(&frame), expected);
                expected += 1;
            }
        }
    });
}

/// Generates plans. The probabilities are so high that all combinations of faults occur.
fn plans() -> impl Strategy<Value = LinkPlan> {
    let ppm = || prop_oneof![Just(0_u32), 0..1_000_001_u32, Just(1_000_000)];
    let times = (0..200_u32, 0..200_u32);
    let named = proptest::collection::vec(0..200_u64, 0..10);
    (ppm(), ppm(), ppm(), ppm(), times, named).prop_map(
        |(drop, duplicate, reorder, corrupt, times, named)| LinkPlan {
            drop_ppm: drop,
            duplicate_ppm: duplicate,
            reorder_ppm: reorder,
            reorder_us: times.0,
            corrupt_ppm: corrupt,
            delay_us: times.1,
            drop_exactly: named,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// A receiver that polls only at `next_due_us` receives each frame that was not lost, and receives no
    /// frame before the frame is due.
    #[test]
    fn whatever_the_plan_the_books_balance_and_the_pools_refill(
        plan in plans(),
        seed in any::<u64>(),
        bursts in proptest::collection::vec((0..100_u64, 0..20_usize), 0..12),
    ) {
        let delay_us = u64::from(plan.delay_us);
        let config = LinkConfig { a_to_b: plan, seed, ring_frames: 64, ..clean() };
        let (mut a, mut b, control) = pair_with_control(&config);
        let (mut now_us, mut sent, mut received) = (0, 0_u64, 0_u64);
        for (wait_us, frames) in bursts {
            let until_us = now_us + wait_us;
            while let Some(due_us) = b.next_due_us().filter(|&due_us| due_us <= until_us) {
                now_us = now_us.max(due_us);
                received += receive(&mut b, now_us).len() as u64;
            }
            now_us = until_us;
            sent += send(&mut a, now_us, 0..frames as u32) as u64;
            if delay_us > 0 {
                prop_assert!(b.next_due_us().is_none_or(|due_us| due_us > now_us), "what was due has been taken");
            }
        }
        while let Some(due_us) = b.next_due_us() {
            now_us = now_us.max(due_us);
            received += receive(&mut b, now_us).len() as u64;
        }
        let faults = control.faults_a_to_b();
        prop_assert_eq!(faults.no_mbuf, 0);
        prop_assert_eq!(received, sent - faults.lost + faults.duplicated);
        prop_assert_eq!(a.counters().tx_frames, sent);
        prop_assert_eq!(b.counters().rx_frames, received);
        prop_assert_eq!((a.mempool().available(), b.mempool().available()), (512, 512));
    }
}

/// Makes a large frame of TCP over IPv4 with 3000 payload bytes. The frame requests to be cut into segments
/// of 1400 bytes.
fn large(port: &End) -> Mbuf {
    let mut headers = vec![2; 12];
    headers.extend([8, 0, 0x45, 0, 0x0b, 0xe0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    headers.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    headers.resize(1554, 7);
    let mut frame = port.mempool().alloc().unwrap();
    assert!(frame.append_slice(&headers));
    let mut rest = port.mempool().alloc().unwrap();
    assert!(rest.append_slice(&[7; 1500]));
    frame.chain(rest).unwrap();
    frame.set_tx_offload(TxOffload {
        tcp_checksum: true,
        tso_segment_bytes: 1400,
        l2_bytes: 14,
        l3_bytes: 20,
        l4_bytes: 20,
        ..TxOffload::default()
    });
    frame
}

#[test]
fn large_frames_are_cut_or_passed_whole_or_refused() {
    for (tso, bytes, checksum) in [
        (LinkTso::Cut, vec![1454, 1454, 254], Checksum::Unknown),
        (LinkTso::Whole, vec![3054], Checksum::Partial),
        (LinkTso::Off, vec![], Checksum::Unknown),
    ] {
        let (mut a, mut b) = pair(&LinkConfig { checksum_offload: true, tso, ..clean() });
        assert_eq!(a.info().offloads.contains(Offloads::TX_TSO), tso != LinkTso::Off);
        let mut burst: Burst = [large(&a)].into_iter().collect();
        assert_eq!(a.tx_burst(0, &mut burst), 1);
        let arrived = receive_frames(&mut b, 0);
        assert_eq!(arrived.iter().map(Mbuf::len).collect::<Vec<_>>(), bytes);
        assert!(arrived.iter().all(|frame| frame.rx_checksum() == checksum));
        assert_eq!(a.counters().tx_dropped, u64::from(tso == LinkTso::Off));
    }
}

#[test]
fn a_large_frame_of_too_many_buffers_or_cut_where_it_cannot_be_is_dropped() {
    let within = TsoLimits { buffers: 2, mss: Mss { least: 1000, most: 1400 } };
    for (tso_limits, dropped) in [
        (within, 0),
        (TsoLimits { buffers: 1, ..within }, 1),
        (TsoLimits { mss: Mss { least: 1401, most: 9000 }, ..within }, 1),
        (TsoLimits { mss: Mss { least: 1, most: 1399 }, ..within }, 1),
    ] {
        let (mut a, _b) =
            pair(&LinkConfig { checksum_offload: true, tso: LinkTso::Cut, tso_limits, ..clean() });
        let frame = large(&a);
        assert_eq!((frame.segment_count(), frame.tx_offload().tso_segment_bytes), (2, 1400));
        let mut burst: Burst = [frame].into_iter().collect();
        assert_eq!((a.tx_burst(0, &mut burst), a.counters().tx_dropped), (1, dropped), "{tso_limits:?}");
    }
}

#[test]
fn a_large_frame_takes_the_room_of_its_pieces() {
    let (mut a, mut b) =
        pair(&LinkConfig { checksum_offload: true, tso: LinkTso::Cut, ring_frames: 7, ..clean() });
    let mut burst: Burst = (0..3).map(|_| large(&a)).collect();
    assert_eq!((a.tx_burst(0, &mut burst), burst.len()), (2, 1));
    assert_eq!(receive_frames(&mut b, 0).len(), 6);
    assert_eq!(a.tx_burst(0, &mut burst), 1);
}

#[test]
fn each_piece_meets_its_own_fate() {
    let plan = LinkPlan { drop_exactly: vec![1], ..LinkPlan::default() };
    let (mut a, mut b) = pair(&LinkConfig { checksum_offload: true, tso: LinkTso::Cut, ..with_plan(plan) });
    let mut burst: Burst = [large(&a)].into_iter().collect();
    a.tx_burst(0, &mut burst);
    let arrived = receive_frames(&mut b, 0);
    assert_eq!(arrived.iter().map(Mbuf::len).collect::<Vec<_>>(), [1454, 254]);
}

#[test]
fn a_device_that_is_taken_away_is_gone_for_good_and_passes_nothing() {
    let (mut a, mut b, control) = pair_with_control(&LinkConfig::default());
    let mut frames = Burst::new();
    for port in [&mut a, &mut b] {
        frames.push(frame(port, 1));
        assert_eq!(port.tx_burst(0, &mut frames), 1);
    }
    control.take_away_a();
    assert_eq!((a.link_state(), b.link_state()), (LinkState::Gone, LinkState::Down));
    assert_eq!(a.rx_burst(0, &mut frames), 0);
    assert_eq!(b.rx_burst(0, &mut frames), 1, "what was under way arrives");
    frames.clear();
    frames.push(frame(&a, 2));
    assert_eq!((a.tx_burst(0, &mut frames), frames.len(), a.counters().tx_link_down), (1, 0, 1));
    control.set_up(false);
    control.set_up(true);
    assert_eq!((a.link_state(), b.link_state()), (LinkState::Gone, LinkState::Down));
    assert_eq!(a.counters().link_changes, 1);
}
