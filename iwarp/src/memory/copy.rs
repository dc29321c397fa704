//! The copies between packet buffers and registered memory. Those that go out with a CRC are made in [`sum`].
//!
//! Registered memory is read and written by several threads at once and by code that is not ours, so it is
//! treated as a device's: accessed by atomics, or by instructions the compiler does not look into, and never
//! through a reference. Stores go by increasing address and become visible in that order. The last byte is
//! stored by itself or within the last aligned word, after all others.
//!
//! The ends are copied in aligned words, halves of these and bytes, whose atomic release stores are plain
//! `mov`s on x86-64. There the middle is copied by 64 bytes at a time in inline assembly (25 GB/s from cache
//! at 2.5 GHz, where words alone give 17).
//!
//! In a packet buffer there may be gaps between the bytes ([`Stride`]): markers. What is placed is whole
//! vectors all the same. What is fetched goes beyond a run's end, into the gap and the room of the next run,
//! which is copied later: so a run is whole blocks.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::memory::guard::{self, Unmapped};
use crate::memory::stride::{Runs, Stride};
use crate::memory::sum;

#[cfg(test)]
mod tests;

/// Bytes of a word.
const WORD: usize = 8;

/// As [`place`]; under the guard where `guarded`, and then perhaps in part.
///
/// # Safety
/// As [`place`].
pub(super) unsafe fn place_to(to: *mut u8, bytes: &[u8], guarded: bool) -> Result<(), Unmapped> {
    // SAFETY: the caller vouches for the bytes. The copy holds nothing, and may be left half done.
    unsafe { run(to, bytes.len(), guarded, || place(to, bytes)) }
}

/// As [`place_runs`], `runs` of `len` bytes; under the guard where `guarded`, and then perhaps in part.
///
/// # Safety
/// As [`place_runs`].
pub(super) unsafe fn place_runs_to(
    to: *mut u8,
    runs: Runs<'_>,
    len: usize,
    guarded: bool,
) -> Result<(), Unmapped> {
    // SAFETY: as in `place_to`.
    unsafe { run(to, len, guarded, || place_runs(to, runs)) }
}

/// As [`fetch`]; under the guard where `guarded`, and then perhaps in part.
///
/// # Safety
/// As [`fetch`].
pub(super) unsafe fn fetch_from(
    from: *const u8,
    out: &mut [u8],
    stride: Stride,
    guarded: bool,
) -> Result<(), Unmapped> {
    // SAFETY: as in `place_to`.
    unsafe { run(from, stride.content(out.len()), guarded, || fetch(from, out, stride)) }
}

/// As [`sum::fetch`]; under the guard where `guarded`, and then perhaps in part.
///
/// # Safety
/// As [`fetch`].
pub(super) unsafe fn fetch_summed_from(
    from: *const u8,
    out: &mut [u8],
    guarded: bool,
    crc: u32,
) -> Result<u32, Unmapped> {
    let mut sum = crc;
    // SAFETY: as in `place_to`; a sum that was left is not used.
    unsafe { run(from, out.len(), guarded, || sum = sum::fetch(crc, from, out)) }?;
    Ok(sum)
}

/// Runs `access`, which accesses the `len` bytes at `start`; under the guard where `guarded`.
///
/// # Safety
/// As [`guard::attempt`].
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
    // SAFETY: the caller promises the same.
    unsafe { guard::attempt(start, len, access) }
}

/// Copies `bytes` to `to`; they become visible to other threads by increasing address, the last one last.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable, and accessed by others at most through atomics and raw
/// copies.
pub(super) unsafe fn place(to: *mut u8, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(to.align_offset(WORD).min(bytes.len()));
    // SAFETY: the parts lie one behind the other inside the caller's range, and `rest` starts at a multiple
    // of 8 wherever it has any bytes.
    unsafe {
        place_end(to, head);
        let to = to.add(head.len());
        let bulk = bulk::place(to, rest);
        let (to, rest) = (to.add(bulk), &rest[bulk..]);
        let (words, tail) = rest.as_chunks::<WORD>();
        for (i, word) in words.iter().enumerate() {
            place_word(to.add(i * WORD), *word);
        }
        place_end(to.add(words.len() * WORD), tail);
    }
}

/// As [`place`], one run right behind the other.
///
/// # Safety
/// As [`place`], for all bytes of the runs.
pub(super) unsafe fn place_runs(to: *mut u8, mut runs: Runs<'_>) {
    let head = to.align_offset(bulk::ALIGN);
    // SAFETY: the parts lie one behind the other inside the caller's range. Behind the head `to` is aligned
    // wherever anything is left.
    unsafe {
        let to = place_next(to, &mut runs, head);
        let to = bulk::place_runs(to, &mut runs);
        place_next(to, &mut runs, usize::MAX);
    }
}

