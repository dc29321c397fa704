//! The copies between packet buffers and registered memory. [`crc32c`](crate::memory::crc32c) has the copies
//! that also compute a CRC.
//!
//! Several threads, and code outside of this library, read and write registered memory at once. So it is
//! treated like device memory: accessed by atomics, or by assembly that is opaque to the compiler, and never
//! through a reference. Stores go by increasing address and become visible in that order. The last byte is
//! stored by itself or within the last aligned word, after all others.
//!
//! The ends are copied in aligned words, half words and bytes, whose atomic release stores are plain `mov`s
//! on x86-64. There the middle is copied in blocks by inline assembly (25 GB/s from cache at 2.5 GHz, where
//! words alone reach 17). Fetching takes vectors of 32 bytes where the CPU has AVX. Placing does
//! not, since a vector of that length may become visible in two parts, in any order.
//!
//! A packet buffer may have gaps between the bytes ([`Stride`]): markers. Placing still stores whole vectors.
//! Fetching writes past the end of a run, into the gap and the space of the next run, which is written later.
//! So each run is copied in whole blocks.
//!
//! # The memory model
//!
//! An engine stores words while the application loads a byte of them, or another engine a half word. Rust's
//! memory model does not define such races between atomic accesses of different sizes (the documentation of
//! `std::sync::atomic`), so neither Miri nor loom can check them. The arguments here rest on two layers below
//! it. LLVM defines a racing atomic load byte by byte (its language reference, "Memory Model for Concurrent
//! Operations"): each byte is one that was there or one that was stored. And the processor accesses an
//! aligned word at once. The assembly may access any memory as far as the compiler knows, so no access moves
//! across it. No bytes that are copied here decide anything: neither an address nor a length depends on them.
//!
//! So the contracts below ask of others only that they access the bytes by atomics of any size and by raw
//! copies (volatile accesses, assembly, the kernel), never through a reference to plain bytes.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::memory::guard::{self, Unmapped};
use crate::memory::stride::{Runs, Stride};

#[cfg(target_arch = "x86_64")]
mod bulk;
#[cfg(test)]
mod tests;

/// Bytes of a word.
const WORD: usize = 8;

/// As [`place`], under the guard if `guarded`. An error may leave a part copied.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies.
pub(super) unsafe fn place_to(to: *mut u8, bytes: &[u8], guarded: bool) -> Result<(), Unmapped> {
    // SAFETY: the caller makes the promise of `place` for these bytes.
    let copy = || unsafe { place(to, bytes) };
    // SAFETY: `place` owns nothing, takes no lock and does not panic. If it is abandoned at an access to the
    // bytes at `to`, some of these bytes are written and nothing else has changed.
    unsafe { run(to, bytes.len(), guarded, copy) }
}

/// As [`place_runs`] with `runs` of `len` bytes, under the guard if `guarded`. An error may leave a part
/// copied.
///
/// # Safety
/// `to..to + len` is mapped and writable, and other threads access it only through atomics and raw copies.
/// `len` is the length of `runs`.
pub(super) unsafe fn place_runs_to(
    to: *mut u8,
    runs: Runs<'_>,
    len: usize,
    guarded: bool,
) -> Result<(), Unmapped> {
    // SAFETY: the caller makes the promise of `place_runs` for `len` bytes, all of `runs`.
    let copy = || unsafe { place_runs(to, runs) };
    // SAFETY: `place_runs` owns nothing, takes no lock and does not panic. If it is abandoned at an access to
    // the bytes at `to`, some of these bytes are written and nothing else has changed.
    unsafe { run(to, len, guarded, copy) }
}

/// As [`fetch`], under the guard if `guarded`. An error may leave a part copied.
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
    // SAFETY: the caller makes the promise of `fetch` for these bytes.
    let copy = || unsafe { fetch(from, out, stride) };
    // SAFETY: `fetch` owns nothing, takes no lock and does not panic. If it is abandoned at an access to the
    // bytes at `from`, only bytes of `out` have changed, and these are always initialised.
    unsafe { run(from, len, guarded, copy) }
}

/// Runs `access`, which accesses the `len` bytes at `start`, under the guard if `guarded`.
///
/// # Safety
/// If `guarded`, `access` may be abandoned at any access to these bytes, as [`guard::attempt`] says: it and
/// the functions it calls own nothing that needs a drop, hold no lock, leave no state half changed on which
/// other code relies, and do not panic.
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
    // SAFETY: the access is guarded, so the caller promises that it may be abandoned.
    unsafe { guard::attempt(start, len, access) }
}

