//! The flow of a frame, for devices in software that hash flows.

use std::net::IpAddr;

use super::Flow;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;
const PROTOCOL_TCP: u8 = 6;

impl Flow {
    /// Returns the flow of a TCP segment in an Ethernet frame, with or without a VLAN tag. Returns `None` for
    /// all other frames, including fragments and IPv6 with extension headers.
    pub fn of_frame(frame: &[u8]) -> Option<Self> {
        let (mut ethertype, mut packet) = (u16_at(frame, 12)?, frame.get(14..)?);
        if ethertype == ETHERTYPE_VLAN {
            (ethertype, packet) = (u16_at(packet, 2)?, packet.get(4..)?);
        }
        let (src, dst, tcp): (IpAddr, IpAddr, _) = match ethertype {
            ETHERTYPE_IPV4 => {
                let header_bytes = usize::from(packet.first()? & 0x0f) * 4;
                let whole = u16_at(packet, 6)? & 0x3fff == 0;
                let tcp =
                    (whole && *packet.get(9)? == PROTOCOL_TCP).then(|| packet.get(header_bytes..))??;
                (octets::<4>(packet, 12)?.into(), octets::<4>(packet, 16)?.into(), tcp)
            }
            ETHERTYPE_IPV6 => {
                let tcp = (*packet.get(6)? == PROTOCOL_TCP).then(|| packet.get(40..))??;
                (octets::<16>(packet, 8)?.into(), octets::<16>(packet, 24)?.into(), tcp)
            }
            _ => return None,
        };
        Some(Self { src: (src, u16_at(tcp, 0)?), dst: (dst, u16_at(tcp, 2)?) })
    }
}

fn octets<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    octets(bytes, at).map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ipv4(flags: u16, protocol: u8) -> Vec<u8> {
        let mut frame = [&[2; 12][..], &[0x08, 0x00], &[0x45], &[0; 19], &[0x12, 0x34, 0x56, 0x78]].concat();
        frame[20..22].copy_from_slice(&flags.to_be_bytes());
        frame[23] = protocol;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame
    }

    #[test]
    fn a_segment_has_the_flow_of_its_headers() {
        let flow =
            Flow { src: ("10.0.0.1".parse().unwrap(), 0x1234), dst: ("10.0.0.2".parse().unwrap(), 0x5678) };
        let frame = ipv4(0x4000, 6);
        assert_eq!(Flow::of_frame(&frame), Some(flow));
        let tagged = [&frame[..12], &[0x81, 0x00, 0, 7], &frame[12..]].concat();
        assert_eq!(Flow::of_frame(&tagged), Some(flow));

        let addresses: [IpAddr; 2] = ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()];
        let mut frame = [&[2; 12][..], &[0x86, 0xdd, 0x60], &[0; 5], &[6, 64]].concat();
        for address in addresses {
            let IpAddr::V6(address) = address else { unreachable!("it has colons") };
            frame.extend(address.octets());
        }
        frame.extend([0, 80, 1, 0]);
        assert_eq!(Flow::of_frame(&frame), Some(Flow { src: (addresses[0], 80), dst: (addresses[1], 256) }));
        frame[20] = 0;
        assert_eq!(Flow::of_frame(&frame), None, "an extension header");
    }

    #[test]
    fn fragments_other_protocols_and_cut_frames_have_none() {
        for (flags, protocol) in [(0x2000, 6), (0x0001, 6), (0, 17)] {
            assert_eq!(Flow::of_frame(&ipv4(flags, protocol)), None);
        }
        let frame = ipv4(0, 6);
        for bytes in 0..frame.len() {
            assert_eq!(Flow::of_frame(&frame[..bytes]), None, "{bytes} bytes");
        }
        assert_eq!(Flow::of_frame(&[0; 60]), None);
    }
}
