//! The Internet checksum (RFC 1071) of bytes that are stored in several pieces.
//!
//! [`dp::checksum::partial`] sums each piece. The sum of a piece is folded when it is added, and the total is
//! folded at the end. After a piece of odd length, the high and low bytes of all later words are swapped, so
//! later sums are rotated by one byte.

use crate::facade::IpAddress;

/// A running checksum. The caller adds the bytes in order, and then calls [`finish`](Self::finish).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InternetChecksum {
    /// The sum so far in memory order (native endian), with at least 32 bits of headroom.
    acc: u64,
    /// True if the number of bytes so far is odd.
    odd: bool,
}

impl InternetChecksum {
    /// The sum of no bytes.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.add_partial(dp::checksum::partial(bytes), bytes.len());
    }

    /// Copies `src` to `dst`, which has the same length, and adds the bytes to the sum.
    pub(crate) fn add_copied(&mut self, dst: &mut [u8], src: &[u8]) {
        self.add_partial(dp::checksum::copy_partial(dst, src), src.len());
    }

    fn add_partial(&mut self, partial: u64, bytes: usize) {
        let folded = fold(partial);
        self.acc += if self.odd { u64::from(folded.swap_bytes()) } else { u64::from(folded) };
        self.odd ^= bytes % 2 == 1;
    }

    /// Adds a 16-bit number at an even offset.
    pub(crate) fn add_u16(&mut self, value: u16) {
        debug_assert!(!self.odd);
        self.acc += u64::from(value.to_be());
    }

    /// Adds a 32-bit number at an even offset.
    pub(crate) fn add_u32(&mut self, value: u32) {
        debug_assert!(!self.odd);
        self.acc += u64::from(value.to_be());
    }

    /// The one's complement of the sum, which is the value of the checksum field. If the bytes include a
    /// correct checksum, the result is 0.
    pub(crate) fn finish(self) -> u16 {
        !self.partial()
    }

    /// The sum without the complement. If a device computes the checksum, it expects this sum of the
    /// pseudo-header in the checksum field.
    pub(crate) fn partial(self) -> u16 {
        u16::from_be(fold(self.acc))
    }
}

/// Copies `src` to `dst`, which has the same length. Returns the partial checksum of the bytes, folded to 16
/// bits.
#[inline]
pub(crate) fn copy_partial(dst: &mut [u8], src: &[u8]) -> u16 {
    folded(dp::checksum::copy_partial(dst, src))
}

/// The partial checksum of `bytes`, folded to 16 bits.
#[inline]
pub(crate) fn partial(bytes: &[u8]) -> u16 {
    folded(dp::checksum::partial(bytes))
}

/// Folds the result of [`dp::checksum::partial`] to 16 bits.
#[inline]
pub(crate) fn folded(sum: u64) -> u16 {
    u16::from_be(fold(sum))
}

/// The sum of the pseudo-header of TCP (RFC 9293 section 3.1), ICMPv6 or UDP, over IPv4 or IPv6. Both
/// addresses have to be of the same family.
pub(crate) fn pseudo_header(
    src: &IpAddress,
    dst: &IpAddress,
    protocol: u8,
    bytes: usize,
) -> InternetChecksum {
    let mut checksum = InternetChecksum::new();
    for address in [src, dst] {
        match address {
            IpAddress::Ipv4(a) => checksum.add_u32(a.to_bits()),
            IpAddress::Ipv6(a) => checksum.add(&a.octets()),
        }
    }
    checksum.add_u16(u16::from(protocol));
    checksum.add_u16((bytes >> 16) as u16);
    checksum.add_u16(bytes as u16);
    checksum
}

/// Folds `sum` to 16 bits, with end-around carries. The result is 0 only if `sum` is 0.
#[inline]
pub(crate) fn fold(sum: u64) -> u16 {
    let (folded, carry) = ((sum >> 32) as u32).overflowing_add(sum as u32);
    let folded = folded + u32::from(carry);
    // The carry out of the sum of the lower halves is added to the sum of the upper halves.
    (folded.wrapping_add(folded.rotate_left(16)) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rfc_1071_example() {
        let mut checksum = InternetChecksum::new();
        checksum.add(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(checksum.partial(), 0xddf2);
        assert_eq!(checksum.finish(), !0xddf2);
    }

    proptest! {
        #[test]
        fn only_zero_folds_to_zero_and_the_rest_to_what_it_is_modulo_65535(
            sum in prop_oneof![any::<u64>(), any::<u32>().prop_map(u64::from), 0..1_u64 << 20],
        ) {
            prop_assert_eq!(u64::from(fold(sum)) % 0xffff, sum % 0xffff);
            prop_assert_eq!(fold(sum) == 0, sum == 0);
        }

        #[test]
        fn equals_smoltcps_however_it_is_cut(bytes: Vec<u8>, cuts: Vec<prop::sample::Index>) {
            let mut places: Vec<_> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            places.extend([0, bytes.len()]);
            places.sort_unstable();
            let mut checksum = InternetChecksum::new();
            for pair in places.windows(2) {
                checksum.add(&bytes[pair[0]..pair[1]]);
            }
            prop_assert_eq!(checksum.partial(), smoltcp::wire::checksum::data(&bytes));
        }
    }
}
