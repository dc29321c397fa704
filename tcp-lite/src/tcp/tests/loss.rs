//! Tests of loss recovery, and of segments that arrive again or with other boundaries. If a test names lost
//! segments, all other segments arrive.

use super::stream::lose;
use super::wire::*;
use crate::tcp::State;
use crate::{CloseReason, Duration, TcpConfig};

/// Sends `count` segments of different sizes and loses the segments `numbers`. Returns the pair when all
/// segments have arrived, and the stream offset and the length of each segment.
fn transfer(config: TcpConfig, numbers: &'static [usize], count: usize) -> (Pair, Vec<(u32, usize)>) {
    let mut pair = Pair::established(config, config);
    pair.plan = lose(numbers);
    let mut at = 0;
    let mut pushed = Vec::new();
    for i in 0..count {
        let len = 500 + i * 7;
        pair.a.push(pair.now, &pattern(at, len)).unwrap();
        pushed.push((at as u32, len));
        at += len;
    }
    assert!(pair.run_until(Duration::from_secs(9), |pair| pair.b.frontier == at as u64));
    assert_eq!(pair.b.read(), pattern(0, at));
    (pair, pushed)
}

// Proves DDP-031, MPA-270.
#[test]
fn one_loss_is_repaired_without_the_timer_and_with_its_boundaries() {
    for sack in [false, true] {
        let (pair, pushed) = transfer(TcpConfig { sack, ..config() }, &[3], 10);
        let sent = pair.data_sent(Side::A);
        assert_eq!(sent.iter().filter(|segment| **segment == pushed[3]).count(), 2);
        assert_eq!(sent.len(), 11, "nothing else was sent again (SACK {sack})");
        let counters = pair.a.counters;
        assert_eq!((counters.fast_retransmits, counters.rto_expired, counters.tx_retransmits), (1, 0, 1));
    }
}

#[test]
fn several_losses_of_one_window_are_one_recovery() {
    for sack in [false, true] {
        let (pair, pushed) = transfer(TcpConfig { sack, ..config() }, &[1, 3, 4], 10);
        let sent = pair.data_sent(Side::A);
        for lost in [1, 3, 4] {
            assert_eq!(sent.iter().filter(|segment| **segment == pushed[lost]).count(), 2, "SACK {sack}");
        }
        let counters = pair.a.counters;
        assert_eq!((counters.fast_retransmits, counters.rto_expired, counters.tx_retransmits), (1, 0, 3));
    }
}

#[test]
fn without_sack_a_lost_tail_needs_the_timer() {
    let (pair, pushed) = transfer(TcpConfig { sack: false, ..config() }, &[8, 9], 10);
    assert_eq!(pair.data_sent(Side::A)[10..], pushed[8..]);
    assert_eq!(pair.a.counters.rto_expired, 1);
}

#[test]
fn reordering_below_the_threshold_is_no_loss() {
    for sack in [false, true] {
        let mut pair = Pair::established(TcpConfig { sack, ..config() }, TcpConfig { sack, ..config() });
        let mut sent = 0;
        pair.plan = Box::new(move |side, packet| {
            sent += usize::from(side == Side::A && !packet.payload.is_empty());
            vec![
                DELAY
                    + Duration::from_micros(if side == Side::A && sent == 3 { 25 } else { sent as u64 * 10 }),
            ]
        });
        pair.push_of(8, 100);
        pair.run_for(Duration::from_millis(40));
        assert_eq!((pair.b.read().len(), pair.a.counters.tx_retransmits), (800, 0));
    }
}

// Proves DDP-031.
#[test]
fn the_timer_backs_off_and_the_user_timeout_ends_it() {
    let mut pair = Pair::established(config(), config());
    pair.run_for(Duration::from_secs(1));
    pair.plan = Box::new(|_, _| vec![]);
    pair.log.clear();
    pair.a.push(pair.now, &pattern(0, 100)).unwrap();
    let start = pair.now;
    pair.run_for(Duration::from_secs(12));
    let at: Vec<_> = pair.log.iter().map(|(at, ..)| at.total_millis() - start.total_millis()).collect();
    // The SRTT is 2 ms, and `rto_min` is 50 ms. The first retransmission is a tail loss probe, which waits
    // for a possible delayed acknowledgement of the single segment. The last segment is the RST of the user
    // timeout.
    assert_eq!(at, [0, 52, 104, 208, 416, 832, 1664, 3328, 6656, 10_000]);
    assert_eq!((pair.a.counters.tail_loss_probes, pair.a.counters.rto_expired), (1, 7));
    assert_eq!(pair.a.seen.last(), Some(&Seen::Closed(CloseReason::TimedOut)));
    assert!(pair.a.tcb().is_droppable() && pair.a.holds_nothing());
}

