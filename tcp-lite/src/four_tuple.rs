//! The key of a connection on the wire: two addresses and two ports (RFC 9293 section 3.3.1).

use std::net::SocketAddr;

use crate::facade::IpAddress;

/// The key of a connection on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FourTuple {
    pub(crate) local: IpAddress,
    pub(crate) local_port: u16,
    pub(crate) remote: IpAddress,
    pub(crate) remote_port: u16,
}

impl FourTuple {
    /// The 4-tuple that the front of a frame seems to have if its IP header is at `ip_at`, and if it is
    /// a TCP segment without IP options. Nothing is verified.
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

    pub(crate) fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.local.into(), self.local_port)
    }

    pub(crate) fn remote_addr(&self) -> SocketAddr {
        SocketAddr::new(self.remote.into(), self.remote_port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
