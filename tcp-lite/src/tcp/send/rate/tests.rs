use super::*;
use crate::CongestionAlgorithm;
use crate::tcp::congestion::initial_window;

const MSS: u32 = 1000;

fn at(ms: i64) -> Instant {
    Instant::from_millis(ms)
}

fn config(congestion: CongestionAlgorithm) -> TcpConfig {
    TcpConfig { congestion, ..TcpConfig::default() }
}

/// Returns the rate control of an established connection with a round-trip time of 100 ms.
fn established(congestion: CongestionAlgorithm) -> (TcpConfig, RateControl) {
    let config = config(congestion);
    let mut rate = RateControl::new(&config, MSS);
    rate.establish(at(100), &config, MSS, (Some(100_000), false));
    (config, rate)
}

/// Returns the state after `bytes` bytes were sent, in one transmission for each `MSS` bytes.
fn sent(bytes: u64) -> SentSoFar {
    SentSoFar { nxt: bytes, transmissions: (bytes / u64::from(MSS)) as u32 }
}

fn loss(oldest: u64, latest: Option<u32>) -> Loss {
    Loss { oldest, latest: latest.map(|nr| Sent { at: at(0), nr }), in_flight: 8000 }
}

#[test]
fn a_window_of_data_reduces_the_window_once_and_what_was_sent_since_once_more() {
    let (_, mut rate) = established(CongestionAlgorithm::NewReno);
    assert!(rate.reduce_for_loss(at(200), &loss(1000, Some(8)), sent(9000)).is_some());
    assert_eq!((rate.cwnd(), rate.ssthresh()), (4000, 4000), "half of what was in flight");
    assert!(rate.reduce_for_loss(at(210), &loss(8999, Some(9)), sent(12_000)).is_none());
    assert!(!rate.reduce_for_marks(at(210), (9000, true), 8000, sent(12_000)), "of before the reduction");
    assert_eq!(rate.cwnd(), 4000);
    assert!(rate.answers(8999, None) && !rate.answers(9000, None));
    // A retransmission was lost. More bytes are in flight than the window allows, so the window is halved,
    // and does not become half of the bytes in flight.
    assert!(rate.reduce_for_loss(at(220), &loss(1000, Some(10)), sent(12_000)).is_some());
    assert_eq!(rate.cwnd(), 2000);
    // Bytes that were sent after the reduction are lost: the window becomes half of the bytes in flight.
    assert!(rate.reduce_for_loss(at(230), &loss(12_000, None), sent(20_000)).is_some());
    assert_eq!(rate.cwnd(), 4000);
}

#[test]
fn marks_in_a_recovery_halve_the_window_rather_than_what_is_in_flight() {
    for (recovering, cwnd) in [(false, 15_000), (true, 5000)] {
        let (_, mut rate) = established(CongestionAlgorithm::NewReno);
        assert!(
            !rate.reduce_for_marks(at(200), (0, recovering), 30_000, sent(30_000)),
            "nothing acknowledged"
        );
        assert!(rate.reduce_for_marks(at(200), (1, recovering), 30_000, sent(30_000)));
        assert_eq!(rate.cwnd(), cwnd);
    }
}

#[test]
fn a_reduction_for_marks_covers_losses_if_it_is_as_deep() {
    for (algorithm, covers) in [(CongestionAlgorithm::NewReno, true), (CongestionAlgorithm::Dctcp, false)] {
        let (_, mut rate) = established(algorithm);
        assert!(rate.reduce_for_marks(at(200), (1000, false), 8000, sent(9000)));
        assert_eq!(rate.answers(1000, None), covers, "{algorithm:?}");
        assert!(!rate.reduce_for_marks(at(201), (9000, false), 8000, sent(9000)));
    }
}

#[test]
fn the_next_new_segment_announces_a_reduction_which_an_undo_takes_back() {
    let (config, mut rate) = established(CongestionAlgorithm::NewReno);
    assert!(!rate.is_cwr_next());
    let before = rate.reduce_for_loss(at(200), &loss(1000, None), sent(9000)).expect("reduced");
    assert!(rate.is_cwr_next());
    rate.on_sent(at(200), &config, MSS, MSS);
    assert!(rate.is_cwr_next(), "a retransmission has no CWR");
    rate.undo_reduction(at(210), u64::MAX, before);
    assert!(!rate.is_cwr_next() && !rate.answers(1000, None));
    assert_eq!(rate.cwnd(), initial_window(MSS));
    let _ = rate.on_timeout(at(300), 8000, Timeout::Congestion, sent(9000));
    assert!(rate.is_cwr_next());
    rate.on_new_sent(at(300), &config, MSS, MSS);
    assert!(!rate.is_cwr_next());
}

