//! The MTUs of InfiniBand, and the MTU of a port with a given IP MTU.

use super::layout::{IPV6_BYTES, UDP_BYTES};
use super::{ICRC_BYTES, UdSend};

/// Number of bytes that are reserved for headers in each IP packet.
///
/// A UD message needs at most 76 bytes. Linux reserves 96 bytes for RoCE NICs (`iboe_get_mtu`), so that the
/// longest headers of any transport fit, and rxe reserves 80. With Linux's number, this side has the same MTU
/// as a NIC, and never a larger MTU than rxe.
const HEADER_BYTES: usize = 96;

/// The longest headers of a UD message fit.
const _: () = assert!(IPV6_BYTES + UDP_BYTES + UdSend::MAX_HEADER_BYTES + ICRC_BYTES <= HEADER_BYTES);

/// An MTU of InfiniBand: the maximum number of bytes of payload in a packet. The discriminants are those of
/// `enum ibv_mtu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = 1,
    /// 512 bytes.
    Mtu512 = 2,
    /// 1024 bytes.
    Mtu1024 = 3,
    /// 2048 bytes.
    Mtu2048 = 4,
    /// 4096 bytes.
    Mtu4096 = 5,
}

impl Mtu {
    /// All MTUs, the smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];

    /// Returns the number of bytes.
    pub const fn bytes(self) -> usize {
        128 << self.number()
    }

    /// Returns the number in `enum ibv_mtu`.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// Returns the MTU of a port whose IP packets have at most `ip_mtu` bytes: the length of the longest UD
/// message. Returns `None` if even 256 bytes of payload do not fit.
pub fn max_message(ip_mtu: usize) -> Option<Mtu> {
    Mtu::ALL.into_iter().rev().find(|mtu| mtu.bytes() + HEADER_BYTES <= ip_mtu)
}

#[cfg(test)]
mod tests {
    use super::{Mtu, max_message};

    #[test]
    fn numbers_are_those_of_libibverbs() {
        let numbers = Mtu::ALL.map(|mtu| (mtu.number(), mtu.bytes()));
        assert_eq!(numbers, [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)]);
    }

    /// An interface with an MTU of 1500 has the MTU 1024, and an interface with an MTU of 9000 has 4096, as
    /// on Linux.
    #[test]
    fn the_largest_mtu_that_fits_is_chosen() {
        for (ip_mtu, bytes) in [
            (0, None),
            (351, None),
            (352, Some(256)),
            (607, Some(256)),
            (608, Some(512)),
            (1119, Some(512)),
            (1120, Some(1024)),
            (1500, Some(1024)),
            (2143, Some(1024)),
            (2144, Some(2048)),
            (4191, Some(2048)),
            (4192, Some(4096)),
            (9000, Some(4096)),
            (65_535, Some(4096)),
            (usize::MAX, Some(4096)),
        ] {
            assert_eq!(max_message(ip_mtu).map(Mtu::bytes), bytes, "{ip_mtu}");
        }
    }
}
