//! Constants that advance a CRC: powers of x modulo the polynomial, bit-reflected like the CRCs.

/// The polynomial without its highest term. Bit 31 is x^0.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// Returns multipliers that move a 16-byte value forward by `bytes` bytes: the first is for the low half of
/// the value, the second for the high half. Add (exclusive or) the two carry-less products to the 16 bytes
/// that are `bytes` bytes further. The sum has the same effect on the CRC as the value at its old position.
///
/// A product of 64 by 32 bits has 95 bits, 33 fewer than the 128 bits of the result. In a bit-reflected
/// result, this multiplies the product by x^33. So the exponent for the high half is `8 * bytes - 33`. The
/// low half must move 8 bytes further, so its exponent is larger by 64.
pub(super) const fn fold(bytes: usize) -> [u64; 2] {
    [power(8 * bytes + 31) as u64, power(8 * bytes - 33) as u64]
}

/// Returns multipliers that advance a CRC. From index 1 on, the multiplier at index `i` advances a CRC by `i`
/// words of 8 bytes: multiply the CRC by the multiplier, and apply the CRC instruction to the product.
///
/// The instruction multiplies by x^32. A product of 32 by 32 bits has 63 bits, one fewer than the 64 bits of
/// the result. In a bit-reflected result, this multiplies the product by x. So the exponent for `i` words is
/// `64 * i - 33`.
pub(super) const fn by_words<const N: usize>() -> [u32; N] {
    let mut multipliers = [0; N];
    let (mut i, mut value) = (1, power(31));
    while i < N {
        multipliers[i] = value;
        value = times_power(value, 64);
        i += 1;
    }
    multipliers
}

/// Returns x to the power of `exponent`.
const fn power(exponent: usize) -> u32 {
    times_power(1 << 31, exponent)
}

/// Returns `value` multiplied by x to the power of `exponent`.
const fn times_power(mut value: u32, exponent: usize) -> u32 {
    let mut i = 0;
    while i < exponent {
        let carry = if value & 1 == 1 { POLYNOMIAL } else { 0 };
        value = value >> 1 ^ carry;
        i += 1;
    }
    value
}
