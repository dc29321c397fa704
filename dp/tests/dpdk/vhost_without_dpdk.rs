//! Tests of frames between [`dp::vhost`], which does not use DPDK, and a virtio-user process.

use dp::dpdk::DeviceConfig;
use dp::vhost::VhostConfig;
use dp::{Burst, Checksum, LinkState, Mbuf, Offloads, Port};

use crate::support::{self, Peer, Scratch};

const MTU: u16 = 9000;

fn config() -> DeviceConfig {
    // The buffers are smaller than a frame, so that chains are also received.
    DeviceConfig { mtu: MTU, mbufs: Some(4095), mbuf_bytes: Some(2048), ..DeviceConfig::default() }
}

fn open(socket: &str) -> Box<dyn Port> {
    Box::new(dp::vhost::open(&VhostConfig { mtu: MTU, ..VhostConfig::new(socket) }).unwrap())
}

#[test]
fn frames_of_all_lengths_come_back_intact() {
    let scratch = Scratch::new("vhost-own");
    let socket = scratch.socket();
    let mut port = open(&socket);
    let pool = port.mempool().clone();
    let whole = pool.available();
    let mut frames = Burst::new();
    frames.push(support::build(&pool, &support::pattern(0, 64), 1));
    assert_eq!((port.link_state(), port.tx_burst(0, &mut frames)), (LinkState::Down, 1));
    assert_eq!(port.counters().tx_link_down, 1);

    let _peer = Peer::start("vhost_without_dpdk::second_process_echoes", &socket);
    support::wait_for_link(&mut *port, LinkState::Up);
    support::round_trip(&mut *port, u32::MAX);
    let before = port.counters();
    let lengths: Vec<usize> =
        (64..=9014).step_by(97).chain([64, 65, 128, 1514, 2048, 2049, 4096, 9000, 9014]).collect();
    let mut back: Vec<Mbuf> = Vec::new();
    for (number, &bytes) in lengths.iter().enumerate() {
        let sent = support::pattern(number as u32, bytes);
        frames.push(match number % 4 {
            3 => support::with_external(&pool, &sent),
            _ => support::build(&pool, &sent, bytes.div_ceil(2000).max(1 + number % 3)),
        });
        support::until("a frame goes", || port.tx_burst(0, &mut frames) > 0);
        let mut received = Burst::new();
        support::until(&format!("frame {number} of {bytes} bytes comes"), || {
            port.rx_burst(0, &mut received) > 0
        });
        back.extend(received);
        let frame = back.pop().unwrap();
        assert!(support::flat(&frame) == sent, "frame {number} of {bytes} bytes");
    }
    let counters = port.counters();
    let (frames_sent, bytes_sent) = (lengths.len() as u64, lengths.iter().sum::<usize>() as u64);
    assert_eq!(
        (counters.tx_frames - before.tx_frames, counters.rx_frames - before.rx_frames),
        (frames_sent, frames_sent)
    );
    assert_eq!(
        (counters.tx_bytes - before.tx_bytes, counters.rx_bytes - before.rx_bytes),
        (bytes_sent, bytes_sent)
    );
    assert_eq!((counters.tx_dropped, counters.rx_dropped), (0, 0));

    // A frame whose checksum is left to the port arrives with a partial checksum on both sides.
    let mut received = Burst::new();
    for bytes in [100, 1514, 100, 1514] {
        let tcp = support::tcp_frame(bytes);
        let mut frame = support::build(&pool, &tcp, 1);
        frame.set_tx_offload(support::TCP_OFFLOAD);
        frames.push(frame);
        support::until("a TCP frame goes", || port.tx_burst(0, &mut frames) > 0);
        support::until("a TCP frame comes", || port.rx_burst(0, &mut received) > 0);
        assert_eq!(support::flat(&received[0]), tcp);
        assert_eq!(received[0].rx_checksum(), Checksum::Partial);
        received.clear();
    }
    drop(back);
    assert_eq!(pool.available(), whole, "no buffer was lost");
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_echoes() {
    let Some(socket) = support::argument_of_first_process() else { return };
    let mut port = support::open(&format!("net_virtio_user2,path={socket},queue_size=256"), &config());
    support::echo(&mut *port);
}

/// The driver accepts no offloads: each frame has a buffer of its own, and complete checksums.
#[test]
fn a_driver_without_offloads_gets_whole_frames() {
    let scratch = Scratch::new("vhost-own-plain");
    let socket = scratch.socket();
    let mut port = open(&socket);
    let _peer = Peer::start("vhost_without_dpdk::second_process_echoes_without_offloads", &socket);
    support::wait_for_link(&mut *port, LinkState::Up);
    support::round_trip(&mut *port, 1);
    let mut tcp = support::tcp_frame(1514);
    let mut frame = support::build(port.mempool(), &tcp, 1);
    frame.set_tx_offload(support::TCP_OFFLOAD);
    let (mut frames, mut received) = (Burst::new(), Burst::new());
    frames.push(frame);
    support::until("a TCP frame goes", || port.tx_burst(0, &mut frames) > 0);
    support::until("a TCP frame comes", || port.rx_burst(0, &mut received) > 0);
    assert!(dp::checksum::complete_ipv4_header(&mut tcp) && dp::checksum::complete(&mut tcp));
    assert_eq!(support::flat(&received[0]), tcp);
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_echoes_without_offloads() {
    let Some(socket) = support::argument_of_first_process() else { return };
    let config = DeviceConfig {
        offloads: Offloads::TX_MULTI_SEGMENT,
        mbufs: Some(4095),
        mbuf_bytes: None,
        ..config()
    };
    let mut port = support::open(&format!("net_virtio_user3,path={socket},queue_size=256"), &config);
    support::echo(&mut *port);
}

/// When a peer is killed, the link goes down. Another peer takes its place.
#[test]
fn a_killed_peer_is_noticed_and_the_next_peer_is_served() {
    let scratch = Scratch::new("vhost-own-killed");
    let socket = scratch.socket();
    let mut port = open(&socket);
    for number in 0..2 {
        let peer = Peer::start("vhost_without_dpdk::second_process_echoes", &socket);
        support::wait_for_link(&mut *port, LinkState::Up);
        support::round_trip(&mut *port, number);
        peer.kill();
        support::wait_for_link(&mut *port, LinkState::Down);
        let mut frames = Burst::new();
        frames.push(support::build(port.mempool(), &support::pattern(0, 64), 1));
        assert_eq!(port.tx_burst(0, &mut frames), 1, "dropped");
    }
    drop(port);
    assert!(!std::path::Path::new(&socket).exists(), "the socket is removed");
}
