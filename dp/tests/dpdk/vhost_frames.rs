//! Tests of frames between a vhost process and a virtio-user process. For example, frames of all lengths
//! arrive unchanged.

use dp::dpdk::DeviceConfig;
use dp::{Burst, Checksum, LinkState, Mbuf, Offloads};

use crate::support::{self, Peer, Scratch};

const MTU: u16 = 9000;

fn config() -> DeviceConfig {
    // The buffers are smaller than a frame, so that chains are also received.
    DeviceConfig { mtu: MTU, mbufs: Some(4095), mbuf_bytes: Some(2048), ..DeviceConfig::default() }
}

#[test]
fn frames_of_all_lengths_come_back_intact() {
    let scratch = Scratch::new("vhost-frames");
    let socket = scratch.socket();
    let mut port = support::open(&format!("net_vhost0,iface={socket}"), &config());
    let offloads = port.info().offloads;
    let expected = Offloads::TX_MULTI_SEGMENT | Offloads::TX_EXTERNAL | Offloads::RX_SCATTER;
    assert!(offloads.contains(expected), "{offloads:?}");

    // Without a peer, frames are dropped and counted.
    let pool = port.mempool().clone();
    let whole = pool.available();
    let mut frames = Burst::new();
    frames.push(support::build(&pool, &support::pattern(0, 64), 1));
    assert_eq!((port.link_state(), port.tx_burst(0, &mut frames)), (LinkState::Down, 1));
    assert_eq!(port.counters().tx_link_down, 1);

    let _peer = Peer::start("vhost_frames::second_process_echoes", &socket);
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
        assert_eq!(frame.segment_count(), bytes.div_ceil(2048));
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
    assert_eq!(counters.tx_dropped, 0);

    // Frames of a heap pool are copied when they are sent.
    let heap = dp::Mempool::heap("foreign", 4, 2048);
    let sent = support::pattern(7, 3000);
    frames.push(support::build(&heap, &sent, 2));
    support::until("a foreign frame goes", || port.tx_burst(0, &mut frames) > 0);
    let mut received = Burst::new();
    support::until("a foreign frame comes", || port.rx_burst(0, &mut received) > 0);
    assert_eq!(support::flat(&received[0]), sent);
    received.clear();

    // A frame whose checksum is left to the port arrives with a partial checksum on both sides. Every second
    // frame is echoed as a shared view.
    assert!(offloads.contains(Offloads::TX_TCP_CHECKSUM | Offloads::RX_TCP_CHECKSUM), "{offloads:?}");
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

    // A frame that the driver (here virtio-user) refuses is sent with complete checksums.
    let mut tcp = support::tcp_frame(support::SPLIT_BYTES);
    let mut frame = support::build(&pool, &tcp, 1);
    frame.set_tx_offload(support::TCP_OFFLOAD);
    frames.push(frame);
    support::until("a TCP frame goes", || port.tx_burst(0, &mut frames) > 0);
    support::until("the refused TCP frame comes", || port.rx_burst(0, &mut received) > 0);
    assert!(dp::checksum::complete_ipv4_header(&mut tcp) && dp::checksum::complete(&mut tcp));
    assert_eq!(support::flat(&received[0]), tcp);
    assert_ne!(received[0].rx_checksum(), Checksum::Partial);
    received.clear();

    // If all buffers are in use, the port stops receiving and counts the reason. The port continues when
    // buffers are free again.
    let mut hoard = Vec::new();
    frames.push(support::build(&pool, &sent, 2));
    while let Some(mbuf) = pool.alloc() {
        hoard.push(mbuf);
    }
    support::until("a frame goes", || port.tx_burst(0, &mut frames) > 0);
    hoard.extend(pool.alloc());
    hoard.extend(pool.alloc());
    support::until("starvation is counted", || {
        port.rx_burst(0, &mut received) == 0 && port.counters().rx_no_mbuf > 0
    });
    hoard.clear();
    support::until("reception goes on", || port.rx_burst(0, &mut received) > 0);
    assert_eq!(support::flat(&received[0]), sent);
    received.clear();
    assert_eq!(pool.available(), whole, "no buffer was lost");
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_echoes() {
    let Some(socket) = support::argument_of_first_process() else { return };
    let mut port = support::open(&format!("net_virtio_user0,path={socket},queue_size=256"), &config());
    support::echo(&mut *port);
}

/// virtio counts its header as part of a received frame. So a buffer with just enough room for the frame is
/// too small if buffers are not chained.
#[test]
fn a_virtio_device_opens_with_frames_of_9000_bytes_in_one_buffer_each() {
    let scratch = Scratch::new("vhost-jumbo");
    let socket = scratch.socket();
    let mut port = support::open(&format!("net_vhost1,iface={socket}"), &config());
    let _peer = Peer::start("vhost_frames::second_process_echoes_without_chains", &socket);
    support::wait_for_link(&mut *port, LinkState::Up);
    support::round_trip(&mut *port, 1);
}

#[test]
#[ignore = "the second process of the test above"]
fn second_process_echoes_without_chains() {
    let Some(socket) = support::argument_of_first_process() else { return };
    let offloads = Offloads::all() - Offloads::RX_LRO - Offloads::RX_SCATTER;
    let config = DeviceConfig { offloads, mbufs: Some(4095), mbuf_bytes: None, ..config() };
    let mut port = support::open(&format!("net_virtio_user1,path={socket},queue_size=256"), &config);
    support::echo(&mut *port);
}
