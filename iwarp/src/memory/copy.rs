//! The copies between packet buffers and registered memory. [`sum`] has those that also compute a CRC.
//!
//! Several threads, and code outside of this library, read and write registered memory at once. So it is
//! treated like device memory: accessed by atomics, or by assembly that is opaque to the compiler, and never
//! through a reference. Stores go by increasing address and become visible in that order. The last byte is
//! stored by itself or within the last aligned word, after all others.
//!
//! The ends are copied in aligned words, half words and bytes, whose atomic release stores are plain `mov`s
//! on x86-64. There the middle is copied in blocks of 64 bytes by inline assembly (25 GB/s from cache at 2.5
//! GHz, where words alone reach 17).
//!
//! A packet buffer may have gaps between the bytes ([`Stride`]): markers. Placing still stores whole vectors.
//! Fetching writes past the end of a run, into the gap and the space of the next run, which is written later.
//! So each run is copied in whole blocks.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::memory::guard::{self, Unmapped};
use crate::memory::stride::{Runs, Stride};
use crate::memory::sum;

#[cfg(test)]
mod tests;

/// Bytes of a word.
const WORD: usize = 8;

/// As [`place`], under the guard if `guarded`. An error may leave a part copied.
///
/// # Safety
/// As [`place`].
pub(super) unsafe fn place_to(to: *mut u8, bytes: &[u8], guarded: bool) -> Result<(), Unmapped> {
    // SAFETY: the caller makes the promise of `place` for these bytes. The copy owns nothing and takes no
    // lock, so it may be abandoned.
    unsafe { run(to, bytes.len(), guarded, || place(to, bytes)) }
}

/// As [`place_runs`] with `runs` of `len` bytes, under the guard if `guarded`. An error may leave a part
/// copied.
///
/// # Safety
/// As [`place_runs`].
pub(super) unsafe fn place_runs_to(
    to: *mut u8,
    runs: Runs<'_>,
    len: usize,
    guarded: bool,
) -> Result<(), Unmapped> {
    // SAFETY: the caller makes the promise of `place_runs` for these bytes. The copy owns nothing and takes
    // no lock, so it may be abandoned.
    unsafe { run(to, len, guarded, || place_runs(to, runs)) }
}

/// As [`fetch`], under the guard if `guarded`. An error may leave a part copied.
///
/// # Safety
/// As [`fetch`].
pub(super) unsafe fn fetch_from(
    from: *const u8,
    out: &mut [u8],
    stride: Stride,
    guarded: bool,
) -> Result<(), Unmapped> {
    // SAFETY: the caller makes the promise of `fetch` for these bytes. The copy owns nothing and takes no
    // lock, so it may be abandoned.
    unsafe { run(from, stride.content(out.len()), guarded, || fetch(from, out, stride)) }
}

/// As [`sum::fetch`], under the guard if `guarded`. An error may leave a part copied.
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
    // SAFETY: the caller makes the promise of `fetch` for these bytes. The copy owns nothing and takes no
    // lock, so it may be abandoned. The sum of an abandoned copy is not used.
    unsafe { run(from, out.len(), guarded, || sum = sum::fetch(crc, from, out)) }?;
    Ok(sum)
}

/// Runs `access`, which accesses the `len` bytes at `start`, under the guard if `guarded`.
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
    // SAFETY: the caller promises the same of `access` as `attempt` requires.
    unsafe { guard::attempt(start, len, access) }
}

