//! Tests of pacing: segments are spread over the round trip.

use super::stream::{each, lose};
use super::wire::*;
use crate::tcp::congestion::{CongestionControl, Signal};
use crate::{Duration, Pacing, TcpConfig};

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn config(rtt_min_us: u64) -> TcpConfig {
    let pacing = Pacing { burst_segments: 4, rtt_min: us(rtt_min_us) };
    TcpConfig { pacing: Some(pacing), ..super::wire::config() }
}

/// Returns the times, in microseconds since `from`, at which `Side::A` sent data, each with the number of
/// segments that were sent.
fn bursts(pair: &Pair, from: crate::Instant) -> Vec<(u64, usize)> {
    let data = pair.log.iter().filter(|(_, side, packet)| *side == Side::A && !packet.payload.is_empty());
    let times: Vec<u64> = data.map(|(at, ..)| (*at - from).total_micros()).collect();
    times.chunk_by(|a, b| a == b).map(|burst| (burst[0], burst.len())).collect()
}

#[test]
fn a_window_leaves_in_bursts_for_which_the_deadline_wakes() {
    let mut pair = Pair::established(config(500), config(500));
    let start = pair.now;
    pair.push(10);
    // No acknowledgement arrives within the first round trip of 2 ms. The window is 10 segments, in slow
    // start, so 4 segments take a fifth of the round trip.
    pair.run_for(us(1900));
    assert_eq!(bursts(&pair, start), [(0, 4), (400, 4), (800, 2)]);
    pair.run_for(us(50_000));
    assert!(pair.a.holds_nothing());
    assert_eq!(pair.a.tcb().deadline(), None, "nothing waits");
}

#[test]
fn nothing_is_spaced_on_a_path_that_is_too_short_for_it() {
    let mut pair = Pair::established(config(2001), config(2001));
    let start = pair.now;
    pair.push(10);
    pair.run_for(us(1900));
    assert_eq!(bursts(&pair, start), [(0, 10)]);
}

#[test]
fn what_is_pushed_when_the_time_has_passed_leaves_at_once() {
    let mut pair = Pair::established(config(500), config(500));
    pair.push(4);
    pair.run_for(us(500));
    let late = pair.now;
    pair.push(1);
    assert!(pair.a.tcb().wants_transmit());
    pair.transmit();
    assert_eq!(pair.log.last().map(|(at, side, _)| (*at, *side)), Some((late, Side::A)));
}

#[test]
fn the_oldest_segment_is_sent_again_without_waiting() {
    let mut pair = Pair::established(config(500), config(500));
    pair.plan = lose(&[0]);
    pair.push(8);
    assert!(pair.run_until(us(5000), |pair| pair.a.counters.fast_retransmits == 1));
    let now = pair.now;
    // Sets the state of pacing that follows a burst.
    pair.a.with(now, |tcb, ctx| {
        for _ in 0..8 {
            tcb.sending_mut().pace(ctx, EMSS as u32);
        }
        assert!(!tcb.sending().is_pace_open());
    });
    pair.transmit();
    assert_eq!(pair.a.counters.tx_retransmits, 1);
}

/// A retransmission also counts for pacing: later segments are sent later.
#[test]
fn a_segment_that_is_sent_again_counts_for_the_pace() {
    let mut pair = Pair::established(config(500), config(500));
    pair.plan = lose(&[0]);
    pair.push(8);
    assert!(pair.run_until(us(5000), |pair| pair.a.counters.fast_retransmits == 1));
    let now = pair.now;
    pair.a.with(now, |tcb, ctx| {
        while tcb.sending().is_pace_open() {
            tcb.sending_mut().pace(ctx, EMSS as u32);
        }
    });
    let opens_at = |pair: &Pair| pair.a.tcb().sending().pace_opens_at();
    let before = opens_at(&pair);
    pair.transmit();
    assert_eq!(pair.a.counters.tx_retransmits, 1);
    assert!(before.is_some() && opens_at(&pair) > before, "{before:?}");
}

