//! The copies between registered memory and packet buffers or buffers of the memory's owner.
//! [`crc32c`](crate::memory::crc32c) has the copies that also compute a CRC.
//!
//! Several threads, and code outside of this library, may read and write registered memory at the same time.
//! So this module treats registered memory like device memory: it accesses the bytes by atomics, or by
//! assembly that is opaque to the compiler, and never through a reference to plain bytes. Stores are made by
//! increasing address and become visible in that order. The last store writes only the last byte, or the last
//! aligned word (8 bytes) or half word (4 bytes).
//!
//! The first and last bytes of a range are copied in aligned words, half words and bytes. On x86-64 the
//! atomic release stores of these sizes are plain `mov`s. Inline assembly for x86-64 copies the middle of the
//! range in blocks. On a CPU of 2.5 GHz this assembly copies 25 GB/s from cache, and a copy by words copies
//! 17 GB/s. Fetching uses vectors of 32 bytes if the CPU has AVX. Placing does not use vectors of that
//! length, since such a vector may become visible in two parts, in any order.
//!
//! Markers are gaps between the bytes of a packet buffer ([`Stride`]). Placing stores whole vectors even if
//! there are gaps. Fetching copies each run in whole blocks: a block may extend beyond the end of the run,
//! into the gap and the space of the next run. The marker and the next run are written to these bytes later.
//!
//! # The memory model
//!
//! An engine may store words while the application loads one byte of a word, or while another engine loads a
//! half word. Rust's memory model does not define such races between atomic accesses of different sizes (the
//! documentation of `std::sync::atomic`), so neither Miri nor loom can check the races in this module. The
//! arguments here rest on two layers below Rust's memory model. LLVM defines a racing atomic load byte by
//! byte (its language reference, "Memory Model for Concurrent Operations"): each loaded byte is the old byte
//! or a stored byte. The processor accesses an aligned word in a single access. The compiler assumes that the
//! assembly may access any memory, so it moves no access across the assembly. No address and no length
//! depends on the copied bytes.
//!
//! So the contracts below require only this of other code: it accesses the bytes by atomics of any size or by
//! raw copies (volatile accesses, assembly, the kernel), and never through a reference to plain bytes.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::memory::guard::{self, Unmapped};
use crate::memory::stride::{Runs, Stride};

#[cfg(target_arch = "x86_64")]
mod bulk;
#[cfg(test)]
mod tests;

/// Number of bytes of a word.
const WORD: usize = 8;

/// Calls [`place`], under the fault guard if `guarded`. If this function returns an error, some of the bytes
/// may have been copied.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies.
#[inline(always)]
pub(super) unsafe fn place_to(to: *mut u8, bytes: &[u8], guarded: bool) -> Result<(), Unmapped> {
    // SAFETY: the caller promises for these bytes what `place` requires.
    let copy = || unsafe { place(to, bytes) };
    // SAFETY: `place` owns nothing, takes no lock and does not panic. If `place` is abandoned at an access to
    // the bytes at `to`, some of these bytes are written and nothing else has changed.
    unsafe { run(to, bytes.len(), guarded, copy) }
}

/// Calls [`place_raw`], under the fault guard if `guarded`. If this function returns an error, some of the
/// bytes may have been copied.
///
/// # Safety
/// The requirements of [`place_raw`].
pub(super) unsafe fn place_raw_to(
    to: *mut u8,
    from: *const u8,
    len: usize,
    guarded: bool,
) -> Result<(), Unmapped> {
    // SAFETY: the caller promises what `place_raw` requires.
    let copy = || unsafe { place_raw(to, from, len) };
    // SAFETY: `place_raw` owns nothing, takes no lock and does not panic. If `place_raw` is abandoned at an
    // access to the bytes at `to`, some of these bytes are written and nothing else has changed.
    unsafe { run(to, len, guarded, copy) }
}

/// Calls [`place_runs`] with `runs` of `len` bytes, under the fault guard if `guarded`. If this function
/// returns an error, some of the bytes may have been copied.
///
/// # Safety
/// `to..to + len` is mapped and writable, and other threads access it only through atomics and raw copies.
/// `len` is the number of content bytes in `runs`.
pub(super) unsafe fn place_runs_to(
    to: *mut u8,
    runs: Runs<'_>,
    len: usize,
    guarded: bool,
) -> Result<(), Unmapped> {
    // SAFETY: the caller promises what `place_runs` requires for `len` bytes, the length of `runs`.
    let copy = || unsafe { place_runs(to, runs) };
    // SAFETY: `place_runs` owns nothing, takes no lock and does not panic. If `place_runs` is abandoned at an
    // access to the bytes at `to`, some of these bytes are written and nothing else has changed.
    unsafe { run(to, len, guarded, copy) }
}

