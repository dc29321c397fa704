//! Tests of properties that all algorithms have, and helpers for the tests of each algorithm.

use super::*;

pub(super) const NOW: Instant = Instant::ZERO;

pub(super) fn ack(delivered: u32) -> Ack {
    Ack { now: NOW, acked: delivered, delivered, una: 1, nxt: 1, rtt_us: None, srtt_us: 100, paced: false }
}

const ALL: [CongestionAlgorithm; 3] =
    [CongestionAlgorithm::NewReno, CongestionAlgorithm::Cubic, CongestionAlgorithm::Dctcp];

#[test]
fn the_initial_window_is_that_of_rfc_6928() {
    for algorithm in ALL {
        let window = |mss, syn_lost| Congestion::new(algorithm, mss, syn_lost).cwnd();
        assert_eq!(window(1000, false), 10_000);
        assert_eq!(window(1448, false), 14_480);
        assert_eq!(window(8948, false), 17_896);
        assert_eq!(window(1448, true), 1448);
    }
}

#[test]
fn slow_start_doubles_until_the_threshold() {
    for algorithm in ALL {
        let mut congestion = Congestion::new(algorithm, 1000, false);
        congestion.on_ack(&ack(10_000));
        assert_eq!(congestion.cwnd(), 20_000, "{algorithm:?}");
        congestion.on_timeout(NOW, 20_000, Timeout::Congestion);
        assert_eq!(congestion.cwnd(), 1000, "{algorithm:?}");
        let threshold = congestion.ssthresh();
        for window in [2000, 4000, 8000, threshold] {
            congestion.on_ack(&ack(congestion.cwnd()));
            assert_eq!(congestion.cwnd(), window, "{algorithm:?}");
        }
    }
}

#[test]
fn in_slow_start_an_acknowledgement_adds_sixty_four_segments_at_most_unless_they_are_paced() {
    for algorithm in ALL {
        for (paced, window) in [(false, 74_000), (true, 110_000)] {
            let mut congestion = Congestion::new(algorithm, 1000, false);
            congestion.on_ack(&Ack { paced, ..ack(100_000) });
            assert_eq!(congestion.cwnd(), window, "{algorithm:?}");
        }
    }
}

#[test]
fn congestion_that_was_answered_leaves_the_threshold_at_a_timeout_which_is_taken_back_alone() {
    for algorithm in ALL {
        let mut congestion = Congestion::new(algorithm, 1000, false);
        congestion.on_congestion(NOW, 10_000, Signal::Loss);
        let reduced = congestion.ssthresh();
        congestion.on_timeout(NOW, 4000, Timeout::Answered);
        assert_eq!((congestion.cwnd(), congestion.ssthresh()), (1000, reduced), "{algorithm:?}");
        congestion.undo(NOW, u32::MAX);
        assert_eq!((congestion.cwnd(), congestion.ssthresh()), (reduced, reduced), "{algorithm:?}");
    }
}

#[test]
fn a_window_that_is_not_used_does_not_grow() {
    for algorithm in ALL {
        let mut congestion = Congestion::new(algorithm, 1000, false);
        congestion.on_unused(NOW);
        congestion.observe(1000, 1, 1, true);
        assert_eq!(congestion.cwnd(), 10_000, "{algorithm:?}");
    }
}

#[test]
fn a_reduction_is_taken_back_once_and_no_window_is_below_two_segments() {
    for algorithm in ALL {
        let mut congestion = Congestion::new(algorithm, 1000, false);
        congestion.on_congestion(NOW, 10_000, Signal::Loss);
        let once = (congestion.cwnd(), congestion.ssthresh());
        assert!(once.0 < 10_000 && once.0 == once.1, "{algorithm:?}");
        congestion.on_timeout(NOW, 5000, Timeout::Congestion);
        congestion.undo(NOW, u32::MAX);
        assert_eq!((congestion.cwnd(), congestion.ssthresh()), once, "{algorithm:?}");
        congestion.undo(NOW, u32::MAX);
        assert_eq!((congestion.cwnd(), congestion.ssthresh()), once, "{algorithm:?}: once");
        for _ in 0..50 {
            congestion.on_congestion(NOW, 1000, Signal::Loss);
        }
        assert_eq!(congestion.cwnd(), 2000, "{algorithm:?}");
    }
}

#[test]
fn an_idle_connection_begins_again_with_the_first_window() {
    for algorithm in ALL {
        let mut congestion = Congestion::new(algorithm, 1000, false);
        congestion.on_ack(&ack(10_000));
        congestion.on_idle(NOW, Duration::from_secs(1));
        assert_eq!(congestion.cwnd(), 10_000, "{algorithm:?}");
    }
}
