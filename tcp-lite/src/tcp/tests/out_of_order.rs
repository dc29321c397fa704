//! What waits ahead of the frontier: the gauge of it.

use super::wire::{DELAY, Pair, Side, config, pattern};
use crate::{Duration, OutOfOrder, TcpConfig};

/// A pair of which the first of `count` segments of 1000 octets was lost, for the time being; the receiver holds
/// the others.
fn behind_a_hole(receiver: TcpConfig, count: usize) -> Pair {
    let mut pair = Pair::established(config(), receiver);
    pair.b.releases = false;
    let mut sent = 0;
    pair.plan = Box::new(move |side, packet| {
        sent += usize::from(side == Side::A && !packet.payload.is_empty());
        if side == Side::A && sent == 1 { vec![] } else { vec![DELAY] }
    });
    for i in 0..count {
        pair.a.push(pair.now, &pattern(i * 1000, 1000)).unwrap();
    }
    pair.transmit();
    pair
}

#[test]
fn what_is_held_ahead_of_the_frontier_is_gauged() {
    let mut pair = behind_a_hole(config(), 4);
    assert!(pair.run_until(DELAY, |pair| pair.b.stream.len() == 4000));
    let now = pair.now;
    let gauges = |pair: &mut Pair| {
        let total = pair.b.counters.out_of_order;
        assert_eq!(pair.b.tcb().rcv.held, total, "one connection is all of the stack's");
        let OutOfOrder { held_octets, held_octets_max, pinned_octets, pinned_octets_max } = total;
        [held_octets, held_octets_max, pinned_octets, pinned_octets_max]
    };
    assert_eq!(gauges(&mut pair), [3000, 3000, 0, 0]);
    pair.b.with(now, |tcb, ctx| tcb.pin(ctx, 6528));
    pair.b.with(now, |tcb, ctx| tcb.release(ctx, 1000));
    pair.b.with(now, |tcb, ctx| tcb.pin(ctx, 4352));
    assert_eq!(gauges(&mut pair), [2000, 3000, 4352, 6528]);
    // Nobody can give back more than there is.
    pair.b.with(now, |tcb, ctx| tcb.release(ctx, 5000));
    assert_eq!(gauges(&mut pair), [0, 3000, 4352, 6528]);
    assert!(pair.run_until(Duration::from_secs(1), |pair| pair.b.frontier == 4000));
    pair.b.with(pair.now, |tcb, ctx| tcb.abort(ctx));
    assert_eq!(gauges(&mut pair), [0, 3000, 0, 6528]);
}
