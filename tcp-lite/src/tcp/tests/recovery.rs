//! Tests of loss recovery by RACK, tail loss probes, PRR, and undo.

use super::stream::{each, lose};
use super::wire::*;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::send::Phase;
use crate::{CongestionAlgorithm, Duration, Instant, StackCounters, TcpConfig};

const SEGMENT: usize = 500;

/// Returns a configuration in which a loss halves the window, and the window grows by the bytes that arrive.
fn config() -> TcpConfig {
    TcpConfig { congestion: CongestionAlgorithm::NewReno, ..super::wire::config() }
}

/// Returns a wire that calls `fate` with the number of each data segment of `Side::A`. `fate` returns the
/// extra delay of the segment; `None` if the segment is lost.
fn wire(mut fate: impl FnMut(usize) -> Option<Duration> + 'static) -> Plan {
    each(move |nr| fate(nr).map(|extra| DELAY + extra).into_iter().collect())
}

fn push(pair: &mut Pair, count: usize) -> u64 {
    pair.push_of(count, SEGMENT)
}

/// Sends `count` segments. Returns the pair when all segments have arrived and are acknowledged.
fn transfer(config: TcpConfig, plan: Plan, count: usize) -> Pair {
    let mut pair = Pair::established(config, config);
    pair.plan = plan;
    let end = push(&mut pair, count);
    assert!(pair.run_until(Duration::from_secs(9), |pair| pair.b.frontier == end));
    pair.run_for(Duration::from_millis(200));
    assert_eq!(pair.b.read(), pattern(0, end as usize));
    assert!(pair.a.holds_nothing());
    assert_frozen(&pair);
    pair
}