/// Copies `bytes` to `to`. They become visible to other threads by increasing address, the last one last.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies.
#[inline]
pub(super) unsafe fn place(to: *mut u8, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(to.align_offset(WORD).min(bytes.len()));
    if !head.is_empty() {
        // SAFETY: `head` is the front of `bytes`, and goes to the front of the caller's range.
        unsafe { place_end(to, head) };
    }
    let to = to.wrapping_add(head.len());
    // SAFETY: `rest` follows `head` in `bytes`, and is copied behind `head` in the caller's range. If `rest`
    // is not empty, `head` ended at a multiple of 8.
    let bulk = unsafe { bulk::place(to, rest) };
    let (mut to, mut rest) = (to.wrapping_add(bulk), &rest[bulk..]);
    while let Some((word, behind)) = rest.split_first_chunk() {
        // SAFETY: the word is in `rest`, whose bytes fit in the caller's range at `to`. `to` is a multiple of
        // 8, because `bulk` is a multiple of 8 and each earlier word has 8 bytes.
        unsafe { place_word(to, *word) };
        (to, rest) = (to.wrapping_add(WORD), behind);
    }
    if !rest.is_empty() {
        // SAFETY: `rest` is the end of `bytes`, and goes to the end of the caller's range.
        unsafe { place_end(to, rest) };
    }
}

/// As [`place`], for several runs that become contiguous.
///
/// # Safety
/// `to..to + runs.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies.
pub(super) unsafe fn place_runs(to: *mut u8, mut runs: Runs<'_>) {
    let head = to.align_offset(bulk::ALIGN);
    // SAFETY: the caller's range has room for all bytes of `runs`.
    let to = unsafe { place_next(to, &mut runs, head) };
    // SAFETY: `to` is behind the placed bytes, so the caller's range has room for the remaining bytes. If
    // bytes remain, `to` is a multiple of `ALIGN`.
    let to = unsafe { bulk::place_runs(to, &mut runs) };
    // SAFETY: `to` is behind the placed bytes, so the caller's range has room for the remaining bytes.
    unsafe { place_next(to, &mut runs, usize::MAX) };
}

/// Places the next bytes of `runs`, at most `max`, run by run. Returns the address after them.
///
/// # Safety
/// `to..to + runs.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies.
unsafe fn place_next(mut to: *mut u8, runs: &mut Runs<'_>, mut max: usize) -> *mut u8 {
    while max > 0
        && let Some(run) = runs.next_of(max)
    {
        // SAFETY: `run` was the next of the caller's runs, and `to` is behind the earlier runs in the
        // caller's range, so the range has room for `run`.
        unsafe { place(to, run) };
        to = to.wrapping_add(run.len());
        max -= run.len();
    }
    to
}

/// Copies bytes from `from` on to `out`, around its gaps. Any bytes may be written into the gaps. Concurrent
/// writes of others may be seen in part.
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
        // SAFETY: of the caller's range, `left` bytes remain at `from`, and `room` is at most that.
        unsafe { fetch_run(from, &mut out[..room], len) };
        from = from.wrapping_add(len);
        left -= len;
        out = out.get_mut(len + Stride::GAP..).unwrap_or_default();
        run = Stride::RUN;
    }
}

/// Copies `len` bytes from `from` on to the front of `out`. It may copy on up to the end of `out`, in whole
/// blocks: the bytes there are written again later. A `len` beyond the end panics.
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
    // SAFETY: `head` is the front of the caller's `out`, and comes from the front of the range at `from`.
    unsafe { fetch_end(from, head) };
    let from = from.wrapping_add(head.len());
    // SAFETY: `blocks` follows `head` in the caller's `out`, and comes from behind it in the range. Its
    // length is a multiple of `BLOCK`. If it has any bytes, `head` ended at a multiple of 8.
    unsafe { bulk::fetch(from, blocks) };
    let from = from.wrapping_add(blocks.len());
    for (i, word) in words.iter_mut().enumerate() {
        let from = from.wrapping_add(i * WORD);
        // SAFETY: the word follows `blocks` in the caller's `out`, and its source follows theirs in the
        // range. `head` ended at a multiple of 8, and the blocks and the earlier words are multiples of 8
        // bytes long.
        *word = unsafe { fetch_word(from) };
    }
    // SAFETY: `tail` follows the words in the caller's `out`, and comes from behind them in the range.
    unsafe { fetch_end(from.wrapping_add(words.len() * WORD), tail) };
}

