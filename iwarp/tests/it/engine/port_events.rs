//! Events of an engine's port: for example, the link goes down or up, the device is taken away, or another
//! host uses the engine's address.

use crate::common::{Connected, Pair, Testbed, remote_addr};
use dp::link::{LinkConfig, LinkControl};
use iwarp::memory::Access;
use iwarp::verbs::{
    AsyncEventKind, CmEventKind, ConnParam, ConnectionError, RecvRequest, SendOp, SendRequest, WcStatus,
};
use tcp_lite::{AddressProbing, CloseReason, Duration};

/// Returns two hosts, and the wire between them.
fn pair() -> (Pair, LinkControl) {
    let (bed, control) = Testbed::with_control(&LinkConfig::default());
    (bed.hosts(), control)
}

fn events(host: &crate::common::Host) -> Vec<(AsyncEventKind, u32)> {
    let events = host.context.async_events();
    let told = std::iter::from_fn(|| events.poll().unwrap());
    told.map(|event| (event.kind, event.number)).collect()
}

fn event(kind: AsyncEventKind) -> (AsyncEventKind, u32) {
    (kind, 0)
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
        let to = remote_addr(&remote, 0);
        let write = SendRequest::new(1, SendOp::Write { remote: to }, local.sge(0, 8));
        c.qp_a.post_send(&write).unwrap();
        pair.run_us(flap_us);
        assert_eq!(events(&pair.a), [event(AsyncEventKind::PortError)]);
        control.set_up(true);
        let back_us = pair.now_us;
        pair.until(|pair| (pair.b.engine.counters().rx_placed_bytes == 8).then_some(()));
        let late_us = pair.now_us - back_us;
        println!("flap of {flap_us} us: placed {late_us} us after it");
        assert!(late_us <= 21_000, "{late_us}");
        assert_eq!(pair.wc_a().status, WcStatus::Success);
        assert_eq!(events(&pair.a), [event(AsyncEventKind::PortActive)]);
        let counters = pair.a.engine.counters();
        assert_eq!(counters.stack.link_downs, 1);
    }
}

/// Returns the time from the loss of the link until both endpoints of `c` report the loss as the cause of the
/// end.
fn link_down_us(pair: &mut Pair, c: &Connected) -> i64 {
    let down_us = pair.now_us;
    for (event, id) in [(pair.event_a(), &c.id_a), (pair.event_b(), &c.id_b)] {
        assert_eq!(event.id, *id);
        let error = Some(ConnectionError::Tcp(CloseReason::LinkDown));
        assert!(
            matches!(event.kind, CmEventKind::Disconnected { error: told, .. } if told == error),
            "{event:?}"
        );
    }
    pair.now_us - down_us
}

/// Runs once with an idle connection, and once with outstanding requests, which must be flushed.
#[test]
fn connections_of_a_point_to_point_port_end_within_a_second_of_its_link() {
    for busy in [false, true] {
        let (bed, control) =
            Testbed::with_control(&LinkConfig { point_to_point: true, ..LinkConfig::default() });
        let mut pair = bed.hosts();
        let c = pair.connect(&ConnParam::default());
        let mr = pair.a.pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let theirs = pair.b.pd.reg_mr(64, Access::REMOTE_READ).unwrap();
        pair.run_us(1_000_000);
        control.set_up(false);
        if busy {
            let remote = remote_addr(&theirs, 0);
            c.qp_a.post_send(&SendRequest::new(1, SendOp::Read { remote }, mr.sge(0, 8))).unwrap();
            c.qp_a.post_recv(&RecvRequest::new(2, mr.sge(8, 8))).unwrap();
        }
        let took_us = link_down_us(&mut pair, &c);
        assert!((500_000..=700_000).contains(&took_us), "{took_us}");
        for wr_id in [1, 2].into_iter().take(if busy { 2 } else { 0 }) {
            let wc = pair.wc_a();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::WrFlushError));
        }
    }
}

#[test]
fn a_link_that_is_back_in_time_ends_no_connection_of_a_point_to_point_port() {
    let (bed, control) = Testbed::with_control(&LinkConfig { point_to_point: true, ..LinkConfig::default() });
    let mut pair = bed.hosts();
    let _c = pair.connect(&ConnParam::default());
    for _ in 0..5 {
        control.set_up(false);
        pair.run_us(400_000);
        control.set_up(true);
        pair.run_us(400_000);
    }
    assert!(pair.a.channel.poll().is_none() && pair.b.channel.poll().is_none());
}

