//! Tests of a link that goes down and comes up again.

use super::wire::*;
use crate::{Duration, TcpConfig};

/// Returns the number of milliseconds from the return of the link until all segments have arrived that were
/// sent while the link was down for `flap_ms`. `told` is true if the connection is notified when the link is
/// back.
fn recovery_ms(flap_ms: u64, told: bool) -> u64 {
    let mut pair = Pair::established(config(), config());
    pair.plan = Box::new(|_, _| vec![]);
    pair.push(10);
    pair.run_for(Duration::from_millis(flap_ms));
    let back = pair.now;
    pair.plan = Box::new(|_, _| vec![DELAY]);
    if told {
        pair.a.with(pair.now, |tcb, ctx| tcb.on_link_up(ctx));
    }
    assert!(pair.run_until(Duration::from_secs(9), |pair| pair.b.frontier == 10 * EMSS as u64));
    let counters = pair.a.counters;
    assert_eq!((counters.path_mtu_black_holes, counters.tx_cut_by_emss), (0, 0));
    (pair.now - back).total_millis()
}

#[test]
fn losses_of_a_flap_are_retransmitted_when_the_link_is_back() {
    // Without a notification, the retransmission timer starts when the segments are sent, and its timeout
    // doubles. Therefore the recovery may take as long as the flap.
    let untold = [150, 200, 300, 500, 3000].map(|flap_ms| recovery_ms(flap_ms, false));
    let told = [150, 200, 300, 500, 3000].map(|flap_ms| recovery_ms(flap_ms, true));
    println!("recovered so many ms after a flap, by the timer: {untold:?}, told of the link: {told:?}");
    assert_eq!(told, [7; 5]);
    assert_eq!(untold, [17, 175, 75, 291, 287]);
}

#[test]
fn a_syn_and_a_fin_are_sent_again_when_the_link_is_back() {
    let mut pair = Pair::new(config(), config());
    pair.plan = Box::new(|_, _| vec![]);
    pair.a.connect(pair.now);
    pair.run_for(Duration::from_millis(2500));
    pair.plan = Box::new(|_, _| vec![DELAY]);
    pair.a.with(pair.now, |tcb, ctx| tcb.on_link_up(ctx));
    pair.run_for(Duration::from_millis(5));
    assert_eq!(pair.a.seen, [Seen::Established]);

    pair.plan = Box::new(|_, _| vec![]);
    pair.a.close(pair.now);
    pair.run_for(Duration::from_millis(2500));
    pair.plan = Box::new(|_, _| vec![DELAY]);
    pair.a.with(pair.now, |tcb, ctx| tcb.on_link_up(ctx));
    pair.run_for(Duration::from_millis(5));
    assert_eq!(pair.b.seen.last(), Some(&Seen::PeerClosed));
}

#[test]
fn a_link_that_was_never_needed_makes_nothing_be_sent() {
    let mut pair = Pair::established(TcpConfig { keepalive_idle: None, ..config() }, config());
    pair.a.push(pair.now, &pattern(0, EMSS)).unwrap();
    pair.run_for(Duration::from_secs(1));
    pair.log.clear();
    pair.a.with(pair.now, |tcb, ctx| tcb.on_link_up(ctx));
    pair.run_for(Duration::from_secs(1));
    assert_eq!((pair.log.len(), pair.a.tcb().deadline()), (0, None));
}
