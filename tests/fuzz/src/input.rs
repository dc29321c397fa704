//! Interprets bytes as choices. Reads past the end return zeros, so every input is valid.

/// The part of an input that has not been read.
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// Returns an input that begins at the first of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Whether all bytes have been read, so that every further read returns zeros.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.take(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    fn take(&mut self, bytes: usize) -> &'a [u8] {
        let (taken, rest) = self.bytes.split_at(bytes.min(self.bytes.len()));
        self.bytes = rest;
        taken
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_be_bytes(self.array())
    }

    /// Reads two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    /// Reads four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    /// Reads eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// Chooses a number from 0 to `bound - 1` by one byte of the input, or by two bytes if `bound` is larger
    /// than 256.
    pub fn below(&mut self, bound: usize) -> usize {
        let drawn = if bound > 256 { usize::from(self.u16()) } else { usize::from(self.u8()) };
        drawn % bound
    }

    /// Returns `true` with probability `1 / n`, and `false` once the input is used up.
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == n - 1
    }

    /// Chooses an element of `of`.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Reads as many bytes as the input chooses: at most `most`, and at most the bytes that are left.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let bytes = self.below(most + 1);
        self.take(bytes)
    }

    /// Chooses a length or distance: small, near a power of two, or any number below 2^32.
    pub fn size(&mut self) -> u32 {
        match self.u8() {
            small @ 0..=127 => u32::from(small),
            power @ 128..=223 => {
                let exponent = u32::from((power - 128) / 3);
                (1_u32 << exponent.min(31)).wrapping_add(u32::from(power % 3)).wrapping_sub(1)
            }
            224..=247 => u32::from(self.u16()),
            _ => self.u32(),
        }
    }

    /// Chooses a distance: 0, or a positive or negative distance whose magnitude is a [`size`](Self::size).
    pub fn delta(&mut self) -> i64 {
        match self.u8() {
            // 0 in three of eight cases.
            0..=95 => 0,
            96..=175 => i64::from(self.size()),
            _ => -i64::from(self.size()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Input;

    #[test]
    fn an_input_that_ended_goes_on_with_zeros() {
        let mut input = Input::new(&[1, 2, 3]);
        assert_eq!((input.u16(), input.u32(), input.u8()), (0x0102, 0x0300_0000, 0));
        assert!(input.is_empty() && !input.one_in(7) && input.bytes(9).is_empty());
    }
}
