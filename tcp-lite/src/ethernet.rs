//! Parses and writes Ethernet headers with at most one VLAN tag (IEEE 802.3, 802.1Q).

use crate::facade::{EthernetAddress, IpAddress};

/// Number of bytes of an untagged header.
pub(crate) const HEADER_BYTES: usize = 14;
/// Number of bytes that a VLAN tag adds.
pub(crate) const TAG_BYTES: usize = 4;

pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
pub(crate) const ETHERTYPE_ARP: u16 = 0x0806;
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;
const ETHERTYPE_VLAN: u16 = 0x8100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EthernetHeader {
    pub(crate) dst: EthernetAddress,
    pub(crate) src: EthernetAddress,
    pub(crate) ethertype: u16,
    /// VLAN id; `None` without a tag or for a priority tag (id 0).
    pub(crate) vlan: Option<u16>,
    /// Number of bytes of the header, including the tag.
    pub(crate) bytes: usize,
}

impl EthernetHeader {
    /// Parses the header at the front of `head`; `None` if `head` is too short.
    pub(crate) fn parse(head: &[u8]) -> Option<Self> {
        let (addresses, rest) = head.split_first_chunk::<12>()?;
        let (dst, src) = addresses.split_at(6);
        let (ethertype, rest) = rest.split_first_chunk::<2>()?;
        let mut ethertype = u16::from_be_bytes(*ethertype);
        let mut vlan = None;
        let mut bytes = HEADER_BYTES;
        if ethertype == ETHERTYPE_VLAN {
            let tag = rest.first_chunk::<4>()?;
            let id = u16::from_be_bytes([tag[0], tag[1]]) & 0x0fff;
            vlan = (id != 0).then_some(id);
            ethertype = u16::from_be_bytes([tag[2], tag[3]]);
            bytes += TAG_BYTES;
        }
        Some(Self {
            dst: EthernetAddress::from_bytes(dst),
            src: EthernetAddress::from_bytes(src),
            ethertype,
            vlan,
            bytes,
        })
    }
}

/// Length in bytes of the headers that we write.
pub(crate) fn header_bytes(vlan: Option<u16>) -> usize {
    HEADER_BYTES + if vlan.is_some() { TAG_BYTES } else { 0 }
}

/// Writes a header to the front of `out`, which has at least [`header_bytes`] bytes.
pub(crate) fn emit(
    out: &mut [u8],
    dst: EthernetAddress,
    src: EthernetAddress,
    vlan: Option<u16>,
    ethertype: u16,
) {
    out[0..6].copy_from_slice(&dst.0);
    out[6..12].copy_from_slice(&src.0);
    match vlan {
        None => out[12..14].copy_from_slice(&ethertype.to_be_bytes()),
        Some(id) => {
            out[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
            out[14..16].copy_from_slice(&id.to_be_bytes());
            out[16..18].copy_from_slice(&ethertype.to_be_bytes());
        }
    }
}

/// The Ethernet address of a multicast group (RFC 1112 section 6.4, RFC 2464 section 7).
pub(crate) fn multicast_mac(group: &IpAddress) -> EthernetAddress {
    match group {
        IpAddress::Ipv4(group) => {
            let [_, b, c, d] = group.octets();
            EthernetAddress([0x01, 0x00, 0x5e, b & 0x7f, c, d])
        }
        IpAddress::Ipv6(group) => {
            let [.., a, b, c, d] = group.octets();
            EthernetAddress([0x33, 0x33, a, b, c, d])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_group_has_its_last_23_or_32_bits() {
        let mac = |group: &str| multicast_mac(&group.parse().unwrap()).0;
        assert_eq!(mac("224.0.0.251"), [0x01, 0x00, 0x5e, 0, 0, 251]);
        assert_eq!(mac("239.129.2.3"), [0x01, 0x00, 0x5e, 1, 2, 3], "the 24th bit is not in the address");
        assert_eq!(mac("ff15::1234:5678"), [0x33, 0x33, 0x12, 0x34, 0x56, 0x78]);
    }

    #[test]
    fn what_is_written_is_read() {
        let (dst, src) = (EthernetAddress([1, 2, 3, 4, 5, 6]), EthernetAddress([7, 8, 9, 10, 11, 12]));
        for vlan in [None, Some(5), Some(4094)] {
            let mut bytes = [0; 18];
            emit(&mut bytes, dst, src, vlan, ETHERTYPE_IPV6);
            let header = EthernetHeader::parse(&bytes).unwrap();
            let want =
                EthernetHeader { dst, src, ethertype: ETHERTYPE_IPV6, vlan, bytes: header_bytes(vlan) };
            assert_eq!(header, want);
            assert_eq!(EthernetHeader::parse(&bytes[..want.bytes - 1]), None);
        }
    }

    #[test]
    fn a_priority_tag_is_no_vlan() {
        let mut bytes = [0; 18];
        emit(&mut bytes, EthernetAddress([2; 6]), EthernetAddress([4; 6]), Some(0), ETHERTYPE_IPV4);
        assert_eq!(EthernetHeader::parse(&bytes).unwrap().vlan, None);
    }
}