/// Places the next bytes of `runs`, `max` at most, run by run; returns the address behind.
///
/// # Safety
/// As [`place`], for as many bytes.
unsafe fn place_next(mut to: *mut u8, runs: &mut Runs<'_>, mut max: usize) -> *mut u8 {
    while max > 0
        && let Some(run) = runs.next_of(max)
    {
        // SAFETY: the runs lie one behind the other inside the caller's range.
        unsafe {
            place(to, run);
            to = to.add(run.len());
        }
        max -= run.len();
    }
    to
}

/// Copies bytes from `from` on to `out`, around its gaps; in these anything may be written. What others write
/// meanwhile may be seen in part.
///
/// # Safety
/// `from..from + stride.content(out.len())` is mapped and readable, and accessed by others at most through
/// atomics and raw copies.
pub(super) unsafe fn fetch(from: *const u8, mut out: &mut [u8], stride: Stride) {
    // What follows only loads; `AtomicU8::from_ptr` asks for a mutable pointer whatever is done with it.
    let mut from = from.cast_mut();
    let (mut left, mut run) = (stride.content(out.len()), stride.front());
    while left > 0 {
        let (len, room) = (run.min(left), left.min(out.len()));
        // SAFETY: `left` bytes are what the caller still vouches for.
        unsafe {
            fetch_run(from, &mut out[..room], len);
            from = from.add(len);
        }
        left -= len;
        out = out.get_mut(len + Stride::GAP..).unwrap_or_default();
        run = Stride::RUN;
    }
}

/// Copies `len` bytes from `from` on to the front of `out`, and may go on up to its end, so that a run is
/// whole blocks: what is there is written later.
///
/// # Safety
/// As [`fetch`], for `out.len()` bytes; they are `len` at least.
unsafe fn fetch_run(from: *mut u8, out: &mut [u8], len: usize) {
    let (head, out) = out.split_at_mut(from.align_offset(WORD).min(len));
    let len = len - head.len();
    let blocks = match len.next_multiple_of(bulk::BLOCK) {
        filled_up if filled_up <= out.len() => filled_up,
        beyond => beyond - bulk::BLOCK,
    };
    let (blocks, rest) = out.split_at_mut(blocks);
    let (words, tail) = rest[..len.saturating_sub(blocks.len())].as_chunks_mut::<WORD>();
    // SAFETY: the parts lie one behind the other inside the caller's range, and `blocks` and `words` start at
    // a multiple of 8 wherever they have any bytes.
    unsafe {
        fetch_end(from, head);
        let from = from.add(head.len());
        bulk::fetch(from, blocks);
        let from = from.add(blocks.len());
        for (i, word) in words.iter_mut().enumerate() {
            *word = fetch_word(from.add(i * WORD));
        }
        fetch_end(from.add(words.len() * WORD), tail);
    }
}

/// # Safety
/// As [`place`], for the 8 bytes at `to`, a multiple of 8.
unsafe fn place_word(to: *mut u8, word: [u8; WORD]) {
    // SAFETY: the caller vouches for the bytes and their alignment.
    unsafe { AtomicU64::from_ptr(to.cast()) }.store(u64::from_ne_bytes(word), Ordering::Release);
}

/// # Safety
/// As [`fetch`], for the 8 bytes at `from`, a multiple of 8.
unsafe fn fetch_word(from: *mut u8) -> [u8; WORD] {
    // SAFETY: the caller vouches for the bytes and their alignment.
    unsafe { AtomicU64::from_ptr(from.cast()) }.load(Ordering::Relaxed).to_ne_bytes()
}

/// Stores fewer bytes than a word has, at once where they are half of one: the usual case beside a marker.
///
/// # Safety
/// As [`place`].
unsafe fn place_end(to: *mut u8, bytes: &[u8]) {
    // SAFETY: `bytes` is as long as what is stored; the caller vouches for the place, which is aligned as
    // asked.
    unsafe {
        if let (Ok(half), true) = (<[u8; 4]>::try_from(bytes), to.cast::<u32>().is_aligned()) {
            return AtomicU32::from_ptr(to.cast()).store(u32::from_ne_bytes(half), Ordering::Release);
        }
        for (i, byte) in bytes.iter().enumerate() {
            AtomicU8::from_ptr(to.add(i)).store(*byte, Ordering::Release);
        }
    }
}

