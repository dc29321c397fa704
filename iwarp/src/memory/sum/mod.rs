//! CRC32c (RFC 3385, Castagnoli's polynomial 0x11EDC6F41) of bytes: alone, or in the same pass that copies
//! them.
//!
//! Here because the copy is one from registered memory, in which every byte may change at any time: it is
//! loaded once, and what was loaded is both stored and summed. So the sum fits the copy, whatever others
//! write meanwhile.
//!
//! Nothing of MPA: [`mpa::Crc32c`](crate::mpa::Crc32c) knows when there is a sum at all and how it goes on
//! the wire. Sums are passed complemented, as they are compared and sent; 0 is the sum of no bytes.
//!
//! | file | what |
//! |---|---|
//! | `powers` | the constants that move a sum on by a number of bytes |
//! | `bytes` | loads, stores, and the sum by the CRC instruction |
//! | `fold128` | by carry-less multiplication of 128 bits: any x86-64 since 2010 |
//! | `fold512` | by that of 512 bits: AVX-512 with VPCLMULQDQ |
//!
//! This file decides which is used.

use std::sync::LazyLock;

use crc_fast::{CrcAlgorithm, Digest};

use crate::memory::{Stride, copy};

#[cfg(target_arch = "x86_64")]
mod bytes;
#[cfg(target_arch = "x86_64")]
mod fold128;
#[cfg(target_arch = "x86_64")]
mod fold512;
#[cfg(target_arch = "x86_64")]
mod powers;
#[cfg(test)]
mod tests;

/// Where copy and sum are two passes they go by blocks of this size, for the first-level cache.
const BLOCK_BYTES: usize = 8 * 1024;

/// How this CPU copies and sums best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// One pass by carry-less multiplication of 512 bits.
    #[cfg(target_arch = "x86_64")]
    Fold512,
    /// One pass by carry-less multiplication of 128 bits.
    #[cfg(target_arch = "x86_64")]
    Fold128,
    /// Two passes, the second by a library.
    Portable,
}

static BEST: LazyLock<Way> = LazyLock::new(|| Way::here().next().unwrap_or(Way::Portable));

/// The sum of what gave `crc` and `bytes` behind it.
pub(crate) fn append(crc: u32, bytes: &[u8]) -> u32 {
    // SAFETY: `BEST` is one that the CPU has.
    unsafe { BEST.append(crc, bytes) }
}

/// Copies `src` to `dst` and gives [`append`] of it.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn copy(crc: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    assert_eq!(dst.len(), src.len(), "copy between runs of different length");
    // SAFETY: a slice of the same length is mapped and readable, and nobody writes to it; `BEST` is one that
    // the CPU has.
    unsafe { BEST.fetch(crc, src.as_ptr(), dst) }
}

/// Copies `out.len()` bytes from `from` on and gives [`append`] of what it copied.
///
/// What others write meanwhile may be seen in part. Aligned words of 8 bytes are loaded whole.
///
/// # Safety
/// As [`copy::fetch`].
pub(super) unsafe fn fetch(crc: u32, from: *const u8, out: &mut [u8]) -> u32 {
    // SAFETY: the caller promises the same; `BEST` is one that the CPU has.
    unsafe { BEST.fetch(crc, from, out) }
}

impl Way {
    /// Those that this CPU has, the best first.
    fn here() -> impl Iterator<Item = Self> {
        [
            #[cfg(target_arch = "x86_64")]
            (Self::Fold512, fold512::is_here()),
            #[cfg(target_arch = "x86_64")]
            (Self::Fold128, fold128::is_here()),
            (Self::Portable, true),
        ]
        .into_iter()
        .filter_map(|(way, here)| here.then_some(way))
    }

    /// As [`fetch`].
    ///
    /// # Safety
    /// As there, and the CPU has this way.
    unsafe fn fetch(self, crc: u32, from: *const u8, out: &mut [u8]) -> u32 {
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller vouches for the bytes at `from` and for the CPU.
            Self::Fold512 => !unsafe { fold512::fetch(!crc, from, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Fold128 => !unsafe { fold128::fetch(!crc, from, out) },
            Self::Portable => {
                let mut crc = crc;
                let mut from = from;
                for out in out.chunks_mut(BLOCK_BYTES) {
                    // SAFETY: the blocks lie one behind the other inside what the caller vouches for; any CPU
                    // has this way.
                    unsafe {
                        copy::fetch(from, out, Stride::NONE);
                        from = from.add(out.len());
                        crc = self.append(crc, out);
                    }
                }
                crc
            }
        }
    }

    /// As [`append`].
    ///
    /// # Safety
    /// The CPU has this way.
    unsafe fn append(self, crc: u32, bytes: &[u8]) -> u32 {
        if bytes.len() >= self.library_pays_from() {
            let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
            digest.update(bytes);
            return digest.finalize() as u32;
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller vouches for the CPU.
            Self::Fold512 => !unsafe { fold512::sum(!crc, bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Fold128 => !unsafe { fold128::sum(!crc, bytes) },
            Self::Portable => crc32c::crc32c_append(crc, bytes),
        }
    }

    /// The length from which `crc-fast` is ahead at summing alone. It takes some 50 ns to begin.
    fn library_pays_from(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Fold512 => 8192,
            // It multiplies and uses the CRC instruction at once: 177 ns for 4 KiB, where we take 199.
            #[cfg(target_arch = "x86_64")]
            Self::Fold128 => 3328,
            #[cfg(target_arch = "aarch64")]
            Self::Portable if std::arch::is_aarch64_feature_detected!("pmull") => 1280,
            // It would walk tables, and `crc32c` has larger ones.
            Self::Portable => usize::MAX,
        }
    }
}
