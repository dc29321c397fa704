//! CRC32c over FPDUs (RFC 5044 section 4.4): the running CRC, and copies that update the CRC.
//!
//! The polynomial is 0x11EDC6F41. The CRC is reflected, starts with all bits set, and is complemented at the
//! end. Unlike all other fields of MPA, the CRC field has its least significant byte first on the wire.
//! [`memory::crc32c`](crate::memory::crc32c) chooses the fastest code for the CPU.

use crate::memory::{Front, crc32c};

/// A running CRC32c.
///
/// RFC 5044 section 4.4 (MPA-077): every build contains CRC32c. A connection without CRCs has an
/// [`unused`](Self::unused) CRC to which no bytes are added. So the code that copies payload is the same with
/// and without CRCs.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    /// The CRC of all bytes so far, in the complemented form that `finish` returns.
    crc: u32,
    in_use: bool,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// Returns the CRC of 0 bytes.
    pub const fn new() -> Self {
        Self { crc: 0, in_use: true }
    }

    /// Returns the CRC of a connection without CRCs: updates do nothing, and the CRC stays 0.
    pub const fn unused() -> Self {
        Self { crc: 0, in_use: false }
    }

    /// Adds `bytes` to the CRC.
    pub fn update(&mut self, bytes: &[u8]) {
        if self.in_use {
            self.crc = crc32c::append(self.crc, bytes);
        }
    }

    #[inline]
    pub(super) fn of_bytes(bytes: &[u8]) -> Self {
        Self::of(crc32c::append(0, bytes))
    }

    /// Returns a running CRC whose value so far is `crc`.
    #[inline]
    pub(super) const fn of(crc: u32) -> Self {
        Self { crc, in_use: true }
    }

    #[inline]
    pub(super) fn update_front(&mut self, front: &Front) {
        if self.in_use {
            self.crc = crc32c::append_front(self.crc, front);
        }
    }

    /// Copies `src` to `dst` and adds the bytes to the CRC, on some CPUs in one pass.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn copy(&mut self, dst: &mut [u8], src: &[u8]) {
        if self.in_use {
            self.crc = crc32c::copy(self.crc, dst, src);
        } else {
            dst.copy_from_slice(src);
        }
    }

    /// Returns a reference to the CRC so far, so that a copy can add its bytes to the CRC. Returns `None` if
    /// CRCs are not in use.
    pub const fn running(&mut self) -> Option<&mut u32> {
        if self.in_use { Some(&mut self.crc) } else { None }
    }

    /// Returns the CRC of all bytes so far.
    pub const fn finish(&self) -> u32 {
        self.crc
    }

    /// Returns the CRC of all bytes so far in the form of the FPDU's CRC field.
    pub const fn field(&self) -> [u8; 4] {
        // RFC 5044 section 4.4 (MPA-089): the CRC is sent in the byte order of iSCSI's digests.
        self.crc.to_le_bytes()
    }
}

#[cfg(test)]
mod tests;