/// The user timeout starts when the first unacknowledged segment is sent. Later segments do not restart it.
#[test]
fn new_segments_do_not_put_the_user_timeout_off() {
    let mut pair = Pair::established(config(), config());
    pair.run_for(Duration::from_secs(60));
    pair.plan = Box::new(|_, _| vec![]);
    let start = pair.now;
    for part in 0..9 {
        pair.a.push(pair.now, &pattern(100 * part, 100)).unwrap();
        pair.run_for(Duration::from_secs(1));
        assert!(!pair.a.tcb().is_droppable(), "{part}: the time before the first segment does not count");
    }
    pair.run_until(Duration::from_secs(5), |pair| pair.a.tcb().is_droppable());
    assert_eq!((pair.now - start).total_millis(), 10_000);
    assert_eq!(pair.a.seen.last(), Some(&Seen::Closed(CloseReason::TimedOut)));
}

#[test]
fn the_retransmission_is_lost_too_and_the_timer_repairs_everything() {
    let (mut pair, _) = transfer(config(), &[0, 1, 2, 3, 4, 5, 6, 7, 10, 11], 10);
    assert_eq!(pair.a.counters.rto_expired, 1);
    pair.run_for(Duration::from_millis(50));
    assert!(pair.a.holds_nothing());
}

// Proves MPA-274, MPA-276, MPA-277.
#[test]
fn bytes_beyond_a_hole_are_handed_up_at_once() {
    let mut pair = Pair::established(config(), config());
    pair.plan = lose(&[0]);
    pair.push_of(3, 100);
    pair.run_for(Duration::from_millis(2));
    assert_eq!(pair.b.frontier, 0);
    assert_eq!(pair.b.stream.iter().filter(|byte| byte.is_some()).count(), 200);
    assert_eq!(pair.b.out_of_order.len(), 1);
    pair.run_for(Duration::from_millis(100));
    assert_eq!(pair.b.read(), pattern(0, 300));
    assert_eq!(pair.b.out_of_order.len(), 0, "no hole, no ranges");
}

// Proves DDP-043.
#[test]
fn a_duplicate_below_the_frontier_is_reported_and_not_handed_up() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 100)).unwrap();
    let packet = pair.a.transmit(pair.now).unwrap();
    let _ = pair.b.receive(pair.now, &packet);
    let _ = pair.b.receive(pair.now, &packet);
    let ack = pair.b.transmit(pair.now).unwrap();
    assert_eq!(ack.header.options.sack[..], [(packet.header.seq, packet.header.seq + 100)]);
    assert_eq!(pair.b.counters.rx_duplicate_bytes, 100);
    assert_eq!(pair.b.transmit(pair.now).map(|packet| packet.header), None, "reported once");
}

#[test]
fn other_boundaries_and_overlaps_by_the_peer_are_trimmed() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &[0]).unwrap();
    let first = pair.a.transmit(pair.now).unwrap();
    let mut receive = |start: usize, len: usize| {
        let mut packet = first.clone();
        packet.header.seq += start;
        packet.payload = pattern(start, len);
        let _ = pair.b.receive(pair.now, &packet);
        pair.b.frontier
    };
    assert_eq!(receive(100, 50), 0);
    assert_eq!(receive(200, 50), 0);
    assert_eq!(receive(50, 250), 0, "one segment over two ranges brings three pieces");
    assert_eq!(receive(0, 20), 20);
    assert_eq!(receive(10, 100), 300);
    assert_eq!(receive(0, 400), 400);
    assert_eq!(pair.b.read(), pattern(0, 400));
}

