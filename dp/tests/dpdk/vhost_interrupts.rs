//! Tests of sleep over a vhost-user socket. Both sides can sleep until a frame arrives. The vhost side is
//! also woken when its peer ends. A port that polls is not notified.

use std::time::{Duration, Instant};

use dp::dpdk::DeviceConfig;
use dp::{Burst, LinkState, Port};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::idle::are_idle;

use crate::support::{self, Peer, Scratch};

fn config() -> DeviceConfig {
    DeviceConfig { mbufs: Some(4095), ..DeviceConfig::default() }
}

/// Sleeps until a frame waits or `limit` is over. Returns whether the port was woken.
fn sleep(port: &mut dyn Port, limit: Duration) -> bool {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    let woken = !port.arm_wakeup() || {
        let fd = port.poll_fd().expect("a vhost-user socket has interrupts");
        let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
        poll(&mut fds, Some(&limit)).unwrap() == 1
    };
    port.disarm_wakeup();
    woken
}

/// Echoes the frames that arrive, and sleeps in between, until the first process has ended.
fn echo_in_its_sleep(port: &mut dyn Port) {
    let first = std::os::unix::process::parent_id();
    let mut frames = Burst::new();
    while std::os::unix::process::parent_id() == first {
        if port.rx_burst(0, &mut frames) == 0 {
            // While the link is up, only a frame or the end of the link ends the sleep, since the limit is
            // longer than a test waits. While the link is down, the loop checks the link from time to time,
            // as an engine does.
            let is_up = port.link_state() == LinkState::Up;
            sleep(port, if is_up { 2 * support::PATIENCE } else { Duration::from_millis(100) });
        }
        while !frames.is_empty() {
            port.tx_burst(0, &mut frames);
        }
    }
}

fn send(port: &mut dyn Port, number: u32) {
    let mut frames = Burst::new();
    frames.push(support::build(port.mempool(), &support::pattern(number, 64), 1));
    support::until("there is room", || {
        port.tx_burst(0, &mut frames);
        frames.is_empty()
    });
}

/// Polls until frame `number` arrives.
fn receive(port: &mut dyn Port, number: u32) {
    let (mut frames, begun) = (Burst::new(), Instant::now());
    while port.rx_burst(0, &mut frames) == 0 {
        assert!(begun.elapsed() < support::PATIENCE, "frame {number} does not come back");
    }
    let all: Vec<_> = frames.iter().map(support::flat).collect();
    assert_eq!(all, [support::pattern(number, 64)]);
}

fn is_a_good_sleeper(port: &mut dyn Port, peer: &Peer) {
    support::wait_for_link(port, LinkState::Up);
    support::round_trip(port, 0);
    are_idle(Duration::from_secs(3), &[("the peer", peer.id())]).unwrap();
    // The peer sleeps. It answers only if each frame ends its sleep.
    for number in 1..=1000 {
        send(port, number);
        receive(port, number);
        // After this time the peer usually sleeps again.
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_virtio_user_that_waits_uses_no_processor_and_is_woken_by_each_frame() {
    let scratch = Scratch::new("virtio-sleeps");
    let socket = scratch.socket();
    let mut port = support::open(&format!("net_vhost2,iface={socket}"), &config());
    let peer = Peer::start(SLEEPER, &format!("net_virtio_user0,path={socket}"));
    is_a_good_sleeper(&mut *port, &peer);
}

#[test]
fn a_vhost_that_waits_uses_no_processor_and_is_woken_by_each_frame() {
    let scratch = Scratch::new("vhost-sleeps");
    let socket = scratch.socket();
    let peer = Peer::start(SLEEPER, &format!("net_vhost0,iface={socket},client=1"));
    // The device does not open until its first peer connects.
    let mut port = support::open(&format!("net_virtio_user1,path={socket},server=1"), &config());
    is_a_good_sleeper(&mut *port, &peer);
}

const SLEEPER: &str = "vhost_interrupts::second_process_echoes_in_its_sleep";

#[test]
#[ignore = "the second process of the two tests above"]
fn second_process_echoes_in_its_sleep() {
    let Some(device) = support::argument_of_first_process() else { return };
    echo_in_its_sleep(&mut *support::open(&device, &config()));
}

/// A sleeping port is woken when its peer ends, and again when the first frame of the next peer arrives.
#[test]
fn a_vhost_that_sleeps_is_woken_by_the_end_of_its_peer_and_by_a_frame_of_the_next() {
    let scratch = Scratch::new("vhost-reconnects");
    let socket = scratch.socket();
    let mut port = support::open(&format!("net_vhost3,iface={socket}"), &config());
    for number in 0..3 {
        let peer = Peer::start("vhost_interrupts::second_process_sends_a_frame_and_waits", &socket);
        let mut frames = Burst::new();
        let begun = Instant::now();
        while port.rx_burst(0, &mut frames) == 0 {
            assert!(begun.elapsed() < support::PATIENCE, "no frame of peer {number}");
            assert!(sleep(&mut *port, support::PATIENCE), "nobody wakes it for peer {number}");
        }
        frames.clear();
        assert_eq!(port.link_state(), LinkState::Up);
        // Earlier events of the connection do not end the next sleep.
        support::until("it sleeps", || !sleep(&mut *port, Duration::from_millis(50)));
        peer.kill();
        support::until("the link is down", || {
            assert!(sleep(&mut *port, support::PATIENCE), "nobody wakes it for the end of peer {number}");
            port.link_state() == LinkState::Down
        });
    }
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_sends_a_frame_and_waits() {
    let Some(socket) = support::argument_of_first_process() else { return };
    let mut port = support::open(&format!("net_virtio_user0,path={socket}"), &config());
    support::wait_for_link(&mut *port, LinkState::Up);
    // After this time the other process has noticed the connection, and sleeps again.
    std::thread::sleep(Duration::from_millis(300));
    send(&mut *port, 7);
    std::thread::sleep(Duration::from_secs(60));
}

/// A peer does not notify a port that polls: a system call for each burst would cost more than the burst.
#[test]
fn nobody_is_told_of_frames_while_both_ends_poll() {
    let scratch = Scratch::new("vhost-polls");
    let socket = scratch.socket();
    let mut port = support::open(&format!("net_vhost4,iface={socket}"), &config());
    let peer = Peer::start("vhost_interrupts::second_process_polls", &socket);
    support::wait_for_link(&mut *port, LinkState::Up);
    support::round_trip(&mut *port, 0);
    assert!(port.poll_fd().is_some());
    // This call arms and disarms the wake-up once, as after a sleep.
    sleep(&mut *port, Duration::ZERO);
    let before = (writes("thread-self"), writes(&peer.id().to_string()));
    for number in 1..=10_000 {
        send(&mut *port, number);
        receive(&mut *port, number);
    }
    let after = (writes("thread-self"), writes(&peer.id().to_string()));
    assert_eq!(after, before, "calls of write during 10,000 round trips, at both ends");
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_polls() {
    let Some(socket) = support::argument_of_first_process() else { return };
    support::echo(&mut *support::open(&format!("net_virtio_user0,path={socket}"), &config()));
}

/// Returns the number of times that a process or thread has called `write` (see proc(5)).
fn writes(process: &str) -> u64 {
    let counts = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    counts.lines().find_map(|line| line.strip_prefix("syscw: ")).unwrap().parse().unwrap()
}