#[test]
fn a_timeout_doubles_the_timeout_and_tells_of_the_reduction_before() {
    let (_, mut rate) = established(CongestionAlgorithm::NewReno);
    assert!(rate.reduce_for_loss(at(200), &loss(1000, None), sent(9000)).is_some());
    let rto = rate.rto();
    let before = rate.on_timeout(at(500), 3000, Timeout::Congestion, sent(12_000));
    assert_eq!((rate.rto(), rate.cwnd()), (rto * 2, MSS));
    assert!(rate.answers(11_999, None));
    rate.undo_reduction(at(510), 3000, before);
    assert!(rate.answers(8999, None) && !rate.answers(9000, None), "the one before counts again");
    assert_eq!(rate.cwnd(), 3000);
    rate.forget_rto_backoff();
    assert_eq!(rate.rto(), rto);
}

#[test]
fn the_window_grows_only_if_it_was_used_and_no_marks_are_echoed() {
    let grown = |pipe, ece, delivered| {
        let (config, mut rate) = established(CongestionAlgorithm::NewReno);
        let sample = RateSample { acked: 1000, delivered, rtt_us: None, pipe, una: 1001, nxt: 20_000, ece };
        rate.on_ack(at(200), &config, MSS, &sample);
        rate.cwnd() - initial_window(MSS)
    };
    assert_eq!(grown(5000, false, 1000), 1000, "half of the window was used in slow start");
    assert_eq!(grown(5000, false, 700), 700, "by what was delivered");
    assert_eq!(grown(4999, false, 1000), 0);
    assert_eq!(grown(10_000, true, 1000), 0);
    // In congestion avoidance, the window counts as used if less than a segment of the window is free.
    for (pipe, grows) in [(2999, false), (3000, true)] {
        let (config, mut rate) = established(CongestionAlgorithm::NewReno);
        assert!(rate.reduce_for_loss(at(200), &loss(1, None), sent(9000)).is_some());
        let sample = RateSample {
            acked: 4000,
            delivered: 4000,
            rtt_us: None,
            pipe,
            una: 9001,
            nxt: 20_000,
            ece: false,
        };
        rate.on_ack(at(300), &config, MSS, &sample);
        assert_eq!(rate.cwnd() > 4000, grows, "{pipe}");
    }
}

#[test]
fn a_pause_longer_than_the_timeout_leaves_no_more_than_the_initial_window() {
    let (config, mut rate) = established(CongestionAlgorithm::NewReno);
    for round in 0..40 {
        let sample = RateSample {
            acked: 1000,
            delivered: 1000,
            rtt_us: None,
            pipe: 1 << 20,
            una: round * 1000,
            nxt: round * 1000 + 1,
            ece: false,
        };
        rate.on_ack(at(200), &config, MSS, &sample);
    }
    let cwnd = rate.cwnd();
    assert!(cwnd > initial_window(MSS));
    rate.on_idle(at(1000), rate.rto());
    assert_eq!(rate.cwnd(), cwnd);
    rate.on_idle(at(1000), rate.rto() + Duration::from_micros(1));
    assert_eq!(rate.cwnd(), initial_window(MSS));
}

#[test]
fn a_handshake_gives_the_first_sample_or_a_cautious_start() {
    let (config, rate) = established(CongestionAlgorithm::NewReno);
    assert_eq!((rate.srtt_us(), rate.min_rtt_us(), rate.cwnd()), (100_000, 100_000, initial_window(MSS)));
    let start = |lost, backed_off| {
        let mut rate = RateControl::new(&config, MSS);
        if backed_off {
            rate.back_off_rto();
        }
        rate.establish(at(100), &config, MSS, (None, lost));
        (rate.rto(), rate.cwnd())
    };
    assert_eq!(start(false, true), (config.rto_initial, initial_window(MSS)), "its backoff is over");
    assert_eq!(start(true, true), (Duration::from_secs(3).max(config.rto_initial), MSS));
}

#[test]
fn the_pace_closes_behind_a_burst_and_opens_again() {
    let (mut config, mut rate) = established(CongestionAlgorithm::NewReno);
    config.pacing = Some(Pacing { burst_segments: 2, rtt_min: Duration::from_micros(100_000) });
    assert!(rate.is_paced(&config));
    for segment in 0..2 {
        assert!(rate.is_pace_open(), "{segment}");
        rate.on_sent(at(1000), &config, MSS, MSS);
    }
    // In slow start, two windows of ten segments are sent in 100 ms.
    assert_eq!((rate.is_pace_open(), rate.pace_opens_at()), (false, Some(at(1010))));
    rate.advance_pace(at(1010));
    assert!(rate.is_pace_open());
    config.pacing = None;
    rate.on_sent(at(1010), &config, MSS, MSS);
    assert!(rate.is_pace_open() && !rate.is_paced(&config));
}