/// Calls [`fetch`], under the fault guard if `guarded`. If this function returns an error, some of the bytes
/// may have been copied.
///
/// # Safety
/// `from..from + stride.content(out.len())` is mapped and readable, and other threads access it only through
/// atomics and raw copies.
pub(super) unsafe fn fetch_from(
    from: *const u8,
    out: &mut [u8],
    stride: Stride,
    guarded: bool,
) -> Result<(), Unmapped> {
    let len = stride.content(out.len());
    // SAFETY: the caller promises for these bytes what `fetch` requires.
    let copy = || unsafe { fetch(from, out, stride) };
    // SAFETY: `fetch` owns nothing, takes no lock and does not panic. If the fetch is abandoned at an access
    // to the bytes at `from`, only bytes of `out` have changed, which are always initialised.
    unsafe { run(from, len, guarded, copy) }
}

/// Runs `access`, which accesses the `len` bytes at `start`, under the fault guard if `guarded`. Returns
/// [`Unmapped`] if a fault has ended `access`.
///
/// # Safety
/// If `guarded`, `access` may be abandoned at any access to these bytes, as [`guard::attempt`] describes. So
/// at each such access, `access` and the functions that it calls own nothing that needs a drop, and hold no
/// lock. No state on which other code relies is half changed then. `access` does not panic.
#[inline(always)]
pub(super) unsafe fn run(
    start: *const u8,
    len: usize,
    guarded: bool,
    mut access: impl FnMut(),
) -> Result<(), Unmapped> {
    if !guarded {
        access();
        return Ok(());
    }
    // SAFETY: the access is guarded, so the caller promises that `access` may be abandoned.
    unsafe { guard::attempt(start, len, access) }
}

/// Copies `bytes` to `to`. The bytes become visible to other threads by increasing address, so the last byte
/// becomes visible last.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies.
#[inline]
pub(super) unsafe fn place(to: *mut u8, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(to.align_offset(WORD).min(bytes.len()));
    if !head.is_empty() {
        // SAFETY: `head` is the front of `bytes`, and is copied to the front of the caller's range.
        unsafe { place_end(to, head) };
    }
    let to = to.wrapping_add(head.len());
    // SAFETY: `rest` follows `head` in `bytes`, and is copied to the bytes after `head` in the caller's
    // range. If `rest` is not empty, `head` ended at a multiple of 8.
    let bulk = unsafe { bulk::place(to, rest) };
    let (mut to, mut rest) = (to.wrapping_add(bulk), &rest[bulk..]);
    while let Some((word, behind)) = rest.split_first_chunk() {
        // SAFETY: the word is in `rest`, whose bytes fit in the caller's range at `to`. `to` is a multiple of
        // 8, because `bulk` is a multiple of 8 and each earlier word has 8 bytes.
        unsafe { place_word(to, *word) };
        (to, rest) = (to.wrapping_add(WORD), behind);
    }
    if !rest.is_empty() {
        // SAFETY: `rest` is the end of `bytes`, and is copied to the end of the caller's range.
        unsafe { place_end(to, rest) };
    }
}

/// Does what [`place`] does, for bytes that other code may write during the copy. The copy then has old
/// bytes, new bytes, or a mixture of old and new bytes.
///
/// # Safety
/// `to..to + len` is mapped and writable, `from..from + len` is mapped and readable, and the two ranges do
/// not overlap. Other threads and processes access both only through atomics and raw copies.
#[inline]
pub(super) unsafe fn place_raw(to: *mut u8, from: *const u8, len: usize) {
    let (mut to, mut from, mut left) = (to, from, len);
    // The bytes before and after the bulk pass through `chunk`, which no other code sees.
    let mut chunk = [0_u8; 4 * WORD];
    while left > 0 {
        // SAFETY: `left` bytes of the caller's ranges remain at `to` and `from`.
        let bulk = unsafe { bulk::place_raw(to, from, left) };
        (to, from, left) = (to.wrapping_add(bulk), from.wrapping_add(bulk), left - bulk);
        let bytes = match to.align_offset(bulk::ALIGN) {
            0 => left.min(chunk.len()),
            unaligned => left.min(unaligned),
        };
        for (i, byte) in chunk[..bytes].iter_mut().enumerate() {
            // SAFETY: `i` is below `left`, and the caller promises that the bytes at `from` may be read while
            // other code accesses them only through atomics and raw copies. A byte is always aligned, and
            // this byte is only loaded.
            *byte = unsafe { AtomicU8::from_ptr(from.wrapping_add(i).cast_mut()) }.load(Ordering::Relaxed);
        }
        // SAFETY: `bytes` is at most `left`, so the caller's range has room for the bytes at `to`.
        unsafe { place(to, &chunk[..bytes]) };
        (to, from, left) = (to.wrapping_add(bytes), from.wrapping_add(bytes), left - bytes);
    }
}

