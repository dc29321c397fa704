//! A vhost peer that is killed takes the link down; frames are dropped and counted until another one comes.

mod support;

use dp::dpdk::DeviceConfig;
use dp::{Burst, LinkState, Port};
use support::{Peer, Scratch};

fn config() -> DeviceConfig {
    DeviceConfig { mbufs: Some(4095), ..DeviceConfig::default() }
}

/// One frame goes to the peer and comes back.
fn round_trip(port: &mut dyn Port, number: u32) {
    let sent = support::pattern(number, 600);
    let mut frames = Burst::new();
    let mut received = Burst::new();
    support::until("a frame comes back", || {
        if frames.is_empty() {
            frames.push(support::build(port.mempool(), &sent, 1));
        }
        port.tx_burst(0, &mut frames);
        port.rx_burst(0, &mut received);
        received.iter().any(|frame| support::flat(frame) == sent)
    });
}

/// Sends until a frame is dropped because nobody is there; what a ring took before is not counted.
fn send_into_the_void(port: &mut dyn Port) {
    let before = port.counters().tx_link_down;
    let mut frames = Burst::new();
    support::until("frames are dropped and counted", || {
        while !frames.is_full()
            && let Some(mut frame) = port.mempool().alloc()
        {
            assert!(frame.append_slice(&support::pattern(9, 64)));
            frames.push(frame);
        }
        port.tx_burst(0, &mut frames);
        port.counters().tx_link_down > before
    });
}

fn survive(port: &mut dyn Port, peer: &str, socket: &str) {
    let mut running = Peer::start(peer, socket);
    for number in 0..3 {
        support::wait_for_link(port, LinkState::Up);
        round_trip(port, number);
        running.kill();
        send_into_the_void(port);
        assert_eq!(port.link_state(), LinkState::Down);
        running = Peer::start(peer, socket);
    }
    support::wait_for_link(port, LinkState::Up);
    round_trip(port, 99);
    assert!(port.counters().link_changes >= 6);
}

#[test]
fn a_vhost_server_survives_its_virtio_user() {
    let scratch = Scratch::new("vhost-killed");
    let socket = scratch.socket();
    let mut port = support::open(&format!("net_vhost0,iface={socket}"), &config());
    survive(&mut *port, "second_process_is_a_virtio_user", &socket);
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_is_a_virtio_user() {
    let Some(socket) = support::socket_of_first_process() else { return };
    support::echo(&mut *support::open(&format!("net_virtio_user0,path={socket}"), &config()));
}