/// A port with exactly one peer, such as the first side of a vhost-user socket, may start without a link, and
/// waits for the other side. The engine does not report this as an error, because programs check the port
/// before they listen. The loss of a link that was up is reported.
#[test]
fn a_port_that_waits_for_its_only_peer_tells_no_error() {
    use AsyncEventKind::{PortActive, PortError};
    for (point_to_point, at_start) in [(true, vec![]), (false, vec![event(PortError)])] {
        let (bed, control) = Testbed::with_control(&LinkConfig { point_to_point, ..LinkConfig::default() });
        control.set_up(false);
        let mut pair = bed.hosts();
        pair.run_us(1_000_000);
        assert_eq!(events(&pair.b), at_start);
        control.set_up(true);
        pair.run_us(1_000_000);
        assert_eq!(events(&pair.b), [event(PortActive)]);
        if point_to_point {
            control.set_up(false);
            pair.run_us(200_000);
            assert_eq!(events(&pair.b), [event(PortError)], "its peer had come");
        }
    }
}

#[test]
fn connections_of_another_port_outlive_their_link_for_as_long_as_the_configuration_says() {
    // 25 seconds are longer than the ten seconds after which keepalives or unacknowledged bytes would end the
    // connection. Here, only the loss of the link may end the connection.
    for seconds in [2, 10, 25] {
        let (bed, control) = Testbed::with_control(&LinkConfig::default());
        let bed = bed.configure(|config| {
            if seconds != 10 {
                config.stack.tcp.link_timeout = Duration::from_secs(seconds);
            }
            config.stack.tcp.keepalive_idle = None;
        });
        let mut pair = bed.hosts();
        let c = pair.connect(&ConnParam::default());
        pair.run_us(1_000_000);
        control.set_up(false);
        let took_us = link_down_us(&mut pair, &c) as u64;
        let due_us = seconds * 1_000_000;
        // A sleeping engine checks its link only when it has work. The test polls this engine, so it checks
        // the link now.
        assert!((due_us..=due_us + 200_000).contains(&took_us), "{took_us}");
    }
}

#[test]
fn an_engine_without_a_link_asks_for_few_turns() {
    let (mut pair, control) = pair();
    pair.connect(&ConnParam::default());
    control.set_up(false);
    pair.run_us(200_000);
    let before = pair.a.engine.counters().polls;
    pair.run_us(1_000_000);
    let polls = pair.a.engine.counters().polls - before;
    assert!(polls < 150, "{polls} polls in a second");
}

#[test]
fn two_hosts_with_one_address_are_told_so() {
    let bed = Testbed::new().configure(|config| {
        config.stack.address_probing = AddressProbing::Announce;
        config.stack.addresses = ["10.0.0.7/24".parse().unwrap()].into_iter().collect();
    });
    let mut pair = bed.hosts();
    pair.run_us(100_000);
    for host in [&pair.a, &pair.b] {
        assert_eq!(events(host), [event(AsyncEventKind::AddressConflict)]);
        assert_eq!(host.engine.counters().stack.address_conflicts, 1);
    }
}

/// The connections are idle, or have outstanding requests. Each outstanding request is flushed.
#[test]
fn connections_end_at_once_and_say_why_when_the_device_is_taken_away() {
    for busy in [false, true] {
        let (mut pair, control) = pair();
        let c = pair.connect(&ConnParam::default());
        let mr = pair.a.pd.reg_mr(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let theirs = pair.b.pd.reg_mr(64, Access::REMOTE_READ).unwrap();
        pair.run_us(1_000_000);
        control.take_away_a();
        if busy {
            let remote = remote_addr(&theirs, 0);
            c.qp_a.post_send(&SendRequest::new(1, SendOp::Read { remote }, mr.sge(0, 8))).unwrap();
            c.qp_a.post_recv(&RecvRequest::new(2, mr.sge(8, 8))).unwrap();
        }
        let gone_us = pair.now_us;
        let told = pair.event_a();
        let took_us = pair.now_us - gone_us;
        let CmEventKind::Disconnected { error, .. } = told.kind else { panic!("{told:?}") };
        assert_eq!((told.id, error), (c.id_a.clone(), Some(ConnectionError::Tcp(CloseReason::PortGone))));
        assert!(error.unwrap().to_string().contains("the network device was taken away"), "{error:?}");
        assert!(took_us <= 150_000, "{took_us}");
        assert_eq!(events(&pair.a)[0], event(AsyncEventKind::PortGone));
        for wr_id in [1, 2].into_iter().take(if busy { 2 } else { 0 }) {
            let wc = pair.wc_a();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::WrFlushError));
        }
    }
}