/// Does what [`place`] does, for several runs, which become contiguous in memory.
///
/// # Safety
/// `to..to + runs.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies.
pub(super) unsafe fn place_runs(to: *mut u8, mut runs: Runs<'_>) {
    let head = to.align_offset(bulk::ALIGN);
    // SAFETY: the caller's range has room for all bytes of `runs`.
    let to = unsafe { place_next(to, &mut runs, head) };
    // SAFETY: `to` is the address after the placed bytes, so the caller's range has room for the remaining
    // bytes. If bytes remain, `to` is a multiple of `ALIGN`.
    let to = unsafe { bulk::place_runs(to, &mut runs) };
    // SAFETY: `to` is the address after the placed bytes, so the caller's range has room for the remaining
    // bytes.
    unsafe { place_next(to, &mut runs, usize::MAX) };
}

/// Places the next bytes of `runs`, at most `max` bytes, run by run. Returns the address after the placed
/// bytes.
///
/// # Safety
/// `to..to + runs.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies.
unsafe fn place_next(mut to: *mut u8, runs: &mut Runs<'_>, mut max: usize) -> *mut u8 {
    while max > 0
        && let Some(run) = runs.next_of(max)
    {
        // SAFETY: `run` was the next of the caller's runs, and `to` is the address after the earlier runs in
        // the caller's range. So the range has room for `run`.
        unsafe { place(to, run) };
        to = to.wrapping_add(run.len());
        max -= run.len();
    }
    to
}

/// Copies the bytes at `from` to the content of `out`, and skips the gaps of `out`. Any bytes may be written
/// into the gaps. `out` may contain a part of a concurrent write by another thread.
///
/// # Safety
/// `from..from + stride.content(out.len())` is mapped and readable, and other threads access it only through
/// atomics and raw copies.
pub(super) unsafe fn fetch(from: *const u8, mut out: &mut [u8], stride: Stride) {
    // All accesses are loads, but `AtomicU8::from_ptr` requires a mutable pointer.
    let mut from = from.cast_mut();
    let (mut left, mut run) = (stride.content(out.len()), stride.front());
    while left > 0 {
        let (len, room) = (run.min(left), left.min(out.len()));
        // SAFETY: `left` bytes of the caller's range remain at `from`, and `room` is at most `left`.
        unsafe { fetch_run(from, &mut out[..room], len) };
        from = from.wrapping_add(len);
        left -= len;
        out = out.get_mut(len + Stride::GAP..).unwrap_or_default();
        run = Stride::RUN;
    }
}

/// Copies the `len` bytes at `from` to the front of `out`. To copy in whole blocks, the function may write
/// further bytes up to the end of `out`: the caller writes these bytes again later. Panics if `len` exceeds
/// the length of `out`.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
unsafe fn fetch_run(from: *mut u8, out: &mut [u8], len: usize) {
    let (head, out) = out.split_at_mut(from.align_offset(WORD).min(len));
    let len = len - head.len();
    let blocks = match len.next_multiple_of(bulk::BLOCK) {
        filled_up if filled_up <= out.len() => filled_up,
        beyond => beyond - bulk::BLOCK,
    };
    let (blocks, rest) = out.split_at_mut(blocks);
    let (words, tail) = rest[..len.saturating_sub(blocks.len())].as_chunks_mut::<WORD>();
    // SAFETY: `head` is the front of the caller's `out`, and its bytes come from the front of the range at
    // `from`.
    unsafe { fetch_end(from, head) };
    let from = from.wrapping_add(head.len());
    // SAFETY: `blocks` follows `head` in the caller's `out`, and its bytes follow those of `head` in the
    // range. The length of `blocks` is a multiple of `BLOCK`. If `blocks` is not empty, `head` ended at a
    // multiple of 8.
    unsafe { bulk::fetch(from, blocks) };
    let from = from.wrapping_add(blocks.len());
    for (i, word) in words.iter_mut().enumerate() {
        let from = from.wrapping_add(i * WORD);
        // SAFETY: the word follows `blocks` in the caller's `out`, and its bytes follow those of `blocks` in
        // the range. `head` ended at a multiple of 8, and the blocks and the earlier words are multiples of 8
        // bytes long.
        *word = unsafe { fetch_word(from) };
    }
    // SAFETY: `tail` follows the words in the caller's `out`, and its bytes follow those of the words in the
    // range.
    unsafe { fetch_end(from.wrapping_add(words.len() * WORD), tail) };
}

/// # Safety
/// `to..to + 8` is mapped and writable, and other threads access it only through atomics and raw copies.
/// `to` is a multiple of 8.
unsafe fn place_word(to: *mut u8, word: [u8; WORD]) {
    // SAFETY: the caller promises that the 8 bytes may be written while other threads access them only
    // through atomics and raw copies, and that the 8 bytes are aligned.
    unsafe { AtomicU64::from_ptr(to.cast()) }.store(u64::from_ne_bytes(word), Ordering::Release);
}

