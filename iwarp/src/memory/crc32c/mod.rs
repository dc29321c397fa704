//! Computes CRC32c (RFC 3385, Castagnoli's polynomial 0x11EDC6F41), alone or together with a copy of the
//! bytes.
//!
//! The CRC is in the module `memory` because the bytes are copied from registered memory, where every byte
//! may change at any time. Each byte is loaded once. The CRC is computed from the loaded value or from the
//! copy. So the CRC matches the copy, even if other threads write to the memory during the copy.
//!
//! This module does not depend on MPA: [`mpa::Crc32c`](crate::mpa::Crc32c) decides whether a CRC is used and
//! how the CRC is sent. The functions of this file take and return complemented CRCs, the form in which CRCs
//! are compared and sent. The CRC of 0 bytes is 0.
//!
//! | file | contents |
//! |---|---|
//! | `powers` | the constants that advance a CRC by a number of bytes |
//! | `bytes` | loads, stores, and the CRC by the CRC instruction |
//! | `short` | the method for few bytes, by the CRC instruction |
//! | `lanes` | the method by the CRC instruction in three lanes, for any x86-64 CPU with AVX2 |
//! | `fold512` | the method by carry-less multiplication of 512 bits, for CPUs with AVX-512 and VPCLMULQDQ |
//! | `library` | the methods of two external crates, and the choice between these crates |
//!
//! This file selects the method, and has the functions that other modules call.

use std::sync::OnceLock;

use self::library::Library;
use crate::memory::guard::Unmapped;
use crate::memory::{Stride, copy};

#[cfg(target_arch = "x86_64")]
mod bytes;
#[cfg(target_arch = "x86_64")]
mod fold512;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod library;
#[cfg(target_arch = "x86_64")]
mod powers;
#[cfg(target_arch = "x86_64")]
mod short;
#[cfg(test)]
mod tests;

/// Number of bytes of a block when copy and CRC are two passes. A block fits in the first-level data cache,
/// so the second pass reads the bytes from that cache.
const BLOCK_BYTES: usize = 8 * 1024;
/// Minimum number of bytes for which `crc-fast` is faster than [`fold512::append`]. For fewer bytes
/// `crc-fast` is slower, because its setup takes about 50 ns.
#[cfg(target_arch = "x86_64")]
const LONG_BYTES: usize = 8 * 1024;

/// A method to copy bytes and to compute their CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// One pass that copies, and computes the CRC by carry-less multiplication of 512 bits.
    #[cfg(target_arch = "x86_64")]
    Fold512,
    /// For each block, a copy by vectors, and then the CRC instruction over the copied bytes.
    #[cfg(target_arch = "x86_64")]
    Lanes,
    /// For each block, a copy, and then the CRC of the copied bytes by the crate that [`Library::here`]
    /// selects.
    Library,
}

/// The fastest method on this CPU, once it has been determined.
static BEST: OnceLock<Method> = OnceLock::new();

/// Returns the fastest method on this CPU.
#[inline]
fn best() -> Method {
    *BEST.get_or_init(Method::here)
}

/// Continues the CRC `crc` with `bytes`. Returns the new CRC.
#[inline]
pub(crate) fn append(crc: u32, bytes: &[u8]) -> u32 {
    let best = best();
    #[cfg(target_arch = "x86_64")]
    if best != Method::Library && bytes.len() <= short::MAX_BYTES {
        // SAFETY: this CPU supports the method in `BEST`, and all methods except `Library` require SSE4.2.
        return !unsafe { short::append(!crc, bytes) };
    }
    // SAFETY: `best` is `Method::here`, which this CPU supports.
    unsafe { best.append(crc, bytes) }
}

