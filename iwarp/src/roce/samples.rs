//! Messages and packets for tests.

use proptest::prelude::*;

use super::{Qpn, UdSend, seal};

/// Returns a sealed packet. `seed` determines the fields of IP and UDP, except lengths.
pub(super) fn packet(v6: bool, send: &UdSend, payload: &[u8], seed: [u8; 16]) -> Vec<u8> {
    let udp_bytes = (8 + send.frame_bytes(payload.len())) as u16;
    let mut packet = if v6 {
        let mut ip = vec![0x60 | seed[0] & 0x0f, seed[1], seed[2], seed[3]];
        ip.extend(udp_bytes.to_be_bytes());
        ip.extend([17, seed[4]]);
        ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, seed[5], seed[6]]);
        ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, seed[7], seed[8]]);
        if send.dest_qp == Qpn::MULTICAST {
            ip[24] = 0xff;
        }
        ip
    } else {
        let mut ip = vec![0x45, seed[0]];
        ip.extend((20 + udp_bytes).to_be_bytes());
        ip.extend([seed[1], seed[2], seed[3] & 0xc0, 0, seed[4], 17, seed[9], seed[10]]);
        ip.extend([10, 0, seed[5], seed[6], 10, 0, seed[7], seed[8]]);
        if send.dest_qp == Qpn::MULTICAST {
            ip[16] = 0xe0;
        }
        ip
    };
    packet.extend([seed[11], seed[12], 0x12, 0xb7]);
    packet.extend(udp_bytes.to_be_bytes());
    packet.extend([seed[13], seed[14]]);
    let udp_payload = packet.len();
    // `write` overwrites pad and headers; 0xee would show a byte that is left as it was.
    packet.resize(udp_payload + send.frame_bytes(payload.len()), 0xee);
    let at = send.write(payload.len(), &mut packet[udp_payload..]);
    packet[udp_payload..][at].copy_from_slice(payload);
    seal(&mut packet).unwrap();
    packet
}

pub(super) fn sends() -> impl Strategy<Value = UdSend> {
    let qp =
        || prop_oneof![2_u32..0x00ff_ffff, Just(0x00ff_ffff)].prop_map(|number| Qpn::new(number).unwrap());
    let keys = (prop_oneof![Just(0xffff_u16), Just(0x7fff)], any::<u32>());
    let numbers = (qp(), 0_u32..1 << 24, qp());
    (any::<bool>(), keys, numbers, any::<Option<[u8; 4]>>()).prop_map(
        |(solicited, (pkey, qkey), (dest_qp, psn, src_qp), immediate)| UdSend {
            solicited,
            pkey,
            dest_qp,
            psn,
            qkey,
            src_qp,
            immediate,
        },
    )
}