/// # Safety
/// `from..from + 8` is mapped and readable, and other threads access it only through atomics and raw copies.
/// `from` is a multiple of 8.
unsafe fn fetch_word(from: *mut u8) -> [u8; WORD] {
    // SAFETY: the caller promises that the 8 bytes may be read while other threads access them only through
    // atomics and raw copies, and that the 8 bytes are aligned. The bytes are only loaded, so they need not
    // be writable.
    unsafe { AtomicU64::from_ptr(from.cast()) }.load(Ordering::Relaxed).to_ne_bytes()
}

/// Stores fewer bytes than a word. An aligned half word, the usual case next to a marker, is stored in a
/// single access; other bytes are stored one by one.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies.
unsafe fn place_end(to: *mut u8, bytes: &[u8]) {
    if let (Ok(half), true) = (<[u8; 4]>::try_from(bytes), to.cast::<u32>().is_aligned()) {
        // SAFETY: `bytes` has 4 bytes, and the caller promises that 4 bytes at `to` may be written while
        // other threads access them only through atomics and raw copies. `to` was just checked to be aligned.
        let place = unsafe { AtomicU32::from_ptr(to.cast()) };
        return place.store(u32::from_ne_bytes(half), Ordering::Release);
    }
    for (i, byte) in bytes.iter().enumerate() {
        // SAFETY: `i` is below `bytes.len()`, and the caller promises that `bytes.len()` bytes at `to` may be
        // written while other threads access them only through atomics and raw copies. A byte is always
        // aligned.
        unsafe { AtomicU8::from_ptr(to.wrapping_add(i)) }.store(*byte, Ordering::Release);
    }
}

/// Loads fewer bytes than a word. An aligned half word is loaded in a single access; other bytes are loaded
/// one by one.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
unsafe fn fetch_end(from: *mut u8, out: &mut [u8]) {
    if let (Ok(half), true) = (<&mut [u8; 4]>::try_from(&mut *out), from.cast::<u32>().is_aligned()) {
        // SAFETY: `out` has 4 bytes, and the caller promises that 4 bytes at `from` may be read while other
        // threads access them only through atomics and raw copies. `from` was just checked to be aligned, and
        // the bytes are only loaded.
        let place = unsafe { AtomicU32::from_ptr(from.cast()) };
        *half = place.load(Ordering::Relaxed).to_ne_bytes();
        return;
    }
    for (i, byte) in out.iter_mut().enumerate() {
        // SAFETY: `i` is below `out.len()`, and the caller promises that `out.len()` bytes at `from` may be
        // read while other threads access them only through atomics and raw copies. A byte is always aligned,
        // and this byte is only loaded.
        *byte = unsafe { AtomicU8::from_ptr(from.wrapping_add(i)) }.load(Ordering::Relaxed);
    }
}

/// The functions of `bulk` for processors other than x86-64, which copy words instead of larger blocks.
#[cfg(not(target_arch = "x86_64"))]
mod bulk {
    use super::{WORD, fetch_word};
    use crate::memory::stride::Runs;

    pub(super) const ALIGN: usize = WORD;
    pub(super) const BLOCK: usize = WORD;

    /// Copies nothing, and returns 0: the caller copies all bytes.
    ///
    /// # Safety
    /// No requirements. The function is `unsafe` because its x86-64 version has requirements.
    pub(super) unsafe fn place(_to: *mut u8, _bytes: &[u8]) -> usize {
        0
    }

    /// Copies nothing, and returns 0: the caller copies all bytes.
    ///
    /// # Safety
    /// No requirements. The function is `unsafe` because its x86-64 version has requirements.
    pub(super) unsafe fn place_raw(_to: *mut u8, _from: *const u8, _len: usize) -> usize {
        0
    }

    /// Copies nothing, and returns `to`: the caller copies all bytes.
    ///
    /// # Safety
    /// No requirements. The function is `unsafe` because its x86-64 version has requirements.
    pub(super) unsafe fn place_runs(to: *mut u8, _runs: &mut Runs<'_>) -> *mut u8 {
        to
    }

    /// Copies the `out.len()` bytes at `from` to `out`.
    ///
    /// # Safety
    /// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and
    /// raw copies. The length is a multiple of 8. If the length is not 0, `from` is a multiple of 8.
    pub(super) unsafe fn fetch(from: *mut u8, out: &mut [u8]) {
        for (i, word) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let from = from.wrapping_add(i * WORD);
            // SAFETY: the word is in `out`, and the caller promises that `out.len()` bytes at `from` are
            // readable and that other threads access them only by atomics and raw copies. The word at `from`
            // is aligned, since `from` is a multiple of 8.
            *word = unsafe { fetch_word(from) };
        }
    }
}
