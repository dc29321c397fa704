//! CRC32c over FPDUs (RFC 5044 section 4.4): the running sum, and copying with it.
//!
//! The generator is 0x11EDC6F41, reflected, preset and complemented with ones. The field on the wire has the
//! least significant byte first, unlike all other fields of MPA. [`memory::sum`](crate::memory::sum) chooses
//! the fastest code for the CPU.

use crate::memory::{Front, sum};

/// A running CRC32c.
///
/// RFC 5044 section 4.4 (MPA-077): every build contains it. A connection without CRCs has one that is
/// [`unused`](Self::unused): it sums nothing, so that the code that copies payload is the same with and
/// without CRCs.
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

    /// Adds `bytes` to the sum, behind those added before.
    pub fn update(&mut self, bytes: &[u8]) {
        if self.in_use {
            self.sum = sum::append(self.sum, bytes);
        }
    }

    /// The sum of `bytes`.
    #[inline]
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        Self::of(sum::append(0, bytes))
    }

    /// The sum of bytes that is known.
    #[inline]
    pub(super) const fn of(sum: u32) -> Self {
        Self { sum, in_use: true }
    }

    /// Adds the bytes of `front`.
    #[inline]
    pub(super) fn update_front(&mut self, front: &Front) {
        if self.in_use {
            self.sum = sum::append_front(self.sum, front);
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

    /// The sum so far, for a copy that adds its bytes to the sum; `None` when CRCs are not in use.
    pub const fn running(&mut self) -> Option<&mut u32> {
        if self.in_use { Some(&mut self.sum) } else { None }
    }

    /// The CRC of all bytes so far.
    pub const fn finish(&self) -> u32 {
        self.sum
    }

    /// The CRC of all bytes so far as the FPDU's CRC field.
    pub const fn field(&self) -> [u8; 4] {
        // RFC 5044 section 4.4 (MPA-089): CRC32c in the byte order of iSCSI's digests.
        self.sum.to_le_bytes()
    }
}

#[cfg(test)]
mod tests;