/// Loads fewer bytes than a word has, as [`place_end`] stores them.
///
/// # Safety
/// As [`fetch`].
unsafe fn fetch_end(from: *mut u8, out: &mut [u8]) {
    // SAFETY: as in `place_end`.
    unsafe {
        if let (Ok(half), true) = (<&mut [u8; 4]>::try_from(&mut *out), from.cast::<u32>().is_aligned()) {
            *half = AtomicU32::from_ptr(from.cast()).load(Ordering::Relaxed).to_ne_bytes();
            return;
        }
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed);
        }
    }
}

/// The middle. x86-64 makes stores visible in program order, and stores 16 aligned bytes at once.
#[cfg(target_arch = "x86_64")]
mod bulk {
    use std::arch::asm;

    use super::{WORD, place_word};
    use crate::memory::stride::{Runs, Stride};

    /// Bytes of a vector, and what the address of one that is stored is a multiple of.
    pub(super) const ALIGN: usize = 16;

    /// Bytes that are copied at once.
    pub(super) const BLOCK: usize = 4 * ALIGN;

    /// Ones and then zeros: loaded from `16 - n` on, the first `n` bytes are ones.
    static MASK: [u8; 2 * ALIGN] = {
        let mut mask = [0; 2 * ALIGN];
        mask.split_at_mut(ALIGN).0.copy_from_slice(&[0xff; ALIGN]);
        mask
    };

    /// Copies the front of `bytes` to `to`, a multiple of 8, and returns how many: a multiple of 8 that
    /// leaves at least one byte of a non-empty slice.
    ///
    /// # Safety
    /// As [`super::place`].
    pub(super) unsafe fn place(to: *mut u8, bytes: &[u8]) -> usize {
        let head = to.align_offset(ALIGN);
        let blocks = bytes.len().saturating_sub(head + 1) / BLOCK;
        if blocks == 0 {
            return 0;
        }
        let len = blocks * BLOCK;
        // SAFETY: `head` is 0 or 8 and `head + len` is less than the length, for which the caller vouches;
        // behind `head`, `to` is a multiple of 16.
        unsafe {
            if let (true, Some(word)) = (head == WORD, bytes.first_chunk()) {
                place_word(to, *word);
            }
            vectors(to.add(head), bytes.as_ptr().add(head), len / ALIGN, usize::MAX);
        }
        head + len
    }

    /// Copies vectors of `runs` to `to`, a multiple of 16, and leaves at least one byte of what there is;
    /// returns the address behind.
    ///
    /// # Safety
    /// As [`super::place_runs`].
    pub(super) unsafe fn place_runs(to: *mut u8, runs: &mut Runs<'_>) -> *mut u8 {
        let count = runs.len().saturating_sub(1) / ALIGN;
        let (bytes, front) = runs.parts();
        if count == 0 {
            return to;
        }
        // SAFETY: `bytes` has so many vectors of content; the caller vouches for the range.
        let (from, front) = unsafe { vectors(to, bytes.as_ptr(), count, front) };
        runs.advance(from.addr() - bytes.as_ptr().addr(), front);
        to.wrapping_add(count * ALIGN)
    }

