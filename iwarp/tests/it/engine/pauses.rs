//! Pauses of a process that are longer than any timeout: a signal or a debugger stops the process, or its
//! machine is suspended or migrated. The engine is not polled during a pause, and no connection ends because
//! of the pause.

use std::time::Duration;

use dp::link::{LinkConfig, LinkPlan};
use iwarp::verbs::{CmEventKind, ConnParam, RecvRequest, SendOp, SendRequest, WcStatus};

use crate::common::initiator::Initiator;
use crate::common::raw::request;
use crate::common::responder::Responder;
use crate::common::{Connected, Pair, Testbed, agreeing, remote_addr};

/// A pause that is longer than any timeout in the tests.
const PAUSE_US: i64 = 600_000_000;

/// Polls A alone, and then advances the time by [`PAUSE_US`] without a poll.
fn pause(pair: &mut Pair) {
    for _ in 0..5 {
        pair.a.engine.poll_at(tcp_lite::Instant::from_micros(pair.now_us));
        pair.now_us += 1;
    }
    pair.now_us += PAUSE_US;
}

/// Checks that neither user has received an event of an end, and that a message of A arrives.
fn goes_on(pair: &mut Pair, c: &Connected) {
    pair.run_us(300_000);
    let events = [pair.a.channel.poll(), pair.b.channel.poll()];
    assert!(events.iter().all(Option::is_none), "{events:?}");
    let (local, remote) = pair.regions(64);
    c.qp_b.post_recv(&RecvRequest::new(91, remote.sge(0, 64))).unwrap();
    c.qp_a.post_send(&SendRequest::new(90, SendOp::Send, local.sge(0, 64))).unwrap();
    for (wc, wr_id) in [(pair.wc_b(), 91), (pair.wc_a(), 90)] {
        assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
    }
}

#[test]
fn bytes_in_flight_are_acknowledged_after_a_pause() {
    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(4096);
    let write = SendOp::Write { remote: remote_addr(&remote, 0) };
    c.qp_a.post_send(&SendRequest::new(1, write, local.sge(0, 4096))).unwrap();
    pause(&mut pair);
    assert_eq!(pair.wc_a().status, WcStatus::Success);
    goes_on(&mut pair, &c);
}

/// The pause occurs while the neighbour is resolved, while A waits for the Reply, or while a responder waits
/// for the Request.
#[test]
fn a_connection_is_set_up_across_pauses() {
    let (mut pair, _listener) = Pair::listening();
    let (qp_a, id_a) = pair.dial(&ConnParam::default());
    pause(&mut pair);
    let asked = told!(pair.event_b(), ConnectRequest { .. });
    pair.run_us(500_000);
    pause(&mut pair);
    pair.run_us(500_000);
    let qp_b = pair.b.qp();
    asked.id.accept(&qp_b, &ConnParam::default()).unwrap();
    let (established_a, established_b) = (pair.event_a(), pair.event_b());
    for event in [&established_a, &established_b] {
        assert!(matches!(event.kind, CmEventKind::Established { .. }), "{event:?}");
    }
    let c = Connected { qp_a, qp_b, id_a, id_b: asked.id, established_a, established_b };
    goes_on(&mut pair, &c);

    let mut responder = Responder::new();
    responder.open(b"");
    responder.pair.until(500_000, |_| false);
    responder.pair.now_us += PAUSE_US;
    responder.pair.until(500_000, |_| false);
    responder.pair.send(&request(true));
    let _event = told!(responder.event(), ConnectRequest { .. });
}

/// After a pause, the peer has one more second to answer, even if the time for the answer was nearly over
/// before the pause: the peer may be waiting for lost segments.
#[test]
fn a_peer_has_a_second_to_answer_after_a_pause() {
    for answers in [true, false] {
        let mut initiator = Initiator::new(&ConnParam::default());
        let begun_us = initiator.pair.now_us;
        let left_us = ConnParam::default().timeout.as_micros() as i64 - 200_000;
        initiator.pair.until(left_us, |_| false);
        assert!(initiator.channel.poll().is_none());
        initiator.pair.now_us += PAUSE_US;
        if answers {
            initiator.pair.until(150_000, |_| false);
            assert!(initiator.channel.poll().is_none(), "as long as it had left");
        } else {
            told!(initiator.event(), ConnectError { .. });
            let took_us = initiator.pair.now_us - begun_us - PAUSE_US - left_us;
            assert!((100_000..=1_100_000).contains(&took_us), "{took_us}");
        }
    }
}

