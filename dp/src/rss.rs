//! Receive side scaling (RSS): how a device chooses the receive queue of a frame.
//!
//! The device computes the Toeplitz hash of a packet's addresses, and usually also of its ports, with a key.
//! Then the device looks up the queue in its redirection table (RETA). Code with the same key and table can
//! compute the queue of a flow before the first frame of the flow arrives: see [`Rss::queue`].

mod frame;

use std::net::IpAddr;
use std::sync::Arc;

/// A queue of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// The index of the queue, from 0.
    pub index: u16,
    /// The rule by which the device chooses the queue of a frame. `None` if the rule is not known, or if the
    /// device has only one queue.
    pub rss: Option<Rss>,
}

/// The fields of a packet that are hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RssFields {
    /// No fields are hashed: the packet goes to the queue of the table's first entry.
    #[default]
    None,
    /// Source and destination address.
    Addresses,
    /// Source and destination address, and source and destination TCP port.
    Ports,
}

/// The two endpoints of a TCP connection, as source and destination of its received packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Source address and port, which belong to the peer.
    pub src: (IpAddr, u16),
    /// Destination address and port, which belong to this host.
    pub dst: (IpAddr, u16),
}

/// The key, the redirection table and the hashed fields of a device. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    key: Arc<[u8]>,
    table: Arc<[u16]>,
    ipv4: RssFields,
    ipv6: RssFields,
}

/// Maximum number of bytes of the key that are used to hash a packet. The addresses and ports of IPv6 have 36
/// bytes, and the 32-bit window needs four more bytes.
pub const RSS_KEY_BYTES: usize = 36 + 4;

impl Rss {
    /// Makes an `Rss` from a key of at least [`RSS_KEY_BYTES`] bytes, a table of queues, and the fields that
    /// are hashed for IPv4 and for IPv6. Returns `None` if the key is too short, or if the length of the
    /// table is not a power of two.
    pub fn new(key: &[u8], table: &[u16], ipv4: RssFields, ipv6: RssFields) -> Option<Self> {
        let fits = key.len() >= RSS_KEY_BYTES && table.len().is_power_of_two();
        fits.then(|| Self { key: key.into(), table: table.into(), ipv4, ipv6 })
    }

    /// The queue at which the packets of a flow arrive.
    pub fn queue(&self, flow: &Flow) -> u16 {
        let hash = self.hash(flow) as usize;
        // The length is a power of two.
        self.table[hash & (self.table.len() - 1)]
    }

    /// The hash of a flow. 0 if no fields are hashed.
    pub fn hash(&self, flow: &Flow) -> u32 {
        let (src, dst) = (flow.src, flow.dst);
        let mut input = Input::default();
        let fields = match (src.0, dst.0) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                input.add(&src.octets());
                input.add(&dst.octets());
                self.ipv4
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                input.add(&src.octets());
                input.add(&dst.octets());
                self.ipv6
            }
            _ => RssFields::None,
        };
        match fields {
            RssFields::None => return 0,
            RssFields::Addresses => {}
            RssFields::Ports => {
                input.add(&src.1.to_be_bytes());
                input.add(&dst.1.to_be_bytes());
            }
        }
        toeplitz(&self.key, &input.bytes[..input.len])
    }
}

/// The bytes of a packet that are hashed.
struct Input {
    bytes: [u8; RSS_KEY_BYTES - 4],
    len: usize,
}

impl Default for Input {
    fn default() -> Self {
        Self { bytes: [0; RSS_KEY_BYTES - 4], len: 0 }
    }
}

impl Input {
    fn add(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

/// Returns the Toeplitz hash of `input`. Each set bit of `input` selects the 32 bits of the key that begin at
/// the bit's position. The hash is the exclusive or of all selected 32 bits.
fn toeplitz(key: &[u8], input: &[u8]) -> u32 {
    let mut hash = 0;
    for (at, &byte) in input.iter().enumerate() {
        // The 32 bits of the key at the byte's position, and the next 8 bits. A window of 32 bits moves over
        // these 40 bits.
        let window = key[at..at + 5].iter().fold(0, |bits, &byte| bits << 8 | u64::from(byte));
        for bit in 0..8 {
            if byte & (0x80 >> bit) != 0 {
                hash ^= (window >> (8 - bit)) as u32;
            }
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key in the examples of Microsoft's "Verifying the RSS hash calculation".
    const KEY: [u8; 40] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
        0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
        0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    fn rss(fields: RssFields, table: &[u16]) -> Rss {
        Rss::new(&KEY, table, fields, fields).unwrap()
    }

    #[test]
    fn the_published_examples_have_their_hashes() {
        let examples = [
            ("66.9.149.187", 2794, "161.142.100.80", 1766, 0x323e_8fc2, 0x51cc_c178),
            ("199.92.111.2", 14230, "65.69.140.83", 4739, 0xd718_262a, 0xc626_b0ea),
            ("24.19.198.95", 12898, "12.22.207.184", 38024, 0xd2d0_a5de, 0x5c2b_394a),
            ("38.27.205.30", 48228, "209.142.163.6", 2217, 0x8298_9176, 0xafc7_327f),
            ("153.39.163.191", 44251, "202.188.127.2", 1303, 0x5d18_09c5, 0x10e8_28a2),
            ("3ffe:2501:200:1fff::7", 2794, "3ffe:2501:200:3::1", 1766, 0x2cc1_8cd5, 0x4020_7d3d),
            ("3ffe:501:8::260:97ff:fe40:efab", 14230, "ff02::1", 4739, 0x0f0c_461c, 0xdde5_1bbf),
            (
                "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
                44251,
                "fe80::200:f8ff:fe21:67cf",
                38024,
                0x4b61_e985,
                0x02d1_feef,
            ),
        ];
        for (src, src_port, dst, dst_port, addresses, ports) in examples {
            let flow = Flow { src: (src.parse().unwrap(), src_port), dst: (dst.parse().unwrap(), dst_port) };
            let hash = |fields| rss(fields, &[0]).hash(&flow);
            assert_eq!(hash(RssFields::Addresses), addresses, "{src}");
            assert_eq!(hash(RssFields::Ports), ports, "{src}");
            assert_eq!(hash(RssFields::None), 0, "{src}");
        }
    }

    #[test]
    fn the_low_bits_of_the_hash_choose_from_the_table() {
        let flow = Flow {
            src: ("66.9.149.187".parse().unwrap(), 2794),
            dst: ("161.142.100.80".parse().unwrap(), 1766),
        };
        let mut table = [0; 128];
        table[0x78] = 5;
        assert_eq!(rss(RssFields::Ports, &table).queue(&flow), 5);
        assert_eq!(rss(RssFields::Addresses, &table).queue(&flow), 0);
        let mixed = Flow { dst: ("::1".parse().unwrap(), 1), ..flow };
        assert_eq!(rss(RssFields::Ports, &table).queue(&mixed), 0, "no packet has two families");
    }

    #[test]
    fn a_short_key_and_a_table_of_another_length_are_refused() {
        let new = |key: &[u8], table: &[u16]| Rss::new(key, table, RssFields::Ports, RssFields::None);
        assert!(new(&KEY, &[0, 1]).is_some());
        assert!(
            new(&KEY[1..], &[0, 1]).is_none() && new(&KEY, &[0, 1, 2]).is_none() && new(&KEY, &[]).is_none()
        );
    }
}
