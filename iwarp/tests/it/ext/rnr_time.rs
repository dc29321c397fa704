//! The time for which a message of ours may wait at a peer without a receive request. Other messages that are
//! sent in this time do not extend it.

use std::time::Duration;

use crate::common::{Pair, Testbed, agreeing, remote_addr};
use iwarp::verbs::{ConnParam, SendOp, SendRequest, WcStatus};

/// Number of tries, each after 10.24 ms.
const RETRIES: u8 = 4;
const TIME_US: i64 = 4 * 10_240;

fn waiting() -> (Pair, crate::common::Connected, i64) {
    let mut pair = Testbed::new().hosts();
    let c = pair.connect(&ConnParam { min_rnr_timer: 20, rnr_retry: RETRIES, ..agreeing() });
    pair.run_us(1_000_000);
    c.qp_a.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
    let start_us = pair.now_us;
    (pair, c, start_us)
}

/// Each acknowledgement says that the message still waits, but does not extend the waiting time of the
/// message.
#[test]
fn acknowledgements_of_later_requests_give_a_message_no_more_time() {
    let (mut pair, c, start_us) = waiting();
    let (local, remote) = pair.regions(64);
    let to = SendOp::Write { remote: remote_addr(&remote, 0) };
    let wc = loop {
        assert!(pair.now_us - start_us < 10 * TIME_US, "it waits for ever");
        c.qp_a.post_send(&SendRequest::new(2, to, local.sge(0, 8))).unwrap();
        let end_us = pair.now_us + 3000;
        while pair.now_us < end_us {
            pair.poll();
            pair.now_us = pair.now_us.min(end_us);
        }
        if let Some(wc) = pair.a.cq.poll_one() {
            break wc;
        }
    };
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::RnrRetryExceeded));
    let took_us = pair.now_us - start_us;
    assert!((TIME_US..TIME_US + 5000).contains(&took_us), "{took_us} us");
}

/// If the queue pair has set a number of tries, this number is used, and not the number that the peer's
/// program announces.
#[test]
fn a_number_of_tries_of_the_queue_pair_counts() {
    let mut pair = Testbed::new().hosts();
    let param = ConnParam {
        min_rnr_timer: 20,
        rnr_retry: 6,
        rnr_timeout: Some(Duration::from_secs(60)),
        ..agreeing()
    };
    let c = pair.connect(&param);
    c.qp_a.set_rnr_retry(1).unwrap();
    pair.run_us(1_000_000);
    c.qp_a.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
    let start_us = pair.now_us;
    assert_eq!(pair.wc_a().status, WcStatus::RnrRetryExceeded);
    let took_us = pair.now_us - start_us;
    assert!((10_240..12_000).contains(&took_us), "{took_us} us");
}

/// With InfiniBand's shortest time, a program that waits for a processor would post its receive requests too
/// late. So each try has at least 4 ms. Without tries, a message fails at once.
#[test]
fn a_try_has_at_least_four_milliseconds() {
    for retry in [0, 1, 6] {
        let mut pair = Testbed::new().hosts();
        let c = pair.connect(&ConnParam { min_rnr_timer: 1, rnr_retry: retry, ..agreeing() });
        pair.run_us(1_000_000);
        c.qp_a.post_send(&SendRequest::empty(1, SendOp::Send)).unwrap();
        let start_us = pair.now_us;
        assert_eq!(pair.wc_a().status, WcStatus::RnrRetryExceeded);
        let (took_us, least_us) = (pair.now_us - start_us, 4000 * i64::from(retry));
        assert!((least_us..least_us + 1500).contains(&took_us), "{retry} tries: {took_us} us");
    }
}
