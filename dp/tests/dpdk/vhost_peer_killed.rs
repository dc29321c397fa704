//! Tests that the link goes down when a vhost peer is killed. Frames are then dropped and counted until
//! another peer connects.

use dp::dpdk::DeviceConfig;
use dp::{Burst, LinkState, Port};

use crate::support::{self, Peer, Scratch};

fn config() -> DeviceConfig {
    DeviceConfig { mbufs: Some(4095), ..DeviceConfig::default() }
}

/// Sends until a frame is dropped because the peer is gone. Frames that the ring accepted before are not
/// counted.
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

/// Kills `running`, and then repeatedly starts and kills another peer.
fn survive(port: &mut dyn Port, mut running: Peer, peer: &str, socket: &str) {
    for number in 0..3 {
        support::wait_for_link(port, LinkState::Up);
        support::round_trip(port, number);
        running.kill();
        send_into_the_void(port);
        assert_eq!(port.link_state(), LinkState::Down);
        running = Peer::start(peer, socket);
    }
    support::wait_for_link(port, LinkState::Up);
    support::round_trip(port, 99);
    assert!(port.counters().link_changes >= 6);
}

#[test]
fn a_vhost_server_survives_its_virtio_user() {
    let scratch = Scratch::new("vhost-killed");
    let socket = scratch.socket();
    let mut port = support::open(&format!("net_vhost5,iface={socket}"), &config());
    let peer = "vhost_peer_killed::second_process_is_a_virtio_user";
    survive(&mut *port, Peer::start(peer, &socket), peer, &socket);
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_is_a_virtio_user() {
    let Some(socket) = support::argument_of_first_process() else { return };
    support::echo(&mut *support::open(&format!("net_virtio_user0,path={socket}"), &config()));
}

#[test]
fn a_virtio_user_server_survives_its_vhost() {
    let scratch = Scratch::new("virtio-killed");
    let socket = scratch.socket();
    // A virtio-user server does not open until its first peer connects.
    let peer = "vhost_peer_killed::second_process_is_a_vhost";
    let running = Peer::start(peer, &socket);
    let mut port = support::open(&format!("net_virtio_user2,path={socket},server=1"), &config());
    survive(&mut *port, running, peer, &socket);
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_is_a_vhost() {
    let Some(socket) = support::argument_of_first_process() else { return };
    support::echo(&mut *support::open(&format!("net_vhost0,iface={socket},client=1"), &config()));
}
