//! The copies between packet buffers and registered memory. Those that go out with a CRC are made in [`sum`].
//!
//! Registered memory is read and written by several threads at once and by code that is not ours, so it is
//! treated as a device's: accessed by atomics, or by instructions the compiler does not look into, and never
//! through a reference. Stores go by increasing address and become visible in that order. The last octet is
//! stored by itself or within the last aligned word, after all others.
//!
//! The ends are copied in aligned words, halves of these and octets, whose atomic release stores are plain `mov`s on
//! x86-64. There the middle is copied by 64 octets at a time in inline assembly (25 GB/s from cache at 2.5 GHz, where words
//! alone give 17).

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::memory::guard::{self, Unmapped};
use crate::memory::sum;

#[cfg(test)]
mod tests;

/// Octets of a word.
const WORD: usize = 8;

/// As [`place`]; under the guard where `guarded`, and then perhaps in part.
///
/// # Safety
/// As [`place`].
pub(super) unsafe fn place_to(to: *mut u8, octets: &[u8], guarded: bool) -> Result<(), Unmapped> {
    // SAFETY: the caller vouches for the octets. The copy holds nothing, and may be left half done.
    unsafe { run(to, octets.len(), guarded, || place(to, octets)) }
}

/// As [`fetch`]; under the guard where `guarded`, and then perhaps in part.
///
/// # Safety
/// As [`fetch`].
pub(super) unsafe fn fetch_from(from: *const u8, out: &mut [u8], guarded: bool) -> Result<(), Unmapped> {
    // SAFETY: as in `place_to`.
    unsafe { run(from, out.len(), guarded, || fetch(from, out)) }
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

/// Runs `access`, which accesses the `len` octets at `start`; under the guard where `guarded`.
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

/// Copies `octets` to `to`; they become visible to other threads by increasing address, the last one last.
///
/// # Safety
/// `to..to + octets.len()` is mapped and writable, and accessed by others at most through atomics and raw copies.
pub(super) unsafe fn place(to: *mut u8, octets: &[u8]) {
    let (head, rest) = octets.split_at(to.align_offset(WORD).min(octets.len()));
    // SAFETY: the parts lie one behind the other inside the caller's range, and `rest` starts at a multiple of 8
    // wherever it has any octets.
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

/// Copies `out.len()` octets from `from` on. What others write meanwhile may be seen in part.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and accessed by others at most through atomics and raw copies.
pub(super) unsafe fn fetch(from: *const u8, out: &mut [u8]) {
    // What follows only loads; `AtomicU8::from_ptr` asks for a mutable pointer whatever is done with it.
    let from = from.cast_mut();
    let (head, rest) = out.split_at_mut(from.align_offset(WORD).min(out.len()));
    // SAFETY: as in `place`.
    unsafe {
        fetch_end(from, head);
        let from = from.add(head.len());
        let bulk = bulk::fetch(from, rest);
        let (from, rest) = (from.add(bulk), &mut rest[bulk..]);
        let (words, tail) = rest.as_chunks_mut::<WORD>();
        for (i, word) in words.iter_mut().enumerate() {
            let at = from.add(i * WORD).cast::<u64>();
            *word = AtomicU64::from_ptr(at).load(Ordering::Relaxed).to_ne_bytes();
        }
        fetch_end(from.add(words.len() * WORD), tail);
    }
}

/// # Safety
/// As [`place`], for the 8 octets at `to`, a multiple of 8.
unsafe fn place_word(to: *mut u8, word: [u8; WORD]) {
    // SAFETY: the caller vouches for the octets and their alignment.
    unsafe { AtomicU64::from_ptr(to.cast()) }.store(u64::from_ne_bytes(word), Ordering::Release);
}

/// Stores fewer octets than a word has, at once where they are half of one: the usual case beside a marker.
///
/// # Safety
/// As [`place`].
unsafe fn place_end(to: *mut u8, octets: &[u8]) {
    // SAFETY: `octets` is as long as what is stored; the caller vouches for the place, which is aligned as asked.
    unsafe {
        if let (Ok(half), true) = (<[u8; 4]>::try_from(octets), to.cast::<u32>().is_aligned()) {
            return AtomicU32::from_ptr(to.cast()).store(u32::from_ne_bytes(half), Ordering::Release);
        }
        for (i, octet) in octets.iter().enumerate() {
            AtomicU8::from_ptr(to.add(i)).store(*octet, Ordering::Release);
        }
    }
}

/// Loads fewer octets than a word has, as [`place_end`] stores them.
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
        for (i, octet) in out.iter_mut().enumerate() {
            *octet = AtomicU8::from_ptr(from.add(i)).load(Ordering::Relaxed);
        }
    }
}

/// The middle, by 64 octets. x86-64 makes stores visible in program order, and stores 16 aligned octets at once.
#[cfg(target_arch = "x86_64")]
mod bulk {
    use std::arch::asm;

    use super::{WORD, place_word};

    const BLOCK: usize = 64;
    /// Of a vector register.
    const ALIGN: usize = 16;

    /// Copies the front of `octets` to `to`, a multiple of 8, and returns how many: a multiple of 8 that leaves at
    /// least one octet of a non-empty slice.
    ///
    /// # Safety
    /// As [`super::place`].
    pub(super) unsafe fn place(to: *mut u8, octets: &[u8]) -> usize {
        let head = to.align_offset(ALIGN);
        let blocks = octets.len().saturating_sub(head + 1) / BLOCK;
        if blocks == 0 {
            return 0;
        }
        // SAFETY: `head` is 0 or 8 and `head + blocks * 64` is less than the length, for which the caller vouches;
        // behind `head`, `to` is a multiple of 16 as `movdqa` asks. The assembly reads `octets` and writes `to`
        // within these bounds, and changes nothing else but the registers it names.
        unsafe {
            if let (true, Some(word)) = (head == WORD, octets.first_chunk()) {
                place_word(to, *word);
            }
            asm!(
                "2:",
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
                "dec {blocks}",
                "jnz 2b",
                from = inout(reg) octets.as_ptr().add(head) => _,
                to = inout(reg) to.add(head) => _,
                blocks = inout(reg) blocks => _,
                x0 = out(xmm_reg) _,
                x1 = out(xmm_reg) _,
                x2 = out(xmm_reg) _,
                x3 = out(xmm_reg) _,
                options(nostack),
            );
        }
        head + blocks * BLOCK
    }

    /// Copies from `from` to the front of `out` and returns how many: a multiple of 64.
    ///
    /// # Safety
    /// As [`super::fetch`].
    pub(super) unsafe fn fetch(from: *const u8, out: &mut [u8]) -> usize {
        let blocks = out.len() / BLOCK;
        if blocks == 0 {
            return 0;
        }
        // SAFETY: `blocks * 64` is at most the length, for which the caller vouches. The assembly reads `from` and
        // writes `out` within these bounds, and changes nothing else but the registers it names.
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
        blocks * BLOCK
    }
}

/// Elsewhere words do it all.
#[cfg(not(target_arch = "x86_64"))]
mod bulk {
    /// # Safety
    /// As [`super::place`].
    pub(super) unsafe fn place(_to: *mut u8, _octets: &[u8]) -> usize {
        0
    }

    /// # Safety
    /// As [`super::fetch`].
    pub(super) unsafe fn fetch(_from: *const u8, _out: &mut [u8]) -> usize {
        0
    }
}
