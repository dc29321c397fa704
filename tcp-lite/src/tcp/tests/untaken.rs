//! Bytes that are acknowledged but not taken by the peer's user.

use testkit::dice::Dice;

use super::wire::*;
use crate::Duration;
use crate::Event;
use crate::tcp::State;
use crate::tcp::header::Flags;

/// The state at A: up to which offset its bytes are acknowledged, and up to which they are taken.
fn known(pair: &Pair) -> (u64, u64) {
    (pair.a.tcb().send_offsets().1, pair.a.tcb().taken_offset())
}

fn acknowledged_events(pair: &Pair) -> usize {
    pair.a.seen.iter().filter(|seen| **seen == Seen::Acknowledged).count()
}

fn set_untaken(pair: &mut Pair, from: Option<u64>) {
    pair.b.with(pair.now, |tcb, _| tcb.set_untaken(from));
}

/// Checks that each segment of B tells which bytes are taken: a pure acknowledgement by the option, any
/// other segment by acknowledging only the taken bytes.
fn check_segments(pair: &Pair, since: usize, untaken_from: usize) {
    let first = pair.a.params.iss + 1;
    for (_, side, packet) in &pair.log[since..] {
        let Some(ack) = packet.header.ack.filter(|_| *side == Side::B) else { continue };
        let ack = ack - first;
        match packet.header.options.untaken {
            Some(seq) => {
                assert!(packet.payload.is_empty() && !packet.is(Flags::FIN));
                assert_eq!(seq - first, untaken_from);
                assert!(ack > untaken_from);
            }
            None => assert!(ack <= untaken_from, "{ack} is acknowledged as taken"),
        }
    }
}

#[test]
fn the_peer_knows_what_is_not_taken_and_when_it_is() {
    let mut pair = Pair::established(config(), config());
    pair.a.with(pair.now, |tcb, _| tcb.report_acknowledgements(true));
    pair.a.push(pair.now, &pattern(0, 300)).unwrap();
    pair.run_for(Duration::from_millis(50));
    assert_eq!(known(&pair), (300, 300));
    pair.a.take_event(|conn| Event::Acknowledged { conn });
    // The user of B waits with the bytes from 300 on.
    let since = pair.log.len();
    pair.a.push(pair.now, &pattern(300, 200)).unwrap();
    pair.run_until(Duration::from_millis(5), |pair| pair.b.frontier == 500);
    set_untaken(&mut pair, Some(300));
    pair.run_for(Duration::from_millis(2));
    assert_eq!(known(&pair), (500, 300));
    // Data of B, more data of A, and a retransmission change nothing about it.
    for part in 0..5 {
        pair.b.push(pair.now, &pattern(part * 1000, 1000)).unwrap();
    }
    for part in 0..3 {
        pair.a.push(pair.now, &pattern(500 + part * 1000, 1000)).unwrap();
    }
    pair.run_for(Duration::from_millis(300));
    assert_eq!((known(&pair), pair.a.frontier, pair.b.frontier), ((3500, 300), 5000, 3500));
    check_segments(&pair, since, 300);
    assert_eq!(pair.a.tcb().info(&config(), any(), any()).retransmits, 0);
    // A part is taken, then all.
    pair.a.take_event(|conn| Event::Acknowledged { conn });
    let before = acknowledged_events(&pair);
    set_untaken(&mut pair, Some(1000));
    pair.run_for(Duration::from_millis(2));
    assert_eq!((known(&pair), acknowledged_events(&pair)), ((3500, 1000), before + 1));
    pair.a.take_event(|conn| Event::Acknowledged { conn });
    set_untaken(&mut pair, None);
    pair.run_for(Duration::from_millis(2));
    assert_eq!((known(&pair), acknowledged_events(&pair)), ((3500, 3500), before + 2));
    // As before.
    pair.a.push(pair.now, &pattern(3500, 100)).unwrap();
    pair.run_for(Duration::from_millis(50));
    assert_eq!(known(&pair), (3600, 3600));
}

fn any() -> std::net::SocketAddr {
    "127.0.0.1:1".parse().unwrap()
}

