//! The data that two sides with this library exchange in a prefix of the private data of MPA's Request and
//! Reply.
//!
//! The prefix is sent only if both sides are known to use this library: on wires where all peers use this
//! library, and to the port of out-of-band connections.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::address::mapped;

const MAGIC: [u8; 4] = *b"uwrp";
const VERSION: u8 = 1;

/// The prefix of a Request or Reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrivateDataHeader {
    /// The sender's address, as its program sees it.
    pub(crate) visible: SocketAddr,
    /// The queue pairs to connect, for a connection without a connection manager.
    pub(crate) pair: Option<QpNumbers>,
}

/// The numbers of the two queue pairs of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpNumbers {
    /// The number of the sender's queue pair.
    pub(crate) from: u32,
    /// The number of the receiver's queue pair.
    pub(crate) to: u32,
}

pub(crate) const BYTES: usize = 36;

impl PrivateDataHeader {
    pub(crate) fn bytes(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = VERSION;
        bytes[5] = u8::from(self.pair.is_some());
        bytes[8..10].copy_from_slice(&self.visible.port().to_be_bytes());
        bytes[12..28].copy_from_slice(&mapped(self.visible.ip()).octets());
        if let Some(QpNumbers { from, to }) = self.pair {
            bytes[28..32].copy_from_slice(&from.to_be_bytes());
            bytes[32..36].copy_from_slice(&to.to_be_bytes());
        }
        bytes
    }

    /// The program's private data: the bytes behind the prefix, or all bytes if there is no prefix.
    pub(crate) fn strip(data: &[u8]) -> &[u8] {
        Self::split(data).map_or(data, |(_, rest)| rest)
    }

    /// Splits the private data into the prefix and the program's data. Returns `None` if the data do not
    /// begin with the prefix.
    pub(crate) fn split(data: &[u8]) -> Option<(Self, &[u8])> {
        let (prefix, rest) = data.split_first_chunk::<BYTES>()?;
        if prefix[..5] != [MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], VERSION] {
            return None;
        }
        let number =
            |at: usize| u32::from_be_bytes([prefix[at], prefix[at + 1], prefix[at + 2], prefix[at + 3]]);
        let port = u16::from_be_bytes([prefix[8], prefix[9]]);
        let mut ip = [0; 16];
        ip.copy_from_slice(&prefix[12..28]);
        let ip = IpAddr::V6(Ipv6Addr::from(ip)).to_canonical();
        let pair = (prefix[5] != 0).then(|| QpNumbers { from: number(28), to: number(32) });
        Some((Self { visible: SocketAddr::new(ip, port), pair }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_as_it_was_and_nothing_else_is_taken_for_it() {
        for (visible, pair) in
            [("127.0.0.1:7471", None), ("[fd00::7]:1", Some(QpNumbers { from: 0x0012_3456, to: 7 }))]
        {
            let header = PrivateDataHeader { visible: visible.parse().unwrap(), pair };
            let mut data = header.bytes().to_vec();
            data.extend(b"of the program");
            assert_eq!(PrivateDataHeader::split(&data), Some((header, &b"of the program"[..])));
            assert_eq!(PrivateDataHeader::strip(&data), b"of the program");
            assert_eq!(PrivateDataHeader::split(&data[..BYTES - 1]), None);
            assert_eq!(PrivateDataHeader::strip(&data[..BYTES - 1]), &data[..BYTES - 1]);
            data[4] += 1;
            assert_eq!(PrivateDataHeader::split(&data), None);
        }
    }
}
