//! Tests of segments that are slightly invalid: what such segments may change, and how they are answered.

use super::wire::*;
use crate::tcp::Verdict;
use crate::tcp::header::Flags;
use crate::{Duration, Instant, TcpConfig};

/// Returns a pair of hosts, and a segment from A in flight with the bytes 0..100.
fn with_segment() -> (Pair, Packet) {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 100)).unwrap();
    let segment = pair.a.transmit(pair.now).expect("a segment");
    (pair, segment)
}

fn stamp(packet: &Packet) -> u32 {
    packet.header.options.timestamps.expect("timestamps were agreed on").0
}

#[test]
fn a_forged_timestamp_without_the_right_ack_changes_nothing() {
    let (mut pair, segment) = with_segment();
    let mut forged = segment.clone();
    forged.header.options.timestamps = Some((stamp(&segment).wrapping_add(1 << 30), 0));
    forged.header.ack = segment.header.ack.map(|ack| ack + 1_000_000);
    assert_eq!(pair.b.receive(pair.now, &forged), Verdict::Done);
    assert_eq!(pair.b.frontier, 0);
    assert_eq!(pair.b.receive(pair.now, &segment), Verdict::Done);
    assert_eq!(pair.b.frontier, 100, "PAWS still goes by the peer's clock");
}

#[test]
fn after_24_days_whatever_the_clock_says_is_taken_and_goes_from_there() {
    let (mut pair, segment) = with_segment();
    let later = pair.now + Duration::from_secs(25 * 24 * 3600);
    let mut old = segment.clone();
    old.header.options.timestamps = Some((stamp(&segment).wrapping_sub(50_000), 0));
    assert_eq!(pair.b.receive(pair.now, &old), Verdict::Done);
    assert_eq!(pair.b.frontier, 0, "too old");
    assert_eq!(pair.b.receive(later, &old), Verdict::Done);
    assert_eq!(pair.b.frontier, 100);
    assert_eq!(pair.b.tcb().receiving().ts_recent(), stamp(&old));
    let mut older = Packet::new(old.header.clone(), pattern(100, 100));
    older.header.seq += 100;
    older.header.options.timestamps = Some((stamp(&old).wrapping_sub(1), 0));
    assert_eq!(pair.b.receive(later, &older), Verdict::Done);
    assert_eq!(pair.b.frontier, 100, "it is compared again");
}

/// RFC 7323 section 4.3: if a segment repeats the value of TS.Recent, the age of TS.Recent starts again, so
/// TS.Recent does not become outdated.
#[test]
fn a_timestamp_that_is_repeated_goes_on_being_compared_with() {
    let (mut pair, mut segment) = with_segment();
    let value = stamp(&segment).wrapping_add(10);
    // Each segment is long enough to be acknowledged at once.
    for (days, from, value, frontier) in
        [(0, 0, value, 2040), (20, 2040, value, 4080), (30, 4080, value - 1, 4080)]
    {
        segment.header.seq = pair.a.params.iss + 1 + from;
        segment.header.options.timestamps = Some((value, 0));
        segment.payload = pattern(from, 2040);
        let at = pair.now + Duration::from_secs(days * 24 * 3600);
        let _ = pair.b.receive(at, &segment);
        while pair.b.transmit(at).is_some() {}
        assert_eq!(pair.b.frontier, frontier, "after {days} days");
    }
}

#[test]
fn a_syn_that_comes_again_is_echoed_by_its_own_timestamp() {
    let mut pair = Pair::new(config(), config());
    pair.a.connect(pair.now);
    let mut syn = pair.a.transmit(pair.now).expect("a SYN");
    pair.b.accept(pair.now, &syn.header);
    let _lost = pair.b.transmit(pair.now).expect("a SYN-ACK");
    syn.header.options.timestamps = Some((stamp(&syn).wrapping_add(1000), 0));
    assert_eq!(pair.b.receive(pair.now, &syn), Verdict::Done);
    let again = pair.b.transmit(pair.now).expect("another");
    assert_eq!(again.header.options.timestamps.map(|(_, echo)| echo), Some(stamp(&syn)));
}

#[test]
fn challenges_are_limited_and_counted() {
    let (mut pair, segment) = with_segment();
    pair.b.config = TcpConfig { challenge_acks_per_second: 3, ..pair.b.config };
    pair.run_for(Duration::from_millis(50));
    let _ = pair.b.receive(pair.now, &segment);
    pair.run_for(Duration::from_millis(50));
    let answers = |pair: &mut Pair, at: Instant, packet: &Packet| {
        let _ = pair.b.receive(at, packet);
        usize::from(pair.b.transmit(at).is_some())
    };
    let at = pair.now + Duration::from_secs(2);
    let before = pair.b.counters.challenge_acks;
    let mut syn = segment.clone();
    syn.header.flags = Flags::SYN;
    syn.payload.clear();
    let answered: usize = (0..10).map(|_| answers(&mut pair, at, &syn)).sum();
    let counters = pair.b.counters;
    assert_eq!((answered, counters.challenge_acks - before, counters.challenge_acks_withheld), (3, 3, 7));
    assert_eq!(answers(&mut pair, at + Duration::from_secs(1), &syn), 1, "a second later");
}

#[test]
fn segments_that_find_no_room_are_answered_within_the_same_limit() {
    let (mut pair, segment) = with_segment();
    pair.b.config = TcpConfig { challenge_acks_per_second: 3, ..pair.b.config };
    let mut ahead = segment.clone();
    let mut answers = |pair: &mut Pair, nr: u32| {
        ahead.header.seq = segment.header.seq + 1000 + 200 * nr as usize;
        let _ = pair.b.receive(pair.now, &ahead);
        usize::from(pair.b.transmit(pair.now).is_some())
    };
    // The peer makes as many holes as the receiver can store, and then ten more holes.
    let taken: usize = (0..64).map(|nr| answers(&mut pair, nr)).sum();
    let refused: usize = (64..74).map(|nr| answers(&mut pair, nr)).sum();
    assert_eq!((taken, refused), (64, 3));
    assert_eq!(pair.b.counters.challenge_acks_withheld, 7);
}

#[test]
fn bare_segments_of_the_past_are_answered_seldom_and_do_not_keep_others_from_their_answers() {
    let mut pair = Pair::established(config(), config());
    pair.a.push(pair.now, &pattern(0, 100)).unwrap();
    let segment = pair.a.transmit(pair.now).expect("a segment");
    let _ = pair.b.receive(pair.now, &segment);
    pair.run_for(Duration::from_millis(50));
    let at = pair.now + Duration::from_secs(2);
    let answers = |pair: &mut Pair, at: Instant, packet: &Packet| {
        (0..20)
            .filter(|_| {
                let _ = pair.b.receive(at, packet);
                pair.b.transmit(at).is_some()
            })
            .count()
    };
    // Both segments are old: `bare` by its sequence number, and `old` by its timestamp.
    let mut bare = segment.clone();
    bare.payload.clear();
    let mut old = bare.clone();
    old.header.seq += 100;
    old.header.options.timestamps = Some((stamp(&segment).wrapping_sub(1000), 0));
    assert_eq!((answers(&mut pair, at, &bare), answers(&mut pair, at, &old)), (8, 0));
    assert_eq!(answers(&mut pair, at, &segment), 20, "bytes that come again");
    let next = at + Duration::from_secs(1);
    assert_eq!((answers(&mut pair, next, &old), answers(&mut pair, next, &bare)), (8, 0));
}
