//! CRC32c over FPDUs (RFC 5044 section 4.4): the running CRC, and copying with it.
//!
//! The generator is 0x11EDC6F41, reflected, preset and complemented with ones. The field on the wire has the
//! least significant byte first, unlike all other fields of MPA. [`memory::crc32c`](crate::memory::crc32c)
//! chooses the fastest code for the CPU.

use crate::memory::{Front, crc32c};

/// A running CRC32c.
///
/// RFC 5044 section 4.4 (MPA-077): every build contains it. A connection without CRCs has one that is
/// [`unused`](Self::unused): it adds nothing, so that the code that copies payload is the same with and
/// without CRCs.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    /// The CRC of all bytes so far (complemented, as `finish` gives it).
    crc: u32,
    in_use: bool,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The CRC of no bytes.
    pub const fn new() -> Self {
        Self { crc: 0, in_use: true }
    }

    /// For connections without CRC: updates do nothing and the CRC stays 0.
    pub const fn unused() -> Self {
        Self { crc: 0, in_use: false }
    }

    /// Appends `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        if self.in_use {
            self.crc = crc32c::append(self.crc, bytes);
        }
    }

    /// The CRC of `bytes`.
    #[inline]
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        Self::of(crc32c::append(0, bytes))
    }

    /// A running CRC whose value so far is `crc`.
    #[inline]
    pub(super) const fn of(crc: u32) -> Self {
        Self { crc, in_use: true }
    }

    /// Adds the bytes of `front`.
    #[inline]
    pub(super) fn update_front(&mut self, front: &Front) {
        if self.in_use {
            self.crc = crc32c::append_front(self.crc, front);
        }
    }

    /// Copies `src` to `dst` and adds it, in one pass where the CPU has one.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy(&mut self, dst: &mut [u8], src: &[u8]) {
        if self.in_use {
            self.crc = crc32c::copy(self.crc, dst, src);
        } else {
            dst.copy_from_slice(src);
        }
    }

    /// The CRC so far, for a copy that adds its bytes to it; `None` when CRCs are not in use.
    pub const fn running(&mut self) -> Option<&mut u32> {
        if self.in_use { Some(&mut self.crc) } else { None }
    }

    /// The CRC of all bytes so far.
    pub const fn finish(&self) -> u32 {
        self.crc
    }

    /// The CRC of all bytes so far as the FPDU's CRC field.
    pub const fn field(&self) -> [u8; 4] {
        // RFC 5044 section 4.4 (MPA-089): CRC32c in the byte order of iSCSI's digests.
        self.crc.to_le_bytes()
    }
}

#[cfg(test)]
mod tests;