/// Copies `bytes` to `to`. They become visible to other threads by increasing address, the last one last.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable, and accessed by others at most through atomics and raw
/// copies.
pub(super) unsafe fn place(to: *mut u8, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(to.align_offset(WORD).min(bytes.len()));
    // SAFETY: the parts follow each other inside the caller's range. `rest` starts at a multiple of 8 if it
    // has any bytes.
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

/// As [`place`], for several runs that become contiguous.
///
/// # Safety
/// As [`place`], for all bytes of the runs.
pub(super) unsafe fn place_runs(to: *mut u8, mut runs: Runs<'_>) {
    let head = to.align_offset(bulk::ALIGN);
    // SAFETY: the parts follow each other inside the caller's range. After the head, `to` is aligned if any
    // bytes are left.
    unsafe {
        let to = place_next(to, &mut runs, head);
        let to = bulk::place_runs(to, &mut runs);
        place_next(to, &mut runs, usize::MAX);
    }
}

/// Places the next bytes of `runs`, at most `max`, run by run. Returns the address after them.
///
/// # Safety
/// As [`place`], for as many bytes.
unsafe fn place_next(mut to: *mut u8, runs: &mut Runs<'_>, mut max: usize) -> *mut u8 {
    while max > 0
        && let Some(run) = runs.next_of(max)
    {
        // SAFETY: the runs follow each other inside the caller's range.
        unsafe {
            place(to, run);
            to = to.add(run.len());
        }
        max -= run.len();
    }
    to
}

/// Copies bytes from `from` on to `out`, around its gaps. Any bytes may be written into the gaps. Concurrent
/// writes of others may be seen in part.
///
/// # Safety
/// `from..from + stride.content(out.len())` is mapped and readable, and accessed by others at most through
/// atomics and raw copies.
pub(super) unsafe fn fetch(from: *const u8, mut out: &mut [u8], stride: Stride) {
    // All accesses are loads. `AtomicU8::from_ptr` requires a mutable pointer even for these.
    let mut from = from.cast_mut();
    let (mut left, mut run) = (stride.content(out.len()), stride.front());
    while left > 0 {
        let (len, room) = (run.min(left), left.min(out.len()));
        // SAFETY: of the caller's range, `left` bytes remain at `from`, and `fetch_run` reads `room` of them
        // at most.
        unsafe {
            fetch_run(from, &mut out[..room], len);
            from = from.add(len);
        }
        left -= len;
        out = out.get_mut(len + Stride::GAP..).unwrap_or_default();
        run = Stride::RUN;
    }
}

/// Copies `len` bytes from `from` on to the front of `out`. It may copy on up to the end of `out`, in whole
/// blocks: the bytes there are written again later.
///
/// # Safety
/// As [`fetch`], for `out.len()` bytes, which are at least `len`.
unsafe fn fetch_run(from: *mut u8, out: &mut [u8], len: usize) {
    let (head, out) = out.split_at_mut(from.align_offset(WORD).min(len));
    let len = len - head.len();
    let blocks = match len.next_multiple_of(bulk::BLOCK) {
        filled_up if filled_up <= out.len() => filled_up,
        beyond => beyond - bulk::BLOCK,
    };
    let (blocks, rest) = out.split_at_mut(blocks);
    let (words, tail) = rest[..len.saturating_sub(blocks.len())].as_chunks_mut::<WORD>();
    // SAFETY: the parts follow each other inside the caller's range. `blocks` and `words` start at a multiple
    // of 8 if they have any bytes.
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
    // SAFETY: the caller promises that the bytes may be written as in `place`, and that they are aligned.
    unsafe { AtomicU64::from_ptr(to.cast()) }.store(u64::from_ne_bytes(word), Ordering::Release);
}

/// # Safety
/// As [`fetch`], for the 8 bytes at `from`, a multiple of 8.
unsafe fn fetch_word(from: *mut u8) -> [u8; WORD] {
    // SAFETY: the caller promises that the bytes may be read as in `fetch`, and that they are aligned.
    unsafe { AtomicU64::from_ptr(from.cast()) }.load(Ordering::Relaxed).to_ne_bytes()
}

/// Stores fewer bytes than a word: at once if they are an aligned half word, which is the usual case beside a
/// marker.
///
/// # Safety
/// As [`place`].
unsafe fn place_end(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller promises that `bytes.len()` bytes at `to` may be written as in `place`. The stores
    // stay within them, and the half word is checked to be aligned.
    unsafe {
        if let (Ok(half), true) = (<[u8; 4]>::try_from(bytes), to.cast::<u32>().is_aligned()) {
            return AtomicU32::from_ptr(to.cast()).store(u32::from_ne_bytes(half), Ordering::Release);
        }
        for (i, byte) in bytes.iter().enumerate() {
            AtomicU8::from_ptr(to.add(i)).store(*byte, Ordering::Release);
        }
    }
}

/// Loads fewer bytes than a word, as [`place_end`] stores them.
///
/// # Safety
/// As [`fetch`].
unsafe fn fetch_end(from: *mut u8, out: &mut [u8]) {
    // SAFETY: the caller promises that `out.len()` bytes at `from` may be read as in `fetch`. The loads stay
    // within them, and the half word is checked to be aligned.
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

/// Copies of the middle part. x86-64 makes stores visible in program order, and stores 16 aligned bytes at
/// once.
#[cfg(target_arch = "x86_64")]
mod bulk {
    use std::arch::asm;

    use super::{WORD, place_word};
    use crate::memory::stride::{Runs, Stride};

    /// Bytes of a vector, and its alignment when stored.
    pub(super) const ALIGN: usize = 16;

    /// Bytes of a block.
    pub(super) const BLOCK: usize = 4 * ALIGN;

    /// 16 bytes of ones and 16 of zeros: a vector loaded at `16 - n` has ones in its first `n` bytes.
    static MASK: [u8; 2 * ALIGN] = {
        let mut mask = [0; 2 * ALIGN];
        mask.split_at_mut(ALIGN).0.copy_from_slice(&[0xff; ALIGN]);
        mask
    };

    /// Copies the front of `bytes` to `to`, a multiple of 8. Returns the number of copied bytes: a multiple
    /// of 8 that leaves at least one byte of a non-empty slice.
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
        // SAFETY: `head` is 0 or 8, and `head + len` is less than the length of the caller's range. After
        // `head`, `to` is a multiple of 16.
        unsafe {
            if let (true, Some(word)) = (head == WORD, bytes.first_chunk()) {
                place_word(to, *word);
            }
            vectors(to.add(head), bytes.as_ptr().add(head), len / ALIGN, usize::MAX);
        }
        head + len
    }

    /// Copies vectors of `runs` to `to`, a multiple of 16, and leaves at least one byte of non-empty runs.
    /// Returns the address after them.
    ///
    /// # Safety
    /// As [`super::place_runs`].
    pub(super) unsafe fn place_runs(to: *mut u8, runs: &mut Runs<'_>) -> *mut u8 {
        let count = runs.len().saturating_sub(1) / ALIGN;
        let (bytes, front) = runs.parts();
        if count == 0 {
            return to;
        }
        // SAFETY: `bytes` has `count` vectors of content, and they fit the caller's range at `to`.
        let (from, front) = unsafe { vectors(to, bytes.as_ptr(), count, front) };
        runs.advance(from.addr() - bytes.as_ptr().addr(), front);
        to.wrapping_add(count * ALIGN)
    }

    /// Copies `count` vectors, at least 1, from `from` on to `to`, a multiple of 16. A vector with a gap
    /// inside is assembled from the bytes on both sides. Returns the address after the last one, and the
    /// number of bytes before the next gap.
    ///
    /// # Safety
    /// As [`super::place_runs`], and `count` vectors of content with gaps between them start at `from`.
    unsafe fn vectors(
        to: *mut u8,
        mut from: *const u8,
        count: usize,
        mut front: usize,
    ) -> (*const u8, usize) {
        // SAFETY: vectors before a gap are loaded in one piece. Of a vector with a gap inside, the first
        // `front` bytes lie before the gap and the others after it, so both loads end at the vector's last
        // byte or before it. A run has at least the length of a vector, so there is no second gap. `to` is a
        // multiple of 16, as `movdqa` requires. The assembly writes only to `to` and to the registers that it
        // names.
        unsafe {
            asm!(
                "2:",
                // The vectors before the gap, or all that are left.
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
                // The vector with the gap inside: `front` bytes from before the gap, the others from after
                // it.
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
        // SAFETY: `blocks * 64` is at most the length of the caller's range. The assembly reads `from` and
        // writes `out` within these bounds, and changes only the registers that it names.
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
    /// As [`super::place`].
    pub(super) unsafe fn place(_to: *mut u8, _bytes: &[u8]) -> usize {
        0
    }

    /// Copies nothing, as [`place`].
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
            // SAFETY: the word is inside the caller's range, and aligned like `from`.
            *word = unsafe { fetch_word(from.add(i * WORD)) };
        }
    }
}
