//! Tests that a stopped vhost peer (SIGSTOP) does not block a process that closes its own device.

use dp::dpdk::{self, DeviceConfig, DeviceError, PortSpec};
use dp::{LinkState, Port};

use crate::support::{self, Peer, Scratch};

fn config() -> DeviceConfig {
    DeviceConfig { mbufs: Some(4095), ..DeviceConfig::default() }
}

/// Closes the device. The device waits a limited time for an answer of the vhost process (`ANSWER_TIMEOUT` in
/// `vhost_user.rs`).
fn close(port: Box<dyn Port>) {
    let closer = std::thread::spawn(move || drop(port));
    support::until("the device is closed", || closer.is_finished());
    closer.join().unwrap();
}

#[test]
fn a_virtio_user_is_closed_though_its_vhost_is_stopped() {
    let scratch = Scratch::new("vhost-stopped");
    let socket = scratch.socket();
    let vdev = format!("net_virtio_user0,path={socket}");
    let peer = Peer::start("vhost_peer_stopped::second_process_is_a_vhost", &socket);
    support::until("the vhost listens", || support::has_listener(&socket));
    let mut port = support::open(&vdev, &config());
    support::wait_for_link(&mut *port, LinkState::Up);
    support::round_trip(&mut *port, 1);
    peer.stop();
    close(port);
    // The vhost process may still use the device's memory. So the memory and the device's name remain in use.
    let again = dpdk::open(support::eal(), &PortSpec::Vdev(vdev), &config());
    assert!(matches!(again, Err(DeviceError::InUse { .. })));
    // When the vhost process has noticed that the socket was closed, the next device can connect to the vhost
    // process.
    peer.go_on();
    let mut port = support::open(&format!("net_virtio_user3,path={socket}"), &config());
    support::wait_for_link(&mut *port, LinkState::Up);
    support::round_trip(&mut *port, 2);
    close(port);
    peer.kill();
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_is_a_vhost() {
    let Some(socket) = support::argument_of_first_process() else { return };
    support::echo(&mut *support::open(&format!("net_vhost0,iface={socket}"), &config()));
}
