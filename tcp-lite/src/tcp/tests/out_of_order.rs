//! Tests of bytes ahead of the frontier: how they are counted, limited and given up.

use dp::Mempool;

use super::stream::lose;
use super::wire::{DELAY, Packet, Pair, Side, config, pattern};
use crate::{Duration, OutOfOrder, TcpConfig};

/// Returns a pair in which the first of `count` segments of 1000 bytes was lost. The receiver holds the other
/// segments.
fn behind_a_hole(receiver: TcpConfig, count: usize) -> Pair {
    let mut pair = Pair::established(config(), receiver);
    pair.b.releases = false;
    pair.plan = lose(&[0]);
    pair.push(count);
    pair.transmit();
    pair
}

/// Returns a pair whose receiver may hold 3000 bytes, and eight segments of `len` bytes in flight to the
/// receiver.
fn sent(len: usize) -> (Pair, Vec<Packet>) {
    let mut pair = Pair::established(config(), TcpConfig { out_of_order_bytes: 3000, ..config() });
    pair.b.releases = false;
    pair.push_of(8, len);
    let segments = std::iter::from_fn(|| pair.a.transmit(pair.now)).collect();
    (pair, segments)
}

#[test]
fn what_is_held_ahead_of_the_frontier_is_gauged() {
    let mut pair = behind_a_hole(config(), 4);
    assert!(pair.run_until(DELAY, |pair| pair.b.stream.len() == 4000));
    let now = pair.now;
    let gauges = |pair: &mut Pair| {
        let total = pair.b.counters.out_of_order;
        assert_eq!(pair.b.tcb().receiving().held(), total, "one connection is all of the stack's");
        let OutOfOrder { held_bytes, max_held_bytes, pinned_bytes, max_pinned_bytes } = total;
        [held_bytes, max_held_bytes, pinned_bytes, max_pinned_bytes]
    };
    assert_eq!(gauges(&mut pair), [3000, 3000, 0, 0]);
    pair.b.with(now, |tcb, ctx| tcb.pin(ctx, 6528));
    pair.b.with(now, |tcb, ctx| tcb.release(ctx, 1000));
    pair.b.with(now, |tcb, ctx| tcb.pin(ctx, 4352));
    assert_eq!(gauges(&mut pair), [2000, 3000, 4352, 6528]);
    // The user cannot release more bytes than the user holds.
    pair.b.with(now, |tcb, ctx| tcb.release(ctx, 5000));
    assert_eq!(gauges(&mut pair), [0, 3000, 4352, 6528]);
    assert!(pair.run_until(Duration::from_secs(1), |pair| pair.b.frontier == 4000));
    pair.b.with(pair.now, |tcb, ctx| tcb.abort(ctx));
    assert_eq!(gauges(&mut pair), [0, 3000, 0, 6528]);
}

/// Returns the SACK blocks of the last acknowledgement of `Side::B`, as stream offsets of `Side::A`.
fn last_blocks(pair: &Pair) -> Vec<(u64, u64)> {
    let first = pair.a.params.iss.0;
    let offset =
        |seq: crate::facade::TcpSeqNumber| u64::from(seq.0.wrapping_sub(first).wrapping_sub(1) as u32);
    let last =
        pair.log.iter().rev().find(|(_, side, packet)| *side == Side::B && packet.header.ack.is_some());
    let blocks = &last.expect("an acknowledgement").2.header.options.sack;
    blocks.iter().map(|&(start, end)| (offset(start), offset(end))).collect()
}

#[test]
fn what_was_given_up_is_in_no_sack_block_and_comes_again() {
    let mut pair = behind_a_hole(config(), 6);
    assert!(pair.run_until(DELAY, |pair| pair.b.stream.len() == 6000));
    pair.transmit();
    assert_eq!(last_blocks(&pair), [(1000, 6000)]);
    let now = pair.now;
    for refused in [0..1000, 500..1500, 5000..7000] {
        assert!(!pair.b.with(now, |tcb, ctx| tcb.evict(ctx, std::slice::from_ref(&refused))), "{refused:?}");
    }
    assert!(pair.b.give_up(now, 2000..3000));
    assert!(pair.b.give_up(now, 5000..6000));
    assert_eq!(pair.b.counters.out_of_order.held_bytes, 3000);
    assert_eq!(pair.b.counters.rx_out_of_order_evicted_bytes, 2000);
    // A duplicate of the bytes directly before the bytes that were given up arrives. The first block names
    // the duplicate, and the next block is the range that contains it.
    let again = pair.log.iter().find(|(_, side, p)| *side == Side::A && p.payload == pattern(1000, 1000));
    let again = again.expect("sent before").2.clone();
    let _ = pair.b.receive(now, &again);
    pair.transmit();
    assert_eq!(last_blocks(&pair), [(1000, 2000), (1000, 2000), (3000, 5000)]);
    assert!(pair.run_until(Duration::from_secs(2), |pair| pair.b.frontier == 6000));
    assert_eq!(pair.b.read(), pattern(0, 6000));
}