#[test]
fn a_graceful_close_waits_for_its_read_across_a_pause() {
    let (mut pair, c) = Pair::connected();
    let (local, remote) = pair.regions(4096);
    let read = SendOp::Read { remote: remote_addr(&remote, 0) };
    c.qp_a.post_send(&SendRequest::new(1, read, local.sge(0, 4096))).unwrap();
    c.id_a.disconnect();
    pause(&mut pair);
    assert_eq!(pair.wc_a().status, WcStatus::Success);
    told!(pair.event_a(), Disconnected { error: None, .. });
}

#[test]
fn a_link_that_was_down_before_a_pause_may_come_back_after_it() {
    for point_to_point in [false, true] {
        let (bed, control) = Testbed::with_control(&LinkConfig { point_to_point, ..LinkConfig::default() });
        let mut pair = bed.hosts();
        let c = pair.connect(&ConnParam::default());
        pair.run_us(1_000_000);
        control.set_up(false);
        pair.run_us(200_000);
        pair.now_us += PAUSE_US;
        pair.run_us(200_000);
        control.set_up(true);
        goes_on(&mut pair, &c);
    }
}

/// A Send waits for a receive request when both hosts pause. Neither host counts the pause as waiting time.
#[test]
fn a_message_waits_for_its_receive_across_a_pause() {
    let mut pair = Testbed::new().hosts();
    // A waits for six tries of 655 ms. B lets a message wait for 3.5 s, which is a little less.
    let rnr_timeout = Some(Duration::from_millis(3500));
    let param = ConnParam { min_rnr_timer: 0, rnr_retry: 6, rnr_timeout, ..agreeing() };
    let c = pair.connect(&param);
    let (local, remote) = pair.regions(64);
    c.qp_a.post_send(&SendRequest::new(1, SendOp::Send, local.sge(0, 64))).unwrap();
    pair.run_us(500_000);
    pair.now_us += PAUSE_US;
    pair.run_us(500_000);
    assert!(pair.a.cq.poll_one().is_none());
    c.qp_b.post_recv(&RecvRequest::new(2, remote.sge(0, 64))).unwrap();
    for wc in [pair.wc_b(), pair.wc_a()] {
        assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
    }
    goes_on(&mut pair, &c);
}

/// The idle timeout and the keepalives of a connection do not count time in which the engine was not polled.
#[test]
fn an_idle_connection_outlives_a_pause() {
    let mut pair = Testbed::new().hosts();
    let idle = ConnParam { idle_timeout: Some(Duration::from_secs(30)), ..ConnParam::default() };
    let c = pair.connect(&idle);
    for _ in 0..3 {
        pair.run_us(5_000_000);
        pair.now_us += PAUSE_US;
    }
    pair.run_us(5_000_000);
    goes_on(&mut pair, &c);
    // The connection ends when it is idle for 30 seconds without a pause.
    pair.run_us(31_000_000);
    told!(pair.event_a(), Disconnected { error: Some(_), .. });
}

/// For eight seconds, only B is polled. The wire delivers B's frames by the clock that both ports share, and
/// not by the time at which A was last polled.
#[test]
fn a_wire_goes_by_the_clock_and_not_by_the_time_of_one_engine() {
    let delay = || LinkPlan { delay_us: 200, ..LinkPlan::default() };
    let mut pair = Pair::new(&LinkConfig { a_to_b: delay(), b_to_a: delay(), ..LinkConfig::default() });
    let c = pair.connect(&ConnParam::default());
    let (local, remote) = pair.regions(64);
    let write = SendOp::Write { remote: remote_addr(&remote, 0) };
    c.qp_a.post_send(&SendRequest::new(1, write, local.sge(0, 64))).unwrap();
    pair.a.engine.poll_at(tcp_lite::Instant::from_micros(pair.now_us));
    for _ in 0..80 {
        pair.now_us += 100_000;
        pair.b.engine.poll_at(tcp_lite::Instant::from_micros(pair.now_us));
    }
    pair.run_us(100_000);
    assert_eq!(pair.wc_a().status, WcStatus::Success);
    c.qp_a.post_recv(&RecvRequest::new(2, local.sge(0, 64))).unwrap();
    c.qp_b.post_send(&SendRequest::new(3, SendOp::Send, remote.sge(0, 64))).unwrap();
    pair.run_us(50_000);
    assert_eq!(pair.a.cq.poll_one().map(|wc| (wc.wr_id, wc.status)), Some((2, WcStatus::Success)));
}
