//! Test of a SYN that replaces a connection in TIME-WAIT.

use dp::Checksum;
use smoltcp::wire::{IpAddress, TcpControl, TcpPacket};
use tcp_lite::CloseReason;

use crate::craft;
use crate::harness::{MAC_A, MAC_B, config};
use crate::relay::Relay;

const PORT: u16 = 4000;

/// An attacker guesses ports and numbers, and sends a SYN in the name of a peer that still waits for the
/// acknowledgement of its FIN. After that, each of the two hosts finds wrong numbers in the other host's
/// segments. An RST settles this conflict, without an endless exchange of acknowledgements.
#[test]
fn a_blind_syn_starts_no_exchange_of_acknowledgements() {
    let mut relay = Relay::new(config(MAC_A, 1), config(MAC_B, 2));
    relay.a.host.stack.listen(PORT).unwrap();
    relay.b.host.keep_all_open();
    let now = relay.b.now();
    relay.b.host.connect(now, format!("10.0.0.1:{PORT}").parse().unwrap(), 0);
    let pass = |frame| vec![(frame, Checksum::Unknown)];
    assert!(relay.run(1_000_000, |_, frame| pass(frame), |r| r.b.host.streams[0].peer_closed));
    // `a` has closed. Now `b` closes, and its FIN is not answered. The next sequence number of `b` is after
    // its FIN.
    let (now, conn) = (relay.b.now(), relay.b.host.streams[0].conn);
    relay.b.host.stack.close(now, conn);
    let mut last = Vec::new();
    let carry = |to_b, frame: Vec<u8>| {
        if to_b {
            return vec![];
        }
        last.clone_from(&frame);
        vec![(frame, Checksum::Unknown)]
    };
    assert!(relay.run(1_000_000, carry, |r| r.a.host.streams[0].closed == Some(CloseReason::Graceful)));
    let fin = TcpPacket::new_checked(&last[34..]).expect("a segment of b's");
    assert!(fin.fin());
    let address = |n| IpAddress::v4(10, 0, 0, n);
    let (src, dst) = ((address(2), fin.src_port()), (address(1), PORT));
    let mut syn = craft::segment([MAC_B, MAC_A], src, dst, TcpControl::Syn);
    craft::set_tcp_seq(&mut syn, fin.seq_number().0.wrapping_add(1_000_000));
    relay.a.inject(&syn);
    let mut carried = 0;
    let counted = |_, frame| {
        carried += 1;
        pass(frame)
    };
    relay.run(3_000_000, counted, |_| false);
    assert_eq!(relay.a.host.streams.len(), 1, "nobody was there");
    assert_eq!(relay.b.host.streams[0].closed, Some(CloseReason::Reset));
    // The frames are the SYN-ACK, the challenge ACK of `b`, and a RST, and the same frames again for segments
    // in flight. An endless exchange would have more frames.
    assert!((3..=8).contains(&carried), "{carried} frames");
}