/// Continues the CRC `crc` with the bytes of `front`. Returns the new CRC.
#[inline]
pub(crate) fn append_front(crc: u32, front: &Front) -> u32 {
    match best() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this CPU supports the method in `BEST`, and both methods require SSE4.2.
        Method::Fold512 | Method::Lanes => !unsafe { bytes::append_front(!crc, front) },
        Method::Library => {
            let mut room = [0; Front::MAX_BYTES];
            Library::here().append(crc, front.store(&mut room).0)
        }
    }
}

/// Copies `src` to `dst`. Continues the CRC `crc` with the copied bytes, and returns the new CRC.
///
/// # Panics
/// Panics if the lengths differ.
pub(crate) fn copy(crc: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    assert_eq!(dst.len(), src.len(), "copy between runs of different length");
    // SAFETY: `src` is a slice of the same length, so its bytes are readable and no other code writes them.
    // `best` is `Method::here`, which this CPU supports.
    unsafe { best().fetch(crc, src.as_ptr(), dst) }
}

/// The 16 or 20 bytes before the fetched bytes, as integers. These integers are stored, and added to the CRC,
/// from registers: a load of bytes that were just stored in smaller pieces would have to wait for the stores.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    /// The first 16 bytes, as two integers in the byte order of the machine.
    pub words: [u64; 2],
    /// The last 4 bytes, as an integer in the byte order of the machine. `None` if the front has 16 bytes.
    pub rest: Option<u32>,
}

impl Front {
    /// Maximum number of bytes of a front.
    const MAX_BYTES: usize = 20;

    /// The partial Internet checksum of the bytes of the front.
    #[inline]
    fn checksum(&self) -> u64 {
        let words = self.words.map(|word| (word >> 32) + (word & 0xffff_ffff));
        words[0] + words[1] + u64::from(self.rest.unwrap_or(0))
    }

    /// Stores the bytes to the front of `out`. Returns the stored bytes and the rest of `out`.
    ///
    /// # Panics
    /// Panics if `out` is too short.
    #[inline]
    pub fn store<'a>(&self, out: &'a mut [u8]) -> (&'a mut [u8], &'a mut [u8]) {
        let words = self.words.map(u64::to_ne_bytes);
        let Some(rest) = self.rest.map(u32::to_ne_bytes) else {
            let (front, behind) = out.split_at_mut(words.as_flattened().len());
            front.copy_from_slice(words.as_flattened());
            return (front, behind);
        };
        let (front, behind) = out.split_at_mut(Self::MAX_BYTES);
        let (first, last) = front.split_at_mut(words.as_flattened().len());
        first.copy_from_slice(words.as_flattened());
        last.copy_from_slice(&rest);
        (front, behind)
    }
}

/// Copies the `out.len()` bytes at `from` to `out`. Returns the CRC of `front`, the copied bytes, and `zeros`
/// zero bytes. If `tally` is set, also returns the [partial Internet checksum](dp::checksum::partial()) of
/// all these bytes.
///
/// The function is never inlined, so that the code of its callers stays small.
///
/// # Safety
/// The requirements of [`fetch`].
#[inline(never)]
unsafe fn fetch_behind(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    (zeros, tally): (usize, bool),
) -> (u32, u64) {
    match (BEST.get(), tally) {
        #[cfg(target_arch = "x86_64")]
        (Some(Method::Fold512 | Method::Lanes), false) if out.len() <= short::MAX_BYTES => {
            // SAFETY: the caller promises that `out.len()` bytes at `from` are readable. This CPU supports
            // the method in `BEST`, and both methods require SSE4.2.
            unsafe { short::fetch_behind::<false>(front, from, out, zeros) }
        }
        #[cfg(target_arch = "x86_64")]
        (Some(Method::Fold512 | Method::Lanes), true) if out.len() <= short::MAX_BYTES => {
            // SAFETY: the caller promises that `out.len()` bytes at `from` are readable. This CPU supports
            // the method in `BEST`, and both methods require SSE4.2.
            unsafe { short::fetch_behind::<true>(front, from, out, zeros) }
        }
        #[cfg(target_arch = "x86_64")]
        (Some(Method::Lanes), false) => {
            // SAFETY: the caller promises that `out.len()` bytes at `from` are readable. This CPU supports
            // the method in `BEST`.
            unsafe { lanes::fetch_behind::<false>(front, from, out, zeros) }
        }
        #[cfg(target_arch = "x86_64")]
        (Some(Method::Lanes), true) => {
            // SAFETY: the caller promises that `out.len()` bytes at `from` are readable. This CPU supports
            // the method in `BEST`.
            unsafe { lanes::fetch_behind::<true>(front, from, out, zeros) }
        }
        #[cfg(target_arch = "x86_64")]
        (Some(Method::Fold512), _) => {
            // SAFETY: the caller promises that `out.len()` bytes at `from` are readable. This CPU supports
            // the method in `BEST`.
            unsafe { fold512::fetch_behind(front, from, out, (zeros, tally)) }
        }
        // SAFETY: the caller promises that `out.len()` bytes at `from` are readable.
        _ => unsafe { fetch_behind_by_steps(front, from, out, (zeros, tally)) },
    }
}

