//! CRC32c over FPDUs (section 4.4): the running sum, and copying with it.
//!
//! Generator 0x11EDC6F41, reflected, preset and complemented with ones; the wire has the least significant octet
//! first, unlike all other fields of MPA. Two libraries do the sums, `crc-fast` with carry-less multiplication and
//! `crc32c` with the CRC instruction: which is faster depends on the CPU and the length ([`folding_pays`]).

use crc_fast::{CrcAlgorithm, Digest};

/// Copying sums in blocks of this size, while they are in the first-level cache.
const BLOCK_OCTETS: usize = 8 * 1024;

/// Whether `crc-fast` is the faster one for a run of this length.
///
/// Setting it up costs more than a short run takes by instruction. With 512-bit carry-less multiplication it soon pays;
/// with 128-bit it does from about 1200 octets on (512 octets: 65 ns, and 46 ns by instruction); without any it would
/// walk tables.
fn folding_pays(octets: usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    return octets >= 256 && std::arch::is_x86_feature_detected!("vpclmulqdq")
        || octets >= 1280 && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return octets >= 1280 && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let _ = octets;
        false
    }
}

/// A running CRC32c. One that is [`unused`](Self::unused) costs nothing and sums nothing, so that whoever copies
/// payload need not ask whether CRCs were negotiated.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    /// The CRC of all octets so far (complemented, as `finish` gives it).
    sum: u32,
    in_use: bool,
}

impl Default for Crc32c {
    fn default() -> Self {
        Self::new()
    }
}

impl Crc32c {
    /// The sum of no octets.
    pub const fn new() -> Self {
        Self { sum: 0, in_use: true }
    }

    /// For connections without CRC: updates do nothing and the sum stays 0.
    pub const fn unused() -> Self {
        Self { sum: 0, in_use: false }
    }

    /// Adds `octets`.
    pub fn update(&mut self, octets: &[u8]) {
        if !self.in_use || octets.is_empty() {
            return;
        }
        self.sum = if folding_pays(octets.len()) {
            let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!self.sum));
            digest.update(octets);
            digest.finalize() as u32
        } else {
            crc32c::crc32c_append(self.sum, octets)
        };
    }

    /// Copies `src` to `dst` and adds it, block by block.
    ///
    /// # Panics
    /// When the lengths differ.
    pub fn copy(&mut self, dst: &mut [u8], src: &[u8]) {
        assert_eq!(dst.len(), src.len(), "copy between runs of different length");
        for (dst, src) in dst.chunks_mut(BLOCK_OCTETS).zip(src.chunks(BLOCK_OCTETS)) {
            dst.copy_from_slice(src);
            self.update(dst);
        }
    }

    /// The CRC of all octets so far.
    pub const fn finish(&self) -> u32 {
        self.sum
    }

    /// The CRC of all octets so far as the FPDU's CRC field.
    pub const fn field(&self) -> [u8; 4] {
        self.sum.to_le_bytes()
    }
}

#[cfg(test)]
mod tests;
