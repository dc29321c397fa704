//! Tests that a stopped vhost peer (SIGSTOP) does not block a process that closes its own device.

mod support;

use std::time::{Duration, Instant};

use dp::LinkState;
use dp::dpdk::{self, DeviceConfig, DeviceError, PortSpec};
use support::{Peer, Scratch};

fn config() -> DeviceConfig {
    DeviceConfig { mbufs: Some(4095), ..DeviceConfig::default() }
}

/// Maximum time for closing the device. The timeout for an answer of the vhost process is 1 s
/// (`ANSWER_TIMEOUT` in `vhost_user.rs`).
const LIMIT: Duration = Duration::from_secs(8);

#[test]
fn a_virtio_user_is_closed_though_its_vhost_is_stopped() {
    let scratch = Scratch::new("vhost-stopped");
    let socket = scratch.socket();
    let vdev = format!("net_virtio_user0,path={socket}");
    let peer = Peer::start("second_process_is_a_vhost", &socket);
    support::until("the vhost listens", || std::path::Path::new(&socket).exists());
    let mut port = support::open(&vdev, &config());
    support::wait_for_link(&mut *port, LinkState::Up);
    support::round_trip(&mut *port, 1);
    peer.stop();
    let started = Instant::now();
    drop(port);
    assert!(started.elapsed() < LIMIT, "closing took {:?}", started.elapsed());
    // The vhost process may still use the device's memory. So the memory and the device's name remain in use.
    let again = dpdk::open(support::eal(), &PortSpec::Vdev(vdev), &config());
    assert!(matches!(again, Err(DeviceError::InUse { .. })));
    // When the vhost process has noticed that the socket was closed, the next device can connect to the vhost
    // process.
    peer.go_on();
    let mut port = support::open(&format!("net_virtio_user1,path={socket}"), &config());
    support::wait_for_link(&mut *port, LinkState::Up);
    support::round_trip(&mut *port, 2);
    let started = Instant::now();
    drop(port);
    assert!(started.elapsed() < LIMIT, "closing took {:?}", started.elapsed());
    peer.kill();
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_is_a_vhost() {
    let Some(socket) = support::argument_of_first_process() else { return };
    support::echo(&mut *support::open(&format!("net_vhost0,iface={socket}"), &config()));
}
