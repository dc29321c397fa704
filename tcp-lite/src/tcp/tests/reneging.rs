//! Tests of reneging: a receiver may drop bytes that it has selectively acknowledged (RFC 2018 section 8).
//! Our receiver does so under memory pressure.

use super::wire::*;
use crate::Duration;

const SEGMENT: usize = 100;
const SEGMENTS: usize = 6;

/// Returns an acknowledgement of the first `ack` segments, which selectively acknowledges the segments
/// `sacked`.
fn acknowledgement(pair: &Pair, ack: usize, sacked: Option<(usize, usize)>) -> Packet {
    let mut packet = pair.log.iter().rev().find(|(_, side, _)| *side == Side::B).unwrap().2.clone();
    let first = pair.a.params.iss + 1;
    packet.header.flags = Default::default();
    packet.header.options = Default::default();
    packet.header.seq = pair.b.params.iss + 1;
    packet.header.ack = Some(first + ack * SEGMENT);
    let blocks = sacked.into_iter().map(|(from, to)| (first + from * SEGMENT, first + to * SEGMENT));
    packet.header.options.sack.extend(blocks);
    packet
}

fn sent_now(pair: &mut Pair) -> Vec<usize> {
    let now = pair.now;
    let first = pair.a.params.iss + 1;
    std::iter::from_fn(|| pair.a.transmit(now))
        .map(|packet| (packet.header.seq.0.wrapping_sub(first.0)) as usize / SEGMENT)
        .collect()
}

fn hear(pair: &mut Pair, after_us: u64, ack: usize, sacked: Option<(usize, usize)>) -> Vec<usize> {
    pair.now += Duration::from_micros(after_us);
    let packet = acknowledgement(pair, ack, sacked);
    let _ = pair.a.receive(pair.now, &packet);
    sent_now(pair)
}

#[test]
fn bytes_on_which_the_peer_reneged_are_retransmitted() {
    let mut pair = Pair::established(config(), config());
    pair.push_of(SEGMENTS, SEGMENT);
    assert_eq!(sent_now(&mut pair), [0, 1, 2, 3, 4, 5]);
    assert_eq!(hear(&mut pair, 2000, 0, Some((1, 6))), [0], "the rest is said to be there");
    assert_eq!(pair.a.segments.len(), SEGMENTS, "and is kept");
    // The hole is filled, but the peer acknowledges only the filled bytes, not the bytes beyond the hole.
    assert!(hear(&mut pair, 2000, 1, None).is_empty());
    assert_eq!(pair.a.segments.len(), SEGMENTS - 1);
    let timeout = pair.a.tcb().deadline().expect("a timer");
    assert!(timeout <= pair.now + Duration::from_millis(60), "{timeout}");
    pair.now = timeout;
    pair.a.with(timeout, |tcb, ctx| tcb.on_timer(ctx));
    assert_eq!(pair.a.counters.rto_expired, 1);
    // Slow start retransmits all unacknowledged segments, including the segments that the peer had
    // selectively acknowledged.
    let mut again = sent_now(&mut pair);
    let mut heard = 1;
    while heard < SEGMENTS && again.len() < 2 * SEGMENTS {
        heard += 1;
        again.extend(hear(&mut pair, 2000, heard, None));
    }
    assert_eq!(again, [1, 2, 3, 4, 5]);
    assert_eq!(pair.a.counters.rto_expired, 1);
    assert!(pair.a.holds_nothing());
}

#[test]
fn all_is_sent_again_at_a_timeout_where_the_oldest_segment_was_selectively_acknowledged() {
    let mut pair = Pair::established(config(), config());
    pair.push_of(3, SEGMENT);
    let _ = sent_now(&mut pair);
    // The peer sends an invalid SACK block: the block begins at the peer's next expected byte.
    assert!(hear(&mut pair, 2000, 0, Some((0, 3))).is_empty());
    let timeout = pair.a.tcb().deadline().expect("a timer");
    pair.now = timeout;
    pair.a.with(timeout, |tcb, ctx| tcb.on_timer(ctx));
    assert_eq!(sent_now(&mut pair), [0, 1, 2], "a window of one EMSS has room for all");
}

// RFC 8985 section 7.2.
#[test]
fn no_tail_loss_probe_is_sent_once_segments_are_selectively_acknowledged() {
    for sacked in [None, Some((4, 5)), Some((3, 4))] {
        let mut pair = Pair::established(config(), config());
        pair.push_of(2, SEGMENT);
        assert_eq!(sent_now(&mut pair), [0, 1]);
        // This block makes `a` detect reordering, so that later no segment is marked lost at once.
        assert!(hear(&mut pair, 2000, 0, Some((1, 2))).is_empty());
        assert!(hear(&mut pair, 100, 2, None).is_empty());
        for nr in 2..5 {
            pair.a.push(pair.now, &pattern(nr * SEGMENT, SEGMENT)).unwrap();
        }
        assert_eq!(sent_now(&mut pair), [2, 3, 4]);
        let due = pair.a.tcb().deadline().expect("a timer");
        pair.now = due;
        // The probe is due. Before it is sent, an acknowledgement arrives.
        pair.a.with(due, |tcb, ctx| tcb.on_timer(ctx));
        let packet = acknowledgement(&pair, 2, sacked);
        let _ = pair.a.receive(pair.now, &packet);
        let probes = pair.a.counters.tail_loss_probes;
        let sent = sent_now(&mut pair);
        assert_eq!(pair.a.counters.tail_loss_probes - probes, u64::from(sacked.is_none()));
        assert!(
            sent.iter().all(|nr| sacked.is_none_or(|(from, _)| *nr != from)),
            "{sent:?} after {sacked:?}"
        );
    }
}
