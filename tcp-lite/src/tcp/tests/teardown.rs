//! Tests of closing connections: each side first, both sides at once, half-closed streams, TIME-WAIT, abort.

use super::wire::*;
use crate::tcp::header::Flags;
use crate::tcp::{State, Verdict};
use crate::{CloseReason, Duration, SendError};

const GRACEFUL: Seen = Seen::Closed(CloseReason::Graceful);

#[test]
fn the_first_to_close_waits_and_the_second_is_gone() {
    let mut pair = Pair::established(config(), config());
    pair.a.close(pair.now);
    assert_eq!(pair.a.state(), State::FinWait1);
    pair.run_for(Duration::from_millis(20));
    assert_eq!((pair.a.state(), pair.b.state()), (State::FinWait2, State::CloseWait));
    assert_eq!(pair.b.seen, [Seen::Established, Seen::PeerClosed]);
    pair.b.close(pair.now);
    assert_eq!(pair.b.state(), State::LastAck);
    pair.run_for(Duration::from_millis(20));
    assert_eq!((pair.a.state(), pair.b.state()), (State::TimeWait, State::Closed));
    assert_eq!(pair.a.seen, [Seen::Established, Seen::PeerClosed, GRACEFUL]);
    assert_eq!(pair.b.seen, [Seen::Established, Seen::PeerClosed, GRACEFUL]);
    assert!(pair.a.tcb().is_closed_for_user() && !pair.a.tcb().is_droppable() && pair.b.tcb().is_droppable());
    pair.run_for(Duration::from_secs(11));
    assert!(pair.a.tcb().is_droppable());
    assert_eq!(pair.a.seen.len(), 3, "closed once");
    assert!(pair.a.holds_nothing() && pair.b.holds_nothing());
}

// Proves MPA-223.
#[test]
fn a_half_closed_connection_carries_data_the_other_way() {
    for (closes, sends) in [(Side::A, Side::B), (Side::B, Side::A)] {
        let mut pair = Pair::established(config(), config());
        let now = pair.now;
        pair.host(closes).push(now, &pattern(0, 900)).unwrap();
        pair.host(closes).close(now);
        assert_eq!(pair.host(closes).push(now, &[1]), Err(SendError::Closed));
        pair.run_for(Duration::from_millis(20));
        for at in 0..30 {
            let now = pair.now;
            pair.host(sends).push(now, &pattern(at * 1000, 1000)).unwrap();
            pair.run_for(Duration::from_millis(3));
        }
        let now = pair.now;
        pair.host(sends).close(now);
        pair.run_for(Duration::from_millis(50));
        assert_eq!(pair.host(sends).read(), pattern(0, 900));
        assert_eq!(pair.host(closes).read(), pattern(0, 30_000));
        assert_eq!((pair.host(closes).state(), pair.host(sends).state()), (State::TimeWait, State::Closed));
    }
}

#[test]
fn lost_fins_are_sent_again_and_the_wait_restarts() {
    for lost in 0..4 {
        let mut pair = Pair::established(config(), config());
        let mut sent = 0;
        pair.plan = Box::new(move |_, _| {
            sent += 1;
            if sent == lost + 1 { vec![] } else { vec![DELAY] }
        });
        pair.a.close(pair.now);
        pair.run_for(Duration::from_millis(300));
        pair.b.close(pair.now);
        pair.run_for(Duration::from_millis(500));
        assert_eq!((pair.a.state(), pair.b.state()), (State::TimeWait, State::Closed), "lost {lost}");
        // Of the frames 0 to 3, frames 0 and 2 are the FINs.
        let again = [&pair.a, &pair.b].map(|host| host.counters.tx_retransmits);
        assert_eq!(again, [u64::from(lost < 2), u64::from(lost >= 2)], "lost {lost}");
    }
}

#[test]
fn the_fin_follows_everything_queued() {
    let mut pair = Pair::established(config(), config());
    pair.push(40);
    pair.a.close(pair.now);
    pair.run_for(Duration::from_millis(100));
    assert_eq!((pair.b.read(), pair.b.state()), (pattern(0, 40_000), State::CloseWait));
    assert!(pair.a.holds_nothing());
}

#[test]
fn abort_sends_one_reset_that_the_peer_believes() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 10)).unwrap();
    pair.run_for(Duration::from_millis(50));
    pair.a.push(pair.now, &pattern(0, 10)).unwrap();
    pair.a.with(pair.now, |tcb, ctx| tcb.abort(ctx));
    assert!(!pair.a.tcb().is_droppable() && pair.a.tcb().is_closed_for_user());
    pair.run_for(Duration::from_millis(50));
    assert_eq!(pair.a.seen, [Seen::Established, Seen::Closed(CloseReason::Aborted)]);
    assert_eq!(pair.b.seen, [Seen::Established, Seen::Closed(CloseReason::Reset)]);
    assert!(pair.a.tcb().is_droppable() && pair.a.holds_nothing());
    assert_eq!((pair.a.counters.tx_resets, pair.b.counters.tx_resets), (1, 0));
}

#[test]
fn time_wait_answers_an_old_fin_and_yields_to_a_newer_syn() {
    let mut pair = Pair::established(config(), config());
    pair.a.close(pair.now);
    pair.run_for(Duration::from_millis(20));
    pair.b.close(pair.now);
    pair.run_for(Duration::from_millis(20));
    let (_, _, fin) =
        pair.log.iter().rev().find(|(_, side, p)| *side == Side::B && p.is(Flags::FIN)).unwrap().clone();
    assert_eq!(pair.a.receive(pair.now, &fin), Verdict::Done);
    assert!(pair.a.transmit(pair.now).is_some_and(|packet| packet.header.ack.is_some()));
    let mut syn = fin;
    syn.header.flags = Flags::SYN;
    syn.header.ack = None;
    syn.header.options.timestamps = None;
    assert_eq!(pair.a.receive(pair.now, &syn), Verdict::Done, "an old one does not reopen");
    syn.header.seq += 1000;
    assert_eq!(pair.a.receive(pair.now, &syn), Verdict::Reopen);
}