/// # Safety
/// `to..to + 8` is mapped and writable, and other threads access it only through atomics and raw copies.
/// `to` is a multiple of 8.
unsafe fn place_word(to: *mut u8, word: [u8; WORD]) {
    // SAFETY: the caller promises that the 8 bytes may be written while other threads access them only
    // through atomics and raw copies, and that they are aligned.
    unsafe { AtomicU64::from_ptr(to.cast()) }.store(u64::from_ne_bytes(word), Ordering::Release);
}

/// # Safety
/// `from..from + 8` is mapped and readable, and other threads access it only through atomics and raw copies.
/// `from` is a multiple of 8.
unsafe fn fetch_word(from: *mut u8) -> [u8; WORD] {
    // SAFETY: the caller promises that the 8 bytes may be read while other threads access them only through
    // atomics and raw copies, and that they are aligned. They are only loaded, so they need not be writable.
    unsafe { AtomicU64::from_ptr(from.cast()) }.load(Ordering::Relaxed).to_ne_bytes()
}

/// Stores fewer bytes than a word: at once if they are an aligned half word, which is the usual case beside a
/// marker.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable, and other threads access it only through atomics and raw
/// copies.
unsafe fn place_end(to: *mut u8, bytes: &[u8]) {
    if let (Ok(half), true) = (<[u8; 4]>::try_from(bytes), to.cast::<u32>().is_aligned()) {
        // SAFETY: `bytes` has 4 bytes, and the caller promises that as many at `to` may be written while
        // other threads access them only through atomics and raw copies. They are aligned, as was just
        // checked.
        let place = unsafe { AtomicU32::from_ptr(to.cast()) };
        return place.store(u32::from_ne_bytes(half), Ordering::Release);
    }
    for (i, byte) in bytes.iter().enumerate() {
        // SAFETY: `i` is below the length of `bytes`, and the caller promises that as many bytes at `to` may
        // be written while other threads access them only through atomics and raw copies. A byte is always
        // aligned.
        unsafe { AtomicU8::from_ptr(to.wrapping_add(i)) }.store(*byte, Ordering::Release);
    }
}

/// Loads fewer bytes than a word, as [`place_end`] stores them.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and raw
/// copies.
unsafe fn fetch_end(from: *mut u8, out: &mut [u8]) {
    if let (Ok(half), true) = (<&mut [u8; 4]>::try_from(&mut *out), from.cast::<u32>().is_aligned()) {
        // SAFETY: `out` has 4 bytes, and the caller promises that as many at `from` may be read while other
        // threads access them only through atomics and raw copies. They are aligned, as was just checked,
        // and only loaded.
        let place = unsafe { AtomicU32::from_ptr(from.cast()) };
        *half = place.load(Ordering::Relaxed).to_ne_bytes();
        return;
    }
    for (i, byte) in out.iter_mut().enumerate() {
        // SAFETY: `i` is below the length of `out`, and the caller promises that as many bytes at `from` may
        // be read while other threads access them only through atomics and raw copies. A byte is always
        // aligned, and it is only loaded.
        *byte = unsafe { AtomicU8::from_ptr(from.wrapping_add(i)) }.load(Ordering::Relaxed);
    }
}

/// Other processors copy by words.
#[cfg(not(target_arch = "x86_64"))]
mod bulk {
    use super::{WORD, fetch_word};
    use crate::memory::stride::Runs;

    pub(super) const ALIGN: usize = WORD;
    pub(super) const BLOCK: usize = WORD;

    /// Copies nothing: the caller copies all of it by words.
    ///
    /// # Safety
    /// None is needed here. x86-64 has obligations.
    pub(super) unsafe fn place(_to: *mut u8, _bytes: &[u8]) -> usize {
        0
    }

    /// Copies nothing, as [`place`].
    ///
    /// # Safety
    /// None is needed here. x86-64 has obligations.
    pub(super) unsafe fn place_runs(to: *mut u8, _runs: &mut Runs<'_>) -> *mut u8 {
        to
    }

    /// Copies from `from` to `out`.
    ///
    /// # Safety
    /// `from..from + out.len()` is mapped and readable, and other threads access it only through atomics and
    /// raw copies. The length is a multiple of 8. If it is not 0, `from` is a multiple of 8.
    pub(super) unsafe fn fetch(from: *mut u8, out: &mut [u8]) {
        for (i, word) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let from = from.wrapping_add(i * WORD);
            // SAFETY: the word is in `out`, and the caller promises as many readable bytes at `from`, which
            // others access by atomics and raw copies. It is aligned, as `from` is a multiple of 8.
            *word = unsafe { fetch_word(from) };
        }
    }
}
