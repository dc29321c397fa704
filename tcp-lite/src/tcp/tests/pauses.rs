//! Tests of a process that is stopped for a while: no timer runs, and nothing is sent or received. So the
//! silence during the pause does not mean that the peer has failed.

use super::wire::*;
use crate::tcp::State;
use crate::{CloseReason, Duration, TcpConfig};

/// A pause that is longer than the user timeout.
const PAUSE: Duration = Duration::from_secs(11);

/// Stops `a` for [`PAUSE`], and then runs its timers.
fn pause(pair: &mut Pair) {
    pair.now += PAUSE;
    let now = pair.now;
    pair.a.with(now, |tcb, ctx| tcb.on_timer(ctx));
}

/// Checks that both sides continue, and that the stream of `a` arrives.
fn goes_on(pair: &mut Pair, bytes: usize) {
    pair.plan = Box::new(|_, _| vec![DELAY]);
    pair.run_for(Duration::from_secs(3));
    assert_eq!((pair.a.state(), pair.b.state()), (State::Established, State::Established));
    assert_eq!(pair.b.frontier, bytes as u64);
}

/// Checks that the peer is gone: `a` ends after one more user timeout, in which it has sent several segments.
fn ends(pair: &mut Pair) {
    let (start, sent) = (pair.now, pair.log.len());
    assert!(
        pair.run_until(Duration::from_secs(60), |pair| matches!(pair.a.seen.last(), Some(Seen::Closed(_))))
    );
    assert_eq!(pair.a.seen.last(), Some(&Seen::Closed(CloseReason::TimedOut)));
    assert_eq!(pair.now - start, Duration::from_secs(10));
    assert!(pair.log.len() - sent >= 3, "{:?}", &pair.log[sent..]);
}

#[test]
fn bytes_in_flight_are_sent_again_after_a_pause_before_the_peer_is_given_up() {
    for is_gone in [false, true] {
        let mut pair = Pair::established(config(), config());
        pair.run_for(Duration::from_secs(1));
        pair.plan = Box::new(|_, _| vec![]);
        pair.a.push(pair.now, &pattern(0, 100)).unwrap();
        pair.transmit();
        pause(&mut pair);
        let counters = pair.a.counters;
        assert_eq!(
            (pair.a.state(), counters.tail_loss_probes + counters.rto_expired),
            (State::Established, 0)
        );
        pair.transmit();
        assert_eq!(pair.a.counters.tail_loss_probes, 1, "it asks at once");
        if is_gone { ends(&mut pair) } else { goes_on(&mut pair, 100) }
    }
}

#[test]
fn a_syn_is_sent_again_after_a_pause() {
    let mut pair = Pair::new(config(), config());
    pair.plan = Box::new(|_, _| vec![]);
    pair.a.connect(pair.now);
    pair.transmit();
    pause(&mut pair);
    assert_eq!((pair.a.state(), pair.a.counters.rto_expired), (State::SynSent, 1));
    goes_on(&mut pair, 0);
}

#[test]
fn a_fin_is_sent_again_after_a_pause() {
    let mut pair = Pair::established(config(), config());
    pair.plan = Box::new(|_, _| vec![]);
    pair.a.close(pair.now);
    pair.transmit();
    pause(&mut pair);
    assert_eq!(pair.a.state(), State::FinWait1);
    pair.plan = Box::new(|_, _| vec![DELAY]);
    pair.run_for(Duration::from_secs(1));
    assert_eq!((pair.a.state(), pair.b.state()), (State::FinWait2, State::CloseWait));
}

/// No segment fits into the window, so no segment is in flight.
#[test]
fn a_closed_window_is_probed_after_a_pause() {
    for is_gone in [false, true] {
        let window = TcpConfig { recv_window_bytes: 1000, ..config() };
        let mut pair = Pair::established(config(), window);
        pair.b.with(pair.now, |tcb, ctx| tcb.hold(ctx, 1000));
        pair.a.push(pair.now, &pattern(0, 1000)).unwrap();
        pair.a.push(pair.now, &pattern(1000, 500)).unwrap();
        pair.run_for(Duration::from_secs(1));
        assert!(pair.a.counters.window_probes > 0);
        let probes = pair.a.counters.window_probes;
        pair.plan = Box::new(|_, _| vec![]);
        pause(&mut pair);
        assert_eq!((pair.a.state(), pair.a.counters.window_probes), (State::Established, probes + 1));
        if is_gone {
            ends(&mut pair);
        } else {
            pair.b.with(pair.now, |tcb, ctx| tcb.release(ctx, 1000));
            goes_on(&mut pair, 1500);
        }
    }
}

/// The intervals between the probes grow, and the peer answers each probe. The answers show that the peer is
/// alive, so a long interval does not count as a pause.
#[test]
fn the_closed_window_of_a_peer_that_answers_is_waited_for_for_minutes() {
    let window = TcpConfig { recv_window_bytes: 1000, ..config() };
    let mut pair = Pair::established(config(), window);
    pair.b.with(pair.now, |tcb, ctx| tcb.hold(ctx, 1000));
    pair.a.push(pair.now, &pattern(0, 1000)).unwrap();
    pair.a.push(pair.now, &pattern(1000, 500)).unwrap();
    pair.run_for(Duration::from_secs(300));
    assert_eq!(pair.a.state(), State::Established);
    // When the interval between probes has reached its maximum, it is half a user timeout.
    let probes = pair.a.counters.window_probes;
    assert!((60..75).contains(&probes), "{probes} probes");
    // Without an answer, the connection ends a user timeout after the last answer.
    pair.plan = Box::new(|_, _| vec![]);
    pair.run_for(Duration::from_millis(10_001));
    assert_eq!(pair.a.seen.last(), Some(&Seen::Closed(CloseReason::TimedOut)));
}