/// Asserts that every transmission of `Side::A` was a whole segment, with the boundaries with which the test
/// pushed the segment.
fn assert_frozen(pair: &Pair) {
    let whole = |(offset, len): &(u32, usize)| (*offset as usize).is_multiple_of(SEGMENT) && *len == SEGMENT;
    assert!(pair.data_sent(Side::A).iter().all(whole));
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[test]
fn a_lost_tail_of_any_length_is_repaired_without_the_timer() {
    for (lost, resent) in [(&[9_usize][..], 1), (&[8, 9], 2), (&[5, 6, 7, 8, 9], 5), (&[0, 9], 2)] {
        let pair = transfer(config(), lose(lost.to_vec().leak()), 10);
        let StackCounters { rto_expired, tail_loss_probes, tx_retransmits, .. } = pair.a.counters;
        assert_eq!(
            (rto_expired, tail_loss_probes, tx_retransmits),
            (0, 1 - u64::from(lost[0] == 0), resent),
            "{lost:?}"
        );
    }
}

#[test]
fn a_probe_carries_what_was_never_sent_when_there_is_any() {
    let mut pair = Pair::established(config(), config());
    // All segments of a full window are lost. Only the probe may be sent as a new segment.
    let count = 60;
    let end = push(&mut pair, count);
    pair.plan = wire(|_| None);
    pair.run_for(us(500));
    let (sent, nxt) = (pair.data_sent(Side::A).len(), pair.a.tcb().sending().positions().nxt());
    assert!(
        sent < count && pair.a.tcb().sending().bytes_in_pipe() >= pair.a.tcb().sending().window(),
        "the window is full"
    );
    assert!(pair.run_until(ms(20), |pair| pair.a.counters.tail_loss_probes == 1));
    let probe = pair.data_sent(Side::A)[sent..].to_vec();
    assert_eq!(probe, [(nxt as u32 - 1, SEGMENT)], "the next that was never sent, and no more");
    assert_eq!(pair.a.counters.tx_retransmits, 0);
    // From now on all segments arrive, and all losses are repaired without the timer.
    pair.plan = wire(|_| Some(Duration::ZERO));
    let resent = pair.log.pop().map(|(_, _, packet)| packet).expect("the probe");
    pair.fly(Side::A, resent);
    assert!(pair.run_until(Duration::from_secs(9), |pair| pair.b.frontier == end));
    assert_eq!((pair.a.counters.rto_expired, pair.a.counters.tx_retransmits), (0, sent as u64));
    assert_frozen(&pair);
}

#[test]
fn a_tail_loss_probe_that_repaired_a_loss_reduces_the_window_and_a_spurious_one_does_not() {
    let after = |plan: Plan| {
        let mut pair = Pair::established(config(), config());
        pair.plan = plan;
        push(&mut pair, 10);
        pair.run_for(ms(20));
        assert!(pair.a.holds_nothing());
        let before = pair.a.tcb().sending().window();
        let end = push(&mut pair, 1);
        assert!(pair.run_until(ms(20), |pair| pair.a.tcb().sending().positions().una() > end));
        assert_eq!((pair.a.counters.tail_loss_probes, pair.a.counters.rto_expired), (1, 0));
        (before, pair.a.tcb().sending().window())
    };
    let (before, now) = after(lose(&[9]));
    assert!(now < before, "{now} {before}");
    // The last segment is late, not lost: the peer reports the probe as a duplicate.
    let (before, now) = after(wire(|nr| Some(if nr == 9 { ms(8) } else { Duration::ZERO })));
    assert!(now >= before, "{now} {before}");
}

#[test]
fn a_retransmission_that_is_lost_again_is_found_without_the_timer() {
    // Segment 3 and its first two retransmissions are lost. New segments keep arriving.
    let mut times = 0;
    let mut pair = Pair::established(config(), config());
    pair.plan = Box::new(move |side, packet| {
        let it = side == Side::A && packet.payload == pattern(3 * SEGMENT, SEGMENT);
        times += u32::from(it);
        if it && times <= 3 { vec![] } else { vec![DELAY] }
    });
    let end = push(&mut pair, 100);
    assert!(pair.run_until(Duration::from_secs(9), |pair| pair.b.frontier == end));
    assert_eq!((pair.a.counters.rto_expired, pair.a.counters.lost_retransmits), (0, 2));
    assert_eq!(pair.a.counters.fast_retransmits, 1);
}

#[test]
fn reordering_within_the_window_is_waited_for() {
    // A round trip is 2 ms, so a quarter is 500 us.
    let late = |extra_us| {
        let mut pair = Pair::established(config(), config());
        pair.plan = wire(move |nr| Some(if nr == 2 { us(extra_us) } else { Duration::ZERO }));
        push(&mut pair, 4);
        pair.run_for(ms(40));
        let StackCounters { tx_retransmits, reordering_seen, .. } = pair.a.counters;
        (tx_retransmits, reordering_seen)
    };
    assert_eq!(late(400), (0, 1));
    assert_eq!(late(900).0, 1, "later than that it counts as lost");
}

#[test]
fn once_reordering_was_seen_three_segments_above_a_hole_prove_nothing() {
    let mut pair = Pair::established(config(), config());
    pair.plan = wire(|nr| Some(if nr % 10 == 2 { us(400) } else { Duration::ZERO }));
    push(&mut pair, 4);
    pair.run_for(ms(40));
    assert_eq!(pair.a.counters.reordering_seen, 1);
    for _ in 0..10 {
        push(&mut pair, 10);
        pair.run_for(ms(20));
    }
    assert_eq!((pair.a.counters.tx_retransmits, pair.a.counters.fast_retransmits), (0, 0));
}

#[test]
fn d_sack_widens_the_reordering_window_and_undoes_recoveries() {
    let mut pair = Pair::established(config(), config());
    pair.plan = Box::new(|side, packet| {
        // Every tenth segment of A is late by 1.5 ms, and its retransmissions are late as well.
        let late = side == Side::A && packet.payload.first() == pattern(2 * SEGMENT, 1).first();
        vec![DELAY + if late { us(1500) } else { Duration::ZERO }]
    });
    let mut in_vain = Vec::new();
    for _ in 0..30 {
        let before = pair.a.counters.tx_retransmits;
        push(&mut pair, 10);
        pair.run_for(ms(30));
        in_vain.push(pair.a.counters.tx_retransmits - before);
    }
    let counters = pair.a.counters;
    assert!(counters.dsack_received > 0 && counters.rto_expired == 0, "{counters:?}");
    assert!(counters.spurious_recoveries > 0, "{counters:?}");
    let late: u64 = in_vain[20..].iter().sum();
    assert_eq!(late, 0, "{in_vain:?}");
}

/// Returns a pair whose segments are delayed on the path by `spike` in the middle of a transfer.
fn delayed(config: TcpConfig, spike: Duration) -> Pair {
    let config = TcpConfig { send_buffer_bytes: 200_000, recv_window_bytes: 200_000, ..config };
    let mut pair = Pair::established(config, config);
    push(&mut pair, 30);
    pair.run_for(ms(100));
    let held_until = pair.now + spike;
    let start = pair.now;
    pair.plan = each(move |nr| vec![held_until + us(20 * (nr as u64 + 1)) - start]);
    pair
}

/// Runs [`delayed`] until all segments have arrived. Returns the counters, and the windows before and after.
fn delay_spike(config: TcpConfig, spike: Duration) -> (StackCounters, u64, u64) {
    let mut pair = delayed(config, spike);
    let before = pair.a.tcb().sending().window();
    let end = push(&mut pair, 80);
    assert!(pair.run_until(ms(900), |pair| pair.a.counters.spurious_timeouts == 1));
    assert_eq!(pair.a.counters.dsack_received, 0, "before the retransmission arrived");
    assert!(pair.run_until(Duration::from_secs(9), |pair| pair.b.frontier == end));
    assert_frozen(&pair);
    (pair.a.counters, before, pair.a.tcb().sending().window())
}

#[test]
fn a_spurious_timeout_is_undone_by_timestamps() {
    let (counters, before, now) = delay_spike(config(), ms(200));
    assert!(counters.rto_expired > 0, "{counters:?}");
    assert_eq!(counters.spurious_timeouts, 1, "{counters:?}");
    assert!(now >= before, "{now} {before}");
}

#[test]
fn a_spurious_timeout_is_undone_by_f_rto_without_timestamps() {
    for sack in [true, false] {
        // The spike is long enough for one timeout only, because F-RTO does not examine repeated timeouts
        // (RFC 5682 section 3.1, step 1).
        let config = TcpConfig { timestamps: false, sack, ..config() };
        let (counters, before, now) = delay_spike(config, ms(120));
        assert!(counters.rto_expired > 0, "{counters:?}");
        assert_eq!(counters.spurious_timeouts, 1, "SACK {sack}: {counters:?}");
        assert!(now >= before, "{now} {before} {counters:?}");
    }
}

#[test]
fn a_timeout_for_a_reason_is_not_taken_back() {
    for timestamps in [true, false] {
        let config = TcpConfig { timestamps, ..config() };
        let mut pair = Pair::established(config, config);
        // Everything is lost until the timer has expired once.
        pair.plan = wire(|_| None);
        let end = push(&mut pair, 30);
        assert!(pair.run_until(ms(90), |pair| pair.a.counters.rto_expired == 1));
        pair.plan = wire(|_| Some(Duration::ZERO));
        assert!(pair.run_until(Duration::from_secs(9), |pair| pair.b.frontier == end));
        assert_eq!(pair.a.counters.rto_expired, 1, "{:?}", pair.a.counters);
        assert_eq!(pair.a.counters.spurious_timeouts, 0, "{:?}", pair.a.counters);
        assert!(pair.a.tcb().sending().congestion().ssthresh() < u32::MAX, "the window stays reduced");
    }
}

#[test]
fn recovery_ends_at_the_threshold_and_sends_in_proportion_on_the_way() {
    let config = TcpConfig { send_buffer_bytes: 400_000, recv_window_bytes: 400_000, ..config() };
    let mut pair = Pair::established(config, config);
    push(&mut pair, 100);
    pair.run_for(ms(100));
    let first = pair.log.iter().filter(|(_, side, p)| *side == Side::A && !p.payload.is_empty()).count();
    assert_eq!(first, 100);
    // One segment of the next flight is lost. The other segments arrive one by one.
    pair.plan = each(|nr| if nr == 0 { vec![] } else { vec![DELAY + us((nr as u64 + 1) * 10)] });
    push(&mut pair, 160);
    let window = pair.a.tcb().sending().window();
    let recovering = |pair: &Pair| pair.a.tcb().sending().phase() == Phase::Fast;
    assert!(pair.run_until(ms(100), recovering));
    let flight = pair.a.tcb().sending().positions().outstanding();
    // Bytes that limited transmit sent beyond the window do not count.
    let ssthresh = flight.min(window) / 2;
    let started: Instant = pair.now;
    assert!(pair.run_until(ms(100), move |pair| !recovering(pair)));
    let sent =
        pair.log.iter().filter(|(at, side, p)| *at >= started && *side == Side::A && !p.payload.is_empty());
    let bytes = sent.count() as u64 * SEGMENT as u64;
    // The bytes sent are half of the bytes that arrived during the recovery, plus the retransmission.
    assert!(bytes.abs_diff(ssthresh) <= 3 * SEGMENT as u64, "{bytes} of {flight}");
    assert_eq!(pair.a.tcb().sending().window(), ssthresh);
    assert_eq!(pair.a.counters.fast_retransmits, 1);
}

#[test]
fn a_path_that_got_narrower_costs_neither_a_timeout_nor_the_window() {
    let mut pair = Pair::established(config(), config());
    // Only payloads of more than 600 bytes are dropped.
    pair.plan = Box::new(|_, packet| if packet.payload.len() > 600 { vec![] } else { vec![DELAY] });
    for nr in 0..6 {
        pair.a.push(pair.now, &pattern(nr * 800, if nr % 2 == 0 { 1000 } else { 600 })).unwrap();
    }
    let before = pair.a.tcb().sending().window();
    pair.transmit();
    pair.a.with(pair.now, |tcb, ctx| tcb.sending_mut().set_path_mss(ctx, 612));
    assert!(pair.run_until(ms(20), |pair| pair.b.frontier == 4800));
    let StackCounters { rto_expired, fast_retransmits, tx_cut_by_emss, .. } = pair.a.counters;
    assert_eq!((rto_expired, fast_retransmits, tx_cut_by_emss), (0, 0, 3));
    assert!(pair.a.tcb().sending().window() >= before);
}

/// If a peer acknowledges the same byte for ever, we send at most as many more bytes as were in flight (RFC
/// 5681 section 3.2, step 4).
#[test]
fn duplicates_that_are_made_up_let_no_more_out_than_was_in_flight() {
    let config =
        TcpConfig { sack: false, send_buffer_bytes: 400_000, recv_window_bytes: 400_000, ..config() };
    let mut pair = Pair::established(config, config);
    push(&mut pair, 150);
    pair.transmit();
    let flight = pair.a.tcb().sending().positions().outstanding();
    let mut ack = pair.log.iter().rev().find(|(_, side, _)| *side == Side::B).unwrap().2.clone();
    ack.header.flags = Default::default();
    ack.header.options.timestamps = None;
    ack.header.seq = pair.b.params.iss + 1;
    let now = pair.now;
    for _ in 0..1000 {
        let _ = pair.a.receive(now, &ack);
        while pair.a.transmit(now).is_some() {}
    }
    assert_eq!(pair.a.counters.fast_retransmits, 1);
    let out = pair.a.tcb().sending().positions().outstanding();
    assert!(out > flight && out <= 2 * flight, "{out} bytes are out, {flight} were");
}