#[test]
fn an_acknowledgement_in_the_middle_keeps_the_segment_whole() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 900)).unwrap();
    let packet = pair.a.transmit(pair.now).unwrap();
    let mut ack = pair.log.iter().rev().find(|(_, side, _)| *side == Side::B).unwrap().2.clone();
    ack.header.flags = Default::default();
    ack.header.options.timestamps = None;
    ack.header.seq = pair.b.params.iss + 1;
    ack.header.ack = Some(packet.header.seq + 400);
    let _ = pair.a.receive(pair.now, &ack);
    let at = pair.a.tcb().deadline().unwrap();
    pair.a.with(at, |tcb, ctx| tcb.on_timer(ctx));
    let again = pair.a.transmit(at).unwrap();
    assert_eq!((again.header.seq, again.payload), (packet.header.seq, packet.payload));
}

// Proves DDP-029, MPA-267.
#[test]
fn a_drop_of_emss_cuts_what_no_longer_fits_and_counts_it() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 1000)).unwrap();
    let at = pair.now;
    pair.a.transmit(at).unwrap();
    let any = || std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    let cwnd = pair.a.tcb().info(&pair.a.config, any(), any()).cwnd;
    pair.a.push(at, &pattern(1000, 1000)).unwrap();
    pair.a.with(at, |tcb, ctx| tcb.sending_mut().set_path_mss(ctx, 612));
    let sent: Vec<_> = std::iter::from_fn(|| pair.a.transmit(at)).map(|packet| packet.payload).collect();
    let whole = pattern(0, 2000);
    assert_eq!(sent, [&whole[..600], &whole[600..1000], &whole[1000..1600], &whole[1600..]]);
    let counters = pair.a.counters;
    assert_eq!((counters.tx_cut_by_emss, counters.tx_retransmits, counters.rto_expired), (2, 2, 0));
    assert_eq!(counters.fast_retransmits, 0, "no sign of congestion");
    assert_eq!(pair.a.tcb().info(&pair.a.config, any(), any()).cwnd, cwnd);
}

#[test]
fn what_was_acknowledged_of_a_segment_is_not_sent_again_when_it_is_cut() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 1000)).unwrap();
    pair.a.transmit(pair.now).unwrap();
    // A host on the path cut the segment, and lost the rest.
    pair.b.push(pair.now, &pattern(0, 1)).unwrap();
    let mut answer = pair.b.transmit(pair.now).unwrap();
    answer.header.ack = answer.header.ack.map(|ack| ack + 700);
    let _ = pair.a.receive(pair.now, &answer);
    pair.a.with(pair.now, |tcb, ctx| tcb.sending_mut().set_path_mss(ctx, 312));
    let at = pair.now;
    let sent: Vec<_> = std::iter::from_fn(|| pair.a.transmit(at)).map(|packet| packet.payload).collect();
    let whole = pattern(0, 1000);
    assert_eq!(sent, [&whole[600..900], &whole[900..]]);
}

#[test]
fn without_room_for_events_or_reordering_bytes_come_again() {
    let mut pair = Pair::established(config(), config());
    pair.plan = lose(&[2]);
    pair.b.events_limit = 0;
    pair.push_of(6, 100);
    pair.run_for(Duration::from_millis(20));
    assert_eq!(pair.b.stream.len(), 0);
    pair.b.events_limit = 1;
    pair.b.out_of_order = crate::tcp::OutOfOrderSlab::new(0, 1 << 20, &pair.b.pool);
    assert!(pair.run_until(Duration::from_secs(5), |pair| pair.b.frontier == 600));
    assert_eq!(pair.b.read(), pattern(0, 600));
}

#[test]
fn starved_pools_take_data_in_order_only() {
    let mut pair = Pair::established(config(), config());
    let mut hoard: Vec<_> = std::iter::from_fn(|| pair.b.pool.alloc()).collect();
    hoard.truncate(hoard.len() - 8);
    pair.plan = lose(&[1]);
    pair.push_of(4, 100);
    pair.run_for(Duration::from_millis(2));
    drop(hoard);
    assert_eq!(pair.b.stream.len(), 100);
    pair.run_for(Duration::from_secs(2));
    assert_eq!((pair.b.read(), pair.b.state()), (pattern(0, 400), State::Established));
}
