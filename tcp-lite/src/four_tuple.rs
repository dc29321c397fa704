//! The key of a connection on the wire: two addresses and two ports (RFC 9293 section 3.3.1).

use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

use crate::facade::IpAddress;

/// The offset of the addresses in an IPv4 packet without options. The ports follow the addresses.
const KEY_AT: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FourTuple {
    pub(crate) local: IpAddress,
    pub(crate) local_port: u16,
    pub(crate) remote: IpAddress,
    pub(crate) remote_port: u16,
}

impl FourTuple {
    /// The 4-tuple in a frame whose first bytes are `head` and whose IP header is at `ip_at`. Returns `None`
    /// if `head` is too short, or if the IP header has IPv4 options or another version. The protocol and all
    /// other fields are not checked.
    pub(crate) fn seen_in(head: &[u8], ip_at: usize) -> Option<Self> {
        let ip = head.get(ip_at..)?;
        let (remote, local, ports) = match ip.first()? {
            0x45 => {
                let address = |at: usize| ip.get(at..)?.first_chunk().map(|bytes: &[u8; 4]| (*bytes).into());
                (IpAddress::Ipv4(address(12)?), IpAddress::Ipv4(address(16)?), ip.get(20..)?)
            }
            0x60..=0x6f => {
                let address = |at: usize| ip.get(at..)?.first_chunk().map(|bytes: &[u8; 16]| (*bytes).into());
                (IpAddress::Ipv6(address(8)?), IpAddress::Ipv6(address(24)?), ip.get(40..)?)
            }
            _ => return None,
        };
        let [a, b, c, d] = *ports.first_chunk()?;
        let [remote_port, local_port] = [[a, b], [c, d]].map(u16::from_be_bytes);
        Some(Self { local, local_port, remote, remote_port })
    }

    /// Whether both endpoints are the same socket. No connection can have such a tuple, because one control
    /// block would have to be both endpoints.
    pub(crate) fn is_of_one_socket(&self) -> bool {
        self.local == self.remote && self.local_port == self.remote_port
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.local.into(), self.local_port)
    }

    pub(crate) fn remote_addr(&self) -> SocketAddr {
        SocketAddr::new(self.remote.into(), self.remote_port)
    }
}

/// The bytes of the 4-tuple in received frames of a connection over IPv4: the peer's address, our address,
/// the peer's port, our port. The bytes are compared without being parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ipv4Key([u8; 12]);

impl Ipv4Key {
    /// The key of a frame with an IPv4 packet without options at `ip_at`.
    #[inline]
    pub(crate) fn at<const BYTES: usize>(head: &[u8; BYTES], ip_at: usize) -> Self {
        let mut key = [0; 12];
        key.copy_from_slice(&head[ip_at + KEY_AT..ip_at + KEY_AT + 12]);
        Self(key)
    }

    /// The key of the received frames of a connection; `None` if its addresses are not IPv4 addresses.
    pub(crate) fn of(tuple: &FourTuple) -> Option<Self> {
        let (IpAddress::Ipv4(local), IpAddress::Ipv4(remote)) = (tuple.local, tuple.remote) else {
            return None;
        };
        let [[a, b, c, d], [e, f, g, h]] = [remote, local].map(|address| address.octets());
        let [[i, j], [k, l]] = [tuple.remote_port, tuple.local_port].map(u16::to_be_bytes);
        Some(Self([a, b, c, d, e, f, g, h, i, j, k, l]))
    }

    /// The 4-tuple with this key.
    pub(crate) fn tuple(&self) -> FourTuple {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = self.0;
        FourTuple {
            local: IpAddress::v4(e, f, g, h),
            local_port: u16::from_be_bytes([k, l]),
            remote: IpAddress::v4(a, b, c, d),
            remote_port: u16::from_be_bytes([i, j]),
        }
    }
}