/// Segments of B that arrive in another order: what was taken stays taken.
#[test]
fn an_overtaken_segment_takes_nothing_back() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 500)).unwrap();
    pair.run_until(Duration::from_millis(5), |pair| pair.b.frontier == 500);
    set_untaken(&mut pair, Some(200));
    let first = pair.b.transmit(pair.now).unwrap();
    set_untaken(&mut pair, None);
    let second = pair.b.transmit(pair.now).unwrap();
    assert!(first.header.options.untaken.is_some() && second.header.options.untaken.is_none());
    let _ = pair.a.receive(pair.now, &second);
    assert_eq!(known(&pair), (500, 500));
    let _ = pair.a.receive(pair.now, &first);
    assert_eq!(known(&pair), (500, 500));
}

/// The only segment that reports the bytes as taken is lost: a probe finds out.
#[test]
fn a_probe_asks_again() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 500)).unwrap();
    pair.run_until(Duration::from_millis(5), |pair| pair.b.frontier == 500);
    set_untaken(&mut pair, Some(200));
    pair.run_for(Duration::from_millis(5));
    pair.plan = Box::new(|_, _| Vec::new());
    set_untaken(&mut pair, None);
    pair.run_for(Duration::from_millis(5));
    pair.plan = Box::new(|_, _| vec![DELAY]);
    pair.run_for(Duration::from_millis(500));
    assert_eq!(known(&pair), (500, 200));
    pair.a.with(pair.now, |tcb, _| tcb.probe());
    pair.run_for(Duration::from_millis(5));
    assert_eq!(known(&pair), (500, 500));
}

/// On a wire that loses and reorders segments in both directions, A never takes bytes for taken that are not.
#[test]
fn nothing_counts_as_taken_too_early_on_a_bad_wire() {
    for seed in 0..20u64 {
        let mut pair = Pair::established(config(), config());
        let mut dice = Dice::linear(seed * 2 + 1);
        pair.plan = Box::new(move |_, _| match dice.below(10) {
            0 => Vec::new(),
            1 => vec![DELAY + DELAY + DELAY],
            _ => vec![DELAY],
        });
        let mut taken = 0;
        set_untaken(&mut pair, Some(taken));
        for round in 0..30 {
            let from = pair.a.tcb().send_offsets().0;
            let _ = pair.a.push(pair.now, &pattern(from as usize, 700));
            let _ = pair.b.push(pair.now, &pattern(0, 400));
            pair.run_for(Duration::from_millis(1 + round % 4));
            assert!(known(&pair).1 <= taken, "{seed}: {:?} of {taken}", known(&pair));
            // One message is taken, the next one waits.
            taken = (taken + 700).min(pair.b.frontier);
            set_untaken(&mut pair, Some(taken));
        }
        set_untaken(&mut pair, None);
        pair.plan = Box::new(|_, _| vec![DELAY]);
        pair.run_for(Duration::from_secs(3));
        pair.a.with(pair.now, |tcb, _| tcb.probe());
        pair.run_for(Duration::from_secs(1));
        let all = pair.a.tcb().send_offsets().0;
        assert_eq!(known(&pair), (all, all), "{seed}");
    }
}

/// The SYNs show whether the path lets the option through: A asks with its SYN, and B answers with its own.
#[test]
fn a_handshake_shows_whether_the_option_comes_through() {
    for (asks, syn_loses_it, syn_ack_loses_it) in
        [(false, false, false), (true, false, false), (true, true, false), (true, false, true)]
    {
        let mut pair = Pair::new(config(), config());
        pair.a.params.asks_untaken = asks;
        let now = pair.now;
        pair.a.connect(now);
        let mut syn = pair.a.transmit(now).unwrap();
        assert_eq!(syn.header.options.untaken.is_some(), asks);
        if syn_loses_it {
            syn.header.options.untaken = None;
        }
        pair.b.accept(now, &syn.header);
        let mut syn_ack = pair.b.transmit(now).unwrap();
        assert_eq!(syn_ack.header.options.untaken.is_some(), asks && !syn_loses_it);
        if syn_ack_loses_it {
            syn_ack.header.options.untaken = None;
        }
        let _ = pair.a.receive(now, &syn_ack);
        assert_eq!(pair.a.state(), State::Established);
        assert_eq!(pair.a.tcb().lost_untaken(), syn_loses_it || syn_ack_loses_it, "of {asks}");
        assert!(!pair.b.tcb().lost_untaken(), "B has asked for nothing");
        assert_eq!(pair.a.tcb().taken_offset(), 0);
    }
}
