//! The virtio header in front of a frame to send (`struct virtio_net_hdr`, virtio 1.2 section 5.1.6). The
//! header tells the kernel where to put the checksum, and the size of the segments into which to split the
//! frame (GSO). Packet sockets use the byte order of the machine.

use crate::{Mbuf, TxOffload};

pub(crate) const VNET_BYTES: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum has to be filled in.
const NEEDS_CSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV4`.
const GSO_TCPV4: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_TCPV6`.
const GSO_TCPV6: u8 = 4;
/// `VIRTIO_NET_HDR_GSO_ECN`: the segment has CWR, which the kernel sets only in the first piece.
const GSO_ECN: u8 = 0x80;

/// Offset of the checksum in a TCP header.
const CHECKSUM_AT: u16 = 16;
/// Offset of the flags in a TCP header.
const FLAGS_AT: usize = 13;
const CWR: u8 = 0x80;

/// Makes the header for a frame. If the frame requests its checksum, the checksum field already has the sum
/// of the pseudo-header with the length of the whole TCP segment, as virtio requires.
pub(crate) fn header(frame: &Mbuf) -> [u8; VNET_BYTES] {
    let mut out = [0; VNET_BYTES];
    let TxOffload { ipv4_checksum: _, tcp_checksum, ipv6, tso_segment_bytes, l2_bytes, l3_bytes, l4_bytes } =
        frame.tx_offload();
    if !tcp_checksum {
        return out;
    }
    let tcp_at = u16::from(l2_bytes) + u16::from(l3_bytes);
    let headers_bytes = tcp_at + u16::from(l4_bytes);
    out[0] = NEEDS_CSUM;
    if tso_segment_bytes > 0 {
        out[1] = if ipv6 { GSO_TCPV6 } else { GSO_TCPV4 };
        let mut flags = [0];
        frame.copy_to(usize::from(tcp_at) + FLAGS_AT, &mut flags);
        if flags[0] & CWR != 0 {
            out[1] |= GSO_ECN;
        }
        out[4..6].copy_from_slice(&tso_segment_bytes.to_ne_bytes());
    }
    // The kernel makes the first `hdr_len` bytes of the frame contiguous.
    out[2..4].copy_from_slice(&headers_bytes.to_ne_bytes());
    out[6..8].copy_from_slice(&tcp_at.to_ne_bytes());
    out[8..10].copy_from_slice(&CHECKSUM_AT.to_ne_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mempool;

    fn frame(offload: TxOffload, tcp_flags: u8) -> Mbuf {
        let pool = Mempool::heap("vnet", 1, 2048);
        let mut frame = pool.alloc().unwrap();
        let bytes = frame.append(200).unwrap();
        bytes.fill(0);
        bytes[usize::from(offload.l2_bytes) + usize::from(offload.l3_bytes) + 13] = tcp_flags;
        frame.set_tx_offload(offload);
        frame
    }

    fn words(header: [u8; VNET_BYTES]) -> (u8, u8, [u16; 4]) {
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        (header[0], header[1], [2, 4, 6, 8].map(word))
    }

    #[test]
    fn a_frame_without_offloads_has_an_empty_header() {
        assert_eq!(header(&frame(TxOffload::default(), 0)), [0; VNET_BYTES]);
        // Each piece needs its own checksum, so virtio has no segmentation without checksum offload.
        let cut = TxOffload {
            tso_segment_bytes: 1448,
            l2_bytes: 14,
            l3_bytes: 20,
            l4_bytes: 20,
            ..TxOffload::default()
        };
        assert_eq!(header(&frame(cut, 0)), [0; VNET_BYTES]);
    }

    #[test]
    fn checksums_and_cuts_are_asked_for_by_offsets() {
        let v4 =
            TxOffload { tcp_checksum: true, l2_bytes: 14, l3_bytes: 20, l4_bytes: 32, ..Default::default() };
        assert_eq!(words(header(&frame(v4, 0x10))), (1, 0, [66, 0, 34, 16]));
        let cut = TxOffload { tso_segment_bytes: 1448, ..v4 };
        assert_eq!(words(header(&frame(cut, 0x10))), (1, 1, [66, 1448, 34, 16]));
        assert_eq!(words(header(&frame(cut, 0x90))), (1, 0x81, [66, 1448, 34, 16]), "CWR");
        let v6 = TxOffload { ipv6: true, l2_bytes: 18, l3_bytes: 40, ..cut };
        assert_eq!(words(header(&frame(v6, 0x10))), (1, 4, [90, 1448, 58, 16]), "behind a VLAN tag");
    }
}
