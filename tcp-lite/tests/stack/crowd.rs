//! Tests of many connections that continuously hold bytes beyond a hole. The tests check that the limits of
//! memory hold, and how much memory other connections get.

use smoltcp::wire::{ArpOperation, EthernetAddress, TcpControl};
use tcp_lite::StackConfig;

use crate::craft::{self, Segment};
use crate::harness::{MAC_A, MAC_B, byte, config};
use crate::limits::{A, A4, B, B4, TO_A};
use crate::relay::Tap;

/// The initial sequence number of every crafted peer.
const ISN: u32 = 7;

/// A host with listeners, and handmade peers that are connected to it.
struct Crowd {
    tap: Tap,
    /// For each peer, the acknowledgement number for the host's SYN.
    acks: Vec<u32>,
}

impl Crowd {
    fn new(config: StackConfig, buffers: usize, peers: u16) -> Self {
        let mut tap = Tap::with_buffers(config, buffers);
        tap.host.keep_all_open();
        tap.host.stack.listen(80).unwrap();
        tap.inject(&craft::arp(ArpOperation::Request, MAC_B, EthernetAddress::BROADCAST, B4, A4));
        tap.frames();
        let mut crowd = Self { tap, acks: Vec::new() };
        for peer in 0..peers {
            crowd.tap.inject(&craft::segment(TO_A, (B, 1000 + peer), (A, 80), TcpControl::Syn));
            let frames = crowd.tap.frames();
            let answer = frames.last().expect("a SYN-ACK");
            let seq = u32::from_be_bytes(answer[38..42].try_into().unwrap());
            crowd.acks.push(seq.wrapping_add(1));
            crowd.say(usize::from(peer), 0, 0);
        }
        assert_eq!(crowd.tap.host.streams.len(), usize::from(peers));
        crowd
    }

    /// Delivers the bytes `from..to` of this peer's stream, and polls the host.
    fn say(&mut self, peer: usize, from: u64, to: u64) {
        let payload: Vec<u8> = (from..to).map(byte).collect();
        let segment = Segment {
            src: (B, 1000 + peer as u16),
            dst: (A, 80),
            seq: ISN.wrapping_add(1).wrapping_add(from as u32),
            ack: self.acks[peer],
            payload: &payload,
        };
        self.tap.inject(&craft::data(TO_A, &segment));
        self.tap.frames();
    }

    fn received(&self, peer: usize) -> u64 {
        self.tap.host.received(peer)
    }

    fn free(&self) -> usize {
        self.tap.host.port.mempool().available()
    }
}

#[test]
fn out_of_order_data_of_many_never_takes_the_pool_from_data_in_order() {
    const BUFFERS: usize = 256;
    const HOSTILE: usize = 20;
    let mut crowd = Crowd::new(config(MAC_A, 1), BUFFERS, HOSTILE as u16 + 2);
    let (in_order, small_hole) = (HOSTILE, HOSTILE + 1);
    let mut least = BUFFERS;
    for round in 0..60 {
        // Each hostile peer sends a further range of 100 bytes beyond a hole, in a buffer of its own.
        for peer in 0..HOSTILE {
            crowd.say(peer, 200 * (round + 1), 200 * (round + 1) + 100);
            least = least.min(crowd.free());
        }
        crowd.say(in_order, 1000 * round, 1000 * (round + 1));
        assert_eq!(crowd.received(in_order), 1000 * (round + 1), "in order is taken at once");
    }
    assert!(least >= BUFFERS / 8, "{least} buffers were free");
    let counters = crowd.tap.host.stack.counters();
    assert!(counters.rx_out_of_order_evicted_bytes > 50_000, "{counters:?}");
    assert_eq!(counters.out_of_order_no_buffers, 0, "room was made before it ran out");
    // A late connection with a small hole makes progress, because it holds less than the other connections.
    for at in 1..5 {
        crowd.say(small_hole, 1000 * at, 1000 * (at + 1));
        crowd.say(0, 20_000 + 200 * at, 20_100 + 200 * at);
    }
    crowd.say(small_hole, 0, 1000);
    assert_eq!(crowd.received(small_hole), 5000);
    // Peer 3 sends all its bytes again, including the bytes that the stack has discarded. The host checks the
    // bytes.
    for at in 0..60 {
        crowd.say(3, 200 * at, 200 * (at + 1));
    }
    assert!(crowd.received(3) >= 12_000);
}

#[test]
fn the_stack_holds_no_more_than_its_bound() {
    let mut bounded = config(MAC_A, 1);
    bounded.limits.out_of_order_bytes = 20_000;
    let mut crowd = Crowd::new(bounded, 512, 5);
    for round in 1..40 {
        for peer in 0..5 {
            crowd.say(peer, 1000 * round, 1000 * round + 900);
        }
        let held = crowd.tap.host.stack.counters().out_of_order;
        assert!(held.held_bytes <= 20_000 && held.max_held_bytes <= 20_000, "{held:?}");
    }
    let per_peer = |crowd: &Crowd, peer: usize| {
        let conn = crowd.tap.host.streams[peer].conn;
        crowd.tap.host.stack.info(conn).unwrap().out_of_order.held_bytes
    };
    let held: Vec<u64> = (0..5).map(|peer| per_peer(&crowd, peer)).collect();
    assert!(held.iter().all(|held| (900..=9000).contains(held)), "shared: {held:?}");
    assert!(crowd.tap.host.stack.counters().rx_out_of_order_evicted_bytes > 0);
}
