//! Constants that move a sum on: powers of x modulo the polynomial, reflected as sums are.

/// The polynomial without its highest term, bit 31 being x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What the low and the high half of a 16-byte value are multiplied by, without carry, to have the effect on
/// a sum that the value had `bytes` bytes earlier; the two products, combined by exclusive or, are added to
/// the 16 bytes there.
///
/// The high half lies 8 bytes nearer. A reflected product of 64 by 32 bits comes out 33 places short of its
/// 128 bits, so that the powers are `8 * bytes` less 33, and 64 more for the low half.
pub(super) const fn fold(bytes: usize) -> [u64; 2] {
    [power(8 * bytes + 31) as u64, power(8 * bytes - 33) as u64]
}

/// x to this exponent.
const fn power(exponent: usize) -> u32 {
    let mut value = 1 << 31;
    let mut i = 0;
    while i < exponent {
        let carry = if value & 1 == 1 { POLYNOMIAL } else { 0 };
        value = value >> 1 ^ carry;
        i += 1;
    }
    value
}
