//! The copies between packet buffers and registered memory.
//!
//! Registered memory is read and written by several threads at once, so it is accessed by atomic loads and stores
//! only: in words of 8 octets where address and length allow, in single octets at the ends. Stores are releases
//! by increasing address. On x86-64 such a store is a plain `mov`.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Octets of a word.
const WORD: usize = 8;

/// Copies `octets` to `to`; they become visible to other threads by increasing address, the last one last.
///
/// # Safety
/// `to..to + octets.len()` is mapped and writable, and accessed by others at most through atomics and raw copies.
pub(super) unsafe fn place(to: *mut u8, octets: &[u8]) {
    let head = to.align_offset(WORD).min(octets.len());
    let (head, rest) = octets.split_at(head);
    let (words, tail) = rest.as_chunks::<WORD>();
    // SAFETY: the three parts lie one behind the other inside the caller's range, and `rest` starts at an aligned
    // address wherever it has any octets.
    unsafe {
        place_octets(to, head);
        let to = to.add(head.len());
        for (i, word) in words.iter().enumerate() {
            let at = to.add(i * WORD).cast::<u64>();
            AtomicU64::from_ptr(at).store(u64::from_ne_bytes(*word), Ordering::Release);
        }
        place_octets(to.add(words.len() * WORD), tail);
    }
}

/// Copies `out.len()` octets from `from` on. What others write meanwhile may be seen in part.
///
/// # Safety
/// `from..from + out.len()` is mapped and readable, and accessed by others at most through atomics and raw copies.
pub(super) unsafe fn fetch(from: *const u8, out: &mut [u8]) {
    // The atomics below only load; `from_ptr` asks for a mutable pointer whatever is done with it.
    let from = from.cast_mut();
    let head = from.align_offset(WORD).min(out.len());
    let (head, rest) = out.split_at_mut(head);
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    // SAFETY: as in `place`.
    unsafe {
        fetch_octets(from, head);
        let from = from.add(head.len());
        for (i, word) in words.iter_mut().enumerate() {
            let at = from.add(i * WORD).cast::<u64>();
            *word = AtomicU64::from_ptr(at).load(Ordering::Relaxed).to_ne_bytes();
        }
        fetch_octets(from.add(words.len() * WORD), tail);
    }
}

/// # Safety
/// As [`place`].
unsafe fn place_octets(to: *mut u8, octets: &[u8]) {
    for (i, octet) in octets.iter().enumerate() {
        // SAFETY: `i` is below the length that the caller vouches for; an octet is always aligned.
        unsafe { AtomicU8::from_ptr(to.add(i)) }.store(*octet, Ordering::Release);
    }
}

/// # Safety
/// As [`fetch`].
unsafe fn fetch_octets(from: *mut u8, out: &mut [u8]) {
    for (i, octet) in out.iter_mut().enumerate() {
        // SAFETY: as in `place_octets`.
        *octet = unsafe { AtomicU8::from_ptr(from.add(i)) }.load(Ordering::Relaxed);
    }
}
