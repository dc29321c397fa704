//! CRC32c (RFC 3385, Castagnoli's polynomial 0x11EDC6F41) of bytes: alone, or in the same pass that copies
//! them.
//!
//! The CRC belongs to `memory` because the copy is from registered memory, where every byte may change at
//! any time. Each byte is loaded once, and the loaded value is both stored and added to the CRC. So the CRC
//! matches the copy, even if others write meanwhile.
//!
//! This module knows nothing of MPA: [`mpa::Crc32c`](crate::mpa::Crc32c) decides whether a CRC is used and
//! how it is sent. CRCs are passed complemented, as they are compared and sent. 0 is the CRC of no bytes.
//!
//! | file | what |
//! |---|---|
//! | `powers` | the constants that advance a CRC by a number of bytes |
//! | `bytes` | loads, stores, and the CRC by the CRC instruction |
//! | `short` | few bytes, by the CRC instruction |
//! | `lanes` | by the CRC instruction in three lanes: any x86-64 with AVX2, so most since 2013 |
//! | `fold512` | by carry-less multiplication of 512 bits: AVX-512 with VPCLMULQDQ |
//! | `library` | by the crates of others, which of them on which CPU, and why |
//!
//! This file selects the method.

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

/// Bytes of a block when copy and CRC are two passes. It fits the first-level data cache, so the second pass
/// reads from there.
const BLOCK_BYTES: usize = 8 * 1024;
/// The length from which `crc-fast` is faster than [`fold512::append`]: the start of `crc-fast` costs about
/// 50 ns.
#[cfg(target_arch = "x86_64")]
const LONG_BYTES: usize = 8 * 1024;

/// A method to copy and to make the CRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    /// One pass by carry-less multiplication of 512 bits.
    #[cfg(target_arch = "x86_64")]
    Fold512,
    /// A copy by vectors, block by block, and the CRC instruction over the copy.
    #[cfg(target_arch = "x86_64")]
    Lanes,
    /// Two passes, the second by [`Library::here`].
    Library,
}

/// The fastest method here, once it is known.
static BEST: OnceLock<Method> = OnceLock::new();

/// The fastest method here.
#[inline]
fn best() -> Method {
    *BEST.get_or_init(Method::here)
}

/// Continues the CRC `crc` with `bytes`.
#[inline]
pub(crate) fn append(crc: u32, bytes: &[u8]) -> u32 {
    let best = best();
    #[cfg(target_arch = "x86_64")]
    if best != Method::Library && bytes.len() <= short::MAX_BYTES {
        // SAFETY: this CPU supports the method in `BEST`, and all methods but `Library` need SSE4.2.
        return !unsafe { short::append(!crc, bytes) };
    }
    // SAFETY: `best` is `Method::here`, which this CPU supports.
    unsafe { best.append(crc, bytes) }
}

/// As [`append`] of the bytes of `front`.
#[inline]
pub(crate) fn append_front(crc: u32, front: &Front) -> u32 {
    match best() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this CPU supports the method in `BEST`, and both methods need SSE4.2.
        Method::Fold512 | Method::Lanes => !unsafe { bytes::append_front(!crc, front) },
        Method::Library => {
            let mut room = [0; Front::MAX_BYTES];
            Library::here().append(crc, front.store(&mut room).0)
        }
    }
}

/// Copies `src` to `dst` and returns [`append`] of it.
///
/// # Panics
/// When the lengths differ.
pub(crate) fn copy(crc: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    assert_eq!(dst.len(), src.len(), "copy between runs of different length");
    // SAFETY: `src` is a slice of the same length, so its bytes are readable and nobody writes them. `best`
    // is `Method::here`, which this CPU supports.
    unsafe { best().fetch(crc, src.as_ptr(), dst) }
}

/// 16 or 20 bytes in front of the fetched bytes, as numbers. They are stored and added from registers, since
/// a load of bytes that were just stored in smaller pieces has to wait.
#[derive(Clone, Copy, Debug)]
pub struct Front {
    /// 16 bytes, as numbers whose bytes in memory they are.
    pub words: [u64; 2],
    /// 4 more bytes.
    pub rest: Option<u32>,
}

