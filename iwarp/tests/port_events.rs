//! What happens to an engine's port: its link comes and goes, somebody else has its address.

mod common;

use common::Pair;
use dp::link::{LinkConfig, LinkControl, pair_with_control};
use iwarp::memory::Access;
use iwarp::verbs::{AsyncEvent, AsyncEventKind, ConnParam, RemoteAddr, SendOp, SendRequest, WcStatus};
use tcp_lite::AddressProbing;

/// Two hosts, and the wire between them.
fn pair() -> (Pair, LinkControl) {
    let (a, b, control) = pair_with_control(&LinkConfig::default());
    (Pair::over((a, b), |_| {}), control)
}

fn events(host: &common::Host) -> Vec<AsyncEvent> {
    let events = host.context.async_events();
    std::iter::from_fn(|| events.poll().unwrap()).collect()
}

fn event(kind: AsyncEventKind) -> AsyncEvent {
    AsyncEvent { kind, number: 0, error: None }
}

#[test]
fn a_flap_is_told_and_what_it_lost_is_sent_when_it_is_over() {
    for flap_us in [200_000, 2_000_000] {
        let (mut pair, control) = pair();
        let c = pair.connect(&ConnParam::default());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (local, remote) = (pair.a.pd.reg_mr(64, access).unwrap(), pair.b.pd.reg_mr(64, access).unwrap());
        pair.run_us(1_000_000);
        assert_eq!((events(&pair.a), events(&pair.b)), (vec![], vec![]));

        control.set_up(false);
        let to = RemoteAddr { addr: remote.addr(), rkey: remote.rkey() };
        let write = SendRequest::new(1, SendOp::Write { remote: to }, local.sge(0, 8));
        c.qp_a.post_send(&write).unwrap();
        pair.run_us(flap_us);
        assert_eq!(events(&pair.a), [event(AsyncEventKind::PortError)]);
        control.set_up(true);
        let back_us = pair.now_us;
        pair.until(|pair| (pair.b.engine.counters().rx_placed_octets == 8).then_some(()));
        let late_us = pair.now_us - back_us;
        println!("flap of {flap_us} us: placed {late_us} us after it");
        assert!(late_us <= 21_000, "{late_us}");
        assert_eq!(pair.wc_a().status, WcStatus::Success);
        assert_eq!(events(&pair.a), [event(AsyncEventKind::PortActive)]);
        let counters = pair.a.engine.counters();
        assert_eq!(counters.stack.link_downs, 1);
    }
}

#[test]
fn an_engine_without_a_link_asks_for_few_turns() {
    let (mut pair, control) = pair();
    pair.connect(&ConnParam::default());
    control.set_up(false);
    pair.run_us(200_000);
    let before = pair.a.engine.counters().turns;
    pair.run_us(1_000_000);
    let turns = pair.a.engine.counters().turns - before;
    assert!(turns < 150, "{turns} turns in a second");
}

#[test]
fn two_hosts_with_one_address_are_told_so() {
    let (a, b, _control) = pair_with_control(&LinkConfig::default());
    let mut pair = Pair::over((a, b), |config| {
        config.stack.address_probing = AddressProbing::Announce;
        config.stack.addresses = ["10.0.0.7/24".parse().unwrap()].into_iter().collect();
    });
    pair.run_us(100_000);
    for host in [&pair.a, &pair.b] {
        assert_eq!(events(host), [event(AsyncEventKind::AddressConflict)]);
        assert_eq!(host.engine.counters().stack.address_conflicts, 1);
    }
}
