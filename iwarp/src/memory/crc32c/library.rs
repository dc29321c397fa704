//! CRC32c by the crates `crc32c` and `crc-fast`. They are used on CPUs for which `crate::memory::crc32c` has
//! no method of its own, and for long runs of bytes without a copy on CPUs with AVX-512.
//!
//! Which crate is faster depends on the CPU:
//!
//! | CPU | crate | reason |
//! |---|---|---|
//! | x86-64 with AVX-512 and VPCLMULQDQ, from 8 KiB on without a copy | `crc-fast` | folds by carry-less multiplication and uses the CRC instruction at the same time |
//! | x86-64 with SSE4.2, without AVX2 | `crc32c` | needs 0.62 to 0.88 of the cycles of `crc-fast` from 1 KiB on |
//! | x86-64 without SSE4.2 | `crc-fast` | has larger tables, and needs 0.54 to 0.60 of the cycles of `crc32c` from 1 KiB on |
//! | aarch64 with AES (which has PMULL) and CRC | `crc-fast` | folds by carry-less multiplication; `crc32c` uses only the CRC instruction |
//! | other aarch64 | `crc32c` | uses the CRC instruction if the CPU has it; `crc-fast` would not use it |
//! | others | `crc-fast` | has larger tables |
//!
//! The second and the third row were measured on an AMD EPYC, with the CPU's other features hidden from the
//! crates (`docs/performance.md`). The rows of aarch64 follow from the sources of both crates.

use crc_fast::{CrcAlgorithm, Digest};

/// A crate that computes CRC32c.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    /// The crate `crc32c`.
    Crc32c,
    /// The crate `crc-fast`.
    CrcFast,
}

impl Library {
    /// Returns the crate for this CPU. The standard library caches the CPU's features, so this call costs one
    /// load.
    pub(super) fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        let is_crc32c = is_x86_feature_detected!("sse4.2");
        #[cfg(target_arch = "aarch64")]
        let is_crc32c = !(std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("crc"));
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let is_crc32c = false;
        if is_crc32c { Self::Crc32c } else { Self::CrcFast }
    }

    /// Continues the CRC `crc` with `bytes`. Returns the new CRC.
    #[inline(never)]
    pub(super) fn append(self, crc: u32, bytes: &[u8]) -> u32 {
        match self {
            Self::Crc32c => crc32c::crc32c_append(crc, bytes),
            Self::CrcFast => {
                let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!crc));
                digest.update(bytes);
                digest.finalize() as u32
            }
        }
    }
}
