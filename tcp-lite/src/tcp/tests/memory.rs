//! Tests of state that remains after a recovery and affects later recoveries: RACK's window, marks, and
//! reductions that may be undone.

use super::stream::{each, lose};
use super::wire::*;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::send::Phase;
use crate::{CongestionAlgorithm, Duration, TcpConfig};

fn config() -> TcpConfig {
    TcpConfig { congestion: CongestionAlgorithm::NewReno, ..super::wire::config() }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// RACK's reordering window in quarters of a round trip, when nothing is in flight.
fn quarters(pair: &Pair) -> u64 {
    pair.a.tcb().sending().reordering_window_for_test().total_micros() / 500
}

#[test]
fn a_copy_widens_the_window_for_sixteen_recoveries_unless_a_probe_made_it() {
    let mut pair = Pair::established(config(), config());
    assert_eq!(quarters(&pair), 1);
    // The acknowledgement of a single segment is lost.
    let mut acks = 0;
    pair.plan = Box::new(move |side, _| {
        acks += usize::from(side == Side::B);
        if side == Side::B && acks == 1 { vec![] } else { vec![DELAY] }
    });
    pair.push(1);
    pair.run_for(ms(500));
    assert_eq!((pair.a.counters.tail_loss_probes, pair.a.counters.dsack_received), (1, 1));
    assert_eq!(quarters(&pair), 1, "a probe on suspicion");

    pair.plan = each(|nr| if nr == 2 { vec![DELAY, DELAY + ms(1)] } else { vec![DELAY] });
    pair.push(6);
    pair.run_for(ms(500));
    assert_eq!((pair.a.counters.dsack_received, quarters(&pair)), (2, 2));
    for recovery in 1..=16 {
        assert_eq!(quarters(&pair), 2, "{recovery}");
        pair.plan = lose(&[0]);
        pair.push(6);
        pair.run_for(ms(500));
        assert_eq!(pair.a.counters.fast_retransmits, recovery);
    }
    assert_eq!(quarters(&pair), 1);
}

#[test]
fn a_recovery_that_was_taken_back_leaves_the_window_open_to_the_next_loss() {
    let mut pair = Pair::established(config(), config());
    // The second segment is so late that it is sent again. The sixth segment is lost. The segments after it
    // are delayed, so they reveal the loss later.
    pair.plan = each(|nr| match nr {
        1 => vec![DELAY + ms(2) - Duration::from_micros(500)],
        5 => vec![],
        6.. => vec![DELAY + ms(3)],
        _ => vec![DELAY],
    });
    pair.push(10);
    pair.run_for(ms(500));
    let counters = pair.a.counters;
    assert_eq!((counters.spurious_recoveries, counters.fast_retransmits), (1, 2));
    assert!(
        pair.a.tcb().sending().congestion().ssthresh() <= 5 * EMSS as u32,
        "{}",
        pair.a.tcb().sending().congestion().ssthresh()
    );
}

#[test]
fn no_probe_is_sent_while_the_timer_repairs() {
    let mut pair = Pair::established(config(), config());
    // Both segments, the probe, and the first repair of the second segment are lost.
    pair.plan = each(|nr| if nr == 3 || nr > 4 { vec![DELAY] } else { vec![] });
    pair.push(2);
    assert!(pair.run_until(ms(900), |pair| pair.a.counters.tx_retransmits == 3));
    assert_eq!((pair.a.tcb().sending().phase(), pair.a.counters.tail_loss_probes), (Phase::Loss, 1));
    assert!(pair.run_until(ms(900), |pair| pair.a.holds_nothing()));
    assert_eq!((pair.a.counters.tail_loss_probes, pair.a.counters.rto_expired), (1, 2));
}