/// Does what [`fetch_behind`] does, in a separate step for each part.
///
/// # Safety
/// The requirements of [`fetch`].
#[inline(never)]
unsafe fn fetch_behind_by_steps(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    (zeros, tally): (usize, bool),
) -> (u32, u64) {
    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable.
    let crc = unsafe { fetch(append_front(0, front), from, out) };
    let crc = append(crc, &[0; 4][..zeros.min(4)]);
    (crc, if tally { front.checksum() + dp::checksum::partial(out) } else { 0 })
}

/// Copies the `out.len()` bytes at `from` to `out`. Continues the CRC `crc` with the copied bytes, and
/// returns the new CRC.
///
/// `out` may contain a part of a concurrent write by another thread. Each aligned word of 8 bytes is loaded
/// in a single access.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
#[inline]
pub(super) unsafe fn fetch(crc: u32, from: *const u8, out: &mut [u8]) -> u32 {
    // SAFETY: the caller promises for the bytes at `from` what `Method::fetch` requires. `best` is
    // `Method::here`, which this CPU supports.
    unsafe { best().fetch(crc, from, out) }
}

/// Calls [`fetch_behind`], under the fault guard if `guarded`. If this function returns an error, some of the
/// bytes may have been copied.
///
/// # Safety
/// The requirements of [`fetch`].
#[inline(always)]
pub(super) unsafe fn fetch_behind_from(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    more: (usize, bool),
    guarded: bool,
) -> Result<(u32, u64), Unmapped> {
    if guarded {
        // SAFETY: the caller promises for these bytes what `fetch` requires.
        return unsafe { fetch_behind_guarded(front, from, out, more) };
    }
    // SAFETY: the caller promises for these bytes what `fetch` requires.
    Ok(unsafe { fetch_behind(front, from, out, more) })
}

/// Calls [`fetch_behind`] under the fault guard. Returns [`Unmapped`] if a fault has ended the copy.
///
/// # Safety
/// The requirements of [`fetch`].
#[inline(never)]
unsafe fn fetch_behind_guarded(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    more: (usize, bool),
) -> Result<(u32, u64), Unmapped> {
    let (mut crc, len) = ((0, 0), out.len());
    // SAFETY: the caller promises for these bytes what `fetch` requires.
    let copy = || crc = unsafe { fetch_behind(front, from, out, more) };
    // SAFETY: `fetch_behind` owns nothing, takes no lock that it could leave locked (the method is selected
    // before the first access to the bytes), and does not panic. If the fetch is abandoned at an access to
    // the bytes at `from`, only bytes of `out` have changed, which are always initialised, and no CRC is
    // returned.
    unsafe { copy::run(from, len, true, copy) }?;
    Ok(crc)
}

