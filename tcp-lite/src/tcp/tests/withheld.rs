//! Tests of acknowledgements that a user withholds.

use super::wire::*;
use crate::Duration;
use crate::tcp::State;

fn withhold(pair: &mut Pair, from: Option<u64>) {
    pair.b.with(pair.now, |tcb, _| tcb.withhold(from));
}

fn any() -> std::net::SocketAddr {
    "127.0.0.1:1".parse().unwrap()
}

/// Returns the stream offset up to which A's bytes are acknowledged.
fn acknowledged(pair: &Pair) -> u64 {
    pair.a.tcb().send_offsets().1
}

/// Returns the segments that B has sent since `since`. For each segment, the list has the number of A's bytes
/// that the segment acknowledges, and whether the segment has payload.
fn acks_of_b(pair: &Pair, since: usize) -> Vec<(usize, bool)> {
    let first = pair.a.params.iss + 1;
    let of_b = pair.log[since..].iter().filter(|(_, side, _)| *side == Side::B);
    of_b.map(|(_, _, packet)| (packet.header.ack.unwrap() - first, !packet.payload.is_empty())).collect()
}

/// No segment is sent only to acknowledge bytes whose acknowledgement is withheld. Segments that are sent for
/// other reasons acknowledge the bytes before these bytes. When no acknowledgement is withheld any more, all
/// bytes are acknowledged at once.
#[test]
fn nothing_acknowledges_what_is_withheld() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 300)).unwrap();
    pair.run_for(Duration::from_millis(50));
    assert_eq!(acknowledged(&pair), 300);
    let since = pair.log.len();
    for part in 0..3 {
        pair.a.push(pair.now, &pattern(300 + part * 1000, 1000)).unwrap();
    }
    pair.run_until(Duration::from_millis(5), |pair| pair.b.frontier > 300);
    withhold(&mut pair, Some(500));
    pair.run_for(Duration::from_millis(3));
    assert_eq!((pair.b.frontier, acks_of_b(&pair, since)), (3300, vec![]), "three segments, and no answer");
    // Data has to be sent, and it acknowledges the bytes whose acknowledgement is not withheld.
    pair.b.push(pair.now, &pattern(0, 100)).unwrap();
    pair.run_for(Duration::from_millis(2));
    assert_eq!((acks_of_b(&pair, since), acknowledged(&pair)), (vec![(500, true)], 500));
    assert_eq!(pair.a.frontier, 100);
    // Acknowledged bytes stay acknowledged.
    withhold(&mut pair, Some(400));
    pair.b.push(pair.now, &pattern(100, 100)).unwrap();
    pair.run_for(Duration::from_millis(2));
    assert_eq!(acks_of_b(&pair, since), [(500, true), (500, true)]);
    withhold(&mut pair, None);
    pair.run_for(Duration::from_millis(1));
    assert_eq!(acks_of_b(&pair, since), [(500, true), (500, true), (3300, false)]);
    assert_eq!(acknowledged(&pair), 3300);
    assert_eq!(pair.a.tcb().info(&config(), any(), any()).retransmits, 0);
    // Later bytes are acknowledged as usual.
    pair.a.push(pair.now, &pattern(3300, 100)).unwrap();
    pair.run_for(Duration::from_millis(50));
    assert_eq!(acknowledged(&pair), 3400);
}

/// The acknowledgement of bytes may be withheld before the bytes arrive. The bytes before them are
/// acknowledged as usual.
#[test]
fn bytes_to_come_are_withheld() {
    let mut pair = Pair::established(config(), config());
    withhold(&mut pair, Some(1000));
    pair.a.push(pair.now, &pattern(0, 1000)).unwrap();
    pair.run_for(Duration::from_millis(50));
    assert_eq!(acknowledged(&pair), 1000);
    pair.a.push(pair.now, &pattern(1000, 10)).unwrap();
    pair.run_for(Duration::from_millis(20));
    assert_eq!((pair.b.frontier, acknowledged(&pair)), (1010, 1000));
    withhold(&mut pair, None);
    pair.run_for(Duration::from_millis(1));
    assert_eq!(acknowledged(&pair), 1010);
}

/// While an acknowledgement is withheld, the window's edge stays where it was announced, so the peer can fill
/// the window.
#[test]
fn what_is_withheld_moves_no_window() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 1000)).unwrap();
    pair.run_for(Duration::from_millis(50));
    let window =
        |pair: &Pair| pair.log.iter().rev().find(|(_, side, _)| *side == Side::B).unwrap().2.header.window;
    withhold(&mut pair, Some(1000));
    pair.b.push(pair.now, &pattern(0, 10)).unwrap();
    pair.run_for(Duration::from_millis(2));
    let before = window(&pair);
    pair.a.push(pair.now, &pattern(1000, 1000)).unwrap();
    pair.run_for(Duration::from_millis(2));
    pair.b.push(pair.now, &pattern(10, 10)).unwrap();
    pair.run_for(Duration::from_millis(2));
    assert_eq!(window(&pair), before, "from the same acknowledgement to the same edge");
}

/// A peer that waits for too long retransmits, and no bytes are lost. After the peer's FIN all bytes are
/// acknowledged.
#[test]
fn a_fin_is_acknowledged_with_all_before_it() {
    for closes_first in [Side::A, Side::B] {
        let mut pair = Pair::established(config(), config());
        withhold(&mut pair, Some(0));
        pair.a.push(pair.now, &pattern(0, 1000)).unwrap();
        if closes_first == Side::B {
            pair.b.close(pair.now);
        }
        pair.run_for(Duration::from_millis(2_000));
        assert_eq!((pair.b.frontier, acknowledged(&pair)), (1000, 0));
        assert!(pair.a.tcb().info(&config(), any(), any()).retransmits > 0);
        pair.a.close(pair.now);
        pair.run_for(Duration::from_millis(500));
        assert_eq!(acknowledged(&pair), 1000);
        let (a, b) = (pair.a.tcb().state(), pair.b.tcb().state());
        assert!(
            matches!((a, b), (State::FinWait2, State::CloseWait) | (State::Closed, State::TimeWait)),
            "{a:?} {b:?}"
        );
    }
}