    /// Copies `count` vectors, 1 at least, from `from` on to `to`, a multiple of 16. A vector that a gap
    /// falls into is put together from the bytes on either side. Returns the address behind, and how many
    /// bytes are in front of the next gap.
    ///
    /// # Safety
    /// As [`super::place_runs`]; so many vectors of content, gaps between, are there from `from` on.
    unsafe fn vectors(
        to: *mut u8,
        mut from: *const u8,
        count: usize,
        mut front: usize,
    ) -> (*const u8, usize) {
        // SAFETY: vectors in front of a gap are loaded where they lie. Of one that a gap falls into, the
        // first `front` bytes are there and the others behind the gap, so both loads end with the vector's
        // own last byte or before it; a run is a vector at least, so there is no second gap. `to` is a
        // multiple of 16 as `movdqa` asks. The assembly changes nothing else but the registers it names.
        unsafe {
            asm!(
                "2:",
                // The vectors in front of the gap, or all that are left.
                "mov {here}, {front}",
                "shr {here}, 4",
                "cmp {here}, {count}",
                "cmova {here}, {count}",
                "sub {count}, {here}",
                "shl {here}, 4",
                "sub {front}, {here}",
                "sub {here}, 64",
                "jb 4f",
                "3:",
                "movdqu {x0}, [{from}]",
                "movdqu {x1}, [{from} + 16]",
                "movdqu {x2}, [{from} + 32]",
                "movdqu {x3}, [{from} + 48]",
                "movdqa [{to}], {x0}",
                "movdqa [{to} + 16], {x1}",
                "movdqa [{to} + 32], {x2}",
                "movdqa [{to} + 48], {x3}",
                "add {from}, 64",
                "add {to}, 64",
                "sub {here}, 64",
                "jae 3b",
                "4:",
                "add {here}, 64",
                "jz 6f",
                "5:",
                "movdqu {x0}, [{from}]",
                "movdqa [{to}], {x0}",
                "add {from}, 16",
                "add {to}, 16",
                "sub {here}, 16",
                "jnz 5b",
                "6:",
                "test {count}, {count}",
                "jz 7f",
                // The vector that the gap falls into: `front` bytes from here, the others from behind it.
                "movdqu {x0}, [{from}]",
                "movdqu {x1}, [{from} + {GAP}]",
                "mov {here}, {mask}",
                "sub {here}, {front}",
                "movdqu {x2}, [{here}]",
                "pand {x0}, {x2}",
                "pandn {x2}, {x1}",
                "por {x0}, {x2}",
                "movdqa [{to}], {x0}",
                "add {from}, {GAP} + 16",
                "add {to}, 16",
                "add {front}, {RUN} - 16",
                "dec {count}",
                "jnz 2b",
                "7:",
                from = inout(reg) from,
                to = inout(reg) to => _,
                count = inout(reg) count => _,
                front = inout(reg) front,
                RUN = const Stride::RUN,
                GAP = const Stride::GAP,
                mask = in(reg) MASK.as_ptr().add(ALIGN),
                here = out(reg) _,
                x0 = out(xmm_reg) _,
                x1 = out(xmm_reg) _,
                x2 = out(xmm_reg) _,
                x3 = out(xmm_reg) _,
                options(nostack),
            );
        }
        (from, front)
    }

    /// Copies from `from`, a multiple of 8, to `out`, a multiple of 64 bytes.
    ///
    /// # Safety
    /// As [`super::fetch`].
    pub(super) unsafe fn fetch(from: *mut u8, out: &mut [u8]) {
        let blocks = out.len() / BLOCK;
        if blocks == 0 {
            return;
        }
        // SAFETY: `blocks * 64` is at most the length, for which the caller vouches. The assembly reads
        // `from` and writes `out` within these bounds, and changes nothing else but the registers it names.
        unsafe {
            asm!(
                "2:",
                "movdqu {x0}, [{from}]",
                "movdqu {x1}, [{from} + 16]",
                "movdqu {x2}, [{from} + 32]",
                "movdqu {x3}, [{from} + 48]",
                "movdqu [{to}], {x0}",
                "movdqu [{to} + 16], {x1}",
                "movdqu [{to} + 32], {x2}",
                "movdqu [{to} + 48], {x3}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {blocks}",
                "jnz 2b",
                from = inout(reg) from => _,
                to = inout(reg) out.as_mut_ptr() => _,
                blocks = inout(reg) blocks => _,
                x0 = out(xmm_reg) _,
                x1 = out(xmm_reg) _,
                x2 = out(xmm_reg) _,
                x3 = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
}

/// Elsewhere by words.
#[cfg(not(target_arch = "x86_64"))]
mod bulk {
    use super::{WORD, fetch_word};
    use crate::memory::stride::Runs;

    pub(super) const ALIGN: usize = WORD;
    pub(super) const BLOCK: usize = WORD;

    /// Leaves all of it to the words.
    ///
    /// # Safety
    /// As [`super::place`].
    pub(super) unsafe fn place(_to: *mut u8, _bytes: &[u8]) -> usize {
        0
    }

    /// As [`place`].
    ///
    /// # Safety
    /// As [`super::place_runs`].
    pub(super) unsafe fn place_runs(to: *mut u8, _runs: &mut Runs<'_>) -> *mut u8 {
        to
    }

    /// Copies from `from`, a multiple of 8, to `out`, a multiple of 8 bytes.
    ///
    /// # Safety
    /// As [`super::fetch`].
    pub(super) unsafe fn fetch(from: *mut u8, out: &mut [u8]) {
        for (i, word) in out.as_chunks_mut().0.iter_mut().enumerate() {
            // SAFETY: inside the caller's range.
            *word = unsafe { fetch_word(from.add(i * WORD)) };
        }
    }
}