impl Front {
    /// Bytes of the longer one.
    const MAX_BYTES: usize = 20;

    /// The partial Internet checksum of its bytes.
    #[inline]
    fn sum(&self) -> u64 {
        let words = self.words.map(|word| (word >> 32) + (word & 0xffff_ffff));
        words[0] + words[1] + u64::from(self.rest.unwrap_or(0))
    }

    /// Stores it to the front of `out`. Returns these bytes, and those behind them.
    ///
    /// # Panics
    /// If `out` is shorter.
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

/// Copies `out.len()` bytes from `from` on, and returns the CRC of `front`, the copied bytes, and `zeros`
/// zeros. If `tally`, also returns the [partial Internet checksum](dp::checksum::partial()) of all of it.
///
/// Never inlined, so that the code around it stays small. Each method is a jump.
///
/// # Safety
/// As [`fetch`].
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
            // SAFETY: the caller promises the bytes at `from`. This CPU supports the method in `BEST`, and
            // both methods need SSE4.2.
            unsafe { short::fetch_behind::<false>(front, from, out, zeros) }
        }
        #[cfg(target_arch = "x86_64")]
        (Some(Method::Fold512 | Method::Lanes), true) if out.len() <= short::MAX_BYTES => {
            // SAFETY: the caller promises the bytes at `from`. This CPU supports the method in `BEST`, and
            // both methods need SSE4.2.
            unsafe { short::fetch_behind::<true>(front, from, out, zeros) }
        }
        #[cfg(target_arch = "x86_64")]
        (Some(Method::Lanes), false) => {
            // SAFETY: the caller promises the bytes at `from`, and this CPU supports the method in `BEST`.
            unsafe { lanes::fetch_behind::<false>(front, from, out, zeros) }
        }
        #[cfg(target_arch = "x86_64")]
        (Some(Method::Lanes), true) => {
            // SAFETY: the caller promises the bytes at `from`, and this CPU supports the method in `BEST`.
            unsafe { lanes::fetch_behind::<true>(front, from, out, zeros) }
        }
        #[cfg(target_arch = "x86_64")]
        (Some(Method::Fold512), _) => {
            // SAFETY: the caller promises the bytes at `from`, and this CPU supports the method in `BEST`.
            unsafe { fold512::fetch_behind(front, from, out, (zeros, tally)) }
        }
        // SAFETY: the caller promises the bytes at `from`.
        _ => unsafe { fetch_behind_by_steps(front, from, out, (zeros, tally)) },
    }
}

/// As [`fetch_behind`], step by step.
///
/// # Safety
/// As [`fetch`].
#[inline(never)]
unsafe fn fetch_behind_by_steps(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    (zeros, tally): (usize, bool),
) -> (u32, u64) {
    // SAFETY: the caller promises the bytes at `from`.
    let crc = unsafe { fetch(append_front(0, front), from, out) };
    let crc = append(crc, &[0; 4][..zeros.min(4)]);
    (crc, if tally { front.sum() + dp::checksum::partial(out) } else { 0 })
}

/// Copies `out.len()` bytes from `from` on and returns [`append`] of the copied bytes.
///
/// Concurrent writes of others may be seen in part. Aligned words of 8 bytes are loaded at once.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
#[inline]
pub(super) unsafe fn fetch(crc: u32, from: *const u8, out: &mut [u8]) -> u32 {
    // SAFETY: the caller makes the promise of `Method::fetch` for the bytes at `from`. `best` is
    // `Method::here`, which this CPU supports.
    unsafe { best().fetch(crc, from, out) }
}

/// As [`fetch_behind`], under the guard if `guarded`. An error may leave a part copied.
///
/// # Safety
/// As [`fetch`].
#[inline(always)]
pub(super) unsafe fn fetch_behind_from(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    more: (usize, bool),
    guarded: bool,
) -> Result<(u32, u64), Unmapped> {
    if guarded {
        // SAFETY: the caller makes the promise of `fetch` for these bytes.
        return unsafe { fetch_behind_guarded(front, from, out, more) };
    }
    // SAFETY: the caller makes the promise of `fetch` for these bytes.
    Ok(unsafe { fetch_behind(front, from, out, more) })
}

