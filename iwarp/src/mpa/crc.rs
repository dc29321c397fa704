//! CRC32c over FPDUs (section 4.4): the running sum, and copying with it.
//!
//! Generator 0x11EDC6F41, reflected, preset and complemented with ones; the wire has the least significant
//! byte first, unlike all other fields of MPA. How bytes are summed fastest is known by
//! [`memory::sum`](crate::memory::sum).

use crate::memory::sum;

/// A running CRC32c. One that is [`unused`](Self::unused) costs nothing and sums nothing, so that whoever
/// copies payload need not ask whether CRCs were negotiated.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    /// The CRC of all bytes so far (complemented, as `finish` gives it).
    sum: u32,
    in_use: bool,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The sum of no bytes.
    pub const fn new() -> Self {
        Self { sum: 0, in_use: true }
    }

    /// For connections without CRC: updates do nothing and the sum stays 0.
    pub const fn unused() -> Self {
        Self { sum: 0, in_use: false }
    }

    /// Adds `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        if self.in_use {
            self.sum = sum::append(self.sum, bytes);
        }
    }

    /// Copies `src` to `dst` and adds it, in one pass where the CPU has one.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy(&mut self, dst: &mut [u8], src: &[u8]) {
        if self.in_use {
            self.sum = sum::copy(self.sum, dst, src);
        } else {
            dst.copy_from_slice(src);
        }
    }

    /// The sum so far, for a copy that adds what it copies to it; `None` where it is not in use.
    pub const fn running(&mut self) -> Option<&mut u32> {
        if self.in_use { Some(&mut self.sum) } else { None }
    }

    /// The CRC of all bytes so far.
    pub const fn finish(&self) -> u32 {
        self.sum
    }

    /// The CRC of all bytes so far as the FPDU's CRC field.
    pub const fn field(&self) -> [u8; 4] {
        self.sum.to_le_bytes()
    }
}

#[cfg(test)]
mod tests;