#[test]
fn other_segments_are_sent_again_when_it_is_their_time() {
    let mut pair = Pair::established(config(500), config(500));
    pair.plan = lose(&[0, 2]);
    pair.push(10);
    assert!(pair.run_until(us(5000), |pair| pair.a.counters.fast_retransmits == 1));
    pair.a.with(pair.now, |tcb, ctx| {
        for _ in 0..8 {
            tcb.sending_mut().pace(ctx, EMSS as u32);
        }
    });
    pair.run_for(us(1200));
    let tcb = pair.a.tcb();
    assert!(
        tcb.sending().lost_bytes() > 0 && tcb.sending().bytes_in_pipe() < tcb.sending().window(),
        "nothing else holds it back"
    );
    assert_eq!(pair.a.counters.tx_retransmits, 1);
    pair.run_for(us(3000));
    assert_eq!(pair.a.counters.tx_retransmits, 2);
}

/// This situation arises after a timeout: each segment is retransmitted when it is the oldest segment, so the
/// retransmissions are not paced.
#[test]
fn what_was_sent_without_waiting_holds_up_new_segments_for_a_round_trip_at_most() {
    let mut pair = Pair::established(config(500), config(500));
    pair.push(4);
    pair.run_for(us(10_000));
    pair.a.with(pair.now, |tcb, ctx| {
        for _ in 0..100 {
            tcb.sending_mut().pace(ctx, EMSS as u32);
        }
    });
    let (from, round_trip_us) = (pair.now, u64::from(pair.a.tcb().sending().srtt_us()));
    pair.push(1);
    pair.run_for(us(50_000));
    assert_eq!(bursts(&pair, from).last(), Some(&(round_trip_us, 1)));
}

#[test]
fn after_a_reduction_the_round_trip_takes_a_window_and_a_fifth() {
    let mut pair = Pair::established(config(500), config(500));
    pair.a.with(pair.now, |tcb, ctx| {
        tcb.sending_mut().congestion_mut().on_congestion(ctx.now, 20 * EMSS as u32, Signal::Loss);
        assert_eq!(tcb.sending().congestion().cwnd(), 7 * EMSS as u32);
    });
    let start = pair.now;
    pair.push(7);
    // The paced rate is 8.4 segments in 2 ms.
    pair.run_for(us(1900));
    assert_eq!(bursts(&pair, start), [(0, 4), (952, 3)]);
}

#[test]
fn one_acknowledgement_of_a_whole_window_doubles_it_only_where_that_is_paced() {
    let pacing = config(500).pacing;
    for (pacing, most) in [(None, 64), (pacing, usize::MAX)] {
        let bytes = 400_000;
        let config = TcpConfig { pacing, send_buffer_bytes: bytes, recv_window_bytes: bytes, ..config(500) };
        let mut pair = Pair::established(config, config);
        pair.push(120);
        assert!(pair.run_until(us(40_000), |pair| pair.a.holds_nothing()));
        let window = pair.a.tcb().sending().window() as usize / EMSS;
        assert!((80..160).contains(&window), "{window}");
        let end = pair.push(window);
        let end = pair.a.params.iss + 1 + end as usize;
        pair.plan =
            Box::new(
                move |side, packet| {
                    if side == Side::B && packet.header.ack != Some(end) { vec![] } else { vec![DELAY] }
                },
            );
        assert!(pair.run_until(us(40_000), |pair| pair.a.holds_nothing()));
        assert_eq!(pair.a.tcb().sending().window() as usize / EMSS, window + window.min(most));
    }
}

#[test]
fn losses_on_a_paced_path_are_repaired_by_whole_segments_and_without_a_stop() {
    let mut pair = Pair::established(config(500), config(500));
    pair.plan = each(|nr| if nr % 17 == 2 { vec![] } else { vec![DELAY] });
    let start = pair.now;
    for _ in 0..10 {
        let end = pair.push(30);
        assert!(pair.run_until(Duration::from_secs(2), |pair| pair.b.frontier == end));
    }
    assert_eq!(pair.b.read(), pattern(0, 300 * EMSS));
    assert!(
        pair.data_sent(Side::A)
            .iter()
            .all(|(offset, len)| (*offset as usize).is_multiple_of(EMSS) && *len == EMSS)
    );
    assert_eq!(pair.a.counters.rto_expired, 0);
    assert!(pair.now - start < Duration::from_millis(600), "{}", pair.now - start);
}