impl Hash for FourTuple {
    /// Passes to `hasher` the bytes that the derived implementation would pass. With IPv4, this takes one
    /// call instead of six. One call of SipHash for 28 bytes is much cheaper, and a SYN flood needs several
    /// hashes for each SYN.
    #[inline]
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self { local, local_port, remote, remote_port } = self;
        match (local, remote) {
            (IpAddress::Ipv4(local), IpAddress::Ipv4(remote)) => {
                let mut bytes = [0; 28];
                bytes[8..12].copy_from_slice(&local.octets());
                bytes[12..14].copy_from_slice(&local_port.to_ne_bytes());
                bytes[22..26].copy_from_slice(&remote.octets());
                bytes[26..28].copy_from_slice(&remote_port.to_ne_bytes());
                hasher.write(&bytes);
            }
            _ => (local, local_port, remote, remote_port).hash(hasher),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records all bytes that are hashed.
    #[derive(Default)]
    struct Recorder(Vec<u8>);

    impl Hasher for Recorder {
        fn write(&mut self, bytes: &[u8]) {
            self.0.extend_from_slice(bytes);
        }

        fn finish(&self) -> u64 {
            0
        }
    }

    #[test]
    fn a_hash_takes_the_bytes_of_the_four_fields() {
        let tuple = |local: &str, remote: &str| {
            let [local, remote] = [local, remote].map(|text| text.parse::<SocketAddr>().unwrap());
            FourTuple {
                local: local.ip().into(),
                local_port: local.port(),
                remote: remote.ip().into(),
                remote_port: remote.port(),
            }
        };
        for tuple in [
            tuple("10.0.0.1:7471", "198.18.3.4:49152"),
            tuple("[fd00::1]:7471", "[2001:db8:1:2:3:4:5:6]:65535"),
        ] {
            let FourTuple { local, local_port, remote, remote_port } = tuple;
            let (mut own, mut derived) = (Recorder::default(), Recorder::default());
            tuple.hash(&mut own);
            (local, local_port, remote, remote_port).hash(&mut derived);
            assert_eq!(own.0, derived.0, "{tuple:?}");
        }
    }

    #[test]
    fn a_key_is_that_of_the_frames_of_its_tuple() {
        let mut frame = [0; 54];
        frame[14..38].copy_from_slice(&[
            0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 0xc0, 0, 0x1d, 0x2f,
        ]);
        let tuple = FourTuple::seen_in(&frame, 14).unwrap();
        let key = Ipv4Key::at(&frame, 14);
        assert_eq!((key.tuple(), Ipv4Key::of(&tuple)), (tuple, Some(key)));
        let local = IpAddress::v6(0xfd00, 0, 0, 0, 0, 0, 0, 1);
        assert_eq!(Ipv4Key::of(&FourTuple { local, remote: local, ..tuple }), None);
    }

    #[test]
    fn a_tuple_is_seen_in_a_frame_of_either_version_and_in_no_other() {
        let mut frame = vec![0; 14];
        frame
            .extend([0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 0xc0, 0, 0x1d, 0x2f]);
        let seen = FourTuple::seen_in(&frame, 14).unwrap();
        assert_eq!(
            (seen.remote_addr(), seen.local_addr()),
            ("10.0.0.2:49152".parse().unwrap(), "10.0.0.1:7471".parse().unwrap())
        );
        assert!((0..frame.len()).all(|cut| FourTuple::seen_in(&frame[..cut], 14).is_none()));
        frame[14] = 0x46;
        assert_eq!(FourTuple::seen_in(&frame, 14), None);

        let mut frame = vec![0; 18];
        frame.extend([0x60, 0, 0, 0, 0, 20, 6, 64]);
        frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        frame.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        frame.extend([0xc0, 0, 0x1d, 0x2f]);
        let seen = FourTuple::seen_in(&frame, 18).unwrap();
        assert_eq!(
            (seen.remote_addr(), seen.local_addr()),
            ("[fd00::2]:49152".parse().unwrap(), "[fd00::1]:7471".parse().unwrap())
        );
        assert!((0..frame.len()).all(|cut| FourTuple::seen_in(&frame[..cut], 18).is_none()));
    }
}
