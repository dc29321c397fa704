//! Copies that bypass the caches, for long parts of frames.
//!
//! The lines of a ring are usually in the reader's cache, since the reader has read them in the previous lap.
//! An ordinary store first fetches the line from this cache. If the cache is on another chip of the
//! processor, the fetch costs more than the copy. A non-temporal store fetches nothing. Later the reader
//! reads the bytes sequentially from memory.

/// Minimum number of bytes for a streaming copy. Shorter parts are read so soon that the bytes should be in a
/// cache. A streaming copy also has to wait for the memory at the end of the copy.
pub(super) const MIN_BYTES: usize = 8 << 10;

/// Number of bytes of a cache line.
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// Copies `bytes` to `to`. Whole cache lines bypass the caches. Partial lines at the two ends are copied
/// through the caches. Later stores become visible after the copied bytes.
///
/// # Safety
/// `to..to + bytes.len()` is mapped and writable, does not overlap `bytes`, and is accessed only by raw
/// copies and atomics.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(to: *mut u8, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(to.align_offset(LINE).min(bytes.len()));
    let (lines, tail) = rest.as_chunks::<LINE>();
    let at_lines = to.wrapping_add(head.len());
    // SAFETY: `head` is the front of the caller's bytes, and is copied to the front of the range.
    unsafe { head.as_ptr().copy_to_nonoverlapping(to, head.len()) };
    // SAFETY: the lines follow `head` in the caller's bytes, and are copied to the place after `head` in the
    // range. If there is a line, `head` ends at a multiple of 64.
    unsafe { copy_lines(at_lines, lines) };
    let at_tail = at_lines.wrapping_add(lines.len() * LINE);
    // SAFETY: `tail` is the end of the caller's bytes, and is copied to the end of the range.
    unsafe { tail.as_ptr().copy_to_nonoverlapping(at_tail, tail.len()) };
}

/// Copies whole lines.
///
/// # Safety
/// The range at `to` with the length of `lines` is mapped and writable, does not overlap `lines`, and is
/// accessed only by raw copies and atomics. If `lines` is not empty, `to` is a multiple of 64.
#[cfg(target_arch = "x86_64")]
unsafe fn copy_lines(to: *mut u8, lines: &[[u8; LINE]]) {
    if lines.is_empty() {
        return;
    }
    // SAFETY: each of the `lines.len()` rounds reads a line of `lines`, and writes the corresponding line of
    // the caller's range. `movntps` needs addresses that are multiples of 16, and the addresses are multiples
    // of 64. Every x86-64 has SSE. Non-temporal stores are not ordered with other stores, but the compiler
    // treats the block like ordinary stores, so the block ends with `sfence`.
    unsafe {
        std::arch::asm!(
            "2:",
            "movups {a}, [{from}]",
            "movups {b}, [{from} + 16]",
            "movups {c}, [{from} + 32]",
            "movups {d}, [{from} + 48]",
            "movntps [{to}], {a}",
            "movntps [{to} + 16], {b}",
            "movntps [{to} + 32], {c}",
            "movntps [{to} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "dec {left}",
            "jnz 2b",
            "sfence",
            from = inout(reg) lines.as_ptr() => _,
            to = inout(reg) to => _,
            left = inout(reg) lines.len() => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Copies `bytes` to `to` through the caches. This function is used on other processors than x86-64.
///
/// # Safety
/// The conditions are the same as those of the function for x86-64.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(to: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller promises that the range at `to` is writable and does not overlap `bytes`.
    unsafe { bytes.as_ptr().copy_to_nonoverlapping(to, bytes.len()) };
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        /// All bytes are copied and no adjacent byte changes, whatever the offsets in a cache line at which
        /// the copy begins and ends.
        #[test]
        fn a_copy_is_exact(from in 0..64_usize, to in 0..64_usize, len in 0..1000_usize) {
            let source: Vec<u8> = (0..from + len).map(|i| (i * 7 + 1) as u8).collect();
            let mut target = vec![0xee_u8; 64 + 1000 + 64];
            // SAFETY: `to + len` is less than the length of `target`, which nobody else accesses.
            unsafe { super::copy(target.as_mut_ptr().wrapping_add(to), &source[from..]) };
            prop_assert_eq!(&target[to..to + len], &source[from..]);
            prop_assert!(target[..to].iter().chain(&target[to + len..]).all(|byte| *byte == 0xee));
        }
    }
}