/// As [`fetch_behind`], under the guard.
///
/// # Safety
/// As [`fetch`].
#[inline(never)]
unsafe fn fetch_behind_guarded(
    front: &Front,
    from: *const u8,
    out: &mut [u8],
    more: (usize, bool),
) -> Result<(u32, u64), Unmapped> {
    let (mut crc, len) = ((0, 0), out.len());
    // SAFETY: the caller makes the promise of `fetch` for these bytes.
    let copy = || crc = unsafe { fetch_behind(front, from, out, more) };
    // SAFETY: `fetch_behind` owns nothing, takes no lock that it could leave locked (its method is chosen
    // before the first access to the bytes), and does not panic. Abandoned at an access to the bytes at
    // `from`, it leaves nothing behind but bytes in `out`, which are initialised all the time, and no CRC.
    unsafe { copy::run(from, len, true, copy) }?;
    Ok(crc)
}

/// As [`fetch`], under the guard if `guarded`. An error may leave a part copied.
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
        // SAFETY: the caller makes the promise of `fetch` for these bytes.
        return Ok(unsafe { fetch(crc, from, out) });
    }
    let (mut crc, len) = (crc, out.len());
    // SAFETY: the caller makes the promise of `fetch` for these bytes.
    let copy = || crc = unsafe { fetch(crc, from, out) };
    // SAFETY: `fetch` owns nothing, takes no lock that it could leave locked (its method is chosen
    // before the first access to the bytes), and does not panic. Abandoned at an access to the bytes at
    // `from`, it leaves nothing behind but bytes in `out`, which are initialised all the time, and no CRC.
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

    /// As [`fetch`].
    ///
    /// # Safety
    /// The CPU supports this method. `from..from + out.len()` is mapped and readable, and other threads
    /// access it only through atomics and raw copies.
    unsafe fn fetch(self, crc: u32, from: *const u8, out: &mut [u8]) -> u32 {
        #[cfg(target_arch = "x86_64")]
        if self != Self::Library && out.len() <= short::MAX_BYTES {
            // SAFETY: the caller promises the bytes at `from`, and that the CPU supports this method. All
            // methods but `Library` need SSE4.2.
            return !unsafe { short::fetch::<false>(!crc, from, out) }.0;
        }
        match self {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promises the bytes at `from`, and that the CPU supports this method: all
            // features that `fold512::is_supported` asks for.
            Self::Fold512 => !unsafe { fold512::fetch(!crc, from, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promises the bytes at `from`, and that the CPU supports this method: all
            // features that `lanes::is_supported` asks for.
            Self::Lanes => !unsafe { lanes::fetch::<false>(!crc, from, out) }.0,
            Self::Library => {
                let library = Library::here();
                let mut crc = crc;
                let mut from = from;
                for out in out.chunks_mut(BLOCK_BYTES) {
                    // SAFETY: the caller promises the bytes at `from` for the whole of its `out`. The blocks
                    // of the source have the lengths of the blocks of `out`, and follow each other as these
                    // do.
                    unsafe { copy::fetch(from, out, Stride::NONE) };
                    from = from.wrapping_add(out.len());
                    crc = library.append(crc, out);
                }
                crc
            }
        }
    }

    /// As [`append`].
    ///
    /// Never inlined: otherwise short runs of bytes pay for the registers that the other methods need.
    ///
    /// # Safety
    /// The CPU supports this method.
    #[inline(never)]
    unsafe fn append(self, crc: u32, bytes: &[u8]) -> u32 {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Fold512 if bytes.len() >= LONG_BYTES => Library::CrcFast.append(crc, bytes),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promises that the CPU supports this method: all features that
            // `fold512::is_supported` asks for.
            Self::Fold512 => !unsafe { fold512::append(!crc, bytes) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the caller promises that the CPU supports this method: all features that
            // `lanes::is_supported` asks for.
            Self::Lanes => !unsafe { lanes::append(!crc, bytes) },
            Self::Library => Library::here().append(crc, bytes),
        }
    }
}