#[test]
fn a_duplicate_of_what_was_given_up_is_not_reported() {
    let mut pair = behind_a_hole(config(), 3);
    assert!(pair.run_until(DELAY, |pair| pair.b.stream.len() == 3000));
    let now = pair.now;
    let again = pair.log.iter().find(|(_, side, p)| *side == Side::A && p.payload == pattern(1000, 1000));
    let again = again.expect("sent before").2.clone();
    let _ = pair.b.receive(now, &again);
    assert!(pair.b.give_up(now, 1000..2000));
    pair.transmit();
    assert_eq!(last_blocks(&pair), [(2000, 3000)]);
}

#[test]
fn beyond_its_bound_a_connection_loses_what_is_furthest_from_its_frontier() {
    let (mut pair, segments) = sent(1000);
    let now = pair.now;
    for at in [4, 5, 7] {
        let _ = pair.b.receive(now, &segments[at]);
    }
    // A duplicate takes no memory, so the user has to give up nothing, although the connection exceeds the
    // new limit.
    assert_eq!(pair.b.counters.out_of_order_over_connection, 0);
    pair.b.config.out_of_order_bytes = 2500;
    let _ = pair.b.receive(now, &Packet::new(segments[7].header.clone(), pattern(7000, 1000)));
    assert!(pair.b.asked.is_empty());
    pair.b.config.out_of_order_bytes = 3000;
    // The next segment is nearer to the frontier, so it is accepted, and the user has to give up the excess.
    let _ = pair.b.receive(now, &segments[2]);
    assert_eq!(pair.b.asked, [1000]);
    assert_eq!(pair.b.counters.out_of_order_over_connection, 1);
    // Until the user has given up these bytes, no more out-of-order bytes are accepted.
    let _ = pair.b.receive(now, &segments[1]);
    assert_eq!(
        (pair.b.stream.get(1000).copied().flatten(), pair.b.counters.rx_out_of_order_dropped_bytes),
        (None, 1000)
    );
    assert!(pair.b.give_up(now, 7000..8000));
    let _ = pair.b.receive(now, &segments[7]);
    assert_eq!((pair.b.stream.get(7000).copied().flatten(), pair.b.asked.len()), (None, 1), "the furthest");
    // Bytes in order are accepted, although the connection is at its limit.
    let _ = pair.b.receive(now, &segments[0]);
    let _ = pair.b.receive(now, &segments[1]);
    assert_eq!(pair.b.frontier, 3000);
}

/// Bytes that are scattered over many buffers reach the limit earlier, because half of the pinned bytes
/// count.
#[test]
fn what_a_connection_pins_counts_as_well() {
    let (mut pair, segments) = sent(100);
    let now = pair.now;
    let pin = |pair: &mut Pair, bytes| pair.b.with(now, |tcb, ctx| tcb.pin(ctx, bytes));
    for at in [5, 6] {
        let _ = pair.b.receive(now, &segments[at]);
    }
    pin(&mut pair, 5800);
    let _ = pair.b.receive(now, &segments[3]);
    assert_eq!((pair.b.asked.as_slice(), pair.b.counters.out_of_order_over_connection), (&[][..], 0));
    // 300 held bytes pin twice the limit.
    pin(&mut pair, 6000);
    let _ = pair.b.receive(now, &segments[7]);
    assert_eq!((pair.b.asked.as_slice(), pair.b.counters.rx_out_of_order_dropped_bytes), (&[][..], 100));
    // This segment is nearer to the frontier, so it is accepted. 3000 bytes are charged for 300 bytes of
    // payload, so an excess of 100 charged bytes is 10 bytes of payload.
    let _ = pair.b.receive(now, &segments[2]);
    assert_eq!((pair.b.asked.as_slice(), pair.b.counters.out_of_order_over_connection), (&[10][..], 2));
    // After the user has given up bytes, there is room again.
    assert!(pair.b.give_up(now, 600..700));
    pin(&mut pair, 5000);
    let _ = pair.b.receive(now, &segments[6]);
    assert_eq!(pair.b.counters.out_of_order_over_connection, 2);
}

#[test]
fn a_connection_is_not_asked_for_room_for_what_is_refused_in_any_case() {
    let (mut pair, segments) = sent(1000);
    let now = pair.now;
    for at in [5, 6, 7] {
        let _ = pair.b.receive(now, &segments[at]);
    }
    assert!(pair.b.asked.is_empty());
    // 15 of 128 buffers are free. An eighth (16) must be free to accept bytes, and a quarter (32) should be
    // free.
    let pool = std::mem::replace(&mut pair.b.pool, Mempool::heap("scarce", 128, 2048));
    let taken: Vec<_> = (0..113).map(|_| pair.b.pool.alloc().unwrap()).collect();
    // These segments are nearer to the frontier than the held bytes, but there is no buffer for them.
    pair.b.with(now, |tcb, ctx| {
        for at in [2, 3, 4] {
            let mut buf = pool.alloc().unwrap();
            assert!(buf.append_slice(&segments[at].payload));
            let _ = tcb.on_segment(ctx, &segments[at].header, segments[at].ecn, (buf, 1));
        }
    });
    assert_eq!(pair.b.counters.out_of_order_no_buffers, 3);
    assert_eq!(pair.b.counters.rx_out_of_order_dropped_bytes, 3000);
    assert_eq!(pair.b.asked.len(), 1, "once, for the buffers of all: {:?}", pair.b.asked);
    drop(taken);
}
