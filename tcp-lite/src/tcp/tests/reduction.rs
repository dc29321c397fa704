//! Tests of how often the window is reduced, and how a spurious reduction is undone.

use std::cell::Cell;

use super::stream::{each, lose};
use super::wire::*;
use crate::ip::Ecn;
use crate::tcp::congestion::{CongestionControl, initial_window};
use crate::tcp::header::Flags;
use crate::tcp::send::Phase;
use crate::{CongestionAlgorithm, Duration, EcnMode, TcpConfig};

const ALL: [CongestionAlgorithm; 3] =
    [CongestionAlgorithm::NewReno, CongestionAlgorithm::Cubic, CongestionAlgorithm::Dctcp];

fn config(congestion: CongestionAlgorithm) -> TcpConfig {
    let bytes = 400_000;
    TcpConfig {
        congestion,
        ecn: EcnMode::Request,
        send_buffer_bytes: bytes,
        recv_window_bytes: bytes,
        ..super::wire::config()
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Returns a pair whose window has grown to about 60 segments. All segments are acknowledged.
fn grown(config: TcpConfig) -> Pair {
    let mut pair = Pair::established(config, config);
    pair.push(80);
    // The transfer has to end within the RTO. If a connection is idle for longer than the RTO, its window
    // falls to the initial size.
    assert!(pair.run_until(ms(40), |pair| pair.a.holds_nothing()));
    pair
}

/// From now on, loses the transmissions of data numbered `lost`, and marks those numbered `marked`.
fn harm(pair: &mut Pair, lost: &'static [usize], marked: &'static [usize]) {
    pair.plan = lose(lost);
    let mut sent = 0;
    pair.mark = Box::new(move |side, packet| {
        let data = side == Side::A && !packet.payload.is_empty();
        sent += usize::from(data);
        data && packet.ecn == Ecn::Ect0 && marked.contains(&(sent - 1))
    });
}

fn ssthresh(pair: &Pair) -> u32 {
    pair.a.tcb().sending().congestion().ssthresh()
}

/// Runs the pair until all bytes up to `end` have arrived and nothing is left to do. Returns all values of
/// the threshold in order.
fn thresholds(pair: &mut Pair, end: u64) -> Vec<u32> {
    let mut seen = vec![ssthresh(pair)];
    loop {
        let last = seen[seen.len() - 1];
        if !pair.run_until(ms(300), |pair| ssthresh(pair) != last) {
            assert_eq!(pair.b.frontier, end);
            return seen;
        }
        seen.push(ssthresh(pair));
    }
}

/// Returns the number of new data segments with CWR that `Side::A` sent.
fn announcements(pair: &Pair) -> usize {
    let of_a = pair.log.iter().filter(|(_, side, _)| *side == Side::A);
    of_a.filter(|(_, _, packet)| packet.is(Flags::CWR) && !packet.is(Flags::SYN)).count()
}

#[test]
fn a_loss_in_the_window_that_had_marks_reduces_it_no_further_but_for_dctcp() {
    for congestion in ALL {
        let mut pair = grown(config(congestion));
        harm(&mut pair, &[9], &[2]);
        let end = pair.push(120);
        let seen = thresholds(&mut pair, end);
        let counters = pair.a.counters;
        assert_eq!((counters.ecn_reductions, counters.fast_retransmits), (1, 1), "{congestion:?}");
        assert_eq!((counters.rto_expired, counters.tx_retransmits), (0, 1), "{congestion:?}");
        // A reduction by the share of marks does not cover a loss (RFC 8257 section 3.5).
        let reductions = if congestion == CongestionAlgorithm::Dctcp { 2 } else { 1 };
        assert_eq!(seen.len() - 1, reductions, "{congestion:?}: {seen:?}");
        assert_eq!(announcements(&pair), 1, "{congestion:?}");
    }
}

#[test]
fn a_loss_behind_the_window_that_had_marks_reduces_the_next() {
    for congestion in ALL {
        let mut pair = grown(config(congestion));
        harm(&mut pair, &[110], &[2]);
        let end = pair.push(160);
        let seen = thresholds(&mut pair, end);
        assert_eq!(seen.len(), 3, "{congestion:?}: {seen:?}");
        assert_eq!((pair.a.counters.ecn_reductions, pair.a.counters.fast_retransmits), (1, 1));
    }
}

#[test]
fn marks_in_a_window_that_had_a_loss_reduce_it_no_further_and_the_loss_is_announced() {
    for congestion in ALL {
        let mut pair = grown(config(congestion));
        harm(&mut pair, &[2], &[9, 20, 59]);
        let end = pair.push(120);
        let seen = thresholds(&mut pair, end);
        let counters = pair.a.counters;
        assert_eq!(pair.b.counters.rx_congestion_experienced, 3);
        assert_eq!((counters.ecn_reductions, counters.fast_retransmits), (0, 1), "{congestion:?}");
        assert_eq!(seen.len(), 2, "{congestion:?}: {seen:?}");
        // RFC 3168 section 6.1.2: CWR is sent after a reduction for any reason.
        assert_eq!(announcements(&pair), 1, "{congestion:?}");
        let last = &pair.log.iter().rev().find(|(_, side, _)| *side == Side::B).unwrap().2;
        assert!(!last.is(Flags::ECE), "and heard");
    }
}

#[test]
fn a_spurious_reduction_is_not_undone_after_congestion_marks() {
    let run = |marked: &'static [usize]| {
        let mut pair = grown(config(CongestionAlgorithm::NewReno));
        harm(&mut pair, &[], marked);
        // Segment 2 is so late that it is sent again, but it arrives before its retransmission.
        pair.plan = each(|nr| vec![if nr == 2 { DELAY + ms(2) - Duration::from_micros(500) } else { DELAY }]);
        let before = pair.a.tcb().sending().window();
        let end = pair.push(40);
        let _ = thresholds(&mut pair, end);
        assert_eq!((pair.a.counters.fast_retransmits, pair.a.counters.spurious_recoveries), (1, 1));
        assert_eq!(
            pair.a.counters.ecn_reductions, 0,
            "by the loss that was none, and not by the marks once more"
        );
        u64::from(ssthresh(&pair)) >= before
    };
    assert!(run(&[]));
    assert!(!run(&[30]));
}

/// Loses the first `times` transmissions of the segment with this number.
fn lose_again(pair: &mut Pair, nr: usize, mut times: usize) {
    let from = pair.a.tcb().sending().positions().end() as usize - 1 + nr * EMSS;
    pair.plan = Box::new(move |side, packet| {
        let it = side == Side::A && packet.payload == pattern(from, EMSS);
        let lost = it && times > 0;
        times -= usize::from(lost);
        if lost { vec![] } else { vec![DELAY] }
    });
}

#[test]
fn each_loss_of_a_retransmission_lowers_the_window_once_more() {
    for congestion in ALL {
        let mut pair = grown(config(congestion));
        let before = u64::from(ssthresh(&pair)).min(60 * EMSS as u64);
        lose_again(&mut pair, 2, 3);
        let end = pair.push(160);
        let seen = thresholds(&mut pair, end);
        let counters = pair.a.counters;
        assert_eq!((counters.rto_expired, counters.lost_retransmits), (0, 2), "{congestion:?}");
        assert_eq!((counters.fast_retransmits, counters.tx_retransmits), (1, 3), "{congestion:?}");
        assert_eq!(seen.len(), 4, "{congestion:?}: {seen:?}");
        let factor = if congestion == CongestionAlgorithm::Cubic { 0.7 } else { 0.5 };
        for lowered in seen[1..].windows(2) {
            let wanted = f64::from(lowered[0]) * factor;
            assert!((f64::from(lowered[1]) - wanted).abs() < 2.0, "{congestion:?}: {seen:?}");
        }
        assert!(u64::from(seen[3]) < before / 2);
    }
}

#[test]
fn a_retransmission_that_is_lost_begins_the_round_anew() {
    for congestion in ALL {
        let mut pair = grown(config(congestion));
        lose_again(&mut pair, 2, 2);
        pair.push(160);
        assert!(pair.run_until(ms(50), |pair| pair.a.counters.lost_retransmits == 1));
        let (high, nxt) = (pair.a.tcb().sending().recovery_point(), pair.a.tcb().sending().positions().nxt());
        assert_eq!(high, nxt, "{congestion:?}: all that is in flight is of this recovery");
        // Segments are sent in proportion to the new threshold, so no acknowledgement causes a burst.
        let before = pair.data_sent(Side::A).len();
        let (seen, most) = (Cell::new(before), Cell::new(0));
        assert!(pair.run_until(ms(50), |pair| {
            let sent = pair.data_sent(Side::A).len();
            most.set(most.get().max(sent - seen.replace(sent)));
            pair.a.tcb().sending().phase() == Phase::Open
        }));
        assert!((1..=2).contains(&most.get()), "{congestion:?}: {}", most.get());
        // All data in flight is acknowledged in this round, so the number of bytes sent in this round equals
        // ssthresh.
        let (left, ssthresh) = ((seen.get() - before) * EMSS, ssthresh(&pair) as usize);
        assert!(left.abs_diff(ssthresh) <= 2 * EMSS, "{congestion:?}: {left} bytes, {ssthresh}");
    }
}

#[test]
fn loss_in_two_successive_windows_lowers_it_twice_and_no_more() {
    for congestion in ALL {
        let mut pair = grown(config(congestion));
        // Four segments are lost: two of the 60 segments that fit the window, and two of the segments that
        // are sent during the recovery.
        harm(&mut pair, &[2, 5, 75, 80], &[]);
        let end = pair.push(160);
        assert!(pair.run_until(ms(50), |pair| pair.a.tcb().sending().phase() == Phase::Fast));
        assert!(
            pair.a.tcb().sending().recovery_point() <= 1 + (80 + 70) * EMSS as u64,
            "number 75 is not sent yet"
        );
        let seen = thresholds(&mut pair, end);
        assert_eq!(seen.len(), 2, "{congestion:?}: {seen:?}, one more than at the start");
        assert_eq!((pair.a.counters.rto_expired, pair.a.counters.tx_retransmits), (0, 4));
    }
}

#[test]
fn a_window_that_comes_back_leaves_no_burst() {
    for congestion in ALL {
        // (Without SACK there are no tail loss probes.)
        let config = TcpConfig { ecn: EcnMode::Off, sack: false, ..config(congestion) };
        let mut pair = grown(config);
        // The segments of a whole window are late. Only the acknowledgements from the 40th segment on arrive.
        let (mut sent, window) = (0, pair.a.tcb().sending().window() / EMSS as u64);
        let forty = pair.a.params.iss + 1 + (80 + 40) * EMSS;
        pair.plan = Box::new(move |side, packet| {
            if side == Side::A && !packet.payload.is_empty() {
                sent += 1;
                return vec![if sent <= window + 1 { ms(150) + Duration::from_micros(sent) } else { DELAY }];
            }
            let early = packet.header.ack.is_some_and(|ack| ack < forty);
            if side == Side::B && early { vec![] } else { vec![DELAY] }
        });
        let before = pair.a.tcb().sending().window();
        pair.push(120);
        assert!(pair.run_until(ms(900), |pair| pair.a.counters.spurious_timeouts == 1));
        let (pipe, cwnd) = (pair.a.tcb().sending().bytes_in_pipe(), pair.a.tcb().sending().window());
        assert!(pipe + 30_000 < before, "there is room for a burst: {pipe} {before}");
        assert_eq!(cwnd, pipe + u64::from(initial_window(EMSS as u32)), "{congestion:?}");
        assert!(u64::from(ssthresh(&pair)) >= before, "slow start brings the rest");
        pair.push(60);
        assert!(
            pair.run_until(ms(50), |pair| pair.a.tcb().sending().window() >= before),
            "{congestion:?} {} {:?}",
            pair.a.tcb().sending().window(),
            pair.a.tcb()
        );
    }
}
