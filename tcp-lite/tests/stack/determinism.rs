//! Tests that a stack with the same seed and the same inputs sends the same frames, byte for byte, and that
//! another seed changes secret values.

use dp::link::{LinkConfig, LinkPlan};
use smoltcp::wire::{ArpOperation, Icmpv4Repr, Ipv4Address};
use tcp_lite::StackConfig;

use crate::craft;
use crate::harness::{MAC_A, MAC_B, World, config};
use crate::relay::Tap;

const A4: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
const B4: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);

fn frames(stack_seed: u8, link_seed: u64) -> [Vec<Vec<u8>>; 2] {
    let plan = LinkPlan { drop_ppm: 10_000, reorder_ppm: 10_000, reorder_us: 200, ..LinkPlan::default() };
    let link = LinkConfig { seed: link_seed, a_to_b: plan.clone(), b_to_a: plan, ..LinkConfig::default() };
    let (mut a, mut b) = (config(MAC_A, 1), config(MAC_B, 2));
    (a.seed, b.seed) = ([stack_seed; 32], [stack_seed + 1; 32]);
    let mut world = World::new(&link, a, b);
    world.a.sent_frames = Some(Vec::new());
    world.b.sent_frames = Some(Vec::new());
    world.exchange("10.0.0.2:4000", 200_000, 100_000, 100_000_000);
    [world.a, world.b].map(|h| h.sent_frames.unwrap())
}

#[test]
fn equal_seeds_give_equal_frames() {
    assert_eq!(frames(1, 1), frames(1, 1));
}

#[test]
fn another_seed_gives_other_ports_and_sequence_numbers() {
    // The first IPv4 frame is the SYN.
    let syn =
        |frames: &[Vec<Vec<u8>>; 2]| frames[0].iter().find(|f| f[12..14] == [8, 0]).unwrap()[34..42].to_vec();
    let (one, other) = (syn(&frames(1, 1)), syn(&frames(3, 1)));
    assert_ne!(one[0..2], other[0..2]);
    assert_ne!(one[4..8], other[4..8]);
}

/// The identification of the fragments of an answer to a large ping depends on the peer and on the seed (RFC
/// 7739 section 3).
#[test]
fn another_seed_gives_other_identifications_of_fragments() {
    let request = Icmpv4Repr::EchoRequest { ident: 7, seq_no: 9, data: &[0x5a; 1400] };
    let ping = craft::icmpv4([MAC_B, MAC_A], B4, A4, &request);
    let identification = |seed| {
        let mut tap = Tap::new(StackConfig { mtu: 600, seed: [seed; 32], ..config(MAC_A, 1) });
        tap.inject(&craft::arp(ArpOperation::Request, MAC_B, MAC_A, B4, A4));
        tap.frames();
        for fragment in craft::fragments(&ping, 576, 1) {
            tap.inject(&fragment);
        }
        let answer = tap.frames();
        assert_eq!(answer.len(), 3);
        assert!(answer.iter().all(|frame| frame[18..20] == answer[0][18..20]));
        [answer[0][18], answer[0][19]]
    };
    assert_eq!(identification(1), identification(1));
    assert_ne!(identification(1), identification(2));
}