/// Calls [`fetch`], under the fault guard if `guarded`. If this function returns an error, some of the bytes
/// may have been copied.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
#[inline]
pub(super) unsafe fn fetch_with_crc_from(
    from: *const u8,
    out: &mut [u8],
    guarded: bool,
    crc: u32,
) -> Result<u32, Unmapped> {
    if !guarded {
        // SAFETY: the caller promises for these bytes what `fetch` requires.
        return Ok(unsafe { fetch(crc, from, out) });
    }
    let (mut crc, len) = (crc, out.len());
    // SAFETY: the caller promises for these bytes what `fetch` requires.
    let copy = || crc = unsafe { fetch(crc, from, out) };
    // SAFETY: `fetch` owns nothing, takes no lock that it could leave locked (the method is selected before
    // the first access to the bytes), and does not panic. If the fetch is abandoned at an access to the bytes
    // at `from`, only bytes of `out` have changed, which are always initialised, and no CRC is returned.
    unsafe { copy::run(from, len, true, copy) }?;
    Ok(crc)
}

impl Method {
    /// The fastest method that this CPU supports.
    #[cold]
    fn here() -> Self {
        #[cfg(target_arch = "x86_64")]
        if fold512::is_supported() {
            return Self::Fold512;
        }
        #[cfg(target_arch = "x86_64")]
        if lanes::is_supported() {
            return Self::Lanes;
        }
        Self::Library
    }

    /// Does what the function [`fetch`] does, by this method. Few bytes are fetched by `short`, unless the
    /// method is `Library`.
    ///
    /// # Safety
    /// The CPU supports this method. `from..from + out.len()` is mapped and readable, and other threads
    /// access it only through atomics and raw copies.
    unsafe fn fetch(self, crc: u32, from: *const u8, out: &mut [u8]) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if self != Self::Library && out.len() <= short::MAX_BYTES {
            // SAFETY: the caller promises that `out.len()` bytes at `from` are readable, and that the CPU
            // supports this method. All methods except `Library` require SSE4.2.
            return !unsafe { short::fetch::<false>(!crc, from, out) }.0;
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promises that `out.len()` bytes at `from` are readable, and that the CPU
            // supports this method: it has all features that `fold512::is_supported` checks.
            Self::Fold512 => !unsafe { fold512::fetch(!crc, from, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promises that `out.len()` bytes at `from` are readable, and that the CPU
            // supports this method: it has all features that `lanes::is_supported` checks.
            Self::Lanes => !unsafe { lanes::fetch::<false>(!crc, from, out) }.0,
            Self::Library => {
                let library = Library::here();
                let mut crc = crc;
                let mut from = from;
                for out in out.chunks_mut(BLOCK_BYTES) {
                    // SAFETY: the caller promises that `out.len()` bytes at `from` are readable, for the
                    // whole `out` of the function. The blocks of the source are contiguous and have the same
                    // lengths as the blocks of `out`.
                    unsafe { copy::fetch(from, out, Stride::NONE) };
                    from = from.wrapping_add(out.len());
                    crc = library.append(crc, out);
                }
                crc
            }
        }
    }

    /// Does what [`append`] does, by this method. From [`LONG_BYTES`] bytes on, `Fold512` uses `crc-fast`.
    ///
    /// The function is never inlined. Otherwise the CRC of few bytes would be slower, because the other
    /// methods need more registers.
    ///
    /// # Safety
    /// The CPU supports this method.
    #[inline(never)]
    unsafe fn append(self, crc: u32, bytes: &[u8]) -> u32 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Fold512 if bytes.len() >= LONG_BYTES => Library::CrcFast.append(crc, bytes),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promises that the CPU supports this method: it has all features that
            // `fold512::is_supported` checks.
            Self::Fold512 => !unsafe { fold512::append(!crc, bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promises that the CPU supports this method: it has all features that
            // `lanes::is_supported` checks.
            Self::Lanes => !unsafe { lanes::append(!crc, bytes) },
            Self::Library => Library::here().append(crc, bytes),
        }
    }
}
