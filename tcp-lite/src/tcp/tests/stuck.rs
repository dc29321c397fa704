//! Tests of what happens while nothing can be sent, because the port accepts no frames or the pool has no
//! buffers.

use super::wire::*;
use crate::tcp::Verdict;
use crate::{CloseReason, Duration, Instant, TcpConfig};

/// Microseconds from `since` to now.
fn since_us(pair: &Pair, since: Instant) -> u64 {
    (pair.now - since).total_micros()
}

/// Runs `a`, which cannot send anything, without its peer until its connection has ended, for at most a
/// minute. Returns the number of milliseconds until the end, and the number of times that the timer ran.
fn end_of(pair: &mut Pair) -> (u64, usize) {
    let (start, mut timers) = (pair.now, 0);
    while !matches!(pair.a.seen.last(), Some(Seen::Closed(_))) {
        pair.now = pair.a.tcb().deadline().expect("a timer runs");
        assert!(since_us(pair, start) <= 60_000_000, "it does not end");
        let now = pair.now;
        pair.a.with(now, |tcb, ctx| tcb.on_timer(ctx));
        timers += 1;
    }
    assert_eq!(pair.a.seen.last(), Some(&Seen::Closed(CloseReason::TimedOut)));
    (since_us(pair, start) / 1000, timers)
}

#[test]
fn a_syn_that_is_never_sent_times_out() {
    let mut pair = Pair::new(config(), config());
    pair.a.connect(pair.now);
    let (after_ms, timers) = end_of(&mut pair);
    assert_eq!((after_ms, pair.a.counters.rto_expired), (10_000, 0));
    assert!(timers <= 25, "{timers} timers");
}

#[test]
fn a_fin_that_is_never_sent_times_out() {
    let mut pair = Pair::established(config(), config());
    // The connection is idle for longer than the user timeout, which starts only with the close.
    pair.run_for(Duration::from_secs(30));
    pair.a.close(pair.now);
    let (after_ms, timers) = end_of(&mut pair);
    assert_eq!((after_ms, pair.a.counters.rto_expired), (10_000, 0));
    assert!(timers <= 25, "{timers} timers");
}

#[test]
fn bytes_that_are_never_sent_time_out() {
    let mut pair = Pair::established(config(), config());
    pair.run_for(Duration::from_secs(30));
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    assert_eq!(end_of(&mut pair).0, 10_000);
}

/// Segments that the port accepted earlier count as sent, and time out once. Their retransmission cannot be
/// sent, so no answer is missing. Therefore the RTO is not doubled again. The path MTU is not suspected
/// either, although the peer still sends segments.
#[test]
fn bytes_that_are_not_sent_again_time_out_and_neither_network_nor_path_is_blamed() {
    let mut pair = Pair::established(config(), config());
    pair.plan = Box::new(|_, _| vec![]);
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    pair.transmit();
    let (sent_at, rto) = (pair.now, pair.a.tcb().sending().info().rto);
    let mut heard = 0;
    while since_us(&pair, sent_at) < 9_000_000 {
        pair.now = pair.a.tcb().deadline().expect("a timer runs");
        let now = pair.now;
        pair.a.with(now, |tcb, ctx| tcb.on_timer(ctx));
        // Each second, the peer sends a segment, and the segment arrives.
        if since_us(&pair, sent_at) < heard * 1_000_000 {
            continue;
        }
        pair.b.push(now, &pattern(heard as usize, 1)).unwrap();
        heard += 1;
        while let Some(packet) = pair.b.transmit(now) {
            assert_eq!(pair.a.receive(now, &packet), Verdict::Done);
        }
    }
    assert!(heard >= 9, "heard {heard} times");
    assert_eq!((pair.a.counters.rto_expired, pair.a.tcb().sending().info().rto), (1, rto * 2));
    assert_eq!((pair.a.counters.path_mtu_black_holes, pair.a.tcb().sending().emss()), (0, EMSS as u32));
    // The segment is sent as soon as possible, and is not cut.
    pair.plan = Box::new(|_, _| vec![DELAY]);
    pair.run_for(Duration::from_millis(5));
    assert_eq!((pair.b.frontier, pair.a.counters.tx_retransmits), (EMSS as u64, 1));
    assert_eq!(pair.a.seen, [Seen::Established]);
    pair.run_for(Duration::from_millis(20));

    pair.plan = Box::new(|_, _| vec![]);
    pair.a.push(pair.now, &pattern(EMSS, EMSS)).unwrap();
    pair.transmit();
    assert_eq!(end_of(&mut pair).0, 10_000);
}

#[test]
fn a_timeout_after_what_was_stuck_is_sent_again_counts_as_ever() {
    let mut pair = Pair::established(config(), config());
    pair.plan = Box::new(|_, _| vec![]);
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    pair.transmit();
    let rto = pair.a.tcb().sending().info().rto;
    for _ in 0..5 {
        pair.now = pair.a.tcb().deadline().expect("a timer runs");
        let now = pair.now;
        pair.a.with(now, |tcb, ctx| tcb.on_timer(ctx));
    }
    assert_eq!(pair.a.counters.rto_expired, 1);
    let again_at = pair.now;
    pair.transmit();
    assert_eq!((pair.a.counters.tx_retransmits, pair.a.tcb().deadline()), (1, Some(again_at + rto * 2)));
    pair.run_for(rto * 2);
    assert_eq!(pair.a.counters.rto_expired, 2);
}

#[test]
fn keepalives_that_find_no_way_out_count_as_sent() {
    let keepalive = TcpConfig {
        keepalive_idle: Some(Duration::from_secs(5)),
        keepalive_interval: Duration::from_secs(1),
        keepalive_probes: 4,
        ..config()
    };
    let mut pair = Pair::established(keepalive, config());
    let heard_at = pair.now - Duration::from_millis(100);
    end_of(&mut pair);
    let after_us = since_us(&pair, heard_at);
    assert!((9_000_000..9_010_000).contains(&after_us), "{after_us}");
}

/// If an RST cannot be sent, the control block is dropped after the user timeout.
#[test]
fn a_rst_that_finds_no_way_out_is_given_up() {
    let mut pair = Pair::established(config(), config());
    pair.a.with(pair.now, |tcb, ctx| tcb.abort(ctx));
    assert!(!pair.a.tcb().is_droppable());
    let due = pair.a.tcb().deadline().expect("a timer runs");
    assert_eq!(due, pair.now + Duration::from_secs(10));
    pair.a.with(due, |tcb, ctx| tcb.on_timer(ctx));
    assert!(pair.a.tcb().is_droppable());

    let mut pair = Pair::established(config(), config());
    pair.a.with(pair.now, |tcb, ctx| tcb.abort(ctx));
    pair.transmit();
    assert!(pair.a.tcb().is_droppable());
    assert_eq!(pair.a.tcb().deadline(), None);
}
